"""How training looks at 50, 80 and 120 columns: everything is told, nothing is wider than the terminal or steers it."""

import io
import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from mlxbert.cli.views.training import evaluation, report, summary, words
from mlxbert.cli.views.training.frame import frame
from mlxbert.cli.views.training.live import LiveView
from mlxbert.cli.views.training.state import State
from mlxbert.training.events import Estimate, Event, Step
from tests.helpers import events

WIDTHS = pytest.mark.parametrize("width", [50, 80, 120])


def lines(parts: Iterable[RenderableType], width: int) -> list[str]:
    """What a terminal shows, checked for its width and for control characters."""
    screen = Console(width=width, file=io.StringIO(), color_system="truecolor", force_terminal=True, record=True)
    for part in parts:
        screen.print(part)
    shown = screen.export_text().split("\n")[:-1]
    assert max(map(cell_len, shown)) <= width
    assert not re.search("[\x00-\x1f\x7f-\x9f]", "".join(shown))
    return [line.rstrip() for line in shown]


def picture(state: State, width: int, height: int = 24) -> list[str]:
    return lines([frame(state, width, height)], width)


def after(steps: int, *, before: Iterable[Event] = ()) -> State:
    """The state of a run after that many steps."""
    state = State()
    for event in (*before, *events.whole_run()):
        if getattr(event, "step", 0) <= steps:
            state.note(event)
    return state


def braille(shown: Iterable[str]) -> int:
    return sum("\u2801" <= char <= "\u28ff" for line in shown for char in line)


@WIDTHS
def test_the_report_tells_every_number(width: int) -> None:
    started = events.started()
    assert started.report is not None
    shown = lines(report.before(started, started.report), width)
    text = " ".join(" ".join(shown).split())
    for label, count in events.LABELS.items():
        (line,) = [line for line in shown if re.match(rf"  {label} ", line)]
        assert line.split()[-3:] == [f"{count:,}", f"{count // 10}", f"{count / 4911:.1%}"]
    assert "4,911 491" in text and "duplicates 58 5" in text and "conflicting labels 4 0" in text
    assert "also in train 7" in text and "10% of train.csv" in text
    assert "column question (guessed)" in text and "column coarse inputs" in text
    assert started.report.warnings[0] in text
    assert "fits: 3.1 of 16.0 GB, about 4 minutes" in text
    assert "22,715,526" in text and "462 in 3 epochs of 4,911 examples" in text


def test_windows_are_counted_where_records_have_several() -> None:
    started = events.started()
    assert started.report is not None
    shown = lines(report.before(replace(started, examples=6200), started.report), 80)
    assert "462 in 3 epochs of 6,200 windows" in " ".join(" ".join(shown).split())


def test_a_report_on_numbers_has_their_range_and_no_labels() -> None:
    whole = events.report({})
    numbers = replace(whole, splits=tuple(replace(split, range=(0.0, 2.61, 5.0)) for split in whole.splits))
    text = " ".join(" ".join(lines(report.before(events.started(), numbers), 80)).split())
    assert "smallest 0.00 0.00 mean 2.61 2.61 largest 5.00 5.00" in text and "0 labels" not in text


def test_of_very_many_labels_the_most_and_the_least_frequent_are_shown() -> None:
    many = {f"intent {number}": 1000 - number for number in range(150)}
    text = "\n".join(lines(report.before(events.started(), events.report(many)), 80))
    assert "150 labels" in text and "… 120 more" in text and "intent 0 " in text and "intent 149 " in text


@pytest.mark.parametrize(
    ("estimate", "told"),
    [
        (Estimate(seconds=7300, memory=20_100_000_000, available=16_000_000_000), "does not fit: 20.1 of 16.0 GB"),
        (Estimate(seconds=7300, memory=500_000_000, available=16_000_000_000), "fits: 500.0 MB of 16.0 GB, about 2 h"),
        (Estimate(seconds=40, memory=500_000_000, available=None), "takes 500.0 MB, about 40 seconds"),
    ],
)
def test_the_estimate_says_whether_training_fits(estimate: Estimate, told: str) -> None:
    started = events.started(estimate=estimate)
    assert told in "\n".join(lines(report.before(started, events.report()), 100))


