"""Draws the measurements of `mlxbert bench`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.doctor.views.doctor import named, process_memory
from mlxbert.doctor.worker_job import OURS, PASSES, UPDATE

_MACHINE = ("chip", "device", "cores", "memory_gib", "blas", "mlx")
_LONG = max(tokens for texts, tokens in PASSES if texts == 1)
_UNITS = {"encoding": "texts", "training": "updates"}
_NONE = "–"  # noqa: RUF001
_NARROW = 7  # columns of a number, so that the row of a library fits 80 columns


@dataclass(frozen=True)
class _Figure:
    name: str  # the name of the figure, with the unit unless the values include it
    values: Mapping[str, str]  # the formatted value for each library
    # How many times better mlxbert is than the other library. Empty if there is no other library, or if the values
    # cannot be compared.
    ratio: str = ""


def draw(report: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws facts about the machine, a table with a row for each library, and the speeds in detail."""
    parts = _parts(report)
    yield from console.facts("mlxbert bench", facts(report))
    batches = f"texts/s in batches of {PASSES[0][0]} texts; updates with {UPDATE[0]} of {UPDATE[1]} tokens"
    yield rich.Text(batches, "dim")
    yield _compared(report)
    for name, part in parts.items():
        yield _speeds(name, part)


def facts(report: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yields facts about the machine, the versions, the model, and the memory of the processes."""
    machine, peer, parts = report["machine"], report["peer"], _parts(report)
    yield "mlxbert", report["mlxbert"]
    yield from ((named(name), machine[name]) for name in _MACHINE)
    if peer:
        yield "torch", f"{_peer(report)}, transformers {peer['transformers']}"
    yield "model", f"{report['model']}, {report['layers']} x {report['width']}"
    if state := _power(report):
        yield "power", state
    for name, part in parts.items():
        yield name, f"{part['dtype']}, matrix products {part['limit_gflops']:,.0f} GFLOP/s"
    if (single := _figures(report)[-1]).values:
        times = ", ".join(f"{side} {value}" for side, value in single.values.items())
        yield single.name, times + (f"; ratio {single.ratio}" if single.ratio else "")
    yield "peak memory", _counted(next(iter(parts.values()))["peak_memory_of"])
    for name, part in reversed(parts.items()):
        yield f"process after {name}", _processes(part["process_memory_bytes"])
    more = parts["encoding"]["many_lengths"]
    yield f"… then {more['texts']:,} texts of {more['lengths']:,} lengths", _processes(more["process_memory_bytes"])


def _power(report: Mapping[str, Any]) -> str:
    """Describes the power and the heat of a Mac, and what of them changed meanwhile; empty for other machines."""
    start, end = (report["power"][name] for name in ("start", "end"))
    changes = {name: " → ".join(dict.fromkeys(filter(None, (start[name], end[name])))) for name in start}
    heat = changes.pop("thermal_pressure", "")
    return ", ".join(filter(None, (*changes.values(), heat and f"thermal pressure {heat}")))


def _processes(memory: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(f"{side} {process_memory(kinds)}" for side, kinds in memory.items())


def _counted(kinds: Mapping[str, str]) -> str:
    """Describes what the peak memory of each library includes, which differs between libraries on MPS."""
    different = [f"{side}: of the {kind}" for side, kind in kinds.items() if kind != kinds[OURS]]
    return "; ".join([f"of the {kinds[OURS]}", *different])


def line(report: dict[str, Any]) -> str:
    """Formats a report as a row for the table of machines in the documentation."""
    machine, parts = report["machine"], _parts(report)
    dtypes = {name: part["dtype"] for name, part in parts.items()}
    differs = len({*dtypes.values()}) > 1
    columns = (
        ", ".join(filter(None, (str(machine["chip"]), f"{machine['cores']} cores", _power(report)))), machine["device"],
        dtypes["encoding"] + (f", training {dtypes['training']}" if differs else ""),
        report["mlxbert"], machine["mlx"], _peer(report), f"{report['layers']} x {report['width']}",
        *(each.values.get(OURS, _NONE) + (f" ({each.ratio})" if each.ratio else "") for each in _figures(report)),
    )  # fmt: skip
    return f"| {' | '.join(map(str, columns))} |"


def figures(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns the figures of a report as a table, with its header: a row for each figure, a column for each library."""
    sides = [*report["encoding"]["peak_memory_bytes"]]
    compared = len(sides) > 1
    rows = [
        (figure.name, *(figure.values.get(side, _NONE) for side in sides), *([figure.ratio] * compared))
        for figure in _figures(report)
    ]
    return [("figure", *sides, *(["ratio"] * compared)), *rows]


def _parts(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a report, encoding and training, that could be measured."""
    return {name: report[name] for name in _UNITS if "speeds" in report.get(name, {})}


def _peer(report: Mapping[str, Any]) -> str:
    peer = report["peer"]
    return f"{peer['torch']} on {peer['device']}" if peer else _NONE


def _figures(report: Mapping[str, Any]) -> list[_Figure]:
    """Returns the figures for comparing libraries; a figure that was not measured has no values.

    The last one, the time of a single text, has no room in a terminal's table.
    """
    encoding, training = (_parts(report).get(name, {}) for name in _UNITS)
    speeds = {speed["shape"]: speed for speed in encoding.get("speeds", ())}
    update: Mapping[str, Any] = next(iter(training.get("speeds", ())), {})
    return [
        *(
            _rate(f"{tokens} tokens", speeds.get(f"{texts} x {tokens}", {}), "texts")
            for texts, tokens in PASSES
            if texts > 1
        ),
        _time("first update", training.get("first_update_seconds", {})),
        _rate("updates per s", update, "updates"),
        _time("start", encoding.get("start_seconds", {})),
        _memory("memory", encoding),
        _memory("memory, training", training),
        _single(speeds.get(f"1 x {_LONG}", {})),
    ]


def _single(speed: Mapping[str, Any]) -> _Figure:
    times = {side: f"{_number(measured['seconds'] * 1000)} ms" for side, measured in _sides(speed)}
    return _Figure(f"one text of {_LONG} tokens", times, _ratio(speed))


def _sides(speed: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, float]]]:
    return ((side, measured) for side, measured in speed.items() if isinstance(measured, dict))


def _rate(name: str, speed: Mapping[str, Any], unit: str) -> _Figure:
    values = {side: _number(measured[f"{unit}_per_second"]) for side, measured in _sides(speed)}
    return _Figure(name, values, _ratio(speed))


def _ratio(speed: Mapping[str, Any]) -> str:
    return f"{speed['ratio']:.2f}" if "ratio" in speed else ""


def _time(name: str, seconds: Mapping[str, float]) -> _Figure:
    theirs = [value for side, value in seconds.items() if side != OURS]
    ratio = f"{theirs[0] / seconds[OURS]:.2f}" if theirs else ""
    return _Figure(name, {side: f"{value:.2f} s" for side, value in seconds.items()}, ratio)


def _memory(name: str, part: Mapping[str, Any]) -> _Figure:
    return _Figure(name, {side: f"{count / 1e9:.2f} GB" for side, count in part.get("peak_memory_bytes", {}).items()})


def _number(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _compared(report: Mapping[str, Any]) -> PlainTable:
    """Makes a table with a row for each library and a row for the ratios."""
    (_, *names), *rows = zip(*figures(report)[:-1], strict=True)
    columns = [Column(), *(Column(name, wraps=True, most=max(_NARROW, *map(len, name.split()))) for name in names)]
    return PlainTable(columns, [[rich.Text(console.visible(cell)) for cell in row] for row in rows])


def _speeds(name: str, part: Mapping[str, Any]) -> PlainTable:
    """Makes a table of the speeds of encoding or training, with the slowest and the fastest round."""
    sides = [*part["peak_memory_bytes"]]
    several = len(sides) > 1
    headers = (
        name,
        *(("library",) if several else ()),
        f"{_UNITS[name]}/s",
        "from",
        "to",
        "tokens/s",
        "GFLOP/s",
        "share",
    )
    rows = [_row(name, speed, side, several) for speed in part["speeds"] for side in sides]
    return console.listing((*headers, *(("ratio",) if several else ())), rows)


def _row(name: str, speed: Mapping[str, Any], side: str, several: bool) -> tuple[object, ...]:
    run, rate = speed[side], f"{_UNITS[name]}_per_second"
    count = run[rate] * run["seconds"]  # per batch
    return (
        speed["shape"], *((side,) if several else ()), _number(run[rate]), _number(count / run["slowest_seconds"]),
        _number(count / run["fastest_seconds"]), _number(run["tokens_per_second"]), f"{run['gflops']:,}",
        f"{run['share']:.0%}", *((_ratio(speed) if side == OURS else "",) if several else ()),
    )  # fmt: skip
