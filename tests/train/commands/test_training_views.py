"""How training looks in narrow and wide terminals: everything is told, and nothing is wider or steers it."""

import io
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from mlxbert.train.data.data_report import DataReport
from mlxbert.train.loop.events import Estimate, Event, Finished, Started, Step
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.views import evaluation, report, summary, value_texts
from mlxbert.train.views.frame import DrawnRuns, frame
from mlxbert.train.views.screen import LiveView, SparseLines
from tests.helpers import events
from tests.helpers.cases import together

WIDTHS = pytest.mark.parametrize("width", [50, 120])


def lines(parts: Iterable[RenderableType], width: int) -> list[str]:
    """What a terminal shows, checked for its width and for control characters."""
    screen = Console(width=width, file=io.StringIO(), color_system="truecolor", force_terminal=True, record=True)
    for part in parts:
        screen.print(part)
    shown = screen.export_text().split("\n")[:-1]
    assert max(map(cell_len, shown)) <= width
    assert not re.search("[\x00-\x1f\x7f-\x9f]", "".join(shown))
    return [line.rstrip() for line in shown]


def told(parts: Iterable[RenderableType], width: int = 80) -> str:
    """The words of what is shown, wherever its lines end."""
    return " ".join(" ".join(lines(parts, width)).split())


def tells(text: str, *pieces: str) -> None:
    assert [piece for piece in pieces if piece not in text] == []


def reported(started: Started, found: DataReport | None = None, width: int = 80) -> str:
    """What is told before training."""
    found = found or started.report
    assert found is not None
    return told(report.before(started, found), width)


def evaluated(found: Evaluation) -> str:
    return told(evaluation.evaluation(found, 80))


def ended(**changes: Any) -> Finished:
    """The end of a run with another summary."""
    event = events.finished()
    assert event.summary is not None
    return replace(event, summary=replace(event.summary, **changes))


def drawn(found: Iterable[Event]) -> DrawnRuns:
    state = DrawnRuns()
    for event in found:
        state.note(event)
    return state


def until(step: int) -> list[Event]:
    """The events of a run after that many steps."""
    return [event for event in events.whole_run() if getattr(event, "step", 0) <= step]


def live(found: Iterable[Event]) -> LiveView:
    view = LiveView(Console(width=80, height=24, file=io.StringIO(), force_terminal=True), lambda: None)
    for event in found:
        if not isinstance(event, Finished):
            view.write(event)
    return view


@WIDTHS
def test_the_report_tells_every_number(width: int) -> None:
    started = events.started()
    text = reported(started, width=width)
    for label, count in events.LABELS.items():
        assert re.search(rf"{label} \W*{count:,} {count // 10} {count / 4911:.1%}", text), label
    tells(text, "4,911 491", "duplicates 58 5", "conflicting labels 4 0", "also in train 7", "10% of train.csv")
    tells(text, "column question (guessed)", "column coarse inputs", "22,715,526", "462 in 3 epochs of 4,911 examples")
    tells(text, "fits: 3.1 of 16.0 GB, 9.0 GB free, about 4 minutes")
    assert started.report is not None and started.report.warnings[0] in text


def test_reports_on_windows_on_minutes_on_numbers_and_on_very_many_labels() -> None:
    assert "462 in 3 epochs of 6,200 windows" in reported(events.started(examples=6200))
    assert "in 6.29 epochs" in reported(replace(events.started(), epochs=44 / 7))  # in a given time
    assert "in 23 epochs" in reported(replace(events.started(), epochs=23.0))
    whole = events.report({})
    numbers = replace(whole, splits=tuple(replace(split, range=(0.0, 2.61, 5.0)) for split in whole.splits))
    text = reported(events.started(), numbers)
    assert "smallest 0.00 0.00 mean 2.61 2.61 largest 5.00 5.00" in text and "0 labels" not in text
    text = reported(events.started(), events.report({f"intent {number}": 1000 - number for number in range(150)}))
    tells(text, "150 labels", "… 120 more", "intent 0 ", "intent 149 ")


