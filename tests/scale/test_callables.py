"""The callables for `ray.data.Dataset.map_batches`, without Ray, and what `mlxbert ray` refuses before a job begins."""

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.scale import Classifier, Embedder, Reranker, Tagger
from mlxbert.scale.callables import CALLABLES
from mlxbert.scale.commands import COMMANDS
from tests.helpers.cases import together
from tests.helpers.classifiers import save_classifier
from tests.helpers.program import call
from tests.helpers.taggers import NER, save_tagger

pa = pytest.importorskip("pyarrow")
TEXTS = ["the cat sat on the mat .", "paris", "", "the dog ! the dog"]


def ref(folder: Path) -> mlxbert.ModelRef:
    return mlxbert.ModelRef(folder, dtype="float32")


def test_vectors_are_those_of_embed_on_any_thread_and_other_columns_stay(tiny_folder: Path) -> None:
    table = Embedder(ref(tiny_folder))(pa.table({"n": [1, 2, 3, 4], "text": TEXTS}))
    assert table.schema.names == ["n", "text", "embedding", "tokens", "truncated", "error"]
    assert table["n"].to_pylist() == [1, 2, 3, 4] and table["error"].null_count == 4
    expected = mlxbert.embed(mlxbert.load(tiny_folder, dtype="float32"), TEXTS)
    assert np.abs(np.array(table["embedding"].to_pylist()) - expected).max() <= 1e-6
    embedder, tables = Embedder(ref(tiny_folder)), list[Any]()
    thread = threading.Thread(target=lambda: tables.append(embedder(pa.table({"text": TEXTS}))))
    thread.start()
    thread.join()
    assert tables and tables[0]["error"].null_count == len(TEXTS)
    table = Embedder(ref(tiny_folder), output_dtype="int8")({"text": np.array(["cat", None], dtype=object)})
    assert table.schema.field("embedding").type.value_type == pa.int8()
    assert any(table["embedding"][0].as_py()) and not any(table["embedding"][1].as_py())


def test_a_row_that_fails_has_its_error_and_the_others_their_results(tiny_folder: Path) -> None:
    broken = pa.array([b"cat", b"\xff", b"dog"]).view(pa.string())
    texts = pa.chunked_array([broken, pa.array([None, "cat " * 99])])
    table = Embedder(ref(tiny_folder), overflow="error")(pa.table({"text": texts}))
    assert [bool(error) for error in table["error"].to_pylist()] == [False, True, False, True, True]
    assert "UTF-8" in table["error"][1].as_py() and "null" in table["error"][3].as_py()
    failed = np.isnan(np.array(table["embedding"].to_pylist())).all(axis=1)
    assert failed.tolist() == [False, True, False, True, True]
    assert [value is None for value in table["tokens"].to_pylist()] == failed.tolist()


def test_classes_of_texts_and_pairs(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "model", Labels(("no", "yes", "both")))
    table = Classifier(ref(folder), pair="b")(pa.table({"text": TEXTS, "b": [*TEXTS[1:], None]}))
    model = mlxbert.load(folder, dtype="float32")
    results: Any = list(mlxbert.classify(model, [*itertools.pairwise(TEXTS)]))
    assert table["label"].to_pylist() == [*(result.labels[0].label for result in results), None]
    for row, result in zip(table["labels"].to_pylist(), results, strict=False):
        assert [label["label"] for label in row] == [label.label for label in result.labels]
        assert sum(label["score"] for label in row) == pytest.approx(1, abs=1e-5)
    assert table["labels"][3].as_py() is None and table["error"][3].as_py()


def test_numbers_of_a_regression(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "model", Labels(("a", "b"), problem_type="regression"))
    table = Classifier(ref(folder))(pa.table({"text": ["cat", None]}))
    result: Any = mlxbert.classify(mlxbert.load(folder, dtype="float32"), "cat")
    assert table["value"].to_pylist() == [pytest.approx(result.value, abs=1e-5), None]
    assert [entry["label"] for entry in table["values"][0].as_py()] == ["a", "b"] and table["values"][1].as_py() is None


def test_entities(tmp_path: Path) -> None:
    folder = save_tagger(tmp_path / "model", NER, {"paris": "B-LOC"})
    table = Tagger(ref(folder))(pa.table({"text": ["the cat in paris", None, "the cat"]}))
    entities = table["entities"].to_pylist()
    found = [(entity["label"], entity["start"], entity["end"], entity["text"]) for entity in entities[0]]
    assert found == [("LOC", 11, 16, "paris")]
    assert entities[1:] == [None, []] and table["error"].null_count == 2


def test_scores_of_a_cross_encoder(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "model", Labels(("relevance",)))
    table = Reranker(ref(folder))(pa.table({"query": ["cat"] * 3, "text": ["dog", None, "the mat"]}))
    best: Any = mlxbert.rerank(mlxbert.load(folder, dtype="float32"), "cat", ["dog", "the mat"])
    scores = {result.text: result.score for result in best}
    assert table["score"].to_pylist() == [pytest.approx(scores["dog"]), None, pytest.approx(scores["the mat"])]
    with pytest.raises(ArgumentError):
        Reranker(ref(folder), top_k=1)


@together(("batch", "error"), [
    (pa.table({"texts": ["cat"]}), InputError), (pa.table({"text": [1, 2]}), InputError),
    (pa.table({"text": ["cat"], "error": ["mine"]}), ArgumentError),
    ({"text": np.array(["cat"]), "image": np.zeros((1, 2, 2))}, ArgumentError),
])  # fmt: skip
def test_a_batch_that_does_not_fit(tiny_folder: Path, batch: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Embedder(ref(tiny_folder))(batch)
    with pytest.raises(ArgumentError, match="poling"):
        Embedder(ref(tiny_folder), poling="mean")


BASE = ("embed", "--input", "in.parquet", "--output", "out")
CLASSIFY = ("classify", *BASE[1:])


@together(("arguments", "named"), [
    (("embed", "--input", "in.parquet"), "--output"), (("embed", "--output", "out"), "--input"),
    ((*BASE, "cat"), "cat"), ((*BASE, "--part-rows", "0"), "--part-rows"),
    ((*BASE, "--server", "http://127.0.0.1:9"), "--server"), ((*BASE, "--pair-column", "b"), "--pair-column"),
    ((*CLASSIFY, "--text-column", "a", "--text-column", "b"), "--text-column"),
    ((*CLASSIFY, "--labels", "a,b", "--pair-column", "b"), "--labels"), ((*CLASSIFY, "--multi"), "--multi"),
])  # fmt: skip
def test_wrong_options(arguments: tuple[str, ...], named: str) -> None:
    call("ray", *arguments).fails(2, named)


def test_without_ray_the_hint_is_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMMANDS.keys() == CALLABLES.keys()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = call("ray", "embed", "--input", str(tmp_path), "--output", str(tmp_path / "out"))
    outcome.fails(1, "not installed")
    assert " install " in outcome.err and "ray[data]" in outcome.err


def test_an_existing_file_is_no_folder(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("precious")
    call("ray", "embed", "--input", "in.parquet", "--output", str(file)).fails(2, "a folder")
    assert file.read_text() == "precious"
