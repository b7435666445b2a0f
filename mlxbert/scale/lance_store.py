"""The store of an index in a Lance table, in a folder or in object storage. Several processes may write it at once.

Of two transactions at once, the later one is applied to the result of the first: of the same file or record, the later
one counts; settings that only one of them changed are both kept.
"""

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mlxbert.errors import ArgumentError, BusyError, StoreError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.scale.lance_table import (
    METRICS,
    SPARE,
    ContradictoryRowsError,
    LanceTable,
    Row,
    RowKind,
    Transaction,
    beginning,
    check_version,
    create_table,
    indexed_words,
    lance_error,
    lance_guarded,
    lance_options,
    listed,
    open_table,
    quoted,
    require_lance,
)
from mlxbert.search.filters import DOCUMENT_FIELDS, Filter, Glob, matches, nested
from mlxbert.search.schema import damaged
from mlxbert.search.store import (
    LANCE,
    FoundChunk,
    IndexProblem,
    IndexSettings,
    Scores,
    Stats,
    StoredChunk,
    StoredDocument,
    StoredFile,
    VectorWithTokens,
    finite_fields,
    settings_of,
    storable,
    to_float16,
)
from mlxbert.search.word_search import chosen_terms, phrases, word_weights

if TYPE_CHECKING:
    import pyarrow as pa

    # Returns the numbers and scores of the best `count` rows, best first; the rows of a chunk have its number.
Vector: TypeAlias = "NDArray[np.float32]"
Search: TypeAlias = "Callable[[int], tuple[NDArray[np.int64], NDArray[np.float32]]]"

_CHUNK = ("number", "document", "key", "place", "fields", "text", "titles", "first_line", "last_line", "page")
_SPARE_SECONDS = 86_400  # after which the spare vectors of a killed process are removed
_FEW = 2_000  # chunks that match a filter, which are compared directly
_WIDER = 4  # times as many rows are looked for as chunks are wanted
# Parts of the vector index in which a search looks, of about 8,000 vectors each. Of 200,000 vectors of
# benchmarks/search.py in 29 parts, it finds 0.94 of the ten nearest in 10 parts, 0.99 in 20 and all in 29. Lance's own
# `refine_factor` found no more of them, and took up to half as long again.
_PARTITIONS = 40
_COMMITS = 50  # after which the table is tidied
# The files that a process leaves if it is killed while it creates a table; Lance writes them under temporary names.
_REMAINS = re.compile(r"\.tmp\w+|.+\.(lance|txn|manifest)(#\d+)?")
_FOLDERS = ("data", "_deletions", "_indices", "_transactions", "_versions")  # in a table
_PART = 1_000  # chunks whose vectors are looked up together
_CACHED = 16  # filters, and 1,000 times as many words


def uri_of(location: str | Path) -> str:
    """Returns the address of a table: a URL, or an absolute path."""
    name = str(location).removeprefix(LANCE)
    return name if "://" in name else os.path.abspath(name)


