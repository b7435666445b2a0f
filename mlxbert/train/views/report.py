"""Draws what training starts from: the data or the corpus with its problems, the plan, and a trained vocabulary."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.option_spelling import to_options
from mlxbert.cli.views.table import Cell, Column, Indented, PlainTable
from mlxbert.train.loop.events import Estimate, Evaluated, Started, Step
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.views import value_texts

if TYPE_CHECKING:
    from mlxbert.train.data.data_report import DataReport, SplitReport
    from mlxbert.train.pretraining.vocabulary import Vocabulary


_ALL = 40  # up to this many labels are all shown
_FIRST, _LAST = 25, 5  # if there are more, the most and the least frequent
_MAX_LABEL, _MAX_BAR = 28, 40  # terminal columns of a label's name, and of a bar


def before(started: "Started", report: "DataReport") -> Iterator["rich.RenderableType"]:
    """Draws facts about the data, the labels, warnings, and the plan of the training."""
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
    median, percentile, longest = split.tokens
    yield "tokens, median", f"{median:,}"
    yield "tokens, 95%", f"{percentile:,}"
    yield "tokens, longest", f"{longest:,}"
    yield "truncated", f"{split.truncated:,}"
    yield "duplicates", f"{split.duplicates:,}"
    yield "conflicting labels", f"{split.conflicts:,}"
    if split.range is not None:
        yield from zip(("smallest", "mean", "largest"), map(value_texts.figure, split.range), strict=True)


def _marked(name: str, value: str) -> tuple[str, str]:
    """Returns a number with its style; a number that should be 0 but is not has another colour."""
    doubtful = name in ("truncated", "duplicates", "conflicting labels", "leaked") and value != "0"
    return value, "yellow" if doubtful else ""


def _labels(report: "DataReport", *, of_words: bool) -> Iterator["rich.RenderableType"]:
    """Draws a bar for each label, whose length is the number of training examples that have the label.

    For a tag, the length is the number of times that the tag occurs.
    """
    names = list(dict.fromkeys(name for split in report.splits for name in split.labels))
    first = report.splits[0]
    shown, omitted = (names, []) if len(names) <= _ALL else ([*names[:_FIRST], *names[-_LAST:]], names[_FIRST:-_LAST])
    yield rich.Text(console.counted(len(names), "label"), "bold")
    bar = Column(bar=True, most=_MAX_BAR)
    columns = (Column(wraps=True, most=_MAX_LABEL), bar, *_counts(report), Column("share", right=True, secondary=1))
    total = sum(first.labels.values()) if of_words else first.examples
    largest = max(first.labels.values(), default=0) or 1
    rows: list[list[Cell]] = []
    for place, name in enumerate(shown):
        if omitted and place == _FIRST:
            rows.append([rich.Text(f"… {len(omitted)} more", "dim"), *[rich.Text("")] * (len(columns) - 1)])
        count = first.labels.get(name, 0)
        counts = [rich.Text(f"{split.labels.get(name, 0):,}", *_absent(split, name)) for split in report.splits]
        share = rich.Text(f"{count / max(total, 1):.1%}", "dim")
        rows.append([rich.Text(console.visible(name)), console.bar_of(count / largest, "cyan"), *counts, share])
    yield PlainTable(columns, rows, indent=2)


def _absent(split: "SplitReport", name: str) -> tuple[str, ...]:
    return () if split.labels.get(name) else ("yellow",)


def _warnings(report: "DataReport") -> Iterator["rich.RenderableType"]:
    if report.warnings:
        yield rich.Text("warnings", "bold yellow")
    for sentence in report.warnings:
        yield Indented(rich.Text(console.visible(to_options(sentence))))
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


def estimate(expected: "Estimate") -> Iterator["rich.RenderableType"]:
    """Draws the estimate of memory and time: `fits: 3.1 of 16.0 GB, about 4 minutes`.

    For a long run on a Mac, it also says how to keep the Mac awake.
    """
    yield _fits(expected)
    fits = expected.available is None or expected.memory <= expected.available
    if fits and (note := value_texts.sleeping(expected.seconds)):
        yield Indented(rich.Text(note, "dim"))


def _fits(expected: "Estimate") -> "rich.Text":
    time = value_texts.about(expected.seconds)
    if expected.available is None:
        return rich.Text.assemble(("  takes ", "dim"), f"{console.size(expected.memory)}, {time}")
    verdict = console.fitting(expected.memory, expected.available, expected.free)
    used = console.portion(expected.memory, expected.available) + console.and_free(expected.free)
    style, rest = {"fits": ("bold green", time), "does not fit": ("bold red", console.LESS_MEMORY)}.get(
        verdict, ("bold yellow", f"{time}; {console.CLOSE}")
    )
    return rich.Text.assemble((f"  {verdict}: ", style), f"{used}{',' if time in rest else ';'} {rest}")


_SHOWN = 3  # problems


def before_pretraining(started: Started, corpus: Mapping[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the corpus, its problems, and the plan of the training."""
    yield from console.facts("corpus", _facts(corpus))
    for problem in corpus["problems"][:_SHOWN]:
        yield rich.Text(f"  {console.visible(problem)}", "yellow")
    passes = (
        f"{started.steps:,} in {console.counted(round(started.epochs, 2), 'epoch')} of {started.examples:,} examples"
    )
    frozen = f", {started.frozen:,} frozen" if started.frozen else ""
    facts = [("parameters", f"{started.parameters:,}{frozen}"), ("steps", passes), ("device", started.device)]
    yield from console.facts("training", facts)
    if started.estimate is not None:
        yield from estimate(started.estimate)
    yield rich.Text()


