"""The largest relative difference from transformers: `python scripts/parity_table.py [--dtype float32] [FAMILY…]`.

With `--write` the largest of each family in every dtype goes into the table of docs/models.md.

Prints a table of family by head: random models of `tests/helpers/families.py` on all inputs of
`tests/helpers/parity.py`, hidden states and attentions included. Needs torch and transformers
(requirements-parity.txt).
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.bench.reference import BOUNDS, difference, load_network, outputs
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.parity import reference_outputs

PAGE, START, END = Path(__file__).parents[1] / "docs/models.md", "<!-- parity -->", "<!-- end of parity -->"


def worst(family: str, head: str, dtype: str) -> float:
    """The largest difference over all outputs and inputs."""
    compared = FAMILIES[family]
    model = make_model(compared, head)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        network = load_network(Path(folder), dtype)
    found = 0.0
    for case in compared.cases.values():
        ours = outputs(network, case)
        reference = reference_outputs(model, case)
        found = max(found, *(difference(ours[name], array) for name, array in reference.items()))
    return found


def write() -> int:
    """Writes the table of families; the number of differences above the bound."""
    found: dict[str, dict[str, float]] = {}
    heads: dict[str, set[str]] = {}
    for family, compared in FAMILIES.items():
        kind = compared.classes
        heads.setdefault(kind, set()).update(compared.heads)
        of_kind = found.setdefault(kind, dict.fromkeys(BOUNDS, 0.0))
        for dtype in BOUNDS:
            of_kind[dtype] = max(of_kind[dtype], *(worst(family, head, dtype) for head in compared.heads))
        print(family, of_kind, flush=True)
    rows = ["| classes in `transformers` | compared | " + " | ".join(BOUNDS) + " |", "|---" * (2 + len(BOUNDS)) + "|"]
    rows += [
        f"| {kind} | {len(heads[kind])} | " + " | ".join(f"{found[kind][dtype]:.0e}" for dtype in BOUNDS) + " |"
        for kind in sorted(found)
    ]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(rows) + f"\n{END}{after}", encoding="utf-8")
    return sum(cell > BOUNDS[dtype] for cells in found.values() for dtype, cell in cells.items())


def main() -> int:
    """Prints the table; the exit status is the number of cells above the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=list(BOUNDS))
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help="only these families, by their names in tests/helpers/families.py"
    )
    parser.add_argument("--write", action="store_true", help="write the table of docs/models.md")
    arguments = parser.parse_args()
    if arguments.write:
        return write()
    dtype, chosen = arguments.dtype, {name: FAMILIES[name] for name in arguments.families or FAMILIES}
    heads = tuple(dict.fromkeys(head for compared in chosen.values() for head in compared.heads))
    print(
        f"{dtype}, allowed {BOUNDS[dtype]:.0e}\n| family | "
        + " | ".join(heads)
        + " |\n"
        + "|---" * (len(heads) + 1)
        + "|"
    )
    above = 0
    for family, compared in chosen.items():
        cells = {head: worst(family, head, dtype) for head in compared.heads}
        above += sum(cell > BOUNDS[dtype] for cell in cells.values())
        print(f"| {family} | " + " | ".join(f"{cells[head]:.1e}" if head in cells else "-" for head in heads) + " |")
        sys.stdout.flush()
    return above


if __name__ == "__main__":
    sys.exit(main())
