"""Training of vectors, of sparse ones and of those of tokens: the data, the losses, what is refused and written."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.machine.device import mx, nn
from mlxbert.nn import dropout
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.related_texts import find_related_columns, read_related
from mlxbert.train.loop.events import Step
from mlxbert.train.loop.gradients import ComparedBatch, Differentiator, Gradients
from mlxbert.train.nn import vector_losses as losses
from mlxbert.train.nn.vector_losses import late_interaction
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.embed import Embed
from mlxbert.train.objectives.embed_sparse import ACTIVE, EmbedSparse
from mlxbert.train.objectives.vector_objective import TextGroup, VectorLoss, _excluded
from mlxbert.train.scores.vector_scores import vector_scores
from mlxbert.weights.sentence_transformers import read_embedder
from mlxbert.weights.write_sentence_transformers import write_embedder
from tests.helpers import token_folders
from tests.helpers.cases import together
from tests.helpers.sparse_folder import TEXTS as SPARSE_TEXTS, save_routed, save_splade
from tests.helpers.st_folder import NORMALIZE, dense, layer_norm, pooling, save_st
from tests.helpers.tiny import CONFIG, save

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


@together(
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
    related = find_related_columns(rows)
    assert (related.kind, related.to_dict()) == (kind, found)


TRIPLETS = [{"anchor": "a b", "positive": "c d", "negative": "e f"}, {"anchor": "g h", "positive": "i j"}]
CSV = 'query,positives,negatives\na b,"[""c d"", ""e f"", ""c d""]",\ng h,i j,k l\n'


@together(
    ("data", "said"),
    [
        ({"query": "a", "positives": [], "negatives": ["b"]}, "record 1.*positives"),
        ({"query": "a", "positives": ["b"], "negatives": ["b"]}, "record 1.*both"),
        ({"query": "a", "positives": 7}, "record 1.*positives"),
        ({"query": "a", "positives": ["b", ""]}, "record 1.*empty"),
        ({"query": "  ", "positives": ["b"]}, "record 1.*empty"),
        ({"sentence1": "a", "sentence2": "b", "score": "high"}, "record 1.*number"),
        ({"anchor": "a", "positive": None}, "record 1.*positive"),
        ("\n".join(map(json.dumps, TRIPLETS)), "line 2"),
        (CSV, "line 2"),  # an empty cell is an empty text
    ],
)
def test_records_that_cannot_be_used_are_named_with_their_place(data: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / ("rows.csv" if data == CSV else "rows.jsonl")
    path.write_text(str(data))
    rows = read_rows(path if isinstance(data, str) else [data])
    with pytest.raises(mlxbert.InputError, match=said):
        read_related(rows, find_related_columns(rows))


def test_two_columns_of_long_texts_are_not_taken_for_one_and_negatives_may_be_missing(tmp_path: Path) -> None:
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
    given = [{"query": "a b", "positives": ["c d", "c d"]}, {"query": "g h", "positives": "i j", "negatives": ["k l"]}]
    rows = read_rows(given)
    found = read_related(rows, find_related_columns(rows))
    assert [(one.positives, one.negatives) for one in found] == [(("c d",), ()), (("i j",), ("k l",))]


def example(*texts: str, target: float | None = None) -> TextGroup:
    return TextGroup(None, target, (None,) * (len(texts) - 1), texts)  # type: ignore[arg-type]


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


def test_equal_vectors_texts_and_scores_have_no_loss_or_a_finite_gradient() -> None:
    chosen = VectorLoss("in-batch")
    loss, weight = chosen(mx.random.normal((6, 4)), chosen.targets([example("same", "same positive")] * 3))
    assert weight == 3 and abs(loss.item()) < 1e-5
    first, second = mx.random.normal((5, 4)), mx.random.normal((5, 4))
    assert losses.cosent(first, second, mx.ones(5), temperature=0.05).item() == pytest.approx(0, abs=1e-6)
    for name, target in (("triplet", 0.0), ("cosent", 1.0), ("cosine", 1.0), ("in-batch", 0.0)):
        count = 3 if name == "triplet" else 2
        batch = [example(*(f"{number} {i}" for i in range(count)), target=target * number) for number in range(2)]
        chosen = VectorLoss(name)
        gradient = mx.grad(lambda v, chosen=chosen, batch=batch: chosen(v, chosen.targets(batch))[0])(
            mx.ones((2 * count, 3))
        )
        assert np.isfinite(np.array(gradient)).all(), name


def test_texts_that_find_their_positive_score_one_and_identical_pairs_do_not_count() -> None:
    vectors = np.eye(6, dtype=np.float32)[[0, 0, 1, 2, 2, 3, 4, 4, 5]]
    scores = vector_scores([example(f"q{n}", f"p{n}", f"n{n}") for n in range(3)], vectors)
    names = "ndcg@10", "map", "mrr@10", "recall@10", "recall@100", "triplet_accuracy"
    assert scores.means() == dict.fromkeys(names, 1)
    mixed = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)  # q0 p0 n0 q1 p1 n1 q2 p2 n2
    found = vector_scores([example(f"q{n}", f"p{n}", f"n{n}") for n in range(3)], mixed, "dot").means()
    products = mixed[::3] @ np.delete(mixed, [0, 3, 6], axis=0).T  # columns are p0 n0 p1 n1 p2 n2
    places = np.array([1 + (row > row[2 * n]).sum() for n, row in enumerate(products)])
    nearer = np.mean([row[2 * n] > row[2 * n + 1] for n, row in enumerate(products)])
    assert 0 < nearer < 1 and found["triplet_accuracy"] == pytest.approx(nearer)
    assert found["mrr@10"] == pytest.approx((1 / places).mean()) != 1
    with pytest.raises(mlxbert.InputError):
        vector_scores([example(text, text) for text in ("a", "b")], np.eye(4, dtype=np.float32))


def test_a_trained_folder_is_evaluated_as_it_states(folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"dimensions": [24, 6], "symmetric": True, "chunk": 3, "normalize": True}
    *_, finished = train(folder, pairs(20), tmp_path / "out", pooling="cls+max", **how)
    assert finished.summary.baselines.keys() == {"before training"}
    model = mlxbert.load(tmp_path / "out", task="embed", device="cpu")
    assert model.embedder.config.stated and model.embedder.config.poolings == ("cls", "max")
    again = mlxbert.evaluate("embed", model, data=pairs(20))
    assert again.metric == "ndcg@10" and 0 <= again.score <= 1


def test_scores_choose_spearman_texts_alone_are_halved_and_triplets_are_validated(folder: Path, tmp_path: Path) -> None:
    *_, finished = train(folder, scored(20, 5), tmp_path / "scored", loss="cosine", max_score=5)
    assert finished.metric == "spearman" and {*finished.evaluation.metrics} == {"spearman", "pearson"}
    *_, finished = train(folder, [{"text": text} for text in texts(20)], tmp_path / "alone")
    assert finished.metric == "ndcg@10"
    data = [one | {"negative": text} for one, text in zip(pairs(20), texts(20, seed=9), strict=True)]
    for name, valid in (("pairs", pairs(12)), ("words", [{"text": "".join(text.split())} for text in texts(12)])):
        *_, finished = train(folder, data, tmp_path / name, valid=valid, loss="triplet", margin=0.5)
        assert finished.evaluation.examples == 12


@together(
    ("data", "options", "error"),
    [
        (scored(20, 5), {"loss": "cosine"}, InputError),
        (scored(20), {"loss": "triplet"}, ArgumentError),
        (pairs(20), {"loss": "triplet"}, InputError),
        (pairs(20), {"loss": "cosent"}, ArgumentError),
        (pairs(20), {"loss": "contrast"}, ArgumentError),
        (pairs(20), {"dimensions": [48]}, ArgumentError),
        (pairs(20), {"dimensions": [0]}, ArgumentError),
        (pairs(20), {"temperature": 0}, ArgumentError),
        (pairs(20), {"chunk": 0}, ArgumentError),
        (pairs(20), {"pooling": "attention"}, ArgumentError),
        (pairs(20), {"metric": "spearman"}, ArgumentError),
        ([{"anchor": "same", "positive": f"cat {word}"} for word in WORDS], {}, InputError),
        ([one | {"score": 1} for one in scored(20)], {}, InputError),
    ],
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
    wrong: list[tuple[list[Record], Any, str]] = [
        (scored(10), {}, "scores"), (pairs(10), {"negatives": 0}, "negatives"), (pairs(10), {"margin": 3}, "margin"),
    ]  # fmt: skip
    for given, options, problem in wrong:
        with pytest.raises((mlxbert.InputError, mlxbert.ArgumentError), match=problem):
            mlxbert.mine(model, given, **options)


def compared(network: Any, objective: Embed, examples: Sequence[TextGroup], count: int) -> Gradients:
    shares = [examples[part::count] for part in range(count)]
    parts = [lambda share=share: (objective.collate(share, random.Random(0)), mx.random.key(0)) for share in shares]
    targets = objective.targets([one for share in shares for one in share])
    whole = ComparedBatch(objective.compare, targets, None, objective.width)
    sizes = [sum(len(one.encodings) for one in share) for share in shares]
    differentiator = Differentiator(network, objective, mx.float32)
    return differentiator.compared(dict(nn.utils.tree_flatten(network.parameters())), parts, sizes, whole)


def test_parts_of_a_batch_give_the_gradients_of_the_whole(folder: Path) -> None:
    network = mlxbert.load(folder, task="embed", dtype="float32", device="cpu").network
    dropout.set_rate(network, 0.0)
    objective = Embed()
    rows = read_rows(pairs(13))
    objective.check(objective.read(rows))
    objective.bind(mlxbert.load(folder, task="embed", dtype="float32", device="cpu"))
    examples = [objective.prepare(record) for record in objective.read(rows)]
    found = [compared(network, objective, examples, count) for count in (1, 3)]
    at_once, weight = objective.loss(network, objective.collate(examples, random.Random(0)))
    assert at_once.item() == pytest.approx(found[1].loss.item(), rel=1e-5) and weight == found[1].weight.item() == 13
    one, other = ({name: np.array(array) for name, array in each.arrays.items()} for each in found)
    largest = max(np.abs(array).max() for array in one.values())
    assert all(np.abs(one[name] - other[name]).max() <= 1e-4 * largest for name in one)


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


def test_a_longer_limit_is_that_of_the_folder_and_texts_are_cut_whichever_positive_is_long(
    tmp_path: Path,
) -> None:
    start = save_st(tmp_path / "start", pooling("mean", old=True), transformer={"max_seq_length": 5})
    data: list[Record] = [{"query": text, "positives": ["cat " * 600, f"dog {text}"]} for text in texts(10)]
    report = train(start, data, tmp_path / "out", valid=pairs(10), max_length=16)[0].report
    assert report.splits[0].truncated == 10
    assert mlxbert.load(tmp_path / "out", task="embed", device="cpu").embedder.config.max_length == 16


SENTENCES = [
    {"text": "the cat sat", "positive": "the cat sat on mat"}, {"text": "a man went", "positive": "man went to store"},
    {"text": "paris is city", "positive": "largest city is paris"}, {"text": "he bought", "positive": "bought milk"},
]  # fmt: skip
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 4, "device": "cpu", "valid": SENTENCES, "query_flops": 0.01}


def sparse_loss(vectors: np.ndarray[Any, Any], progress: float, **options: Any) -> float:
    objective = make_objective("embed", vectors="sparse", loss="in-batch", **options)
    assert isinstance(objective, EmbedSparse)
    objective.progress = progress
    examples: Any = [
        SimpleNamespace(kind="pairs", texts=pair, encodings=[(), ()], target=None) for pair in ("ab", "cd", "ef")
    ]
    loss, weight = objective.compare(mx.array(vectors), objective.targets(examples))
    return float(loss) / weight


@together(("progress", "ramp"), [(0.0, 0.0), (0.125, 0.25), (0.25, 1.0), (0.9, 1.0)])
def test_the_loss_of_sparse_vectors_is_its_formula(progress: float, ramp: float) -> None:
    vectors = np.random.default_rng(0).random((6, 9)).astype(np.float32)
    queries, documents = vectors[::2], vectors[1::2]
    logits = queries @ documents.T
    ranking = -np.mean(np.diag(logits - np.log(np.exp(logits).sum(1, keepdims=True))))
    flops = [np.square(each.mean(0)).sum() for each in (queries, documents)]
    options = {"query_flops": 0.5, "document_flops": 2.0, "flops_warmup": 0.25}
    expected = float(ranking + ramp * (0.5 * flops[0] + 2.0 * flops[1]))
    assert sparse_loss(vectors, progress, **options) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_the_loss_of_sparse_vectors_is_that_of_sentence_transformers() -> None:
    torch, st = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.sparse_encoder.losses")
    vectors = np.random.default_rng(1).random((6, 9)).astype(np.float32)
    queries, documents = (torch.tensor(vectors[start::2]) for start in (0, 1))
    ranking, flops = st.SparseMultipleNegativesRankingLoss(model=None), st.FlopsLoss(model=None)
    expected = ranking.compute_loss_from_embeddings([queries, documents], None)
    expected += 0.5 * flops.compute_loss_from_embeddings(queries) + 2 * flops.compute_loss_from_embeddings(documents)
    assert sparse_loss(vectors, 1.0, query_flops=0.5, document_flops=2.0) == pytest.approx(float(expected), rel=1e-5)


def test_training_writes_a_splade_model_and_regularizers_make_vectors_sparser(tmp_path: Path) -> None:
    found = []
    for weight in (0.0, 10.0):
        options = QUICK | {"query_flops": weight, "document_flops": weight, "epochs": 5, "eval_every": 5, "lr": 0.03}
        out = tmp_path / f"out-{weight}"
        given: dict[str, Any] = {"model": save(tmp_path / "m"), "train": SENTENCES, "output": out, "vectors": "sparse"}
        events = [*mlxbert.finetune("embed", **given, **options)]
        evaluated = [event for event in events if isinstance(event, mlxbert.Evaluated)]
        assert evaluated and all(0 <= event.metrics[ACTIVE] <= CONFIG["vocab_size"] for event in evaluated)
        model = mlxbert.load(out, task="embed", device="cpu")
        found.append(sum(float(result.values.sum()) for result in mlxbert.embed_sparse(model, SPARSE_TEXTS[:3])))
    assert found[1] < found[0] / 2 and model.vectors == ("sparse",)
    settings = json.loads((out / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    assert settings["model_type"] == "SparseEncoder"
    assert "masked_lm" in mlxbert.load(out, device="cpu").network.heads


def test_a_sparse_model_stays_sparse_and_is_evaluated(tmp_path: Path) -> None:
    folder = save_splade(tmp_path / "m", pooling_strategy="sum")
    [*mlxbert.finetune("embed", model=folder, train=SENTENCES, output=tmp_path / "out", **QUICK)]
    model = mlxbert.load(tmp_path / "out", task="embed", device="cpu")
    assert not model.sparse_embedder.config.largest
    assert ACTIVE in mlxbert.evaluate("embed", model, data=SENTENCES).metrics


def test_sparse_vectors_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    for model, options, said in (
        (save_routed(tmp_path / "r"), {}, "without a masked-LM head for all texts"),
        (save(tmp_path / "m"), {"vectors": "sparse", "dimensions": [8]}, "`dimensions` works only for dense"),
    ):
        with pytest.raises(ArgumentError, match=said):
            mlxbert.finetune("embed", model=model, train=SENTENCES, output=tmp_path / "out", **QUICK | options)


@pytest.mark.slow
def test_sentence_transformers_opens_a_trained_folder(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    out = tmp_path / "out"
    [*mlxbert.finetune("embed", model=save(tmp_path / "m"), train=SENTENCES, output=out, vectors="sparse", **QUICK)]
    theirs, model = st.SparseEncoder(str(out), device="cpu"), mlxbert.load(out, task="embed", device="cpu")
    expected = theirs.encode([*SPARSE_TEXTS], convert_to_sparse_tensor=False).float().numpy()
    for row, result in zip(expected, mlxbert.embed_sparse(model, SPARSE_TEXTS), strict=True):
        assert result.ids.tolist() == row.nonzero()[0].tolist() and len(result.ids)
        np.testing.assert_allclose(result.values, row[result.ids], atol=1e-5)


NOUNS = ("cat", "dog", "mat", "paris", "tokyo", "city", "store", "milk", "man", "largest")
PAIRS = [{"text": f"the {word} ?", "positive": f"he went to {word} , {word} ."} for word in NOUNS]


def test_the_loss_is_the_cross_entropy_of_maxsim() -> None:
    rng = np.random.default_rng(5)
    queries, documents = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 4, 8), (5, 6, 8)))
    of_queries, of_documents = rng.random((3, 4)) < 0.8, rng.random((5, 6)) < 0.7
    excluded = np.zeros((3, 5), dtype=bool)
    excluded[0, 3] = True
    scores = np.array([
        [(queries[q] @ documents[d][of_documents[d]].T).max(axis=1)[of_queries[q]].sum() / 2 for d in range(5)]
        for q in range(3)
    ])  # fmt: skip
    scores[0, 3] = -np.inf
    expected = sum(np.log(np.exp(scores[q]).sum()) - scores[q, q] for q in range(3))
    arrays = (mx.array(array) for array in (queries, of_queries, documents, of_documents, excluded))
    assert late_interaction(*arrays, temperature=2.0).item() == pytest.approx(expected, rel=1e-5)


def trained_tokens(folder: Path, output: Path, **options: Any) -> mlxbert.Model:
    settings: dict[str, Any] = {"vectors": "tokens", "epochs": 1, "batch_size": 4, "device": "cpu", **options}
    return mlxbert.finetune("embed", train=PAIRS, output=output, model=folder, **settings).run()


@pytest.mark.slow
def test_a_model_of_texts_learns_and_is_written_as_a_folder_of_pylate(base: Path, tmp_path: Path) -> None:
    events = mlxbert.finetune(
        "embed", train=PAIRS, valid=PAIRS, model=base, output=tmp_path / "out", vectors="tokens", dimensions=(16,),
        max_length=20, epochs=60, eval_every=60, batch_size=10, lr=1e-2, dropout=0.0, device="cpu",
    )  # fmt: skip
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < losses[0] / 2
    settings = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert settings["query_length"] == settings["document_length"] == 20
    assert [module["type"] for module in modules[1:]] == ["pylate.models.Dense.Dense"]
    opened = mlxbert.load(tmp_path / "out")
    assert opened.vectors == ("tokens",) and opened.token_embedder.size == 16
    positives = [pair["positive"] for pair in PAIRS]
    assert [mlxbert.rerank(opened, pair["text"], positives)[0].text for pair in PAIRS] == positives


@pytest.mark.slow
def test_a_model_of_tokens_keeps_its_settings_and_layers(tmp_path: Path) -> None:
    base = token_folders.PYLATE["chained"](tmp_path / "base")
    trained_tokens(base, tmp_path / "out", lr=1e-9)
    before, after = mlxbert.load(base), mlxbert.load(tmp_path / "out")
    assert after.token_embedder.config == before.token_embedder.config
    first, second = (np.asarray(mlxbert.embed_tokens(model, "the cat sat")) for model in (before, after))
    assert np.abs(first - second).max() < 1e-4


def test_vectors_of_tokens_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    base = token_folders.encoder(tmp_path / "base")
    for options in ({"symmetric": True}, {"loss": "triplet"}, {"dimensions": (8, 4)}, {"pooling": "mean"}):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            trained_tokens(base, tmp_path / "out", **options)
    of_tokens = token_folders.PYLATE["usual"](tmp_path / "tokens")
    for model, vectors in ((base, "tokens"), (of_tokens, "auto")):
        with pytest.raises(ArgumentError, match="lora"):
            trained_tokens(model, tmp_path / "out", vectors=vectors, lora=2)
    with pytest.raises(MlxbertError, match="settings"):
        trained_tokens(token_folders.MULTI_VECTOR["min"](tmp_path / "min"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
