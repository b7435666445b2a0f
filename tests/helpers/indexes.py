"""Small indexes of a tiny model, the files that they are made of, and what they find."""

import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlxbert.model import Model
from mlxbert.search.index import MODES, Index, Mode, open_index
from mlxbert.search.sqlite import SqliteStore
from tests.helpers.tiny import WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Hits = dict[tuple[str, Mode], list[tuple[tuple[object, ...], float]]]
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
    rows = "".join(f'{{"text": "{passage((seed, "row", row), 12)}", "year": {1990 + row}}}\n' for row in range(count))
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


@dataclass(frozen=True)
class Contents:
    """What is in an index, as a search sees it; numbers of chunks have no part in it.

    Attributes:
        vectors: The vectors by the hashes of their texts; those that a chunk has.
        hits: What is found, by query and mode: where and what it is, and its score.
    """

    vectors: "dict[bytes, NDArray[np.float16]]"
    hits: _Hits


def contents(index: Index, queries: Iterable[str] = QUERIES) -> Contents:
    """What is in an index, and what it finds for some queries in all modes."""
    assert isinstance(index.store, SqliteStore)
    look = "SELECT hash, vector FROM vectors WHERE id IN (SELECT vector FROM chunks)"
    rows = index.store._connection.rows(look)
    hits: _Hits = {
        (query, mode): [
            ((hit.path, hit.place, hit.start_line, hit.end_line, hit.text, hit.title), hit.score)
            for hit in index.search(query, mode=mode, top_k=1000, all_chunks=True)
        ]
        for query in queries
        for mode in MODES
    }
    return Contents({hash: np.frombuffer(vector, np.float16) for hash, vector in rows}, hits)


def check_same(now: Contents, before: Contents) -> None:
    """Two indexes of the same files have the same, and find it in the same order.

    A kill changes which texts share a batch, thus the last digits of float32, thus whether a value is rounded up or
    down to float16: vectors differ by a step of float16 at most. A query has length 1, so that a cosine differs by no
    more than the vectors are apart (twice that, as they are scaled to length 1 again), and where no vector differs by
    no more than float32 does. Scores of words are equal. What is nearer to one another than that may stand in any
    order, and so may all that has equal ranks: fused scores, which are of ranks, are not compared.
    """
    assert now.vectors.keys() == before.vectors.keys()
    apart = 0.0
    for hash, vector in before.vectors.items():
        difference = np.abs(now.vectors[hash].astype(np.float32) - vector.astype(np.float32))
        assert (difference <= np.spacing(np.maximum(np.abs(vector), np.abs(now.vectors[hash])))).all()
        apart = max(apart, float(np.linalg.norm(difference)))
    for (query, mode), expected in before.hits.items():
        hits = now.hits[query, mode]
        scores = dict(expected)
        assert len(scores) == len(expected) == len(hits) and scores.keys() == dict(hits).keys()
        if mode != "hybrid":
            allowed = 1e-6 + 2 * apart * (mode == "vectors")
            for (one, score), (_, other) in zip(hits, expected, strict=True):
                assert abs(score - scores[one]) <= allowed and abs(scores[one] - other) <= 2 * allowed
