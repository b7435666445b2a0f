"""Small indexes made with a tiny model, the files in them, and the results of searches."""

import os
import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mlxbert.errors import StoreError
from mlxbert.model import Model
from mlxbert.search.hit import Hit, SimilarPassage
from mlxbert.search.index import MODES, Index, Mode, open_index
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexProblem
from tests.helpers.tiny import WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Hits = dict[tuple[str, Mode], list["SeenHit"]]
QUERIES = ("the cat sat on the mat", '"dog went"', "largest city of paris", "milk")


LONG_AGO = 1_600_000_000


def write(path: Path, text: str | bytes = "the cat sat on the mat", seconds: int = LONG_AGO) -> Path:
    """Writes a file with a time of its own; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (seconds, seconds))
    return path


def passage(seed: object, words: int = 30) -> str:
    """Returns a random text that is always the same for a seed."""
    return " ".join(random.Random(str(seed)).choices(WORDS.replace("##", "").split(), k=words))


def write_files(folder: Path, count: int, seed: object = 1) -> Path:
    """Writes Markdown files and one file of records; some passages occur in several files. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = f"# {passage((seed, number), 3)}\n\n{passage((seed, number))}\n\n{passage((seed, number % 5), 20)}\n"
        (folder / f"{number:03}.md").write_text(text)
    rows = "".join(f'{{"text": "{passage((seed, "row", row), 12)}", "year": {1990 + row}}}\n' for row in range(count))
    (folder / "rows.jsonl").write_text(rows or '{"text": "milk", "year": 1}\n')
    return folder


def build(path: Path | str, folder: Path, model: Model | Path | str, **options: object) -> Index:
    index = open_index(path, model=model, paths=[folder], **options)  # type: ignore[arg-type]
    for _ in index.update():
        pass
    return index


def copy_files(path: Path, target: Path) -> Path:
    """Copies an index and the log of its latest changes, or a Lance table; returns the path of the copy."""
    if path.is_dir():
        return Path(shutil.copytree(path, target))
    target.parent.mkdir(parents=True, exist_ok=True)
    for ending in ("", "-wal"):
        if Path(f"{path}{ending}").exists():
            shutil.copy(f"{path}{ending}", f"{target}{ending}")
    return target


def check_changed(index: Index, docs: Path) -> None:
    """Checks that an index of `write_files`, when its files have changed, and a copy find what a new index finds."""
    index.check()
    (docs / "001.md").write_text("the dog went to the store")
    (docs / "002.md").unlink()
    [*index.update()]
    index.check()
    index.copy(docs.with_name("copy.db"))
    with (
        open_index(docs.with_name("copy.db"), model=index.model) as copy,
        build(docs.with_name("new.db"), docs, index.model) as new,
    ):
        copy.check()
        for query in QUERIES:
            scores = [[hit.score for hit in each.search(query, mode="vectors")] for each in (index, copy, new)]
            assert scores[0] == scores[1] == pytest.approx(scores[2], abs=1e-3, rel=2e-3)


def check_damaged_setting(path: Path, name: str, value: str) -> None:
    store = SqliteStore(path)
    store._connection.execute("UPDATE about SET value = ? WHERE name = ?", (value, name))
    store.close()
    with pytest.raises(StoreError, match="damaged"), open_index(path) as index:
        index.search("the dog")


@dataclass(frozen=True)
class SeenHit:
    """A hit: the places of its text and of the texts that are like it, its text, and its score."""

    places: frozenset[tuple[object, ...]]
    text: str
    score: float


@dataclass(frozen=True)
class Contents:
    """The content of an index, as searches see it, without the numbers of chunks."""

    vectors: "dict[bytes, NDArray[np.float16]]"  # of all chunks, by the hash of their text
    hits: _Hits  # for each query and mode
    problems: list[IndexProblem]


def contents(index: Index, queries: Iterable[str] = QUERIES) -> Contents:
    documents = (document for path in ("", *index.store.files()) for document in index.store.documents(path))
    hashes = {hash for document in documents for chunk in document.chunks for hash in chunk.hashes}
    hits: _Hits = {
        (query, mode): [
            SeenHit(frozenset([_place(hit), *map(_place, hit.duplicates)]), hit.text, hit.score)
            for hit in index.search(query, mode=mode, top_k=1000, all_chunks=True)
        ]
        for query in queries
        for mode in MODES
    }
    vectors = {hash: vector.astype(np.float16) for hash, vector in index.store.vectors(hashes).items()}
    return Contents(vectors, hits, index.problems())


def _place(passage: Hit | SimilarPassage) -> tuple[object, ...]:
    return passage.path, passage.place, passage.start_line


def check_same(now: Contents, before: Contents) -> None:
    """Checks that two indexes of the same files have the same content, and return the same hits in the same order.

    A kill changes which texts share a batch, thus the last digits in float32, and whether a value is rounded up or
    down: vectors may differ by one step of float16, and a cosine by twice the distance between the two vectors (which
    are scaled to length 1 again) and by rounding. Scores of word searches must be equal. Hits whose scores are closer
    may change places, and which text stands for similar ones. Hybrid scores depend on the last score of a ranking.
    """
    assert now.vectors.keys() == before.vectors.keys() and now.problems == before.problems
    apart = 0.0
    for hash, vector in before.vectors.items():
        difference = np.abs(now.vectors[hash].astype(np.float32) - vector.astype(np.float32))
        assert (difference <= np.spacing(np.maximum(np.abs(vector), np.abs(now.vectors[hash])))).all()
        apart = max(apart, float(np.linalg.norm(difference)))
    for (query, mode), expected in before.hits.items():
        hits = now.hits[query, mode]
        assert {place for hit in hits for place in hit.places} == {place for hit in expected for place in hit.places}
        allowed = 1e-6 + 2 * apart * (mode == "vectors")
        scores = {(hit.places, hit.text): hit.score for hit in expected}
        for hit in hits:
            if mode != "hybrid":
                assert abs(hit.score - scores.get((hit.places, hit.text), hit.score)) <= allowed
        if mode == "words":
            assert [hit.places for hit in hits] == [hit.places for hit in expected]
