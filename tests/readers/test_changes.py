"""Files that change while they are read, by each reader."""

import gzip
import io
import json
import lzma
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast
from unittest import mock

import pytest

import mlxbert
from mlxbert.cli.output.resumable_file import FileOutput
from mlxbert.errors import ChangedError
from mlxbert.readers.formats import read_records
from mlxbert.readers.input_files import InputFile, hashed, open_source
from tests.helpers.program import call
from tests.helpers.rooms import needs

COUNT = 1200  # rows
WORDS = [f"the cat {number}" for number in range(COUNT)]
CONLL = "".join(f"{word}\tO\ncat\tO\n\n" for word in range(COUNT)).encode()
CONLLU = "".join(f"1\t{word}\tit\tNOUN\t_\t_\t0\t_\t_\t_\n\n" for word in range(COUNT)).encode()
LINES = "".join(f"{text}\n" for text in WORDS).encode()
OBJECTS = "".join(json.dumps({"text": text}) + "\n" for text in WORDS).encode()
FILES = {
    "in.txt": LINES, "in.csv": b"text\n" + LINES, "in.tsv": b"text\n" + LINES, "in.jsonl": OBJECTS,
    "in.txt.gz": gzip.compress(LINES), "in.jsonl.xz": lzma.compress(OBJECTS), "in.parquet": b"",
    "in.conll": CONLL, "in.conllu": CONLLU, "in.conll.gz": gzip.compress(CONLL),
}  # fmt: skip
SENTENCES = [name for name in FILES if ".conll" in name]


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more\n")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    """As many other bytes, in place."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))  # clocks may be coarse


EACH = [append, truncate, overwrite]
CHANGES = pytest.mark.parametrize("change", EACH)
Change = Callable[[Path], None]


def write(folder: Path, name: str) -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        pa.parquet = pytest.importorskip("pyarrow.parquet")
        pa.parquet.write_table(pa.table({"text": WORDS}), path, row_group_size=100)
    else:
        path.write_bytes(FILES[name])
    return path


def changed(names: Iterable[str]) -> list[tuple[str, Change]]:
    """Each file with another change, and one of them with every change."""
    return [*zip(names, EACH * 4, strict=False), *(("in.txt", change) for change in EACH[1:])]


@pytest.mark.parametrize(("name", "change"), changed(name for name in FILES if name not in SENTENCES))
def test_records_of_a_file_that_changes(name: str, change: Change, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    records = iter(read_records(path))
    found = [next(records).text]
    change(path)
    with pytest.raises(ChangedError, match=name):
        found.extend(record.text for record in records)
    assert found == WORDS[: len(found)] and len(found) < COUNT  # the last was read before the change
    if change is append and name == "in.txt":
        assert len(list(read_records(path))) == COUNT + 1


@needs("train")
@pytest.mark.parametrize(("name", "change"), changed(FILES))
def test_rows_of_a_file_that_changes(
    name: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.train.data import labelled_rows

    def changing(stream: Iterable[Any]) -> Iterator[Any]:
        for number, row in enumerate(stream):
            if number == COUNT // 2:
                change(path)
            yield row

    path = write(tmp_path, name)
    monkeypatch.setattr(labelled_rows, "_usable", changing)
    with pytest.raises(ChangedError, match=name):
        labelled_rows.read_rows(path)


@CHANGES
def test_open_files_count_and_what_unpacks_them_does_not(change: Change, tmp_path: Path) -> None:
    path = write(tmp_path, "in.txt")
    with path.open("rb") as file:
        assert file.readline().decode().strip() == WORDS[0]
        records = iter(read_records(file))
        assert next(records).text == WORDS[1]
        change(path)
        with pytest.raises(ChangedError):
            list(records)
        assert not file.closed
    with gzip.open(write(tmp_path, "in.txt.gz")) as packed:
        assert len(list(read_records(cast(BinaryIO, packed), name="in.txt"))) == COUNT


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, "in.txt")
    records = read_records(path)
    append(Path(shutil.copy(path, tmp_path / "new")))
    os.replace(tmp_path / "new", path)
    assert [record.text for record in records] == WORDS
    (file,) = records.files
    assert isinstance(file, InputFile) and file.name == path


def test_what_cannot_be_looked_at_again_is_read_as_it_comes(tmp_path: Path) -> None:
    assert [record.text for record in read_records(io.BytesIO(LINES), format="txt")] == WORDS
    with open_source("/dev/null") as file:
        assert not isinstance(file, InputFile) and file.read() == b""


def test_the_hash_is_that_of_what_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "in.txt")
    with pytest.raises(ChangedError), open_source(path) as file:
        assert isinstance(file, InputFile)
        file.readline()
        assert file.sha256() == hashed(path)[0]
        assert file.readline().decode().strip() == WORDS[1]
        append(path)
        file.sha256()
    for device in ("/dev/zero", "/dev/null"):  # which have no end
        with pytest.raises(mlxbert.InputError, match="not a regular file"):
            hashed(Path(device))


