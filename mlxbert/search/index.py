"""An index of files and records that can be searched by meaning and by words."""

import logging
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from mlxbert.errors import ArgumentError, InputError, StoreError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.loading import load
from mlxbert.model import Model
from mlxbert.option_declarations import CANDIDATES, COUNT, Bounds, is_whole
from mlxbert.other_libraries import not_one_of
from mlxbert.results.short_repr import Brief
from mlxbert.results.text_relations import Reranked
from mlxbert.search import index_stores, schema
from mlxbert.search.documents.document import Document
from mlxbert.search.documents.encodings import check_chosen_encoding
from mlxbert.search.file_systems import canonical_path, composed
from mlxbert.search.filters import Filter, as_list, as_paths, make_filter
from mlxbert.search.hit import Hit, SearchAnswer, SimilarPassage
from mlxbert.search.index_stores import canonical_paths, find_index, index_file, is_under
from mlxbert.search.late_interaction import TokenReranker
from mlxbert.search.rank_fusion import Candidates, FusedChunk, Unrelated, fuse
from mlxbert.search.store import (
    FoundChunk,
    IndexProblem,
    IndexSettings,
    IndexStore,
    Scores,
    Stats,
    StoredFile,
    now,
    storable,
)
from mlxbert.search.text_vectors import TextVectors, text_vectors
from mlxbert.search.update_events import Event, FileLeftOut
from mlxbert.tasks.prompt_kinds import KINDS, own_prompt
from mlxbert.tasks.rerank import ranks_by_tokens, rerank as rerank_texts
from mlxbert.text.equal_texts import nearly_equal_key
from mlxbert.weights.model_source import BUILTIN, ModelRef, local_folder

if TYPE_CHECKING:
    from mlxbert.search.chunks import Splitter
    from mlxbert.search.index_writer import EmbeddingTools, IndexWriter, Splits
Vector: TypeAlias = "NDArray[np.float32]"

_LOG = logging.getLogger("mlxbert")
Mode = Literal["hybrid", "vectors", "words"]
MODES: tuple[Mode, ...] = ("hybrid", "vectors", "words")
_AROUND = Bounds(0, 10_000)  # chunks on each side of a chunk
_DEEPEST = 25_600  # chunks: of more equal texts before the next one, some are not counted
_MIN_DEPTH, _PER_HIT = 50, 4  # the length of each ranking that is fused, in chunks: at least, and for each hit
_SAMPLE, _SMALLEST = 5, 1e-6  # every fifth text is embedded, to see how similar unrelated texts are
_GAP = 1000  # the maximum number of line breaks between two chunks of a passage
_CANDIDATES = {False: 50, True: 200}  # passages to rerank, by whether the model compares token vectors
_RECORDS = 500  # records added in one transaction
_GONE = "check the spelling, or run `mlxbert indexes move OLD NEW` after moving a folder; the index is unchanged"


@dataclass(frozen=True)
class Passage(Brief):
    """A chunk with its neighbors in the document.

    Attributes:
        path: The path of the file; `None` for a record that was added.
        place: The part of the file that the passage is from.
        title: The titles above the passage.
        text: The text.
        first_line: The line of the file on which the text begins, if the file has lines.
        last_line: The line on which the text ends.
        page: The page on which the text begins.
    """

    path: str | None
    place: str
    title: str
    text: str
    first_line: int | None
    last_line: int | None
    page: int | None


