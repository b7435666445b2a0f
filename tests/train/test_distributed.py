"""One run of several processes: the numbers of one process, one voice, and an end for all when one is lost."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxbert.durable_files import acquire_lock
from mlxbert.errors import DeviceError
from mlxbert.resumable_folder import LOCK
from mlxbert.train.loop.distributed import join
from tests.helpers.program import ENDING, PROGRAM, Outcome, call, environment
from tests.train.files import TASKS, data_file
from tests.train.pretraining.files import model_folder, text_file
from tests.train.test_finetune import rows, write

TIMEOUT = 120  # seconds; nothing is measured
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def data(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(base, folder / "tiny")
    write(folder / "train.csv", rows(160))
    write(folder / "test.csv", rows(90))
    return folder


def finetune(
    data: Path, output: Path, *more: str, train: str = "train.csv", epochs: int = 2, task: str = "classify"
) -> list[str]:
    """The command: 9 updates per epoch, without dropout."""
    given = {"--train": data / train, "--model": data / "tiny", "--output": output, "--epochs": epochs}
    given |= {"--validation-fraction": 0.1, "--dropout": 0, "--batch-size": 16, "--lr": 1e-3}
    return ["finetune", task, *(str(word) for option in given.items() for word in option), *more]


@contextmanager
def started(commands: list[list[str]], folder: Path, prelude: str = "") -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Starts a process per command, which find each other as those of `mlx.launch` do: nothing ends the others."""
    with ExitStack() as reserved:  # ports that are free now
        sockets = [reserved.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in commands]
        hosts = [[f"127.0.0.1:{server.getsockname()[1]}"] for server in sockets]
    (folder / "hosts.json").write_text(json.dumps(hosts))
    with ExitStack() as running:
        processes = []
        for rank, command in enumerate(commands):
            variables = environment(MLX_RANK=str(rank), MLX_HOSTFILE=str(folder / "hosts.json"), **ONE_THREAD)
            process = subprocess.Popen(
                [sys.executable, "-c", prelude + PROGRAM, *command],
                env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            running.enter_context(process)
            running.callback(process.kill)
            processes.append(process)
        yield processes


def ended(process: "subprocess.Popen[bytes]") -> Outcome:
    """How a process ended, without what MLX itself says of its sockets."""
    out, err = process.communicate(timeout=TIMEOUT)
    said = [line for line in err.decode().splitlines(keepends=True) if not line.startswith("[ring]")]
    return Outcome(process.returncode, out.decode(), "".join(said))


def both(command: list[str], folder: Path, prelude: str = "") -> list[Outcome]:
    with started([command, command], folder, prelude) as processes:
        return [ended(process) for process in processes]


def alone(command: list[str]) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], env=environment(**ONE_THREAD), capture_output=True, timeout=TIMEOUT
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def until_saved(output: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while not (output.with_name(output.name + ".partial") / "runs/000/state.json").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("task", [*TASKS, "classify, a teacher", "tag, a teacher", "pretrain"])
@pytest.mark.sampled("classify", "classify, a teacher", "pretrain")
def test_two_processes_train_as_one_does_and_one_talks(data: Path, tmp_path: Path, task: str) -> None:
    name, _, taught = task.partition(", ")
    given: dict[str, Any] = {"task": name}
    if task == "pretrain":
        text, model = text_file(tmp_path / "text.txt", 400), model_folder(tmp_path / "tiny")
        pretrain = ["pretrain", str(text), "--model", str(model), "--objective", "mlm,nsp", "--length", "24"]
        pretrain += ["--steps", "40", "--batch-size", "8", "--eval-every", "20", "--dropout", "0", "--lr", "1e-3"]
    else:
        given["train"] = data_file(data, name, 160).name
    more = ["--teacher", str(tmp_path / "teacher"), "--gradient-accumulation", "2"] if taught else []
    if taught:
        assert alone(finetune(data, tmp_path / "teacher", epochs=1, **given)).status == 0

    def command(output: str, *flags: str) -> list[str]:
        if task == "pretrain":
            return [*pretrain, "--output", str(tmp_path / output), *flags]
        return finetune(data, tmp_path / output, *more, *flags, **given)

    first, second = both(command("two", "--log", str(tmp_path / "log")), tmp_path)
    assert (first.status, second.status, second.out, second.err) == (0, 0, "", "")
    assert task == "pretrain" or not first.err
    single = alone(command("one"))

    def numbers(outcome: Outcome) -> tuple[list[float], list[float]]:
        steps = [line["loss"] for line in outcome.lines if line["event"] == "step"]
        evaluated = [line["metrics"].values() for line in outcome.lines if line["event"] == "evaluated"]
        return steps, [number for metrics in evaluated for number in metrics]

    (losses, metrics), (expected, wanted) = numbers(first), numbers(single)
    assert losses == pytest.approx(expected, rel=1e-4) and len(losses) >= 9
    assert metrics == pytest.approx(wanted, rel=1e-4) and metrics
    steps = [line for line in first.lines if line["event"] == "step"]
    assert not taught or all({*line["terms"]} == {"labels", "teacher"} for line in steps)
    assert first.lines[0]["processes"] == 2
    assert (tmp_path / "log").read_text().splitlines() == first.out.splitlines()
    assert (tmp_path / "two/config.json").exists() and not (tmp_path / "two.partial").exists()
    if task == "classify":
        first, second = both(command("dry", "--dry-run"), tmp_path)
        assert [line["event"] for line in first.lines] == ["started"] and (second.status, second.err) == (0, "")


@pytest.mark.slow
def test_run_returns_the_model_in_every_process(data: Path, tmp_path: Path) -> None:
    given = {"train": str(data / "train.csv"), "model": str(data / "tiny"), "output": str(tmp_path / "two")}
    program = (
        f"import mlxbert, sys\nmodel = mlxbert.finetune('classify', epochs=1, **{given!r}).run()\n"
        "print(mlxbert.classify(model, 'the cat').labels[0].label)\nsys.exit()\n"
    )
    first, second = both([], tmp_path, program)
    assert (first.status, second.status) == (0, 0), second.err
    assert first.out == second.out != ""


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.sampled
def test_a_lost_process_ends_the_other_and_two_resume_to_the_same_bits(data: Path, tmp_path: Path, lost: int) -> None:
    command = finetune(data, tmp_path / "out", "--save-every", "2", epochs=6)
    with started([command, command], tmp_path) as processes:
        until_saved(tmp_path / "out")
        processes[lost].kill()
        start = time.monotonic()
        outcome = ended(processes[1 - lost])
        assert time.monotonic() - start < 20
    outcome.fails(1, "another process of this run was lost", "hint: the same command resumes")
    assert ("process 1" in outcome.err) == (lost == 0)

    alone(command).fails(2, "processes is 1, was 2")
    first, second = both(command, tmp_path)
    assert (first.status, second.status) == (0, 0), first.err
    assert first.lines[0]["first_step"] > 0
    assert both(finetune(data, tmp_path / "whole", epochs=6), tmp_path)[0].status == 0
    one, other = (tmp_path / name / "model.safetensors" for name in ("out", "whole"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_a_process_that_does_not_answer_ends_the_other(data: Path, tmp_path: Path) -> None:
    command = finetune(data, tmp_path / "out", "--save-every", "1", epochs=20)
    short_timeout = "import mlxbert.train.loop.distributed as distributed; distributed._TIMEOUT = 3.0; "
    with started([command, command], tmp_path, short_timeout) as processes:
        until_saved(tmp_path / "out")
        processes[1].send_signal(signal.SIGSTOP)
        ended(processes[0]).fails(1, "has not responded for 3 s")
    assert (tmp_path / "out.partial/runs/000/state.json").exists()


@pytest.mark.parametrize("by", ENDING)
@pytest.mark.slow
def test_a_signal_to_all_saves_once(by: signal.Signals, data: Path, tmp_path: Path) -> None:
    command = finetune(data, tmp_path / "out", "--save-every", "3", epochs=20)
    with started([command, command], tmp_path) as processes:
        until_saved(tmp_path / "out")
        for process in processes:
            process.send_signal(by)
        first, second = map(ended, processes)
    # 1 where the other was the first to hear of it.
    assert first.status in (1, 128 + by) and second.status in (1, 128 + by)
    assert "the same command resumes" in first.err and "Traceback" not in first.err + second.err
    saved = json.loads((tmp_path / "out.partial/runs/000/state.json").read_text())["step"]
    assert saved == [line["step"] for line in first.lines if line["event"] == "step"][-1]


@pytest.mark.slow
def test_what_fails_on_one_machine_ends_all_with_one_message(data: Path, tmp_path: Path) -> None:
    good, missing = (finetune(data, tmp_path / "out", train=name) for name in ("train.csv", "missing.csv"))
    with started([good, missing], tmp_path) as processes:
        first, second = map(ended, processes)
    first.fails(1, "process 1: ", "missing.csv")
    assert second.status != 0
    with started([good, finetune(data, tmp_path / "out", train="test.csv")], tmp_path) as processes:
        first, second = map(ended, processes)
    first.fails(1, "process 1: ", "process 0", "sha256")
    assert not (tmp_path / "out.partial").exists()
    (tmp_path / "out.partial").mkdir()
    with acquire_lock(tmp_path / "out.partial" / LOCK, "run", hint=""), started([good, good], tmp_path) as processes:
        first, second = map(ended, processes)
    first.fails(2, "out.partial")
    second.fails(1, "process 0: ", "another run")


@pytest.mark.slow
def test_the_launcher_of_mlx(data: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()", "-n", "2"]
    launcher += ["--backend", "ring", "--", sys.executable, "-m", "mlxbert"]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [*launcher, *finetune(data, tmp_path / "out")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=environment(**ONE_THREAD),
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        lines = [json.loads(line) for line in process.stdout if line.startswith(b"{")]
    assert [line["event"] for line in (lines[0], lines[-1])] == ["started", "finished"]
    assert lines[0]["processes"] == 2 and (tmp_path / "out/config.json").exists()


def test_a_wrong_group_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lonely = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    monkeypatch.setattr("mlxbert.machine.device.mx.distributed.init", lambda **given: lonely)
    hosts = tmp_path / "hosts"
    ring = {"MLX_RANK": "0", "MLX_HOSTFILE": str(hosts)}
    pair = json.dumps([["127.0.0.1:1"], ["127.0.0.1:2"]])
    for listed, variables, said in (
        (None, ring, "a list of hosts"),
        ("\n", ring, None),  # what mlx.launch writes for a ring of one
        (pair, ring, "2 processes, but only 1 could"),
        (pair, {}, None),
        (pair, {"MLX_RANK": "0", "MLX_WORLD_SIZE": "2"}, "a list of hosts"),  # another backend than the ring
    ):
        if listed is not None:
            hosts.write_text(listed)
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            with pytest.raises(DeviceError, match=said) if said else nullcontext():
                assert join().size == 1


def test_other_processes_tell_only_errors_that_the_first_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.train.processes.time.sleep", lambda seconds: None)
    command = ["finetune", "classify", "--train", "-", "--output", "x"]
    first, second = (call(*command, MLX_RANK=str(rank)) for rank in (0, 1))
    first.fails(2, "stdin")
    second.fails(2, "process 1: ", "stdin")
    quiet: Any = call("--version", MLX_RANK="1")
    assert (quiet.status, quiet.out, quiet.err) == (0, "", "")
    for unshared in ("embed", "evaluate classify", "search", "fill-mask", "distill-static"):  # they share no work
        call(*unshared.split(), "words", MLX_RANK="0").fails(2, "mlx.launch", unshared.split()[0])
