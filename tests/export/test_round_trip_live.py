"""`mlxbert convert` and transformers: what it wrote opens with nothing missing and nothing unexpected, bit for bit."""

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
from tests.helpers.families import CELLS, FAMILIES, Compared, make_model
from tests.helpers.frozen import add_vocabulary, read_config, tensors_in, write_config, write_tensors
from tests.weights.test_families import nomic_of_its_authors

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

# Widths, tied tensors, fused matrices, names: one cell of each kind for what is the same for all.
SOME = [
    ("bert", "ForPreTraining"),
    ("roberta", "ForMaskedLM"),
    ("albert, two groups", "ForSequenceClassification"),
    ("electra", "ForPreTraining"),
    ("mpnet", "ForQuestionAnswering"),
    ("modernbert", "ForMaskedLM"),
    ("gte", "ForTokenClassification"),
    ("deberta-v2", "ForMaskedLM"),
]
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
    """A model as transformers saves it, with a small vocabulary."""
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
    """Every tensor is that of the other model, bit for bit once stored as `dtype`."""
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        cast = array.to(dtype) if dtype is not None and array.is_floating_point() else array
        assert ours[name].dtype == cast.dtype and torch.equal(ours[name], cast), name


def assert_same_here(b: Path, a: Path, compared: Compared) -> None:
    """Both folders hold the same parts, and give the same numbers here."""
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


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "head"), CELLS, ids=str)
def test_a_converted_model_is_the_model(family: str, head: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    model = make_model(compared, head)
    a, b = save(model, tmp_path / "a"), tmp_path / "b"
    found = mlxbert.convert(a, b)
    assert found.changed == ()
    assert_agrees(found)
    again = reload(model, b)
    assert_same_tensors(again, model)
    assert_same_here(b, a, compared)
    assert (b / "config.json").read_bytes() == (a / "config.json").read_bytes()


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
def test_gte_in_the_dialect_of_its_authors_is_written_in_that_of_transformers(
    factor: float | None, head: str, tmp_path: Path
) -> None:
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
def test_nomic_in_the_dialect_of_its_authors_is_written_in_that_of_transformers(head: str, tmp_path: Path) -> None:
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
