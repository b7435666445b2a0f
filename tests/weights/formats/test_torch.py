"""Checkpoints that torch wrote: read like torch reads them, without it; refused in words if they are anything else."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import CheckpointError
from mlxbert.goldens.golden_outputs import GOLDENS
from mlxbert.machine.device import mx
from mlxbert.weights.formats.torch import (
    reader,
)
from tests.helpers import hostile_pickles
from tests.helpers.hostile_pickles import HOSTILE
from tests.helpers.torch_files import DATA, archive, state, storage, stream, tensor, text

ROOT = Path(__file__).parents[3]
SECONDS, ROOM = 1.0, 256 * 2**20  # for one file


def write(folder: Path, content: bytes) -> Path:
    path = folder / reader.SINGLE
    path.unlink(missing_ok=True)  # a file that is overwritten is flushed to the disk, which takes long
    path.write_bytes(content)
    return path


def loaded(path: Path) -> dict[str, mx.array]:
    return dict(reader.load_arrays(path, reader.read_header(path)))


def values(content: bytes, folder: Path) -> Any:
    return loaded(write(folder, content))["w"].tolist()


@pytest.fixture(scope="module", params=[pytest.param(None, marks=pytest.mark.slow, id="limited")])
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of the hostile files, read in one process whose memory and time are limited."""
    folder = tmp_path_factory.mktemp("hostile")
    for number, (make, _) in enumerate(HOSTILE.values()):
        (folder / f"{number:03}.bin").write_bytes(make())
    command = [sys.executable, "-m", "tests.helpers.hostile_pickles", str(int(SECONDS * len(HOSTILE))), str(ROOM)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not (folder / hostile_pickles.CANARY).exists()
    return dict(zip(HOSTILE, json.loads(ran.stdout).values(), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_words_and_nothing_runs(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    outcome = outcomes[name]
    assert outcome["kind"] == "CheckpointError", outcome
    assert HOSTILE[name][1] in outcome["message"] and len(outcome["message"]) < 1000
    assert outcome["seconds"] < SECONDS


def test_the_hostile_pickles_would_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["os.system first"][0]())
    assert (tmp_path / hostile_pickles.CANARY).exists()


@pytest.mark.parametrize("make", [archive, stream])
def test_a_file_written_by_hand_is_read(tmp_path: Path, make: Any) -> None:
    assert values(make(), tmp_path) == [[0, 1, 2], [3, 4, 5]]
    transposed = state(text("w"), tensor((3, 2), (1, 3)), text("epoch"), b"K\x03", text("note"), b"N")
    assert values(make(transposed), tmp_path) == [[0, 3], [1, 4], [2, 5]]
    assert reader.read_header(tmp_path / reader.SINGLE).skipped == ("epoch", "note")
    assert values(make(state(text("w"), tensor((2, 1), (3, 1), 2))), tmp_path) == [[2], [5]]
    assert values(make(state(text("w"), tensor((), (), 4))), tmp_path) == 4
    assert values(make(state(text("w"), tensor((0, 7), (7, 1)))), tmp_path) == []
    assert values(make(state(text("w"), tensor((2, 2), (1, 1), 1))), tmp_path) == [[1, 2], [2, 3]]
    assert values(make(state(text("w"), tensor((4, 2), (0, 1), 2))), tmp_path) == [[2, 3]] * 4
    assert values(make(state(text("w"), tensor((1, 2, 1), (2**62, 3, 2**99), 1))), tmp_path) == [[[1], [4]]]


@pytest.mark.parametrize("make", [archive, stream])
def test_a_truncated_file_is_refused(tmp_path: Path, make: Any) -> None:
    whole = make()
    for size in range(len(whole)):
        with pytest.raises(CheckpointError, match=r"truncated|damaged"):
            reader.read_header(write(tmp_path, whole[:size]))


def test_a_model_of_5000_tensors_is_read(tmp_path: Path) -> None:
    many = [part for number in range(5000) for part in (text(f"encoder.layer.{number}.weight"), tensor())]
    assert len(reader.read_header(write(tmp_path, archive(state(*many)))).tensors) == 5000


def test_an_archive_of_more_than_4_gib_is_read(tmp_path: Path) -> None:
    """The file has a hole of 5 GiB before its last member and takes no room on disk."""
    path = tmp_path / reader.SINGLE
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", state())
        assert file.fp is not None
        file.fp.seek(5 * 2**30)
        file.start_dir = file.fp.tell()
        file.writestr("archive/data/0", DATA)
    assert path.stat().st_size > 5 * 2**30
    assert loaded(path)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_tensor_in_64_bits_is_named(tmp_path: Path) -> None:
    doubles = state(text("w"), tensor((3,), (1,), of=storage(kind="DoubleStorage", count=3)))
    path = write(tmp_path, archive(doubles))
    header = reader.read_header(path)
    assert header.tensors["w"].dtype == "F64"
    with pytest.raises(CheckpointError, match="'w' has dtype F64"):
        reader.load_arrays(path, header)["w"]


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, archive())
    header = reader.read_header(path)
    write(tmp_path, archive(state(text("v"), tensor())))
    with pytest.raises(CheckpointError, match="changed while"):
        reader.load_arrays(path, header)


def test_which_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(archive())
    assert reader.read_headers(tmp_path) is None
    (tmp_path / "a.bin").write_bytes(archive())
    (tmp_path / "b.bin").write_bytes(archive(state(text("v"), tensor())))
    index = tmp_path / reader.INDEX
    index.write_text(json.dumps({"weight_map": {"w": "a.bin", "v": "b.bin"}}), encoding="utf-8")
    headers = reader.read_headers(tmp_path)
    assert headers is not None
    assert [(path.name, list(header.tensors)) for path, header in headers.items()] == [
        ("a.bin", ["w"]),
        ("b.bin", ["v"]),
    ]
    path = write(tmp_path, archive())
    assert list(reader.read_headers(tmp_path) or ()) == [path]


@pytest.mark.parametrize(
    "shard", ["../../etc/passwd", "/etc/passwd", "..", "", "a/b.bin", "missing.bin", "a\0b", "x" * 5000]
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, shard: str) -> None:
    (tmp_path / reader.INDEX).write_text(json.dumps({"weight_map": {"w": shard}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"index\.json: (a )?shard"):
        reader.read_headers(tmp_path)


@pytest.mark.parametrize(
    "name", ["torch-1.4-python-2.7-stream", "torch-1.6-python-3.7-stream", "torch-1.6-python-3.7-zip"]
)
def test_what_old_torch_wrote_is_read(name: str) -> None:
    """How the files were written, and with what in them, is said next to them."""
    path = GOLDENS / "torch" / f"{name}.bin"
    header = reader.read_header(path)
    arrays = reader.load_arrays(path, header)
    found = {key: (info.dtype, arrays[key].tolist()) for key, info in header.tensors.items() if info.dtype != "F64"}
    weight, ones, zeros = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [1.0, 1.0], [0.0, 0.0]
    assert found == {
        "dense.weight": ("F32", weight), "dense.bias": ("F32", [1.0, -1.0]),
        "norm.weight": ("F32", ones), "norm.bias": ("F32", zeros), "norm.running_mean": ("F32", zeros),
        "norm.running_var": ("F32", ones), "norm.num_batches_tracked": ("I64", 0),
        "tied.weight": ("F32", weight), "tied.bias": ("F32", [0.5, 0.25]),
        "transposed": ("F32", [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]), "sliced": ("F32", [[5, 6], [9, 10]]),
        "half": ("F16", [0, 1, 1]), "bfloat16": ("BF16", [0, 1, 1]), "bool": ("BOOL", [False, True, True]),
        "long": ("I64", [0, 1, 1]), "int": ("I32", [0, 1, 1]), "short": ("I16", [0, 1, 1]),
        "char": ("I8", [0, 1, 1]), "byte": ("U8", [0, 1, 1]),
        "scalar": ("F32", 2.5), "empty": ("F32", []), "param": ("F32", ones),
    }  # fmt: skip
    assert header.tensors["double"].dtype == "F64" and header.tensors["empty"].shape == (0, 4)


def _state_of_torch() -> dict[str, Any]:
    """Tensors of every dtype, and views of every kind, some of one storage."""
    import torch

    torch.manual_seed(0)
    base = torch.randn(4, 6, 5)
    dtypes = (torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    found = {str(dtype): (base * 3).to(dtype) for dtype in dtypes}
    found |= {"base": base, "again": base, "parameter": torch.nn.Parameter(base[0].clone())}
    found |= {"permuted": base.permute(2, 0, 1), "steps": base[::2, 1:5:3], "scalar": base[1, 2, 3]}
    found |= {"empty": torch.zeros(3, 0), "window": base[3, 2:], "unfolded": torch.arange(19.0).unfold(0, 4, 5)}
    found |= {"expanded": torch.arange(3.0)[:, None].expand(3, 50), "row": torch.arange(3.0).expand(1, 3)}
    return found | {"quelle façon": torch.ones(1)}


def _check_equal(path: Path, expected: dict[str, Any]) -> None:
    import torch

    header = reader.read_header(path)
    arrays = reader.load_arrays(path, header)
    assert list(header.tensors) == list(expected)
    for name, theirs in expected.items():
        assert header.tensors[name].shape == arrays[name].shape == tuple(theirs.shape)
        assert str(arrays[name].dtype).split(".")[-1].removesuffix("_") == str(theirs.dtype).split(".")[-1]
        found = np.array(arrays[name].astype(mx.float32) if arrays[name].dtype == mx.bfloat16 else arrays[name])
        wide = theirs.to(torch.float32) if theirs.dtype == torch.bfloat16 else theirs
        assert np.array_equal(found, wide.detach().numpy())


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.slow
def test_it_is_what_torch_loads(tmp_path: Path, zipped: bool, protocol: int) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / reader.SINGLE
    torch.save(_state_of_torch(), path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    _check_equal(path, torch.load(path, weights_only=False))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.slow
def test_the_state_of_a_module_is_read_and_the_module_is_not(tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    path = tmp_path / reader.SINGLE
    torch.save(module.state_dict(), path, _use_new_zipfile_serialization=zipped)
    _check_equal(path, module.state_dict())
    torch.save(module, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"names 'torch\.nn\.modules\.container\.Sequential'"):
        reader.read_header(path)
    torch.save({"epoch": 1, "state_dict": module.state_dict()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="'state_dict' is a OrderedDict"):
        reader.read_header(path)
    scripted = torch.jit.script(module)
    torch.jit.save(scripted, str(path))
    with pytest.raises(CheckpointError, match="TorchScript"):
        reader.read_header(path)
