"""`mlxbert search` and `mlxbert index`: search files by meaning and by words, in an index that is kept up to date."""

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import INDEX_HELP, ComputingOptions, Offline, OutputOptions
from mlxbert.cli.views import console, json_lines
from mlxbert.errors import ArgumentError, InputError
from mlxbert.option_declarations import CANDIDATES, COUNT, Bounds, Device, Option, OutputPath
from mlxbert.results.json import plain, to_json
from mlxbert.search import views
from mlxbert.search.commands import index_updates
from mlxbert.search.power import lower_priority
from mlxbert.weights.model_source import BUILTIN

if TYPE_CHECKING:
    from mlxbert.model import Model
    from mlxbert.search.hit import Hit, SearchAnswer
    from mlxbert.search.index import Index
    from mlxbert.search.store import IndexSettings
    from mlxbert.weights.model_source import ModelRef

Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH…", help="Files and folders.", show_default=False)]


@dataclass(frozen=True)
class IndexOptions:
    """Options that choose an index, and the settings for a new index."""

    panel: ClassVar[str] = "Index"
    index: Annotated[str | None, Option(INDEX_HELP, "FILE"), OutputPath("file")] = None
    model: Annotated[
        str | None,
        Option(
            "Hub name, folder or 'builtin'. A new index uses $MLXBERT_MODEL or 'builtin' by default; an existing index "
            "refuses another model.",
            short="-m",
            usual="the model of the index",
        ),
    ] = None
    offline: Offline = False
    device: Annotated[Device, Option("Device. With auto, the GPU if there is one.", panel="Model")] = "auto"
    chunk_tokens: Annotated[
        int | None,
        Option(
            "Maximum number of tokens per chunk.",
            usual="256, or what fits",
            bounds=Bounds(16, 1_000_000),
        ),
    ] = None
    no_titles: Annotated[bool, Option("Embed chunks without the headings above them.")] = False
    query_prompt: Annotated[str | None, Option("Text to put before a query.", "TEXT", usual="the model's own")] = None
    prompt: Annotated[str | None, Option("Text to put before each passage.", "TEXT", usual="the model's own")] = None
    no_token_vectors: Annotated[
        bool, Option("Keep one vector per window, even if the model also makes some of tokens.")
    ] = False
    include: Annotated[
        list[str] | None, Option("Search only files that match, such as '*.md'. May be repeated.", "GLOB")
    ] = None
    exclude: Annotated[list[str] | None, Option("Skip files that match. May be repeated.", "GLOB")] = None
    text_column: Annotated[str | None, Option("Column with the text, in tables.", usual="guessed")] = None
    field: Annotated[
        list[str] | None, Option("Other column to search, and to filter by. May be repeated.", usual="all")
    ] = None
    encoding: Annotated[
        str | None, Option("Encoding of files that neither name theirs nor are UTF-8.", "NAME", usual="guessed")
    ] = None


@dataclass(frozen=True)
class QueryOptions:
    """Options for how a query is answered, and how its hits are shown."""

    mode: Annotated[
        Literal["hybrid", "vectors", "words"],
        Option("By meaning (vectors), by words (words) or by both (hybrid)."),
    ] = "hybrid"
    top_k: Annotated[int, Option("Show the N best passages.", bounds=COUNT)] = 10
    all_chunks: Annotated[bool, Option("Show all good passages of a document, not only the best one.")] = False
    rerank: Annotated[
        str | None,
        Option("Model that reranks the candidates: a cross-encoder or a ColBERT.", "MODEL"),
    ] = None
    no_rerank: Annotated[bool, Option("Do not rerank by the token vectors in the index.")] = False
    candidates: Annotated[
        int | None,
        Option(
            "Number of passages to rerank. It is at least --top-k.",
            usual="50, or 200 with late interaction",
            bounds=CANDIDATES,
        ),
    ] = None
    answer: Annotated[
        str | None,
        Option(
            "Question-answering model that answers the query. It reads the passages that are shown, and says so if "
            "none of them has the answer. An example is deepset/roberta-base-squad2.",
            "MODEL",
        ),
    ] = None
    where: Annotated[
        list[str] | None,
        Option("Condition, such as 'path=*.md' or 'date>=2026-01-01'. May be repeated: all must hold.", "CONDITION"),
    ] = None
    min_score: Annotated[
        float | None, Option("Drop passages with a lower score.", bounds=Bounds(-1_000_000, 1_000_000))
    ] = None
    context: Annotated[int, Option("Show N more lines of the file on each side.", bounds=Bounds(0, 1_000))] = 0
    no_update: Annotated[bool, Option("Search the index as it is.")] = False
    explain: Annotated[bool, Option("Show why a passage has its rank.")] = False
    duplicates: Annotated[bool, Option("List the places of passages that repeat another one.")] = False


