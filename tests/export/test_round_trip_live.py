"""What `mlxbert convert` wrote opens in transformers and sentence-transformers with nothing missing, bit for bit."""

import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import Conversion
from mlxbert.goldens.golden_outputs import load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.weights.checkpoint import open_checkpoint
from tests.export.test_convert import check_manifest
from tests.helpers.families import FAMILIES, Compared, make_model
from tests.helpers.frozen import add_vocabulary, read_config, tensors_in, write_config, write_tensors
from tests.weights.test_families import nomic_of_its_authors

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
pytest.importorskip("transformers", reason="live parity needs transformers")
st = pytest.importorskip("sentence_transformers", minversion="6.0", reason="live parity needs sentence-transformers")
from tests.weights import test_sentence_transformers_live as modules  # noqa: E402

bert = modules.bert

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

# Widths, tied tensors, fused matrices, names: one cell of each kind for what is the same for all.
SOME = [
    ("bert", "ForPreTraining"), ("roberta", "ForMaskedLM"), ("albert, two groups", "ForSequenceClassification"),
    ("electra", "ForPreTraining"), ("mpnet", "ForQuestionAnswering"), ("modernbert", "ForMaskedLM"),
    ("gte", "ForTokenClassification"), ("deberta-v2", "ForMaskedLM"),
]  # fmt: skip
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Reports of loading are looked at, not read."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return add_vocabulary(folder)


def reload(model: Any, folder: Path, dtype: Any = None) -> Any:
    """The model from a folder by the same class, where all tensors were found and no other."""
    dtype = dtype or torch.float32
    with warnings.catch_warnings(action="ignore"):
        found, report = type(model).from_pretrained(
            folder, output_loading_info=True, dtype=dtype, attn_implementation="eager"
        )
    assert {name: list(problems) for name, problems in report.items() if problems} == {}
    assert report.keys() >= {"missing_keys", "unexpected_keys", "mismatched_keys"}
    return found.eval()


def assert_same_tensors(found: Any, wanted: Any, dtype: Any = None) -> None:
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        cast = array.to(dtype) if dtype is not None and array.is_floating_point() else array
        assert ours[name].dtype == cast.dtype and torch.equal(ours[name], cast), name


def assert_same_here(b: Path, a: Path, compared: Compared) -> None:
    assert open_checkpoint(b).parts == open_checkpoint(a).parts
    here, there = load_network(b), load_network(a)
    for case in compared.cases.values():
        ours, theirs = outputs(here, case), outputs(there, case)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], array) for name, array in theirs.items())


def assert_agrees(found: Conversion, *, rounded: bool = False) -> None:
    """What was measured of the conversion, as the manifest has it."""
    written = json.loads((found.folder / "conversion.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(found.to_dict()))
    difference = written["difference"]
    assert difference["agree"] and difference["differences"] == []
    assert difference["tensors"]["different"] == 0 < difference["tensors"]["compared"]
    assert bool(difference["tensors"]["rounded"]) is rounded


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "head"), SOME, ids=str)
def test_a_model_in_halves_is_the_model_cast(family: str, head: str, dtype: str, tmp_path: Path) -> None:
    model = make_model(FAMILIES[family], head)
    a, b = save(model, tmp_path / "a"), tmp_path / "b"
    assert_agrees(mlxbert.convert(a, b, dtype=dtype), rounded=True)
    assert_same_tensors(reload(model, b, DTYPES[dtype]), model, DTYPES[dtype])
    assert_same_tensors(reload(model, b, "auto"), model, DTYPES[dtype])  # config.json says so
    wide = mlxbert.convert(b, tmp_path / "c", dtype="float32")
    assert_agrees(wide)
    assert_same_tensors(reload(model, tmp_path / "c", "auto"), model.to(DTYPES[dtype]).to(torch.float32))


