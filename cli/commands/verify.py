"""`mlxbert verify`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.options import Device, Offline, OutputOptions
from mlxbert.cli.views import console, progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.results import Verification

_SHOWN, _EXAMPLES = 8, 3  # differences of a kind; of more than so many a few, and how many there are
_APART = "largest difference"


def verify(
    out: OutputOptions,
    a: Annotated[str, typer.Argument(metavar="A", help="Hub name, folder of a checkpoint, or 'builtin'.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The model to compare it with.")],
    offline: Offline = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="X",
            help="How far outputs may lie apart. By default 0.0001; 0.02 or 0.2 where tensors are equal only once "
            "stored as float16 or bfloat16; any distance where quantized: such models are judged by it only with X.",
        ),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where to compute; auto takes the GPU where there is one.", rich_help_panel="Model")
    ] = Device.auto,
) -> None:
    """Say whether two models agree, and if not, what differs.

    Exit status: 0 if they agree, 1 if they differ, or if one cannot be read: then nothing is on stdout.

    Example: mlxbert verify builtin ./my-copy
    """
    from mlxbert.folders.verify import verify as compare

    with progress.download(f"{a} and {b}") as update:
        found = compare(a, b, tolerance=tolerance, device=device.value, offline=offline, on_progress=update)
    session.show_object(found.to_dict(), lambda: _draw(found), out)
    raise typer.Exit(0 if found.agree else 1)


def _draw(found: "Verification") -> Iterator["RenderableType"]:
    yield from console.facts(f"the models {_verdict(found)}", [("A", found.a), ("B", found.b)])
    yield from differences([(one.kind, one.text) for one in found.differences], found.tensors)
    if found.notes:
        yield from console.facts("notes", [("", note) for note in found.notes])
    yield from measured(found.tensors, found.outputs)


def _verdict(found: "Verification") -> str:
    if found.agree and found.outputs["tolerance"] is None:
        return "agree as far as quantized weights can tell; outputs are not judged"
    if found.agree and "texts" not in found.outputs:
        return "agree, and neither computes numbers"
    count = len(found.differences)
    return "agree" if found.agree else f"differ in {count:,} thing{'s' if count > 1 else ''}"


def differences(found: list[tuple[str, str]], tensors: dict[str, int]) -> Iterator["RenderableType"]:
    """What differs, a list for each kind.

    Args:
        found: The kind and the sentence of each.
        tensors: The counts of tensors.
    """
    for kind in dict.fromkeys(kind for kind, _ in found):
        texts = [text for other, text in found if other == kind]
        lines = texts if len(texts) <= _SHOWN else texts[:_EXAMPLES]
        if kind == "tensor" and len(texts) > _SHOWN:
            lines.insert(0, f"{tensors['different']:,} of {tensors['compared']:,} tensors differ")
        if len(texts) > _SHOWN:
            lines.append(f"… and {len(texts) - _EXAMPLES:,} more")
        yield from console.facts(kind, [("", line) for line in lines])


def measured(tensors: dict[str, int], outputs: dict[str, Any], against: str = "") -> Iterator["RenderableType"]:
    """The counts of tensors, and how far outputs lie apart; the headings end with `against`."""
    labels = {"rounded": "equal once stored alike"}
    yield from console.facts(
        f"tensors{against}", [(labels.get(name, name), f"{count:,}") for name, count in tensors.items()]
    )
    if len(outputs) > 1:  # than the tolerance
        yield from console.facts(f"outputs{against}", _outputs(outputs))


def _outputs(outputs: dict[str, Any]) -> Iterator[tuple[str, object]]:
    from mlxbert.folders.probes import PAIRS, TEXTS

    yield "texts that both cut alike", f"{outputs['texts']} of {len(TEXTS) + len(PAIRS)}"
    if "last_hidden_state" in outputs:
        yield f"hidden states, {_APART}", _number(outputs["last_hidden_state"])
    for name, apart in outputs.get("heads", {}).items():
        yield f"logits of {name}, {_APART}", _number(apart)
    if vectors := outputs.get("vectors"):
        yield "vectors, smallest cosine", _number(vectors["smallest_cosine"])
        yield f"vectors, {_APART}", _number(vectors["largest_difference"])
    if masked := outputs.get("fill_mask"):
        yield "first word the same", f"{round(masked['same_first_word'] * masked['masks'])} of {masked['masks']} masks"
        yield f"probabilities of words, {_APART}", _number(masked["largest_score_difference"])
    allowed = outputs["tolerance"]
    yield "allowed difference", "any (quantized)" if allowed is None else _number(allowed)


def _number(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value  # what JSON has no number for is a text
