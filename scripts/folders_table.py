"""Writes the table in docs/formats.md of the programs that open our folders: `python scripts/folders_table.py`.

A folder of every kind is written and opened, which takes minutes and needs torch, transformers, sentence-transformers
and peft (requirements-parity.txt). The exit status is 1 if a program silently gives a folder a random head.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.openers import OPENERS, PIPELINES, cells, outcomes
from tests.helpers.written import KINDS, start

PAGE, START, END = Path(__file__).parents[1] / "docs/formats.md", "<!-- folders -->\n", "<!-- end of folders -->"


def main() -> int:
    """Opens all folders, and writes the table."""
    rows: dict[tuple[str, ...], list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        starting_folders = start(Path(name) / "start")
        for number, (kind, write) in enumerate(KINDS.items()):
            target = Path(name) / str(number)
            write(starting_folders, target)
            row_cells = tuple(cells(outcomes(target)))
            print(kind, *row_cells, sep="\t", flush=True)
            rows.setdefault(row_cells, []).append(kind)
    names = [f"`{opener.replace('AutoModelFor', '…')}`" for opener in OPENERS if opener not in PIPELINES]
    lines = [["folder", *names], ["---"] * (len(names) + 1), *([", ".join(kinds), *row] for row, kinds in rows.items())]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(f"{before}{START}{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return int(any("random head" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