@together("memory,available,free,said", [
    (20.1e9, 16e9, 9e9, "does not fit: 20.1 of 16.0 GB, 9.0 GB free"),
    (0.5e9, 16e9, 9e9, "fits: 500.0 MB of 16.0 GB, 9.0 GB free, about 2 h"),
    (9.1e9, 16e9, 9e9, "fits without other programs: 9.1 of 16.0 GB, 9.0 GB free, about 2 h"),
    (0.5e9, 16e9, None, "fits: 500.0 MB of 16.0 GB, about 2 h"),
    (0.5e9, None, None, "takes 500.0 MB, about 2 h"),
])  # fmt: skip
def test_the_estimate_says_whether_training_fits(memory: int, available: Any, free: Any, said: str) -> None:
    estimate = Estimate(seconds=7300, memory=memory, available=available, free=free)
    assert said in reported(events.started(estimate=estimate))


@pytest.mark.parametrize(("platform", "seconds", "said"), [("darwin", 301, 1), ("darwin", 299, 0), ("linux", 9999, 0)])
def test_a_long_run_on_a_mac_says_what_keeps_it_awake(
    platform: str, seconds: float, said: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    started = events.started(estimate=Estimate(seconds=seconds, memory=1, available=2, free=2))
    corpus_facts = {"files": ("a.txt",), "problems": (), "documents": 1, "sentences": 2, "unknown": 0, "tokens": 3}
    assert reported(started).count("caffeinate -i") == said
    assert told(report.before_pretraining(started, corpus_facts | {"skipped": 0})).count("caffeinate -i") == said
    view = SparseLines()
    view.write(started)
    view.write(events.started(estimate=None, runs=2))  # the second run
    assert capsys.readouterr().err.count("caffeinate -i") == said
    full = events.started(estimate=Estimate(seconds=seconds, memory=2, available=1, free=1))
    assert "caffeinate" not in reported(full)  # it would not run for long


@WIDTHS
@pytest.mark.parametrize("steps", [0, 1, 200, 462])
def test_a_picture_of_a_run(width: int, steps: int) -> None:
    shown = lines([frame(drawn(until(steps)), width, 24)], width)
    text = "\n".join(shown)
    assert len(shown) <= 24 and shown[0].startswith("fine-tuning classify") and f"step {steps} of 462" in text
    if steps:
        assert f"loss {value_texts.figure(events.step(steps).loss)}" in text and "8,412" in text and "1.2 GB" in text
        assert (f"{value_texts.duration(events.step(steps).seconds_left)} left" in text) == (steps < 462)
    assert ("the first steps measure the speed" in text) == (steps == 0)
    assert bool(re.search("[\u2801-\u28ff]{3}", text)) == (steps > 1)  # the curve
    if steps == 462:
        (best,) = [line for line in shown if "★ best" in line]
        assert "0.964" in best and "2.00" in best and "0.958" in text and "saved at step 462" in text


@WIDTHS
def test_a_full_bar_says_what_is_done(width: int) -> None:
    view = live(events.whole_run())
    for name in ("evaluating", "comparing with simple methods", "saving"):
        view.phase(name)
        shown = lines([frame(view.state, width, 24)], width)
        (bar,) = [line for line in shown if "100%" in line]
        assert name in bar or (width == 50 and bar.endswith("…"))
    view.close()
    assert "saving" not in told([frame(view.state, width, 24)], width)


def test_a_low_terminal_keeps_what_is_newest_and_a_run_that_stops_early_has_no_time_left() -> None:
    low = lines([frame(drawn(events.whole_run()), 80, 14)], 80)
    assert len(low) <= 14 and any("0.958" in line for line in low) and any("100%" in line for line in low)
    view = live(until(200))
    assert " left" in told([frame(view.state, 80, 24)])
    view.close()
    shown = told([frame(view.state, 80, 24)])
    assert " left" not in shown and "stopped" in shown


@WIDTHS
def test_a_later_run_says_where_it_resumes_and_how_the_earlier_ones_ended(width: int) -> None:
    first = [events.started(runs=3, varied={"seed": 0}), events.evaluated(462, 0.951)]
    second = events.started(run=1, runs=3, varied={"seed": 1}, first_step=120, report=None)
    text = told([frame(drawn([*first, second]), width, 24)], width)
    tells(text, "run 2 of 3", "seed 1", "resumed after step 120 of 462", "seed 0 accuracy 0.951", "26%")


@WIDTHS
def test_the_curve_of_a_resumed_run_starts_at_its_start(width: int) -> None:
    whole = drawn(until(300))
    losses = tuple((number, events.step(number).loss) for number in range(1, 251))
    start = events.started(first_step=250, losses=losses, evaluations=(events.evaluated(154, 0.921),))
    state = drawn([start, *(events.step(number) for number in range(251, 301))])
    for size in (40, 462):
        assert state.loss.means(size) == pytest.approx(whole.loss.means(size))
    text = told([frame(state, width, 24)], width)
    assert "0.921" in text and "★ best" in text


@WIDTHS
def test_only_what_should_be_large_has_a_bar(width: int) -> None:
    runs = tuple({"seed": seed, "score": 0.5 + seed / 4} for seed in (0, 1))
    event = events.finished(runs)
    assert event.summary is not None
    for metric, bars in (("accuracy", True), ("mae", False), ("log_loss", False), ("mlm_loss", False)):
        state = drawn([events.started(), *(events.evaluated(step, 0.4, metric=metric) for step in (154, 308))])
        found = [line for line in lines([frame(state, width, 24)], width) if "0.400" in line]
        assert found and all(("█" in line) == bars for line in found)
        task = replace(events.evaluation(), metric=metric, task="classify" if bars else "regress")
        told_at_end = replace(event, metric=metric, evaluation=task, summary=replace(event.summary, metric=metric))
        assert ("█" in told(summary.finished(told_at_end), width)) == bars


@WIDTHS
def test_the_summary(width: int) -> None:
    event = events.finished()
    text = told(summary.finished(event), width)
    assert text.startswith("accuracy 0.964") and text.endswith(events.COMMAND)
    for name, score in {"this model": "0.964", "frozen vectors": "0.902", "largest class": "0.229"}.items():
        assert re.search(rf"{name} \D*{score}", text), name
    tells(text, "step 308", "4:01", "ABBR: recall 0.71", *(["0.946 to 0.980"] if width > 50 else []))
    assert "check" not in text and "early" not in text
    opens = replace(event, ended=9, check=3.14e-7, opens="mlxbert; `few_shot=False` trains another")
    phases = {"reading the data": 31.2, "training": 210.1, "saving": 0.04}
    text = told(summary.finished(replace(opens, phases=phases)), width)
    tells(text, "step 9 of 462", "3.1e-07", "reading the data 31 s, training 3:30")
    assert "saving" not in text and text.endswith("mlxbert; --no-few-shot trains another")  # the last line


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100, 120])
def test_a_bar_is_on_one_line_however_long_its_name(width: int) -> None:
    for name in ("n" * 17, "best of the largest class", "best of the largest classes", "n" * 60):
        found = ended(baselines={name: 1.0, "other": 0.2})
        rows = [line for line in lines(summary.finished(found), width) if "█" in line]
        assert len(rows) <= 3 and all(re.search(r"\d", row) for row in rows)
        assert width < 80 or "n" * 28 in name or any(name in row for row in rows)


