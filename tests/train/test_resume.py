"""A run that was interrupted, killed or damaged ends in the bits of one that was not, or in an error that says so.

Which command may continue a run; what is left of a run that was killed at its end is removed.
"""

import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.durable_files import acquire_lock
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.train.loop.events import Event, Saved, Started
from mlxbert.train.training_folders import Workspace, clean_up
from tests.helpers import written
from tests.helpers.cases import fast
from tests.helpers.damage import DAMAGES, damage
from tests.helpers.program import ENDING
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.written import Write
from tests.train import test_answer_objective, test_embed_objective, test_few_shot, test_finetune, test_rerank
from tests.train.files import TASKS, data_file
from tests.train.pretraining import electras, test_pretrain
from tests.train.pretraining.files import model_folder, text_file

TEXTS = [{"text": text, "label": label} for text, label in test_finetune.rows(40)]
LORA = {"lora": 4, "lr": 2e-2}
# By name: the task, its data, options, and an option whose change makes another run.
CASES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "answer": ("answer", test_answer_objective.records(40), {}, {"stride": 3}),
    "vectors in chunks": ("embed", test_embed_objective.pairs(40), {"chunk": 3}, {"temperature": 0.3}),
    "few shot": ("classify", test_few_shot.records(4, 8), {"few_shot": True, "lr": 1e-3}, {"few_shot": False}),
    "rerank": ("rerank", test_rerank.groups(30), {}, {"loss": "mse"}),
    "teacher": ("classify", TEXTS, {"teacher": "", "gradient_accumulation": 2}, {"teacher": None}),
    "teacher, weighted": ("classify", TEXTS, {"teacher": "", "class_weights": "balanced"}, {"temperature": 3.0}),
    "dora": ("classify", TEXTS, {**LORA, "lora_dropout": 0.2, "dora": True}, {"lora": 5}),
    "rslora": ("classify", TEXTS, {**LORA, "rslora": True, "lora_layers": "all-linear"}, {"lora_alpha": 5}),
    "words": ("pretrain", None, {"objective": "mlm,nsp", "whole_words": True}, {"whole_words": False}),
    "words, adapters": ("pretrain", None, {"lora": 4, "lora_dropout": 0.2, "dropout": 0.1}, {"lora": 5}),
    "student": ("distill", None, {"layers": "0"}, {"layers": "1"}),
    "ELECTRA": ("pretrain", None, {"objective": "electra"}, {"generator": 0.5}),
}


