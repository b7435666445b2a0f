"""A device that fails ends training with an error; the state is saved, and the run resumes to the same bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import DeviceError, MlxbertError, OutOfMemoryError
from mlxbert.machine.device import mx
from mlxbert.training.events import Evaluated, Started
from tests.helpers.faults import MEMORY, NO_FAULTS, OTHER, failing_eval, small_memory
from tests.pretraining.files import model_folder, text_file
from tests.training import test_finetune
from tests.training.runs import digest, make_run


def calls_of(monkeypatch: pytest.MonkeyPatch, work: Any) -> int:
    """How often a run calls `mx.eval`."""
    with monkeypatch.context() as patched:
        calls = failing_eval(patched, None)
        [*work()]
        return next(calls)


@pytest.mark.parametrize("sentence", [MEMORY[0], OTHER[0]])
def test_wherever_an_update_fails_the_run_resumes_to_the_same_bits(
    sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run(epochs=1, data=32)
    count = calls_of(monkeypatch, whole.events)
    steps = set()
    for number in range(count // 2, count // 2 + count // whole.steps + 1):  # every call of an update, and one more
        folder = tmp_path / str(number)
        failed = make_run(folder, epochs=1, data=32)
        with monkeypatch.context() as patched:
            failing_eval(patched, number, sentence)
            with pytest.raises(DeviceError, match="is saved") as problem:
                [*failed.events()]
        assert isinstance(problem.value, OutOfMemoryError) == (sentence in MEMORY)
        assert problem.value.hint and ("checkpointing=True" in problem.value.hint) == (sentence in MEMORY)
        resumed = make_run(folder, epochs=1, data=32)
        assert 0 < resumed.state.progress.step == failed.state.progress.step < whole.steps
        steps.add(resumed.state.progress.step)
        [*resumed.events()]
        assert digest(resumed) == digest(whole)
    assert len(steps) == 2


def test_a_first_update_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    failing_eval(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError) as problem:
        [*run.events()]
    assert "is saved" not in problem.value.message and not (tmp_path / "run").exists()


def test_another_error_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    failing_eval(monkeypatch, 40, NO_FAULTS[0])
    with pytest.raises(RuntimeError, match="no Stream"):
        [*run.events()]


def test_a_device_that_fails_while_the_state_is_saved_keeps_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, save_every=3, epochs=1)
    stream, usual = run.events(), mx.save_safetensors

    def failing(file: Any, arrays: Any) -> None:
        if run.state.progress.step > 3:
            raise RuntimeError(MEMORY[3])
        usual(file, arrays)

    monkeypatch.setattr(mx, "save_safetensors", failing)
    with pytest.raises(OutOfMemoryError):
        list(stream)
    assert make_run(tmp_path, save_every=3, epochs=1).state.progress.step == 3
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "state-00000003.safetensors"}


def test_an_evaluation_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics() -> list[Any]:
        return [event.metrics for event in make_run(epochs=1).events() if isinstance(event, Evaluated)]

    expected = metrics()
    tried = small_memory(monkeypatch, 8)  # the examples of a batch of training
    assert metrics() == expected and max(tried) > 8


def test_words_are_evaluated_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlxbert.load(model_folder(tmp_path / "tiny"))

    def found() -> mlxbert.WordEvaluation:
        return mlxbert.evaluate_words(model, text_file(tmp_path / "text.txt"), objective="mlm,nsp", length=24)

    expected = found()
    tried = small_memory(monkeypatch, 5)
    assert found().metrics == pytest.approx(expected.metrics, rel=1e-5) and max(tried) > 5


KINDS = ("finetune", "pretrain", "distill")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_call_resumes(kind: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_file(tmp_path / "text.txt")
    corpus: dict[str, Any] = {"length": "24", "batch_size": 8, "steps": 6, "eval_every": 3}
    data = [{"text": text, "label": label} for text, label in test_finetune.rows(40)]

    def start(name: str) -> Iterator[mlxbert.Event]:
        output = tmp_path / name
        if kind == "finetune":
            return mlxbert.finetune("classify", train=data, model=base, output=output, epochs=2, lr=1e-2, batch_size=8)
        if kind == "pretrain":
            return mlxbert.pretrain(tmp_path / "text.txt", model=tmp_path / "tiny", output=output, **corpus)
        return mlxbert.distill(tmp_path / "text.txt", teacher=tmp_path / "tiny", output=output, **corpus)

    if kind != "finetune":
        model_folder(tmp_path / "tiny")
    count = calls_of(monkeypatch, lambda: start("whole"))
    with monkeypatch.context() as patched:
        failing_eval(patched, count // 2)
        with pytest.raises(OutOfMemoryError, match="is saved"):
            [*start("parts")]
    assert not (tmp_path / "parts").exists()
    [started, *_] = start("parts")
    assert isinstance(started, Started) and started.first_step > 0
    assert [step for step, _ in started.losses] == [*range(1, started.first_step + 1)]
    assert all(one.step <= started.first_step for one in started.evaluations)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts and not (tmp_path / "parts.partial").exists()


def test_a_model_that_cannot_be_loaded_or_kept_for_want_of_memory(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arrays: Any) -> None:
        raise RuntimeError(MEMORY[3])

    model = mlxbert.load(base)
    with monkeypatch.context() as patched:
        patched.setattr(mx, "eval", full)
        for call in (lambda: mlxbert.load(base), model.adopt):
            with pytest.raises(OutOfMemoryError):
                call()
    monkeypatch.setattr(mx, "save_safetensors", lambda *arguments: full())
    with pytest.raises(MlxbertError) as problem:
        mlxbert.save(model, tmp_path / "saved")
    assert isinstance(problem.value, OutOfMemoryError) and not [*tmp_path.iterdir()]