@WIDTHS
@pytest.mark.parametrize("steps", [0, 1, 200, 462])
def test_a_picture_of_a_run(width: int, steps: int) -> None:
    shown = picture(after(steps), width)
    text = "\n".join(shown)
    assert len(shown) <= 24
    assert shown[0].startswith("fine-tuning classify") and f"step {steps} of 462" in text
    if steps:
        assert f"loss {words.figure(events.step(steps).loss)}" in text and "8,412" in text and "1.2 GB" in text
        assert (f"{words.duration(events.step(steps).seconds_left)} left" in text) == (steps < 462)
    assert ("the first steps measure the speed" in text) == (steps == 0)
    assert (braille(shown) > 5) == (steps > 1)


@WIDTHS
def test_the_best_evaluation_is_marked(width: int) -> None:
    shown = picture(after(462), width, 30)
    (best,) = [line for line in shown if "★ best" in line]
    assert "0.964" in best and "2.00" in best
    text = "\n".join(shown)
    assert "0.921" in text and "0.958" in text and "saved at step 462" in text
    (axis,) = [line for line in shown if "└" in line]
    marks = [place for place, char in enumerate(axis) if char in "◆★"]
    assert len(marks) == 3 and axis[marks[1]] == "★"


@WIDTHS
def test_a_later_run_says_where_it_resumes_and_how_the_earlier_ones_ended(width: int) -> None:
    state = State()
    for event in (
        events.started(runs=3, varied={"seed": 0}),
        events.evaluated(462, 0.951),
        events.started(run=1, runs=3, varied={"seed": 1}, first_step=120, report=None),
    ):
        state.note(event)
    shown = picture(state, width)
    assert "run 2 of 3" in shown[0] and "seed 1" in shown[0]
    assert shown[1] == "resumed after step 120 of 462"
    assert shown[2].split() == ["seed", "0", "accuracy", "0.951"]
    assert "step 120 of 462" in "\n".join(shown) and "26%" in "\n".join(shown)


def test_a_low_terminal_keeps_the_progress_and_the_newest_evaluation() -> None:
    shown = picture(after(462), 80, 14)
    assert len(shown) <= 14
    assert any("0.958" in line for line in shown) and any("100%" in line for line in shown)


@WIDTHS
def test_the_summary(width: int) -> None:
    shown = lines(summary.finished(events.finished()), width)
    text = "\n".join(shown)
    assert shown[0].startswith("accuracy 0.964") and "step 308" in shown[0] and "4:01" in shown[0]
    names = ("this model", "frozen vectors", "largest class")
    bars = {name: line for name in names for line in shown if line.startswith(f"  {name}  ")}
    assert ["0.964" in bars["this model"], "0.902" in bars["frozen vectors"], "0.229" in bars["largest class"]] == [
        True
    ] * 3
    lengths = [max(map(bars[name].rfind, "█┣")) for name in names]
    assert lengths == sorted(lengths, reverse=True)
    assert width == 50 or "0.946 to 0.980" in text
    assert "ABBR: recall 0.71" in text
    assert events.COMMAND in " ".join(text.split("use it   ")[1].split("\n"))
    checked = lines(summary.finished(replace(events.finished(), check=3.14e-7)), width)
    assert "check" not in text and "3.1e-07" in checked[-1]


@WIDTHS
def test_seeds_and_values_that_were_tried(width: int) -> None:
    runs = tuple({"lr": lr, "seed": seed, "score": 0.95 - lr + seed * 0.014} for lr in (1e-5, 2e-5) for seed in (0, 1))
    text = "\n".join(lines(summary.finished(events.finished(runs, 0.0099)), width))
    assert "4 runs" in text and text.count("★ kept") == 1
    assert all(f"{value:.3f}" in text for value in (0.95, 0.964)) and "± 0.010" in text
    assert "mean 0.957 ± 0.010 over 2 seeds, lr 1e-5" in text and "lr 2e-5" in text
    assert "±" not in text.split("4 runs")[0]
    assert "the best of 4 runs" in text