class LanceStore:
    """A store in a Lance table (for its methods, see `mlxbert.search.store.IndexStore`).

    Args:
        location: `lance:DIR` or `s3://BUCKET/PATH`; created if it is missing and `about` is given.
    """

    seconds_per_transaction = 3.0  # each of them is a part of the table

    def __init__(self, location: str | Path, about: IndexSettings | None = None) -> None:
        require_lance()
        uri = uri_of(location)
        self.path = uri if "://" in uri else f"{LANCE}{uri}"
        self.own_paths = () if "://" in uri else (uri,)
        self.is_new = False
        self._changes: Transaction | None = None
        self._pinned = self._commits = 0
        self._hashes: NDArray[np.bytes_] | None = None  # of all texts with a vector, sorted
        self._forget()
        self._open(uri, about)

    @lance_guarded
    def _open(self, uri: str, about: IndexSettings | None) -> None:
        if not exists(self.path):
            if about is None:
                raise StoreError(
                    f"{self.path}: the index does not exist", hint="`mlxbert.open_index(paths=PATH)` makes an index"
                )
            if "://" not in uri and os.path.exists(uri) and not os.path.isdir(uri):  # Lance would try for seconds
                raise StoreError(f"{self.path}: is a file, expected a folder", hint="choose another place")
            if "://" not in uri and not all(_REMAINS.fullmatch(name) for _, _, names in os.walk(uri) for name in names):
                raise ArgumentError(f"{self.path}: the folder has other files", hint="choose a new folder")
            self.is_new = create_table(uri, about.dimensions, json.dumps({**asdict(about), "next": 1}))
        self._table = LanceTable(uri)
        check_version(self.path, self._table.dataset)
        self._read_about()
        self.writable = all(os.access(path, os.W_OK) for path in self.own_paths)

    def _forget(self) -> None:
        self._masks: dict[Filter, NDArray[np.int64]] = {}
        self._counts: dict[str, int] = {}
        self._total: int | None = None

    def _read_about(self) -> None:
        head = self._table.head()
        head.pop("next")
        try:
            self.about = settings_of(head)
        except (ValueError, TypeError) as problem:
            raise ContradictoryRowsError(str(problem)) from None

    def _latest(self) -> LanceTable:
        """Returns the latest version of the table or, within `reading`, its version."""
        if not self._pinned and self._table.refresh():
            self._forget()
        return self._table

    def locked(self) -> AbstractContextManager[None]:
        """See `IndexStore`; several processes may update the index."""
        return nullcontext()

    @contextmanager
    def writing(self) -> Iterator[None]:
        before = self.about
        self._changes = changes = Transaction(before.dimensions)
        try:
            yield
            self._commit(changes, before)
        except BaseException:
            self.about = before
            raise
        finally:
            changes.close()
            self._changes = None

    @lance_guarded
    def _commit(self, changes: Transaction, before: IndexSettings) -> None:
        if changes or self.about != before:
            self._table.commit(changes, partial(_merged, asdict(before), asdict(self.about)))
            self._commits += 1
            if changes.spares:
                self._hashes = None
            elif self._hashes is not None and changes.vectors:
                self._hashes = np.union1d(self._hashes, [*changes.vectors])
            if changes.spares or self._commits % _COMMITS == 0:  # at the end of an update
                self._table.tidy()
            self._forget()
            self._read_about()

    @property
    def _written(self) -> Transaction:
        if self._changes is None:
            raise StoreError(f"{self.path}: the index is changed outside of a transaction")
        return self._changes

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._begin_reading()
        try:
            yield
        finally:
            self._pinned -= 1

    @lance_guarded
    def _begin_reading(self) -> None:
        self._latest()
        self._pinned += 1

    @lance_guarded
    def refresh(self) -> None:
        self._latest()
        self._read_about()
        self._hashes = None  # another process may have removed some

    def set_about(self, about: IndexSettings) -> None:
        _ = self._written
        self.about = about

    @lance_guarded
    def files(self) -> dict[str, StoredFile]:
        rows = self._latest().scan(["key", "text"], f"kind = {RowKind.FILE:d}").to_pylist()
        return {file.path: file for file in map(_stored_file, rows)}

    @lance_guarded
    def known(self, hashes: Iterable[bytes]) -> set[bytes]:
        asked = {*hashes}
        if self._hashes is None:  # a query for each text would take longer than all of them
            scanner = self._latest().dataset.scanner(columns=["hash"], filter="hash IS NOT NULL")
            parts = [np.array([*map(bytes.fromhex, batch["hash"].to_pylist())]) for batch in scanner.to_batches()]
            self._hashes = np.unique(np.concatenate([*parts, np.zeros(0, "S16")]))
        here = set[bytes]() if self._changes is None else asked & self._changes.vectors.keys()
        rest = [*asked - here]
        if rest and len(self._hashes):
            wanted = np.array(rest)
            places = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
            here |= {hash for hash, same in zip(rest, self._hashes[places] == wanted, strict=True) if same}
        return here

    @lance_guarded
    def vectors(self, hashes: Collection[bytes]) -> dict[bytes, "Vector"]:
        if not hashes:
            return {}
        rows = self._latest().scan(["hash", "vector", "spare"], f"hash IN {listed(hash.hex() for hash in hashes)}")
        found = {}
        for row in rows.to_pylist():
            stored = row["vector"] if row["spare"] is None else np.frombuffer(row["spare"], np.float16)
            found[bytes.fromhex(row["hash"])] = np.asarray(stored, np.float16).astype(np.float32)
        return found

    @lance_guarded
    def put_vectors(self, vectors: Mapping[bytes, "Vector"]) -> None:
        changes = self._written
        group = changes.begin(SPARE)
        for hash in vectors.keys() - self.known(vectors):
            stored = changes.vectors[hash] = to_float16(self.path, vectors[hash])
            changes.add(group, self._table.spare(hash.hex(), stored))

    @lance_guarded
    def put(
        self,
        file: StoredFile,
        documents: Iterable[StoredDocument],
        vectors: Mapping[bytes, "Vector"],
        problems: Iterable[IndexProblem] = (),
    ) -> None:
        changes, key = self._written, _key(file.path)
        changes.remove(key)
        group = changes.begin(key)
        changes.add(group, _file_row(file))
        for problem in problems:
            changes.add(group, _problem_row(problem))
        for part in _parts(documents):
            self._add(group, part, self._needed(part, vectors))

    @lance_guarded
    def put_documents(
        self,
        documents: Iterable[StoredDocument],
        vectors: Mapping[bytes, "Vector"],
        problems: Iterable[IndexProblem] = (),
    ) -> None:
        changes = self._written
        listing = {document.place: document for document in documents}
        last = {problem.place: problem for problem in problems}
        for part in _parts(listing.values()):
            known = self._needed(part, vectors)
            for document in part:
                key = _key("", document.place)
                changes.remove(key)
                group = changes.begin(key)
                if not document.chunks and document.place in last:
                    changes.add(group, _problem_row(last[document.place]))
                self._add(group, [document], known)

    def _needed(self, documents: Sequence[StoredDocument], vectors: Mapping[bytes, "Vector"]) -> dict[bytes, Any]:
        """Returns the vectors of some documents, from the caller, this transaction or the table."""
        changes = self._written
        hashes = {hash for document in documents for chunk in document.chunks for hash in chunk.hashes}
        found = {hash: vectors[hash] for hash in hashes if hash in vectors}
        found |= {hash: changes.vectors[hash] for hash in hashes - found.keys() if hash in changes.vectors}
        found |= self.vectors(hashes - found.keys())
        if len(found) < len(hashes):
            raise BusyError(f"{self.path}: another process removed texts that this one has", hint="update it again")
        return found

    def _add(self, group: int, documents: Sequence[StoredDocument], vectors: Mapping[bytes, "Vector"]) -> None:
        """Adds documents to a group; `vectors` has all of theirs."""
        changes = self._written
        for document in documents:
            shared: Row = {
                "place": document.place,
                "title": document.title,
                "fields": json.dumps(finite_fields(document)),
            }
            owner = first = changes.reserve(max(1, len(document.chunks)))
            for number, chunk in enumerate(document.chunks, first):
                ids: Row = {"number": number, "document": owner}
                for window, hash in enumerate(chunk.hashes):
                    stored = changes.vectors[hash] = to_float16(self.path, vectors[hash])
                    row = {**ids, "hash": hash.hex(), "vector": stored}
                    changes.add(
                        group, {**row, "kind": RowKind.WINDOW} if window else {**row, **shared, **_chunk_row(chunk)}
                    )
            if not document.chunks:
                changes.add(group, {**shared, "kind": RowKind.DOCUMENT, "number": owner, "document": owner})

    @lance_guarded
    def touch(self, file: StoredFile) -> None:
        changes, key = self._written, _key(file.path)
        rows = self._latest().scan(["key", "text"], f"key = {quoted(key)} AND kind = {RowKind.FILE:d}").to_pylist()
        for before in map(_stored_file, rows):
            after = StoredFile(before.path, file.size, file.changed, before.hash, before.problem, before.left_out)
            changes.gone_files[key] = None
            changes.add(changes.begin(key), _file_row(after))

    @lance_guarded
    def rename(self, path: str, new: str) -> None:
        changes, key, target = self._written, _key(path), _key(new)
        added = [group for group, other in changes.keys.items() if other == key]
        table, where = self._latest(), f"key = {quoted(key)}"
        if key in changes.gone_files:  # its row is in this transaction
            where += f" AND kind != {RowKind.FILE:d}"
        if key not in changes.gone:
            changes.move(target, table.dataset.scanner(filter=where).to_batches())
        changes.remove(key)
        changes.keys |= dict.fromkeys(added, target)

    @lance_guarded
    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._written.remove(_key(path))

    @lance_guarded
    def remove_documents(self, places: Iterable[str]) -> int:
        keys = [_key("", place) for place in places]
        for key in keys:
            self._written.remove(key)
        return self._latest().count(f"key IN {listed(keys)} AND {_FIRST}") if keys else 0

    @lance_guarded
    def prune(self) -> None:
        until = int(time.time()) - _SPARE_SECONDS
        self._written.remove(SPARE)
        self._written.spares = f"key = {quoted(SPARE)} AND (place = {quoted(self._table.session)} OR page < {until})"

    def nearest(self, vector: "Vector", count: int, only: Filter) -> Scores:
        return self.begin_nearest(vector, count, only)()

    @lance_guarded
    def begin_nearest(self, vector: "Vector", count: int, only: Filter) -> Callable[[], Scores]:
        table = self._latest()
        numbers = self._numbers(only) if only else None
        future = _executor().submit(self._nearest, table.dataset, vector, count, numbers)
        return lambda: future.result()

    @lance_guarded
    def _nearest(self, dataset: Any, vector: "Vector", count: int, numbers: "NDArray[np.int64] | None") -> Scores:
        few = None if numbers is None or len(numbers) > _FEW else numbers
        if few is not None or self.about.similarity == "manhattan":
            where = "vector IS NOT NULL" if few is None else f"number IN {listed(few.tolist())}"
            return self._best(partial(self._of_all, dataset, vector, where), count, numbers)
        return self._best(partial(self._likely, dataset, vector), count, numbers)

    def _of_all(
        self, dataset: Any, vector: "Vector", where: str, count: int
    ) -> tuple["NDArray[np.int64]", "NDArray[np.float32]"]:
        """Compares all vectors of the rows that match a condition; see `Search`."""
        numbers, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for batch in dataset.scanner(columns=["number", "vector"], filter=where).to_batches():
            more = self._scored(vector, batch)
            numbers, scores = np.append(numbers, more[0]), np.append(scores, more[1])
            order = np.argsort(-scores, kind="stable")[:count]
            numbers, scores = numbers[order], scores[order]
        return numbers, scores

    def _likely(self, dataset: Any, vector: "Vector", count: int) -> tuple["NDArray[np.int64]", "NDArray[np.float32]"]:
        """Compares the vectors that Lance selects; see `Search`."""
        metric = METRICS.get(self.about.similarity, "cosine")
        nearest = {"column": "vector", "q": vector, "k": count, "metric": metric, "nprobes": _PARTITIONS}
        rows = dataset.scanner(
            columns=["number", "vector"], nearest=nearest, disable_scoring_autoprojection=True
        ).to_table()
        numbers, scores = self._scored(vector, rows)
        order = np.argsort(-scores, kind="stable")
        return numbers[order], scores[order]

    def _scored(
        self, vector: "Vector", rows: "pa.Table | pa.RecordBatch"
    ) -> tuple["NDArray[np.int64]", "NDArray[np.float32]"]:
        """Returns the numbers of some rows, and the similarities of their vectors."""
        from mlxbert.tasks.query_ranking import scores_of_all

        numbers = rows["number"].to_numpy()
        if not len(numbers):
            return numbers, np.zeros(0, np.float32)
        vectors = _matrix(rows["vector"], self.about.dimensions)
        if not np.isfinite(vectors).all():
            raise ContradictoryRowsError("a vector has values that are not finite")
        return numbers, scores_of_all(self.about.similarity, vector[None], vectors)[0]

    def _best(self, search: "Search", count: int, only: "NDArray[np.int64] | None") -> Scores:
        """Returns the best chunks of a search that match a filter; equally good ones in the order of documents.

        The search is repeated for more rows as long as it may have missed some.
        """
        wide = _WIDER * count
        if only is not None:
            wide = min(wide * max(1, self.size() // max(len(only), 1)), self.size() + wide)
        while True:
            numbers, scores = search(wide)
            is_whole, lowest = len(numbers) < wide, float(scores[-1]) if len(scores) else 0.0
            if only is not None:
                kept = np.isin(numbers, only)
                numbers, scores = numbers[kept], scores[kept]
            best = dict[int, float]()
            for number, score in zip(numbers.tolist(), scores.tolist(), strict=True):
                best.setdefault(number, score)
            ranked = [*best.items()]
            if is_whole or (len(ranked) >= count and ranked[count - 1][1] > lowest):
                return self._ordered(ranked, count)
            wide *= _WIDER

    def _ordered(self, ranked: Scores, count: int) -> Scores:
        """Returns the first chunks of a ranking, of which equally good ones are sorted as in `documents_of`."""
        if len(ranked) > count:
            ranked = [pair for pair in ranked if pair[1] >= ranked[count - 1][1]]
        scores = [score for _, score in ranked]
        if len({*scores}) == len(scores):
            return ranked[:count]
        places = {number: place for place, number in enumerate(self.documents_of([number for number, _ in ranked]))}
        return sorted(ranked, key=lambda pair: (-pair[1], places[pair[0]]))[:count]

    @lance_guarded
    def similarities(self, vector: "Vector", chunks: Collection[int]) -> dict[int, float]:
        numbers, scores = self._scored(vector, self._latest().scan(["number", "vector"], f"number IN {listed(chunks)}"))
        best: dict[int, float] = {}
        for number, score in zip(numbers.tolist(), scores.tolist(), strict=True):
            best[number] = max(best.get(number, score), score)
        if len(best) < len({*chunks}):
            raise ContradictoryRowsError("a chunk has no vector")
        return best

    def tokens(self, chunks: Sequence[int]) -> "dict[int, list[NDArray[Any]]]":
        """See `IndexStore`; a table is made without them."""
        raise StoreError(f"{self.path}: a Lance table has no token vectors")

    def vectors_with_tokens(self, hashes: Collection[bytes]) -> dict[bytes, VectorWithTokens]:
        """See `IndexStore`; a table is made without them."""
        raise StoreError(f"{self.path}: a Lance table has no token vectors")

    @lance_guarded
    def with_words(self, query: str, count: int, only: Filter) -> Scores:
        from lance.query import BooleanQuery, Occur

        terms = chosen_terms(query, self._frequency)
        wanted = BooleanQuery([(Occur.SHOULD, _term_query(term)) for term in terms]) if terms else None
        return self._matching(wanted, count, only)

    @lance_guarded
    def word_weights(self, query: str) -> dict[tuple[str, ...], float]:
        return word_weights(query, self._frequency, self.size())

    @lance_guarded
    def word_for_word(self, query: str, count: int, only: Filter) -> Scores:
        from lance.query import BooleanQuery, Occur

        terms = phrases(query)
        wanted = BooleanQuery([(Occur.MUST, _term_query(term)) for term in terms]) if terms else None
        open_ended = [f" {' '.join(term)[:-1]}" for term in terms if len(term) > 1 and term[-1].endswith("*")]
        return self._matching(
            wanted, count, only, " AND ".join(f"contains(words, {quoted(text)})" for text in open_ended)
        )

    def _matching(self, wanted: Any, count: int, only: Filter, where: str = "") -> Scores:
        """Returns the best chunks for a query of the word index, of the rows that match a condition."""
        if wanted is None:
            return []
        dataset = self._latest().dataset

        def search(wide: int) -> "tuple[NDArray[np.int64], NDArray[np.float32]]":
            rows = dataset.scanner(
                columns=["number", "_score"], full_text_query=wanted, limit=wide, filter=where or None, prefilter=True,
                disable_scoring_autoprojection=True,
            ).to_table()  # fmt: skip
            rows = rows.sort_by([("_score", "descending")])
            return rows["number"].to_numpy(), rows["_score"].to_numpy()

        return self._best(search, count, self._numbers(only) if only else None)

    def _frequency(self, words: Sequence[str]) -> dict[str, int]:
        """Returns the number of chunks that contain each word, or a word with the beginning before a `*`."""
        dataset = self._latest().dataset
        if len(self._counts) > 1000 * _CACHED:
            self._counts.clear()
        for word in {*words} - self._counts.keys():
            query = _term_query((word,))
            self._counts[word] = dataset.scanner(columns=[], with_row_id=True, full_text_query=query).count_rows()
        return {word: self._counts[word] for word in words}

    @lance_guarded
    def size(self) -> int:
        table = self._latest()
        if self._total is None:
            self._total = table.count(f"kind = {RowKind.CHUNK:d}")
        return self._total

    @lance_guarded
    def chunks(self, numbers: Sequence[int]) -> list[FoundChunk]:
        found = {row.number: row for row in self._chunks(f"number IN {listed(numbers)}")} if numbers else {}
        return [found[number] for number in numbers if number in found]

    def _chunks(self, where: str) -> list[FoundChunk]:
        rows = self._latest().scan(_CHUNK, f"{where} AND kind = {RowKind.CHUNK:d}").to_pylist()
        return sorted(map(_found_chunk, rows), key=lambda row: row.number)

    @lance_guarded
    def documents_of(self, chunks: Collection[int]) -> dict[int, int]:
        if not chunks:
            return {}
        where = f"number IN {listed(chunks)} AND kind = {RowKind.CHUNK:d}"
        rows = self._latest().scan(["key", "number", "document"], where).to_pylist()
        if len(rows) < len({*chunks}):
            raise ContradictoryRowsError("the words belong to a missing chunk")
        rows.sort(key=itemgetter("key", "number"))
        return {row["number"]: row["document"] for row in rows}

    @lance_guarded
    def around(self, number: int, before: int, after: int) -> list[FoundChunk]:
        near = self._chunks(f"number BETWEEN {number - before} AND {number + after}")
        documents = {row.document for row in near if row.number == number}
        return [row for row in near if row.document in documents]

    @lance_guarded
    def chunk_at(self, path: str, line: int) -> int | None:
        where = f"key = {quoted(_key(path))} AND kind = {RowKind.CHUNK:d}"
        rows = self._latest().scan(["number", "first_line"], where).to_pylist()

        def distance(row: Row) -> tuple[bool, int, int]:
            first = row["first_line"] or 0
            return first > line, abs(first - line), row["number"]

        return min(rows, key=distance)["number"] if rows else None

    def _numbers(self, only: Filter) -> "NDArray[np.int64]":
        """Returns the sorted numbers of the chunks that match a filter, and of documents without chunks."""
        table = self._latest()
        if only not in self._masks:
            below = _below(only.under)
            where = " AND ".join(filter(None, [below, "number IS NOT NULL"]))
            numbers = table.scan(["number", "document"], where)
            chosen = numbers["number"].to_numpy()
            if only.where:
                globs = dict[str, Glob]()
                columns = ["document", "key", "place", "title", "fields"]
                documents = table.scan(columns, f"{where} AND {_FIRST}")
                kept = [row["document"] for row in documents.to_pylist() if matches(only.where, _values(row), globs)]
                chosen = chosen[np.isin(numbers["document"].to_numpy(), np.array(kept, np.int64))]
            if len(self._masks) >= _CACHED:
                self._masks.pop(next(iter(self._masks)))
            self._masks[only] = np.unique(chosen)
        return self._masks[only]

    @lance_guarded
    def count(self, only: Filter) -> int:
        documents = self._latest().scan(["number"], f"{_FIRST}")["number"].to_numpy()
        return int(np.isin(documents, self._numbers(only)).sum()) if only else len(documents)

    @lance_guarded
    def fields(self) -> list[str]:
        import pyarrow.compute as pc

        texts = pc.unique(self._latest().scan(["fields"], f"{_FIRST}")["fields"]).to_pylist()
        return [*DOCUMENT_FIELDS, *sorted({name for text in texts for name in json.loads(text)} - {*DOCUMENT_FIELDS})]

    @lance_guarded
    def problems(self) -> list[IndexProblem]:
        kinds = listed([int(RowKind.FILE), int(RowKind.PROBLEM)])
        rows = self._latest().scan(["kind", "key", "place", "text"], f"kind IN {kinds}").to_pylist()
        rows = [row for row in rows if row["kind"] == RowKind.PROBLEM or _stored_file(row).problem is not None]
        return [_problem(row) for row in sorted(rows, key=lambda row: (_path(row["key"]), row["kind"]))]

    @lance_guarded
    def stats(self) -> Stats:
        import pyarrow.compute as pc

        table, files = self._latest(), self.files().values()
        failed = sorted((file.path, file.problem) for file in files if file.problem is not None and not file.left_out)
        kinds: dict[str, int] = {}
        for problem in self.problems():
            kinds[problem.kind] = kinds.get(problem.kind, 0) + 1 + problem.more
        hashes = table.scan(["hash"], "hash IS NOT NULL")["hash"]
        size = pc.sum(table.dataset.all_files().read_all()["size_bytes"]).as_py()
        return Stats(
            sum(file.problem is None for file in files),
            self.count(Filter()),
            self.size(),
            pc.count_distinct(hashes).as_py(),
            size,
            tuple(failed),
            kinds,
        )

    def documents(self, path: str) -> Iterator[StoredDocument]:
        where = f"key = {quoted(_key(path))}" if path else f"key >= '{_RECORD}' AND key < '{chr(ord(_RECORD) + 1)}'"
        columns = [*_CHUNK, "kind", "title", "hash"]
        try:
            batches = self._latest().dataset.scanner(columns=columns, filter=f"{where} AND number IS NOT NULL")
            rows = (row for batch in batches.to_batches() for row in batch.to_pylist())
            for _, group in groupby(rows, key=itemgetter("document")):
                yield _document([*group])
        except (OSError, ValueError) as problem:
            raise lance_error(self.path, problem) from problem

    @lance_guarded
    def check(self) -> None:
        with self.reading():
            dataset = self._table.dataset
            dataset.validate()
            for batch in dataset.scanner(filter="hash IS NOT NULL AND spare IS NULL").to_batches():
                if batch["vector"].null_count or not np.isfinite(_matrix(batch["vector"], self.about.dimensions)).all():
                    raise damaged(self.path, "a chunk has no vector")
                for row in batch.select(["kind", "titles", "text", "words"]).to_pylist():
                    if row["kind"] == RowKind.CHUNK and row["words"] != indexed_words(
                        json.loads(row["titles"]), row["text"]
                    ):
                        raise damaged(self.path, "the words do not match the chunks")
            self._check_rows()

    def _check_rows(self) -> None:
        """Raises StoreError if a row belongs to a missing one, or is there twice."""
        rows = self._table.scan(["kind", "key", "number", "document"])
        of_kind = {kind: rows.filter(rows["kind"].to_numpy() == kind) for kind in RowKind}
        files, chunks = of_kind[RowKind.FILE]["key"].to_pylist(), of_kind[RowKind.CHUNK]["number"].to_pylist()
        owners = {*chunks, *of_kind[RowKind.DOCUMENT]["number"].to_pylist()}
        if len({*files}) < len(files) or len({*chunks}) < len(chunks):
            raise damaged(self.path, "a file or a chunk is stored twice")
        keys = {key for kind in (RowKind.CHUNK, RowKind.PROBLEM) for key in of_kind[kind]["key"].unique().to_pylist()}
        if {key for key in keys if not key.startswith(_RECORD)} - {*files}:
            raise damaged(self.path, "a chunk or a problem belongs to a missing file")
        for name, kind in (("document", RowKind.CHUNK), ("number", RowKind.WINDOW)):
            if {*of_kind[kind][name].to_pylist()} - owners:
                raise damaged(self.path, "a chunk has no document")

    def close(self) -> None:
        """See `IndexStore`."""


_RECORD = "!"  # in front of the key of a record; a path is absolute
_FIRST = f"number = document AND kind IN ({RowKind.CHUNK:d}, {RowKind.DOCUMENT:d})"  # one row of each document


def exists(location: str | Path) -> bool:
    """Whether there is a Lance table at a location, even a damaged one. Raises StoreError if nobody can know."""
    require_lance()
    uri = uri_of(location)
    if "://" not in uri:
        return any(Path(uri, "_versions").glob("*.manifest"))
    try:
        open_table(uri)
    except ValueError as problem:
        if "was not found" in str(problem):
            return False
        raise lance_error(str(location), problem) from None
    except OSError as problem:
        raise lance_error(str(location), problem) from None
    return True


def remove(location: str | Path) -> None:
    """Removes an index with all of its files."""
    import lance

    uri = uri_of(location)
    try:
        files = open_table(uri).all_files().read_all()["path"].to_pylist()
        if others := [file for file in files if file.partition("/")[0] not in _FOLDERS]:
            raise ArgumentError(f"{location}: other files are in this folder, such as {others[0]}")
        lance.LanceDataset.drop(uri, storage_options=lance_options(uri))
    except (OSError, ValueError) as problem:
        raise lance_error(str(location), problem) from None


def _key(path: str, place: str = "") -> str:
    return os.fsencode(path).decode("latin-1") if path else f"{_RECORD}{place}"


def _path(key: str) -> str:
    return "" if key.startswith(_RECORD) else os.fsdecode(key.encode("latin-1"))


def _file_row(file: StoredFile) -> Row:
    problem = None if file.problem is None else storable(file.problem)
    values = [file.size, file.changed, file.hash.hex(), problem, file.left_out]
    return {"kind": RowKind.FILE, "text": json.dumps(values)}


def _stored_file(row: Row) -> StoredFile:
    size, changed, hash, problem, left_out = json.loads(row["text"])
    return StoredFile(_path(row["key"]), size, changed, bytes.fromhex(hash), problem, left_out)


def _problem_row(problem: IndexProblem) -> Row:
    text = json.dumps([problem.kind, problem.reason, problem.more])
    return {"kind": RowKind.PROBLEM, "place": problem.place, "text": text}


def _problem(row: Row) -> IndexProblem:
    path = _path(row["key"]) or None
    if row["kind"] == RowKind.FILE:
        return IndexProblem(path, "", "left out", str(_stored_file(row).problem))
    return IndexProblem(path, row["place"], *json.loads(row["text"]))


def _chunk_row(chunk: StoredChunk) -> Row:
    return {
        "kind": RowKind.CHUNK, "titles": json.dumps(chunk.titles, ensure_ascii=False), "text": chunk.text,
        "first_line": chunk.first_line, "last_line": chunk.last_line, "page": chunk.page,
        "words": indexed_words(chunk.titles, chunk.text),
    }  # fmt: skip


def _chunk(row: Row, hashes: tuple[bytes, ...] = ()) -> StoredChunk:
    lines = row["first_line"], row["last_line"], row["page"]
    return StoredChunk(row["text"], tuple(map(str, json.loads(row["titles"]))), hashes, *lines)


def _found_chunk(row: Row) -> FoundChunk:
    return FoundChunk(
        row["number"], row["document"], _path(row["key"]), row["place"], json.loads(row["fields"]), _chunk(row)
    )


def _document(rows: Sequence[Row]) -> StoredDocument:
    first = next(row for row in rows if row["kind"] != RowKind.WINDOW)
    chunks = [
        _chunk(row, tuple(bytes.fromhex(other["hash"]) for other in rows if other["number"] == row["number"]))
        for row in rows
        if row["kind"] == RowKind.CHUNK
    ]
    return StoredDocument(first["place"], first["title"], json.loads(first["fields"]), chunks)


def _values(row: Row) -> dict[str, Any]:
    return {**json.loads(row["fields"]), "path": _path(row["key"]), "place": row["place"], "title": row["title"]}


def _below(paths: Sequence[str]) -> str:
    """Returns the condition that a file is one of some paths or lies below one."""
    parts = []
    for path in paths:
        start = _key(path.rstrip("/") + "/")
        parts.append(f"key = {quoted(_key(path))} OR (key >= {quoted(start)} AND key < {quoted(start[:-1] + '0')})")
    return nested("OR", parts) if parts else ""


def _parts(documents: Iterable[StoredDocument]) -> Iterator[list[StoredDocument]]:
    """Groups documents, so that each group has about a thousand chunks."""
    part, count = list[StoredDocument](), 0
    for document in documents:
        part.append(document)
        count += len(document.chunks)
        if count >= _PART or len(part) >= _PART:
            yield part
            part, count = [], 0
    if part:
        yield part


def _term_query(term: Sequence[str]) -> Any:
    """Returns the query for words that follow each other; the last one may be the beginning of a word, before a `*`."""
    from lance.query import BooleanQuery, MatchQuery, Occur, PhraseQuery

    if term[-1].endswith("*"):
        last = MatchQuery(beginning(term[-1][:-1]), "words")
        rest = [(Occur.MUST, _term_query(term[:-1]))] if len(term) > 1 else []
        return BooleanQuery([*rest, (Occur.MUST, last)]) if rest else last
    return PhraseQuery(" ".join(term), "words") if len(term) > 1 else MatchQuery(term[0], "words")


def _matrix(column: Any, width: int) -> "Vector":
    """Returns a column of vectors as an array (N, W)."""
    whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return np.asarray(whole.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(-1, width)


def _merged(before: Mapping[str, Any], after: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings to store: the present ones, with the changes of this transaction.

    Args:
        present: The settings that are stored, which another process may have changed.
    """
    merged = {**present, **{name: value for name, value in after.items() if value != before[name]}}
    if after["roots"] != before["roots"]:
        kept = [root for root in present["roots"] if root in after["roots"] or root not in before["roots"]]
        merged["roots"] = [*kept, *(root for root in after["roots"] if root not in kept)]
    return merged


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="mlxbert-lance")


os.register_at_fork(after_in_child=_executor.cache_clear)