@WIDTHS
def test_seeds_and_values_that_were_tried(width: int) -> None:
    runs = tuple({"lr": lr, "seed": seed, "score": 0.95 - lr + seed * 0.014} for lr in (1e-5, 2e-5) for seed in (0, 1))
    text = told(summary.finished(events.finished(runs, 0.0099)), width)
    assert text.count("★ kept") == 1 and all(f"{value:.3f}" in text for value in (0.95, 0.964))
    assert "mean 0.957 ± 0.010 over 2 seeds, lr 1e-5" in text and "lr 2e-5" in text
    assert "4 runs" in text and "±" not in text.split("4 runs")[0] and "the best of 4 runs" in text
    one_seed = tuple({"lr": lr, "seed": 0, "score": score} for lr, score in ((3e-4, 0.964), (1e-5, 0.482)))
    text = told(summary.finished(events.finished(one_seed, 0.34)), width)
    assert "±" not in text and "2 runs lr accuracy 3e-4 0.964" in text


def test_a_model_that_is_worse_than_a_simple_method_is_told_so() -> None:
    assert "no better than" not in told(summary.finished(events.finished()))
    low: dict[str, Any] = {"score": 0.6, "interval": (0.5, 0.7), "advice": "train longer (`epochs=`)"}
    text = told(summary.finished(ended(**low)))
    tells(text, "no better than frozen vectors: train longer (--epochs)", "Wilson", "a logistic regression")
    error = replace(events.evaluation(), task="regress", metric="mae")
    text = told(summary.finished(replace(ended(**low, metric="mae"), metric="mae", evaluation=error)))
    tells(text, "no better than largest class:", "bootstrap", "largest error")