def _facts(corpus: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "files", ", ".join(corpus["files"])
    yield "documents", f"{corpus['documents']:,}, {corpus['sentences']:,} sentences"
    unknown = f", {corpus['unknown'] / max(corpus['tokens'], 1):.2%} unknown" if corpus["unknown"] else ""
    yield "tokens", f"{corpus['tokens']:,}{unknown}"
    if corpus["skipped"]:
        yield "skipped", console.counted(corpus["skipped"], "line")


def below(step: Step | None, evaluated: Evaluated | None) -> Iterator["rich.Text"]:
    """Draws the lines below the numbers of a run.

    They show the losses of the last update, and the accuracies and filled texts of the last evaluation.
    """
    if step is not None and step.terms:
        yield rich.Text("   ").join(
            rich.Text.assemble((f"{name} ", "dim"), value_texts.figure(value)) for name, value in step.terms.items()
        )
    if evaluated is None:
        return
    metrics = {name: value for name, value in evaluated.metrics.items() if not name.endswith("loss")}
    yield rich.Text("   ").join(
        rich.Text.assemble((f"{name.replace('_', ' ')} ", "dim"), value_texts.score(value))
        for name, value in metrics.items()
    )
    for text in evaluated.filled:
        yield rich.Text(console.visible(text), "italic")


def vocabulary(trained: "Vocabulary") -> Iterator["rich.RenderableType"]:
    """Draws facts about a vocabulary and its corpus."""
    rows: list[tuple[str, object]] = [
        ("kind", f"{trained.kind}, {'cased' if trained.cased else 'lower-cased'}"),
        ("tokens", f"{trained.size:,}"),
        ("corpus", f"{console.counted(trained.sentences, 'sentence')}, {trained.characters:,} characters"),
        ("files", ", ".join(trained.written)),
        ("frequent", " ".join(trained.frequent)),
    ]
    if trained.skipped:
        rows.append(("left out", f"{console.counted(trained.skipped, 'line or record', 'lines or records')}"))
    rows += [("", problem) for problem in trained.problems[:_SHOWN]]
    yield from console.facts(str(trained.folder), rows)
