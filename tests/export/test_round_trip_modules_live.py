"""`mlxbert convert` and sentence-transformers: what it wrote gives the very vectors of what it was made of."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert

pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
st = pytest.importorskip("sentence_transformers", minversion="6.0", reason="live parity needs sentence-transformers")
import torch  # noqa: E402

from tests.export.test_round_trip import check_manifest  # noqa: E402
from tests.weights.test_sentence_transformers_live import (  # noqa: E402
    BOUND,
    DIALECTS,
    STACKS,
    TEXTS,
    bert,
    save_model,
)

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

__all__ = ["bert"]


def vectors(folder: Path) -> Any:
    """What sentence-transformers gives."""
    model = st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model.encode(TEXTS, batch_size=5, show_progress_bar=False)


def check(a: Path, b: Path) -> None:
    """Both give the same vectors there, and the same here; every file that matters is there."""
    check_manifest(mlxbert.convert(a, b))
    theirs = vectors(b)
    assert np.array_equal(theirs, vectors(a))
    ours = [mlxbert.embed(mlxbert.load(folder, task="embed", dtype="float32"), TEXTS) for folder in (a, b)]
    assert np.array_equal(ours[0], ours[1]) and np.abs(ours[1] - theirs).max() <= BOUND * max(1.0, np.abs(theirs).max())
    files = [{path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} for folder in (a, b)]
    weights = {name for name in files[0] if name.endswith(".bin")}
    assert files[0] - weights <= files[1]
    assert not any(name.endswith(".bin") for name in files[1])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_modules_that_torch_saved_become_safetensors(dialect: str, bert: Path, tmp_path: Path) -> None:
    a, b = save_model(tmp_path / "a", bert, STACKS["Dense, LayerNorm, Normalize"](), {}, dialect), tmp_path / "b"
    read = importlib.import_module("safetensors.torch").load_file
    paths = [path for path in a.rglob("model.safetensors") if path.parent.name[:1] in "23"]
    assert len(paths) == 2
    for path in paths:
        torch.save(read(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    check(a, b)
    assert all((b / path.relative_to(a)).is_file() for path in paths)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_halves_open_in_halves_and_point_the_same_way(dialect: str, bert: Path, tmp_path: Path) -> None:
    a = save_model(tmp_path / "a", bert, STACKS["Dense, LayerNorm, Normalize"](), {}, dialect)
    check_manifest(mlxbert.convert(a, tmp_path / "b", dtype="float16"))
    cosines = (vectors(a) * vectors(tmp_path / "b").astype(np.float32)).sum(axis=1)
    assert cosines.min() > 0.999