def test_values_that_were_tried_with_one_seed_have_no_deviation() -> None:
    runs = tuple({"lr": lr, "seed": 0, "score": score} for lr, score in ((3e-4, 0.964), (1e-5, 0.482)))
    shown = lines(summary.finished(events.finished(runs, 0.34)), 80)
    start = shown.index("2 runs")
    assert "±" not in "".join(shown) and shown[start + 1].split() == ["lr", "accuracy"]
    rows = [line.split() for line in shown[start + 2 : start + 4]]
    assert [row[0] for row in rows] == ["3e-4", "1e-5"]
    assert rows[0][2].count("█") == 2 * rows[1][2].count("█") + 1  # bars begin at 0


def test_a_model_that_is_worse_than_a_simple_method_is_told_so() -> None:
    event = events.finished()
    assert event.summary is not None and event.evaluation is not None
    better = "\n".join(lines(summary.finished(event), 80))
    low = replace(event.summary, score=0.6, interval=(0.5, 0.7))
    worse = replace(event, summary=low)
    text = "\n".join(lines(summary.finished(worse), 80))
    assert "no better than" not in better and "no better than frozen vectors: train longer (--epochs)" in text
    assert "Wilson" in text and "a logistic regression" in text
    error = replace(event.evaluation, task="regress", metric="mae")
    distance = replace(worse, metric="mae", evaluation=error, summary=replace(low, metric="mae"))
    text = "\n".join(lines(summary.finished(distance), 80))
    assert "no better than largest class:" in text and "bootstrap" in text and "largest error" in text


def test_mistakes_of_several_labels_name_the_labels_in_which_they_differ() -> None:
    whole = events.evaluation()
    one = replace(whole.mistakes[0], expected="joy, surprise", predicted="joy", text="a b", place="a.csv, line 7")
    found = replace(whole, task="multilabel", metric="macro_f1", confusion=None, mistakes=(one,) * 9)
    text = "\n".join(lines(evaluation.evaluation(found, 80), 80))
    assert text.count("a.csv, line 7  misses surprise: 99% sure") == 5 and "(bootstrap)" in text
    two = replace(one, predicted="joy, fear", label="fear")
    text = "\n".join(lines(evaluation.evaluation(replace(found, mistakes=(two,)), 80), 80))
    assert "misses surprise, adds fear: 99% sure about fear" in text


@WIDTHS
def test_labels_that_the_model_does_not_have_are_told(width: int) -> None:
    found = replace(events.evaluation(), unknown={"grief": 1200, "[bold]\x1b[5A": 3})
    text = " ".join(" ".join(lines(evaluation.evaluation(found, width), width)).split())
    assert "not in the model grief (1,200), [bold]" in text
    known = "\n".join(lines(evaluation.evaluation(events.evaluation(), width), width))
    assert "not in the model" not in known


def test_mistakes_of_a_model_that_guesses_are_left_out() -> None:
    found = events.evaluation()
    found = replace(found, mistakes=tuple(replace(mistake, score=0.2) for mistake in found.mistakes))
    text = "\n".join(lines(evaluation.evaluation(found, 80), 80))
    assert "at most 20% sure" in text and "line 17" not in text


