"""What mlxbert runs on, and what a check of it found."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.anonymous import anonymous, without_paths

_MODELS, _RUNS, _SPEED = ("families",), ("training", "built-in model"), "speed"
_NOT_DRAWN = ("packages", "problems", "system")  # the last is part of `platform`
_MOST = 10  # operations at fault that are shown
_TIMES = 10  # what is allowed: from there on an error is shown as a multiple, not in percent
_MOST_FOLLOWING = 5  # names of what follows from them
# What a report for others has of the machine: nothing that names its owner, its host or a folder.
_TOLD = (
    "chip", "system", "macos", "mlxbert", "wheel_for", "python", "device", "dtype", "float32_products",
    "attention_gradient", "cores", "memory_gib", "memory_limit_gib", "batch_tokens",
)  # fmt: skip

Fault = dict[str, Any]


def draw(report: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """The facts of a report and the versions of packages; its problems are printed as hints."""
    rows = [(named(key), value) for key, value in report.items() if key not in _NOT_DRAWN]
    rows += [(f"package {name}", version) for name, version in report["packages"].items()]
    yield from console.facts("mlxbert doctor", rows)


def named(key: str) -> str:
    """The name of a fact about the machine, for people: `memory, GiB` of `memory_gib`."""
    return key.replace("_gib", ", GiB").replace("gflops", "GFLOP/s").replace("_", " ")


def draw_check(found: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """What was checked, in a line each: operations, families, training with the built-in model, speed; the faults."""
    groups = found["groups"]
    kernels = [name for name in groups if name not in (*_MODELS, *_RUNS, _SPEED)]
    runs = [name for name in _RUNS if name in groups]  # a quick check trains nothing
    parts = (("operations", kernels), ("families x heads", _MODELS), (", ".join(runs), runs))
    rows = [(title, _line([groups[name] for name in names if name in groups])) for title, names in parts]
    rows = [row for row in rows if row[1]]
    if not found["quick"]:
        rows.append((_SPEED, _speed(found)))
    yield from console.facts(f"{_kind(found)} in {found['seconds']:.0f} s", rows)
    faults = _by_operation(found["faults"])
    for operation, wrong in faults[:_MOST]:
        yield from console.facts(f"FAULT: {operation}", [*_described(wrong), ("hint", _main(wrong)["hint"])])
    if len(faults) > _MOST:
        yield from console.facts(f"faults of {len(faults) - _MOST:,} more: --json lists all", [])
    if found["consequences"]:
        yield from console.facts("follow from them", [("wrong, too", following(found["consequences"]))])


def _kind(found: dict[str, Any]) -> str:
    return "quick check" if found["quick"] else "full check"


def _by_operation(faults: Sequence[Fault]) -> list[tuple[str, list[Fault]]]:
    names = dict.fromkeys(one["operation"] for one in faults)
    return [(name, [one for one in faults if one["operation"] == name]) for name in names]


def _main(wrong: Sequence[Fault]) -> Fault:
    """The fault of an operation that matters most: one without a result, or the largest error; of published models."""

    def weight(fault: Fault) -> tuple[bool, float]:
        missing = fault["error"] is None
        return fault["published_models"], math.inf if missing else fault["error"] / (fault["allowed"] or 1e-9)

    return max(wrong, key=weight)


def _described(wrong: Sequence[Fault]) -> list[tuple[str, str]]:
    """What is wrong with an operation: its dtypes, an example with its error, how many checks, whom it concerns."""
    main = _main(wrong)
    error = main["problem"] or f"error {main['error']:.1e}, expected at most {main['allowed']:.0e}"
    more = f"; and {console.counted(len(wrong) - 1, 'more check')}" if len(wrong) > 1 else ""
    return [
        ("dtype", ", ".join(dict.fromkeys(one["dtype"] for one in wrong))),
        ("found", f"{main['name']}: {error}{more}"),
        ("concerns", "published models" if main["published_models"] else "no published model"),
    ]


def following(consequences: Sequence[dict[str, Any]]) -> str:
    """The first names of what is wrong because of something else, and how many others there are."""
    names = list(dict.fromkeys(one["operation"] for one in consequences))
    more = len(names) - _MOST_FOLLOWING
    return "; ".join(names[:_MOST_FOLLOWING]) + (f"; and {more:,} more" if more > 0 else "")


def _speed(found: dict[str, Any]) -> str:
    speed = found["speed"]
    if speed is None:
        return "failed"
    return (
        f"{speed['gflops']:,} GFLOP/s in {speed['dtype']}, copies {speed['copy_gb_per_s']:,} GB/s, 16 texts the "
        f"first time in {speed['first_pass_seconds']:.2f} s, then in {speed['second_pass_seconds']:.2f} s, peak memory "
        f"{console.size(found['memory'])}"
    )


def _line(groups: list[dict[str, Any]]) -> str:
    if not groups:
        return ""
    checks, faults, following = (sum(group[name] for group in groups) for name in ("checks", "faults", "consequences"))
    worst = max(group["worst"] for group in groups)
    more = f", {following:,} follow from faults" if following else ""
    said = f"{console.counted(checks, 'check')}, {console.counted(faults, 'fault') if faults else 'no faults'}{more}"
    return f"{said}; largest error {_share(worst)}{' of' if worst < _TIMES else ''} what is allowed"


def _share(worst: float) -> str:
    return f"{worst:.0%}" if worst < _TIMES else f"{worst:,.0f} times"


def markdown(report: dict[str, Any]) -> str:
    """A report with its check, to paste into an issue: what concerns the device and nothing about its user."""
    found = report["check"]
    rows = [(named(key), report[key]) for key in _TOLD if report.get(key) is not None]
    rows.insert(0, ("MLX", _mlx(report)))
    rows += [("to fix", anonymous(problem)) for problem in report["problems"]]
    rows.append((_kind(found), f"{found['seconds']:.0f} s; {_line([*found['groups'].values()])}"))
    if not found["quick"]:
        rows.append((_SPEED, _speed(found)))
    lines = ["**mlxbert doctor --report**", "", *_table(("", ""), rows), ""]
    groups = [
        (name, *(one[key] for key in ("checks", "faults", "consequences")), _share(one["worst"]))
        for name, one in found["groups"].items()
    ]
    lines += _table(
        ("group", "checks", "faults", "wrong because of a fault", "largest error, of what is allowed"), groups
    )
    if found["faults"]:
        faults = [
            (operation, *(anonymous(text) for _, text in _described(wrong)))
            for operation, wrong in _by_operation(found["faults"])
        ]
        lines += ["", *_table(("fault", "dtype", "found", "concerns"), faults)]
    if found["consequences"]:
        lines += ["", f"Wrong because of them: {anonymous(following(found['consequences']))}."]
    return "\n".join(lines)


def _mlx(report: dict[str, Any]) -> str:
    """The version of MLX, and the wheel of its library: `0.32.4 (mlx-cpu)`; with its version if that is another one."""
    version, wheel = report["packages"].get("mlx"), report["wheel"] or "no wheel"
    return f"{version} ({wheel.removesuffix(f' {version}')})"


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A table in Markdown; paths are left out of every cell, wherever they come from."""
    shown = [[console.line(without_paths(str(value)), 300) for value in row] for row in (headers, *rows)]
    cells = [[text.replace("|", "\\|") for text in row] for row in shown]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|---" * len(headers) + "|", *lines[1:]]