class Index:
    """An open index (see `open_index`).

    Attributes:
        path: The file of the index, or the location of its Lance table.
        store: The stored files, chunks and vectors.
    """

    def __init__(self, store: IndexStore, model: Model | ModelRef) -> None:
        self.path, self.store = store.path, store
        self._model = model
        self._other_models: dict[tuple[str, str | ModelRef], Model] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Index({self.path!r}, model={self.about.model!r})"

    @property
    def about(self) -> IndexSettings:
        """The settings that the index was created with."""
        return self.store.about

    @cached_property
    def model(self) -> Model:
        """The model, loaded on first use.

        Raises:
            StoreError: The index was created with another model.
        """
        return _checked(self.store, _loaded(self._model))

    @cached_property
    def _text_vectors(self) -> TextVectors:
        return text_vectors(self.model, tokens=bool(self.about.token_size))

    def close(self) -> None:
        """Closes the file."""
        self.store.close()

    def stats(self) -> Stats:
        """Returns the size of the index: its bytes on disk, and its number of files, documents, chunks and vectors."""
        return self.store.stats()

    def problems(self) -> list[IndexProblem]:
        """Returns what was left out, cut or guessed when the files of the index were read, sorted by path.

        Files that the index does not cover, such as hidden and ignored ones, are not problems. Of each file, the first
        hundred problems with the same kind and reason are kept; the last one of them counts the others (`more`).
        """
        return self.store.problems()

    def check(self) -> None:
        """Verifies checksums and the consistency of all tables.

        Raises:
            StoreError: The index is damaged.
        """
        self.store.check()

    def update(self, paths: str | Path | Sequence[str | Path] | None = None) -> Iterator[Event]:
        """Updates the index from files and folders; the work is done while the caller iterates over the events.

        Args:
            paths: Files and folders to read; the index covers them from now on. `None` for everything that it covers.

        Raises:
            BusyError: Another process is updating the index.
            InputError: One of `paths` does not exist or, with `None`, all paths that the index covers are missing.
            StoreError: The index cannot be written.
        """
        with self._locked():
            roots = self.about.roots
            selected = self._without_removed(roots) if paths is None else canonical_paths(as_paths(paths))
            new = [path for path in selected if not is_under(path, self.about.roots)]
            missing = [path for path in selected if not os.path.exists(path)]
            if missing and (paths is not None or missing == selected):
                raise InputError(f"{missing[0]}: no such file or folder", hint=_GONE)
            if new:
                kept = [root for root in self.about.roots if not is_under(root, new) or self._misses(new, root)]
                with self.store.writing():
                    self.store.set_about(replace(self.about, roots=(*kept, *new)))
            # A root in a hidden folder inside an updated one: the walk through that one does not enter it.
            inner = [root for root in self.about.roots if root not in selected and is_under(root, selected)]
            selected += filter(os.path.exists, inner)
            yield from (FileLeftOut(path, "vanished") for path in missing)  # not removed: the disk may not be mounted
            yield from self._writer().update([path for path in selected if path not in missing])

    def _misses(self, paths: Sequence[str], root: str) -> bool:
        """Whether the walk through new paths leaves out files of a root below them, such as a hidden folder."""
        from mlxbert.search.file_walk import WalkOptions, walk

        files = {path for path in self.store.files() if is_under(path, [root]) and os.path.exists(path)}
        walked = walk(paths, WalkOptions(include=self.about.include, exclude=self.about.exclude))
        return not files <= {entry.path for entry in walked}

    def _without_removed(self, roots: Sequence[str]) -> list[str]:
        """Removes from the index the roots that are deleted files, if their folders exist; returns the other roots."""
        stored = self.store.files()
        gone = [
            root
            for root in roots
            if root in stored and not os.path.exists(root) and os.path.isdir(os.path.dirname(root))
        ]
        kept = [root for root in roots if root not in gone]
        if gone:
            with self.store.writing():
                self.store.remove(gone)
                self.store.set_about(replace(self.about, roots=tuple(kept)))
        return kept

    def add(self, records: Iterable[Mapping[str, Any]], *, text: str = "text") -> int:
        """Adds records; a record replaces an earlier one with the same `id`.

        Args:
            records: Mappings with a text, an `id` and optionally a `title`; other values are fields to filter by.
            text: The name of the field with the text.

        Returns:
            The number of records that were added.

        Raises:
            InputError: A record has no text or no `id`; the records before it are added.
            BusyError: Another process is updating the index.
        """
        if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
            raise InputError(f"`records` is {records!r:.60}, expected a list of mappings")
        count, documents = 0, (_document(record, text) for record in records)
        with self._locked():
            writer = self._writer()
            try:
                for batch in _batches(documents):
                    for _ in writer.embed([writer.pending(StoredFile(""), batch)]):
                        pass
                    count += len(batch)
            finally:
                self._finish()
        return count

    def remove(self, ids: Iterable[str]) -> int:
        """Removes added records by their `id`; returns the number of records removed."""
        with self._locked():
            with self.store.writing():
                count = self.store.remove_documents(storable(str(name)) for name in ids)
            self._finish()
        return count

    def move(self, old: str | Path, new: str | Path) -> int:
        """Changes the paths of moved files without embedding them again; returns the number of files.

        Raises:
            ArgumentError: The index has no file at the old path, or already has one at the new path.
        """
        with self._locked():
            old, new = as_paths([old, new])
            files = self.store.files()
            before, after = os.path.abspath(old), canonical_path(new)
            if not any(is_under(path, [before]) for path in (*self.about.roots, *files)):
                before = canonical_path(old)
            moved = [path for path in files if is_under(path, [before])]
            if not moved and before not in self.about.roots:
                raise ArgumentError(f"{before}: the index has no file at this path")
            if existing := [path for path in files if is_under(path, [after]) and path not in moved]:
                raise ArgumentError(f"{existing[0]}: the index already has this file", hint="update the index instead")

            def renamed(path: str) -> str:
                return after + path[len(before) :] if is_under(path, [before]) else path

            with self.store.writing():
                for path in sorted(moved, key=len, reverse=len(after) > len(before)):  # no new path may be in use
                    self.store.rename(path, renamed(path))
                roots = tuple(map(renamed, self.about.roots))
                more = () if is_under(after, roots) else (after,)  # otherwise no update would read the new path
                self.store.set_about(replace(self.about, roots=(*roots, *more)))
        return len(moved)

    def copy(self, location: str | Path) -> None:
        """Copies the index with its vectors to a new location: a file, `lance:FOLDER` or `s3://BUCKET/PATH`.

        Raises:
            ArgumentError: Something is at this location.
            BusyError: Another process is updating the index.
        """
        with self.store.locked():
            index_stores.copy_store(self.store, location).close()

    def search(
        self,
        query: str,
        *,
        top_k: int = 10,
        mode: Mode = "hybrid",
        where: Mapping[str, Any] | Sequence[str] = (),
        paths: str | Path | Sequence[str | Path] = (),
        min_score: float | None = None,
        all_chunks: bool = False,
        rerank: Model | ModelRef | str | bool | None = None,
        candidates: int | None = None,
    ) -> list[Hit]:
        """Returns the passages that match a query best, one per document.

        Args:
            query: A question or words; parts in quotation marks are searched as exact phrases.
            top_k: The maximum number of passages.
            mode: `vectors` ranks by meaning, `words` by BM25, `hybrid` by the scores of both.
            where: Conditions on fields, all of which must hold: `["lang=de", "date>=2026-01-01", "path=docs/*"]`, or a
                dict of field values to match exactly.
            paths: Files and folders to search in; by default everything.
            min_score: The minimum score of a passage.
            all_chunks: Whether to return all matching chunks, not only the best one of a document and of equal texts.
            rerank: A cross-encoder, or a model for late interaction, that reranks the best passages. By default, an
                index with token vectors reranks by these vectors, unless `mode` is `words`; `False` prevents this.
            candidates: The number of passages to rerank, at least `top_k`: by default 50, or 200 with token
                vectors, which are faster; more if `top_k` is larger.

        Raises:
            ArgumentError: An argument has an invalid value.
            InputError: The query is not a string, or is empty.
            StoreError: The index is damaged, or was created with another model.
        """
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"the query is {query!r:.60}, expected a text")
        if mode not in MODES:
            raise not_one_of("mode", mode, MODES)
        top_k = COUNT.check_whole("top_k", top_k)
        if candidates is not None:
            candidates = CANDIDATES.check_whole("candidates", candidates)
        only = make_filter(where, self._under(as_paths(paths)))
        reranker = None if rerank is None or isinstance(rerank, bool) else self._loaded_for("rerank", rerank)
        vector, tokens = (None, None) if mode == "words" else self._query(query)
        limit, by_tokens = top_k, None
        if reranker is not None:
            limit = _reranked_passages(candidates, top_k, by_tokens=ranks_by_tokens(reranker))
        elif tokens is not None and rerank is not False:
            by_tokens = self._by_tokens(tokens, _reranked_passages(candidates, top_k, by_tokens=True), mode)
        elif rerank or candidates is not None:
            raise _nothing_to_rerank(candidates, off=rerank is False, keeps_tokens=bool(self.about.token_size))
        with self.store.reading():
            hits = self._distinct(query, vector, mode, only, limit, all_chunks=all_chunks, by_tokens=by_tokens)
        if reranker is not None:
            hits = self._reranked(query, hits, reranker)
        kept = [hit for hit in hits if min_score is None or hit.score >= min_score][:top_k]
        if not kept:
            self._explain(only, hits)
        return [replace(hit, rank=rank) for rank, hit in enumerate(kept, 1)]

    def answer(self, query: str, *, model: Model | ModelRef | str, hits: Sequence[Hit] | None = None) -> SearchAnswer:
        """Answers a question with a part of the best passages, or says that none of them has the answer.

        Example:
            >>> index.answer("who has the key?", model="deepset/roberta-base-squad2").answer

        Args:
            query: The question.
            model: A model with a question-answering head.
            hits: The passages, as `search` returns them; by default the 10 best ones.

        Raises:
            MissingHeadError: The model has no question-answering head.
            InputError: The query is not a string, is empty, or is longer than half a window of the model.
        """
        from mlxbert.search.answers import answer_from

        answering = self._loaded_for("answer", model)
        return answer_from(self.search(query) if hits is None else hits, query, answering)

    def _under(self, paths: Sequence[str | Path]) -> list[str]:
        """Spells paths as they are stored in the index, where file names may be decomposed (NFD)."""
        names = list[str]()
        for path in canonical_paths(paths):
            if path.isascii() or self.store.count(Filter(under=(path,))):
                names.append(path)
                continue
            parts, name = path.count("/") + 1, composed(path)
            starts = {"/".join(file.split("/")[:parts]) for file in self.store.files()}
            names += sorted(start for start in starts if composed(start) == name) or [path]
        return names

    def _explain(self, only: Filter, hits: Sequence[Hit]) -> None:
        """Logs why there are no hits if conditions or the minimum score excluded them."""
        if hits:
            _LOG.warning("the best score is %.3g, which is below `min_score=`", max(hit.score for hit in hits))
        elif unknown := self.unknown_field(only):
            _LOG.warning("%s", unknown)
        elif only.under and not self.store.count(replace(only, where=())):
            _LOG.warning("no document lies in %s", ", ".join(only.under))
        elif only.where:
            matching, total = self.store.count(only), self.store.count(replace(only, where=()))
            values = [condition.value for condition in only.where if condition.compare == "="]
            is_exact = not matching and any(not re.search(r"[*?[]", value) for value in values)
            exact = "; values must match exactly, including upper and lower case" * is_exact
            _LOG.warning("`where=` matches %s of %s documents%s", f"{matching:,}", f"{total:,}", exact)

    def unknown_field(self, only: Filter) -> str | None:
        """Returns a message if a filter uses a field that no document has, otherwise `None`."""
        names = self.store.fields() if only.where else []
        unknown = only.fields - {*names}
        return (
            f"no document has the field {min(unknown)!r:.60}, expected one of {', '.join(names)}" if unknown else None
        )

    def read(self, chunk: int, *, around: int = 1) -> Passage:
        """Returns a chunk from a search result together with its neighbors in the document.

        Args:
            chunk: The number of the chunk (`Hit.chunk`).
            around: The number of chunks to include on each side.

        Raises:
            ArgumentError: The index has no such chunk, or no longer has it.
        """
        around = _AROUND.check_whole("around", around)
        rows = self.store.around(int(chunk), around, around) if is_whole(chunk) and 0 <= chunk < 2**63 else []
        if not rows:
            raise ArgumentError(
                f"`chunk` is {chunk!r:.60}, but the index has no chunk with this number",
                hint="search again, because numbers change with the files",
            )
        first, chunks = rows[0], [row.chunk for row in rows]
        text = chunks[0].text
        for before, after in pairwise(chunks):
            lines = (after.first_line or 0) - (before.last_line or 0)
            text += ("\n" * min(lines, _GAP) if lines > 0 else "\n\n" if after.first_line is None else " ") + after.text
        return Passage(
            *(first.path or None, first.place, " > ".join(chunks[0].titles), text),
            *(chunks[0].first_line, chunks[-1].last_line, chunks[0].page),
        )

    def _distinct(
        self, query: str, vector: "Vector | None", mode: Mode, only: Filter, limit: int, *, all_chunks: bool,
        by_tokens: TokenReranker | None,
    ) -> list[Hit]:  # fmt: skip
        """Returns the best hits: all chunks, or the best chunk of each document, but each text only once.

        The rankings are made longer until there are `limit` hits or no further chunks, up to a limit of time.
        """
        candidates = None
        if mode == "hybrid":
            assert vector is not None  # only `words` searches without one
            candidates = Candidates(self.store, query, vector, Unrelated(*self.about.unrelated))
        rows = dict[int, FoundChunk]() if candidates is None else candidates.rows
        depth = max(_MIN_DEPTH, _PER_HIT * limit, 0 if by_tokens is None else by_tokens.count)
        while True:
            lists = self._lists(query, vector, mode, only, depth)
            chunks = {chunk for scores in lists.values() for chunk, _ in scores}
            documents = self.store.documents_of(chunks)
            hybrid_scores = None if candidates is None else candidates.hybrid_scores(lists)
            groups = {chunk: chunk for chunk in documents} if all_chunks else documents
            ranked = fuse(lists, groups, hybrid_scores, by_tokens or list)
            hits = self._collapsed(query, ranked, limit, rows, hybrid=candidates is not None, distinct=not all_chunks)
            if len(hits) >= limit or depth >= _DEEPEST:
                return hits
            if by_tokens is None or by_tokens.count >= len(chunks):
                # Few documents may have many chunks.
                every = not all_chunks and len({*documents.values()}) >= self.store.count(only)
                if every or all(len(scores) < depth for scores in lists.values()):
                    return hits
            depth *= 4
            if by_tokens is not None:
                by_tokens.count *= 4

    def _lists(self, query: str, vector: "Vector | None", mode: Mode, only: Filter, depth: int) -> Mapping[str, Scores]:
        """Returns the rankings that a mode needs, each of at most `depth` chunks."""
        if mode == "words":
            return {"words": self.store.with_words(query, depth, only)}
        assert vector is not None  # only `words` searches without one
        if mode == "vectors":
            return {"vectors": self.store.nearest(vector, depth, only)}
        read_vectors = self.store.begin_nearest(vector, depth, only)
        words, phrase = self.store.with_words(query, depth, only), self.store.word_for_word(query, depth, only)
        return {"vectors": read_vectors(), "words": words, "phrase": phrase}

    def _collapsed(
        self,
        query: str,
        ranked: Sequence[FusedChunk],
        limit: int,
        rows: dict[int, FoundChunk],
        *,
        hybrid: bool,
        distinct: bool,
    ) -> list[Hit]:
        """Returns the first `limit` hits and, if they are to be distinct, the places of their near-duplicates.

        `rows` keeps what was read, for another call.
        """
        hits, duplicates = list[Hit](), list[list[SimilarPassage]]()
        numbers: dict[str, int] = {}  # of hits, by their texts
        for fused in ranked:
            if fused.chunk not in rows:
                rows |= {row.number: row for row in self.store.chunks([fused.chunk])}
                if fused.chunk not in rows:
                    raise schema.damaged(self.path, "a chunk has no document")
            row = rows[fused.chunk]
            key = nearly_equal_key(row.chunk.text) if distinct else f"{fused.chunk}"
            if key in numbers:
                text = row.chunk
                place = row.path or None, row.place, text.first_line, text.page, row.number
                duplicates[numbers[key]].append(SimilarPassage(*place, text.text))
            elif len(hits) == limit:
                break
            else:
                numbers[key] = len(hits)
                hits.append(_hit(query, fused, row, hybrid=hybrid))
                duplicates.append([])
        return [replace(hit, duplicates=tuple(passages)) for hit, passages in zip(hits, duplicates, strict=True)]

    def _query(self, query: str) -> "tuple[Vector, Vector | None]":
        """Returns the vector of a query, and those of its tokens, (T, W), if the index has token vectors.

        Raises:
            InputError: The query has no weight in a sparse vector.
        """
        vectors = self._text_vectors
        result: Any = next(iter(vectors.task(self.about.prompts, 0).run([query], "raise")))
        if result.truncated:
            _LOG.warning("the query is too long for the model, so the end of the query is ignored")
        vector = vectors.vector(result)
        if not len(vector):
            raise InputError(
                f"no token of the query {query!r:.60} has a weight for {self.about.model}",
                hint="search with `mode='words'`",
            )
        return vector, vectors.tokens(result)

    def _by_tokens(self, tokens: "Vector", count: int, mode: Mode) -> TokenReranker:
        """Returns what reranks chunks by the query's token vectors, (T, W)."""
        unrelated = None
        if mode == "hybrid":
            unrelated = Unrelated(*self.about.unrelated), Unrelated(*self.about.unrelated_tokens)
        return TokenReranker(self.store, tokens, count, unrelated)

    def _reranked(self, query: str, hits: Sequence[Hit], reranker: Model) -> list[Hit]:
        texts = [f"{hit.title}\n{hit.text}" if hit.title else hit.text for hit in hits]
        ranked = [result for result in rerank_texts(reranker, query, texts) if isinstance(result, Reranked)]
        return [
            replace(hits[result.index], score=result.score, rerank_score=result.score, is_close=None)
            for result in ranked
        ]

    def _loaded_for(self, task: str, model: Model | ModelRef | str) -> Model:
        """Returns a model that is not the model of the index; loads it at its first use."""
        if isinstance(model, Model):
            return model
        if (task, model) not in self._other_models:
            self._other_models[task, model] = load(model, task=task)
        return self._other_models[task, model]

    def _writer(self) -> "IndexWriter":
        from mlxbert.search.index_writer import EmbeddingTools, IndexWriter

        def tools() -> "EmbeddingTools":
            vectors = self._text_vectors
            return EmbeddingTools(
                vectors.task(self.about.prompts, 1, overflow="error"), vectors.stored, self.splitter
            )  # fmt: skip

        return IndexWriter(self.store, tools)

    @cached_property
    def splitter(self) -> "Splits":
        """The splitter that divides documents into chunks. It may be replaced before the first update."""
        try:
            return _splitter(self._text_vectors, self.about.prompts[1], self.about.tokens, self.about.titles)
        except ArgumentError as problem:  # the number of tokens was checked when the index was created
            raise schema.damaged(self.path, problem.message) from None

    def _finish(self) -> None:
        with self.store.writing():
            self.store.prune()
            self.store.set_about(replace(self.about, updated=now()))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.store.writable:
            raise StoreError(
                f"{self.path}: the index is read-only and cannot be written", hint="search without an update"
            )
        with self.store.locked():
            self.store.refresh()
            yield


