"""How a conversion looks in a terminal."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.verify import differences, measured

if TYPE_CHECKING:
    from mlxbert.folders.compare.reports import Conversion

_SHOWN = 3  # names
# The state of an optimizer and counters of training, by the last part of a name.
TRAINING = re.compile(
    r"(.*[/.])?(adam\w*|lamb\w*|momentum\w*|exp_avg\w*|ExponentialMovingAverage"
    r"|global_step|beta\d_power|(current_)?loss_scale\w*|(good|bad)_steps\w*)",
    re.I,
)


def conversion(found: "Conversion") -> Iterator["rich.RenderableType"]:
    """What was written, and how far it is from the source."""
    rows: list[tuple[str, object]] = [
        ("from", f"{found.source} ({found.family}, {found.format})"),
        ("files", f"{len(found.written)} and a manifest, {console.size(found.bytes)}"),
    ]
    rows += [("changed", sentence) for sentence in found.changed or ("nothing",)]
    training = [name for name in found.left_out if TRAINING.fullmatch(name)]
    others = [name for name in found.left_out if not TRAINING.fullmatch(name)]
    rows += [("left out", _named(console.counted(len(others), "tensor"), others))] if others else []
    rows += [("left out", _named(f"{len(training):,} of an optimizer", training))] if training else []
    yield from console.facts(str(found.folder), rows)
    apart = found.difference
    if not apart.agree:
        yield from console.facts("the result does not agree with its source", [])
        yield from differences(apart)
    if apart.notes:
        yield from console.facts("notes on source (A) and result (B)", [("", note) for note in apart.notes])
    yield from measured(apart, " against the source")


def _named(what: str, names: list[str]) -> str:
    more = ", …" if len(names) > _SHOWN else ""
    return f"{what}: {', '.join(names[:_SHOWN])}{more}"
