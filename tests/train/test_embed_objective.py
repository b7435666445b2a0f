"""Training of vectors: what data become, what is left out of a batch, what is refused, and that it resumes."""

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx, nn
from mlxbert.nn import dropout
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.related_texts import find_related_columns, read_related
from mlxbert.train.loop.gradients import ComparedBatch, Differentiator
from mlxbert.train.nn import vector_losses as losses
from mlxbert.train.objectives.embed import Embed
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.objectives.vector_objective import TextGroup, VectorLoss, _excluded
from mlxbert.train.scores.vector_scores import vector_scores
from mlxbert.weights.sentence_transformers import read_embedder
from mlxbert.weights.write_sentence_transformers import write_embedder
from tests.helpers.st_folder import NORMALIZE, dense, layer_norm, pooling, save_st
from tests.train.test_finetune import begun

WORDS = ("cat", "mat", "dog", "house", "night", "friend", "run", "sit", "far", "near")
Record = dict[str, Any]


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(rng.choice(WORDS, rng.integers(2, 6)))] = None
    return [*found]


def pairs(count: int) -> list[Record]:
    some = texts(2 * count)
    return [{"anchor": first, "positive": second} for first, second in zip(some[::2], some[1::2], strict=True)]


def scored(count: int, largest: float = 1.0) -> list[Record]:
    return [
        {"sentence1": one["anchor"], "sentence2": one["positive"], "score": largest * (number % 5) / 4}
        for number, one in enumerate(pairs(count))
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_st(tmp_path / "start", pooling("mean", old=True), NORMALIZE)


def train(folder: Path, data: Any, output: Path, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"epochs": 1, "batch_size": 8, "device": "cpu"} | options
    return list(mlxbert.finetune("embed", train=data, model=folder, output=output, **given))


@pytest.mark.parametrize(
    ("columns", "kind", "found"),
    [
        (["anchor", "positive"], "pairs", {"text": "anchor", "pair": "positive"}),
        (["query", "positive", "negative"], "pairs", {"text": "query", "pair": "positive", "negative": "negative"}),
        (
            ["question", "answer", "negative_1", "negative_2"],
            *("pairs", {"text": "question", "pair": "answer", "negative 1": "negative_1", "negative 2": "negative_2"}),
        ),
        (["sentence1", "sentence2", "score"], "scored", {"text": "sentence1", "pair": "sentence2", "label": "score"}),
        (["text", "label"], "texts", {"text": "text"}),
        (["anchor", "positive", "label"], "pairs", {"text": "anchor", "pair": "positive"}),
        (["words"], "texts", {"text": "words"}),
        (["query", "text"], "pairs", {"text": "query", "pair": "text"}),
        (["Title", "Text"], "pairs", {"text": "Title", "pair": "Text"}),
        (["text_a", "text_b", "score"], "scored", {"text": "text_a", "pair": "text_b", "label": "score"}),
        (["Anchor", "Positive", "Score"], "pairs", {"text": "Anchor", "pair": "Positive"}),
        (
            ["query", "answer", "negative_1", "score"],
            *("pairs", {"text": "query", "pair": "answer", "negative": "negative_1"}),
        ),
    ],
)
def test_columns_say_what_the_data_are(columns: list[str], kind: str, found: dict[str, str]) -> None:
    rows = read_rows([{column: "0.5" if column in ("score", "label") else column for column in columns}])
    columns_found = find_related_columns(rows)
    assert (columns_found.kind, columns_found.to_dict()) == (kind, found)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"query": "a", "positives": [], "negatives": ["b"]}, "positives"),
        ({"query": "a", "positives": ["b"], "negatives": ["b"]}, "both"),
        ({"query": "a", "positives": 7}, "positives"),
        ({"query": "a", "positives": ["b", ""]}, "empty"),
        ({"query": "  ", "positives": ["b"]}, "empty"),
        ({"sentence1": "a", "sentence2": "b", "score": "high"}, "number"),
        ({"anchor": "a", "positive": None}, "positive"),
    ],
)
def test_records_that_cannot_be_used_are_named_with_their_place(record: Record, said: str) -> None:
    rows = read_rows([record])
    with pytest.raises(mlxbert.InputError, match=said) as caught:
        read_related(rows, find_related_columns(rows))
    assert "record 1" in caught.value.message


