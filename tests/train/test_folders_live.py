"""Folders of training and transformers: what it saved is trained, and what was trained opens there, of every family."""

import ast
import json
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.text.batch import make_batch
from mlxbert.train.loop.events import Finished
from tests.export import test_round_trip_live as live
from tests.helpers.answering import save_answering
from tests.helpers.cells import cells
from tests.helpers.classifiers import save_classifier
from tests.helpers.families import FAMILIES, class_of, make_model
from tests.helpers.frozen import add_vocabulary, read_config
from tests.helpers.written import TEXTS as WRITTEN_TEXTS, TRAINED, Write, start, trained
from tests.tasks.test_rerank import SCORE
from tests.train.test_answer_objective import records
from tests.train.test_rerank import pairs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]
quiet = live.quiet

HEAD, BOUND = "ForSequenceClassification", 1e-5
CLASSIFIERS = [family for family, compared in FAMILIES.items() if HEAD in compared.heads]
# Without "dog", whose id is padding to some of these models.
TEXTS = [
    *("the cat sat on the mat", "a man is in paris", "he bought milk in tokyo", "the largest city , tokyo"),
    *("the store !", "playing", "the man went to the store .", "milk is on the mat", "he went to paris ."),
    *("cat , man , city", "is the man in tokyo", "a largest cat sat in the city of paris"),
]
LABELS: dict[str, list[Any]] = {
    "classify": ["größe", "no", 'yes, "really"'] * 4,
    "multilabel": [["a"], ["a", "b"], [], ["c", "b"]] * 3,
    "regress": [0.5, -1.0, 2.25, 4.0] * 3,
}
EXPECTED = {
    "classify": Labels(("größe", "no", 'yes, "really"'), "single_label_classification"),
    "multilabel": Labels(("a", "b", "c"), "multi_label_classification"),
    "regress": Labels(("label",), "regression"),
}


def saved(model: Any, folder: Path) -> Path:
    live.save(model, folder)
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def train(task: str, source: Path, output: Path, **options: Any) -> mlxbert.Model:
    data = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS[task], strict=True)]
    given: dict[str, Any] = {"train": data, "valid": data, "epochs": 1, "batch_size": 4, "lr": 1e-3}
    *_, last = mlxbert.finetune(task, model=source, output=output, **given | options)
    assert isinstance(last, Finished) and (options.get("check") is None or cast(float, last.check) < BOUND)
    return mlxbert.load(output, task="classify", dtype="float32")


def opened(folder: Path, family: str) -> tuple[Any, Any]:
    """The model by its class, with nothing missing, and the tokenizer; segments only where the model has them."""
    model, report = class_of(FAMILIES[family].classes + HEAD).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert [name.endswith(HEAD) for name in read_config(folder)["architectures"]] == [True]
    assert {name: list(problems) for name, problems in report.items() if problems} == {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    segments = ["token_type_ids"] * (FAMILIES[family].segments > 1)
    tokenizer.model_input_names = ["input_ids", "attention_mask", *segments]
    return model.eval(), tokenizer


def assert_same_logits(folder: Path, family: str, ours: mlxbert.Model) -> None:
    model, tokenizer = opened(folder, family)
    for text in TEXTS:
        with torch.no_grad():
            wanted = model(**tokenizer(text, return_tensors="pt")).logits[0].numpy()
        batch = make_batch([ours.tokenizer.encode(text)], ours.config)
        found = np.array(ours.network.logits("sequence_classifier", batch)[0])
        assert found == pytest.approx(wanted, abs=BOUND, rel=BOUND)


def assert_labels(folder: Path, model: mlxbert.Model, expected: Labels) -> None:
    assert model.labels is not None
    assert (model.labels.names, model.labels.problem_type) == (expected.names, expected.problem_type)
    config = transformers.PreTrainedConfig.from_pretrained(folder)  # of any type
    assert config.id2label == dict(enumerate(expected.names)) and config.num_labels == len(expected)
    assert config.label2id == {name: number for number, name in enumerate(expected.names)}
    assert config.problem_type == expected.problem_type


@pytest.mark.parametrize(("family", "task"), cells(CLASSIFIERS, LABELS))
def test_a_model_without_a_head_becomes_a_classifier(family: str, task: str, tmp_path: Path) -> None:
    source = saved(make_model(FAMILIES[family], "Model"), tmp_path / "source")
    if not FAMILIES[family].in_transformers:
        with pytest.raises(ArgumentError, match="check"):
            train(task, source, tmp_path / "out", check=True)
    model = train(task, source, tmp_path / "out", **({"check": True} if FAMILIES[family].in_transformers else {}))
    checked = json.loads((tmp_path / "out/training.json").read_text(encoding="utf-8"))["check"]
    assert checked < BOUND if FAMILIES[family].in_transformers else checked is None
    assert_labels(tmp_path / "out", model, EXPECTED[task])
    assert_same_logits(tmp_path / "out", family, model)
    if task == "multilabel":
        thresholds = model.labels and model.labels.thresholds
        assert thresholds and read_config(tmp_path / "out")["thresholds"] == [*thresholds]
        opened(tmp_path / "out", family)[0].save_pretrained(tmp_path / "again")
        add_vocabulary(tmp_path / "again")
        assert mlxbert.load(tmp_path / "again", task="classify").labels == model.labels


def test_models_that_answer_and_rerank_compute_the_same_in_transformers(tmp_path: Path) -> None:
    answering, reranker = save_answering(tmp_path / "a"), save_classifier(tmp_path / "r", SCORE)
    cases: Any = ("answer", records(60), answering), ("rerank", pairs(20), reranker)
    for task, data, model in cases:
        *_, last = mlxbert.finetune(
            task, train=data, model=model, output=tmp_path / task, epochs=1, lr=1e-3, check=True
        )
        assert isinstance(last, Finished) and last.check is not None and last.check <= 1e-4


_BLOCK = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("start"))