@pytest.mark.parametrize("case", fast(CASES, "dora", "words"))
def test_an_interrupted_run_ends_in_the_same_bits(case: str, base: Path, tmp_path: Path) -> None:
    task, data, changes, other = CASES[case]
    options: dict[str, Any] = {"lr": 1e-2, "batch_size": 8, "device": "cpu", "save_every": 2}
    if data is None:
        folder, model = electras.Folder(tmp_path), model_folder(tmp_path / "tiny")
        starts = {"distill": {"teacher": model}, "electra": {"config": folder.config, "vocabulary": folder.vocabulary}}
        options |= starts.get(changes.get("objective", task), {"model": model}) | {"length": "24", "steps": 4}
    else:
        options |= {"model": base, "epochs": 2}
    if task == "embed" or "few_shot" in changes:
        options["model"] = save_st(tmp_path / "start", pooling("mean", old=True), NORMALIZE)
    if "teacher" in changes:
        [*mlxbert.finetune("classify", train=TEXTS, model=base, output=tmp_path / "teacher", epochs=1)]
        changes = changes | {"teacher": tmp_path / "teacher"}

    def start(name: str, **more: Any) -> Any:
        given = options | changes | more | {"output": tmp_path / name}
        if data is None:
            return getattr(mlxbert, task)(folder.corpus, **given)
        return mlxbert.finetune(task, train=data, **given)

    [*start("whole")]
    stream = start("parts")
    next(event for event in stream if isinstance(event, Saved))
    stream.close()
    if "lora" in changes:  # the base is not written
        stored = [mx.load(str(path)) for path in (tmp_path / "parts.partial").rglob("*.safetensors")]
        assert stored and all("word" not in name for arrays in stored for name in arrays)
    with pytest.raises(ArgumentError, match="unfinished"):
        [*start("parts", **other)]
    [started, *_] = start("parts")
    assert isinstance(started, Started) and started.first_step > 0
    files = [*(tmp_path / "whole").rglob("*.safetensors")]
    assert files
    for path in files:
        assert (tmp_path / "parts" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


MANIFEST: dict[str, Any] = {"task": "classify", "variants": [{"seed": 0}], "sha256": {"a.csv": "1", "b.csv": "2"}}


def begun(target: Path, manifest: dict[str, Any] = MANIFEST) -> Path:
    """Work that was interrupted; the file that holds its state."""
    workspace = Workspace(target, manifest)
    with workspace.locked(overwrite=False):
        state = workspace.folder / "runs/000/state.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text("{}")
    return state


def test_the_same_content_is_the_same_data_whatever_its_path(tmp_path: Path) -> None:
    state = begun(tmp_path / "out")
    moved = {**MANIFEST, "sha256": {"./a.csv": "1", "/data/b.csv": "2"}}
    with Workspace(tmp_path / "out", moved).locked(overwrite=False):
        assert state.is_file()
    for hashes, told in (
        ({"b.csv": "2", "a.csv": "1"}, r"order\)"),
        ({"a.csv": "1", "b.csv": "3"}, r"b.csv has changed\)"),
        ({"./a.csv": "1", "b.csv": "3"}, r"b.csv has changed\)"),
        ({"a.csv": "1"}, r"b.csv is no longer there\)"),
    ):
        with (
            pytest.raises(ArgumentError, match=f"the training data differ, because .*{told}"),
            Workspace(tmp_path / "out", {**MANIFEST, "sha256": hashes}).locked(overwrite=False),
        ):
            pass
    assert state.is_file()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A folder that is complete, next to the work that made it, as if its process was killed in between."""
    state = begun(tmp_path / "out")
    state.with_name("result.json").write_text("{}")
    (tmp_path / "out").mkdir()
    moved = {**MANIFEST, "sha256": {"./a.csv": "1", "./b.csv": "2"}}
    (tmp_path / "out/training.json").write_text(json.dumps({"command": "…", **moved, "metrics": {}}))
    return tmp_path / "out"


def test_work_whose_result_is_there_is_removed_and_said(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mlxbert"):
        clean_up(killed)
    assert [path.name for path in killed.parent.iterdir()] == ["out"] and [*killed.iterdir()] != []
    assert "out is complete" in caplog.text
    clean_up(killed)  # nothing is left
    assert len(caplog.records) == 1


def test_other_work_is_kept(killed: Path) -> None:
    folder, of_another = killed.with_name("out.partial"), json.dumps({**MANIFEST, "task": "regress"})
    changes: dict[str, Callable[[], Any]] = {
        "unfinished": (folder / "runs/000/result.json").unlink,
        "writing": (folder / "model").mkdir,
        "another": lambda: (killed / "training.json").write_text(of_another),
        "none": (killed / "training.json").unlink,
        "damaged": lambda: (folder / "manifest.json").write_text("["),
    }
    usual = shutil.copytree(killed.parent, killed.parents[1] / f"{killed.parent.name} usual")
    for name, change in changes.items():
        change()
        clean_up(killed)
        assert folder.is_dir(), name
        shutil.rmtree(killed.parent)
        shutil.copytree(usual, killed.parent)
    with acquire_lock(folder / "lock", "run"):
        clean_up(killed)
        assert folder.is_dir()


PLACES = int(os.environ.get("MLXBERT_TEST_DAMAGES", "3"))  # of each file and kind of damage
STATE = "state.json", "state-*.safetensors", "best-*.safetensors"
DONE = "manifest.json", "runs/000/result.json", "runs/000/weights.safetensors"
FILES = *DONE, *(f"runs/001/{name}" for name in STATE)
CORPUS = ("corpus/ids.bin", "corpus/sentences.bin", "corpus/documents.bin", "corpus/corpus.json")
OF_PRETRAINING = *CORPUS, "manifest.json", *(f"runs/000/{name}" for name in STATE)


class Stopped:
    """A call that takes the folder to write, and was interrupted once it had saved a state."""

    def __init__(self, run: int, step: int, folder: Path, call: Callable[[Path], Iterator[Event]]) -> None:
        stream = call(folder / "out")
        assert any(isinstance(event, Saved) and (event.run, event.step) == (run, step) for event in stream)
        stream.close()  # type: ignore[attr-defined]
        self.call, self.partial = call, folder / "out.partial"
        shutil.copytree(self.partial, folder / "whole.partial")
        self.expected = self.resumed(folder / "whole")

    def resumed(self, target: Path) -> tuple[bytes, Any]:
        """The weights of the same call with `target.partial`, and what it says of the runs, but how long they took."""
        list(self.call(target))
        record = json.loads((target / "training.json").read_text())
        runs = [{name: value for name, value in run.items() if name != "seconds"} for run in record.get("runs", [])]
        return (target / "model.safetensors").read_bytes(), (runs, record.get("metrics"))


@pytest.fixture(scope="module")
def options(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    train = data_file(tmp_path_factory.mktemp("data"), "classify", 48)
    return {"train": train, "model": base, "seeds": 2, "epochs": 2, "lr": 1e-2, "batch_size": 16, "save_every": 1}


@pytest.fixture(scope="module")
def stopped(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Interrupted in the second of two runs, a step after its first evaluation."""
    return Stopped(
        1, 4, tmp_path_factory.mktemp("stopped"), lambda out: mlxbert.finetune("classify", output=out, **options)
    )


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("pretraining")
    text, model, options = text_file(folder / "text.txt"), model_folder(folder / "tiny"), test_pretrain.OPTIONS

    def call(output: Path) -> Iterator[Event]:
        return mlxbert.pretrain(text, model=model, output=output, save_every=1, **options)

    return Stopped(0, 4, folder, call)


def check(stopped: Stopped, file: str, kind: str, folder: Path, places: int) -> tuple[int, int]:
    """Damages a file at some places, one at a time; how many calls were refused, and how many gave the result."""
    refused = whole = 0
    for place in range(places):
        target = folder / f"out-{place}"
        partial = shutil.copytree(stopped.partial, f"{target}.partial")
        (path,) = Path(partial).glob(file)
        damage(path, kind, random.Random(f"{file} {kind} {place}"))
        try:
            assert stopped.resumed(target) == stopped.expected
            whole += 1
        except MlxbertError as problem:
            assert problem.hint and target.name in problem.message
            refused += 1
            assert not target.exists()
        for left in (target, Path(partial)):
            shutil.rmtree(left, ignore_errors=True)
    return refused, whole


@pytest.mark.sampled
@pytest.mark.parametrize("file", OF_PRETRAINING)
def test_damage_of_pre_training_never_gives_another_result(pretraining: Stopped, file: str, tmp_path: Path) -> None:
    assert check(pretraining, file, "block", tmp_path, 1)[0] == (file not in CORPUS)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_damage_never_gives_another_result(stopped: Stopped, file: str, kind: str, tmp_path: Path) -> None:
    check(stopped, file, kind, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize(
    ("call", "file"), [*(("stopped", file) for file in FILES), *(("pretraining", file) for file in OF_PRETRAINING)]
)
def test_damage_at_many_places_never_gives_another_result(
    call: str, file: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    refused, whole = check(request.getfixturevalue(call), file, kind, tmp_path, PLACES)
    assert refused + whole == PLACES
    assert not (refused if file in CORPUS else whole and not file.endswith(".json"))  # of JSON, a space may be changed


@pytest.mark.parametrize(("one", "other"), [("runs/000", "runs/001"), ("runs/001", "runs/000")])
def test_a_run_is_not_taken_for_another(stopped: Stopped, one: str, other: str, tmp_path: Path) -> None:
    partial = Path(shutil.copytree(stopped.partial, tmp_path / "out.partial"))
    shutil.rmtree(partial / other)
    shutil.copytree(partial / one, partial / other)
    with pytest.raises(CheckpointError, match=f"out.partial/{other}") as caught:
        stopped.resumed(tmp_path / "out")
    assert caught.value.hint and other in caught.value.hint
    shutil.rmtree(partial / other)  # as the hint says
    assert stopped.resumed(tmp_path / "out") == stopped.expected


def test_the_work_of_other_options_is_not_taken_although_its_manifest_was_exchanged(
    stopped: Stopped, options: dict[str, Any], tmp_path: Path
) -> None:
    stream = mlxbert.finetune("classify", output=tmp_path / "out", **options | {"lr": 2e-3})
    assert any(isinstance(event, Saved) for event in itertools.islice(stream, 5))
    stream.close()
    shutil.copyfile(stopped.partial / "manifest.json", tmp_path / "out.partial/manifest.json")
    with pytest.raises(CheckpointError, match="another run"):
        stopped.resumed(tmp_path / "out")


KILLS = int(os.environ.get("MLXBERT_TEST_KILLS", "4"))


def command_of(task: str, base: Path, folder: Path) -> list[str]:
    common = sys.executable, "-m", "mlxbert"
    options = "--quiet", "--batch-size", "8", "--save-every", "5", "--model"
    if task == "pretrain":
        text, model = text_file(folder / "text.txt", 400), model_folder(folder / "tiny")
        words = "--objective", "mlm,nsp", "--whole-words", "--length", "24", "--steps", "100", "--eval-every", "25"
        return [*common, "pretrain", str(text), *options, str(model), *words]
    return [
        *(*common, "finetune", task, "--train", str(data_file(folder, task, 120)), *options, str(base)),
        *("--epochs", "6", "--seeds", "2", *(["--crf"] if task == "tag" else [])),
    ]


def finished(command: list[str], output: Path) -> bytes:
    subprocess.run([*command, "--output", str(output)], check=True, capture_output=True)
    return (output / "model.safetensors").read_bytes()


def stop(command: list[str], output: Path, seconds: float, how: signal.Signals) -> int | None:
    """Starts a process, and sends it a signal once it has trained for so long; its exit status if it ended before."""
    with subprocess.Popen(
        [*command, "--output", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        partial = output.with_name(output.name + ".partial")
        before = _saved(partial)
        while _saved(partial) == before and process.poll() is None:
            time.sleep(0.01)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
            status = process.wait()
            assert status in (0, -how if how == signal.SIGKILL else 128 + how)
            return None


def _saved(partial: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in partial.glob("runs/*/state.json")}


@pytest.mark.slow
@pytest.mark.parametrize("task", [*TASKS, "pretrain"])
@pytest.mark.sampled
def test_killed_at_random_moments(task: str, base: Path, tmp_path: Path) -> None:
    command, start = command_of(task, base, tmp_path), time.monotonic()
    expected = finished(command, tmp_path / "whole")
    seconds = time.monotonic() - start
    rng = random.Random(5)
    kills = 0
    while kills < KILLS and not (tmp_path / "parts").exists():
        how = rng.choice([signal.SIGKILL, *ENDING])
        status = stop(command, tmp_path / "parts", rng.uniform(0, seconds / (2 * KILLS)), how)
        assert not status
        kills += status is None
    assert kills > 2
    found = (tmp_path / "parts/model.safetensors").read_bytes() if (tmp_path / "parts").exists() else None
    assert (found or finished(command, tmp_path / "parts")) == expected
    assert not (tmp_path / "parts.partial").exists()


@pytest.mark.slow
@pytest.mark.parametrize("by", ENDING)
def test_a_signal_saves_and_says_how_to_go_on(by: signal.Signals, base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    talking = [word for word in command_of("classify", base, tmp_path) if word != "--quiet"]
    talking[talking.index("--save-every") + 1] = "1000000"
    talking[talking.index("--epochs") + 1] = "100"
    with subprocess.Popen(
        [*talking, "--output", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not (tmp_path / "out.partial").exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(1.5)
        process.send_signal(by)
        process.send_signal(signal.SIGHUP)  # as systemd does after SIGTERM; the state is saved all the same
        events, errors = process.communicate()
    assert process.returncode in (128 + by, 128 + signal.SIGHUP) and b"Traceback" not in errors
    steps = [event["step"] for event in map(json.loads, events.splitlines()) if event["event"] == "step"]
    saved = json.loads((tmp_path / "out.partial/runs/000/state.json").read_bytes())["step"]
    assert saved in (len(steps), len(steps) + 1)  # one that was not told any more
    assert f"saved at step {saved}; the same command resumes: mlxbert finetune" in errors.decode()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/shm").is_dir() or os.geteuid() != 0, reason="mounts a small disk, which takes root")
@pytest.mark.parametrize(("task", "size", "left"), [
    ("classify", 2**21, [200_000]),
    pytest.param("pretrain", 2**22, [20_000, 300_000], marks=pytest.mark.weekly),  # no room for the corpus, or a state
])  # fmt: skip
def test_a_full_disk(task: str, size: int, left: list[int], base: Path, tmp_path: Path) -> None:
    command, disk = command_of(task, base, tmp_path), tmp_path / "disk"
    expected = finished(command, tmp_path / "whole")
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    for free in left:
        if subprocess.run(["mount", *options, str(disk)], capture_output=True).returncode:
            pytest.skip("a small disk cannot be mounted here")
        try:
            filler = disk / "filler"
            filler.write_bytes(bytes(size - free))
            failed = subprocess.run([*command, "--output", str(disk / "out")], capture_output=True)
            assert failed.returncode == 1 and b"error:" in failed.stderr and b"Traceback" not in failed.stderr
            assert not (disk / "out").exists()
            filler.unlink()
            assert finished(command, disk / "out") == expected
        finally:
            subprocess.run(["umount", str(disk)], check=True)


WRITTEN: dict[str, Write] = {
    **written.SAVED,
    **written.TRAINED,
    **written.ADAPTERS,
    "embed (tokens)": written.trained("embed", "embedder", vectors="tokens"),
    "embed (sparse)": written.trained("embed", "pretrained", vectors="sparse"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written.start(tmp_path_factory.mktemp("sources"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITTEN)
def test_weights_do_not_depend_on_the_global_random_state(kind: str, sources: Path, tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        mx.random.seed(seed)
        WRITTEN[kind](sources, tmp_path / str(seed))
        files.append([file.read_bytes() for file in sorted((tmp_path / str(seed)).rglob("*.safetensors"))])
    assert files[0] and files[0] == files[1]
