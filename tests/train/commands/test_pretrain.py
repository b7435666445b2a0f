"""`pretrain`, `distill` and `evaluate mlm` as they are typed."""

import json
from pathlib import Path

import pytest

from tests.helpers.program import call
from tests.train.pretraining.files import model_folder, text_file

SHORT = ("--length", "24", "--steps", "2", "--batch-size", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    text_file(folder / "text.txt")
    model_folder(folder / "tiny")
    return folder


def test_a_model_is_continued_and_evaluated(folder: Path, tmp_path: Path) -> None:
    text, model, output = (str(path) for path in (folder / "text.txt", folder / "tiny", tmp_path / "out"))
    outcome = call("pretrain", text, "--model", model, "--output", output, "--objective", "mlm,nsp", *SHORT)
    assert outcome.status == 0
    events = [line["event"] for line in outcome.lines]
    assert events[0] == "started" and events[-1] == "finished" and events.count("step") == 2
    outcome = call("evaluate", "mlm", "--data", text, "--model", output, "--length", "24", "--batch-tokens", "100")
    assert outcome.status == 0
    assert {"accuracy", "loss", "pseudo_perplexity"} == {*json.loads(outcome.out)["metrics"]}


def test_a_student_learns_the_losses_of_distillation(folder: Path, tmp_path: Path) -> None:
    text, teacher = str(folder / "text.txt"), str(folder / "tiny")
    outcome = call("distill", text, "--teacher", teacher, "--layers", "0", "--output", str(tmp_path / "out"), *SHORT)
    assert outcome.status == 0
    step = next(line for line in outcome.lines if line["event"] == "step")
    assert {*step["terms"]} == {"mlm", "soft", "hidden"}


def test_a_new_model_continues_none(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, model = str(folder / "text.txt"), str(folder / "tiny")
    new = ("pretrain", text, "--config", "tiny", "--vocabulary", model, "--output", str(tmp_path / "out"), *SHORT)
    for name in (model, "builtin"):
        outcome = call(*new, "--model", name)
        assert outcome.status == 2 and "model and --config cannot be combined" in outcome.err
    monkeypatch.setenv("MLXBERT_MODEL", model)  # the usual model, which nobody asked for here
    assert call(*new).status == 0


@pytest.mark.parametrize(
    "more", [("--objective", "mlm,x"), ("--length", "x"), ("--config", "tiny"), ("--generator", "0.5")], ids=str
)
def test_what_is_refused(folder: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    text, model = str(folder / "text.txt"), str(folder / "tiny")
    outcome = call("pretrain", text, "--model", model, "--output", str(tmp_path / "out"), *more)
    assert outcome.status == 2 and outcome.err.count("error:") == 1 and "Traceback" not in outcome.err