def search(
    how: QueryOptions,
    chosen: IndexOptions,
    out: OutputOptions,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to find.")] = "",
    paths: Paths = None,
) -> None:
    """Search files and folders by meaning and by words.

    The first search of a path reads and embeds the files, and keeps the result in an index; later searches update
    what has changed. Without a path it searches the index of the current folder, and asks before it makes one.
    Passages are printed in a terminal, JSON lines in a pipe.
    Without a query, or with an empty one, a terminal shows a list that changes as you type. Enter opens a passage in
    the editor that $EDITOR names.

    Example: mlxbert search "how do refunds work" docs/
    """
    from mlxbert.search.filters import make_filter

    make_filter(how.where or ())  # raises an error for a bad filter before an index is made
    _check_reranking(how)
    if not query.strip():
        _check_interactive(how, out, query)
    else:
        _check_quotes(query, paths or ())
    searched = _paths_to_search(paths or (), chosen.index, query, may_make=not how.no_update)
    if searched is None:
        console.say("note", "nothing was searched")
        return
    if not query.strip():
        _search_interactively(searched, how, chosen, out)
        return
    # These models are loaded first, so that a wrong one is not noticed only after an index was made.
    reranker = session.load("rerank", _computing(how.rerank, chosen)) if how.rerank is not None else None
    answering = session.load("answer", _computing(how.answer, chosen)) if how.answer is not None else None
    with _opened(searched, chosen, query) as index:
        unread = [] if how.no_update else index_updates.bring_up_to_date(index, searched, out)
        hits = _found(index, query, searched, how, reranker)
        answer = None if answering is None else index.answer(query, model=answering, hits=hits)
        session.say_queued()
        if answer is None or answer.answer is None:
            _say_what_is_missing(hits, unread)
        _show(index, hits, answer, how, out)


def _found(
    index: "Index", query: str, paths: Sequence[str], how: QueryOptions, reranker: "Model | ModelRef | None"
) -> "list[Hit]":
    return index.search(
        query, top_k=how.top_k, mode=how.mode, where=how.where or (), min_score=how.min_score,
        all_chunks=how.all_chunks, rerank=False if how.no_rerank else reranker, candidates=how.candidates,
        paths=paths,
    )  # fmt: skip


def _check_reranking(how: QueryOptions) -> None:
    if how.no_rerank and (how.rerank is not None or how.candidates is not None):
        other = "--candidates" if how.rerank is None else "--rerank"
        raise ArgumentError(f"{other} cannot be combined with --no-rerank", hint="omit one of them")
    if how.candidates is not None and how.candidates < how.top_k:
        raise ArgumentError(
            f"--candidates is {how.candidates:,}, expected at least --top-k, {how.top_k:,}",
            hint="lower --top-k, or raise --candidates",
        )


def _say_what_is_missing(hits: "Sequence[Hit]", unread: Sequence[str]) -> None:
    """Prints a note if no hit is close, with the files that could not be read: they may have the answer."""
    if not all(hit.is_close is False for hit in hits):
        return
    files = unread[0] if len(unread) == 1 else f"{len(unread):,} files"
    files = f"; {files} could not be read" * bool(unread)
    nearest = "; these passages are the nearest" if hits else ""
    console.say("note", f"nothing {'close ' if hits else ''}was found{nearest}{files}")


def _check_quotes(query: str, paths: Sequence[str]) -> None:
    """Raises an error if the first paths look like words of a query without quotes."""
    from mlxbert.search.index_stores import find_index

    words = [*itertools.takewhile(lambda path: not re.search(r"[\s/.]", path) and not os.path.exists(path), paths)]
    rest = paths[len(words) :]
    if words and not os.path.exists(query) and (rest or len(words) > 1 or find_index(words) is None):
        quoted = shlex.join([" ".join([query, *words]), *rest])
        raise InputError(
            f"{words[0]}: no such file or folder",
            hint=f"check the spelling of the path, or quote the query: mlxbert search {quoted}",
        )


