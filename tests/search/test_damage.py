"""Damaged indexes: they find what they found before, or say that they are damaged; never anything else in silence."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import StoreError
from mlxbert.search.index import MODES, open_index
from mlxbert.search.sqlite import SqliteStore
from tests.helpers.cases import ALL
from tests.helpers.indexes import QUERIES, build, write_files
from tests.helpers.sparse_folder import save_splade
from tests.helpers.tiny import save

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hostile_indexes.py"
_BLOCK = 4096  # bytes of a disk that are lost together


@pytest.fixture(scope="module", params=["dense", pytest.param("sparse", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return mlxbert.load((save if request.param == "dense" else save_splade)(folder), task="embed")


@pytest.fixture(scope="module")
def whole(model: mlxbert.Model, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    docs = write_files(folder / "docs", 16)
    (docs / "long.txt").write_text("the cat sat on the mat . " * 1000)
    (docs / "spoiled.jsonl").write_text('{"text": "a dog"}\n{"text": \n' * 200)
    index = build(folder / "index.db", docs, model)
    index.add([{"id": "long", "text": "milk", "about": "paris " * 4000}])  # in pages that have nothing else
    index.close()
    return (folder / "index.db").read_bytes()


def damaged(whole: bytes, rng: random.Random) -> tuple[str, bytes]:
    """What is done to a file, and the file."""
    data, kind = bytearray(whole), rng.choice(["bit", "byte", "bytes", "header", "zeros", "garbage", "end"])
    at = rng.randrange(len(data))
    block = at // _BLOCK * _BLOCK
    match kind:
        case "bit":
            data[at] ^= 1 << rng.randrange(8)
        case "byte":
            data[at] = rng.randrange(256)
        case "bytes":
            for place in (rng.randrange(len(data)) for _ in range(rng.randint(2, 20))):
                data[place] = rng.randrange(256)
        case "header":
            data[rng.randrange(100)] = rng.randrange(256)
        case "zeros":
            size = rng.choice([_BLOCK, 2 * _BLOCK])
            block = block // size * size
            data[block : block + size] = bytes(size)
        case "garbage":
            data[block : block + _BLOCK] = rng.randbytes(_BLOCK)
        case "end":
            del data[at:]
    return kind, bytes(data)


def everything(path: Path, model: mlxbert.Model) -> Any:
    """All that an index says."""
    with open_index(path, model=model) as index:
        hits = [
            (index.read(hit.chunk), hit.score, hit.to_dict(why=True))
            for query in QUERIES
            for mode in MODES
            for hit in index.search(query, mode=mode, top_k=60, all_chunks=True)
        ]
        some = [hit.to_dict() for hit in index.search("a dog", where=["year>=2000"])]
        return hits, some, index.about, index.store.files(), index.store.fields(), index.problems()


def outcomes(whole: bytes, model: mlxbert.Model, folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """What is done to a file, and what comes of it."""
    path = folder / "index.db"
    path.write_bytes(whole)
    expected = everything(path, model)
    for seed in range(count):
        for file in folder.iterdir():
            file.unlink()
        kind, data = damaged(whole, random.Random(seed))
        path.write_bytes(data)
        try:
            yield kind, "same" if everything(path, model) == expected else f"other: {seed}"
        except StoreError:
            yield kind, "refused"


def test_a_damaged_index_does_not_find_other_things(whole: bytes, model: mlxbert.Model, tmp_path: Path) -> None:
    """`MLXBERT_TEST_SEEDS` says how many damages."""
    found = Counter(outcomes(whole, model, tmp_path, int(os.environ.get("MLXBERT_TEST_SEEDS", "20"))))
    assert {outcome for _, outcome in found} <= {"same", "refused"}
    assert found.total() > sum(number for (_, outcome), number in found.items() if outcome == "same")


@pytest.mark.parametrize("at", [0, 20, 60, 68])  # magic, bytes of a page for its checksum, version, application
def test_no_byte_of_the_header_ends_the_checks(whole: bytes, model: mlxbert.Model, tmp_path: Path, at: int) -> None:
    for value in {*range(8), *(whole[at] ^ 1 << bit for bit in range(8)), 255}:
        data = bytearray(whole)
        data[at] = value
        (tmp_path / f"{value}.db").write_bytes(data)
        if data != whole:
            with pytest.raises(StoreError):
                open_index(tmp_path / f"{value}.db", model=model)


@pytest.mark.slow
def test_a_page_of_zeros_has_the_right_checksum_and_is_found(
    whole: bytes, model: mlxbert.Model, tmp_path: Path
) -> None:
    path, found = tmp_path / "index.db", list[int]()
    path.write_bytes(whole)
    expected = everything(path, model)
    for start in range(0, len(whole), 8192):
        path.write_bytes(whole[:start] + bytes(8192) + whole[start + 8192 :])
        try:
            assert everything(path, model) == expected, start // 8192
        except StoreError:
            found.append(start // 8192)
    assert len(found) > len(whole) // 8192 / 2


def test_a_file_that_is_refused_is_closed(whole: bytes, tmp_path: Path) -> None:
    descriptors, header = set[int](), bytearray(whole)
    header[60:64] = b"\0\0\0\1"  # the version of the schema
    for content in (b"no index" * 2000, bytes(header)):
        (tmp_path / "index.db").write_bytes(content)
        for _ in range(5):
            with pytest.raises(StoreError):
                SqliteStore(tmp_path / "index.db")
            descriptors.add(len(os.listdir("/dev/fd")))
    assert len(descriptors) == 1


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["dense", "sparse", "tokens"])
def test_mutations_are_refused_or_answered(vectors: str) -> None:
    """Damaged indexes of every kind of vectors raise the index's own error, or are answered."""
    count = 2_000 if ALL else 90
    command = [sys.executable, str(SCRIPT), "--count", str(count), "--vectors", vectors]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{count:,} indexes in" in done.stdout