def open_index(
    path: str | Path | None = None,
    *,
    model: str | Path | ModelRef | Model | None = None,
    paths: str | Path | Sequence[str | Path] = (),
    tokens: int | None = None,
    titles: bool = True,
    prompts: tuple[str | None, str | None] = (None, None),
    token_vectors: bool = True,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    text: str | None = None,
    fields: str | Sequence[str] | None = None,
    encoding: str | None = None,
) -> Index:
    """Opens an index, or creates one.

    Example:
        >>> with mlxbert.open_index("notes.db", paths=["notes/"]) as index:
        ...     for event in index.update():
        ...         print(event)
        ...     for hit in index.search("how do refunds work"):
        ...         print(hit.score, hit.path, hit.start_line, hit.text)

    Args:
        path: The file of the index, created if it is missing; `lance:FOLDER` or `s3://BUCKET/PATH` for a Lance table.
            `None` finds the index in the user's data folder that covers `paths`, or creates it there.
        model: The model of a new index, by default the built-in one. An existing index accepts only the model that it
            was created with.
        paths: Files and folders that a new index covers.
        tokens: The maximum number of tokens of a chunk; by default 256, or what fits into the model if that is less.
        titles: Whether titles and headings are embedded with a chunk.
        prompts: The prompts in front of a query and of a text, of a new index; `None` for those of the model's files.
            E5 models, whose files state none, want `("query: ", "passage: ")`. With prompts, the index keeps no token
            vectors.
        token_vectors: Whether a new index keeps the token vectors of a model that makes them next to dense vectors
            (BGE-M3), to rerank by them. A Lance table never does.
        include: Patterns, as in a `.gitignore`, of the files to index; by default all.
        exclude: Patterns of files and folders to leave out.
        text: The field or column of a record to search in; guessed by default.
        fields: The fields of a record to filter by and, if `text` is guessed, to search, too; by default all others.
        encoding: The encoding of files that neither name theirs nor are UTF-8, such as `windows-1251`; guessed by
            default.

    Raises:
        ArgumentError: `path` is a folder, the encoding of a new index is unknown.
        InputError: A path that a new index would cover does not exist.
        StoreError: The file is not an index, is damaged, or was created with another model or a newer version.
        MlxbertError: The model cannot be loaded.
    """
    paths = as_paths(paths)
    path = None if path is None else index_stores.to_location(path)
    if path is None:
        if not paths:
            raise ArgumentError("`path` is None and `paths` is empty, expected the file of an index or paths to search")
        path = find_index(paths) or index_file(paths)
    if index_stores.exists(path):
        return _open_existing(path, model)
    if missing := [path for path in paths if not os.path.exists(path)]:
        raise InputError(f"{missing[0]}: no such file or folder", hint="check the spelling of the path")
    encoding = check_chosen_encoding(encoding)
    if not isinstance(text, str | None):
        raise ArgumentError(f"`text` is {text!r:.60}, expected the name of a field")
    _check_texts(include=include, exclude=exclude, fields=() if fields is None else fields)
    embedder = _loaded(model if model is not None else BUILTIN)
    prompts = _checked_prompts(prompts)
    vectors = _vectors_of_new_index(embedder, path, prompts, keep_tokens=token_vectors)
    about = replace(
        _about(embedder, vectors, prompts, tokens, titles),
        roots=tuple(canonical_paths(paths)),
        include=(*as_list(include),),
        exclude=(*as_list(exclude),),
        text=text,
        fields=None if fields is None else (*as_list(fields),),
        encoding=encoding,
    )
    store = index_stores.open_store(path, about)
    if not store.is_new:  # another process was faster
        _check_same_settings(store, about)
    return Index(store, embedder)


