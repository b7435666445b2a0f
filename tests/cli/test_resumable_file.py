"""`--output` through kills, interruptions, damage and full disks: what a later run makes of `X.partial`."""

import importlib.util
import itertools
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from mlxbert.cli.output import formats
from mlxbert.cli.output.formats import OutputFormat
from mlxbert.cli.output.resumable_file import FileOutput, check_output
from mlxbert.cli.output.written_paths import check_written
from mlxbert.cli.views import progress
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.folders.fingerprint import hash_folder
from mlxbert.progress import OnProgress
from mlxbert.readers.stream import Record, RecordStream
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from tests.helpers.cases import fast, together
from tests.helpers.damage import DAMAGES, damage
from tests.helpers.program import TIMEOUT, call, terminal, tiny_model

WIDTH, PART, TOTAL = 16, 8, 29
MANIFEST: dict[str, Any] = {"task": "embed", "model": "m", "input": "a hash", "options": {"top_k": 1}}
FILES = ("manifest.json", "part-000001.json", "part-000001.PART")
PLACES = int(os.environ.get("MLXBERT_TEST_DAMAGES", "4"))  # of each file and kind of damage
ENDINGS = pytest.mark.parametrize("ending", formats.VECTORS)
ROOT = Path(__file__).parents[2]

# The run again and again, each time killed one step later: a step is a call that changes what is on disk.
KILLER = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from tests.cli import test_resumable_file as tests

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
            tests.write(out)
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


def output(path: Path, *, overwrite: bool = False, **changes: Any) -> FileOutput:
    return FileOutput(path, MANIFEST | changes, overwrite=overwrite, format=form(path.suffix))


def result(number: int) -> Embedding | Failure:
    if number % 10 == 7:
        return Failure(number, InputError("no text"))
    vector = np.random.default_rng(number).standard_normal(WIDTH).astype(np.float32)
    return Embedding(f"text {number}", vector, tokens=3, truncated=number % 5 == 0)


def write(out: FileOutput, total: int = TOTAL) -> None:
    for number in range(out.done, total):
        out.write(result(number))


def finish(path: Path, total: int = TOTAL, **changes: Any) -> int:
    """A run to the end; how many results it took over."""
    with output(path, **changes) as out:
        taken = out.done
        write(out, total)
    return taken


def stopped(path: Path, results: int) -> FileOutput:
    """A run that ends with an error after some results."""
    with pytest.raises(RuntimeError), output(path) as out:
        write(out, results)
        raise RuntimeError
    return out


def killed(path: Path, results: int = PART + 5, **changes: Any) -> None:
    """A run that is killed after some results: its lock goes with it, its folder stays."""
    out = output(path, **changes).__enter__()
    write(out, results)
    assert out._lock is not None
    out._lock.close()


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
        write(out)
        assert before.items() <= finished_parts(path).items()
    everything = [result(number) for number in range(TOTAL)]
    good = [one for one in everything if isinstance(one, Embedding)]
    assert (out.done, out.failed) == (TOTAL, TOTAL - len(good))
    assert (out.truncated, out.tokens) == (sum(one.truncated for one in good), 3 * len(good))
    assert path.read_bytes() == wholes[ending]


@ENDINGS
@together("total", [0, 1, PART, 2 * PART])
def test_any_number_of_results(ending: str, total: int, tmp_path: Path) -> None:
    finish(tmp_path / f"x{ending}", total)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"x{ending}"]
    assert ending != ".npy" or np.load(tmp_path / "x.npy").shape == (total, WIDTH)
    (tmp_path / f"x{ending}").unlink()


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
            write(out)
            assert before.items() <= finished_parts(path).items()
        assert path.read_bytes() == wholes[ending]
        assert not Path(f"{path}.partial").exists()
    assert taken == {0, PART, 2 * PART, 3 * PART, TOTAL}


