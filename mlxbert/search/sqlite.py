"""The store of an index in a single SQLite file.

Vectors are float16. The signs of their values, one bit each, are stored separately in blocks, so that a new process
reads a sixteenth of the bytes before its first answer. File names are stored as bytes, as in the operating system.
Everything that is read is verified with a checksum.
"""

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from mlxbert.errors import BusyError, StoreError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.paths import file_to_write, replace_file
from mlxbert.search import schema
from mlxbert.search.database import CHECKSUM, Database, connect
from mlxbert.search.filters import COLUMNS, Filter, Patterns, holds, sql_of
from mlxbert.search.late_interaction import TokenTable
from mlxbert.search.nearest_vectors import FilterMask, VectorCache, checksum, row_bytes, signs_of, verified
from mlxbert.search.schema import BLOCK, guarded
from mlxbert.search.sparse_vectors import SparseCache, TokenLists
from mlxbert.search.store import (
    FoundChunk,
    IndexProblem,
    IndexSettings,
    Scores,
    Stats,
    StoredChunk,
    StoredDocument,
    StoredFile,
    StoredVector,
    VectorWithTokens,
    finite_fields,
    settings_of,
    storable,
    to_float16,
)
from mlxbert.search.word_search import any_word, every_phrase, match_of, word_weights

Vector: TypeAlias = "NDArray[np.float32]"

_LOG = logging.getLogger("mlxbert")
_CHUNK = (
    "chunks.id, document, files.path, place, fields, text, titles, first_line, last_line, page FROM chunks "
    "JOIN documents ON documents.id = document JOIN files ON files.id = file"
)
# SQLite keeps the order of a CROSS JOIN: Python functions are called per file or document, not per chunk.
_DOCUMENTS = "files CROSS JOIN documents ON files.id = file"
# The order of chunks: by file, record and position. Their numbers depend on the order of the updates.
_PLACE = "files.path, CASE files.path WHEN x'' THEN place END, chunks.id"
_CREATING, _PAUSE = 10.0, 0.05  # seconds that another process may take to create an index; between two looks at it
_WINDOWS = 4  # windows of a chunk, usually: as many times more vectors than chunks are compared
# A file that could not be read has its problem in its own row.
_PROBLEMS = (
    "SELECT 0 AS id, path, '' AS place, 'left out' AS kind, problem AS reason, 0 AS more FROM files "
    "WHERE problem IS NOT NULL UNION ALL "
    "SELECT problems.id, path, place, kind, reason, more FROM problems JOIN files ON files.id = file"
)
_PAGE_OVERHEAD = 128  # the minimum number of bytes of a page that are not available for vectors