def _check_same_settings(store: IndexStore, about: IndexSettings) -> None:
    not_chosen = ("roots", "created", "updated", "unrelated", "unrelated_tokens")
    ours, theirs = asdict(about), asdict(store.about)
    if other := [name for name in ours if name not in not_chosen and ours[name] != theirs[name]]:
        store.close()
        raise StoreError(
            f"{store.path}: another process has just created this index, with other settings ({', '.join(other)})",
            hint="run the same again, or choose another path for the index",
        )


def _check_texts(**given: str | Sequence[str]) -> None:
    for name, value in given.items():
        values = as_list(value)
        if not isinstance(values, Sequence) or not all(isinstance(one, str) for one in values):
            raise ArgumentError(f"`{name}` is {value!r:.60}, expected a text or a list of texts")


def _checked_prompts(prompts: Sequence[str | None]) -> tuple[str | None, str | None]:
    listed = isinstance(prompts, tuple | list) and len(prompts) == 2
    if not listed or not all(isinstance(one, str | None) for one in prompts):
        raise ArgumentError(f"`prompts` is {prompts!r:.60}, expected two texts, for queries and for passages")
    return prompts[0], prompts[1]


def _vectors_of_new_index(
    model: Model, path: str | Path, prompts: tuple[str | None, str | None], *, keep_tokens: bool
) -> TextVectors:
    """Returns what embeds texts for a new index; raises ArgumentError if the model does not allow what is asked for."""
    allowed = keep_tokens and not index_stores.is_lance(path)
    vectors = text_vectors(model, tokens=allowed and not any(prompts))
    if vectors.only_tokens and not keep_tokens:
        raise ArgumentError(
            f"{model.source}: the model makes only token vectors, so the index must keep them",
            hint="omit `token_vectors=False`",
        )
    if vectors.only_tokens and any(prompt is not None for prompt in prompts):
        raise ArgumentError(
            f"{model.source}: the prompts of a model that makes only token vectors are fixed",
            hint="omit the prompts",
        )
    if allowed and not vectors.token_size and text_vectors(model).token_size:
        _LOG.warning("with a prompt, the index keeps no token vectors")
    return vectors