def run(code: str) -> tuple[Any, dict[str, Any]]:
    tree, names = ast.parse(code), dict[str, Any]()
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "example", "exec"), names)
    return eval(compile(ast.Expression(last.value), "example", "eval"), names), names


def found_by_us(kind: str, ours: Any) -> tuple[list[Any], list[float]]:
    """Whatever was found, and its scores."""
    if kind == "regress":
        return [None], [ours.value]
    if kind == "rerank":
        return [one.index for one in ours], [one.score for one in ours]
    if kind.startswith("mlm"):
        return [fill.token_id for fill in ours.masks[0].fills], [fill.score for fill in ours.masks[0].fills]
    best = max(ours.labels, key=lambda label: label.score)
    return [best.label], [best.score]


def assert_same_results(kind: str, ours: Any, theirs: Any, names: dict[str, Any]) -> None:
    if kind == "tag":  # each token lies in an entity of its kind, and each entity begins with one
        for token in theirs:
            label = token["entity"].partition("-")[2]
            assert any(e.start <= token["start"] and token["end"] <= e.end and e.label == label for e in ours.entities)
        assert theirs and {entity.start for entity in ours.entities} <= {token["start"] for token in theirs}
    elif kind == "answer":  # the best span of the context; the example decodes the best start and end
        text, output = "A text with the answer.", names["output"]
        model = mlxbert.load("answer", task="answer", dtype="float32")
        (best,) = mlxbert.answer(model, "A question?", context=text, no_answer_threshold=1, max_words=30).spans
        places = names["tokenizer"]("A question?", text, return_offsets_mapping=True, return_token_type_ids=False)
        inside, offsets = [n for n, one in enumerate(places.sequence_ids(0)) if one == 1], places["offset_mapping"]
        spans = {(i, j): output.start_logits[0][i] + output.end_logits[0][j] for i in inside for j in inside if i <= j}
        start, end = max(spans, key=spans.__getitem__)
        assert (best.start, best.end) == (offsets[start][0], offsets[end][1])
    elif kind == "embed":
        assert theirs.shape[0] == 2 and np.abs(theirs[0] - ours).max() <= BOUND
    else:
        what, scores = found_by_us(kind, ours)
        key = {"classify": "label", "multilabel": "label", "rerank": "corpus_id"}.get(kind, "token")
        assert what == [None if kind == "regress" else one[key] for one in theirs[: len(what)]]
        assert scores == pytest.approx([one["score"] for one in theirs[: len(what)]], abs=BOUND)


WRITE: dict[str, Write] = TRAINED | {"tag": trained("tag", epochs=20, lr=1e-2)}  # tags some tokens


@pytest.mark.parametrize(
    "kind", ["classify", "multilabel", "regress", "tag", "answer", "embed", "rerank", "mlm", "mlm,nsp"]
)
def test_examples_of_a_card_are_the_same(
    kind: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = kind.replace(",", "-")
    WRITE[kind](made, tmp_path / name)
    monkeypatch.chdir(tmp_path)  # the examples name the folder as if it were on the hub
    card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
    ours, theirs = _BLOCK.findall(card.replace("A text.", WRITTEN_TEXTS[1]) if kind == "tag" else card)
    found, _ = run(ours.replace(f'load("{name}")', f'load("{name}", dtype="float32")'))
    assert_same_results(kind, list(found) if kind == "rerank" else found, *run(theirs))
