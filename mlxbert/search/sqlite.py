"""An index in one SQLite file.

Vectors are float16; the signs of their values, a bit each, are kept apart in blocks, so that a new process reads
a sixteenth of the bytes before its first answer. Files have their names in bytes, as the system has them. Whatever is
read has been compared with a checksum.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import count
from math import inf, isfinite
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from mlxbert.errors import StoreError
from mlxbert.paths import file_to_write, replace_file
from mlxbert.search import schema
from mlxbert.search.database import CHECKSUM, Database, connect
from mlxbert.search.filters import Filter
from mlxbert.search.schema import BLOCK, guarded
from mlxbert.search.sql_conditions import OWN, Patterns, holds, sql_of
from mlxbert.search.store import FoundChunk, IndexSettings, Scores, Stats, StoredChunk, StoredDocument, StoredFile
from mlxbert.search.vector_cache import FilterMask, VectorCache, checksum, whole
from mlxbert.search.vector_signs import row_bytes, signs_of
from mlxbert.search.word_search import any_word, phrases, reachable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

_CHUNK = (
    "chunks.id, document, files.path, place, fields, text, titles, first_line, last_line, page FROM chunks "
    "JOIN documents ON documents.id = document JOIN files ON files.id = file"
)
# SQLite keeps the order of a CROSS JOIN: functions of Python are called for each file or document, not for each chunk.
_DOCUMENTS = "files CROSS JOIN documents ON files.id = file"
# The order of chunks: not that of their numbers, which is that of the updates.
_PLACE = "files.path, CASE files.path WHEN x'' THEN place END, chunks.id"
_ROW = 128  # bytes of a page that are not those of its vectors, at least


class SqliteStore:
    """A store in a SQLite file, see `mlxbert.search.store.IndexStore`.

    Args:
        path: The file; it is made if it is missing and there is `about`.
        about: What a new index is made with.

    Attributes:
        path: The file.
        about: What the index was made with.
        writable: Whether the file can be changed.
    """

    def __init__(self, path: str | Path, about: IndexSettings | None = None) -> None:
        self.path = os.fspath(path)
        self.writable = True
        self._free: Iterator[int] | None = None
        self._blocks: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}
        self._patterns = Patterns()
        self._open(about)
        self._memory = VectorCache(self._connection, self.about, self.path)

    @guarded
    def _open(self, about: IndexSettings | None) -> None:
        self.path = os.fspath(file_to_write(self.path))  # a link to an index has no files of its own next to it
        for ending in schema.BESIDE:
            file_to_write(f"{self.path}{ending}")
        if not schema.exists(self.path):
            if about is None:
                raise StoreError(f"{self.path}: there is no index", hint="mlxbert.open_index(paths=PATH) makes one")
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            with schema.locked(self.path):
                if not schema.exists(self.path):
                    self._create(about)
        journal = f"{self.path}-journal"
        if schema.exists(journal):  # no index has one; SQLite would do what it says, and remove a file that it names
            raise StoreError(f"{journal}: is not of an index", hint="remove it")
        self._connection = self._connect()
        try:
            schema.check(self.path, self._connection)
            self._read_about()
        except BaseException:
            self._connection.close()
            raise

    def _create(self, about: IndexSettings) -> None:
        """Makes the file under another name: a kill leaves no half of an index."""
        unfinished = f"{self.path}.unfinished"
        Path(unfinished).unlink(missing_ok=True)
        self._connection = connect(unfinished, "rwc")
        with closing(self._connection):
            self._connection.reserve_bytes("main", CHECKSUM)
            self._connection.execute(f"PRAGMA page_size = {_page_size(about.dimensions)}")
            self._connection.execute("PRAGMA journal_mode = MEMORY")
            self._connection.execute("BEGIN")
            schema.create(self._connection)
            self.set_about(about)
            self._connection.execute("COMMIT")
            self._connection.execute("PRAGMA journal_mode = WAL")
        for ending in ("-wal", "-shm"):  # of an index that was removed by hand: SQLite would do what they say
            Path(f"{self.path}{ending}").unlink(missing_ok=True)
        replace_file(unfinished, self.path)

    def _read_about(self) -> None:
        self.about = _about(dict(self._connection.execute("SELECT name, value FROM about")))

    def _connect(self) -> Database:
        """The open file: to be written if possible, or of a disk that cannot be written."""
        for mode in ("rwc", "ro", "ro&immutable=1"):
            if mode.endswith("1") and schema.exists(f"{self.path}-wal"):
                break  # what it holds would be missing
            connection = None
            try:
                connection = connect(self.path, mode)
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                connection.execute("PRAGMA synchronous = NORMAL")  # whole after a kill; a power cut may undo an update
                # On macOS a plain fsync keeps no order on the disk: after a power cut it may hold pages of the index
                # that were copied from the log and not the log itself, half of an update that nothing completes.
                connection.execute("PRAGMA checkpoint_fullfsync = ON")
                connection.execute("PRAGMA cache_size = -32768")  # kilobytes
                connection.row("SELECT 1 FROM sqlite_master")
                connection.define("holds", holds, 3)
                connection.define("matches", self._patterns.matches, 2)
            except apsw.Error as problem:
                if connection is not None:
                    connection.close()
                failed = problem
                continue
            self.writable = mode == "rwc" and os.access(self.path, os.W_OK)
            return connection
        raise failed

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See `Store`."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._write_blocks()
            self._execute("COMMIT")
        except BaseException:
            self._free, self._blocks = None, {}
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
            self.refresh()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See `Store`."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._execute("COMMIT")

    @guarded
    def refresh(self) -> None:
        """See `Store`."""
        self._read_about()
        self._free = None  # another process may have used them

    @guarded
    def _execute(self, command: str) -> None:
        self._connection.execute(command)

    @guarded
    def set_about(self, about: IndexSettings) -> None:
        """See `Store`."""
        rows = [(name, json.dumps(value)) for name, value in asdict(about).items()]
        self._connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)
        self.about = about

    @guarded
    def files(self) -> dict[str, StoredFile]:
        """See `Store`."""
        rows = self._connection.execute("SELECT path, size, mtime, hash, problem, left_out FROM files")
        found = (StoredFile(os.fsdecode(row[0]), row[1], row[2], row[3], row[4], bool(row[5])) for row in rows)
        return {file.path: file for file in found if file.path}

    @guarded
    def known(self, hashes: Iterable[bytes]) -> set[bytes]:
        """See `Store`."""
        look = "SELECT 1 FROM vectors WHERE hash = ?"
        return {one for one in hashes if self._connection.row(look, (one,))}

    @guarded
    def put_vectors(self, vectors: Mapping[bytes, "Vector"]) -> None:
        """See `Store`."""
        for hash in vectors:
            self._vector(hash, vectors)

    @guarded
    def put(self, file: StoredFile, documents: Iterable[StoredDocument], vectors: Mapping[bytes, "Vector"]) -> None:
        """See `Store`."""
        number = self._file(file)
        before = [row[0] for row in self._connection.execute("SELECT id FROM documents WHERE file = ?", (number,))]
        self._insert(number, documents, vectors)
        self._delete_documents(before)

    @guarded
    def put_documents(self, documents: Iterable[StoredDocument], vectors: Mapping[bytes, "Vector"]) -> None:
        """See `Store`."""
        number, listed = self._file(StoredFile("")), [*{document.place: document for document in documents}.values()]
        before = self._added(number, [document.place for document in listed])
        self._insert(number, listed, vectors)
        self._delete_documents(before)

    def _file(self, file: StoredFile) -> int:
        """The number of the row of a file, which is written."""
        values = (os.fsencode(file.path), file.size, file.mtime, file.hash, file.problem, file.left_out)
        row = self._connection.row(
            "INSERT INTO files (path, size, mtime, hash, problem, left_out) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (path) DO UPDATE SET size = excluded.size, mtime = excluded.mtime, hash = excluded.hash, "
            "problem = excluded.problem, left_out = excluded.left_out RETURNING id",
            values,
        )
        return int(row[0])

    def _added(self, file: int, places: Sequence[str]) -> list[int]:
        look = "SELECT id FROM documents WHERE file = ? AND place = ?"
        return [row[0] for place in places for row in self._connection.execute(look, (file, place))]

    def _insert(self, file: int, documents: Iterable[StoredDocument], vectors: Mapping[bytes, "Vector"]) -> None:
        execute = self._connection.execute
        for document in documents:
            fields = {
                name: None if isinstance(value, float) and not isfinite(value) else value
                for name, value in document.fields.items()
            }  # JSON has no other numbers
            values = (file, document.place, document.title, json.dumps(fields))
            execute("INSERT INTO documents (file, place, title, fields) VALUES (?, ?, ?, ?)", values)
            owner = self._connection.last_insert_rowid()
            for chunk in document.chunks:
                titles = json.dumps(chunk.titles, ensure_ascii=False)
                lines = chunk.first_line, chunk.last_line, chunk.page
                row = (owner, self._vector(chunk.hash, vectors), titles, chunk.text, *lines)
                execute(
                    "INSERT INTO chunks (document, vector, titles, text, first_line, last_line, page) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
                number = self._connection.last_insert_rowid()
                execute("INSERT INTO words (rowid, titles, text) VALUES (?, ?, ?)", (number, titles, chunk.text))

    def _vector(self, hash: bytes, vectors: Mapping[bytes, "Vector"]) -> int:
        """The number of the vector of a text, which is written if it is new."""
        import numpy as np

        found = self._connection.row("SELECT id FROM vectors WHERE hash = ?", (hash,))
        if found:
            return int(found[0])
        vector = vectors[hash]
        with np.errstate(over="ignore"):
            stored = vector.astype(np.float16)
        if not np.isfinite(stored).all():
            raise StoreError(f"{self.path}: float16 cannot hold a vector with the value {abs(vector).max():.3g}")
        self._free = self._free or self._unused()
        number = next(self._free)
        alive, bits = self._block(number)
        alive[number % BLOCK], bits[number % BLOCK] = 1, signs_of(stored[None])[0]
        self._connection.execute("INSERT INTO vectors VALUES (?, ?, ?)", (number, hash, stored.tobytes()))
        return number

    def _unused(self) -> Iterator[int]:
        """The numbers that no vector has: those of removed vectors, and then new ones."""
        rows = self._connection.rows("SELECT block, alive FROM signs")
        flags = dict(rows) | {place: alive.tobytes() for place, (alive, _) in self._blocks.items()}
        for place, alive in sorted(flags.items()):
            yield from (place * BLOCK + slot for slot, used in enumerate(alive) if not used)
        yield from count((max(flags, default=-1) + 1) * BLOCK)

    def _block(self, number: int) -> tuple["NDArray[np.uint8]", "NDArray[np.uint8]"]:
        """The flags and the signs of a vector's block, which are written at the end of the transaction."""
        import numpy as np

        place = number // BLOCK
        if place not in self._blocks:
            row = self._connection.row("SELECT alive, bits, crc FROM signs WHERE block = ?", (place,))
            width = row_bytes(self.about.dimensions)
            alive, bits = whole(*row) if row else (bytes(BLOCK), bytes(BLOCK * width))
            rows = np.frombuffer(bits, np.uint8).reshape(BLOCK, width).copy()
            self._blocks[place] = np.frombuffer(alive, np.uint8).copy(), rows
        return self._blocks[place]

    @guarded
    def _write_blocks(self) -> None:
        blocks = [(place, alive.tobytes(), bits.tobytes()) for place, (alive, bits) in self._blocks.items()]
        rows = [(place, alive, bits, checksum(alive, bits)) for place, alive, bits in blocks]
        self._connection.executemany("INSERT OR REPLACE INTO signs VALUES (?, ?, ?, ?)", rows)
        self._blocks = {}
        if rows:
            self._memory.forget()

    def _delete_documents(self, numbers: Iterable[int]) -> None:
        execute = self._connection.execute
        for number in numbers:
            for row in self._connection.rows("SELECT id, titles, text FROM chunks WHERE document = ?", (number,)):
                execute("INSERT INTO words (words, rowid, titles, text) VALUES ('delete', ?, ?, ?)", row)
            execute("DELETE FROM chunks WHERE document = ?", (number,))
            execute("DELETE FROM documents WHERE id = ?", (number,))
        self._memory.forget()

    @guarded
    def touch(self, file: StoredFile) -> None:
        """See `Store`."""
        values = (file.size, file.mtime, os.fsencode(file.path))
        self._connection.execute("UPDATE files SET size = ?, mtime = ? WHERE path = ?", values)

    @guarded
    def rename(self, path: str, new: str) -> None:
        """See `Store`."""
        values = (os.fsencode(new), os.fsencode(path))
        self._connection.execute("UPDATE files SET path = ? WHERE path = ?", values)
        self._memory.forget()

    @guarded
    def remove(self, paths: Iterable[str]) -> None:
        """See `Store`."""
        for path in paths:
            row = self._connection.row("SELECT id FROM files WHERE path = ?", (os.fsencode(path),))
            if row:
                documents = self._connection.rows("SELECT id FROM documents WHERE file = ?", row)
                self._delete_documents(one for (one,) in documents)
                self._connection.execute("DELETE FROM files WHERE id = ?", row)

    @guarded
    def remove_documents(self, places: Iterable[str]) -> int:
        """See `Store`."""
        found = self._added(self._file(StoredFile("")), [*places])
        self._delete_documents(found)
        return len(found)

    @guarded
    def prune(self) -> None:
        """Removes the vectors that no chunk has any more."""
        unused = "SELECT id FROM vectors WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE vector = vectors.id)"
        for (number,) in self._connection.rows(unused):
            self._connection.execute("DELETE FROM vectors WHERE id = ?", (number,))
            self._block(number)[0][number % BLOCK] = 0
        self._free = None

    @guarded
    def nearest(self, vector: "Vector", count: int, only: Filter) -> Scores:
        """See `Store`."""
        mask = self._mask(only) if only else None
        look = "SELECT id, vector FROM chunks WHERE vector IN (SELECT value FROM json_each(?))"
        while True:
            scores = self._memory.nearest(vector, count, mask)
            rows = self._connection.rows(look, (json.dumps([*scores]),))
            found = [(chunk, scores[vector]) for chunk, vector in rows if mask is None or mask.lets_through(chunk)]
            if len(found) >= count or len(scores) < count or mask is not None:
                return self._best(found, count)
            mask = self._mask(only)  # there are vectors that no chunk has: not yet, or until they are pruned

    def _mask(self, only: Filter) -> FilterMask:
        """What a filter lets through."""
        if (known := self._memory.mask(only)) is None:
            condition, values = self._condition(only)
            rows = self._connection.rows(
                f"SELECT chunks.id, vector FROM {_DOCUMENTS} "
                f"CROSS JOIN chunks ON documents.id = document WHERE {condition}",
                values,
            )
            known = self._memory.add_mask(only, rows)
        return known

    def _condition(self, only: Filter) -> tuple[str, list[Any]]:
        """A filter in SQL, and the values in it."""
        self._patterns.forget()
        return sql_of(only)

    @guarded
    def with_words(self, query: str, count: int, only: Filter) -> Scores:
        """See `Store`."""
        return self._matching(any_word(query, self._frequency), count, only)

    @guarded
    def reachable(self, query: str) -> float:
        """See `Store`."""
        return reachable(query, self._frequency, self._memory.vectors())

    @guarded
    def word_for_word(self, query: str, count: int, only: Filter) -> Scores:
        """See `Store`."""
        return self._matching(phrases(query), count, only)

    def _frequency(self, words: Sequence[str]) -> dict[str, int]:
        """How many chunks have each of some words."""
        self._connection.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab ('main', 'words', 'row')"
        )
        look, known = "SELECT doc FROM temp.vocabulary WHERE term = ?", self._memory.counts()
        for word in words:
            if word not in known:
                row = self._connection.row(look, (word,))
                known[word] = row[0] if row else 0
        return {word: known[word] for word in words}

    def _matching(self, match: str, count: int, only: Filter) -> Scores:
        if not match:
            return []
        look = "SELECT rowid, -rank FROM words WHERE words MATCH ?"
        if not only:
            first = self._connection.rows(f"{look} ORDER BY rank LIMIT ?", (match, count + 1))
            if len(first) <= count or first[-1][1] < first[-2][1]:
                return self._best([(chunk, float(score)) for chunk, score in first], count)
        mask = self._mask(only) if only else None
        rows = self._connection.execute(look, (match,))
        found = [(chunk, float(score)) for chunk, score in rows if mask is None or mask.lets_through(chunk)]
        return self._best(found, count)

    def _best(self, found: Scores, count: int) -> Scores:
        """The chunks with the highest scores, equal ones in the order of their places."""
        found = sorted(found, key=itemgetter(1), reverse=True)
        least = found[count - 1][1] if len(found) > count else -inf
        found = [one for one in found if one[1] >= least]
        often = Counter(score for _, score in found)
        equal = self._in_order([chunk for chunk, score in found if often[score] > 1])
        places = {chunk: place for place, (chunk, _) in enumerate(equal)}
        return sorted(found, key=lambda one: (-one[1], places.get(one[0], 0)))[:count]

    def _in_order(self, chunks: Collection[int]) -> list[tuple[int, int]]:
        """Chunks and their documents, in the order of their places."""
        if not chunks:
            return []
        found = self._connection.rows(
            "SELECT chunks.id, document FROM chunks JOIN documents ON documents.id = document "
            f"JOIN files ON files.id = file WHERE chunks.id IN (SELECT value FROM json_each(?)) ORDER BY {_PLACE}",
            (json.dumps([*chunks]),),
        )
        if len(found) < len(chunks):
            raise schema.damaged(self.path, "words of a chunk that is not there")
        return found

    @guarded
    def chunks(self, numbers: Sequence[int]) -> list[FoundChunk]:
        """See `Store`."""
        rows = (self._connection.row(f"SELECT {_CHUNK} WHERE chunks.id = ?", (one,)) for one in numbers)
        return [_found(row) for row in rows if row]

    @guarded
    def documents_of(self, chunks: Collection[int]) -> dict[int, int]:
        """See `Store`."""
        return dict(self._in_order(chunks))

    @guarded
    def around(self, number: int, before: int, after: int) -> list[FoundChunk]:
        """See `Store`."""
        here = "document = (SELECT document FROM chunks WHERE id = ?)"
        limits = (number, number, before), (number, number, after + 1)
        earlier = self._connection.rows(
            f"SELECT {_CHUNK} WHERE {here} AND chunks.id < ? ORDER BY chunks.id DESC LIMIT ?", limits[0]
        )
        later = self._connection.execute(
            f"SELECT {_CHUNK} WHERE {here} AND chunks.id >= ? ORDER BY chunks.id LIMIT ?", limits[1]
        )
        return [_found(row) for row in [*earlier[::-1], *later]]

    @guarded
    def chunk_at(self, path: str, line: int) -> int | None:
        """See `Store`."""
        row = self._connection.row(
            "SELECT chunks.id FROM files JOIN documents ON files.id = file JOIN chunks ON documents.id = document "
            "WHERE path = ? ORDER BY ifnull(first_line, 0) > ?, abs(ifnull(first_line, 0) - ?), chunks.id LIMIT 1",
            (os.fsencode(path), line, line),
        )
        return None if row is None else int(row[0])

    @guarded
    def count(self, only: Filter) -> int:
        """See `Store`."""
        condition, values = self._condition(only)
        look = f"SELECT count(*) FROM {_DOCUMENTS} WHERE {condition}"
        return int(self._connection.row(look, values)[0])

    @guarded
    def fields(self) -> list[str]:
        """See `Store`."""
        rows = self._connection.execute("SELECT DISTINCT key FROM documents, json_each(documents.fields) ORDER BY key")
        return [*OWN, *(str(key) for (key,) in rows if key not in OWN)]

    @guarded
    def stats(self) -> Stats:
        """See `Store`."""
        one = self._connection.row(
            "SELECT (SELECT count(*) FROM files WHERE problem IS NULL AND path != x''), "
            "(SELECT count(*) FROM documents), (SELECT count(*) FROM chunks), (SELECT count(*) FROM vectors)"
        )
        look = "SELECT path, problem FROM files WHERE problem IS NOT NULL AND NOT left_out ORDER BY path"
        failed = tuple((os.fsdecode(path), problem) for path, problem in self._connection.execute(look))
        size = sum(os.stat(path).st_size for path in (self.path, f"{self.path}-wal") if schema.exists(path))
        files, documents, chunks, vectors = one
        return Stats(files, documents, chunks, vectors, size, failed)

    @guarded
    def check(self) -> None:
        """See `Store`."""
        found = [row[0] for row in self._connection.execute("PRAGMA integrity_check")]
        if found != ["ok"]:
            raise schema.damaged(self.path, "; ".join(found[:3]))
        if self.writable:
            self._connection.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        complete = self._connection.execute(
            "SELECT count(*) = (SELECT count(*) FROM chunks) FROM chunks JOIN vectors ON vectors.id = chunks.vector "
            "JOIN documents ON documents.id = document JOIN files ON files.id = file"
        )
        if complete.fetchone() != (1,):
            raise schema.damaged(self.path, "a chunk without its document or its vector")
        self._memory.check()

    def close(self) -> None:
        """See `Store`."""
        self._connection.close()


