"""Writes the table of supported models in docs/models.md: `python scripts/models_table.py [NAME…]`.

The numbers come from benchmarks/results, the heads and models from `mlxbert.weights.families`. Speed and memory are
measured by `python benchmarks/encode.py --record`. NAMEs of tests/helpers/families.py, or `all`, are first compared
with transformers: random models on all inputs of `mlxbert/goldens/golden_outputs.py`, with hidden states and
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
from mlxbert.goldens.golden_outputs import BOUNDS, difference, load_network, outputs
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
    """Returns the family of a random model, and its largest difference from the reference in each dtype."""
    compared = FAMILIES[name]
    model = make_model(compared, head)
    largest = dict.fromkeys(BOUNDS, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        title = open_checkpoint(Path(folder)).family.title
        networks = {dtype: load_network(Path(folder), dtype) for dtype in BOUNDS}
    for case in compared.cases.values():
        reference = reference_outputs(model, case)
        for dtype, network in networks.items():
            ours = outputs(network, case)
            largest[dtype] = max(largest[dtype], *(difference(ours[part], array) for part, array in reference.items()))
    return title, largest


def measure(name: str) -> int:
    """Records the largest differences over all heads of a model; returns the number of differences above the bound."""
    above, largest, title = 0, dict.fromkeys(BOUNDS, 0.0), ""
    for head in FAMILIES[name].heads:
        title, differences = compare(name, head)
        largest = {dtype: max(largest[dtype], differences[dtype]) for dtype in BOUNDS}
        above += sum(differences[dtype] > bound for dtype, bound in BOUNDS.items())
        print(f"{name:26} {head:26}", *(f"{dtype} {apart:.1e}" for dtype, apart in differences.items()), flush=True)
    recorded.record("parity", {"model": name}, {"family": title, "largest": largest})
    return above


def _joined(cells: Sequence[str]) -> str:
    return " / ".join(cells) if any(cells) else ABSENT


def _parity(results: Iterable[dict[str, Any]]) -> str:
    largest = [result["largest"] for result in results]
    return _joined([f"{max(result[dtype] for result in largest):.0e}" if largest else "" for dtype in BOUNDS])


def _ratios(results: Sequence[dict[str, Any]], key: str, worst: Callable[..., float]) -> str:
    """The ratio of mlxbert to torch in each shape, for the worst model of a family."""
    cells = []
    for shape in SHAPES:
        ratios = [
            result[key][OURS] / result[key][PEER] for result in results if (result["batch"], result["length"]) == shape
        ]
        cells.append(f"{worst(ratios):.2f}" if ratios else "")
    return _joined([cell or "-" for cell in cells] if any(cells) else [])


def _row(families: Sequence[Family], results: dict[str, list[dict[str, Any]]]) -> str:
    """The row of the families with one title; the first of them has all heads."""
    family, types = families[0], dict.fromkeys(name for each in families for name in each.class_prefixes)
    selected = {
        name: [result for result in measured if result["family"] == family.title] for name, measured in results.items()
    }
    cells = [
        f"{family.title} ({', '.join(f'`{name}`' for name in types)})",
        ", ".join(f"`{name}`" for name in family.published),
        ", ".join(
            f"`{spec.task}`" if spec.task else spec.title for name, spec in HEADS.items() if name in family.parts
        ),
        _parity(selected["parity"]),
        _ratios(selected["encode"], "tokens_per_second", min),
        _ratios(selected["encode"], "peak_bytes", max),
    ]
    return f"| {' | '.join(cells)} |"


def _measured(results: Iterable[dict[str, Any]]) -> str:
    """The machine, versions and date of results."""
    measurements = [
        ", ".join((result["machine"], *(f"{package} {result['versions'][package]}" for package in recorded.PACKAGES)))
        + f", {result['date']}"
        for result in results
    ]
    return "; ".join(sorted(set(measurements))) or ABSENT


def table() -> str:
    """The table, with notes on its measurements."""
    results = {name: recorded.read(name) for name in ("parity", "encode")}
    results["encode"] = [result for result in results["encode"] if result["dtype"] == "float32"]
    heads = ("family (`model_type`)", "published models", "tasks", "difference", "speed", "memory")
    titles = dict.fromkeys(family.title for family in ALL)
    groups = [[family for family in ALL if family.title == title] for title in titles]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(_row(families, results) for families in groups)]
    notes = f"Difference: {_measured(results['parity'])}. Speed and memory: {_measured(results['encode'])}."
    return "\n".join([*rows, "", notes, ""])


def main() -> int:
    """Compares the named models, and writes the table; returns the number of differences above the bound."""
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
