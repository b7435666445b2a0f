"""Small indexes of a tiny model, the files that they are made of, and what they find."""

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

from mlxbert.model import Model
from mlxbert.results.hit import Hit
from mlxbert.search.index import Index, open_index
from tests.helpers.tiny import WORDS

QUERIES = ("the cat sat on the mat", '"dog went"', "largest city of paris", "milk")


def passage(seed: object, words: int = 30) -> str:
    """A text that is always the same."""
    return " ".join(random.Random(str(seed)).choices(WORDS.replace("##", "").split(), k=words))


def write_files(folder: Path, count: int, seed: object = 1) -> Path:
    """Writes Markdown files and a few of records, some with what others have, too; returns their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = f"# {passage((seed, number), 3)}\n\n{passage((seed, number))}\n\n{passage((seed, number % 5), 20)}\n"
        (folder / f"{number:03}.md").write_text(text)
    rows = "".join(
        f'{{"text": "{passage((seed, "row", row), 12)}", "year": {1990 + row}}}\n' for row in range(count // 4)
    )
    (folder / "rows.jsonl").write_text(rows or '{"text": "milk", "year": 1}\n')
    return folder


def build(path: Path, folder: Path, model: Model | Path | str, **options: object) -> Index:
    """A new index of a folder."""
    index = open_index(path, model=model, paths=[folder], **options)  # type: ignore[arg-type]
    for _ in index.update():
        pass
    return index


def copy_files(path: Path, target: Path) -> Path:
    """Copies an index with what it has not yet moved from its log; returns the copy's path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for ending in ("", "-wal"):
        if Path(f"{path}{ending}").exists():
            shutil.copy(f"{path}{ending}", f"{target}{ending}")
    return target


def key(hit: Hit) -> tuple[object, ...]:
    """What is the same in every index of the same files; the score apart, which is rounded."""
    return hit.path, hit.place, hit.start_line, hit.end_line, hit.text, hit.title


def found(index: Index, queries: Iterable[str] = QUERIES) -> list[tuple[object, ...]]:
    """What an index finds for some queries in all modes, in an order that numbers of chunks have no part in."""
    rows: list[tuple[object, ...]] = []
    for query in queries:
        for mode in ("vectors", "words", "hybrid"):
            hits = index.search(query, mode=mode, top_k=1000, all_chunks=True)
            rows += sorted((query, mode, *map(str, key(hit)), round(hit.vector_score or 0, 5)) for hit in hits)
    return rows