class SqliteStore:
    """A store in a SQLite file (for its methods, see `mlxbert.search.store.IndexStore`).

    Args:
        path: The file; created if it is missing and `about` is given.
        about: The settings of a new index.

    Attributes:
        path: The file.
        about: The settings that the index was created with.
        writable: Whether the file can be changed.
        is_new: Whether this object has created the file.
    """

    seconds_per_transaction = 0.0

    def __init__(self, path: str | Path, about: IndexSettings | None = None) -> None:
        self.path = os.fspath(path)
        self.writable, self.is_new = True, False
        self._free: Iterator[int] | None = None
        self._blocks: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}
        self._patterns = Patterns()
        self._lists: TokenLists | None = None
        self._open(about)
        place = self._connection, self.about, self.path
        self._lists = TokenLists(*place) if self.about.is_sparse else None
        self._tokens = TokenTable(*place) if self.about.token_size else None
        self._cache = VectorCache(*place) if self._lists is None else SparseCache(*place, self._lists)

    @guarded
    def _open(self, about: IndexSettings | None) -> None:
        self.path = os.fspath(file_to_write(self.path))  # resolves a link: SQLite's files lie next to its target
        for ending in schema.BESIDE:
            file_to_write(f"{self.path}{ending}")
        if not schema.exists(self.path):
            if about is None:
                raise StoreError(
                    f"{self.path}: the index does not exist", hint="`mlxbert.open_index(paths=PATH)` makes an index"
                )
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self._create_or_wait(about)
        journal = f"{self.path}-journal"
        if schema.exists(journal):  # not of an index; SQLite would replay it, and delete any file that it names
            raise StoreError(f"{journal}: the file does not belong to an index", hint="remove the file")
        self._connection = self._connect()
        try:
            schema.check(self.path, self._connection)
            self._read_about()
        except BaseException:
            self._connection.close()
            raise

    def _create_or_wait(self, about: IndexSettings) -> None:
        """Creates the file, or waits for another process that is creating it, which takes an instant."""
        until = time.monotonic() + _CREATING
        while not schema.exists(self.path):
            try:
                with schema.locked(self.path):
                    if not schema.exists(self.path):
                        self._create(about)
            except BusyError:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)

    def _create(self, about: IndexSettings) -> None:
        """Creates the file under a temporary name, so that a killed process leaves no incomplete index."""
        unfinished = f"{self.path}.unfinished"
        Path(unfinished).unlink(missing_ok=True)
        self._connection = connect(unfinished, "rwc")
        with closing(self._connection):
            self._connection.reserve_bytes("main", CHECKSUM)
            self._connection.execute(f"PRAGMA page_size = {_page_size(0 if about.is_sparse else about.dimensions)}")
            self._connection.execute("PRAGMA journal_mode = MEMORY")
            self._connection.execute("BEGIN")
            schema.create(self._connection, about)
            self.set_about(about)
            self._connection.execute("COMMIT")
            self._connection.execute("PRAGMA journal_mode = WAL")
        for ending in ("-wal", "-shm"):  # left by an index that was deleted by hand: SQLite would replay them
            Path(f"{self.path}{ending}").unlink(missing_ok=True)
        replace_file(unfinished, self.path)
        self.is_new = True

    def _read_about(self) -> None:
        rows = self._connection.execute("SELECT name, value FROM about")
        self.about = settings_of({name: json.loads(value) for name, value in rows})

    def _connect(self) -> Database:
        """Opens the file for reading and writing if possible, otherwise read-only."""
        for mode in ("rwc", "ro", "ro&immutable=1"):
            if mode.endswith("1") and schema.exists(f"{self.path}-wal"):
                break  # an immutable connection would ignore the log
            connection = None
            try:
                connection = connect(self.path, mode)
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                connection.execute("PRAGMA synchronous = NORMAL")  # safe after a kill; a power cut may undo an update
                # On macOS a plain fsync does not order writes: after a power cut the disk may hold pages copied from
                # the log but not the log itself: half of an update that cannot be completed.
                connection.execute("PRAGMA checkpoint_fullfsync = ON")
                connection.execute("PRAGMA cache_size = -32768")  # kilobytes
                connection.row("SELECT 1 FROM sqlite_master")
                connection.define("holds", holds, 3)
                connection.define("matches", self._patterns.matches, 2)
            except apsw.Error as problem:
                if connection is not None:
                    connection.close()
                error = problem
                continue
            self.writable = mode == "rwc" and os.access(self.path, os.W_OK)
            return connection
        raise error

    @property
    def own_paths(self) -> Sequence[str]:
        return [f"{self.path}{ending}" for ending in schema.ENDINGS]

    def locked(self) -> AbstractContextManager[None]:
        return schema.locked(self.path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._write_blocks()
            self._execute("COMMIT")
        except BaseException:
            self._free, self._blocks = None, {}
            if self._lists is not None:
                self._lists.forget()
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
            self.refresh()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._execute("COMMIT")

    @guarded
    def refresh(self) -> None:
        self._read_about()
        self._free = None  # another process may have used these numbers

    @guarded
    def _execute(self, command: str) -> None:
        self._connection.execute(command)

    @guarded
    def set_about(self, about: IndexSettings) -> None:
        rows = [(name, json.dumps(value)) for name, value in asdict(about).items()]
        self._connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)
        self.about = about

    @guarded
    def files(self) -> dict[str, StoredFile]:
        rows = self._connection.execute("SELECT path, size, mtime, hash, problem, left_out FROM files")
        files = (StoredFile(os.fsdecode(row[0]), row[1], row[2], row[3], row[4], bool(row[5])) for row in rows)
        return {file.path: file for file in files if file.path}

    @guarded
    def known(self, hashes: Iterable[bytes]) -> set[bytes]:
        return {*self._numbers(hashes)}

    def _numbers(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        query = "SELECT id FROM vectors WHERE hash = ?"
        return {hash: int(row[0]) for hash in hashes if (row := self._connection.row(query, (hash,)))}

    @guarded
    def vectors(self, hashes: Collection[bytes]) -> dict[bytes, "Vector"]:
        hashes_of = {number: hash for hash, number in self._numbers(hashes).items()}
        found, vectors = self._cache.vectors([*hashes_of])
        return {hashes_of[number]: vector for number, vector in zip(found, vectors, strict=True)}

    @guarded
    def vectors_with_tokens(self, hashes: Collection[bytes]) -> dict[bytes, VectorWithTokens]:
        assert self._tokens is not None  # asked only of an index that has them
        numbers = self._numbers(hashes)
        tokens, vectors = self._tokens.of_vectors({*numbers.values()}), self.vectors(numbers)
        return {hash: VectorWithTokens(vectors[hash], tokens[number]) for hash, number in numbers.items()}

    @guarded
    def put_vectors(self, vectors: Mapping[bytes, StoredVector]) -> None:
        for hash in vectors:
            self._vector(hash, vectors)

    @guarded
    def put(
        self,
        file: StoredFile,
        documents: Iterable[StoredDocument],
        vectors: Mapping[bytes, StoredVector],
        problems: Iterable[IndexProblem] = (),
    ) -> None:
        number = self._file(file)
        self._connection.execute("DELETE FROM problems WHERE file = ?", (number,))
        self._insert_problems(number, problems)
        before = [row[0] for row in self._connection.execute("SELECT id FROM documents WHERE file = ?", (number,))]
        self._insert(number, documents, vectors)
        self._delete_documents(before)

    @guarded
    def put_documents(
        self,
        documents: Iterable[StoredDocument],
        vectors: Mapping[bytes, StoredVector],
        problems: Iterable[IndexProblem] = (),
    ) -> None:
        number, listed = self._file(StoredFile("")), [*{document.place: document for document in documents}.values()]
        places = [document.place for document in listed]
        before = self._added(number, places)
        self._delete_problems(number, places)
        lacking = {document.place for document in listed if not document.chunks}  # the last one with each place counts
        last = {problem.place: problem for problem in problems if problem.place in lacking}
        self._insert_problems(number, last.values())
        self._insert(number, listed, vectors)
        self._delete_documents(before)

    def _file(self, file: StoredFile) -> int:
        values = (os.fsencode(file.path), file.size, file.changed, file.hash)
        problem = None if file.problem is None else storable(file.problem)
        row = self._connection.row(
            "INSERT INTO files (path, size, mtime, hash, problem, left_out) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (path) DO UPDATE SET size = excluded.size, mtime = excluded.mtime, hash = excluded.hash, "
            "problem = excluded.problem, left_out = excluded.left_out RETURNING id",
            (*values, problem, file.left_out),
        )
        return int(row[0])

    def _insert_problems(self, file: int, problems: Iterable[IndexProblem]) -> None:
        rows = [(file, problem.place, problem.kind, problem.reason, problem.more) for problem in problems]
        command = "INSERT INTO problems (file, place, kind, reason, more) VALUES (?, ?, ?, ?, ?)"
        self._connection.executemany(command, rows)

    def _delete_problems(self, file: int, places: Iterable[str]) -> None:
        rows = [(file, place) for place in places]
        self._connection.executemany("DELETE FROM problems WHERE file = ? AND place = ?", rows)

    def _added(self, file: int, places: Sequence[str]) -> list[int]:
        query = "SELECT id FROM documents WHERE file = ? AND place = ?"
        return [row[0] for place in places for row in self._connection.execute(query, (file, place))]

    def _insert(self, file: int, documents: Iterable[StoredDocument], vectors: Mapping[bytes, StoredVector]) -> None:
        execute = self._connection.execute
        for document in documents:
            values = (file, document.place, document.title, json.dumps(finite_fields(document)))
            execute("INSERT INTO documents (file, place, title, fields) VALUES (?, ?, ?, ?)", values)
            owner = self._connection.last_insert_rowid()
            for chunk in document.chunks:
                titles = json.dumps(chunk.titles, ensure_ascii=False)
                lines = chunk.first_line, chunk.last_line, chunk.page
                row = (owner, titles, chunk.text, *lines)
                execute(
                    "INSERT INTO chunks (document, titles, text, first_line, last_line, page) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    row,
                )
                number = self._connection.last_insert_rowid()
                for hash in chunk.hashes:
                    execute("INSERT INTO windows VALUES (?, ?)", (number, self._vector(hash, vectors)))
                schema.put_words(self._connection, number, chunk.titles, chunk.text)

    def _vector(self, hash: bytes, vectors: Mapping[bytes, Any]) -> int:
        """Returns the number of the vector with a hash; stores the vector if it is new."""
        if known := self._numbers([hash]):
            return known[hash]
        self._free = self._free or self._unused()
        number = next(self._free)
        alive, bits = self._block(number)
        alive[number % BLOCK] = 1
        vector = vectors[hash]
        if self._tokens is not None:
            vector, tokens = vector
            self._tokens.add(number, tokens)
        if self._lists is not None:
            data = self._lists.add(number, vector)
        else:
            stored = to_float16(self.path, vector)
            bits[number % BLOCK], data = signs_of(stored[None])[0], stored.tobytes()
        self._connection.execute("INSERT INTO vectors VALUES (?, ?, ?)", (number, hash, data))
        return number

    def _unused(self) -> Iterator[int]:
        """Yields numbers for new vectors: first the numbers of removed vectors, then numbers never used."""
        rows = self._connection.rows("SELECT block, alive FROM signs")
        flags = dict(rows) | {place: alive.tobytes() for place, (alive, _) in self._blocks.items()}
        for place, alive in sorted(flags.items()):
            yield from (place * BLOCK + slot for slot, used in enumerate(alive) if not used)
        yield from count((max(flags, default=-1) + 1) * BLOCK)

    def _block(self, number: int) -> tuple["NDArray[np.uint8]", "NDArray[np.uint8]"]:
        """Returns two arrays for the block that a vector belongs to: flags that say which numbers are used, and signs.

        Changes to the arrays are written at the end of the transaction.
        """
        place = number // BLOCK
        if place not in self._blocks:
            row = self._connection.row("SELECT alive, bits, crc FROM signs WHERE block = ?", (place,))
            width = row_bytes(0 if self.about.is_sparse else self.about.dimensions)
            alive, bits = verified(*row) if row else (bytes(BLOCK), bytes(BLOCK * width))
            rows = np.frombuffer(bits, np.uint8).reshape(BLOCK, width).copy()
            self._blocks[place] = np.frombuffer(alive, np.uint8).copy(), rows
        return self._blocks[place]

    @guarded
    def _write_blocks(self) -> None:
        if self._lists is not None:
            self._lists.write()
        blocks = [(place, alive.tobytes(), bits.tobytes()) for place, (alive, bits) in self._blocks.items()]
        rows = [(place, alive, bits, checksum(alive, bits)) for place, alive, bits in blocks]
        self._connection.executemany("INSERT OR REPLACE INTO signs VALUES (?, ?, ?, ?)", rows)
        self._blocks = {}
        if rows:
            self._cache.forget()

    def _delete_documents(self, numbers: Iterable[int]) -> None:
        execute = self._connection.execute
        for number in numbers:
            for table, column in (("words", "rowid"), ("windows", "chunk")):
                execute(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM chunks WHERE document = ?)", (number,))
            execute("DELETE FROM chunks WHERE document = ?", (number,))
            execute("DELETE FROM documents WHERE id = ?", (number,))
        self._cache.forget()

    @guarded
    def touch(self, file: StoredFile) -> None:
        values = (file.size, file.changed, os.fsencode(file.path))
        self._connection.execute("UPDATE files SET size = ?, mtime = ? WHERE path = ?", values)

    @guarded
    def rename(self, path: str, new: str) -> None:
        values = (os.fsencode(new), os.fsencode(path))
        self._connection.execute("UPDATE files SET path = ? WHERE path = ?", values)
        self._cache.forget()

    @guarded
    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            row = self._connection.row("SELECT id FROM files WHERE path = ?", (os.fsencode(path),))
            if row:
                documents = self._connection.rows("SELECT id FROM documents WHERE file = ?", row)
                self._delete_documents(document for (document,) in documents)
                self._connection.execute("DELETE FROM problems WHERE file = ?", row)
                self._connection.execute("DELETE FROM files WHERE id = ?", row)

    @guarded
    def remove_documents(self, places: Iterable[str]) -> int:
        file, places = self._file(StoredFile("")), [*places]
        numbers = self._added(file, places)
        self._delete_documents(numbers)
        self._delete_problems(file, places)
        return len(numbers)

    @guarded
    def prune(self) -> None:
        unused = "SELECT id FROM vectors WHERE NOT EXISTS (SELECT 1 FROM windows WHERE vector = vectors.id)"
        for (number,) in self._connection.rows(unused):
            if self._lists is not None:
                self._lists.remove(number)
            if self._tokens is not None:
                self._tokens.remove(number)
            self._connection.execute("DELETE FROM vectors WHERE id = ?", (number,))
            self._block(number)[0][number % BLOCK] = 0
        self._free = None

    @guarded
    def nearest(self, vector: "Vector", count: int, only: Filter) -> Scores:
        mask = self._mask(only) if only else None
        scores = partial(self._cache.nearest, vector, _WINDOWS * count, mask)
        return self._end_nearest(scores, vector, count, mask)

    @guarded
    def begin_nearest(self, vector: "Vector", count: int, only: Filter) -> Callable[[], Scores]:
        mask = self._mask(only) if only else None
        scores = self._cache.begin_nearest(vector, _WINDOWS * count, mask)
        return partial(self._end_nearest, scores, vector, count, mask)

    @guarded
    def _end_nearest(
        self, read_scores: Callable[[], Mapping[int, float]], vector: "Vector", count: int, mask: FilterMask | None
    ) -> Scores:
        query = "SELECT chunk, vector FROM windows WHERE vector IN (SELECT value FROM json_each(?))"
        wide = _WINDOWS * count
        while True:
            scores = read_scores()
            best: dict[int, float] = {}  # of the windows of each chunk
            for chunk, number in self._connection.rows(query, (json.dumps([*scores]),)):
                if mask is None or mask.matches(chunk):
                    best[chunk] = max(best.get(chunk, -inf), scores[number])
            if len(best) >= count or len(scores) < wide:
                return self._best([*best.items()], count)
            wide *= _WINDOWS  # many windows of few chunks, or vectors that no chunk uses yet or any more
            read_scores = partial(self._cache.nearest, vector, wide, mask)

    @guarded
    def similarities(self, vector: "Vector", chunks: Collection[int]) -> dict[int, float]:
        query = "SELECT chunk, vector FROM windows WHERE chunk IN (SELECT value FROM json_each(?))"
        rows = self._connection.rows(query, (json.dumps([*chunks]),))
        scores = self._cache.similarities(vector, [number for _, number in rows])
        best: dict[int, float] = {}
        for chunk, number in rows:
            if number in scores:
                best[chunk] = max(best.get(chunk, -inf), scores[number])
        if len(best) < len(chunks):
            raise schema.damaged(self.path, "a chunk has no vector")
        return best

    @guarded
    def tokens(self, chunks: Sequence[int]) -> "dict[int, list[NDArray[Any]]]":
        assert self._tokens is not None  # asked only of an index that has them
        return self._tokens.of_chunks(chunks)

    def _mask(self, only: Filter) -> FilterMask:
        if (mask := self._cache.mask(only)) is None:
            condition, values = self._condition(only)
            rows = self._connection.rows(
                f"SELECT chunk, vector FROM {_DOCUMENTS} CROSS JOIN chunks ON documents.id = document "
                f"CROSS JOIN windows ON chunks.id = chunk WHERE {condition}",
                values,
            )
            mask = self._cache.add_mask(only, rows)
        return mask

    def _condition(self, only: Filter) -> tuple[str, list[Any]]:
        self._patterns.forget()
        return sql_of(only)

    @guarded
    def with_words(self, query: str, count: int, only: Filter) -> Scores:
        return self._matching(any_word(query, self._frequency), count, only)

    @guarded
    def word_weights(self, query: str) -> dict[tuple[str, ...], float]:
        return word_weights(query, self._frequency, self._cache.chunks())

    @guarded
    def word_for_word(self, query: str, count: int, only: Filter) -> Scores:
        return self._matching(every_phrase(query), count, only)

    def _frequency(self, words: Sequence[str]) -> dict[str, int]:
        """Returns the number of chunks that contain each word, or a word with the beginning before a `*`."""
        query, counts = "SELECT count(*) FROM words WHERE words MATCH ?", self._cache.counts()
        for word in words:
            if word not in counts:
                counts[word] = int(self._connection.row(query, (match_of([word]),))[0])
        return {word: counts[word] for word in words}

    def _matching(self, match: str, count: int, only: Filter) -> Scores:
        if not match:
            return []
        command = "SELECT rowid, -rank FROM words WHERE words MATCH ?"
        if not only:
            first = self._connection.rows(f"{command} ORDER BY rank LIMIT ?", (match, count + 1))
            if len(first) <= count or first[-1][1] < first[-2][1]:
                return self._best([(chunk, float(score)) for chunk, score in first], count)
        mask = self._mask(only) if only else None
        rows = self._connection.execute(command, (match,))
        pairs = [(chunk, float(score)) for chunk, score in rows if mask is None or mask.matches(chunk)]
        return self._best(pairs, count)

    def _best(self, scores: Scores, count: int) -> Scores:
        """Returns the `count` chunks with the highest scores; chunks with equal scores stay in document order."""
        scores = sorted(scores, key=itemgetter(1), reverse=True)
        threshold = scores[count - 1][1] if len(scores) > count else -inf
        scores = [pair for pair in scores if pair[1] >= threshold]
        frequency = Counter(score for _, score in scores)
        equal = self._in_order([chunk for chunk, score in scores if frequency[score] > 1])
        places = {chunk: place for place, (chunk, _) in enumerate(equal)}
        return sorted(scores, key=lambda pair: (-pair[1], places.get(pair[0], 0)))[:count]

    def _in_order(self, chunks: Collection[int]) -> list[tuple[int, int]]:
        if not chunks:
            return []
        rows = self._connection.rows(
            "SELECT chunks.id, document FROM chunks JOIN documents ON documents.id = document "
            f"JOIN files ON files.id = file WHERE chunks.id IN (SELECT value FROM json_each(?)) ORDER BY {_PLACE}",
            (json.dumps([*chunks]),),
        )
        if len(rows) < len(chunks):
            raise schema.damaged(self.path, "the words belong to a missing chunk")
        return rows

    @guarded
    def chunks(self, numbers: Sequence[int]) -> list[FoundChunk]:
        query = f"SELECT {_CHUNK} WHERE chunks.id IN (SELECT value FROM json_each(?))"
        rows = {row[0]: row for row in self._connection.rows(query, (json.dumps([*numbers]),))}
        return [_found_chunk(rows[number]) for number in numbers if number in rows]

    @guarded
    def documents_of(self, chunks: Collection[int]) -> dict[int, int]:
        return dict(self._in_order(chunks))

    @guarded
    def around(self, number: int, before: int, after: int) -> list[FoundChunk]:
        here = "document = (SELECT document FROM chunks WHERE id = ?)"
        limits = (number, number, before), (number, number, after + 1)
        earlier = self._connection.rows(
            f"SELECT {_CHUNK} WHERE {here} AND chunks.id < ? ORDER BY chunks.id DESC LIMIT ?", limits[0]
        )
        later = self._connection.execute(
            f"SELECT {_CHUNK} WHERE {here} AND chunks.id >= ? ORDER BY chunks.id LIMIT ?", limits[1]
        )
        return [_found_chunk(row) for row in [*earlier[::-1], *later]]

    def documents(self, path: str) -> Iterator[StoredDocument]:
        query = "SELECT documents.id FROM documents JOIN files ON files.id = file WHERE path = ? ORDER BY documents.id"
        for (number,) in self._rows(query, (os.fsencode(path),)):
            yield self._document(number)

    @guarded
    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        return self._connection.rows(query, values)

    @guarded
    def _document(self, number: int) -> StoredDocument:
        place, title, fields = self._connection.row(
            "SELECT place, title, fields FROM documents WHERE id = ?", (number,)
        )
        chunks = []
        for chunk, *row in self._connection.rows(
            "SELECT id, text, titles, first_line, last_line, page FROM chunks WHERE document = ? ORDER BY id", (number,)
        ):
            windows = "SELECT hash FROM windows JOIN vectors ON vectors.id = windows.vector WHERE chunk = ?"
            hashes = self._connection.rows(f"{windows} ORDER BY vectors.id", (chunk,))
            chunks.append(_stored_chunk(row, tuple(hash for (hash,) in hashes)))
        return StoredDocument(str(place), str(title), dict(json.loads(fields)), chunks)

    @guarded
    def chunk_at(self, path: str, line: int) -> int | None:
        row = self._connection.row(
            "SELECT chunks.id FROM files JOIN documents ON files.id = file JOIN chunks ON documents.id = document "
            "WHERE path = ? ORDER BY ifnull(first_line, 0) > ?, abs(ifnull(first_line, 0) - ?), chunks.id LIMIT 1",
            (os.fsencode(path), line, line),
        )
        return None if row is None else int(row[0])

    @guarded
    def size(self) -> int:
        return self._cache.chunks()

    @guarded
    def count(self, only: Filter) -> int:
        condition, values = self._condition(only)
        query = f"SELECT count(*) FROM {_DOCUMENTS} WHERE {condition}"
        return int(self._connection.row(query, values)[0])

    @guarded
    def fields(self) -> list[str]:
        rows = self._connection.execute("SELECT DISTINCT key FROM documents, json_each(documents.fields) ORDER BY key")
        return [*COLUMNS, *(str(key) for (key,) in rows if key not in COLUMNS)]

    @guarded
    def problems(self) -> list[IndexProblem]:
        rows = self._connection.execute(f"SELECT path, place, kind, reason, more FROM ({_PROBLEMS}) ORDER BY path, id")
        return [_problem(row) for row in rows]

    @guarded
    def stats(self) -> Stats:
        counts = self._connection.row(
            "SELECT (SELECT count(*) FROM files WHERE problem IS NULL AND path != x''), "
            "(SELECT count(*) FROM documents), (SELECT count(*) FROM chunks), (SELECT count(*) FROM vectors)"
        )
        query = "SELECT path, problem FROM files WHERE problem IS NOT NULL AND NOT left_out ORDER BY path"
        failed = tuple((os.fsdecode(path), problem) for path, problem in self._connection.execute(query))
        size = sum(os.stat(path).st_size for path in (self.path, f"{self.path}-wal") if schema.exists(path))
        problems = dict(self._connection.execute(f"SELECT kind, sum(1 + more) FROM ({_PROBLEMS}) GROUP BY kind"))
        files, documents, chunks, vectors = counts
        return Stats(files, documents, chunks, vectors, size, failed, problems)

    @guarded
    def check(self) -> None:
        problems = [row[0] for row in self._connection.execute("PRAGMA integrity_check")]
        if problems != ["ok"]:
            raise schema.damaged(self.path, "; ".join(problems[:3]))
        self._check_words()
        complete = self._connection.execute(
            "SELECT count(*) = (SELECT count(*) FROM windows) AND "
            "count(DISTINCT chunk) = (SELECT count(*) FROM chunks) "
            "FROM windows JOIN vectors ON vectors.id = windows.vector JOIN chunks ON chunks.id = chunk "
            "JOIN documents ON documents.id = document JOIN files ON files.id = file"
        )
        if complete.fetchone() != (1,):
            raise schema.damaged(self.path, "a chunk has no document or no vector")
        if self._connection.row("SELECT 1 FROM problems WHERE file NOT IN (SELECT id FROM files)"):
            raise schema.damaged(self.path, "a stored problem belongs to a missing file")
        self._cache.check()
        if self._tokens is not None:
            self._tokens.check()

    def _check_words(self) -> None:
        """Compares the stored words with the chunks, which are indexed once more in a temporary table."""
        terms = "SELECT term, col, doc, cnt FROM temp.{0}_terms UNION ALL SELECT NULL, NULL, rowid, NULL FROM {0}"
        stored, computed = terms.format("words"), terms.format("checked")
        with self.reading():
            try:
                self._connection.execute(f"CREATE VIRTUAL TABLE temp.checked USING {schema.WORDS}")
                schema.fill_words(self._connection, "checked")
                for database, table in (("main", "words"), ("temp", "checked")):
                    self._connection.execute(
                        f"CREATE VIRTUAL TABLE temp.{table}_terms USING fts5vocab ('{database}', '{table}', 'col')"
                    )
                for these, others in ((stored, computed), (computed, stored)):
                    if self._connection.row(f"SELECT * FROM ({these}) EXCEPT SELECT * FROM ({others}) LIMIT 1"):
                        raise schema.damaged(self.path, "the words do not match the chunks")
            finally:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")  # removes the temporary tables

    def close(self) -> None:
        self._connection.close()


def _page_size(dimensions: int) -> int:
    """Returns the smallest page size in bytes, from 8192 to 65536, that is large enough for a vector.

    A page may hold several vectors: five vectors of 768 values fill 94 % of a page of 8192 bytes.
    """
    return next((size for size in (2**13, 2**14, 2**15) if 2 * dimensions + _PAGE_OVERHEAD <= size), 2**16)


def _found_chunk(row: Sequence[Any]) -> FoundChunk:
    number, document, path, place, fields, *chunk = row
    if "\0" in place:  # see `mlxbert.search.database`
        raise ValueError("a place contains NUL characters")
    return FoundChunk(number, document, os.fsdecode(path), str(place), dict(json.loads(fields)), _stored_chunk(chunk))


def _stored_chunk(row: Sequence[Any], hashes: tuple[bytes, ...] = ()) -> StoredChunk:
    text, titles, *lines = row
    if not all(line is None or type(line) is int for line in lines):
        raise ValueError("the lines of a chunk are invalid")
    if "\0" in text:  # see `mlxbert.search.database`
        raise ValueError("a text contains NUL characters")
    return StoredChunk(str(text), tuple(map(str, json.loads(titles))), hashes, *lines)


def _problem(row: Sequence[Any]) -> IndexProblem:
    path, place, kind, reason, more = row
    if not all(isinstance(text, str) and "\0" not in text for text in (place, kind, reason)) or type(more) is not int:
        raise ValueError("a stored problem is invalid")
    return IndexProblem(os.fsdecode(path) or None, place, kind, reason, more)
