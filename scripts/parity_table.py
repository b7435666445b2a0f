"""The largest relative difference from transformers: `python scripts/parity_table.py [--dtype float32] [FAMILY…]`.

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


def main() -> int:
    """Prints the table; the exit status is the number of cells above the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=list(BOUNDS))
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help="only these families, by their names in tests/helpers/families.py"
    )
    arguments = parser.parse_args()
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