def test_the_work_of_another_command_is_refused_and_kept(tmp_path: Path, wholes: dict[str, bytes]) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(RuntimeError), output(path) as first:
        write(first, PART)
        with pytest.raises(ArgumentError, match="another"):
            finish(path)
        raise RuntimeError
    before = finished_parts(path)
    for changes, said in (
        ({"input": None}, ""),
        ({"input": "a" * 64}, r"\(another input\)"),
        ({"model": "b" * 64, "options": {"top_k": 3}}, r"\(another model; top_k is 3, was 1\)"),
        ({"options": {"top_k": 3}}, r"\(top_k is 3, was 1\)"),
    ):
        with pytest.raises(ArgumentError, match=f"unfinished work of another.*{said}") as caught:
            finish(path, **changes)
        assert caught.value.hint and "--overwrite" in caught.value.hint and finished_parts(path) == before
    assert (tmp_path / "x.npy.partial" / "lock").exists()  # of a run that is gone, and in nobody's way
    assert finish(path) == PART and path.read_bytes() == wholes[".npy"]


def test_overwrite_drops_the_work_of_another_command_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(tmp_path / "x.jsonl")
    with output(tmp_path / "x.jsonl", overwrite=True, input="mended") as out:
        assert out.done == 0
        write(out, 1)
    assert "unfinished work of another run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_a_killed_run_over_stdin_is_never_gone_on_with(tmp_path: Path) -> None:
    for later in (None, "a hash"):
        killed(tmp_path / "x.jsonl", input=None)
        assert finish(tmp_path / "x.jsonl", 7, input=later) == 0
        assert (tmp_path / "x.jsonl").read_text().count("\n") == 7
        (tmp_path / "x.jsonl").unlink()


def test_what_holds_no_results_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.partial").mkdir()
    (tmp_path / "x.jsonl.partial" / "manifest.json.unfinished").write_text("{")
    killed(tmp_path / "y.jsonl", 5, input="another")
    assert [finish(tmp_path / name, 3) for name in ("x.jsonl", "y.jsonl")] == [0, 0]


def test_a_file_that_came_while_the_run_went_on_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(ArgumentError, match="exists"), output(path) as out:
        write(out, PART)
        path.write_text("precious")
    assert path.read_text() == "precious"
    path.rename(tmp_path / "kept")
    assert finish(path, PART) == PART


