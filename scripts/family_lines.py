"""Lines of code per family: `python scripts/family_lines.py`.

Counts the lines that a family's entry in `weights/` reaches, directly or indirectly, without empty lines and comments:
all of them, and those that no earlier family reaches. The last column counts the code in `mlxbert/` that this family is
the first to need.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("post_norm.py", "rotation.py", "rotary.py", "nomic.py", "deberta.py")
OWN_MATHEMATICS = {
    "MPNET": ("RelativeBias", "BiasTable", "_bias_row"),
    "MODERNBERT": ("PreNorm", "PreNormBlock", "_blocks", "_with_neighbours"),
    "NOMIC": (),
    "DEBERTA": (
        *("Disentangled", "DistanceTable", "_distance_row", "Distances", "DisentangledAttention", "_by_distance"),
        *("Convolution", "EmbeddingConvolution"),
    ),
}


def definitions(path: Path) -> dict[str, str]:
    """The source of every definition in a module, by name."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        else:
            continue
        first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])
        found |= dict.fromkeys(names, "\n".join(lines[first - 1 : node.end_lineno]))
    return found


def count(source: str) -> int:
    """The number of lines that are neither empty nor comments."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in source.split("\n"))


def reachable(name: str, known: dict[str, str]) -> set[str]:
    """The name and every name that it uses, directly or indirectly."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [word for word in re.findall(r"\w+", known[name]) if word in known]
    return found


def main() -> None:
    """Prints the table."""
    known: dict[str, str] = {}
    for file in FILES:
        known |= definitions(ROOT / "weights" / file)
    mathematics: dict[str, str] = {}
    for file in ("config", "positions", "attention", "blocks"):
        mathematics |= definitions(ROOT / "mlxbert" / f"{file}.py")
    families = [name for name, source in known.items() if name.isupper() and re.search(r"= (Family|replace)\(", source)]
    before: set[str] = set()
    print(f"{'family':12} {'lines':>6} {'own':>6}  {'own mathematics':>15}")
    for family in families:
        names = reachable(family, known)
        lines = sum(count(known[name]) for name in names)
        own = sum(count(known[name]) for name in names - before)
        special = sum(count(mathematics[name]) for name in OWN_MATHEMATICS.get(family, ()))
        print(f"{family.lower():12} {lines:>6} {own:>6}  {special or '':>15}")
        before |= names


if __name__ == "__main__":
    main()
