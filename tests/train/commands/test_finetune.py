"""`finetune`, `evaluate` and `mine`: what reaches the library, where events go, how an interruption ends."""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.train import mine
from mlxbert.train.command_options import parse_sweep
from mlxbert.train.loop.events import Event
from tests.cli.test_terminal import CODES, plain
from tests.helpers import events
from tests.helpers.cases import together
from tests.helpers.program import Outcome, call, names, terminal

MODEL = ("--model", "some/model")
BOTH = ("stdout", "stderr")
TYPED = ("finetune", "classify", "--train", "train.csv", "--output", "model", *MODEL)


class Library:
    """Stands for `mlxbert.train`: notes the arguments, and yields events that never happened."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.saved = False
        self.run: Callable[[], Iterator[Event]] = lambda: events.whole_run(30)

    def finetune(self, task: str, **given: Any) -> Iterator[Event]:
        self.given = {"task": task, **given}
        try:
            yield from self.run()
        except (KeyboardInterrupt, GeneratorExit):
            self.saved = True
            raise

    def evaluate(self, task: str, model: object, **given: Any) -> object:
        self.given = {"task": task, "model": model, **given}
        given["on_progress"](250, 500)
        return events.evaluation()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    for name in ("finetune", "evaluate"):
        module = ModuleType(f"mlxbert.train.{name}")
        setattr(module, name, getattr(library, name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("mlxbert.cli.session.load", lambda task, options: f"{task} of {options.model}")
    return library


def as_json(*found: Any) -> Any:
    return json.loads(json.dumps([one.to_dict() for one in found]))


def logged(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_in_a_pipe_every_event_is_one_line_and_with_quiet_the_last(library: Library) -> None:
    outcome = call(*TYPED)
    assert (outcome.status, outcome.err, outcome.lines) == (0, "", as_json(*events.whole_run(30)))
    assert call(*TYPED, "--quiet").lines == as_json(events.finished())
    library.run = lambda: iter([events.started()])
    assert call(*TYPED, "--quiet", "--dry-run").lines == as_json(events.started())
    library.run = lambda: iter([replace(events.step(1), loss=float("nan"), seconds_left=float("inf"))])
    (line,) = call(*TYPED).lines  # numbers that JSON does not have are null
    assert line["loss"] is None and line["seconds_left"] is None and line["step"] == 1


def test_advice_in_json_names_options(library: Library, tmp_path: Path) -> None:
    start, end, log = events.started(), events.finished(), tmp_path / "log.jsonl"
    assert start.report is not None and end.summary is not None
    warned = replace(start.report, warnings=("long texts; a smaller `max_length=` trains faster.",))
    advised = replace(end.summary, advice="train longer (`epochs=`) or with a higher `lr=`")
    opened = replace(end, summary=advised, opens="mlxbert; train with `few_shot=False`")
    library.run = lambda: iter([replace(start, report=warned), opened])
    lines = call(*TYPED, "--log", str(log)).lines
    assert lines == logged(log)
    assert lines[0]["report"]["warnings"] == ["long texts; a smaller --max-length trains faster."]
    assert lines[1]["summary"]["advice"] == "train longer (--epochs) or with a higher --lr"
    assert lines[1]["opens"] == "mlxbert; train with --no-few-shot"


@together("task,more,expected", [
    ("classify", "--train more.csv", {"train": ["train.csv", "more.csv"], "valid": None, "output": Path("model")}),
    ("classify", "--valid v.csv --lr 3e-5", {"valid": ["v.csv"], "lr": 3e-5, "model": "some/model"}),
    ("classify", "--sweep epochs=2,3 --sweep schedule=cosine,constant",
     {"sweep": {"epochs": [2, 3], "schedule": ["cosine", "constant"]}}),
    ("classify", "--class-weights balanced --few-shot --format tsv",
     {"class_weights": "balanced", "few_shot": True, "format": "tsv"}),
    ("classify", "--teacher large --teacher-weight 0.8 --temperature 4",
     {"teacher": "large", "teacher_weight": 0.8, "temperature": 4.0}),
    ("embed", "--teacher large", {"teacher": "large"}),
    ("multilabel", "", {"batch_size": 32, "epochs": None}),
    ("answer", "--stride 7", {"stride": 7}),
    ("tag", "--scheme bioes --crf --label-all-pieces --format conll --label-column 2",
     {"scheme": "bioes", "crf": True, "label_all_pieces": True, "format": "conll", "label_column": "2"}),
    ("rerank", "--query-column q --text-column t --loss mse --max-score 5",
     {"query_column": "q", "text_column": "t", "label_column": None, "loss": "mse", "max_score": 5.0}),
])  # fmt: skip
def test_options_reach_the_library(library: Library, task: str, more: str, expected: dict[str, Any]) -> None:
    assert call("finetune", task, *TYPED[2:], *more.split()).status == 0
    assert library.given["task"] == task and library.given | expected == library.given
    assert ("class_weights" in library.given) == (task == "classify")
    assert ("teacher_weight" in library.given) == (task != "embed" and "teacher" in library.given)


def test_values_to_try_have_the_type_of_their_option() -> None:
    found = parse_sweep(["lr=1e-5,2e-5", "batch-size=8, 16", "checkpointing=true,false", "seed=1"])
    expected = {"lr": [1e-5, 2e-5], "batch_size": [8, 16], "checkpointing": [True, False], "seed": [1]}
    assert repr(found) == repr(expected)


@together("given,told", [
    ("lr", "'lr', expected NAME=A,B"), ("=1", "expected NAME=A,B"), ("lr=1 lr=2", "names 'lr' twice"),
    ("learning=1", "'learning', expected an option"), ("output=a,b", "'output', expected an option"),
    ("lr=1e-5,x", "lr has the value 'x', expected a number"), ("lr=", "lr has the value '', expected a number"),
    ("epochs=1.5", "epochs has the value '1.5', expected a whole number"),
    ("checkpointing=maybe", "expected true or false"), ("schedule=fast", "expected linear or cosine or constant"),
])  # fmt: skip
def test_values_that_cannot_be_tried_are_refused(given: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(told)):
        parse_sweep(given.split())


def test_wrong_usage_is_told_before_anything_else(library: Library, tmp_path: Path) -> None:
    call("finetune", "classify", "--output", "m").fails(2, "--train")
    call("finetune", "classify", "--train", "a.csv").fails(2, "--output")
    call(*TYPED, "--sweep", "lr=a,b").fails(2, "--sweep lr has the value 'a'")
    call(*TYPED, "--valid", "-", "--train", "-").fails(2, "stdin is given twice")
    call(*TYPED, "--log", str(tmp_path / "no" / "log.jsonl")).fails(2, "--log", "No such file")
    call(*TYPED, "--plot", "curves.txt").fails(2, "curves.txt", ".png, .svg or .pdf")
    call(*TYPED, "--plot", str(tmp_path / "no" / "c.png")).fails(2, "folder", "does not exist")
    with mock.patch("importlib.util.find_spec", lambda name: None):
        call(*TYPED, "--plot=c.png").fails(2, "needs the package matplotlib", " install ")
        call(*TYPED, "--tensorboard=t").fails(2, "needs the package tensorboard", " install ")
    assert library.given == {}


def test_the_log_has_every_event_and_goes_on_when_training_does(library: Library, tmp_path: Path) -> None:
    log, lengths = tmp_path / "log.jsonl", list[int]()

    def run() -> Iterator[Event]:
        for event in events.whole_run(30):
            yield event
            lengths.append(len(log.read_bytes().splitlines()))

    library.run = run
    everything = as_json(*events.whole_run(30))
    for number in (1, 2):
        assert call(*TYPED, "--quiet", "--log", str(log)).status == 0
        assert logged(log) == everything * number and lengths == [*range(1, len(everything) * number + 1)]
    torn = '{"event": "started", "run": 0}\n{"event": "st'
    for before in (torn, ""):
        log.write_text(before)
        assert call(*TYPED, "--log", str(log)).status == 0
        lines = log.read_text(encoding="utf-8").removeprefix(before).strip().splitlines()
        assert [json.loads(line) for line in lines] == everything


def test_a_log_is_appended_only_to_a_log_and_to_no_input(library: Library, tmp_path: Path) -> None:
    path, link = tmp_path / "train.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    pretrain = ("pretrain", "x.txt", "--output", str(tmp_path / "out"), "--log")
    for text in (b"text,label\nthe cat,animal\n", b'{"text": "the", "event": "step"}', b"\n", b"\xff"):
        path.write_bytes(text)
        call(*TYPED, "--log", str(path)).fails(2, "--log", "expected events", "hint: ")
        call(*pretrain, str(path)).fails(2, "--log", "hint: ")
        assert path.read_bytes() == text and not library.given
    path.write_bytes(text := b'{"event": "step", "text": "the cat", "label": 1}\n')
    for option in ("--train", "--valid"):
        call(*TYPED, option, str(link), "--log", str(path)).fails(2, "--log", "is also an input", "hint: ")
    call(*pretrain, str(link), "--valid", str(path)).fails(2, "is also an input")
    assert path.read_bytes() == text and not library.given


def interrupted(count: int) -> Iterator[Event]:
    for number, event in enumerate(events.whole_run(30)):
        if number == count:
            raise KeyboardInterrupt
        yield event


def hint_of(outcome: Outcome) -> str:
    (hint,) = [line for line in outcome.err.splitlines() if line.startswith("hint: ")]
    return hint


def test_an_interruption_ends_with_the_command_that_resumes(library: Library, tmp_path: Path) -> None:
    library.run = lambda: interrupted(5)
    typed = [*TYPED, "--text-column", "my text", "--log", str(tmp_path / "log.jsonl")]
    with mock.patch.object(sys, "argv", ["mlxbert", *typed]):
        outcome = call(*typed)
        assert outcome.status == 130 and library.saved
        assert len(outcome.lines) == 5 and outcome.lines == logged(tmp_path / "log.jsonl")
        resumes = f"mlxbert {' '.join(TYPED)} --text-column 'my text' --log {tmp_path}/log.jsonl"
        assert hint_of(outcome).endswith(resumes)
        hint = hint_of(call(*typed, "--train", "-"))
        assert "stdin" in hint and hint.endswith(resumes)
    library.run = lambda: events.whole_run(30)
    library.saved = False
    with mock.patch("mlxbert.cli.views.json_lines.put_line", side_effect=KeyboardInterrupt):
        assert call(*TYPED).status == 130 and library.saved  # of the drawing, too
    said = call(*TYPED, "--train", "-").err  # that it must be piped in again
    assert said.startswith("note: ") and "same data" in said


def test_an_interruption_tells_where_the_state_was_saved(library: Library, tmp_path: Path) -> None:
    library.run = lambda: interrupted(5)
    run = tmp_path / "model.partial" / "run-0"
    run.mkdir(parents=True)
    (run / "state.json").write_text('{"step": 12}', encoding="utf-8")
    typed = ["finetune", "classify", "--train", "train.csv", "--output", str(tmp_path / "model")]
    assert "saved at step 12; the same command resumes: " in call(*typed).err
    (run / "state.json").write_text("damaged", encoding="utf-8")
    assert "hint: the same command resumes: " in call(*typed).err


def test_a_forgotten_task_or_model_is_asked_for(tmp_path: Path) -> None:
    call("finetune", "--train", "x.csv").fails(2, "before its options", "classify, multilabel, regress")
    call("evaluate", "--data", "x.csv").fails(2, "before its options", "classify, ")
    call("train", "--train", "x.csv").fails(2, "has no command 'train'", "did you mean mlxbert finetune")
    assert call("finetune", "--help").status == 0
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    call("evaluate", "classify", "--data", str(tmp_path / "a.csv")).fails(2, "--model")


def test_an_error_of_training_is_told_after_what_went_well(library: Library) -> None:
    def run() -> Iterator[Event]:
        yield events.started()
        raise InputError("train.csv, line 7: the label is empty", hint="give `label_column=`")

    library.run = run
    outcome = call(*TYPED)
    outcome.fails(1, "line 7", "hint: give --label-column")
    assert len(outcome.lines) == 1


def test_at_a_terminal_the_report_the_live_view_and_the_summary_are_drawn(library: Library) -> None:
    outcome, shown = terminal(*TYPED, on=BOTH)
    assert outcome.status == 0
    text = "\n".join(plain(shown))
    order = ["4,911", "fits: 3.1 of 16.0 GB", "fine-tuning classify", "step 30 of 30", "worst mistakes", "this model"]
    places = [text.rindex(piece) for piece in order]
    assert places == sorted(places)
    assert text.rstrip().endswith(events.COMMAND)
    assert "[bold]What[/bold]" in text and "\x9b" not in shown and "\x1b[5A" not in shown
    text = "\n".join(plain(terminal(*TYPED, "--quiet", on=BOTH)[1]))
    assert "this model" in text and not any(piece in text for piece in ("4,911", "fine-tuning", "worst"))


def test_a_note_during_training_stands_above_the_live_view(library: Library) -> None:
    def run() -> Iterator[Event]:
        for event in events.whole_run(30):
            if event.event == "evaluated":
                logging.getLogger("mlxbert").warning("the gradient vanished")
            yield event

    library.run = run
    for variables in ({}, {"NO_COLOR": "1"}):
        _, shown = terminal(*TYPED, on=BOTH, **variables)
        before = CODES.sub("", shown).split("hint: the gradient vanished")[:-1]
        assert len(before) == 3
        for part in before:  # the picture was erased before: the cursor is where its first line was
            assert re.search(r"(\x1b\[1A\x1b\[2K)+$", part)


def test_a_dry_run_at_a_terminal_is_the_report(library: Library) -> None:
    def run() -> Iterator[Event]:
        library.given["on_phase"]("estimating the time")
        yield events.started()

    library.run = run
    for quiet in ([], ["--quiet"]):
        _, shown = terminal(*TYPED, "--dry-run", *quiet, on=BOTH)
        assert "4,911" in shown and "fine-tuning" not in shown and shown.rfind("\x1b[?25") < shown.index("4,911")
        assert ("estimating the time" in shown) == (not quiet)


def test_where_only_stderr_is_a_terminal_a_few_lines_are_written_there(library: Library) -> None:
    library.run = lambda: iter([events.started(first_step=120), *list(events.whole_run(30))[1:]])
    outcome, shown = terminal(*TYPED, on=["stderr"])
    assert len(outcome.lines) == 38
    before, *said = " ".join(plain(shown)).split("note: ")
    assert not before.strip() and len(said) == 5
    assert "resumed after step 120 of 462 steps" in said[0] and "accuracy 0.964, the best so far" in said[2]
    library.run = lambda: iter([replace(events.started(), steps=1), *list(events.whole_run(30))[1:]])
    assert "begins: 1 step," in " ".join(plain(terminal(*TYPED, on=["stderr"])[1]))
    assert terminal(*TYPED, "--quiet", on=["stderr"])[1] == ""
    assert "note" not in terminal(*TYPED, "--json", on=BOTH)[1]


def test_scalars_for_tensorboard(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    summary = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "tensorboard.summary", summary)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert call(*TYPED, "--tensorboard", str(tmp_path / "t")).status == 0
    scalars = [given.args for given in summary.Writer.return_value.add_scalar.mock_calls]
    losses = [("train/loss", events.step(number, of=30).loss, number) for number in range(1, 31)]
    assert [scalar for scalar in scalars if scalar[0] == "train/loss"] == losses
    found = [scalar[1:] for scalar in scalars if scalar[0] == "valid/accuracy"]
    assert found == [(0.921, 10), (0.964, 20), (0.958, 30)] and summary.Writer.return_value.close.called
    library.run = lambda: iter([events.started(runs=2), events.started(runs=2, run=1)])
    call(*TYPED, "--tensorboard", str(tmp_path / "two"))
    assert [given.args[0] for given in summary.Writer.call_args_list[1:]] == [
        str(tmp_path / "two" / f"run-{number}") for number in (1, 2)
    ]


@pytest.mark.slow
def test_the_curves_as_a_picture(library: Library, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    library.run = lambda: interrupted(25)
    assert call(*TYPED, "--plot", str(tmp_path / "curves.png")).status == 130
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


@together("arguments", [
    "evaluate classify --data none.csv", "evaluate tag --data a.csv --encoding none", "evaluate mlm --data none.txt",
    "evaluate rerank --data none.csv --embedder org/other", "mine none.csv --output hard.jsonl",
])  # fmt: skip
def test_missing_data_are_refused_before_a_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlxbert.cli.session.load", None)
    (tmp_path / "a.csv").touch()
    outcome = call(*arguments.split(), "--model", "org/none")
    assert outcome.status in (1, 2) and "none" in outcome.err.replace("org/none", "")
    assert [*tmp_path.iterdir()] == [tmp_path / "a.csv"]


def test_an_evaluation_is_one_object(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "x.txt"):
        (tmp_path / name).touch()
    given: dict[str, Any]
    for task, typed, given in (
        ("classify", "--data a.csv --data b.csv --metric macro_f1", {"data": ["a.csv", "b.csv"], "metric": "macro_f1"}),
        ("tag", "--data x.txt --format conll", {"format": "conll", "model": "tag of m"}),
        ("rerank", "--data a.csv --max-score 5", {"model": "classify of m", "max_score": 5.0}),
    ):
        outcome = call("evaluate", task, "--model", "m", *typed.split())
        assert (outcome.status, outcome.err, outcome.lines) == (0, "", as_json(events.evaluation()))
        assert library.given | given | {"task": task} == library.given and "top_k" not in library.given
    call("evaluate", "regress", "--model", "m").fails(2, "--data")
    call("evaluate", "rerank", "--model", "m", "--data", str(tmp_path)).fails(2, "--embedder")


def test_an_evaluation_at_a_terminal_is_drawn(library: Library, tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    arguments = ("evaluate", "multilabel", "--data", str(tmp_path / "a.csv"), "--model", "m")
    outcome, shown = terminal(*arguments, on=BOTH)
    text = "\n".join(plain(shown))
    assert outcome.status == 0 and "250/500" in text
    places = [text.index(piece) for piece in ("worst mistakes", "confusion", "labels\n", "accuracy 0.964")]
    assert places == sorted(places)


def test_an_embedder_makes_it_retrieval(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evaluate_reranking = mock.Mock(return_value=events.evaluation())
    module = SimpleNamespace(evaluate_reranking=evaluate_reranking)
    monkeypatch.setitem(sys.modules, "mlxbert.train.scores.search_evaluation", module)
    typed = ("evaluate", "rerank", "--data", str(tmp_path), *MODEL, "--embedder", "builtin", "--top-k", "7")
    assert call(*typed, "--split", "dev", "--metric", "map").status == 0
    (call_,) = evaluate_reranking.mock_calls
    assert call_.args == ("classify of some/model", "embed of builtin")
    expected = {"data": str(tmp_path), "top_k": 7, "split": "dev", "metric": "map"}
    assert {**call_.kwargs, **expected} == call_.kwargs
    for option in (("--max-score", "5"), ("--query-column", "q"), ("--max-length", "9"), ("--data", "other")):
        call(*typed, *option).fails(2, option[0])
    call("evaluate", "rerank", "--data", "pairs.csv", *MODEL, "--top-k", "0").fails(2)


def test_a_file_of_mined_negatives_that_appears_meanwhile_is_kept(tmp_path: Path, unit_folder: Path) -> None:
    pairs, target, real = tmp_path / "pairs.jsonl", tmp_path / "hard.jsonl", mine.mine
    related = [("the cat", "a cat"), ("the dog", "a dog"), ("it rains", "rain falls"), ("she runs", "a run")]
    pairs.write_text("".join(json.dumps({"anchor": a, "positive": b}) + "\n" for a, b in related))
    typed = ["mine", str(pairs), "--model", str(unit_folder), "--output", str(target), "--margin=-1", "--negatives=1"]

    def slow(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        target.write_text("of another program")
        return found

    with mock.patch.object(mine, "mine", slow):
        call(*typed).fails(2, "exists")
        assert target.read_text() == "of another program" and names(tmp_path) == ["hard.jsonl", "pairs.jsonl"]
        assert call(*typed, "--overwrite").status == 0
    assert len(logged(target)) == 4
    target.rename(link_target := tmp_path / "real.jsonl")
    target.symlink_to(link_target)
    link_target.write_text("old")
    assert call(*typed, "--overwrite").status == 0
    assert target.is_symlink() and len(logged(link_target)) == 4
