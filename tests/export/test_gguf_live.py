"""GGUF files in llama.cpp itself: token ids, hidden states, vectors and scores are those of mlxbert."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, normalizers

import mlxbert
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.weights.build import parameters
from tests.export.test_gguf import RUNS, TRIM, read, steps, unigram
from tests.helpers import published
from tests.helpers.gguf_models import CONFIGS, write_model
from tests.helpers.llama import NO_POOLING, RANK, LlamaCpp
from tests.helpers.vocabularies import SENTENCES, byte_files, put, trained
from tests.tasks.test_reranker import language_model

pytestmark = pytest.mark.slow
pytest.importorskip("gguf", reason="the package gguf is not installed")

IDS = [2, 5, 6, 8, 20, 24, 11, 30, 31, 32, 15, 17, 3]
PAIR = [2, 5, 6, 3, 8, 20, 24, 3]
TEXTS = [
    *SENTENCES, "the cat", "", "  the   dog\tsat\n", "Tokyo is playing in Paris.", "a caf\u00e9, THE CAT!", "b b bc",
]  # fmt: skip


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens files with llama.cpp, and frees them afterwards."""
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    models: list[LlamaCpp] = []

    def open_file(path: Path, pooling: int | None = None) -> LlamaCpp:
        models.append(LlamaCpp(library, path, pooling, context=256))
        return models[-1]

    yield open_file
    for model in models:
        model.close()


def lowest_cosine(a: np.ndarray, b: np.ndarray) -> float:
    units = [rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in (a, b)]
    return float((units[0] * units[1]).sum(-1).min())


@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states(tmp_path: Path, opened: Any, name: str) -> None:
    model = write_model(tmp_path / "model", name)
    if name == "nomic-bert-moe":  # llama.cpp does not add this bias, which the report says
        names = [key for key in parameters(model.network) if key.endswith("feed_forward.bias")]
        arrays = parameters(model.network)
        model.network.load_weights([(key, mx.zeros_like(arrays[key])) for key in names], strict=False)
        mlxbert.save(model, tmp_path / "zero")
        (tmp_path / "model").rename(tmp_path / "with bias")
        (tmp_path / "zero").rename(tmp_path / "model")
    for options, least in (({"dtype": "float32"}, 0.99999), ({"dtype": "float16"}, 0.9999), ({"quantize": 8}, 0.99)):
        file = tmp_path / f"{least}.gguf"
        assert not any("bias" in note for note in mlxbert.convert_to_gguf(tmp_path / "model", file, **options).left_out)
        theirs = opened(file, NO_POOLING).run(IDS)
        ours = np.array(model.network.encoder(mx.array([IDS])).last_hidden_state[0])
        assert lowest_cosine(ours, theirs) > least


@pytest.mark.parametrize("name", ["bert", "bert, counted", "modern-bert", "neo-bert", "qwen3"])
@pytest.mark.parametrize("labels", [("bad", "fair", "good"), ("score",)])
def test_scores(tmp_path: Path, opened: Any, name: str, labels: tuple[str, ...]) -> None:
    model = write_model(tmp_path / "model", name, {"sequence_classifier": Labels(labels)})
    mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    file = opened(tmp_path / "a.gguf")
    assert file.pooling == RANK
    output = model.network.encoder(mx.array([PAIR]))
    ours = np.array(model.network.logits("sequence_classifier", output)[0])
    theirs = file.run(PAIR)
    if name == "qwen3":  # llama.cpp gives probabilities; one score is that of "yes"
        ours = ours if len(labels) > 1 else np.array([ours[0], 0.0])
        ours = np.exp(ours) / np.exp(ours).sum()
    np.testing.assert_allclose(theirs, ours, atol=2e-3 * max(1, np.abs(ours).max()))


def same_ids(folder: Path, file: LlamaCpp) -> None:
    tokenizer = mlxbert.load(folder).tokenizer
    texts = [text[:40] for text in TEXTS]
    assert [file.tokenize(text) for text in texts] == [tokenizer.encode(text).ids for text in texts]


