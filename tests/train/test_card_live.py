"""What the examples in a trained model's card compute: mlxbert and other libraries give the same results."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.written import TEXTS, TRAINED, Write, start, trained

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
pytest.importorskip("sentence_transformers", reason="live parity needs sentence_transformers")

pytestmark = pytest.mark.slow

BOUND = 1e-5
_BLOCK = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("start"))


def run(code: str) -> tuple[Any, dict[str, Any]]:
    """Runs an example; returns the value of its last line, and its names."""
    tree, names = ast.parse(code), dict[str, Any]()
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "example", "exec"), names)
    return eval(compile(ast.Expression(last.value), "example", "eval"), names), names


def same_classes(ours: Any, theirs: Any, names: dict[str, Any]) -> None:
    best = max(ours.labels, key=lambda label: label.score)
    assert theirs[0]["label"] == best.label and theirs[0]["score"] == pytest.approx(best.score, abs=BOUND)


def same_number(ours: Any, theirs: Any, names: dict[str, Any]) -> None:
    assert theirs[0]["score"] == pytest.approx(ours.value, abs=BOUND)


def same_tags(ours: Any, theirs: Any, names: dict[str, Any]) -> None:
    """Every token that transformers tags lies in an entity of the same kind, and every entity begins with one."""
    for token in theirs:
        kind = token["entity"].partition("-")[2]
        assert any(e.start <= token["start"] and token["end"] <= e.end and e.label == kind for e in ours.entities)
    assert theirs
    assert {entity.start for entity in ours.entities} <= {token["start"] for token in theirs}


def same_answer(ours: Any, theirs: str, names: dict[str, Any]) -> None:
    """The best span of the context by the scores of transformers; the example decodes the best start and end."""
    context, inputs, output = "A text with the answer.", names["inputs"], names["output"]
    model = mlxbert.load("answer", task="answer", dtype="float32")
    (best,) = mlxbert.answer(model, "A question?", context=context, no_answer_threshold=1, max_words=30).spans
    first, last = (torch.softmax(logits[0], 0) for logits in (output.start_logits, output.end_logits))
    places = names["tokenizer"](
        "A question?", context, return_offsets_mapping=True, return_token_type_ids=False
    )  # fmt: skip
    inside = [n for n, sequence in enumerate(places.sequence_ids(0)) if sequence == 1]
    spans = {(i, j): (first[i] * last[j]).item() for i in inside for j in inside if i <= j}
    start, end = max(spans, key=spans.__getitem__)
    offsets = places["offset_mapping"]
    assert (best.start, best.end) == (offsets[start][0], offsets[end][1])
    kept = sum(first[[0, *inside]]) * sum(last[[0, *inside]])  # mlxbert's scores leave out the question
    assert best.score == pytest.approx(spans[start, end] / kept.item(), abs=BOUND)
    i, j = output.start_logits.argmax(), output.end_logits.argmax()
    assert theirs == names["tokenizer"].decode(inputs["input_ids"][0, i : j + 1])


def same_vectors(ours: Any, theirs: Any, names: dict[str, Any]) -> None:
    assert theirs.shape[0] == 2 and np.abs(theirs[0] - ours).max() <= BOUND


def same_order(ours: Any, theirs: Any, names: dict[str, Any]) -> None:
    assert [entry["corpus_id"] for entry in theirs] == [result.index for result in ours]
    assert [entry["score"] for entry in theirs] == pytest.approx([result.score for result in ours], abs=BOUND)


def same_fills(ours: Any, theirs: Any, names: dict[str, Any]) -> None:
    fills = ours.masks[0].fills
    assert [entry["token"] for entry in theirs] == [fill.token_id for fill in fills]
    assert [entry["score"] for entry in theirs] == pytest.approx([fill.score for fill in fills], abs=BOUND)


WRITE: dict[str, Write] = TRAINED | {"tag": trained("tag", epochs=20, lr=1e-2)}  # tags some tokens
SAME: dict[str, Callable[[Any, Any, dict[str, Any]], None]] = {
    "classify": same_classes, "multilabel": same_classes, "regress": same_number, "tag": same_tags,
    "answer": same_answer, "embed": same_vectors, "rerank": same_order, "mlm": same_fills, "mlm,nsp": same_fills,
}  # fmt: skip


@pytest.mark.parametrize("kind", SAME)
def test_the_examples_of_a_card_give_the_same_results(
    kind: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = kind.replace(",", "-")
    WRITE[kind](made, tmp_path / name)
    monkeypatch.chdir(tmp_path)  # the examples name the folder as if it were on the hub
    card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
    ours, theirs = _BLOCK.findall(card.replace("A text.", TEXTS[1]) if kind == "tag" else card)
    found, _ = run(ours.replace(f'load("{name}")', f'load("{name}", dtype="float32")'))
    SAME[kind](list(found) if kind == "rerank" else found, *run(theirs))


def test_the_next_sentence_is_that_of_transformers(made: Path, tmp_path: Path) -> None:
    TRAINED["mlm,nsp"](made, tmp_path / "out")
    pair = ("the man went to the store .", "he bought milk")
    ours = mlxbert.next_sentence(mlxbert.load(tmp_path / "out", task="next-sentence", dtype="float32"), pair)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForNextSentencePrediction.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        logits = model(**tokenizer(*pair, return_tensors="pt")).logits[0]
    assert ours.score == pytest.approx(torch.softmax(logits, 0)[0].item(), abs=BOUND)
    assert ours.is_next == (ours.score >= 0.5)