def _check_interactive(how: QueryOptions, out: OutputOptions, query: str) -> None:
    """Raises an error if there is no terminal for an interactive search, or an option does not work there."""
    from mlxbert.search.commands.interactive_search import require_package

    if out.json or not (console.at_terminal() and console.can_ask()):
        needs = "cannot be combined with --json" if out.json else "needs a terminal"
        problem = (
            f"query is {query!r}, expected a text"
            if query
            else f"QUERY is missing, and a search without a query {needs}"
        )
        raise ArgumentError(problem, hint='for example: mlxbert search "how do refunds work" docs/')
    for name in ("answer", "context", "duplicates", "explain"):
        if getattr(how, name):
            raise ArgumentError(f"--{name} works only with a query")
    require_package()


def _search_interactively(searched: Sequence[str], how: QueryOptions, chosen: IndexOptions, out: OutputOptions) -> None:
    """Brings the index up to date, and lets the user search it; prints the place of a passage to open, if any."""
    from mlxbert.search.commands.interactive_search import SearchScreen, SearchThread
    from mlxbert.search.index import open_index

    with _opened(searched, chosen) as index:
        if not how.no_update:
            index_updates.bring_up_to_date(index, searched, out)
        file, model = index.path, _computing(chosen.model or index.about.model, chosen).ref
    reranker = None if how.rerank is None else _computing(how.rerank, chosen).ref

    thread = SearchThread(
        lambda: open_index(file, model=model), lambda index, query: _found(index, query, searched, how, reranker)
    )
    try:
        screen = SearchScreen(thread)
        hit = screen.run()
    finally:
        thread.close()
    if hit is not None:
        console.stdout().print(views.place_of(hit, screen.list.line_of(hit)), soft_wrap=True)


def index(
    chosen: IndexOptions,
    out: OutputOptions,
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Files and folders.", show_default=False)],
    watch: Annotated[bool, Option("Update the index whenever files change, until Ctrl-C.")] = False,
    when: Annotated[index_updates.When, Option("When --watch updates the index.")] = "always",
) -> None:
    """Make an index of files and folders, or bring it up to date.

    `mlxbert search` does this, too. With --watch the index is updated after every change, at a low
    priority, so that other programs go first.

    Example: mlxbert index docs/ --exclude '*.log'
    """
    if when != "always" and not watch:
        raise ArgumentError("--when works only with --watch")
    if watch:
        lower_priority()
    with _opened(paths, chosen) as target:
        if watch:
            index_updates.watch_files(target, paths, when, out)
        else:
            covered = target.about.roots
            done = index_updates.update_index(target, index_updates.with_others(target, paths))
            index_updates.say_added(target, covered)
            index_updates.report(target, done, out)
            index_updates.check_read(done, paths)
            index_updates.summarize(target, done, out)


def _paths_to_search(paths: Sequence[str], file: str | None, query: str, *, may_make: bool) -> Sequence[str] | None:
    """Returns the paths to search, or `None` if the user declines to make an index.

    Without paths, the current folder is searched or, if there is an index `file`, everything in this index.
    """
    from mlxbert.search import index_stores

    searched = paths if paths or file is not None else ["."]
    exists = index_stores.find_index(searched) is not None if file is None else index_stores.exists(file)
    if exists or (paths and may_make):
        return searched
    if file is None and may_make and console.can_ask():
        if os.path.isdir(query):
            console.say(
                "hint",
                f"{query} is a folder, and a path comes after the query:",
                f"mlxbert search QUERY {shlex.quote(query)}",
            )
        return searched if console.ask(f"No index covers {os.getcwd()}. Make one?") else None
    message = f"no index covers {' and '.join(paths) or os.getcwd()}" if file is None else f"{file}: no such index"
    raise ArgumentError(
        message, hint="`mlxbert search QUERY PATH` makes an index of PATH, which may be . for the current folder"
    )


