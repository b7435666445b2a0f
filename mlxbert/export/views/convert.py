"""Draws the result of a conversion."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich
from mlxbert.export.views.verify import differences, measured

if TYPE_CHECKING:
    from mlxbert.export.compare.reports import Conversion
    from mlxbert.export.gguf.write_gguf import GgufConversion

_SHOWN = 3  # names
# Optimizer states and training counters, by the last part of a tensor's name.
TRAINING = re.compile(
    r"(.*[/.])?(adam\w*|lamb\w*|momentum\w*|exp_avg\w*|ExponentialMovingAverage"
    r"|global_step|beta\d_power|(current_)?loss_scale\w*|(good|bad)_steps\w*)",
    re.I,
)


def conversion(result: "Conversion") -> Iterator["rich.RenderableType"]:
    """Draws which files were written, and how the result differs from the source."""
    rows: list[tuple[str, object]] = [
        ("from", f"{result.source} ({result.family}, {result.format})"),
        ("files", f"{len(result.written)} and a manifest, {console.size(result.bytes)}"),
    ]
    rows += [("changed", sentence) for sentence in result.changed or ("nothing",)]
    optimizer = [name for name in result.left_out if TRAINING.fullmatch(name)]
    tensors = [name for name in result.left_out if not TRAINING.fullmatch(name)]
    rows += [("left out", _named(console.counted(len(tensors), "tensor"), tensors))] if tensors else []
    rows += [("left out", _named(f"{len(optimizer):,} of an optimizer", optimizer))] if optimizer else []
    yield from console.facts(str(result.folder), rows)
    comparison = result.difference
    if not comparison.agree:
        yield from console.facts("the result does not agree with its source", [])
        yield from differences(comparison)
    if comparison.notes:
        yield from console.facts("notes on source (A) and result (B)", [("", note) for note in comparison.notes])
    yield from measured(comparison, " against the source")


def gguf_file(result: "GgufConversion") -> Iterator["rich.RenderableType"]:
    """Draws what a GGUF file holds."""
    rows: list[tuple[str, object]] = [
        ("from", f"{result.source} ({result.family})"),
        ("runs as", f"{result.architecture}, {result.pooling}"),
        ("size", f"{console.size(result.bytes)}, {console.counted(result.tensors, 'tensor')}, {result.type}"),
    ]
    yield from console.facts(str(result.file), rows + [("left out", phrase) for phrase in result.left_out])


def _named(what: str, names: list[str]) -> str:
    more = ", …" if len(names) > _SHOWN else ""
    return f"{what}: {', '.join(names[:_SHOWN])}{more}"
