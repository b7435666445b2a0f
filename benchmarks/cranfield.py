"""Converts the Cranfield collection to a folder in BEIR's format, for `evaluate embed` and `search_quality.py`.

Run: python benchmarks/cranfield.py CRANFIELD FOLDER

CRANFIELD has documents in a file with `.all` in its name, queries in `.qry`, and `QRelsCorrectedforTRECeval`: query, 0,
document, grade. Judgements count queries in the order of their file, from 1. Grade 5 marks one document per query, the
paper whose author asked the question.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

_FIELD = re.compile(r"\.([A-Z])(?:\s+(.*))?")


def records(path: Path) -> Iterator[tuple[str, str, str]]:
    """The number, the title and the text of each record."""
    for record in re.split(r"^\.I\s+", path.read_text(encoding="latin-1"), flags=re.MULTILINE)[1:]:
        number, *lines = record.splitlines()
        fields, field = dict[str, list[str]](), ""
        for line in lines:
            mark = _FIELD.fullmatch(line)
            if mark is None:
                fields.setdefault(field, []).append(line)
            elif not (field == "W" and mark[1] in fields):  # a repeated mark within a text is a damaged line
                field = mark[1]
        title, text = (" ".join(" ".join(fields.get(name, ())).split()) for name in "TW")
        yield number.strip(), title, text.removeprefix(title).strip()


def write(path: Path, lines: Iterator[str]) -> None:
    """Writes lines of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    """Reads the arguments and writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cranfield", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    (documents,) = args.cranfield.glob("*.all*")
    (queries,) = args.cranfield.glob("*.qry")
    (judgements,) = args.cranfield.glob("*QRels*TREC*")
    texts = ({"_id": number, "title": title, "text": text} for number, title, text in records(documents))
    query_records = ({"_id": str(place), "text": text} for place, (_, _, text) in enumerate(records(queries), 1))
    lines = (line.split() for line in judgements.read_text().splitlines() if line.strip())
    write(args.folder / "corpus.jsonl", map(json.dumps, texts))
    write(args.folder / "queries.jsonl", map(json.dumps, query_records))
    table = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t{grade}" for query, _, document, grade in lines)]
    write(args.folder / "qrels" / "test.tsv", iter(table))


if __name__ == "__main__":
    main()