@contextmanager
def _opened(paths: Sequence[str], chosen: IndexOptions, query: str = "") -> "Iterator[Index]":
    """Opens the index that covers the paths, or makes a new one.

    If a path does not exist, but the query is an existing path, the error says that their order is wrong.
    """
    from mlxbert.search import index_stores
    from mlxbert.search.index import open_index

    file = chosen.index or index_stores.find_index(paths) or index_stores.index_file(paths)
    new = not index_stores.exists(file)
    model: Model | ModelRef | None = None
    if new:
        if missing := [path for path in paths if not os.path.exists(path)]:
            swapped = bool(query) and os.path.exists(query)
            hint = "the query comes first: mlxbert search QUERY PATH" if swapped else "check the spelling of the path"
            raise InputError(f"{missing[0]}: no such file or folder", hint=hint)
        name = chosen.model or os.environ.get("MLXBERT_MODEL") or BUILTIN
        if chosen.model is None:
            note_other_models(paths, name)
        loaded = session.load("embed", _computing(name, chosen))
        if "dense" in loaded.vectors:
            session.note_assumed_pooling(loaded, None)
        model = loaded
    elif (about := index_stores.about_of(file)) is not None:
        model = _computing(chosen.model or about.model, chosen).ref
    with open_index(
        file, model=model, paths=paths, tokens=chosen.chunk_tokens, titles=not chosen.no_titles,
        prompts=(chosen.query_prompt, chosen.prompt), token_vectors=not chosen.no_token_vectors,
        include=chosen.include or (), exclude=chosen.exclude or (),
        text=chosen.text_column, fields=chosen.field, encoding=chosen.encoding,
    ) as opened:  # fmt: skip
        if not opened.store.is_new:
            _check_same(opened.about, chosen)
        try:
            yield opened
        except InputError:  # nothing could be read
            if opened.store.is_new and not opened.stats().files:
                opened.close()
                index_stores.remove_store(opened.path)
            raise


def note_other_models(paths: Sequence[str], model: str) -> None:
    """Says so if a new index gets another model than the index that one of its paths has already."""
    from mlxbert.search import index_stores
    from mlxbert.search.index import model_name

    for path in paths:
        file = index_stores.find_index([path])
        about = None if file is None else index_stores.about_of(file)
        if about is not None and about.model != model_name(model):
            covered = " and ".join(views.near(root) for root in about.roots)
            new = " and ".join(paths)
            console.say(
                "note",
                f"a new index of {new} is made with the model {model}, but the index of {covered} has {about.model}",
            )
            console.say("hint", "to make the new index with the same model:", f"--model {shlex.quote(about.model)}")
            return


def _check_same(about: "IndexSettings", chosen: IndexOptions) -> None:
    from mlxbert.search.documents.encodings import check_chosen_encoding

    pairs = (
        ("chunk_tokens", chosen.chunk_tokens, about.tokens),
        ("no_titles", chosen.no_titles or None, not about.titles),
        ("query_prompt", chosen.query_prompt, about.prompts[0]),
        ("prompt", chosen.prompt, about.prompts[1]),
        ("no_token_vectors", chosen.no_token_vectors or None, not about.token_size),
        ("include", chosen.include, [*about.include]),
        ("exclude", chosen.exclude, [*about.exclude]),
        ("text_column", chosen.text_column, about.text),
        ("field", chosen.field, [*(about.fields or ())]),
        ("encoding", check_chosen_encoding(chosen.encoding), about.encoding),
    )
    for name, value, actual in pairs:
        if value is not None and value != actual:
            hint = "omit the option, make another index with --index FILE, or first run `mlxbert indexes remove`"
            if isinstance(value, bool):
                raise ArgumentError(f"`{name}` was not given when the index was made", hint=hint)
            raise ArgumentError(
                f"`{name}` is {_typed(value)}, but the index was made with the value {_typed(actual)}", hint=hint
            )


def _typed(value: object) -> str:
    """Formats the value of an option in the way that a user types it."""
    if isinstance(value, str) and value != value.strip():
        return repr(value)
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value or ""))[:60] or "none"


def _computing(model: str, chosen: IndexOptions) -> ComputingOptions:
    return ComputingOptions(model, offline=chosen.offline, device=chosen.device)


