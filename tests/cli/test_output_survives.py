"""Output files of every format through kills, interruptions, full disks and forbidden folders."""

import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from mlxbert.cli.output import formats
from mlxbert.cli.output.formats import OutputFormat
from mlxbert.cli.output.resumable_file import FileOutput
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.folders.fingerprint import hash_folder
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from tests.helpers.cases import together
from tests.helpers.cells import ALL
from tests.helpers.program import ENDING, TIMEOUT, call, tiny_model

WIDTH, PART, TOTAL = 16, 8, 29
MANIFEST: dict[str, Any] = {"task": "embed", "model": "m", "input": "a hash", "options": {}}
ENDINGS = pytest.mark.parametrize("ending", formats.VECTORS)
ROOT = Path(__file__).parents[2]

# A run that is killed: path, pause before each result, size of a part, results.
WRITER = """
import os, signal, sys, time
from pathlib import Path
from mlxbert.cli import signals
from tests.cli import test_output_survives as tests

signals.catch()
tests.PART, name, pause = int(sys.argv[3]), Path(sys.argv[1]), float(sys.argv[2])
with tests.small_parts(), tests.output(name) as out:
    for number in range(out.done, int(sys.argv[4])):
        time.sleep(pause)
        out.write(tests.result(number))
"""
# The run again and again, each time killed one step later: a step is a call that changes what is on disk.
KILLER = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from tests.cli import test_output_survives as tests

folder, ending = Path(sys.argv[1]), sys.argv[2]
def step(do):
    def stepped(*arguments, **named):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = do(*arguments, **named)
        if left == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 2
        return result
    return stepped

for kill in itertools.count():
    child = os.fork()
    if child == 0:
        left = kill
        for name in ("replace", "fsync"):
            setattr(os, name, step(getattr(os, name)))
        shutil.rmtree = step(shutil.rmtree)
        with tests.small_parts(), tests.output(folder / f"{kill}{ending}") as out:
            for number in range(tests.TOTAL):
                out.write(tests.result(number))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(kill)
