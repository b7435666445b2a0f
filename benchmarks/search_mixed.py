"""Plants facts in a folder of mixed files, and asks for them with the defaults of `mlxbert search`.

Run: python benchmarks/search_mixed.py SQUAD [--model builtin] [--folder FOLDER]

SQUAD is `dev-v1.1.json`. 200 files of eleven kinds hold paragraphs of it, and ten of them a fact that is nowhere else.
Ten questions ask for the facts: how many are found at rank 1? Thirty questions of SQuAD ask about articles of which no
paragraph is there: for how many does the search say that nothing close was found? And of 2,000 rows of which 1,500 are
equal or nearly so: how many different texts are among the first ten? Prints lines of JSON.
"""

import argparse
import csv
import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from pathlib import Path
from xml.sax.saxutils import escape

import mlxbert

FILES, ABSENT = 200, 30
FACTS = [
    ("The key of the boiler room hangs behind the green door.", "where is the key for the boiler room"),
    ("Maria Lopez takes over the accounts of the sailing club in May.", "who will do the accounts of the sailing club"),
    ("The lamp L3 takes an E14 bulb of at most 40 watts.", "how strong may the bulb of the lamp be"),
    ("Invoices above 900 euros need a second signature.", "when does an invoice have to be signed twice"),
    ("Our backup tapes are kept in the vault of Miller's Bank.", "where do we store the backups"),
    ("The espresso machine has to be descaled every eight weeks.", "how often should I descale the coffee machine"),
    ("Parcels to the islands take up to ten working days.", "how long does delivery to an island take"),
    ("The password of the guest network changes on the first Monday of a month.", "when do I get a new wifi password"),
    ("Dogs are allowed in the office on Fridays only.", "can I bring my dog to work"),
    ("The allergy of the youngest child is to hazelnuts.", "what must the smallest child not eat"),
]


def _docx(text: str) -> bytes:
    body = "".join(f"<w:p><w:r><w:t>{escape(part)}</w:t></w:r></w:p>" for part in text.split("\n\n"))
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    files = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        f'<Override PartName="/word/document.xml" ContentType="{kind}"/></Types>',
        "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="r1" Type="{relation}" Target="word/document.xml"/></Relationships>',
        "word/document.xml": f"<w:document {space}><w:body>{body}</w:body></w:document>",
    }
    with tempfile.TemporaryFile() as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        stream.seek(0)
        return stream.read()


def _html(text: str) -> bytes:
    body = "".join(f"<p>{escape(part)}</p>" for part in text.split("\n\n"))
    return f"<html><head><title>Page</title></head><body>{body}</body></html>".encode()


def _mail(text: str) -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Some notes", "a@example.com", "b@example.com"
    message.set_content(text)
    return message.as_bytes()


def _notebook(text: str) -> bytes:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": [part]} for part in text.split("\n\n")]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def _rows(text: str) -> bytes:
    return "".join(
        json.dumps({"id": number, "text": part}) + "\n" for number, part in enumerate(text.split("\n\n"))
    ).encode()


def _csv(text: str) -> bytes:
    with tempfile.TemporaryFile("w+", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("id", "note"), *enumerate(text.split("\n\n"))])
        stream.seek(0)
        return stream.read().encode()


WRITERS: dict[str, Callable[[str], bytes]] = {
    ".md": lambda text: f"# Notes\n\n{text}\n".encode(),
    ".txt": str.encode,
    ".rst": lambda text: f"Notes\n=====\n\n{text}\n".encode(),
    ".py": lambda text: f'"""{text}"""\n\nVALUE = 1\n'.encode(),
    ".html": _html,
    ".eml": _mail,
    ".ipynb": _notebook,
    ".jsonl": _rows,
    ".csv": _csv,
    ".docx": _docx,
    ".log": str.encode,
}


def write(folder: Path, paragraphs: Sequence[str]) -> dict[str, str]:
    """Writes the files; returns the name of the file with each fact."""
    draws, kinds, places = random.Random(3), [*WRITERS], dict[str, str]()
    for number in range(FILES):
        ending = kinds[number % len(kinds)]
        parts = [paragraphs[(number * 3 + part) % len(paragraphs)] for part in range(3)]
        name = f"{number:03}{ending}"
        if number < len(FACTS):
            parts.insert(draws.randrange(4), FACTS[number][0])
            places[FACTS[number][0]] = name
        (folder / name).write_bytes(WRITERS[ending]("\n\n".join(parts)))
    return places


def duplicates(folder: Path) -> None:
    """Writes a table of which three quarters of the rows are equal or nearly so."""
    draws = random.Random(4)
    same = [
        "I want to cancel my subscription",
        "I want to cancel my subscription!",
        "i want to cancel my subscription please",
    ]
    towns = ["Paris", "Rome", "Oslo", "Lagos", "Lima"]
    other = [f"Order {number} came late to {draws.choice(towns)}: {draws.getrandbits(64):x}" for number in range(500)]
    rows = [draws.choice(same) for _ in range(1500)] + other
    draws.shuffle(rows)
    (folder / "rows.csv").write_text("text\n" + "".join(f'"{row}"\n' for row in rows), encoding="utf-8")


def main() -> None:
    """Writes the files, asks, and prints what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("squad", type=Path)
    parser.add_argument("--model", default="builtin")
    args = parser.parse_args()
    articles = json.loads(args.squad.read_text(encoding="utf-8"))["data"]
    kept, left = articles[: len(articles) // 2], articles[len(articles) // 2 :]
    paragraphs = [each["context"] for article in kept for each in article["paragraphs"]]
    random.Random(1).shuffle(paragraphs)
    absent = [asked["question"] for article in left for each in article["paragraphs"] for asked in each["qas"]]
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name) / "files", Path(name) / "rows"
        folder.mkdir()
        rows.mkdir()
        places = write(folder, paragraphs)
        duplicates(rows)
        with mlxbert.open_index(Path(name) / "index.db", model=args.model, paths=[folder]) as index:
            for _ in index.update():
                pass
            for fact, question in FACTS:
                hits = index.search(question)
                rank = next((hit.rank for hit in hits if hit.path and Path(hit.path).name == places[fact]), None)
                first = {"score": round(hits[0].score, 3), "is_close": hits[0].is_close}
                print(json.dumps({"question": question, "file": places[fact], "rank": rank} | first), flush=True)
            nothing = []
            for question in random.Random(2).sample(absent, ABSENT):
                best = index.search(question)[0]
                nothing.append(not best.is_close)
                if not nothing[-1]:
                    print(json.dumps({"absent": question, "score": best.score, "text": best.text[:80]}))
            print(json.dumps({"absent": len(nothing), "said": sum(nothing)}), flush=True)
        with mlxbert.open_index(Path(name) / "rows.db", model=args.model, paths=[rows]) as index:
            for _ in index.update():
                pass
            hits = index.search("I want to cancel my subscription")
            shown = [(hit.text, len(hit.duplicates)) for hit in hits]
            print(json.dumps({"rows": 2000, "different": len({hit.text for hit in hits}), "first": shown[:3]}))


if __name__ == "__main__":
    main()