def _show(
    index: "Index", hits: "Sequence[Hit]", answer: "SearchAnswer | None", how: QueryOptions, out: OutputOptions
) -> None:
    """Draws the answer, if one was asked for, and passages in a terminal, or prints them as JSON lines in a pipe."""
    if not console.draws(out.json):
        if answer is not None:
            near = answer.path and views.near(answer.path)
            json_lines.put_line(to_json(plain(answer.to_dict() | {"path": near})))
        for hit in hits:
            line = hit.to_dict(why=how.explain)
            sides = _around(index, hit, how.context) if how.context else ()
            around = dict(zip(("before", "after"), sides, strict=False))
            for place in (line, *line["duplicates"]):
                place["path"] = place["path"] and views.near(place["path"])
            json_lines.put_line(to_json(plain(line | around)))
        return
    console.require_stdout()
    screen = console.stdout()
    if answer is not None:
        for part in views.draw_answer(answer):
            screen.print(part)
    for passage in _passages(index, hits, how.context, answer):
        if passage.hit.rank > 1 or answer is not None:
            screen.print()
        words = views.QueryWords(passage.hit.query)
        for part in views.draw(passage, words, explain=how.mode if how.explain else None, duplicates=how.duplicates):
            screen.print(part)


def _around(index: "Index", hit: "Hit", lines: int) -> tuple[list[str], list[str]]:
    """Returns the lines before and after a passage in its document."""
    text = index.read(hit.chunk, around=lines).text  # a chunk has at least one line
    start = max(text.find(hit.text), 0)
    before, after = text[:start].split("\n"), text[start + len(hit.text) :].split("\n")
    return before[:-1][-lines:], after[1:][:lines]


def _passages(
    index: "Index", hits: "Sequence[Hit]", context: int, answer: "SearchAnswer | None"
) -> "Iterator[views.DrawnPassage]":
    """Yields the hits to draw, each with its best sentence.

    The best sentence is the one with the answer. In the other passages, it is the one that shares the most words with
    the query, by their total length. If a passage has none of the words, it is the sentence that is most similar to the
    query.
    """
    from mlxbert.readers.front_matter import front_matter_end
    from mlxbert.search.chunks import sentences
    from mlxbert.tasks.similarity import similarity

    words = views.QueryWords(hits[0].query if hits else "")
    begins = [front_matter_end(hit.text) for hit in hits]
    spans = [
        [(begin + start, begin + end) for start, end in sentences(hit.text[begin:])] or [(0, len(hit.text))]
        for hit, begin in zip(hits, begins, strict=True)
    ]
    texts = [[hit.text[start:end] for start, end in pieces] for hit, pieces in zip(hits, spans, strict=True)]
    chosen = [max(range(len(pieces)), key=[*map(words.shared, pieces)].__getitem__) for pieces in texts]
    chunk, place = (None, None) if answer is None else (answer.chunk, answer.start)
    answered = next((number for number, hit in enumerate(hits) if hit.chunk == chunk), None)
    if answered is not None and place is not None:
        chosen[answered] = max(sum(start <= place for start, _ in spans[answered]) - 1, 0)
    unmatched = [
        (number, sentence)
        for number, pieces in enumerate(texts)
        if not words.shared(hits[number].text) and number != answered
        for sentence in range(len(pieces))
    ]
    if unmatched:
        scores: dict[int, float] = {}
        for result in similarity(
            index.model, hits[0].query, [texts[number][sentence] for number, sentence in unmatched]
        ):
            number, sentence = unmatched[result.index]
            if result.score > scores.get(number, -math.inf):
                scores[number], chosen[number] = result.score, sentence
    best_score = max((hit.score for hit in hits), default=1.0)
    for hit, pieces, sentence in zip(hits, spans, chosen, strict=True):
        first, last = pieces[sentence]
        before, after = _around(index, hit, context) if context else ([], [])
        shift = sum(len(line) + 1 for line in before)
        yield views.DrawnPassage(
            hit,
            "\n".join([*before, hit.text, *after]),
            (first + shift, last + shift),
            views.LINES + 2 * context,
            max(hit.score, 0.0) / best_score if best_score > 0 else 0.0,
            None if hit.start_line is None else hit.start_line + hit.text.count("\n", 0, first),
        )
