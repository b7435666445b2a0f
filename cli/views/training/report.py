"""What the data look like before training, and what the run will take."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Cell, Column, Indented, PlainTable
from mlxbert.cli.views.training import value_texts
from mlxbert.training.options.training_tasks import TASKS

if TYPE_CHECKING:
    from mlxbert.training.data.data_report import DataReport, SplitReport
    from mlxbert.training.loop.events import Estimate, Started

_ALL = 40  # labels that are all shown
_FIRST, _LAST = 25, 5  # the most and the least frequent of more
_LABEL, _LONGEST_BAR = 28, 40  # columns of a label's name, of a bar


def before(started: "Started", report: "DataReport") -> Iterator["rich.RenderableType"]:
    """The data, the labels, warnings, and what training will take."""
    yield from console.facts("data", _sources(report))
    yield from (rich.Text(), _splits(report), rich.Text())
    if any(split.labels for split in report.splits):
        yield from (*_labels(report, of_words=TASKS[started.task].of_words), rich.Text())
    yield from _warnings(report)
    yield from console.facts("training", _plan(started))
    if started.estimate is not None:
        yield from estimate(started.estimate)
    yield rich.Text()


def _sources(report: "DataReport") -> Iterator[tuple[str, object]]:
    for split in report.splits:
        part = report.split_off is not None and split.name == "valid"
        share = f"{report.split_off:.0%} of " if part else ""
        yield split.name, share + ", ".join(split.files) + (" (split off)" if part else "")
    for role, column in report.columns.items():
        yield role, f"column {column}" + (" (guessed)" if role in report.guessed else "")
    yield from report.facts.items()
    if report.unused:
        yield "not used", ", ".join(report.unused)
    yield "inputs", f"up to {report.max_length:,} tokens"


def _splits(report: "DataReport") -> PlainTable:
    columns = [dict(_numbers(split)) for split in report.splits]
    rows = []
    for name, _ in _numbers(report.splits[0]):
        values = [column.get(name, "-") for column in columns]
        rows.append([rich.Text(name, "dim"), *(rich.Text(*_marked(name, value)) for value in values)])
    if len(report.splits) > 1:
        blank = [rich.Text("")] * (len(report.splits) - 2)
        rows.append(
            [
                rich.Text("also in train", "dim"),
                rich.Text(""),
                rich.Text(*_marked("leaked", f"{report.leaked:,}")),
                *blank,
            ]
        )
    return PlainTable((Column(), *_counts(report)), rows, indent=2)


def _counts(report: "DataReport") -> list[Column]:
    return [Column(console.visible(split.name), right=True) for split in report.splits]


def _numbers(split: "SplitReport") -> Iterator[tuple[str, str]]:
    yield "examples", f"{split.examples:,}"
    median, most, longest = split.tokens
    yield "tokens, median", f"{median:,}"
    yield "tokens, 95%", f"{most:,}"
    yield "tokens, longest", f"{longest:,}"
    yield "truncated", f"{split.truncated:,}"
    yield "duplicates", f"{split.duplicates:,}"
    yield "conflicting labels", f"{split.conflicts:,}"
    if split.range is not None:
        yield from zip(("smallest", "mean", "largest"), map(value_texts.figure, split.range), strict=True)


def _marked(name: str, value: str) -> tuple[str, str]:
    """A number, in another colour if it should be 0."""
    doubtful = name in ("truncated", "duplicates", "conflicting labels", "leaked") and value != "0"
    return value, "yellow" if doubtful else ""


def _labels(report: "DataReport", *, of_words: bool) -> Iterator["rich.RenderableType"]:
    """A bar for each label: how many examples of the training data have it; of tags, how often it is there."""
    names = list(dict.fromkeys(name for split in report.splits for name in split.labels))
    first = report.splits[0]
    shown, left = (names, []) if len(names) <= _ALL else ([*names[:_FIRST], *names[-_LAST:]], names[_FIRST:-_LAST])
    yield rich.Text(console.counted(len(names), "label"), "bold")
    bar = Column(bar=True, most=_LONGEST_BAR)
    columns = (Column(wraps=True, most=_LABEL), bar, *_counts(report), Column("share", right=True, secondary=1))
    whole = sum(first.labels.values()) if of_words else first.examples
    most = max(first.labels.values(), default=0) or 1
    rows: list[list[Cell]] = []
    for place, name in enumerate(shown):
        if left and place == _FIRST:
            rows.append([rich.Text(f"… {len(left)} more", "dim"), *[rich.Text("")] * (len(columns) - 1)])
        count = first.labels.get(name, 0)
        counts = [rich.Text(f"{split.labels.get(name, 0):,}", *_absent(split, name)) for split in report.splits]
        share = rich.Text(f"{count / max(whole, 1):.1%}", "dim")
        rows.append([rich.Text(console.visible(name)), console.bar_of(count / most, "cyan"), *counts, share])
    yield PlainTable(columns, rows, indent=2)


def _absent(split: "SplitReport", name: str) -> tuple[str, ...]:
    return () if split.labels.get(name) else ("yellow",)


def _warnings(report: "DataReport") -> Iterator["rich.RenderableType"]:
    if report.warnings:
        yield rich.Text("warnings", "bold yellow")
    for sentence in report.warnings:
        yield Indented(rich.Text(console.visible(console.to_options(sentence))))
    if report.warnings:
        yield rich.Text()


def _plan(started: "Started") -> Iterator[tuple[str, object]]:
    yield "model", f"{started.model} → {started.output}"
    frozen = f", {started.frozen:,} frozen" if started.frozen else ""
    yield "parameters", f"{started.parameters:,}{frozen}"
    if started.new_head is not None:
        yield "head", "new" if started.new_head else "the model's own"
    records = next((split.examples for split in started.report.splits), 0) if started.report else started.examples
    kind = "examples" if started.examples == records else "windows"  # of long texts
    passes = round(started.epochs, 2)
    epochs = console.counted(int(passes) if passes == int(passes) else passes, "epoch")
    yield "steps", f"{started.steps:,} in {epochs} of {started.examples:,} {kind}"
    if started.runs > 1:
        yield "runs", f"{started.runs}"
    together = f", {started.processes} processes" if started.processes > 1 else ""
    yield "device", f"{started.device}{together}"


def estimate(found: "Estimate") -> Iterator["rich.RenderableType"]:
    """`fits: 3.1 of 16.0 GB, about 4 minutes`; of a long run on a Mac, how it stays awake."""
    yield _fits(found)
    if (note := value_texts.sleeping(found.seconds)) and (found.available is None or found.memory <= found.available):
        yield Indented(rich.Text(note, "dim"))


def _fits(found: "Estimate") -> "rich.Text":
    time = value_texts.about(found.seconds)
    if found.available is None:
        return rich.Text.assemble(("  takes ", "dim"), f"{console.size(found.memory)}, {time}")
    fits = found.memory <= found.available
    used = console.portion(found.memory, found.available)
    if fits:
        return rich.Text.assemble(("  fits: ", "bold green"), f"{used}, {time}")
    return rich.Text.assemble(("  does not fit: ", "bold red"), f"{used}; {console.LESS_MEMORY}")
