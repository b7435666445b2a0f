"""Draws the facts of `mlxbert doctor` about this machine, its check, and the measurements of `mlxbert bench`.

A report names no paths.
"""

import getpass
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.doctor.worker_job import OURS, PASSES, UPDATE

_MODELS, _RUNS, _SPEED = ("families",), ("training", "built-in model"), "speed"
_NOT_DRAWN = ("packages", "problems", "system")  # the last is part of `platform`
_MAX_FAULTS = 10  # faulty operations shown
_MULTIPLES = 10  # times the allowed error; a larger error is shown as a multiple, not in percent
_MAX_CONSEQUENCES = 5  # names shown
# The facts of a public report: nothing that identifies the owner, the host or a folder.
_PUBLIC_FACTS = (
    "chip", "system", "macos", "power_source", "energy_mode", "thermal_pressure", "mlxbert", "wheel_for", "python",
    "device", "dtype", "dtype_reason", "float32_products", "attention_gradient", "cores", "memory_gib",
    "memory_free_gib", "memory_limit_gib", "batch_tokens",
)  # fmt: skip

Fault = dict[str, Any]


def draw(report: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the facts of a report and the versions of packages. Problems are not drawn, but printed as hints."""
    rows = [(named(key), value) for key, value in report.items() if key not in _NOT_DRAWN]
    rows += [(f"package {name}", version) for name, version in report["packages"].items()]
    yield from console.facts("mlxbert doctor", rows)


def named(key: str) -> str:
    """Returns the readable name of a fact about the machine: `memory, GiB` for `memory_gib`."""
    return key.replace("_gib", ", GiB").replace("gflops", "GFLOP/s").replace("_", " ")


def draw_check(check: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the result of a check: lines with the counts and the speed, then the faults and their consequences."""
    groups = check["groups"]
    kernels = [name for name in groups if name not in (*_MODELS, *_RUNS, _SPEED)]
    runs = [name for name in _RUNS if name in groups]  # a quick check trains nothing
    parts = (("operations", kernels), ("families x heads", _MODELS), (", ".join(runs), runs))
    rows = [(title, _line([groups[name] for name in names if name in groups])) for title, names in parts]
    rows = [row for row in rows if row[1]]
    if not check["quick"]:
        rows.append((_SPEED, _speed(check)))
    rows.append(("process", process_memory(check["process_memory"])))
    yield from console.facts(f"{_kind(check)} in {check['seconds']:.0f} s", rows)
    faults = _by_operation(check["faults"])
    for operation, wrong in faults[:_MAX_FAULTS]:
        yield from console.facts(f"FAULT: {operation}", [*_described(wrong), ("hint", _main(wrong)["hint"])])
    if len(faults) > _MAX_FAULTS:
        yield from console.facts(f"faults of {len(faults) - _MAX_FAULTS:,} more: --json lists all", [])
    if check["consequences"]:
        yield from console.facts("follow from them", [("wrong, too", following(check["consequences"]))])


def process_memory(kinds: Mapping[str, int]) -> str:
    """Formats the memory of a process: `resident 0.4 GB, footprint 1.2 GB`."""
    return ", ".join(f"{kind} {console.size(count)}" for kind, count in kinds.items()) or "unknown"


def _kind(check: dict[str, Any]) -> str:
    return "quick check" if check["quick"] else "full check"


def _by_operation(faults: Sequence[Fault]) -> list[tuple[str, list[Fault]]]:
    names = dict.fromkeys(fault["operation"] for fault in faults)
    return [(name, [fault for fault in faults if fault["operation"] == name]) for name in names]


def _main(faults: Sequence[Fault]) -> Fault:
    """Returns the worst fault of an operation.

    Faults that affect published models are worse than others. Among faults that affect equal models, a fault without a
    finite result is the worst, followed by the fault with the largest error relative to the allowed error.
    """

    def weight(fault: Fault) -> tuple[bool, float]:
        missing = fault["error"] is None
        return fault["published_models"], math.inf if missing else fault["error"] / (fault["allowed"] or 1e-9)

    return max(faults, key=weight)


def _described(faults: Sequence[Fault]) -> list[tuple[str, str]]:
    """Describes the faults of an operation in rows: dtypes, the worst fault, whether published models are affected.

    The row of the worst fault also says how many other faults there are.
    """
    main = _main(faults)
    error = main["problem"] or f"error {main['error']:.1e}, expected at most {main['allowed']:.0e}"
    more = f"; and {console.counted(len(faults) - 1, 'more check')}" if len(faults) > 1 else ""
    return [
        ("dtype", ", ".join(dict.fromkeys(fault["dtype"] for fault in faults))),
        ("found", f"{main['name']}: {error}{more}"),
        ("concerns", "published models" if main["published_models"] else "no published model"),
    ]


def following(consequences: Sequence[dict[str, Any]]) -> str:
    """Lists the first operations that are wrong because of a fault, and gives the number of the others."""
    names = list(dict.fromkeys(fault["operation"] for fault in consequences))
    more = len(names) - _MAX_CONSEQUENCES
    return "; ".join(names[:_MAX_CONSEQUENCES]) + (f"; and {more:,} more" if more > 0 else "")


def _speed(check: dict[str, Any]) -> str:
    speed = check["speed"]
    if speed is None:
        return "failed"
    return (
        f"{speed['gflops']:,} GFLOP/s in {speed['dtype']}, copies {speed['copy_gb_per_s']:,} GB/s, 16 texts the "
        f"first time in {speed['first_pass_seconds']:.2f} s, then in {speed['second_pass_seconds']:.2f} s, peak memory "
        f"{console.size(check['memory'])}"
    )


def _line(groups: list[dict[str, Any]]) -> str:
    if not groups:
        return ""
    checks, faults, following = (sum(group[name] for group in groups) for name in ("checks", "faults", "consequences"))
    worst = max(group["worst"] for group in groups)
    more = f", {following:,} follow from faults" if following else ""
    counts = f"{console.counted(checks, 'check')}, {console.counted(faults, 'fault') if faults else 'no faults'}{more}"
    return f"{counts}; largest error {_share(worst)}{' of' if worst < _MULTIPLES else ''} what is allowed"


def _share(worst: float) -> str:
    return f"{worst:.0%}" if worst < _MULTIPLES else f"{worst:,.0f} times"


def markdown(report: dict[str, Any]) -> str:
    """Formats a report and its check as text to paste into an issue, with nothing that identifies the user."""
    check = report["check"]
    rows = [(named(key), report[key]) for key in _PUBLIC_FACTS if report.get(key) is not None]
    rows.insert(0, ("MLX", _mlx(report)))
    rows += [("to fix", anonymous(problem)) for problem in report["problems"]]
    rows.append((_kind(check), f"{check['seconds']:.0f} s; {_line([*check['groups'].values()])}"))
    if not check["quick"]:
        rows.append((_SPEED, _speed(check)))
    rows.append(("process", process_memory(check["process_memory"])))
    lines = ["**mlxbert doctor --report**", "", *_table(("", ""), rows), ""]
    groups = [
        (name, *(group[key] for key in ("checks", "faults", "consequences")), _share(group["worst"]))
        for name, group in check["groups"].items()
    ]
    lines += _table(
        ("group", "checks", "faults", "wrong because of a fault", "largest error, of what is allowed"), groups
    )
    if check["faults"]:
        faults = [
            (operation, *(anonymous(text) for _, text in _described(wrong)))
            for operation, wrong in _by_operation(check["faults"])
        ]
        lines += ["", *_table(("fault", "dtype", "found", "concerns"), faults)]
    if check["consequences"]:
        lines += ["", f"Wrong because of them: {anonymous(following(check['consequences']))}."]
    return "\n".join(lines)


def measured(facts: Iterable[tuple[str, object]], figures: Sequence[Sequence[str]]) -> str:
    """Formats a measurement as the second part of a report."""
    rows = [(name, anonymous(str(value))) for name, value in facts]
    table = ["", *_table(figures[0], figures[1:])] if figures else []
    return "\n".join(["", "**mlxbert bench**", "", *_table(("", ""), rows), *table])


def _mlx(report: dict[str, Any]) -> str:
    """Formats the version of MLX and its wheel: `0.32.4 (mlx-cpu)`, with the version of the wheel if it differs."""
    version, wheel = report["packages"].get("mlx"), report["wheel"] or "no wheel"
    return f"{version} ({wheel.removesuffix(f' {version}')})"


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Formats a Markdown table; removes paths from every cell."""
    texts = [[console.line(without_paths(str(value)), 300) for value in row] for row in (headers, *rows)]
    cells = [[text.replace("|", "\\|") for text in row] for row in texts]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|---" * len(headers) + "|", *lines[1:]]


_REMOVED = "…"
# A path starts with `/`, `~/`, `C:\` or `\\`, but not within a word, as in `GFLOP/s`. Folder names may have any
# characters, including spaces and quotes: so a match extends to the last separator in the text, and from there to where
# a path usually ends: at a quote, a bracket, a punctuation mark before a space, or a known suffix.
_PATH = re.compile(
    r"""
    (?: (?<![\w.]) (?: ~[\w.-]* )? / (?=\S) | (?<!\w) [A-Za-z]: [/\\] | \\\\ (?=\w) )
    (?: .* [/\\] )?
    .*? (?:
        (?= ['"`\u2019\u201d»] (?!\w) | [:;,.] (?:\s|$) | [)\]>|] | $ )
        | \. (?: metallib | metal | so (?:\.\d+)* | dylib | safetensors | json | py | npz | cu | ptx | bin | txt ) \b
        | $
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_MIN_LENGTH = 2  # characters of a name to remove


def without_paths(text: str) -> str:
    """Replaces each path by `…`, and also any text between two paths."""
    return _PATH.sub(_REMOVED, text)


def anonymous(text: str) -> str:
    """Removes paths from a text, and the names of the user, of the user's home and of the machine."""
    for home in sorted(_homes(), key=len, reverse=True):
        text = text.replace(home, f"{_REMOVED}/home")
    text = without_paths(text).replace(_REMOVED * 2, _REMOVED)
    for name in sorted(_names(), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _REMOVED, text, flags=re.IGNORECASE)
    return text


def _homes() -> frozenset[str]:
    """Returns the path of the user's home, also with links resolved; leaves out `/`, with which any path begins."""
    home = os.path.expanduser("~")
    return frozenset(path for path in (home, os.path.realpath(home)) if len(path) > 1 and os.path.isabs(path))


def _names() -> frozenset[str]:
    return frozenset(name.strip() for name in _all_names() if len(name.strip()) >= _MIN_LENGTH)


def _all_names() -> Iterator[str]:
    """Yields the names of the user, and the name of the machine with and without its domain."""
    yield from (os.path.basename(home) for home in _homes())
    yield from (os.environ.get(variable, "") for variable in ("USER", "LOGNAME"))
    try:
        import pwd

        account = pwd.getpwuid(os.getuid())
        yield from (getpass.getuser(), account.pw_name, account.pw_gecos.partition(",")[0])
    except (ImportError, KeyError, OSError):  # a container whose user has no name
        pass
    yield from (platform.node(), platform.node().partition(".")[0])


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


def draw_bench(report: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws facts about the machine, a table with a row for each library, and the speeds in detail."""
    parts = _parts(report)
    yield from console.facts("mlxbert bench", bench_facts(report))
    batches = f"texts/s in batches of {PASSES[0][0]} texts; updates with {UPDATE[0]} of {UPDATE[1]} tokens"
    yield rich.Text(batches, "dim")
    yield _compared(report)
    for name, part in parts.items():
        yield _speeds(name, part)


def bench_facts(report: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
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


def bench_line(report: dict[str, Any]) -> str:
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


def bench_figures(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
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
    (_, *names), *rows = zip(*bench_figures(report)[:-1], strict=True)
    columns = [Column(), *(Column(name, wraps=True, most=max(_NARROW, *map(len, name.split()))) for name in names)]
    return PlainTable(columns, [[rich.Text(console.visible(cell)) for cell in row] for row in rows])


def _speeds(name: str, part: Mapping[str, Any]) -> PlainTable:
    """Makes a table of the speeds of encoding or training, with the slowest and the fastest round."""
    sides = [*part["peak_memory_bytes"]]
    several = len(sides) > 1
    library, ratio = (("library",), ("ratio",)) if several else ((), ())
    headers = (name, *library, f"{_UNITS[name]}/s", "from", "to", "tokens/s", "GFLOP/s", "share", *ratio)
    return console.listing(headers, [_row(name, speed, side, several) for speed in part["speeds"] for side in sides])


def _row(name: str, speed: Mapping[str, Any], side: str, several: bool) -> tuple[object, ...]:
    run, rate = speed[side], f"{_UNITS[name]}_per_second"
    count = run[rate] * run["seconds"]  # per batch
    return (
        speed["shape"], *((side,) if several else ()), _number(run[rate]), _number(count / run["slowest_seconds"]),
        _number(count / run["fastest_seconds"]), _number(run["tokens_per_second"]), f"{run['gflops']:,}",
        f"{run['share']:.0%}", *((_ratio(speed) if side == OURS else "",) if several else ()),
    )  # fmt: skip
