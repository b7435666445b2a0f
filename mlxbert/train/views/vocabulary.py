"""Draws a trained vocabulary."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich

if TYPE_CHECKING:
    from mlxbert.train.pretraining.vocabulary import Vocabulary

_SHOWN = 3  # problems


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
