"""What mlxbert runs on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console

if TYPE_CHECKING:
    from rich.console import RenderableType


def draw(report: dict[str, Any]) -> Iterator["RenderableType"]:
    """The facts of a report and the versions of packages; its problems are printed as hints."""
    rows = [(key, value) for key, value in report.items() if key not in ("packages", "problems")]
    rows += [(f"package {name}", version) for name, version in report["packages"].items()]
    return console.facts("mlxbert doctor", rows)