@pytest.mark.parametrize(("family", "head"), SOME, ids=str)
def test_a_model_in_shards_is_the_model(family: str, head: str, tmp_path: Path) -> None:
    model = make_model(FAMILIES[family], head)
    a, b = save(model, tmp_path / "a"), tmp_path / "b"
    assert_agrees(mlxbert.convert(a, b, max_shard_size="12KB"))
    assert len(list(b.glob("model-*-of-*.safetensors"))) >= 3 and not (b / "model.safetensors").exists()
    assert_same_tensors(reload(model, b), model)
    assert_same_here(b, a, FAMILIES[family])
    once_more = mlxbert.convert(b, tmp_path / "c")  # shards are read, one file is written
    assert_agrees(once_more)
    assert_same_tensors(reload(model, tmp_path / "c"), model)


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForTokenClassification"])
@pytest.mark.parametrize("factor", [None, 8.0])
def test_gte_of_its_authors_is_written_as_transformers_has_it(factor: float | None, head: str, tmp_path: Path) -> None:
    model = make_model(FAMILIES["gte"], head)
    a, b = save(model, tmp_path / "a"), tmp_path / "b"
    values = read_config(a)
    theta = values.pop("rope_parameters")["rope_theta"]
    scaled = {} if factor is None else {"rope_scaling": {"type": "ntk", "factor": factor}}
    named = {"architectures": [f"New{head}"], "auto_map": {"AutoModel": "modeling.NewModel"}}
    write_config(a, values | {"model_type": "new", "rope_theta": theta} | named | scaled)
    write_tensors(a, {name.replace("gte.", "new.", 1): array for name, array in tensors_in(a).items()})
    assert_rewritten(a, model, head)
    assert "auto_map" not in read_config(b) and read_config(b)["model_type"] == "gte"


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_nomic_of_its_authors_is_written_as_transformers_has_it(head: str, tmp_path: Path) -> None:
    model = make_model(FAMILIES["nomic"], head)
    a = save(model, tmp_path / "a")
    write_config(a, nomic_of_its_authors(read_config(a)) | {"auto_map": {"AutoModel": "modeling.NomicBertModel"}})
    write_tensors(a, {name.replace("nomic_bert.", "bert.", 1): array for name, array in tensors_in(a).items()})
    assert_rewritten(a, model, head)


def assert_rewritten(a: Path, model: Any, head: str) -> None:
    """What is made of the authors' dialect is the model, and mlxbert computes the same of that dialect."""
    assert_agrees(mlxbert.convert(a, a.with_name("b")))
    found = reload(model, a.with_name("b"))
    assert_same_tensors(found, model)
    if head == "Model":
        ids = np.arange(5, 25).reshape(2, 10) % 43
        ours = np.array(load_network(a).encoder(mx.array(ids)).last_hidden_state)
        with torch.no_grad():
            theirs = found(torch.tensor(ids)).last_hidden_state.numpy()
        assert np.abs(ours - theirs).max() < 2e-5


def vectors(folder: Path) -> Any:
    model = st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model.encode(modules.TEXTS, batch_size=5, show_progress_bar=False)


@pytest.mark.parametrize("dialect", modules.DIALECTS)
def test_modules_that_torch_saved_become_safetensors(dialect: str, bert: Path, tmp_path: Path) -> None:
    a, b = (
        modules.save_model(tmp_path / "a", bert, modules.STACKS["Dense, LayerNorm, Normalize"](), {}, dialect),
        tmp_path / "b",
    )
    read = importlib.import_module("safetensors.torch").load_file
    paths = [path for path in a.rglob("model.safetensors") if path.parent.name[:1] in "23"]
    assert len(paths) == 2
    for path in paths:
        torch.save(read(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    check_manifest(mlxbert.convert(a, b))
    theirs = vectors(b)
    assert np.array_equal(theirs, vectors(a))
    ours = [mlxbert.embed(mlxbert.load(folder, task="embed", dtype="float32"), modules.TEXTS) for folder in (a, b)]
    assert np.array_equal(ours[0], ours[1]) and np.abs(ours[1] - theirs).max() <= modules.BOUND * max(
        1.0, np.abs(theirs).max()
    )
    files = [{path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} for folder in (a, b)]
    weights = {name for name in files[0] if name.endswith(".bin")}
    assert files[0] - weights <= files[1]
    assert not any(name.endswith(".bin") for name in files[1])
    assert all((b / path.relative_to(a)).is_file() for path in paths)


@pytest.mark.parametrize("dialect", modules.DIALECTS)
def test_halves_open_in_halves_and_point_the_same_way(dialect: str, bert: Path, tmp_path: Path) -> None:
    a = modules.save_model(tmp_path / "a", bert, modules.STACKS["Dense, LayerNorm, Normalize"](), {}, dialect)
    check_manifest(mlxbert.convert(a, tmp_path / "b", dtype="float16"))
    cosines = (vectors(a) * vectors(tmp_path / "b").astype(np.float32)).sum(axis=1)
    assert cosines.min() > 0.999
