"""Titles and abstracts of Cranfield's documents as training pairs: no query and no judgement is read.

Run: python benchmarks/cranfield_pairs.py cran.all.1400 pairs.jsonl

An abstract of this collection begins with its title, which is left out: the pair would be trivial.
"""

import argparse
import json
from pathlib import Path

FIELDS = (".T", ".A", ".B", ".W")


def documents(text: str) -> list[dict[str, str]]:
    """The fields of each document, their lines joined."""
    found: list[dict[str, str]] = []
    field = ""
    for line in text.splitlines():
        if line.startswith(".I "):
            found.append(dict.fromkeys(FIELDS, ""))
        elif line.strip() in FIELDS:
            field = line.strip()
        else:
            found[-1][field] += f"{line} "
    return found


def main() -> None:
    """Writes the pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    pairs = []
    for one in documents(given.documents.read_text(encoding="utf-8")):
        title, body = one[".T"].strip(), one[".W"].strip().removeprefix(one[".T"].strip()).strip(" .")
        if title and body:
            pairs.append({"anchor": title, "positive": body})
    given.output.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
