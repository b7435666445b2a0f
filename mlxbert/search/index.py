"""An index of files and records, to be searched by meaning and by words."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError, InputError, StoreError
from mlxbert.files import to_path
from mlxbert.folders.fingerprint import hash_model
from mlxbert.loading import load
from mlxbert.model import Model
from mlxbert.options import CANDIDATES, COUNT, Bounds
from mlxbert.readers.documents.document import Document
from mlxbert.results.brief import Brief
from mlxbert.results.embed import Embedding
from mlxbert.results.hit import Hit
from mlxbert.results.related import Reranked
from mlxbert.search import schema
from mlxbert.search.file_systems import composed
from mlxbert.search.filters import Filter, as_list, as_paths, make_filter
from mlxbert.search.index_locations import find_index, index_file, is_under, leads_below, roots_of, spelled
from mlxbert.search.rank_fusion import FusedChunk, fuse
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import FoundChunk, IndexSettings, IndexStore, Scores, Stats, StoredFile, now, storable
from mlxbert.search.update_events import Event, FileLeftOut
from mlxbert.search.vector_signs import unit
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.options import EmbedOptions
from mlxbert.tasks.prompt_kinds import KINDS, own_prompt
from mlxbert.tasks.rerank import rerank as rerank_texts
from mlxbert.weights.model_source import BUILTIN, ModelRef, local_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlxbert.search.chunks import Splitter
    from mlxbert.search.index_writer import IndexWriter, Splits

    Vector = NDArray[np.float32]

_LOG = logging.getLogger("mlxbert")
Mode = Literal["hybrid", "vectors", "words"]
MODES: tuple[Mode, ...] = ("hybrid", "vectors", "words")
_AROUND = Bounds(0, 10_000)  # chunks on each side of one
_DEPTH = 100  # chunks of each order that are fused, at least
_GAP = 1000  # empty lines between two chunks that are shown
_RECORDS = 500  # that are added in one transaction
_GONE = "check the spelling; `mlxbert indexes move` follows a folder that was moved. The index is unchanged"


@dataclass(frozen=True)
class Passage(Brief):
    """A chunk with what stands around it.

    Attributes:
        path: Its file; `None` for a record that was added.
        place: Which part of the file it is from.
        title: The titles that it stands under.
        text: The text.
        first_line: The line of the file on which the text begins, if that has lines.
        last_line: The line on which it ends.
        page: The page on which it begins.
    """

    path: str | None
    place: str
    title: str
    text: str
    first_line: int | None
    last_line: int | None
    page: int | None


class Index:
    """An index, see `open_index`.

    Attributes:
        path: Its file.
        store: What it keeps.
    """

    def __init__(self, store: IndexStore, model: Model | ModelRef) -> None:
        self.path, self.store = store.path, store
        self._model = model
        self._rerankers: dict[str | ModelRef, Model] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Index({self.path!r}, model={self.about.model!r})"

    @property
    def about(self) -> IndexSettings:
        """What it was made with."""
        return self.store.about

    @cached_property
    def model(self) -> Model:
        """The model, loaded when it is needed.

        Raises:
            StoreError: It is not the one that the index was made with.
        """
        return _checked(self.path, self.about, _loaded(self._model))

    def close(self) -> None:
        """Closes the file."""
        self.store.close()

    def stats(self) -> Stats:
        """How much it holds."""
        return self.store.stats()

    def check(self) -> None:
        """Compares all that can be compared.

        Raises:
            StoreError: Something is damaged.
        """
        self.store.check()

    def update(self, paths: str | Path | Sequence[str | Path] | None = None) -> Iterator[Event]:
        """Brings the index up to date with files and folders; nothing happens before the events are iterated over.

        Args:
            paths: What to look at: the index covers it from now on. `None` for all that it covers.

        Raises:
            BusyError: Another process is updating it.
            InputError: A path that is given does not exist, or none that the index covers.
            StoreError: The index cannot be written.
        """
        with self._locked():
            roots = self.about.roots
            wanted = self._without_removed(roots) if paths is None else spelled(as_paths(paths), roots)
            new = roots_of(path for path in wanted if not is_under(path, self.about.roots))
            missing = [path for path in wanted if not os.path.exists(path)]
            if missing and (paths is not None or missing == wanted):
                raise InputError(f"{missing[0]}: no such file or folder", hint=_GONE)
            if new:
                kept = [root for root in self.about.roots if not leads_below(root, new)]
                with self.store.writing():
                    self.store.set_about(replace(self.about, roots=(*kept, *new)))
            # A link that is named, in a folder that is updated: no walk through the folder follows it.
            inner = [root for root in self.about.roots if root not in wanted and is_under(root, wanted)]
            wanted += filter(os.path.exists, inner)
            yield from (FileLeftOut(path, "vanished") for path in missing)  # a disk that is not there: nothing is lost
            yield from self._writer().update([path for path in wanted if path not in missing])

    def _without_removed(self, roots: Sequence[str]) -> list[str]:
        """Roots without the files among them that are gone while their folder is there; these leave the index."""
        known = self.store.files()
        gone = [
            root
            for root in roots
            if root in known and not os.path.exists(root) and os.path.isdir(os.path.dirname(root))
        ]
        kept = [root for root in roots if root not in gone]
        if gone:
            with self.store.writing():
                self.store.remove(gone)
                self.store.set_about(replace(self.about, roots=tuple(kept)))
        return kept

    def add(self, records: Iterable[Mapping[str, Any]], *, text: str = "text") -> int:
        """Adds records, each in the place of the one that has its `id`.

        Args:
            records: Each with its text, its `id`, perhaps a `title`; other values are fields to filter by.
            text: What the text is called.

        Returns:
            How many were added.

        Raises:
            InputError: A record has no text or no `id`; those before it are added.
            BusyError: Another process is updating the index.
        """
        count, documents = 0, (_document(record, text) for record in records)
        with self._locked():
            writer = self._writer()
            while some := [*islice(documents, _RECORDS)]:
                for _ in writer.embed([writer.pending(StoredFile(""), some)]):
                    pass
                count += len(some)
            self._finish()
        return count

    def remove(self, ids: Iterable[str]) -> int:
        """Removes records that were added, by their `id`; returns how many there were."""
        with self._locked():
            with self.store.writing():
                count = self.store.remove_documents(storable(str(one)) for one in ids)
            self._finish()
        return count

    def move(self, old: str | Path, new: str | Path) -> int:
        """Follows files that have another path now; nothing is embedded again. Returns how many there are.

        Raises:
            ArgumentError: No file of the index lies at the old path, or one at the new path.
        """
        with self._locked():
            old, new = as_paths([old, new])
            files = self.store.files()
            before, after = os.path.abspath(old), spelled([new], self.about.roots)[0]
            if not any(is_under(path, [before]) for path in (*self.about.roots, *files)):
                before = spelled([old], self.about.roots)[0]
            moved = [path for path in files if is_under(path, [before])]
            if not moved and before not in self.about.roots:
                raise ArgumentError(f"{before}: the index has no file there")
            if taken := [path for path in files if is_under(path, [after]) and path not in moved]:
                raise ArgumentError(f"{taken[0]}: the index has this file already", hint="update the index instead")

            def renamed(path: str) -> str:
                return after + path[len(before) :] if is_under(path, [before]) else path

            with self.store.writing():
                for path in sorted(moved, key=len, reverse=len(after) > len(before)):  # one may take another's place
                    self.store.rename(path, renamed(path))
                roots = tuple(map(renamed, self.about.roots))
                more = () if is_under(after, roots) else (after,)  # else no update would look there
                self.store.set_about(replace(self.about, roots=(*roots, *more)))
        return len(moved)

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
        rerank: Model | ModelRef | str | None = None,
        candidates: int = 50,
    ) -> list[Hit]:
        """The passages that fit a query best, one of each document.

        Args:
            query: What is searched for; parts between quotation marks are wanted word for word.
            top_k: How many, at most.
            mode: `vectors` ranks by meaning, `words` by BM25, `hybrid` fuses both ranks.
            where: Conditions on fields that must all hold: `["lang=de", "date>=2026-01-01", "path=docs/*"]`, or a dict
                of values to be equal.
            paths: Only what lies under these files and folders.
            min_score: The lowest score that counts.
            all_chunks: Whether to give all chunks of a document, not its best alone.
            rerank: A cross-encoder that reads the query with each of the first passages, and decides.
            candidates: How many passages it reads; at least `top_k`.

        Raises:
            ArgumentError: An argument has an invalid value.
            InputError: The query is not a text, or is empty.
            StoreError: The index is damaged, or its model is another one.
        """
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"the query is {query!r:.60}, expected a text")
        if mode not in MODES:
            raise not_one_of("mode", mode, MODES)
        COUNT.check_whole("top_k", top_k)
        CANDIDATES.check_whole("candidates", candidates)
        only = make_filter(where, self._under(as_paths(paths)))
        wanted = top_k if rerank is None else max(top_k, candidates)
        vector = self._query(query) if mode != "words" else None
        with self.store.reading():
            ranked = self._ranked(query, vector, mode, only, wanted, all_chunks)[:wanted]
            chunks = {one.number: one for one in self.store.chunks([one.chunk for one in ranked])}
        if len(chunks) < len(ranked):
            raise schema.damaged(self.path, "a chunk without its document")
        hits = [_hit(query, one, chunks[one.chunk]) for one in ranked]
        if rerank is not None:
            hits = self._reranked(query, hits, rerank)
        kept = [hit for hit in hits if min_score is None or hit.score >= min_score][:top_k]
        if not kept:
            self._explain(only, hits)
        return [replace(hit, rank=rank) for rank, hit in enumerate(kept, 1)]

    def _under(self, paths: Sequence[str | Path]) -> list[str]:
        """Paths as the names of the index's files are written, which may be decomposed."""
        found = list[str]()
        for path in spelled(paths, self.about.roots):
            if path.isascii() or self.store.count(Filter(under=(path,))):
                found.append(path)
                continue
            parts, wanted = path.count("/") + 1, composed(path)
            starts = {"/".join(file.split("/")[:parts]) for file in self.store.files()}
            found += sorted(start for start in starts if composed(start) == wanted) or [path]
        return found

    def _explain(self, only: Filter, hits: Sequence[Hit]) -> None:
        """Says why nothing is left of what was found, if conditions or the lowest score are to blame."""
        if hits:
            _LOG.warning("the best score is %.3g, below min_score=", max(hit.score for hit in hits))
        elif unknown := self.unknown_field(only):
            _LOG.warning("%s", unknown)
        elif only.where:
            found, every = self.store.count(only), self.store.count(replace(only, where=()))
            exact = "" if found else "; values have to be equal, also in upper and lower case"
            _LOG.warning("where= lets %s of %s documents through%s", f"{found:,}", f"{every:,}", exact)

    def unknown_field(self, only: Filter) -> str | None:
        """What is wrong with a filter by a field that no document has; `None` if there is none such."""
        known = self.store.fields() if only.where else []
        unknown = only.fields - {*known}
        return f"no document has the field {min(unknown)!r:.60}, there are: {', '.join(known)}" if unknown else None

    def read(self, chunk: int, *, around: int = 1) -> Passage:
        """A chunk that a search found, with some of its document before and after it.

        Args:
            chunk: `Hit.chunk`.
            around: How many chunks on each side.

        Raises:
            ArgumentError: There is no such chunk any more.
        """
        _AROUND.check_whole("around", around)
        found = self.store.around(chunk, around, around) if type(chunk) is int and 0 <= chunk < 2**63 else []
        if not found:
            raise ArgumentError(f"chunk is {chunk!r:.60}, the index has no such chunk", hint="search again")
        first, chunks = found[0], [one.chunk for one in found]
        text = chunks[0].text
        for before, after in pairwise(chunks):
            lines = (after.first_line or 0) - (before.last_line or 0)
            text += ("\n" * min(lines, _GAP) if lines > 0 else "\n\n" if after.first_line is None else " ") + after.text
        return Passage(
            *(first.path or None, first.place, " > ".join(chunks[0].titles), text),
            *(chunks[0].first_line, chunks[-1].last_line, chunks[0].page),
        )

    def _ranked(
        self, query: str, vector: "Vector | None", mode: Mode, only: Filter, wanted: int, all_chunks: bool
    ) -> list[FusedChunk]:
        """Documents, or all of their chunks, in one order; from longer lists if these name too few of them."""
        depth = max(_DEPTH, 4 * wanted)
        while True:
            lists: dict[str, Scores] = {}
            if vector is not None:
                lists["vectors"] = self.store.nearest(vector, depth, only)
            if mode != "vectors":
                lists["words"] = self.store.with_words(query, depth, only)
            if mode == "hybrid":
                lists["phrase"] = self.store.word_for_word(query, depth, only)
            chunks = {chunk for scores in lists.values() for chunk, _ in scores}
            documents = self.store.documents_of(chunks)
            groups = {chunk: chunk for chunk in documents} if all_chunks else documents
            found = fuse(lists, groups, self.store.reachable(query) if mode == "hybrid" else None)
            if len(found) >= wanted or all(len(scores) < depth for scores in lists.values()):
                return found
            depth *= 4

    def _query(self, query: str) -> "Vector":
        """The vector of a query, of length 1 where vectors are compared by cosine."""
        task = EmbedTask(self.model, EmbedOptions(prompt=self.about.prompts[0]))
        result = next(iter(task.run([query], "raise")))
        assert isinstance(result, Embedding)
        if result.truncated:
            _LOG.warning("the query is too long for the model: its end does not count")
        return unit(result.embedding, self.about.similarity)

    def _reranked(self, query: str, hits: Sequence[Hit], reranker: Model | ModelRef | str) -> list[Hit]:
        """Hits in the order of a cross-encoder."""
        if not isinstance(reranker, Model):
            if reranker not in self._rerankers:
                self._rerankers[reranker] = load(reranker, task="classify")
            reranker = self._rerankers[reranker]
        texts = [f"{hit.title}\n{hit.text}" if hit.title else hit.text for hit in hits]
        ranked = [one for one in rerank_texts(reranker, query, texts) if isinstance(one, Reranked)]
        return [replace(hits[one.index], score=one.score, rerank_score=one.score) for one in ranked]

    def _writer(self) -> "IndexWriter":
        from mlxbert.search.index_writer import IndexWriter

        def tools() -> "tuple[EmbedTask, Splits]":
            options = EmbedOptions(prompt=self.about.prompts[1], overflow="error")
            return EmbedTask(self.model, options), self.splitter

        return IndexWriter(self.store, tools)

    @cached_property
    def splitter(self) -> "Splits":
        """Makes chunks of documents; may be replaced before the first update."""
        try:
            return _splitter(self.model, self.about.prompts[1], self.about.tokens, self.about.titles)
        except ArgumentError as problem:  # the number was checked when the index was made
            raise schema.damaged(self.path, problem.message) from None

    def _finish(self) -> None:
        with self.store.writing():
            self.store.prune()
            self.store.set_about(replace(self.about, updated=now()))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes from updating the index."""
        if not self.store.writable:
            raise StoreError(f"{self.path}: the index cannot be written", hint="search without an update")
        with schema.locked(self.path):
            self.store.refresh()
            yield


def open_index(
    path: str | Path | None = None,
    *,
    model: str | Path | ModelRef | Model | None = None,
    paths: str | Path | Sequence[str | Path] = (),
    tokens: int | None = None,
    titles: bool = True,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    text: str | None = None,
    fields: str | Sequence[str] | None = None,
) -> Index:
    """Opens an index, or makes one.

    Example:
        >>> with mlxbert.open_index("notes.db", paths=["notes/"]) as index:
        ...     for event in index.update():
        ...         print(event)
        ...     for hit in index.search("how do refunds work"):
        ...         print(hit.score, hit.path, hit.start_line, hit.text)

    Args:
        path: Its file, which is made if it is missing. `None` finds the index in the user's data folder that covers
            `paths`, or makes it there.
        model: The model of a new index, by default the built-in one. An index has the model that it was made with:
            another is refused.
        paths: Files and folders that a new index covers.
        tokens: The most tokens of a chunk with its titles; by default 256, or as many as the model takes.
        titles: Whether titles and headings are embedded with a chunk.
        include: Patterns, as in a `.gitignore`, of the only files that count.
        exclude: Patterns of files and folders that do not.
        text: The field or column of a record that is searched; by default it is guessed.
        fields: The fields of a record to filter by; by default all others.

    Raises:
        ArgumentError: `path` is a folder.
        InputError: A path that a new index would cover does not exist.
        StoreError: The file is not an index, is damaged, or was made with another model or a newer version.
        MlxbertError: The model cannot be loaded.
    """
    paths = as_paths(paths)
    path = None if path is None else to_path(path, "path")
    if path is not None and os.path.isdir(path):
        hint = f"give the folder as paths=[{str(path)!r:.200}]"
        raise ArgumentError(f"{path}: is a folder, expected the file of an index", hint=hint)
    if path is None:
        if not paths:
            raise ArgumentError("path is None, expected the file of an index, or paths= that one covers")
        path = find_index(paths) or index_file(paths)
    if schema.exists(os.fspath(path)):
        store = SqliteStore(path)
        given = store.about.model if model is None else model
        ref = ModelRef(given) if isinstance(given, str | Path) else given
        index = Index(store, ref)
        if model is not None and (
            isinstance(ref, Model) or ref.adapter or ref.revision or _named(ref.source) != store.about.model
        ):
            _ = index.model  # which is compared
        return index
    if missing := [one for one in paths if not os.path.exists(one)]:
        raise InputError(f"{missing[0]}: no such file or folder", hint="check the spelling of the path")
    made = _loaded(model if model is not None else BUILTIN)
    about = replace(
        _about(made, tokens, titles),
        roots=tuple(roots_of(paths)),
        include=(*as_list(include),),
        exclude=(*as_list(exclude),),
        text=text,
        fields=None if fields is None else (*as_list(fields),),
    )
    return Index(SqliteStore(path, about), made)


def _about(model: Model, tokens: int | None, titles: bool) -> IndexSettings:
    """What a new index is made with."""
    embedder = model.embedder
    prompts = [embedder.config.prompts.get(own_prompt(embedder.config.prompts, kind) or "", "") for kind in KINDS]
    splitter = _splitter(model, prompts[1], tokens, titles)
    return IndexSettings(
        *(_named(model.source), hash_model(model.files), embedder.size, embedder.config.similarity),
        *("+".join(embedder.config.poolings), (prompts[0], prompts[1]), splitter.tokens, titles),
        created=now(),
    )


def _splitter(model: Model, prompt: str, tokens: int | None, titles: bool) -> "Splitter":
    from mlxbert.search.chunks import Splitter

    return Splitter(model.embed_tokenizer, tokens=tokens, prompt=prompt, titles=titles)


def _loaded(model: str | Path | ModelRef | Model) -> Model:
    return model if isinstance(model, Model) else load(model, task="embed")


def _checked(path: str, about: IndexSettings, model: Model) -> Model:
    """A model, if it is that of an index."""
    if (found := hash_model(model.files)) != about.hash:
        other = model.source if _named(model.source) != about.model else f"{model.source} with other files"
        raise StoreError(
            f"{path}: the index was made with the model {about.model} ({about.hash[:12]}), not with {other} "
            f"({found[:12]})",
            hint="use that model, or make another index: "
            f"mlxbert.open_index(paths=FOLDER, path=FILE, model={str(model.source)!r})",
        )
    return model


def _named(source: str | Path) -> str:
    """The name of a model; of a folder its absolute path."""
    named = str(source)
    return named if named == BUILTIN or local_folder(named) is None else os.path.abspath(named)


def _document(record: Mapping[str, Any], text: str) -> Document:
    """A record as a document."""
    for name in (text, "id"):
        if not isinstance(record.get(name), str | int):
            raise InputError(f"record has {name} = {record.get(name)!r:.60}, expected a text")
    fields = {name: value for name, value in record.items() if name not in (text, "title")}
    simple = {name: value for name, value in fields.items() if isinstance(value, str | int | float | bool)}
    title = record.get("title")
    return Document(str(record[text]), title if isinstance(title, str) else "", simple, str(record["id"]))


def _hit(query: str, ranked: FusedChunk, found: FoundChunk) -> Hit:
    chunk, ranks, scores = found.chunk, ranked.ranks, ranked.scores
    return Hit(
        *(query, 0, ranked.score, found.path or None, found.place, chunk.first_line, chunk.last_line, chunk.page),
        *(" > ".join(chunk.titles), chunk.text, found.fields, scores.get("vectors"), scores.get("words"), None),
        *(found.number, ranks.get("vectors"), ranks.get("words"), ranks.get("phrase")),
    )