def test_a_folder_with_files_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "x.jsonl.partial" / "my notes.md"
    notes.parent.mkdir()
    notes.write_text("mine")
    with pytest.raises(ArgumentError, match=r"x\.jsonl\.partial: contains my notes\.md"):
        finish(tmp_path / "x.jsonl", 3)
    assert notes.read_text() == "mine"
    notes.unlink()
    finish(tmp_path / "x.jsonl", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_an_input_and_what_is_no_ordinary_file_are_no_output(tmp_path: Path) -> None:
    path, link, pipe = (tmp_path / f"{name}.jsonl" for name in ("io", "link", "pipe"))
    path.write_text("{}")
    link.symlink_to(path)
    for other in (path, link):
        with pytest.raises(ArgumentError, match=r"\.jsonl: is also an input"):
            check_output(other, True, sources=[str(path)])
    check_output(path, True, sources=[str(tmp_path / "other.jsonl")])
    os.mkfifo(pipe)
    with pytest.raises(ArgumentError, match="is a FIFO, not a regular file") as problem:
        check_output(pipe, True)
    assert problem.value.hint == "without --output results go to stdout"
    with pytest.raises(ArgumentError) as problem:
        check_written("log_file", pipe, "file")
    assert "stderr" in (problem.value.hint or "")


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, target = tmp_path / "x.jsonl", tmp_path / "far" / "real.jsonl"
    link.symlink_to(target)
    finish(link, 3)
    assert link.is_symlink() and len(target.read_text().splitlines()) == 3
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["real.jsonl"]


@together("counts", ["[1]", "{}", '{"bytes": 1}', '{"results": "3"}', "null", "\udcff", "{"])
def test_a_damaged_count_beside_a_part_makes_it_be_made_again(
    counts: str, tmp_path: Path, wholes: dict[str, bytes]
) -> None:
    path, nearby = tmp_path / "x.jsonl", tmp_path / "x.jsonl.partial" / "part-000000.json"
    killed(path)
    assert json.loads(nearby.read_text())["results"] == PART
    nearby.write_bytes(counts.encode("utf-8", "surrogateescape"))
    assert finish(path) == 0 and path.read_bytes() == wholes[".jsonl"]
    path.unlink()


def damaged(partial: Path, expected: bytes, file: str, kind: str, places: int) -> int:
    """Damages a file at some places, one at a time; how many runs were refused; the others gave the result."""
    refused = 0
    for place in range(places):
        path = partial.parent / f"{place}{Path(partial.stem).suffix}"
        copied = shutil.copytree(partial, f"{path}.partial")
        (found,) = Path(copied).glob(file)
        damage(found, kind, random.Random(f"{file} {kind} {place}"))
        try:
            finish(path)
        except ArgumentError as problem:
            assert problem.hint and path.name in problem.message and not path.exists()
            shutil.rmtree(copied)
            refused += 1
        else:
            assert path.read_bytes() == expected and not Path(copied).exists()
            path.unlink()
    return refused


@pytest.mark.parametrize(
    ("ending", "places"), fast(itertools.product(formats.VECTORS, (1, PLACES)), (".npy", 1), (".jsonl", 1))
)
def test_damage_never_gives_another_result(ending: str, places: int, tmp_path: Path, wholes: dict[str, bytes]) -> None:
    partial = stopped(tmp_path / f"x{ending}", 3 * PART + 1).partial
    for file, kind in itertools.product(FILES, DAMAGES):
        file = file.replace(".PART", form(ending).part_ending)
        assert not damaged(partial, wholes[ending], file, kind, places) or file == "manifest.json"


def test_a_part_in_the_place_of_another_is_computed_again(tmp_path: Path, wholes: dict[str, bytes]) -> None:
    partial = stopped(tmp_path / "x.npy", 3 * PART + 1).partial
    for path in partial.glob("part-000002.*"):
        shutil.copyfile(path, path.with_name(path.name.replace("2", "1")))
    assert finish(tmp_path / "x.npy") == PART
    assert (tmp_path / "x.npy").read_bytes() == wholes[".npy"]


def test_a_part_that_changes_while_others_are_computed_is_noticed(tmp_path: Path, wholes: dict[str, bytes]) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(MlxbertError, match="changed"), output(path) as out:
        write(out)
        (part,) = (found for found in out.partial.glob("part-000000.*") if found.suffix != ".json")
        damage(part, "bit", random.Random(1))
    assert not path.exists()
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
    pooling = model / "1_Pooling" / "config.json"
    for folder in (blobs, pooling.parent, model / ".cache", model / "x.npy.partial"):
        folder.mkdir(parents=True)
    for path in (blobs / "abc", pooling):
        path.write_text("{}")
    (model / "config.json").symlink_to(blobs / "abc")
    found = [hash_folder(model)]
    (model / ".cache" / "x.json").write_text("{}")
    (model / "x.npy.partial" / "manifest.json").write_text("{}")
    (model / "gone.json").symlink_to(blobs / "gone")
    assert hash_folder(model) == found[0]
    for path in (pooling, blobs / "abc"):
        path.write_text('{"pooling_mode_cls_token": true}')
        found.append(hash_folder(model))
    assert len({*found}) == 3


WEIGHTS = ["model.safetensors", "pytorch_model.bin", "w.npz", "m.index", "m.data-00000-of-00001"]


@together("name", [*WEIGHTS, "spiece.model", "bert_config.json", "vocab.txt", "checkpoint"])
def test_a_fingerprint_tells_a_change_of_every_file_that_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
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
    path.unlink()


@together("size", [100, 2**18 + 50, 2**20])
def test_a_fingerprint_tells_other_weights_of_the_same_size_and_time(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    found = set()
    for content in (b"\0" * size, b"\1" + b"\0" * (size - 1), b"\0" * (size // 2) + b"\1" * (size - size // 2)):
        path.write_bytes(content)
        os.utime(path, (0, 0))
        found.add(hash_folder(tmp_path))
    assert len(found) == 3


def interrupted_after(results: int) -> Any:
    """Interrupts a run, as Ctrl-C does, when its bar shows that many results."""

    @contextmanager
    def progress(*arguments: object, **options: object) -> Iterator[OnProgress]:
        def update(done: int, count: int) -> None:
            if count == results:
                raise KeyboardInterrupt

        yield update

    return mock.patch("mlxbert.cli.views.progress.records", side_effect=progress)


def test_a_run_over_several_files_resumes_among_them(tmp_path: Path) -> None:
    model, target, arguments = tiny_model(tmp_path / "model"), tmp_path / "x.jsonl", ["tokenize"]
    for name, content in (("a.txt", "the\n" * 5), ("b.txt", "cat\n" * 10 + "dog " * 30 + "\n")):
        (tmp_path / name).write_text(content)
        arguments += ["--input", str(tmp_path / name)]
    arguments += ["--model", str(model)]
    with interrupted_after(10):
        assert call(*arguments, "--output", str(target)).status == 130
    swapped = [arguments[0], *arguments[3:5], *arguments[1:3], *arguments[5:]]
    call(*swapped, "--output", str(target)).fails(2, "another input")
    with mock.patch("mlxbert.cli.views.progress.records", wraps=progress.records) as bar:
        call(*arguments, "--output", str(target)).fails(1, "1 of 16")
    assert bar.call_args.kwargs["before"][1] == 8
    assert target.read_text() == call(*arguments).out
    assert json.loads(target.read_text().splitlines()[-1])["error"].startswith(f"{tmp_path / 'b.txt'}, line 11: ")


def test_a_named_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    model, pipe = tiny_model(tmp_path / "model"), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("the [MASK]\n" * 5))
    writer.start()
    arguments = ["fill-mask", "--input", str(pipe), "--format", "txt", "--model", str(model)]
    outcome = call(*arguments, "--output", str(tmp_path / "x.jsonl"))
    writer.join()
    assert outcome.status == 0 and "cannot be resumed" in outcome.err
    assert (tmp_path / "x.jsonl").read_text().count("\n") == 5


def test_the_bar_of_a_resumed_run_begins_where_it_stopped(tmp_path: Path) -> None:
    model, texts, target = tiny_model(tmp_path / "model"), tmp_path / "in.txt", tmp_path / "x.jsonl"
    texts.write_text("the cat\n" * 60)
    arguments = ["tokenize", "--input", str(texts), "--model", str(model), "--output", str(target)]
    with interrupted_after(45):
        outcome = call(*arguments)
    assert outcome.status == 130 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("hint: 40 ") and f"{target}.partial" in outcome.err
    _, shown = terminal(*arguments, on=("stdout", "stderr"))
    assert shown.index("resumed: 40 results") < shown.index("done")
    counts = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) done", shown)]
    assert (counts[0], counts[-1]) == (40, 60)


def test_records_that_have_results_do_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Resumed(FileOutput):
        done = 900

    class Counted(RecordStream):
        def checked(self, record: Record, result: Any, before: int = 0) -> Any:
            waiting.append(len(self._waiting))
            return super().checked(record, result, before)

    waiting: list[int] = []
    monkeypatch.setattr("mlxbert.cli.session.FileOutput", Resumed)
    monkeypatch.setattr("mlxbert.cli.inputs.RecordStream", Counted)
    (tmp_path / "in.txt").write_text("the\n" * 1000)
    model = str(tiny_model(tmp_path / "tiny"))
    arguments = ["--model", model, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "x.jsonl")]
    assert call("tokenize", *arguments).status == 0
    assert waiting == [*range(99, -1, -1)]