def _open_existing(path: str | Path, model: str | Path | ModelRef | Model | None) -> Index:
    """Opens the file of an index. If `model` may differ from the model of the index, it is loaded and compared."""
    store = index_stores.open_store(path)
    requested = store.about.model if model is None else model
    ref = ModelRef(requested) if isinstance(requested, str | Path) else requested
    index = Index(store, ref)
    if model is not None and (
        isinstance(ref, Model) or ref.adapter or ref.revision or model_name(ref.source) != store.about.model
    ):
        _ = index.model  # raises if the model differs
    return index


def _about(
    model: Model, vectors: TextVectors, prompts: tuple[str | None, str | None], tokens: int | None, titles: bool
) -> IndexSettings:
    own = vectors.settings.prompts
    query, text = (
        own.get(own_prompt(own, kind) or "", "") if prompt is None else prompt
        for kind, prompt in zip(KINDS, prompts, strict=True)
    )
    splitter = _splitter(vectors, text, tokens, titles)
    scores, *token_scores = unrelated_scores(vectors, (query, text))
    return IndexSettings(
        *(model_name(model.source), hash_model(model.files), vectors.width, vectors.similarity),
        *(vectors.pooling, (query, text), splitter.tokens, titles),
        created=now(),
        unrelated=scores,
        kind=vectors.kind,
        token_size=vectors.token_size,
        token_dtype=vectors.token_dtype,
        unrelated_tokens=next(iter(token_scores), ()),
    )