@needs("train")
@CHANGES
def test_documents_of_a_file_that_changes(change: Change, tmp_path: Path) -> None:
    from mlxbert.train.pretraining.corpus.documents import DocumentReader

    first, second = write(tmp_path, "in.txt"), write(tmp_path, "in.jsonl")
    documents = iter(DocumentReader([first, second], documents="line"))
    next(documents)
    change(second)  # not read yet, but its size counts already
    with pytest.raises(ChangedError, match=r"in\.jsonl"):
        list(documents)


@needs("train")
def test_a_corpus_is_read_as_it_was_hashed(tmp_path: Path) -> None:
    from mlxbert.train.pretraining.corpus import token_store
    from mlxbert.train.pretraining.pretraining_settings import Settings

    path = write(tmp_path, "in.txt")
    settings, tokenizer = Settings(corpus=(path,)), mlxbert.load("builtin").tokenizer
    assert settings.hashes
    append(path)
    with pytest.raises(ChangedError):
        token_store.read_corpus([path], tmp_path / "corpus", tokenizer, hashes=settings.hashes)
    settings = Settings(corpus=(path,))
    assert (
        token_store.read_corpus([path], tmp_path / "corpus", tokenizer, hashes=settings.hashes).report.sentences > COUNT
    )


@needs("train")
# In the first reading, and in the second, by the trainer.
@pytest.mark.parametrize(("kind", "share"), [("bpe", 0.1), ("wordpiece", 0.9), ("bpe", 0.9), ("unigram", 0.9)])
def test_a_vocabulary_is_of_one_text(kind: str, share: float, tmp_path: Path) -> None:
    path = write(tmp_path, "in.txt")

    def change(done: int, total: int) -> None:
        if done > share * total:
            append(path)

    with pytest.raises(ChangedError):
        mlxbert.vocabulary([path], tmp_path / "out", kind=kind, size=400, on_progress=change)
    assert [one.name for one in tmp_path.iterdir()] == ["in.txt"]


def test_parts_are_kept_for_the_file_as_it_was(tmp_path: Path) -> None:
    path, output = write(tmp_path, "in.txt"), tmp_path / "out.jsonl"
    words = ["tokenize", "--input", str(path), "--output", str(output)]
    assert call(*words).status == 0
    whole = output.read_bytes()
    output.unlink()
    flush = FileOutput.end_part

    def change(self: FileOutput) -> None:
        flush(self)
        append(path)

    with mock.patch.object(FileOutput, "end_part", change):
        call(*words).fails(1, "in.txt: the file changed", "results are kept")
    assert not output.exists()
    call(*words).fails(2, "another input")
    os.truncate(path, len(LINES))
    resumed = call(*words)
    assert resumed.status == 0 and "resumed: " in resumed.err
    assert output.read_bytes() == whole
