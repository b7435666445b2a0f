"""Static models: the vectors, the rules of both layouts, and folders that are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Dense
from mlxbert.tasks.static_vectors import means
from tests.helpers.cases import together
from tests.helpers.libraries import Library
from tests.helpers.rooms import needs
from tests.helpers.static_folders import TEXTS, WIDTH, WORDS, model2vec, module, table, tokenizer

SIZE = len(WORDS)
MAPPING = np.arange(SIZE)[::-1] % 4
WEIGHTS = np.linspace(0.1, 2, SIZE)
LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "plain": model2vec,
    "unscaled": lambda folder: model2vec(folder, normalize=False),
    "float16": lambda folder: model2vec(folder, {"embeddings": table().astype(np.float16)}),
    "float64": lambda folder: model2vec(folder, {"embeddings": table().astype(np.float64)}),
    "int8": lambda folder: model2vec(folder, {"embeddings": (table() * 40).astype(np.int8)}),
    "mapped": lambda folder: model2vec(folder, {"embeddings": table(4), "mapping": MAPPING, "weights": WEIGHTS}),
    "weighted": lambda folder: model2vec(folder, {"embeddings": table(), "weights": WEIGHTS.astype(np.float32)}),
    "short": lambda folder: model2vec(folder, max_length=3),
    "unlimited": lambda folder: model2vec(folder, max_length=None),
    "module": module,
    "root module": lambda folder: module(folder, ""),
    "limited module": lambda folder: module(folder, limit=3, normalize=False),
}


def expected(folder: Path, texts: tuple[str, ...] = TEXTS) -> np.ndarray[Any, Any]:
    """The vectors by the formula: the mean of the rows, without unknown tokens in the layout of model2vec."""
    inner = folder / "0_StaticEmbedding" if (folder / "0_StaticEmbedding").is_dir() else folder
    path = inner / "model.safetensors"
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    names = {"F64": "f8", "F32": "f4", "F16": "f2", "I8": "i1", "I64": "i8"}
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        part = raw[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]]
        tensors[name] = np.frombuffer(part, names[entry["dtype"]]).reshape(entry["shape"]).astype(np.float64)
    rows = next(tensors[name] for name in ("embeddings", "embedding.weight") if name in tensors)
    rows = rows[tensors["mapping"].astype(int)] if "mapping" in tensors else rows
    rows = rows * tensors["weights"][:, None] if "weights" in tensors else rows
    config = json.loads((folder / "config.json").read_text()) if (folder / "config.json").is_file() else None
    limit = config.get("max_length", 512) if config else {"limited": 3}.get(folder.name.split()[0])
    scaled = config["normalize"] if config else (folder / "modules.json").read_text().count("Normalize") > 0
    vectors = []
    for text in texts:
        cut = text[: limit * int(np.median([*map(len, WORDS)]))] if config and limit else text
        ids = tokenizer().encode(cut, add_special_tokens=False).ids[:limit]
        ids = [number for number in ids if not (config and number == 1)]
        vector = rows[ids].mean(axis=0) if ids else np.zeros(WIDTH)
        vectors.append(vector / (np.linalg.norm(vector) or 1) if scaled else vector)
    return np.array(vectors)


@together("pooling", ["max", "mean_sqrt_len", "weighted_mean", "mean", "cls", "last_token"])
def test_a_text_without_known_tokens_is_0_in_every_pooling(tmp_path: Path, pooling: str) -> None:
    model = mlxbert.load(model2vec(tmp_path / "model", normalize=False))
    empty, zebra, known = model.embed(["", "Zebra!", "cat dog"], pooling=pooling)
    cat, dog = table()[WORDS.index("cat")], table()[WORDS.index("dog")]
    wanted = {"max": np.maximum(cat, dog), "mean_sqrt_len": (cat + dog) / 2**0.5, "weighted_mean": (cat + 2 * dog) / 3}
    wanted |= {"mean": (cat + dog) / 2, "cls": cat, "last_token": dog}
    assert not empty.any() and not zebra.any() and np.allclose(known, wanted[pooling], atol=1e-6)


@pytest.mark.parametrize("name", LAYOUTS)
def test_vectors_follow_the_formula_of_their_layout(name: str, tmp_path: Path) -> None:
    folder = LAYOUTS[name](tmp_path / name)
    model = mlxbert.load(folder)
    wanted = expected(folder)
    assert np.abs(model.embed(TEXTS) - wanted).max() < 1e-5
    assert np.abs(np.stack([each.embedding for each in model.embed_stream(TEXTS)]) - wanted).max() < 1e-5
    assert np.abs(np.stack([model.embed(text) for text in TEXTS]) - wanted).max() < 1e-5
    written = {path.name for path in model.save(tmp_path / "out").iterdir()}
    assert {"config.json", "modules.json", "model.safetensors", "tokenizer.json"} <= written
    assert np.abs(mlxbert.load(tmp_path / "out").embed(TEXTS) - wanted).max() < 1e-5


@needs("export")
@together("name", ["int8", "mapped", "root module"])
def test_a_converted_folder_gives_the_same_vectors_but_cannot_be_quantized(name: str, tmp_path: Path) -> None:
    folder, out = LAYOUTS[name](tmp_path / name), tmp_path / f"{name} out"
    assert mlxbert.convert(folder, out).difference.agree
    assert np.abs(mlxbert.load(out).embed(TEXTS) - mlxbert.load(folder).embed(TEXTS)).max() < 1e-6
    with pytest.raises(ArgumentError, match="static"):
        mlxbert.convert(folder, tmp_path / "quantized", quantize=8)


@pytest.mark.parametrize("name", ["plain", "mapped", "module"])
def test_the_network_computes_the_same_vectors(name: str, tmp_path: Path) -> None:
    model = mlxbert.load(LAYOUTS[name](tmp_path / name))
    texts = [text for text in TEXTS if len(text) < 100]
    fast, unit = model.embed(texts), model.embed(texts, normalize=True)
    windowed = model.embed(texts, overflow="error")  # tokenizes each text alone
    assert np.abs(fast - windowed).max() < 1e-6
    identity = Dense(WIDTH, WIDTH, bias=False, activation="linear")
    identity.linear.weight = mx.eye(WIDTH)
    model.embedder.layers.append(identity)  # a layer that only the network can compute
    assert np.abs(model.embed(texts) - fast).max() < 1e-6
    assert np.abs(model.embed(texts, normalize=True) - unit).max() < 1e-6


def test_results_state_what_was_left_out(tmp_path: Path) -> None:
    model = mlxbert.load(model2vec(tmp_path / "m"))
    cat, empty, zebra, only, *_, long, _ = model.embed_stream(TEXTS)
    assert (cat.tokens, cat.unknown_tokens, cat.truncated) == (7, 0, False)
    assert (empty.tokens, empty.only_unknown) == (0, True)
    assert (zebra.tokens, zebra.unknown_tokens, zebra.only_unknown) == (2 + 1, 1, False)
    assert (only.tokens, only.only_unknown) == (0, True)
    assert (long.tokens, long.truncated) == (384, True)  # 512 times 3 characters


def test_means_of_long_and_short_texts() -> None:
    rows = table(50)
    texts = [[3], [], [*range(50)] * 40, [1, 2, 3], [7] * 512, [5] * 513]
    wanted = [rows[ids].mean(axis=0) if ids else np.zeros(WIDTH) for ids in texts]
    assert np.abs(means(rows, texts) - np.array(wanted)).max() < 1e-5


HOSTILE: dict[str, dict[str, Any]] = {
    "mapping": {"tensors": {"embeddings": table(4), "mapping": np.full(SIZE, 4), "weights": WEIGHTS}},
    "negative mapping": {"tensors": {"embeddings": table(4), "mapping": np.full(SIZE, -1)}},
    "float mapping": {"tensors": {"embeddings": table(4), "mapping": np.zeros(SIZE, np.float32)}},
    "weights": {"tensors": {"embeddings": table(), "weights": WEIGHTS[:-1]}},
    "shape": {"tensors": {"embeddings": table().reshape(-1)}},
    "no rows": {"tensors": {"embeddings": table()[:0]}},
    "few rows": {"tensors": {"embeddings": table()[:5]}},
    "no table": {"tensors": {"weights": WEIGHTS}},
    "integers": {"tensors": {"embeddings": np.ones((SIZE, WIDTH), np.int64)}},
    "unknown tensor": {"tensors": {"embeddings": table(), "other": table()}},
    "max_length": {"max_length": 0},
    "normalize": {"normalize": "x"},
}


@together("name", HOSTILE)
def test_hostile_folders_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(MlxbertError) as caught:
        mlxbert.load(model2vec(tmp_path / name, **HOSTILE[name]))
    assert caught.value.message
    assert caught.value.hint or name not in ("mapping", "weights", "shape", "no table")
    bare = model2vec(tmp_path / f"{name} without a tokenizer")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(MlxbertError, match=r"tokenizer\.json") as caught:
        mlxbert.load(bare)
    assert caught.value.hint


def test_nan_is_refused_when_it_is_used(tmp_path: Path) -> None:
    rows = table()
    rows[3] = np.nan
    model = mlxbert.load(model2vec(tmp_path / "m", {"embeddings": rows}))
    assert np.isfinite(model.embed("the mat")).all()
    with pytest.raises(MlxbertError, match="finite"):
        model.embed("the cat")


def test_inspect_describes_a_static_model(tmp_path: Path) -> None:
    about = mlxbert.inspect(LAYOUTS["mapped"](tmp_path / "m"))
    assert about.tasks == ("embed",)
    assert about.parameters["total"] == SIZE * WIDTH
    assert about.embedding.unit  # type: ignore[union-attr]


@needs("train")
def test_a_classifier_is_trained_and_opens_again(tmp_path: Path) -> None:
    words = (("the cat", "pet"), ("rain", "weather"))
    records = [{"text": " ".join([text] * count), "label": label} for text, label in words for count in range(1, 20)]
    folder = model2vec(tmp_path / "m")
    variants: dict[str, dict[str, Any]] = {
        "trained": {"few_shot": False}, "frozen": {"few_shot": False, "freeze": 1}, "few": {"few_shot": True},
    }  # fmt: skip
    for name, options in variants.items():
        mlxbert.finetune("classify", train=records, output=tmp_path / name, model=folder, **options).run()
        again = mlxbert.load(tmp_path / name)
        for text, label in words:
            result = again.classify(text)
            assert isinstance(result, mlxbert.Classification) and result.labels[0].label == label
        changed = np.abs(np.array(again.network.encoder.embeddings.word.weight) - table()).max()
        assert changed == 0 if name == "frozen" else changed > 0
        assert np.isfinite(again.embed(["the cat", ""])).all()


def test_a_bad_text_shifts_no_other_vector(tmp_path: Path) -> None:
    model = mlxbert.load(model2vec(tmp_path))
    broken: list[Any] = ["the cat", 5, "dog", "\ud800", ""]
    vectors = mlxbert.embed(model, broken, prompt="the ", on_error="return")
    assert np.isnan(vectors).any(axis=1).tolist() == [False, True, False, True, False]
    streamed: Any = mlxbert.embed_stream(model, ["the cat", "dog", ""], prompt="the ")
    np.testing.assert_allclose(np.stack([result.embedding for result in streamed]), vectors[[0, 2, 4]], atol=1e-6)
    with pytest.raises(MlxbertError, match="input 1: expected a text"):
        mlxbert.embed(model, broken, prompt="the ")


@needs("explore")
def test_a_static_model_has_no_attention(tmp_path: Path) -> None:
    model = mlxbert.load(model2vec(tmp_path))
    with pytest.raises(ArgumentError, match="attention"):
        mlxbert.attention(model, "the cat")
    with pytest.raises(ArgumentError, match="attention"):
        mlxbert.embed(model, "the cat", pooling="attention")
    with pytest.raises(ArgumentError, match="only vectors") as found:
        mlxbert.explain(model, "the cat")
    assert found.value.hint and "second text" in found.value.hint


def test_windows_weigh_their_own_tokens(tmp_path: Path) -> None:
    short = mlxbert.load(model2vec(tmp_path / "short", max_length=4, normalize=False))
    whole = mlxbert.load(model2vec(tmp_path / "whole", max_length=None, normalize=False))
    text = "the cat sat on mat"
    np.testing.assert_allclose(mlxbert.embed(short, text, overflow="window"), mlxbert.embed(whole, text), atol=1e-6)
    assert np.isfinite(mlxbert.embed(short, "zebra zebra zebra zebra zebra", overflow="window")).all()


MODEL2VEC = ("plain", "unscaled", "float16", "float64", "int8", "mapped", "weighted", "short", "unlimited")
MODULES = ("module", "root module", "limited module")
model2vec_library, st = Library("model2vec"), Library("sentence_transformers")


def by_model2vec(folder: Path) -> Any:
    return model2vec_library.StaticModel.from_pretrained(folder).encode([*TEXTS])


def by_modules(folder: Path) -> Any:
    return st.SentenceTransformer(str(folder), device="cpu").encode([*TEXTS])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODEL2VEC)
def test_vectors_are_those_of_model2vec(name: str, tmp_path: Path) -> None:
    folder = LAYOUTS[name](tmp_path / name)
    bound = 2e-3 if name == "float16" else 1e-5  # model2vec rounds
    assert np.abs(mlxbert.load(folder).embed(TEXTS) - by_model2vec(folder)).max() < bound


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = LAYOUTS[name](tmp_path / name)
    assert np.abs(mlxbert.load(folder).embed(TEXTS) - by_modules(folder)).max() < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["plain", "int8", "mapped", *MODULES])
@pytest.mark.parametrize("write", ["save", "convert"])
def test_both_libraries_open_a_written_folder(name: str, write: str, tmp_path: Path) -> None:
    folder, out = LAYOUTS[name](tmp_path / name), tmp_path / "out"
    if write == "save":
        mlxbert.load(folder).save(out)
    else:
        mlxbert.convert(folder, out)
    if name in MODULES:
        assert np.abs(by_modules(out) - by_modules(folder)).max() < 1e-5
    else:
        assert np.abs(by_model2vec(out) - by_model2vec(folder)).max() < 1e-5
        known = [0, 1, 5]  # texts without unknown tokens, which sentence-transformers keeps
        assert np.abs(by_modules(out)[known] - by_model2vec(folder)[known]).max() < 1e-5
    by_model2vec(out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_trained_classifier_opens_as_an_embedding_model(tmp_path: Path) -> None:
    words = (("the cat", "pet"), ("rain", "weather"))
    records = [{"text": " ".join([text] * count), "label": label} for text, label in words for count in range(1, 40)]
    folder, out = LAYOUTS["plain"](tmp_path / "m"), tmp_path / "out"
    mlxbert.finetune("classify", train=records, output=out, model=folder, few_shot=False).run()
    ours = mlxbert.load(out).embed(TEXTS)
    assert np.abs(by_model2vec(out) - ours).max() < 1e-5
    assert by_modules(out).shape == ours.shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_distilled_model_opens_in_both_libraries(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mlxbert.distill_static(tiny_folder, output=out, dimensions=8, dtype="float32")
    known = [0, 1]  # see `test_both_libraries_open_a_written_folder`
    ours = mlxbert.load(out).embed(TEXTS)
    assert np.abs(by_model2vec(out) - ours).max() < 1e-5
    assert np.abs(by_modules(out) - ours)[known].max() < 1e-5
