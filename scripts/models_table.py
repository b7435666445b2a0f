"""Writes the table of supported models in docs/models.md: `python scripts/models_table.py [NAME…]`.

Its numbers are those in benchmarks/results, its heads and models those of `mlxbert.weights.families`. Speed and memory
come from `python benchmarks/encode.py --record`. NAMEs of tests/helpers/families.py, or `all`, are first compared with
transformers: random models on all inputs of `mlxbert/bench/device_check/golden_outputs.py`, with hidden states and
attentions. This needs torch and transformers (requirements-parity.txt); the exit status is the number of differences
above the bound.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.bench.device_check.golden_outputs import BOUNDS, difference, load_network, outputs
from mlxbert.nn.heads import HEADS
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.registry import ALL
from tests.helpers import recorded
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.parity import reference_outputs

PAGE, START, END = Path(__file__).parents[1] / "docs/models.md", "<!-- table -->\n", "<!-- end of table -->"
SHAPES = (32, 32), (16, 128), (8, 512), (1, 8192)
OURS, PEER = "mlxbert", "torch"
ABSENT = "not measured"


def compare(name: str, head: str) -> tuple[str, dict[str, float]]:
    """The family of a random model, and its largest difference from the reference in each dtype."""
    compared = FAMILIES[name]
    model = make_model(compared, head)
    found = dict.fromkeys(BOUNDS, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        title = open_checkpoint(Path(folder)).family.title
        networks = {dtype: load_network(Path(folder), dtype) for dtype in BOUNDS}
    for case in compared.cases.values():
        reference = reference_outputs(model, case)
        for dtype, network in networks.items():
            ours = outputs(network, case)
            found[dtype] = max(found[dtype], *(difference(ours[part], array) for part, array in reference.items()))
    return title, found


def measure(name: str) -> int:
    """Records the largest differences of a model with each of its heads; the number of those above the bound."""
    above, largest, title = 0, dict.fromkeys(BOUNDS, 0.0), ""
    for head in FAMILIES[name].heads:
        title, found = compare(name, head)
        largest = {dtype: max(largest[dtype], found[dtype]) for dtype in BOUNDS}
        above += sum(found[dtype] > bound for dtype, bound in BOUNDS.items())
        print(f"{name:26} {head:26}", *(f"{dtype} {apart:.1e}" for dtype, apart in found.items()), flush=True)
    recorded.record("parity", {"model": name}, {"family": title, "largest": largest})
    return above


def _joined(cells: Sequence[str]) -> str:
    return " / ".join(cells) if any(cells) else ABSENT


def _parity(results: Iterable[dict[str, Any]]) -> str:
    largest = [one["largest"] for one in results]
    return _joined([f"{max(one[dtype] for one in largest):.0e}" if largest else "" for dtype in BOUNDS])


def _ratios(results: Sequence[dict[str, Any]], key: str, worst: Callable[..., float]) -> str:
    """What mlxbert has of torch in each shape: the worst of a family's models."""
    cells = []
    for shape in SHAPES:
        found = [one[key][OURS] / one[key][PEER] for one in results if (one["batch"], one["length"]) == shape]
        cells.append(f"{worst(found):.2f}" if found else "")
    return _joined([cell or "-" for cell in cells] if any(cells) else [])


def _row(families: Sequence[Family], results: dict[str, list[dict[str, Any]]]) -> str:
    """The row of families of one title, of which the first has all heads."""
    family, types = families[0], dict.fromkeys(name for one in families for name in one.class_prefixes)
    own = {name: [one for one in found if one["family"] == family.title] for name, found in results.items()}
    cells = [
        f"{family.title} ({', '.join(f'`{name}`' for name in types)})",
        ", ".join(f"`{name}`" for name in family.published),
        ", ".join(
            f"`{spec.task}`" if spec.task else spec.title for name, spec in HEADS.items() if name in family.parts
        ),
        _parity(own["parity"]),
        _ratios(own["encode"], "tokens_per_second", min),
        _ratios(own["encode"], "peak_bytes", max),
    ]
    return f"| {' | '.join(cells)} |"


def _measured(results: Iterable[dict[str, Any]]) -> str:
    """Where and when results were measured."""
    made = [
        ", ".join((one["machine"], *(f"{package} {one['versions'][package]}" for package in recorded.PACKAGES)))
        + f", {one['date']}"
        for one in results
    ]
    return "; ".join(sorted(set(made))) or ABSENT


def table() -> str:
    """The table, and what it was measured with."""
    results = {name: recorded.read(name) for name in ("parity", "encode")}
    results["encode"] = [one for one in results["encode"] if one["dtype"] == "float32"]
    heads = ("family (`model_type`)", "published models", "tasks", "difference", "speed", "memory")
    titles = dict.fromkeys(family.title for family in ALL)
    alike = [[family for family in ALL if family.title == title] for title in titles]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(_row(families, results) for families in alike)]
    notes = f"Difference: {_measured(results['parity'])}. Speed and memory: {_measured(results['encode'])}."
    return "\n".join([*rows, "", notes, ""])


def main() -> int:
    """Measures if asked to, and writes the table; the number of differences above the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or of: {'; '.join(FAMILIES)}")
    names = parser.parse_args().names
    if unknown := {*names} - {*FAMILIES, "all"}:
        parser.error(f"not in tests/helpers/families.py: {', '.join(unknown)}")
    above = sum(measure(name) for name in (FAMILIES if "all" in names else names))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(before + START + table() + END + rest.partition(END)[2], encoding="utf-8")
    return above


if __name__ == "__main__":
    sys.exit(main())