"""


@contextmanager
def small_parts() -> Iterator[None]:
    """Parts of a few results."""
    with mock.patch("mlxbert.cli.output.resumable_file.PART", PART):
        yield


@pytest.fixture(autouse=True)
def _small_parts() -> Iterator[None]:
    with small_parts():
        yield


def form(ending: str) -> OutputFormat:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    return formats.choose(Path("x" + ending), formats.VECTORS, width=WIDTH, metadata={"model": "m"})


def output(path: Path, **changes: object) -> FileOutput:
    return FileOutput(path, MANIFEST | changes, overwrite=False, format=form(path.suffix))


def result(number: int) -> Embedding | Failure:
    if number % 10 == 7:
        return Failure(number, InputError("no text"))
    vector = np.random.default_rng(number).standard_normal(WIDTH).astype(np.float32)
    return Embedding(f"text {number}", vector, tokens=3, truncated=number % 5 == 0)


def finish(path: Path, total: int = TOTAL, **changes: object) -> FileOutput:
    with output(path, **changes) as out:
        for number in range(out.done, total):
            out.write(result(number))
    return out


def stopped(path: Path, results: int) -> FileOutput:
    """A run that ends with an error after some results."""
    with pytest.raises(RuntimeError), output(path) as out:
        for number in range(results):
            out.write(result(number))
        raise RuntimeError
    return out


def finished_parts(path: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of the parts that are there, with what counts them."""
    folder = Path(f"{path}.partial")
    done = [part.stem for part in folder.glob("part-*.json")]
    return {
        part.name: (part.stat().st_ino, part.stat().st_mtime_ns)
        for part in folder.glob("part-*")
        if part.stem in done and part.suffix != ".unfinished"
    }


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an uninterrupted run writes."""
    folder, found = tmp_path_factory.mktemp("wholes"), {}
    with small_parts():
        for ending in formats.VECTORS:
            if ending != ".parquet" or importlib.util.find_spec("pyarrow"):
                finish(folder / f"x{ending}")
                found[ending] = (folder / f"x{ending}").read_bytes()
    return found


@ENDINGS
def test_a_resumed_run_counts_everything(ending: str, tmp_path: Path, wholes: dict[str, bytes]) -> None:
    path = tmp_path / f"x{ending}"
    assert stopped(path, 2 * PART + 3).done == 2 * PART
    assert [entry.name for entry in tmp_path.iterdir()] == [f"x{ending}.partial"]
    before = finished_parts(path)
    with output(path) as out:
        assert out.done == 2 * PART and finished_parts(path) == before
        for number in range(out.done, TOTAL):
            out.write(result(number))
        assert before.items() <= finished_parts(path).items()
    everything = [result(number) for number in range(TOTAL)]
    good = [one for one in everything if isinstance(one, Embedding)]
    assert (out.done, out.failed) == (TOTAL, TOTAL - len(good))
    assert (out.truncated, out.tokens) == (sum(one.truncated for one in good), 3 * len(good))
    assert path.read_bytes() == wholes[ending]


@ENDINGS
@together("total", [0, 1, PART, 2 * PART])
def test_any_number_of_results(ending: str, total: int, tmp_path: Path) -> None:
    path = tmp_path / str(total) / f"x{ending}"
    path.parent.mkdir()
    assert finish(path, total).done == total
    if ending == ".npy":
        assert np.load(path).shape == (total, WIDTH)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_failures_that_the_file_cannot_tell_are_told_when_they_happen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(tmp_path / "x.npy", 18)
    assert capsys.readouterr().err == "error: input 7: no text\nerror: input 17: no text\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@ENDINGS
@pytest.mark.slow
@pytest.mark.sampled
def test_a_kill_at_any_step_leaves_what_can_be_gone_on_from(
    ending: str, tmp_path: Path, wholes: dict[str, bytes]
) -> None:
    form(ending)
    killer = [sys.executable, "-c", KILLER, str(tmp_path), ending]
    done = subprocess.run(killer, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    kills = int(done.stdout)
    assert kills > 40
    taken = set()
    for kill in range(kills):
        path = tmp_path / f"{kill}{ending}"
        if path.exists():  # killed when it was done, while it cleared away
            assert path.read_bytes() == wholes[ending]
            continue
        before = finished_parts(path)
        with output(path) as out:
            taken.add(out.done)
            for number in range(out.done, TOTAL):
                out.write(result(number))
            assert before.items() <= finished_parts(path).items()
        assert path.read_bytes() == wholes[ending]
        assert not Path(f"{path}.partial").exists()
    assert taken == {0, PART, 2 * PART, 3 * PART, TOTAL}


@pytest.mark.parametrize(("by", "times"), [(signal.SIGKILL, 10 if ALL else 4), *((by, 2) for by in ENDING)])
@pytest.mark.slow
def test_a_slow_run_killed_many_times_is_done_in_the_end(by: signal.Signals, times: int, tmp_path: Path) -> None:
    path, folder = tmp_path / "x.npy", tmp_path / "x.npy.partial"
    # So slowly that it is not done before the signal comes.
    writer = [sys.executable, "-c", WRITER, str(path), "0.06", str(PART), str(40 * PART)]
    kept: dict[str, tuple[int, int]] = {}
    for number in range(times):
        running = subprocess.Popen(writer, cwd=ROOT, stderr=subprocess.DEVNULL)
        while running.poll() is None and len(list(folder.glob("part-*.json"))) < 2 * (number + 1):
            time.sleep(0.001)
        running.send_signal(by)
        assert running.wait(TIMEOUT) != 0
        assert [entry.name for entry in tmp_path.iterdir()] == [folder.name]
        now = finished_parts(path)
        assert kept.items() <= now.items() and len(now) >= 4 * (number + 1)
        kept = now
    finish(path, 40 * PART)
    finish(tmp_path / "other.npy", 40 * PART)
    assert path.read_bytes() == (tmp_path / "other.npy").read_bytes()


def test_another_run_is_refused_and_nothing_is_lost(tmp_path: Path, wholes: dict[str, bytes]) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(RuntimeError), output(path) as first:
        for number in range(PART):
            first.write(result(number))
        with pytest.raises(ArgumentError, match="another"):
            finish(path)
        raise RuntimeError
    before = finished_parts(path)
    for changes in ({"model": "other"}, {"input": "other"}, {"options": {"pooling": "cls"}}, {"input": None}):
        with pytest.raises(ArgumentError, match="unfinished work of another") as caught:
            finish(path, **changes)
        assert caught.value.hint and finished_parts(path) == before
    assert (tmp_path / "x.npy.partial" / "lock").exists()  # of a run that is gone, and in nobody's way
    finish(path)
    assert path.read_bytes() == wholes[".npy"]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond a size: what a full disk does, without a disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@ENDINGS
def test_no_room_for_the_whole_keeps_the_parts(ending: str, tmp_path: Path, wholes: dict[str, bytes]) -> None:
    path = tmp_path / f"x{ending}"
    stopped(path, TOTAL - 1)
    largest = max(part.stat().st_size for part in Path(f"{path}.partial").glob("part-*"))
    assert largest + 1 < len(wholes[ending])
    with (
        file_size_limit(largest + 1),
        pytest.raises(MlxbertError, match=r"\.partial.*\((File too large|SQLite: .*)\)") as caught,
    ):
        finish(path)
    assert caught.value.hint and caught.value.hint.startswith(f"{TOTAL} ") and f"{path}.partial" in caught.value.hint
    assert not list(Path(f"{path}.partial").glob("whole*")) and not list(Path(f"{path}.partial").glob("*.unfinished"))
    with output(path) as out:
        assert out.done == TOTAL
    assert path.read_bytes() == wholes[ending]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root on Linux only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@ENDINGS
@pytest.mark.slow
def test_a_full_disk_keeps_what_is_finished(ending: str, small_disk: Path) -> None:
    path, ballast = small_disk / f"x{ending}", small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    with pytest.raises(MlxbertError, match=r"\.partial.*\(No space left on device\)") as caught:
        finish(path, 2000)
    assert caught.value.hint and caught.value.hint.endswith("the same command resumes there")
    assert {entry.name for entry in small_disk.iterdir()} == {"ballast", f"x{ending}.partial"}
    before = finished_parts(path)
    assert before
    ballast.unlink()
    with pytest.raises(RuntimeError), output(path) as out:
        assert out.done == PART * len(before) // 2 and finished_parts(path) == before
        raise RuntimeError


@pytest.mark.slow
def test_the_program_says_that_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    texts, model = tmp_path / "in.txt", tiny_model(tmp_path / "model")
    texts.write_text("the cat sat on the mat\n" * 5000)
    arguments = ["tokenize", "--input", str(texts), "--model", str(model), "--output", str(small_disk / "x.jsonl")]
    outcome = call(*arguments)
    outcome.fails(1, "x.jsonl.partial", "No space left on device", "the same command resumes")
    assert [entry.name for entry in small_disk.iterdir()] == ["x.jsonl.partial"]


def test_what_cannot_be_written_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    arguments = ["--model", str(tmp_path / "no model"), "--output"]
    for command in ("fill-mask", "tokenize"):
        call(command, "the [MASK]", *arguments, str(tmp_path / "x.npy")).fails(2, "'.npy'", ".jsonl")
        call(command, "the [MASK]", *arguments, f"{__file__}/x.jsonl").fails(1, __file__)
    call("embed", "the", *arguments, str(tmp_path / "new folder" / "x.npy")).fails(
        2, "does not exist", "hint: ", "mkdir"
    )
    assert not list(tmp_path.iterdir())


def test_a_model_is_all_its_files(tmp_path: Path) -> None:
    blobs, model = tmp_path / "blobs", tmp_path / "model"
    for folder in (blobs, model / "1_Pooling", model / ".cache", model / "x.npy.partial"):
        folder.mkdir(parents=True)
    (blobs / "abc").write_text("{}")
    (model / "config.json").symlink_to(blobs / "abc")
    pooling = model / "1_Pooling" / "config.json"
    pooling.write_text("{}")
    first = hash_folder(model)
    (model / ".cache" / "x.json").write_text("{}")
    (model / "x.npy.partial" / "manifest.json").write_text("{}")
    (model / "gone.json").symlink_to(blobs / "gone")
    assert hash_folder(model) == first
    pooling.write_text('{"pooling_mode_cls_token": true}')
    second = hash_folder(model)
    (blobs / "abc").write_text('{"model_type": "bert"}')
    assert len({first, second, hash_folder(model)}) == 3


WEIGHTS = ["model.safetensors", "pytorch_model.bin", "w.npz", "m.index", "m.data-00000-of-00001"]


@pytest.mark.parametrize("name", [*WEIGHTS, "spiece.model", "bert_config.json", "vocab.txt", "checkpoint"])
def test_a_fingerprint_tells_a_change_of_every_file_that_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"one")
    os.utime(path, ns=(0, 0))
    first = hash_folder(tmp_path)
    path.write_bytes(b"two")
    os.utime(path, ns=(0, 0))
    same = hash_folder(tmp_path)
    assert same != first
    os.utime(path, ns=(0, 1))
    assert (hash_folder(tmp_path) != same) == (name in WEIGHTS)
    (tmp_path / "other").write_bytes(b"never read")
    os.utime(path, ns=(0, 0))
    assert hash_folder(tmp_path) == same


@pytest.mark.parametrize("size", [100, 2**18 + 50, 2**20])
def test_a_fingerprint_tells_other_weights_of_the_same_size_and_time(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    found = set()
    for content in (b"\0" * size, b"\1" + b"\0" * (size - 1), b"\0" * (size // 2) + b"\1" * (size - size // 2)):
        path.write_bytes(content)
        os.utime(path, (0, 0))
        found.add(hash_folder(tmp_path))
    assert len(found) == 3
