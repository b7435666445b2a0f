"""What was measured of this machine."""

from collections.abc import Iterator
from typing import Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.doctor import named

_MACHINE = ("chip", "device", "cores", "memory_gib", "blas", "mlx")


def draw(report: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """The machine, a table of speeds, and the row of a table of machines; of training where the time of a step goes."""
    machine, sides = report["machine"], [*report["start"]]
    rows: list[tuple[str, object]] = [(named(name), machine[name]) for name in _MACHINE]
    rows += [("model", f"{report['model']}, {report['layers']} x {report['width']}"), ("dtype", report["dtype"])]
    rows += [("matrix products", f"{report['limit']:,.0f} GFLOP/s")]
    rows += [(f"start, {side}", f"{report['start'][side]:.2f} s") for side in sides]
    rows += [(f"peak memory, {side}", console.size(report["memory"][side])) for side in sides]
    yield from console.facts("mlxbert bench", rows)
    ratio = ("ratio",) if len(sides) > 1 else ()
    yield console.listing(
        ("shape", *(f"{side}, tokens/s" for side in sides), "from", "to", "GFLOP/s", "share", *ratio),
        [_row(speed, sides) for speed in report["speeds"]],
    )
    if not report["train"]:
        yield rich.Text(console.visible(line(report)))
    elif where := [_where(speed, side) for speed in report["speeds"] for side in sides if "network" in speed[side]]:
        yield console.listing(("shape", "library", "step", "network", "update", "cores wait"), where)


def _where(speed: dict[str, Any], side: str) -> tuple[object, ...]:
    step = speed[side]
    seconds = (f"{step[name]:.3f} s" for name in ("seconds", "network", "update"))
    return speed["shape"], side, *seconds, f"{max(1 - step['busy'], 0):.0%}"


def _row(speed: dict[str, Any], sides: list[str]) -> tuple[object, ...]:
    ours = speed[sides[0]]
    return (
        speed["shape"], *(f"{speed[side]['tokens_per_second']:,}" for side in sides), f"{ours['slowest']:,}",
        f"{ours['fastest']:,}", f"{ours['gflops']:,}", f"{ours['share']:.0%}",
        *([f"{speed['ratio']:.2f}"] if len(sides) > 1 else []),
    )  # fmt: skip


def line(report: dict[str, Any]) -> str:
    """A row of the table of machines."""
    machine = report["machine"]
    found = {one["shape"]: f"{one['mlxbert']['tokens_per_second']:,}" + _against(one) for one in report["speeds"]}
    speeds = [found.get(shape, "–") for shape in report["shapes"]]  # noqa: RUF001
    columns = (
        f"{machine['chip']}, {machine['cores']} cores", machine["device"], report["dtype"], f"mlx {machine['mlx']}",
        f"{report['layers']} x {report['width']}", *speeds, f"{report['start']['mlxbert']:.2f} s",
    )  # fmt: skip
    return f"| {' | '.join(map(str, columns))} |"


def _against(speed: dict[str, Any]) -> str:
    return f" ({speed['ratio']:.2f})" if "ratio" in speed else ""
