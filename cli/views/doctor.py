"""What mlxbert runs on."""

from collections.abc import Iterator
from typing import Any

from mlxbert.cli.views import console, rich

_MODELS, _RUNS = ("families",), ("training", "built-in model")
_MOST = 10  # faults that are shown


def draw(report: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """The facts of a report and the versions of packages; its problems are printed as hints."""
    rows = [(named(key), value) for key, value in report.items() if key not in ("packages", "problems", "check")]
    rows += [(f"package {name}", version) for name, version in report["packages"].items()]
    yield from console.facts("mlxbert doctor", rows)
    if "check" in report:
        yield from _checked(report["check"])


def named(key: str) -> str:
    """The name of a fact about the machine, for people: `memory, GiB` of `memory_gib`."""
    return key.replace("_gib", ", GiB").replace("gflops", "GFLOP/s").replace("_", " ")


def _checked(found: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """What was checked, in a line each: kernels, families, training with the built-in model, speed; then the faults."""
    groups, speed = found["groups"], found["speed"]
    kernels = [name for name in groups if name not in (*_MODELS, *_RUNS, "speed")]
    rows = [
        (title, _line([groups[name] for name in names]))
        for title, names in (("kernels", kernels), ("families x heads", _MODELS), ("training, built-in model", _RUNS))
    ]
    said = (
        "failed"
        if speed is None
        else (
            f"{speed['gflops']:,} GFLOP/s in {speed['dtype']}, copies {speed['copy_gb_per_s']:,} GB/s, 16 texts in "
            f"{speed['first_pass_seconds']:.2f} s, then {speed['second_pass_seconds']:.2f} s, peak memory "
            f"{console.size(found['memory'])}"
        )
    )
    yield from console.facts(f"checked in {found['seconds']:.0f} s", [*rows, ("speed", said)])
    for fault in found["faults"][:_MOST]:
        error = fault["problem"] or f"error {fault['error']:.1e}, expected at most {fault['allowed']:.0e}"
        yield from console.facts(
            f"FAULT: {fault['name']}", [("dtype", fault["dtype"]), ("found", error), ("hint", fault["hint"])]
        )
    if len(found["faults"]) > _MOST:
        yield from console.facts(f"{len(found['faults']) - _MOST:,} more faults: --json lists all", [])


def _line(groups: list[dict[str, Any]]) -> str:
    checks, faults = (sum(group[name] for group in groups) for name in ("checks", "faults"))
    worst = max(group["worst"] for group in groups)
    return (
        f"{checks:,} checks, {faults or 'no'} fault{'s' * (faults != 1)}; largest error {worst:.0%} of what is allowed"
    )