def test_mistakes_of_several_labels_name_the_labels_in_which_they_differ() -> None:
    whole = events.evaluation()
    one = replace(whole.mistakes[0], expected="joy, surprise", predicted="joy", text="a b", place="a.csv, line 7")
    found = replace(whole, task="multilabel", metric="macro_f1", confusion=None, mistakes=(one,) * 9)
    text = evaluated(found)
    assert text.count("a.csv, line 7 misses surprise: 99% sure") == 5 and "(bootstrap)" in text
    two = replace(one, predicted="joy, fear", label="fear")
    assert "misses surprise, adds fear: 99% sure about fear" in evaluated(replace(found, mistakes=(two,)))


def test_an_evaluation_tells_what_it_has() -> None:
    found = events.evaluation()
    text = evaluated(replace(found, unknown={"grief": 1200, "[bold]\x1b[5A": 3}))
    assert "not in the model grief (1,200), [bold]" in text and "not in the model" not in evaluated(found)
    guessed = evaluated(replace(found, mistakes=tuple(replace(one, score=0.2) for one in found.mistakes)))
    assert "at most 20% sure" in guessed and "line 17" not in guessed
    numbers = evaluated(replace(found, task="regress", labels=(), confusion=None))
    assert "worst mistakes" in numbers and "0.987 apart" in numbers and "confusion" not in numbers


@WIDTHS
@pytest.mark.parametrize("names", [tuple(events.LABELS), events.EMOTIONS], ids=["6", "28"])
def test_an_evaluation_tells_everything_about_every_label(width: int, names: tuple[str, ...]) -> None:
    found = events.evaluation(names)
    shown = lines(evaluation.evaluation(found, width), width)
    for score, line in zip(found.labels, shown[shown.index("labels") + 2 :], strict=False):
        assert line.split()[0] == score.label
        numbers = re.findall(r"[\d.]+", line)
        assert numbers == [f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", str(score.support)]
    text = " ".join(" ".join(shown).split())
    tells(text, "accuracy 0.964", "0.946 to 0.980", "macro_f1", "0.951", "[bold]What[/bold]", "[red]red[/nothing]")
    tells(
        text, "line 17", "How long does it take", "…", "until the other text ends?", f"{names[0]} → {names[1]} 9 of 97"
    )


def test_a_confusion_matrix_has_its_numbers_where_they_fit() -> None:
    found = events.evaluation(tuple(events.LABELS))
    shown = lines(evaluation.details(found, 50), 50)
    head = next(place for place, line in enumerate(shown) if line.split() == list(events.LABELS))
    assert found.confusion is not None
    for row, line in zip(found.confusion, shown[head + 1 :], strict=False):
        assert [0 if cell == "·" else int(cell) for cell in line.split()[1:]] == list(row)
    for width, rows in ((50, 0), (80, 28), (120, 28)):  # in words, in shades, in numbers
        many = lines(evaluation.details(events.evaluation(events.EMOTIONS), width), width)
        assert sum(bool(re.match(r" +\d+ [a-z]{3,} ", line)) for line in many) == rows
        assert sum("9 of" in line for line in many) == 8 and any("20 other pairs" in line for line in many)


def test_times_and_numbers() -> None:
    times = [value_texts.duration(seconds) for seconds in (0, 59.4, 61, 3725, float("inf"))]
    assert times == ["0 s", "59 s", "1:01", "1:02:05", "-"]
    about = [value_texts.about(seconds) for seconds in (0.2, 30, 239, 9000)]
    assert about == ["about a second", "about 30 seconds", "about 4 minutes", "about 2 hours"]
    figures = [value_texts.figure(number) for number in (0.0, 2e-5, 0.0534, 1.754, 43.21, 1234.5, float("nan"))]
    assert figures == ["0.00", "2.0e-05", "0.0534", "1.75", "43.2", "1234", "nan"]


def test_the_live_view_is_drawn_anew_when_the_terminal_shrinks() -> None:
    now, above, out = [0.0], [], io.StringIO()
    screen = Console(width=100, height=30, file=out, force_terminal=True, legacy_windows=False)
    view = LiveView(screen, lambda: above.append(screen.size.width), clock=lambda: now[0])
    for event in events.whole_run():
        now[0] += 0.01
        view.write(event)
        if isinstance(event, Step) and event.step in (300, 400):
            screen.width = {300: 60, 400: 90}[event.step]
    view.close()
    assert above == [60]
    assert "\x1b[?25h" in out.getvalue().split("100%")[-1]  # the cursor is shown again
