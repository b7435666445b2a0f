"""`mlxbert finetune` and `mlxbert evaluate`: what reaches the library, where events go, how an interruption ends."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.train.command_options import parse_sweep
from mlxbert.train.loop.events import Event
from tests.cli.test_terminal import CODES, plain
from tests.helpers import events
from tests.helpers.program import call, terminal

MODEL = ("--model", "some/model")
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


def test_in_a_pipe_every_event_is_one_line(library: Library) -> None:
    outcome = call(*TYPED)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.lines == json.loads(json.dumps([event.to_dict() for event in events.whole_run(30)]))
    kinds = [line["event"] for line in outcome.lines]
    assert kinds[0] == "started" and kinds.count("step") == 30 and kinds.count("evaluated") == 3
    assert kinds[-1] == "finished"


def test_quiet_leaves_the_last_event(library: Library) -> None:
    (line,) = call(*TYPED, "--quiet").lines
    assert line["event"] == "finished" and line["score"] == 0.964
    library.run = lambda: iter([events.started()])
    (line,) = call(*TYPED, "--quiet", "--dry-run").lines
    assert line["event"] == "started" and line["report"]["leaked"] == 7


def test_numbers_that_json_does_not_have_are_null(library: Library) -> None:
    library.run = lambda: iter([replace(events.step(1), loss=float("nan"), seconds_left=float("inf"))])
    (line,) = call(*TYPED).lines
    assert line["loss"] is None and line["seconds_left"] is None and line["step"] == 1


def test_advice_in_json_names_options(library: Library, tmp_path: Path) -> None:
    start, end, log = events.started(), events.finished(), tmp_path / "log.jsonl"
    assert start.report is not None and end.summary is not None
    warned = replace(start.report, warnings=("long texts; a smaller `max_length=` trains faster.",))
    advised = replace(end.summary, advice="train longer (`epochs=`) or with a higher `lr=`")
    opened = replace(end, summary=advised, opens="mlxbert; train with `few_shot=False`")
    library.run = lambda: iter([replace(start, report=warned), opened])
    lines = call(*TYPED, "--log", str(log)).lines
    assert lines == [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert lines[0]["report"]["warnings"] == ["long texts; a smaller --max-length trains faster."]
    assert lines[1]["summary"]["advice"] == "train longer (--epochs) or with a higher --lr"
    assert lines[1]["opens"] == "mlxbert; train with --no-few-shot"


@pytest.mark.parametrize(("task", "more", "expected"), [
    ("classify", ["--train", "more.csv"], {"train": ["train.csv", "more.csv"], "valid": None, "output": Path("model")}),
    ("classify", ["--valid", "v.csv", "--lr", "3e-5"], {"valid": ["v.csv"], "lr": 3e-5, "model": "some/model"}),
    (
        "classify", ["--sweep", "epochs=2,3", "--sweep", "schedule=cosine,constant"],
        {"sweep": {"epochs": [2, 3], "schedule": ["cosine", "constant"]}},
    ),
    (
        "classify", ["--class-weights", "balanced", "--few-shot", "--format", "tsv"],
        {"class_weights": "balanced", "few_shot": True, "format": "tsv"},
    ),
    (
        "classify", ["--teacher", "large", "--teacher-weight", "0.8", "--temperature", "4"],
        {"teacher": "large", "teacher_weight": 0.8, "temperature": 4.0},
    ),
    ("embed", ["--teacher", "large"], {"teacher": "large"}),
    ("multilabel", [], {"batch_size": 32, "epochs": None}),
    ("answer", ["--stride", "7"], {"stride": 7}),
    (
        "tag", ["--scheme", "bioes", "--crf", "--label-all-pieces", "--format", "conll", "--label-column", "2"],
        {"scheme": "bioes", "crf": True, "label_all_pieces": True, "format": "conll", "label_column": "2"},
    ),
    (
        "rerank", ["--query-column", "q", "--text-column", "t", "--loss", "mse", "--max-score", "5"],
        {"query_column": "q", "text_column": "t", "label_column": None, "loss": "mse", "max_score": 5.0},
    ),
])  # fmt: skip
def test_options_reach_the_library(library: Library, task: str, more: list[str], expected: dict[str, Any]) -> None:
    assert call("finetune", task, *TYPED[2:], *more).status == 0
    assert library.given["task"] == task and library.given | expected == library.given
    assert ("class_weights" in library.given) == (task == "classify")
    assert ("teacher_weight" in library.given) == (task != "embed" and "teacher" in library.given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["lr=1e-5,2e-5"], {"lr": [1e-5, 2e-5]}),
        (["batch-size=8, 16", "checkpointing=true,false"], {"batch_size": [8, 16], "checkpointing": [True, False]}),
        (["seed=1,2,3"], {"seed": [1, 2, 3]}),
    ],
)
def test_values_to_try_have_the_type_of_their_option(given: list[str], expected: dict[str, object]) -> None:
    found = parse_sweep(given)
    assert found == expected
    assert [type(value) for values in found.values() for value in values] == [
        type(value)
        for values in expected.values()
        for value in values  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["lr"], "'lr', expected NAME=A,B"),
        (["=1"], "expected NAME=A,B"),
        (["learning=1"], "'learning', expected an option"),
        (["output=a,b"], "'output', expected an option"),
        (["lr=1e-5,x"], "lr has the value 'x', expected a number"),
        (["lr="], "lr has the value '', expected a number"),
        (["epochs=1.5"], "epochs has the value '1.5', expected a whole number"),
        (["checkpointing=maybe"], "expected true or false"),
        (["schedule=fast"], "expected linear or cosine or constant"),
        (["lr=1", "lr=2"], "names 'lr' twice"),
    ],
)
def test_values_that_cannot_be_tried_are_refused(given: list[str], told: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(told)):
        parse_sweep(given)


def test_wrong_usage_is_told_before_anything_else(library: Library, tmp_path: Path) -> None:
    call("finetune", "classify", "--output", "m").fails(2, "--train")
    call("finetune", "classify", "--train", "a.csv").fails(2, "--output")
    call(*TYPED, "--sweep", "lr=a,b").fails(2, "--sweep lr has the value 'a'")
    call(*TYPED, "--valid", "-", "--train", "-").fails(2, "stdin is given twice")
    call(*TYPED, "--log", str(tmp_path / "no" / "log.jsonl")).fails(2, "--log", "No such file")
    assert library.given == {}


def test_stdin_must_be_piped_in_again_and_says_so(library: Library) -> None:
    outcome = call(*TYPED, "--train", "-")
    assert outcome.status == 0 and outcome.err.startswith("note: ") and "same data" in outcome.err


def test_the_log_has_every_event_and_goes_on_when_training_does(library: Library, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    everything = list(events.whole_run(30))
    lengths: list[int] = []

    def run() -> Iterator[Event]:
        for event in everything:
            yield event
            lengths.append(len(log.read_text(encoding="utf-8").splitlines()))

    library.run = run
    assert call(*TYPED, "--quiet", "--log", str(log)).status == 0
    assert lengths == list(range(1, len(everything) + 1))
    call(*TYPED, "--quiet", "--log", str(log))
    kinds = [json.loads(line)["event"] for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(kinds) == 2 * len(everything) and kinds.count("started") == 2


@pytest.mark.parametrize("text", [b"text,label\nthe cat,animal\n", b'{"text": "the", "event": "step"}', b"\n", b"\xff"])
def test_a_log_is_appended_only_to_a_log(text: bytes, library: Library, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(text)
    call(*TYPED, "--log", str(path)).fails(2, "--log", "expected events", "hint: ")
    call("pretrain", "x.txt", "--output", str(tmp_path / "out"), "--log", str(path)).fails(2, "--log", "hint: ")
    assert path.read_bytes() == text and not library.given


@pytest.mark.parametrize("option", ["--train", "--valid"])
def test_a_log_is_no_input(option: str, library: Library, tmp_path: Path) -> None:
    path, link = tmp_path / "train.jsonl", tmp_path / "link.jsonl"
    path.write_text('{"event": "step", "text": "the cat", "label": 1}\n')
    link.symlink_to(path)
    call(*TYPED, option, str(link), "--log", str(path)).fails(2, "--log", "is also an input", "hint: ")
    call("pretrain", "x.txt", "--valid", str(path), "--output", str(tmp_path / "out"), "--log", str(link)).fails(
        2, "is also an input"
    )
    assert path.read_text().count("\n") == 1 and not library.given


def test_a_log_that_ends_within_a_line_goes_on_in_the_next(library: Library, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    torn = '{"event": "started", "run": 0}\n{"event": "st'
    log.write_text(torn)
    assert call(*TYPED, "--log", str(log)).status == 0
    lines = log.read_text(encoding="utf-8").splitlines()
    assert "\n".join(lines[:2]) == torn and json.loads(lines[2])["event"] == "started"
    log.write_bytes(b"")
    assert call(*TYPED, "--log", str(log)).status == 0
    assert json.loads(log.read_text(encoding="utf-8").splitlines()[0])["event"] == "started"


def interrupted(count: int) -> Iterator[Event]:
    for number, event in enumerate(events.whole_run(30)):
        if number == count:
            raise KeyboardInterrupt
        yield event


def test_an_interruption_ends_with_the_command_that_resumes(
    library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library.run = lambda: interrupted(5)
    typed = [*TYPED, "--text-column", "my text", "--log", str(tmp_path / "log.jsonl")]
    monkeypatch.setattr(sys, "argv", ["mlxbert", *typed])
    outcome = call(*typed)
    assert outcome.status == 130 and library.saved
    assert len(outcome.lines) == 5 == len((tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines())
    (hint,) = [line for line in outcome.err.splitlines() if line.startswith("hint: ")]
    assert hint.endswith(f"mlxbert {' '.join(TYPED)} --text-column 'my text' --log {tmp_path}/log.jsonl")
    (hint,) = [line for line in call(*typed, "--train", "-").err.splitlines() if line.startswith("hint: ")]
    assert "stdin" in hint and hint.endswith(f"{tmp_path}/log.jsonl")


def test_an_interruption_tells_where_the_state_was_saved(library: Library, tmp_path: Path) -> None:
    library.run = lambda: interrupted(5)
    run = tmp_path / "model.partial" / "run-0"
    run.mkdir(parents=True)
    (run / "state.json").write_text('{"step": 12}', encoding="utf-8")
    typed = ["finetune", "classify", "--train", "train.csv", "--output", str(tmp_path / "model")]
    assert "saved at step 12; the same command resumes: " in call(*typed).err
    (run / "state.json").write_text("damaged", encoding="utf-8")
    assert "hint: the same command resumes: " in call(*typed).err


def test_a_forgotten_task_is_asked_for() -> None:
    call("finetune", "--train", "x.csv").fails(2, "before its options", "classify, multilabel, regress")
    call("evaluate", "--data", "x.csv").fails(2, "before its options", "classify, ")
    call("train", "--train", "x.csv").fails(2, "has no command 'train'", "did you mean mlxbert finetune")
    assert call("finetune", "--help").status == 0


def test_an_interruption_of_the_drawing_reaches_the_training(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mlxbert.cli.views.json_lines.put_line", interrupt)
    assert call(*TYPED).status == 130
    assert library.saved


def test_an_error_of_training_is_told_after_what_went_well(library: Library) -> None:
    def run() -> Iterator[Event]:
        yield events.started()
        raise InputError("train.csv, line 7: the label is empty", hint="give `label_column=`")

    library.run = run
    outcome = call(*TYPED)
    outcome.fails(1, "line 7", "hint: give --label-column")
    assert len(outcome.lines) == 1


def test_at_a_terminal_the_report_the_live_view_and_the_summary_are_drawn(library: Library) -> None:
    outcome, shown = terminal(*TYPED, on=["stdout", "stderr"])
    assert outcome.status == 0
    text = "\n".join(plain(shown))
    order = ["4,911", "fits: 3.1 of 16.0 GB", "fine-tuning classify", "step 30 of 30", "worst mistakes", "this model"]
    places = [text.rindex(piece) for piece in order]
    assert places == sorted(places)
    assert text.rstrip().endswith(events.COMMAND)
    assert "[bold]What[/bold]" in text and "\x9b" not in shown and "\x1b[5A" not in shown


def test_a_note_during_training_stands_above_the_live_view(library: Library) -> None:
    import logging

    def run() -> Iterator[Event]:
        for event in events.whole_run(30):
            if event.event == "evaluated":
                logging.getLogger("mlxbert").warning("the gradient vanished")
            yield event

    library.run = run
    for variables in ({}, {"NO_COLOR": "1"}):
        _, shown = terminal(*TYPED, on=["stdout", "stderr"], **variables)
        before = CODES.sub("", shown).split("hint: the gradient vanished")[:-1]
        assert len(before) == 3
        for part in before:  # the picture was erased before: the cursor is where its first line was
            assert re.search(r"(\x1b\[1A\x1b\[2K)+$", part)


def test_quiet_at_a_terminal_draws_the_summary_only(library: Library) -> None:
    _, shown = terminal(*TYPED, "--quiet", on=["stdout", "stderr"])
    text = "\n".join(plain(shown))
    assert "this model" in text and "4,911" not in text and "fine-tuning" not in text and "worst" not in text


def test_a_dry_run_at_a_terminal_is_the_report(library: Library) -> None:
    def run() -> Iterator[Event]:
        library.given["on_phase"]("estimating the time")
        yield events.started()

    library.run = run
    for quiet in ([], ["--quiet"]):
        _, shown = terminal(*TYPED, "--dry-run", *quiet, on=["stdout", "stderr"])
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
    assert "note" not in terminal(*TYPED, "--json", on=["stdout", "stderr"])[1]


@pytest.mark.parametrize(("option", "package"), [("--plot=c.png", "matplotlib"), ("--tensorboard=t", "tensorboard")])
def test_a_missing_package_is_told_before_training(
    library: Library, monkeypatch: pytest.MonkeyPatch, option: str, package: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    call(*TYPED, option).fails(2, f"needs the package {package}", " install ")
    assert library.given == {}


def test_a_picture_of_another_kind_is_refused(library: Library, tmp_path: Path) -> None:
    call(*TYPED, "--plot", "curves.txt").fails(2, "curves.txt", ".png, .svg or .pdf")
    call(*TYPED, "--plot", str(tmp_path / "no" / "c.png")).fails(2, "folder", "does not exist")
    assert library.given == {}


def test_scalars_for_tensorboard(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: dict[str, dict[str, list[tuple[int, float]]]] = {}

    class Writer:
        def __init__(self, folder: str) -> None:
            self.scalars: dict[str, list[tuple[int, float]]] = written.setdefault(folder, {})

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.scalars.setdefault(name, []).append((step, value))

        def flush(self) -> None: ...

        def close(self) -> None:
            self.scalars["closed"] = []

    module = ModuleType("tensorboard.summary")
    module.Writer = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "tensorboard.summary", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert call(*TYPED, "--tensorboard", str(tmp_path / "t")).status == 0
    (scalars,) = written.values()
    assert scalars["train/loss"] == [(number, events.step(number, of=30).loss) for number in range(1, 31)]
    assert scalars["valid/accuracy"] == [(10, 0.921), (20, 0.964), (30, 0.958)] and "closed" in scalars
    library.run = lambda: iter([events.started(runs=2), events.started(runs=2, run=1)])
    call(*TYPED, "--tensorboard", str(tmp_path / "two"))
    assert [folder for folder in written if "two" in folder] == [str(tmp_path / "two" / f"run-{n}") for n in (1, 2)]


@pytest.mark.slow
def test_the_curves_as_a_picture(library: Library, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    library.run = lambda: interrupted(25)
    assert call(*TYPED, "--plot", str(tmp_path / "curves.png")).status == 130
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "classify", "--data", "none.csv"], ["evaluate", "tag", "--data", "a.csv", "--encoding", "none"],
        ["evaluate", "mlm", "--data", "none.txt"], ["mine", "none.csv", "--output", "hard.jsonl"],
        ["evaluate", "rerank", "--data", "none.csv", "--embedder", "org/other"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_data_that_are_not_there_are_refused_before_a_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlxbert.cli.session.load", None)
    (tmp_path / "a.csv").touch()
    outcome = call(*arguments, "--model", "org/none")
    assert outcome.status in (1, 2) and "none" in outcome.err.replace("org/none", "")
    assert [*tmp_path.iterdir()] == [tmp_path / "a.csv"]


def test_a_model_to_evaluate_must_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    call("evaluate", "classify", "--data", str(tmp_path / "a.csv")).fails(2, "--model")


def test_an_evaluation_is_one_object(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "x.txt"):
        (tmp_path / name).touch()
    outcome = call("evaluate", "classify", "--data", "a.csv", "--data", "b.csv", "--model", "m", "--metric", "macro_f1")
    assert (outcome.status, outcome.err) == (0, "")
    (found,) = outcome.lines
    assert found == json.loads(json.dumps(events.evaluation().to_dict()))
    assert (library.given["task"], library.given["model"]) == ("classify", "classify of m")
    assert library.given["data"] == ["a.csv", "b.csv"] and library.given["metric"] == "macro_f1"
    call("evaluate", "tag", "--data", "x.txt", "--format", "conll", "--model", "m")
    assert [library.given[name] for name in ("task", "format", "model")] == ["tag", "conll", "tag of m"]
    call("evaluate", "regress", "--model", "m").fails(2, "--data")


def test_an_evaluation_at_a_terminal_is_drawn(library: Library, tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    arguments = ("evaluate", "multilabel", "--data", str(tmp_path / "a.csv"), "--model", "m")
    outcome, shown = terminal(*arguments, on=["stdout", "stderr"])
    text = "\n".join(plain(shown))
    assert outcome.status == 0 and "worst mistakes" in text and "250/500" in text
    assert (
        text.index("worst mistakes") < text.index("confusion") < text.index("labels\n") < text.index("accuracy 0.964")
    )


def test_pairs_are_evaluated_with_the_classifier(library: Library, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    data.touch()
    outcome = call("evaluate", "rerank", "--data", str(data), *MODEL, "--max-score", "5")
    assert outcome.status == 0 and outcome.lines == json.loads(json.dumps([events.evaluation().to_dict()]))
    assert (library.given["task"], library.given["model"]) == ("rerank", "classify of some/model")
    assert library.given["max_score"] == 5.0 and "top_k" not in library.given


def test_an_embedder_makes_it_retrieval(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def evaluate_reranking(model: object, embedder: object, **given: Any) -> object:
        seen.update(given, model=model, embedder=embedder)
        return events.evaluation()

    module = SimpleNamespace(evaluate_reranking=evaluate_reranking)
    monkeypatch.setitem(sys.modules, "mlxbert.train.scores.search_evaluation", module)
    typed = (
        *("evaluate", "rerank", "--data", str(tmp_path), *MODEL, "--embedder", "builtin", "--top-k", "7"),
        *("--split", "dev"),
    )
    assert call(*typed, "--metric", "map").status == 0
    assert (seen["model"], seen["embedder"]) == ("classify of some/model", "embed of builtin")
    assert (seen["data"], seen["top_k"], seen["split"], seen["metric"]) == (str(tmp_path), 7, "dev", "map")
    for option in (("--max-score", "5"), ("--query-column", "q"), ("--max-length", "9"), ("--data", "other")):
        outcome = call(*typed, *option)
        assert outcome.status == 2 and option[0] in outcome.err
    assert call("evaluate", "rerank", "--data", "pairs.csv", *MODEL, "--top-k", "0").status == 2


def test_a_folder_needs_an_embedder(library: Library, tmp_path: Path) -> None:
    outcome = call("evaluate", "rerank", "--data", str(tmp_path), *MODEL)
    assert outcome.status == 2 and "--embedder" in outcome.err
