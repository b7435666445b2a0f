"""`mlxbert verify`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import progress, render, session
from mlxbert.cli.options import Device, Offline, OutputOptions

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.results import Difference, Verification

_SHOWN = 8  # differences of a kind; the rest is counted


def verify(
    out: OutputOptions,
    a: Annotated[str, typer.Argument(metavar="A", help="Hub name, folder of a checkpoint, or 'builtin'.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The model to compare it with.")],
    offline: Offline = False,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, metavar="X", help="How far outputs may lie apart; by how the models are stored."),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where to compute; auto takes the GPU where there is one.", rich_help_panel="Model")
    ] = Device.auto,
) -> None:
    """Say whether two models agree, and if not, what differs. Exit status: 0 if they agree, 1 if they differ.

    Example: mlxbert verify builtin ./my-copy
    """
    from mlxbert.compare.verify import verify as compare

    with progress.download(f"{a} and {b}") as update:
        found = compare(a, b, tolerance=tolerance, device=device.value, offline=offline, on_progress=update)
    session.show_object(found.to_dict(), lambda: _draw(found), out)
    raise typer.Exit(0 if found.agree else 1)


def _draw(found: "Verification") -> Iterator["RenderableType"]:
    count = len(found.differences)
    said = "agree" if found.agree else f"differ in {count:,} thing{'s' if count > 1 else ''}"
    yield from render.facts(f"the models {said}", [("A", found.a), ("B", found.b)])
    kinds = dict.fromkeys(difference.kind for difference in found.differences)
    for kind in kinds:
        yield from render.facts(kind, _rows([one for one in found.differences if one.kind == kind]))
    if found.notes:
        yield from render.facts("notes", [("", note) for note in found.notes])
    yield from render.facts("tensors", found.tensors.items())
    yield from render.facts("outputs", numbers(found.outputs))


def _rows(differences: "list[Difference]") -> Iterator[tuple[str, object]]:
    yield from (("", difference.text) for difference in differences[:_SHOWN])
    if len(differences) > _SHOWN:
        yield "", f"… and {len(differences) - _SHOWN:,} more"


def numbers(outputs: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """What was measured, one line for each."""
    for name, value in outputs.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", f"{value:.6g}" if isinstance(value, float) else value