def _page_size(dimensions: int) -> int:
    """The size of a page: five vectors of 768 values fill 94 % of 8192 bytes. A longer vector fits in one, too."""
    return next((size for size in (2**13, 2**14, 2**15) if 2 * dimensions + _ROW <= size), 2**16)


def _about(values: Mapping[str, str]) -> IndexSettings:
    read = {name: json.loads(value) for name, value in values.items()}
    lists = {name: tuple(value) for name, value in read.items() if isinstance(value, list)}
    about = IndexSettings(**{**read, **lists})
    texts = (
        *(about.model, about.hash, about.similarity, about.pooling, about.created, about.updated, about.text or ""),
        *(*about.prompts, *about.roots, *about.include, *about.exclude, *(about.fields or ())),
    )
    if not all(isinstance(text, str) for text in texts) or len(about.prompts) != 2:
        raise ValueError("what it was made with")
    if not all(type(number) is int and 0 < number < 2**20 for number in (about.dimensions, about.tokens)):
        raise ValueError("the size of its vectors or chunks")
    return about


def _found(row: Sequence[Any]) -> FoundChunk:
    number, document, path, place, fields, text, titles, *lines = row
    if not all(line is None or type(line) is int for line in lines):
        raise ValueError("the lines of a chunk")
    if "\0" in text or "\0" in place:  # see `mlxbert.search.database`
        raise ValueError("a text that ends with zeros")
    chunk = StoredChunk(str(text), tuple(map(str, json.loads(titles))), b"", *lines)
    return FoundChunk(number, document, os.fsdecode(path), str(place), dict(json.loads(fields)), chunk)