@pytest.mark.parametrize(("kind", "settings", "files"), [
    ("BertTokenizer", {"do_lower_case": True}, None), ("BertTokenizer", {"do_lower_case": False}, None),
    ("RobertaTokenizer", {}, byte_files),
    ("XLMRobertaTokenizer", {}, lambda: {"sentencepiece.bpe.model": trained(size=50)}),
], ids=range(4))  # fmt: skip
def test_ids(tmp_path: Path, opened: Any, kind: str, settings: dict[str, Any], files: Any) -> None:
    folder = tmp_path / "model"
    write_model(folder, "bert, counted" if files else "bert")
    if files:
        (folder / "vocab.txt").unlink()
    put(folder, (files() if files else {}) | {"tokenizer_config.json": {"tokenizer_class": kind} | settings})
    mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    same_ids(folder, opened(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    "change",
    [steps(words=True), steps(RUNS, TRIM), steps(RUNS, normalizers.Replace(Regex("^ | $"), "")), steps(prefix="never")],
)
def test_ids_of_unigram_vocabularies_with_other_spaces(tmp_path: Path, opened: Any, change: Any) -> None:
    folder = unigram(tmp_path / "model", change)
    report = mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    assert not any("space" in note for note in report.left_out)
    same_ids(folder, opened(tmp_path / "a.gguf"))


@pytest.mark.parametrize("write", [published.eurobert, published.qwen3, published.gemma, published.modernbert])
def test_ids_of_published_vocabularies(tmp_path: Path, opened: Any, write: Any) -> None:
    """Texts without accents that are characters of their own: llama.cpp does not compose them."""
    words = write(tmp_path / "words")
    added = json.loads((words / "tokenizer.json").read_text())
    rows = 1 + max([*added["model"]["vocab"].values(), *(token["id"] for token in added["added_tokens"])])
    name = {"eurobert": "eurobert", "qwen3": "qwen3", "gemma": "gemma-embedding"}.get(write.__name__, "modern-bert")
    config = CONFIGS[name] | {"vocab_size": rows}
    mlxbert.new_model(config, words, dtype="float32").save(tmp_path / "model")
    mlxbert.convert_to_gguf(tmp_path / "model", tmp_path / "a.gguf")
    same_ids(tmp_path / "model", opened(tmp_path / "a.gguf"))


def test_a_reranker_with_a_prompt(tmp_path: Path, opened: Any) -> None:
    folder = language_model(tmp_path / "model")
    report = mlxbert.convert_to_gguf(folder, tmp_path / "a.gguf")
    assert report.pooling == "classifier" and report.architecture == "qwen3"
    values = read(tmp_path / "a.gguf")[0]
    prompt = values["tokenizer.chat_template.rerank"].replace("{query}", "a cat").replace("{document}", "The cat sat.")
    model = mlxbert.load(folder, task="classify", dtype="float32")
    ids = model.tokenizer.encode("a cat", "The cat sat.").ids
    file = opened(tmp_path / "a.gguf")
    assert file.pooling == RANK and file.tokenize(prompt) == ids
    [ours] = mlxbert.rerank(model, "a cat", ["The cat sat."])
    assert file.run(ids)[0] == pytest.approx(ours.score, abs=1e-3) and file.run(ids).sum() == pytest.approx(1)


def test_vectors_of_the_built_in_model(tmp_path: Path, opened: Any) -> None:
    model = mlxbert.load("builtin", dtype="float32")
    ours = mlxbert.embed(model, SENTENCES, normalize=True)
    for options, least in (({}, 0.999), ({"dtype": "float32"}, 0.9999), ({"quantize": 8}, 0.999)):
        file = tmp_path / f"{len(options)}{least}.gguf"
        mlxbert.convert_to_gguf("builtin", file, **options)
        llama = opened(file)
        theirs = np.stack([llama.run(llama.tokenize(text)) for text in SENTENCES])
        assert lowest_cosine(np.asarray(ours), theirs) > least
