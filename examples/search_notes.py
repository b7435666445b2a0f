"""Search your own notes: the passages of a folder that answer a question, each with its file and line, or page.

    python examples/search_notes.py "who checks the boiler"
    python examples/search_notes.py "when does the train leave" ~/notes

Without a folder, the notes in `examples/data/notes` are searched. The first search of a folder makes an index in your
data folder; every later one reads and embeds only the files that have changed. The index holds the text of the notes:
`mlxbert indexes list` shows where it lies, and `mlxbert indexes remove` deletes it.
"""

import argparse
from pathlib import Path

import mlxbert

NOTES = Path(__file__).parent / "data" / "notes"


def place_of(hit, folder):
    """Says where a passage begins: `house.md:3`, `manual.pdf, page 2`, or the row of a table."""
    path = Path(hit.path).relative_to(folder)
    if hit.start_line is not None:
        return f"{path}:{hit.start_line}"
    if hit.page is not None:
        return f"{path}, page {hit.page}"
    return f"{path}, {hit.place}" if hit.place else path  # a web page has neither


def main():
    """Brings the index up to date, then prints the passages for the question."""
    arguments = argparse.ArgumentParser(description="Search your own notes.")
    arguments.add_argument("question")
    arguments.add_argument("folder", nargs="?", type=Path, default=NOTES)
    arguments.add_argument("--top-k", type=int, default=3)
    given = arguments.parse_args()
    folder = given.folder.expanduser().resolve()

    with mlxbert.open_index(paths=[folder], tokens=64) as index:  # short passages: notes say one thing at a time
        for _ in index.update():  # the work is done while its events are read
            pass
        print(f"{index.stats().files} files, {index.stats().chunks} passages")
        for problem in index.problems():
            print(f"{problem.kind}: {problem.path} {problem.place} ({problem.reason})")
        hits = index.search(given.question, paths=[folder], top_k=given.top_k)

    if not any(hit.is_close for hit in hits):
        print("Nothing close was found.")
    for hit in hits:
        print(f"\n{place_of(hit, folder)}\n{hit.text}")


if __name__ == "__main__":
    main()