def unrelated_scores(vectors: TextVectors, prompts: tuple[str, str]) -> list[tuple[float, float]]:
    """Returns the mean and the standard deviation of the scores of unrelated texts, as measured with the model.

    If an index keeps token vectors, the mean and the standard deviation of their MaxSim come second.

    Args:
        vectors: Embeds the texts.
        prompts: The prompts in front of a query and of a passage.
    """
    from mlxbert.text.sample_texts import sample

    texts = [*sample()][::_SAMPLE]
    results = (
        [*vectors.task(prompts, 0).run(texts[::2], "raise")],
        [*vectors.task(prompts, 1).run(texts[1::2], "raise")],
    )
    scores = [vectors.scores(*results), *([vectors.token_scores(*results)] if vectors.token_size else [])]
    return [(float(np.mean(each)), max(float(np.std(each)), _SMALLEST)) for each in scores]


def _reranked_passages(candidates: int | None, top_k: int, *, by_tokens: bool) -> int:
    """Returns the number of passages to rerank; raises an error if fewer are wanted than are returned."""
    if candidates is not None and candidates < top_k:
        raise ArgumentError(
            f"`candidates` is {candidates:,}, expected at least the number of passages to return, {top_k:,}",
            hint="lower `top_k=`, or raise `candidates=`",
        )
    return candidates or max(top_k, _CANDIDATES[by_tokens])


