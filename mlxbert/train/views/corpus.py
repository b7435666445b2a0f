"""Draws the corpus of pre-training, and the model's predictions for a few texts."""

from collections.abc import Iterator, Mapping
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.train.loop.events import Evaluated, Started, Step
from mlxbert.train.views import report, value_texts

_SHOWN = 3  # problems


def before(started: Started, corpus: Mapping[str, Any]) -> Iterator["rich.RenderableType"]:
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
        yield from report.estimate(started.estimate)
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