@WIDTHS
@pytest.mark.parametrize("names", [tuple(events.LABELS), events.EMOTIONS], ids=["6", "28"])
def test_an_evaluation_tells_everything_about_every_label(width: int, names: tuple[str, ...]) -> None:
    found = events.evaluation(names)
    shown = lines(evaluation.evaluation(found, width), width)
    table = shown[shown.index("labels") + 2 :]
    for score, line in zip(found.labels, table, strict=False):
        assert line.split()[0] == score.label
        numbers = re.findall(r"[\d.]+", line)
        assert numbers == [f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", str(score.support)]
    text = "\n".join(shown)
    assert "accuracy 0.964" in text and "0.946 to 0.980" in text and "macro_f1" in text and "0.951" in text
    assert "[bold]What[/bold]" in text and "[red]red[/nothing]" in text and "line 17" in " ".join(text.split())
    assert "How long does it take" in text and "…" in text and "until the other text ends?" in text
    assert re.search(rf"{names[0]} +→ {names[1]} +9 of 97", text)


def test_a_confusion_matrix_has_its_numbers_where_they_fit() -> None:
    found = events.evaluation(tuple(events.LABELS))
    shown = lines(evaluation.details(found, 50), 50)
    head = next(place for place, line in enumerate(shown) if line.split() == list(events.LABELS))
    assert found.confusion is not None
    for row, line in zip(found.confusion, shown[head + 1 :], strict=False):
        assert [0 if cell == "·" else int(cell) for cell in line.split()[1:]] == list(row)


@pytest.mark.parametrize(("width", "kind"), [(50, "words"), (80, "shades"), (120, "numbers")])
def test_a_confusion_matrix_of_28_labels_fits_any_terminal(width: int, kind: str) -> None:
    shown = lines(evaluation.details(events.evaluation(events.EMOTIONS), width), width)
    rows = [line for line in shown if re.match(r" +\d+ [a-z]{3,} ", line)]
    assert len(rows) == (0 if kind == "words" else 28)
    if kind == "numbers":
        assert rows[1].split()[2:] == ["·", "87", "9", *["·"] * 25]
    if kind == "shades":
        places = [line.index("██") for line in rows]
        assert [place - places[0] for place in places] == [2 * number for number in range(28)]
        assert all(line.count("░░") == 1 for line in rows)
    assert sum("9 of" in line for line in shown) == 8 and any("20 other pairs" in line for line in shown)


def test_numbers_have_mistakes_only() -> None:
    found = replace(events.evaluation(), task="regress", labels=(), confusion=None)
    text = "\n".join(lines(evaluation.evaluation(found, 80), 80))
    assert "worst mistakes" in text and "0.987 apart" in text and "confusion" not in text and "labels\n" not in text


def test_times_and_numbers() -> None:
    assert [words.duration(seconds) for seconds in (0, 59.4, 61, 3725)] == ["0 s", "59 s", "1:01", "1:02:05"]
    assert words.duration(float("inf")) == "-"
    assert [words.about(seconds) for seconds in (0.2, 30, 239, 9000)] == [
        *("about a second", "about 30 seconds", "about 4 minutes", "about 2 hours")
    ]
    assert [words.figure(number) for number in (0.0, 2e-5, 0.0534, 1.754, 43.21, 1234.5, float("nan"))] == [
        *("0.00", "2.0e-05", "0.0534", "1.75", "43.2", "1234", "nan")
    ]


def test_the_live_view_draws_a_few_times_per_second_and_anew_when_the_terminal_shrinks() -> None:
    now, above = [0.0], []
    out = io.StringIO()
    screen = Console(width=100, height=30, file=out, force_terminal=True, legacy_windows=False)
    view = LiveView(screen, lambda: above.append(screen.size.width), clock=lambda: now[0])
    drawn = 0
    for event in events.whole_run():
        now[0] += 0.01
        place = out.tell()
        view.write(event)
        drawn += out.tell() > place and isinstance(event, Step)
        if getattr(event, "step", 0) == 300 and isinstance(event, Step):
            screen.width = 60
        if getattr(event, "step", 0) == 400 and isinstance(event, Step):
            screen.width = 90
    view.close()
    assert 4.62 * 6 <= drawn <= 4.62 * 8 + 1
    assert above == [60]
    assert out.getvalue().count("\x1b[2J") == 1
    assert "\x1b[?25h" in out.getvalue().split("100%")[-1]  # the cursor is shown again