def _nothing_to_rerank(candidates: int | None, *, off: bool, keeps_tokens: bool) -> ArgumentError:
    """Returns the error for a search that shall rerank, but has neither a model nor token vectors for it."""
    if off:
        return ArgumentError("`candidates` and `rerank=False` cannot be combined", hint="omit one of them")
    omit = "`rerank=True`" if candidates is None else "`candidates=`"
    if keeps_tokens:
        return ArgumentError(
            "nothing would be reranked, because a search by words does not use the token vectors",
            hint=f"choose another mode, name a model with `rerank=`, or omit {omit}",
        )
    return ArgumentError(
        "nothing would be reranked, because the index has no token vectors",
        hint=f"name a model with `rerank=`, or omit {omit}",
    )


def _splitter(vectors: TextVectors, prompt: str, tokens: int | None, titles: bool) -> "Splitter":
    from mlxbert.search.chunks import Splitter

    return Splitter(vectors.tokenizer, tokens=tokens, prompt=prompt, titles=titles)


def _loaded(model: str | Path | ModelRef | Model) -> Model:
    return model if isinstance(model, Model) else load(model, task="embed")


def _checked(store: IndexStore, model: Model) -> Model:
    """Returns the model if the index was created with it; otherwise raises StoreError."""
    path, about = store.path, store.about
    if (fingerprint := hash_model(model.files)) != about.hash:
        of = f" of {' and '.join(about.roots):.200}" if about.roots else ""
        other = model.source if model_name(model.source) != about.model else f"the current files of {model.source}"
        hint = "use the model of the index, or make another index"
        if about.roots and not any(store.documents("")):  # added records may be nowhere else
            hint = (
                "use the model of the index, or make it anew: "
                f"{shlex.join(['mlxbert', 'indexes', 'remove', path, '--yes'])} && "
                f"{shlex.join(['mlxbert', 'index', *about.roots, '--index', path, '--model', str(model.source)])}"
            )
        raise StoreError(
            f"{path}: the index{of} was made with the model {about.model} ({about.hash[:12]}), not with {other} "
            f"({fingerprint[:12]})",
            hint=hint,
        )
    made = text_vectors(model, tokens=bool(about.token_size))
    shape = about.kind, about.dimensions, about.token_size, about.token_dtype
    if shape != (made.kind, made.width, made.token_size, made.token_dtype):
        raise schema.damaged(path, f"the model does not make vectors of this shape: {' '.join(map(str, shape))}")
    return model


