"""How a trained vocabulary looks in a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich

if TYPE_CHECKING:
    from mlxbert.pretraining.vocabulary import Vocabulary

_SHOWN = 3  # problems


def vocabulary(found: "Vocabulary") -> Iterator["rich.RenderableType"]:
    """What was trained, and what it was made of."""
    rows: list[tuple[str, object]] = [
        ("kind", f"{found.kind}, {'cased' if found.cased else 'lower-cased'}"),
        ("tokens", f"{found.size:,}"),
        ("corpus", f"{console.counted(found.sentences, 'sentence')}, {found.characters:,} characters"),
        ("files", ", ".join(found.written)),
        ("frequent", " ".join(found.frequent)),
    ]
    if found.skipped:
        rows.append(("left out", f"{console.counted(found.skipped, 'line or record', 'lines or records')}"))
    rows += [("", problem) for problem in found.problems[:_SHOWN]]
    yield from console.facts(str(found.folder), rows)
