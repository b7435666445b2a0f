"""The rows of an index in a Lance table, and its transactions.

One table holds everything, so that a transaction is one commit of Lance: the rows of a file are replaced together, and
a process that is killed leaves the table as it was. The columns:

- `kind`: what the row is, see `RowKind`.
- `key`: the file (its name in bytes, each as the character with this code) or, after `!`, the `place` of a record.
- `number`, `document`: the numbers of a chunk and of the first chunk of its document. A document without chunks has a
  number, too.
- `place`, `title`, `fields`, `titles`, `text`, `first_line`, `last_line`, `page`: the document and the chunk.
- `words`: the folded words of a chunk, for the word index, see `indexed_words`.
- `hash`, `vector`: the text that was embedded, and its vector. A chunk of several windows has a row for each.
- `spare`: the vector of a row that belongs to no chunk, as bytes, so that the vector index does not have it.

The head is the row with the settings and the next free number. Each transaction replaces it, so that of two
transactions at once, the later one fails and is applied again to the result of the first one.
"""

import functools
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from mlxbert.errors import BusyError, MlxbertError, StoreError
from mlxbert.lazy_numpy import np
from mlxbert.other_libraries import install_command
from mlxbert.search.folding import first_character, folded, is_unspaced
from mlxbert.search.schema import damaged
from mlxbert.search.store import S3

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
_SOURCE = re.compile(r",? /[\w/.-]+\.rs:\d+(:\d+)?.*", re.DOTALL)  # the place in the source of Lance
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL for a server other than Amazon's"
# What an error's text contains, what it says to the user, and the hint.
_OF_SERVERS = (
    ("NoSuchBucket", "there is no such bucket", "create the bucket, or check the spelling of its name"),
    ("resolve region", "the region of the bucket is unknown", f"set AWS_REGION; {_CREDENTIALS}"),
    ("AWS credentials", "there are no credentials for this server", _CREDENTIALS),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|403 Forbidden|401 Unauthorized|PermissionDenied",
        "the server denies access",
        _CREDENTIALS,
    ),
    ("error sending request|builder error|Connect|timed out", "the server cannot be reached", "check AWS_ENDPOINT_URL"),
)
_OF_FOLDERS = (
    ("Not a directory|os error 20", "is a file, expected a folder", "choose another place"),
    ("os error 28|No space left|StorageFull", "no space left on the disk", "the index still has its earlier content"),
    (
        "Permission denied|Read-only file system|os error 13|os error 30|PermissionDenied",
        "the index cannot be written",
        "`mlxbert.open_index(path=FILE)` opens an index at another place",
    ),
)
# A file that is there, but has another content than Lance has written. A missing file may be transient: another process
# removes the files of earlier versions.
_DAMAGE = re.compile(
    r"corrupt|failed to decode Protobuf|not appear to be a Lance file|file size is too small|outside metadata region"
    r"|Invalid UTF8|for object of size \d+ bytes|failed to fill whole buffer",
    re.IGNORECASE,
)


class ContradictoryRowsError(ValueError):
    """Rows of a table contradict each other, or have values that mlxbert does not write."""


def require_lance() -> None:
    """Raises MlxbertError if Lance is not installed."""
    os.environ.setdefault("LANCE_LOG", "error")  # its warnings are for programmers
    try:
        import lance
    except ImportError as problem:
        raise MlxbertError(
            f"an index in a Lance table needs the package pylance ({problem})", hint=install_command("lance")
        ) from None
    if not hasattr(lance, "LanceDataset"):  # another package has the same name
        raise MlxbertError("the package lance is not Lance's", hint=install_command("lance"))


def lance_options(uri: str) -> dict[str, str] | None:
    """Returns the options with which Lance opens a place. It reads most from the environment."""
    if uri.startswith(S3) and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        return {"allow_http": "true"}
    return None


def is_conflict(problem: BaseException) -> bool:
    """Whether a commit failed because of another one."""
    return "commit conflict" in str(problem).lower() or "concurrent" in str(problem).lower()