def model_name(source: str | Path) -> str:
    """Returns the name of a model; for a folder, its absolute path."""
    name = str(source)
    return name if name == BUILTIN or local_folder(name) is None else os.path.abspath(name)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents for an update. If one is unusable, yields the documents before it, then raises the error."""
    batch: list[Document] = []
    try:
        for document in documents:
            batch.append(document)
            if len(batch) == _RECORDS:
                yield batch
                batch = []
    except InputError:
        yield batch
        raise
    if batch:
        yield batch


def _document(record: Mapping[str, Any], text: str) -> Document:
    if not isinstance(record, Mapping):
        raise InputError(f"a record is {record!r:.60}, expected a mapping with a text and an id")
    for name in (text, "id"):
        if not isinstance(record.get(name), str | int):
            raise InputError(f"the field {name!r:.60} of a record is {record.get(name)!r:.60}, expected a text")
    fields = {name: value for name, value in record.items() if name not in (text, "title")}
    simple = {name: value for name, value in fields.items() if isinstance(value, str | int | float | bool)}
    title = record.get("title")
    return Document(str(record[text]), title if isinstance(title, str) else "", simple, str(record["id"]))


def _hit(query: str, ranked: FusedChunk, row: FoundChunk, *, hybrid: bool) -> Hit:
    chunk, ranks, scores = row.chunk, ranked.ranks, ranked.scores
    return Hit(
        *(query, 0, ranked.score, row.path or None, row.place, chunk.first_line, chunk.last_line, chunk.page),
        *(" > ".join(chunk.titles), chunk.text, row.fields, scores.get("vectors"), scores.get("words")),
        token_score=scores.get("tokens"),
        chunk=row.number,
        vector_rank=ranks.get("vectors"),
        word_rank=ranks.get("words"),
        phrase_rank=ranks.get("phrase"),
        is_close=ranked.score >= 0 if hybrid else None,
    )