def test_a_triplet_without_its_negative_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"anchor": "a b", "positive": "c d", "negative": "e f"}, {"anchor": "g h", "positive": "i j"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    rows = read_rows(path)
    with pytest.raises(mlxbert.InputError, match="line 2"):
        read_related(rows, find_related_columns(rows))


def example(*given: str) -> TextGroup:
    return TextGroup(None, None, (None,) * (len(given) - 1), given)  # type: ignore[arg-type]


def test_duplicates_in_a_batch_are_no_negatives() -> None:
    batch = [example("a", "A", "x"), example("b", "B", "A"), example("a", "C", "y"), example("d", "a", "z")]
    # Candidates: A B C a x A y z. For the first: its positive is the answer; C and a are of the same text or the text
    # itself, and the sixth is its positive once more.
    assert _excluded(batch).tolist() == [
        [False, False, True, True, False, True, False, False],
        [False, False, False, False, False, False, False, False],
        [True, False, False, True, False, False, False, False],
        [False, False, False, False, False, False, False, False],
    ]


def test_one_text_a_thousand_times_has_no_gradient_against_itself() -> None:
    vectors = mx.random.normal((6, 4))
    batch = [example("same", "same positive")] * 3
    chosen = VectorLoss("in-batch")
    loss, weight = chosen(vectors, chosen.targets(batch))
    assert weight == 3 and abs(loss.item()) < 1e-5


def test_losses_of_identical_vectors_have_finite_gradients() -> None:
    same = mx.ones((4, 3))
    for name, target in (("triplet", 0.0), ("cosent", 1.0), ("cosine", 1.0), ("in-batch", 0.0)):
        count = 3 if name == "triplet" else 2
        batch = [TextGroup(None, target * number, (None,) * (count - 1), tuple(f"{number} {i}" for i in range(count)))  # type: ignore[arg-type]
                 for number in range(2)]  # fmt: skip
        given = mx.concatenate([same, same])[: 2 * count]
        chosen = VectorLoss(name)
        gradient = mx.grad(lambda v, chosen=chosen, batch=batch: chosen(v, chosen.targets(batch))[0])(given)
        assert np.isfinite(np.array(gradient)).all(), name


def test_cosent_compares_only_pairs_of_different_scores() -> None:
    first, second = mx.random.normal((5, 4)), mx.random.normal((5, 4))
    assert losses.cosent(first, second, mx.ones(5), temperature=0.05).item() == pytest.approx(0, abs=1e-6)


def test_texts_that_find_their_positive_score_one() -> None:
    vectors = np.eye(6, dtype=np.float32)[[0, 0, 1, 2, 2, 3, 4, 4, 5]]
    kind = [TextGroup(None, None, (None, None), (f"q{n}", f"p{n}", f"n{n}")) for n in range(3)]  # type: ignore[arg-type]
    scores = vector_scores(kind, vectors)
    assert scores.means() == {
        "ndcg@10": 1, "map": 1, "mrr@10": 1, "recall@10": 1, "recall@100": 1, "triplet_accuracy": 1,
    }  # fmt: skip


def test_a_trained_folder_is_evaluated_as_it_states(folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"dimensions": [24, 6], "symmetric": True, "chunk": 3, "normalize": True}
    *_, finished = train(folder, pairs(20), tmp_path / "out", pooling="cls+max", **how)
    assert finished.summary.baselines.keys() == {"before training"}
    model = mlxbert.load(tmp_path / "out", task="embed", device="cpu")
    assert model.embedder.config.stated and model.embedder.config.poolings == ("cls", "max")
    again = mlxbert.evaluate("embed", model, data=pairs(20))
    assert again.metric == "ndcg@10" and 0 <= again.score <= 1


def test_scores_choose_spearman_and_texts_alone_are_halved(folder: Path, tmp_path: Path) -> None:
    *_, finished = train(folder, scored(20, 5), tmp_path / "scored", loss="cosine", max_score=5)
    assert finished.metric == "spearman" and {*finished.evaluation.metrics} == {"spearman", "pearson"}
    *_, finished = train(folder, [{"text": text} for text in texts(20)], tmp_path / "alone")
    assert finished.metric == "ndcg@10"


@pytest.mark.parametrize(
    ("data", "options", "error"),
    [
        (scored(20, 5), {"loss": "cosine"}, mlxbert.InputError),
        (scored(20), {"loss": "triplet"}, mlxbert.ArgumentError),
        (pairs(20), {"loss": "triplet"}, mlxbert.InputError),
        (pairs(20), {"loss": "cosent"}, mlxbert.ArgumentError),
        (pairs(20), {"loss": "contrast"}, mlxbert.ArgumentError),
        (pairs(20), {"dimensions": [48]}, mlxbert.ArgumentError),
        (pairs(20), {"dimensions": [0]}, mlxbert.ArgumentError),
        (pairs(20), {"temperature": 0}, mlxbert.ArgumentError),
        (pairs(20), {"chunk": 0}, mlxbert.ArgumentError),
        (pairs(20), {"pooling": "attention"}, mlxbert.ArgumentError),
        (pairs(20), {"metric": "spearman"}, mlxbert.ArgumentError),
        ([{"anchor": "same", "positive": f"cat {word}"} for word in WORDS], {}, mlxbert.InputError),
        ([one | {"score": 1} for one in scored(20)], {}, mlxbert.InputError),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused_before_training(
    data: list[Record], options: dict[str, Any], error: type, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(error):
        train(folder, data, tmp_path / "out", **options)
    assert not [*tmp_path.glob("out*")]


def test_modules_are_written_as_they_are_read(tmp_path: Path) -> None:
    mx.random.seed(4)
    specs = [
        pooling("mean", "cls", old=True), dense(mx.random.normal((24, 48)), mx.random.normal((24,))),
        layer_norm(mx.random.normal((24,)), mx.random.normal((24,))), NORMALIZE,
    ]  # fmt: skip
    settings = {"prompts": {"query": "find: "}, "default_prompt_name": "query", "truncate_dim": 12}
    start = save_st(tmp_path / "start", *specs, transformer={"max_seq_length": 20}, settings=settings)
    embedder = read_embedder(start, 24)
    again = save_st(tmp_path / "again")
    (again / "modules.json").unlink()
    write_embedder(embedder, again, 20)
    found = read_embedder(again, 24)
    assert found.config == embedder.config
    for one, other in zip(embedder.layers, found.layers, strict=True):
        mine, theirs = (dict(nn.utils.tree_flatten(layer.parameters())) for layer in (one, other))
        assert mine.keys() == theirs.keys() and all(mx.array_equal(mine[name], theirs[name]) for name in mine)


def test_mined_negatives_are_near_and_not_the_querys_own(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", device="cpu")
    data = pairs(30)
    mined = mlxbert.mine(model, data, negatives=3, margin=-2)
    positives = {one["anchor"]: one["positive"] for one in data}
    assert [one.query for one in mined] == [*positives]
    assert all(len(one.negatives) == 3 and positives[one.query] not in one.negatives for one in mined)
    later = mlxbert.mine(model, data, negatives=3, margin=-2, skip=2)
    assert [one.negatives[0] for one in later] == [one.negatives[2] for one in mined]
    vectors = {text: vector for texts_ in zip(*(one.values() for one in data), strict=True)
               for text, vector in zip(texts_, mlxbert.embed(model, texts_, normalize=True), strict=True)}  # fmt: skip
    for one in mlxbert.mine(model, data, negatives=3, margin=0.01):
        own = vectors[one.query] @ vectors[one.positives[0]]
        assert all(vectors[one.query] @ vectors[text] <= own - 0.01 + 1e-6 for text in one.negatives)


def test_mine_refuses_what_is_no_pairs(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", device="cpu")
    with pytest.raises(mlxbert.InputError, match="scores"):
        mlxbert.mine(model, scored(10))
    with pytest.raises(mlxbert.ArgumentError, match="negatives"):
        mlxbert.mine(model, pairs(10), negatives=0)
    with pytest.raises(mlxbert.ArgumentError, match="margin"):
        mlxbert.mine(model, pairs(10), margin=3)


def part_of(objective: Embed, examples: Sequence[TextGroup]) -> tuple[TrainBatch, mx.array]:
    return objective.collate(examples, random.Random(0)), mx.random.key(0)


def test_parts_of_a_batch_give_the_gradients_of_the_whole(folder: Path) -> None:
    network = mlxbert.load(folder, task="embed", dtype="float32", device="cpu").network
    dropout.set_rate(network, 0.0)
    objective = Embed()
    rows = read_rows(pairs(13))
    objective.check(objective.read(rows))
    objective.bind(mlxbert.load(folder, task="embed", dtype="float32", device="cpu"))
    examples = [objective.prepare(record) for record in objective.read(rows)]
    parameters = dict(nn.utils.tree_flatten(network.parameters()))
    found = []
    for count in (1, 3):
        shares = [examples[part::count] for part in range(count)]
        order = [one for share in shares for one in share]
        parts = [functools.partial(part_of, objective, share) for share in shares]
        whole = ComparedBatch(objective.compare, objective.targets(order), None, objective.width)
        sizes = [2 * len(share) for share in shares]
        found.append(Differentiator(network, objective, mx.float32).compared(parameters, parts, sizes, whole))
    at_once, weight = objective.loss(network, objective.collate(examples, random.Random(0)))
    assert at_once.item() == pytest.approx(found[1].loss.item(), rel=1e-5) and weight == found[1].weight.item() == 13
    one, other = ({name: np.array(array) for name, array in each.arrays.items()} for each in found)
    largest = max(np.abs(array).max() for array in one.values())
    assert all(np.abs(one[name] - other[name]).max() <= 1e-4 * largest for name in one)


def test_two_columns_of_long_texts_are_not_taken_for_one(tmp_path: Path) -> None:
    long = {"complaint": "the delivery came three days late", "reply": "we are sorry and send you a voucher"}
    with pytest.raises(mlxbert.InputError, match="complaint"):
        find_related_columns(read_rows([long]))
    assert find_related_columns(read_rows([long]), text_column="reply").kind == "texts"
    with pytest.raises(mlxbert.InputError):  # a column of negatives is not that of the text
        find_related_columns(read_rows([{"positive": "a", "negatives": ["b"]}]))
    (tmp_path / "headless.csv").write_text(
        "how do I reset my password on this site, and how long does the link work\nwhere is my order\n"
    )
    with pytest.raises(mlxbert.InputError, match="header"):
        find_related_columns(read_rows(tmp_path / "headless.csv"))


def test_lists_stand_in_tables_as_json_and_negatives_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('query,positives,negatives\na b,"[""c d"", ""e f"", ""c d""]",\ng h,i j,k l\n')
    rows = read_rows(path)
    with pytest.raises(mlxbert.InputError, match="line 2"):  # an empty cell is an empty text
        read_related(rows, find_related_columns(rows))
    given = [{"query": "a b", "positives": ["c d", "c d"]}, {"query": "g h", "positives": "i j", "negatives": ["k l"]}]
    rows = read_rows(given)
    found = read_related(rows, find_related_columns(rows))
    assert [(one.positives, one.negatives) for one in found] == [(("c d",), ()), (("i j",), ("k l",))]


@pytest.mark.parametrize("valid", [pairs(12), [{"text": "".join(text.split())} for text in texts(12)]])
def test_triplets_are_validated_by_other_data(valid: list[Record], folder: Path, tmp_path: Path) -> None:
    data = [one | {"negative": text} for one, text in zip(pairs(20), texts(20, seed=9), strict=True)]
    *_, finished = train(folder, data, tmp_path / "out", valid=valid, loss="triplet", margin=0.5)
    assert finished.evaluation.examples == 12


def test_a_named_column_must_be_in_the_validation_data_too_or_none_of_them(folder: Path, tmp_path: Path) -> None:
    data = [{"q": one["anchor"], "a": one["positive"]} for one in pairs(20)]
    named = {"text_column": "q", "pair_column": "a"}
    with pytest.raises(mlxbert.ArgumentError, match="'a'"):
        train(folder, data, tmp_path / "out", valid=[{"q": one["q"], "ans": one["a"]} for one in data], **named)
    *_, finished = train(folder, data, tmp_path / "out", valid=scored(12), **named)
    assert finished.metric == "spearman"


def test_prompts_are_those_of_what_a_record_is_whatever_was_read_first(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "cat cat ", "document": "dog dog "}}
    start = save_st(tmp_path / "start", pooling("mean", old=True), NORMALIZE, settings=settings)
    *_, finished = train(start, pairs(20), tmp_path / "out", valid=scored(12))
    model = mlxbert.load(tmp_path / "out", task="embed", device="cpu")
    assert mlxbert.evaluate("embed", model, data=scored(12)).score == pytest.approx(finished.score, abs=1e-6)


def test_a_longer_limit_of_training_is_that_of_the_folder(tmp_path: Path) -> None:
    start = save_st(tmp_path / "start", pooling("mean", old=True), transformer={"max_seq_length": 5})
    data = [{"anchor": " ".join(WORDS), "positive": f"cat {word}"} for word in WORDS]
    data += pairs(9)
    train(start, data, tmp_path / "out", max_length=16)
    assert mlxbert.load(tmp_path / "out", task="embed", device="cpu").embedder.config.max_length == 16


def test_truncated_records_are_counted_whichever_positive_is_long(folder: Path, tmp_path: Path) -> None:
    data: list[Record] = [{"query": text, "positives": ["cat " * 600, f"dog {text}"]} for text in texts(10)]
    how: dict[str, Any] = {"model": folder, "output": tmp_path / "out", "valid": pairs(10), "max_length": 32}
    report = begun("embed", train=data, **how).report
    assert report is not None and report.splits[0].truncated == 10


def test_identical_pairs_do_not_count(folder: Path) -> None:
    same = [TextGroup(None, None, (None,), (text, text)) for text in ("a", "b")]  # type: ignore[arg-type]
    with pytest.raises(mlxbert.InputError):
        vector_scores(same, np.eye(4, dtype=np.float32))