def lance_error(path: str, problem: BaseException) -> StoreError:
    """Converts an error of Lance to a StoreError."""
    text = str(problem)
    for pattern, reason, hint in _OF_SERVERS if path.startswith(S3) else _OF_FOLDERS:
        if re.search(pattern, text):
            return StoreError(f"{path}: {reason}", hint=hint)
    why = _SOURCE.sub("", text)
    if isinstance(problem, ContradictoryRowsError | json.JSONDecodeError) or _DAMAGE.search(why):
        return damaged(path, why)
    return StoreError(f"{path}: the index cannot be read or written ({why or type(problem).__name__:.300})")


def lance_guarded(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorates a method of a store, so that the errors of its table become StoreErrors."""

    @functools.wraps(method)
    def checked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except MlxbertError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, MemoryError) as problem:
            raise lance_error(str(getattr(self, "path", "")), problem) from problem
        except BaseException as problem:
            if type(problem).__name__ != "PanicException":  # of Rust: a BaseException that no module exports
                raise
            raise lance_error(str(getattr(self, "path", "")), problem) from None

    return checked


Row: TypeAlias = dict[str, Any]  # the values of a row by column

HEAD, SPARE = "head", "spare"  # keys; a path is absolute, and the key of a record begins with !
VERSION = "1"  # of the columns and of what they hold
BOUNDARY = "|"  # a word that no phrase has
_IN_MEMORY = 2**24  # bytes of a transaction
_BATCH = 2_048  # rows
_ATTEMPTS = 100
_FRAGMENT = 50_000  # rows: larger parts of a table are not merged with others
_SMALL = 8  # parts of a table that may be smaller
_INDEXED = 20_000  # vectors from which on there is a vector index: a search takes 3 ms with it, and 30 ms without
_RETRAINED = 8  # times as many vectors as an index was trained with
_SEGMENTS = 8  # parts of an index
_KEPT = timedelta(minutes=10)  # how long readers may use an earlier version
METRICS = {"dot": "dot", "euclidean": "l2"}  # of similarities other than the cosine, in Lance
WORD_INDEX = "words"
_WORD_OPTIONS: Mapping[str, Any] = {
    "base_tokenizer": "whitespace", "lower_case": False, "stem": False, "remove_stop_words": False,
    "ascii_folding": False, "max_token_length": None, "with_position": True,
}  # fmt: skip


class RowKind(IntEnum):
    """The kinds of rows."""

    HEAD, FILE, PROBLEM, CHUNK, WINDOW, DOCUMENT, SPARE = range(7)


def schema_of(dimensions: int) -> "pa.Schema":
    """Returns the columns of a table."""
    import pyarrow as pa

    texts = ("key", "place", "title", "fields", "titles", "text", "words", "hash")
    numbers = ("number", "document", "first_line", "last_line", "page")
    return pa.schema(
        [
            ("kind", pa.int8()),
            *((name, pa.string()) for name in texts),
            *((name, pa.int64()) for name in numbers),
            ("vector", pa.list_(pa.float16(), dimensions)),
            ("spare", pa.binary()),
        ],
        metadata={"mlxbert": VERSION},
    )


def indexed_words(titles: Sequence[str], text: str) -> str:
    """Returns the words of a chunk, each after a space, with a boundary before the titles and before the text.

    After a further boundary come the characters with which words of scripts without spaces begin, each after a `*`.
    """
    words = " ".join([BOUNDARY, *folded("\n".join(titles)).split(), BOUNDARY, *folded(text).split()])
    if words.isascii():
        return words
    starts = dict.fromkeys(beginning(word) for word in words.split() if is_unspaced(word))
    return " ".join([words, BOUNDARY, *starts]) if starts else words


def beginning(word: str) -> str:
    """Returns the word of `indexed_words` that stands for all words with the same first character and its marks."""
    return f"*{first_character(word)}"


def quoted(text: str) -> str:
    """Returns a text as a value of SQL."""
    return "'" + text.replace("'", "''") + "'"


def listed(values: Iterable[str | int]) -> str:
    """Returns a list of SQL, which matches nothing if it is empty."""
    return "(" + (",".join(quoted(value) if isinstance(value, str) else str(value) for value in values) or "NULL") + ")"


def open_table(uri: str) -> "lance.LanceDataset":
    """Opens the latest version of a table."""
    import lance

    return lance.dataset(uri, storage_options=lance_options(uri))


def create_table(uri: str, dimensions: int, head: str) -> bool:
    """Creates a table, which appears with its first version. Returns `False` if another process was faster."""
    import lance

    schema = schema_of(dimensions)
    first = to_batch([_head(head)], schema)
    try:
        made = lance.write_dataset(first, uri, schema=schema, storage_options=lance_options(uri))
    except OSError as problem:
        if "already exists" in str(problem):
            return False
        raise
    for column in ("key", "number", "hash"):
        made.create_scalar_index(column, "BTREE", name=column)
    made.create_scalar_index("words", "INVERTED", name=WORD_INDEX, **_WORD_OPTIONS)
    return True


def _head(text: str) -> Row:
    return {"kind": RowKind.HEAD, "key": HEAD, "text": text}


def to_batch(rows: Sequence[Row], schema: "pa.Schema") -> "pa.RecordBatch":
    """Returns rows as a batch of the columns; a missing value is null."""
    import pyarrow as pa

    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        if field.name == "vector":
            width = field.type.list_size
            stacked = np.stack([np.zeros(width, np.float16) if value is None else value for value in values])
            mask = pa.array([value is None for value in values])
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(stacked.reshape(-1)), type=field.type, mask=mask))
        else:
            columns.append(pa.array(values, field.type))
    return pa.record_batch(columns, schema=schema)


class Transaction:
    """The changes of a transaction, which wait in memory or on disk until they are committed.

    New rows belong to groups, which are removed or get another key as a whole.
    """

    def __init__(self, dimensions: int) -> None:
        import pyarrow as pa

        self.schema = schema_of(dimensions)
        self.keys: dict[int, str] = {}  # of the groups that were not removed
        self.gone: dict[str, None] = {}  # keys of which all earlier rows are removed
        self.gone_files: dict[str, None] = {}  # keys of which only the row of the file is removed
        self.spares = ""  # which spare vectors are removed, as a condition
        self.vectors: dict[bytes, Any] = {}  # new ones by hash, for later rows of this transaction
        self.numbers = 0
        self._groups = 0
        self._moved = set[int]()
        self._rows: list[Row] = []
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._stored = self.schema.append(pa.field("group", pa.int64()))
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), self._stored)

    def __bool__(self) -> bool:
        return bool(self._groups or self.gone or self.gone_files or self.spares)

    def remove(self, key: str) -> None:
        """Removes all rows with a key, except that earlier spare vectors stay."""
        if key != SPARE:
            self.gone[key] = None
        self.keys = {group: other for group, other in self.keys.items() if other != key}

    def begin(self, key: str) -> int:
        self._groups += 1
        self.keys[self._groups] = key
        return self._groups

    def reserve(self, count: int = 1) -> int:
        """Reserves numbers and returns the first one; the commit adds the first free number of the table to it."""
        self.numbers += count
        return self.numbers - count

    def add(self, group: int, row: Row) -> None:
        self._rows.append({**row, "group": group})
        if len(self._rows) == _BATCH:
            self._flush()

    def move(self, key: str, batches: Iterable["pa.RecordBatch"]) -> None:
        """Adds rows of the table under another key, with their numbers."""
        import pyarrow as pa

        self._flush()
        group = self.begin(key)
        self._moved.add(group)
        for batch in batches:
            groups = pa.array([group] * len(batch), pa.int64())
            columns = [*batch.select(self.schema.names).columns, groups]
            self._writer.write_batch(pa.record_batch(columns, schema=self._stored))

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(to_batch(self._rows, self._stored))
            self._rows = []

    def finish(self) -> None:
        """Ends the changes; `batches` may be called several times from now on."""
        self._flush()
        self._writer.close()

    def close(self) -> None:
        self._file.close()

    def batches(self, first: int) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._file.seek(0)
        alive = pa.array([*self.keys], pa.int64())
        for stored in pa.ipc.open_stream(pa.PythonFile(self._file, "r")):
            batch = stored.filter(pc.is_in(stored["group"], alive))
            if len(batch):
                keys = pa.array([self.keys[group] for group in batch["group"].to_pylist()])
                batch = batch.set_column(batch.schema.get_field_index("key"), self.schema.field("key"), keys)
                is_moved = batch["group"][0].as_py() in self._moved
                yield _shifted(batch.select(self.schema.names), 0 if is_moved else first)


def _shifted(batch: "pa.RecordBatch", by: int) -> "pa.RecordBatch":
    """Adds a number to the numbers of chunks and documents."""
    import pyarrow.compute as pc

    for name in ("number", "document"):
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(name), pc.add(batch[name], by))
    return batch


class LanceTable:
    """A table at one of its versions."""

    def __init__(self, uri: str) -> None:
        self.dataset = open_table(uri)
        # The name of this writer, whose spare vectors no other one removes.
        self.session = f"{random.getrandbits(64):016x}"

    def refresh(self) -> bool:
        """Changes to the latest version; returns whether there is a newer one."""
        latest = self.dataset.latest_version
        changed = bool(latest != self.dataset.version)
        if changed:
            self.dataset = self.dataset.checkout_version(latest)
        return changed

    def scan(self, columns: Sequence[str], where: str | None = None, **options: Any) -> "pa.Table":
        """Returns some columns of the rows that match a condition."""
        options.setdefault("disable_scoring_autoprojection", True)
        return self.dataset.scanner(columns=[*columns], filter=where, **options).to_table()

    def count(self, where: str) -> int:
        return int(self.dataset.count_rows(where))

    def head(self) -> dict[str, Any]:
        rows = self.scan(["text"], f"key = {quoted(HEAD)}")["text"].to_pylist()
        if len(rows) != 1:
            raise ContradictoryRowsError(f"there are {len(rows)} rows of settings")
        return dict(json.loads(rows[0]))

    def commit(self, changes: Transaction, settings: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Commits a transaction. If another one was faster, applies the changes to its result."""
        changes.finish()
        for attempt in range(_ATTEMPTS):
            try:
                self._attempt(changes, settings)
            except (OSError, RuntimeError) as problem:
                if not is_conflict(problem):
                    raise
                time.sleep(random.random() * min(0.01 * 2**attempt, 1))
                self.refresh()
            else:
                return
        raise BusyError(f"{self.dataset.uri}: the index is busy: other processes kept writing", hint="try again later")

    def _attempt(self, changes: Transaction, settings: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        import lance
        import pyarrow as pa
        from lance.fragment import write_fragments

        self.refresh()
        head, gone = self.head(), list[int]()
        new = {**settings(head), "next": head["next"] + changes.numbers}

        def rows() -> Iterator["pa.RecordBatch"]:
            yield from changes.batches(head["next"])
            yield from self._removed(changes, gone)
            yield to_batch([_head(json.dumps(new))], changes.schema)

        options = lance_options(self.dataset.uri)
        reader = pa.RecordBatchReader.from_batches(changes.schema, rows())
        added = write_fragments(reader, self.dataset.uri, schema=changes.schema, storage_options=options)
        updated, emptied = self._without(gone)
        self.dataset = lance.LanceDataset.commit(
            self.dataset.uri,
            lance.LanceOperation.Update(removed_fragment_ids=emptied, updated_fragments=updated, new_fragments=added),
            read_version=self.dataset.version,
            storage_options=options,
        )

    def _removed(self, changes: Transaction, gone: list[int]) -> Iterator["pa.RecordBatch"]:
        """Yields, as spare rows, the vectors of the rows to remove; adds the addresses of these rows to `gone`."""
        keys = [HEAD, *changes.gone]
        conditions = [f"key IN {listed(keys[start : start + 500])}" for start in range(0, len(keys), 500)]
        if files := [*changes.gone_files]:
            conditions += [
                f"kind = {RowKind.FILE:d} AND key IN {listed(files[start : start + 500])}"
                for start in range(0, len(files), 500)
            ]
        if changes.spares:
            conditions.append(changes.spares)
        for condition in conditions:
            scanner = self.dataset.scanner(columns=["kind", "hash", "vector"], filter=condition, with_row_address=True)
            for batch in scanner.to_batches():
                gone += batch["_rowaddr"].to_pylist()
                spares = [
                    self.spare(row["hash"], row["vector"])
                    for row in batch.to_pylist()
                    if not changes.spares
                    and row["vector"] is not None
                    and bytes.fromhex(row["hash"]) not in changes.vectors
                ]
                if spares:
                    yield to_batch(spares, changes.schema)

    def spare(self, hash: str, vector: Any) -> Row:
        """Returns the row of a vector that belongs to no chunk."""
        stored = np.asarray(vector, np.float16).tobytes()
        return {
            "kind": RowKind.SPARE,
            "key": SPARE,
            "place": self.session,
            "page": int(time.time()),
            "hash": hash,
            "spare": stored,
        }

    def _without(self, addresses: Sequence[int]) -> tuple[list[Any], list[int]]:
        """Marks rows as removed; returns the changed fragments, and the numbers of those without further rows."""
        rows: dict[int, list[int]] = {}
        for address in dict.fromkeys(addresses):
            rows.setdefault(address >> 32, []).append(address)
        updated, emptied = [], []
        for number, listing in rows.items():
            fragment = self.dataset.get_fragment(number)
            assert fragment is not None  # its rows were just read
            changed = fragment.delete(f"_rowaddr IN {listed(listing)}")
            if changed is None:
                emptied.append(number)
            else:
                updated.append(changed)
        return updated, emptied

    def tidy(self) -> None:
        """Merges small parts of the table, brings its indexes up to date, and removes what no reader can need.

        If another process does this at the same time, it is left to that process.
        """
        self.refresh()
        try:
            small = [one for one in self.dataset.get_fragments() if one.metadata.num_rows < _FRAGMENT]
            if len(small) > _SMALL:
                self.dataset.optimize.compact_files(target_rows_per_fragment=_FRAGMENT)
            self._index_vectors()
            self._extend_indexes()
        except (OSError, RuntimeError) as problem:
            if not is_conflict(problem):
                raise
        self.dataset = self.dataset.checkout_version(self.dataset.latest_version)
        self.dataset.cleanup_old_versions(_KEPT)

    def _index_vectors(self) -> None:
        """Makes the index of the vectors if there are many, or many more than it was made for."""
        metric = METRICS.get(self.head()["similarity"], "cosine")
        count = self.count("vector IS NOT NULL")
        made = self.vector_index()
        if count < _INDEXED or (made and count < _RETRAINED * int(made.rpartition("-")[2])):
            return
        self.dataset.create_index("vector", "IVF_SQ", name=f"vectors-{count}", metric=metric)
        if made:
            self.dataset.drop_index(made)

    def vector_index(self) -> str | None:
        names = [index.name for index in self.dataset.describe_indices() if index.name.startswith("vectors-")]
        return max(names, key=lambda name: int(name.rpartition("-")[2]), default=None)

    def _extend_indexes(self) -> None:
        total = self.dataset.count_rows()
        for index in self.dataset.describe_indices():
            if index.num_rows_indexed != total or len(index.segments) > _SEGMENTS:
                merged = len(index.segments) if len(index.segments) > _SEGMENTS else 0
                self.dataset.optimize.optimize_indices(num_indices_to_merge=merged, index_names=[index.name])


def check_version(path: str, dataset: "lance.LanceDataset") -> None:
    """Raises StoreError if a table is not an index of this version."""
    version = (dataset.schema.metadata or {}).get(b"mlxbert")
    if version is None:
        raise StoreError(f"{path}: the table is not an index of mlxbert")
    if version != VERSION.encode():
        found = version.decode("ascii", "replace")
        message = f"{path}: the index has table version {found}, but this mlxbert supports only version {VERSION}"
        raise StoreError(message, hint="update mlxbert, or create a new index")
    if [*dataset.schema.names] != schema_of(1).names:
        raise ContradictoryRowsError("some columns are missing or unexpected")
