"""What commands share that rank texts for a query: where both come from, and how the ranking is printed."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mlxbert.cli import session
from mlxbert.cli.inputs import ARGUMENTS, InputStream, open_input
from mlxbert.cli.options import InputOptions, OutputOptions
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError, InputError
from mlxbert.results.related import Reranked, Similarity
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    from mlxbert.text.batch import Usage

MOST = 20  # texts of a file that a terminal shows where nothing else is asked for
# Ranks texts for a query: the query, the texts, how many are kept, what counts them, `on_error`.
Rank = Callable[[str, Iterator[str | InputError], int | None, "Usage", str], Sequence[Similarity | Reranked | Failure]]


def open_ranking(texts: Sequence[str], source: InputOptions) -> InputStream[str]:
    """The texts, without the query where it alone is on the command line.

    Raises:
        ArgumentError: There is nothing to compare with, or options contradict each other.
        InputError: A file cannot be opened.
    """
    alone = len(texts) == 1
    try:
        return open_input(() if alone else texts, source, "text")
    except ArgumentError as problem:
        if alone and source.input is None:
            raise ArgumentError(
                "there is one text, expected two or more: the first one is the query", hint=problem.hint
            ) from None
        raise


def write_ranking(
    texts: Sequence[str],
    opened: InputStream[str],
    out: OutputOptions,
    draw: session.Draw,
    top_k: int | None,
    rank: Rank,
) -> None:
    """Ranks what `open_ranking` has opened, prints the ranking, then what failed; a bar is shown for a file.

    Raises:
        InputError: There is no query, or nothing to compare with.
        MlxbertError: Some texts failed.
    """
    from mlxbert.text.batch import Usage

    alone = len(texts) == 1
    query, others = (texts[0], opened.records) if alone else _split(opened)
    from_file = opened.name != ARGUMENTS
    screen = session.Screen(draw, out, gap=False, left_out=["query"] if from_file else ())
    most = MOST if top_k is None and from_file and screen.drawn else top_k
    usage, count, before = Usage(), 0, 0 if alone else 1  # the query, where it is a record itself
    with progress.records(opened.size, shown=from_file) as update:

        def read() -> Iterator[str | InputError]:
            nonlocal count
            for record in others:
                if opened.strict and isinstance(record, InputError):
                    failed = opened.located(Failure(count, record), before)
                    raise InputError(f"input {failed.index}: {failed.error.message}", hint=failed.error.hint)
                count += 1
                update(opened.places.after(usage.texts), usage.texts)
                yield record

        found = rank(query, read(), most, usage, "raise" if opened.strict else "return")
    if not found:
        hint = "give texts after the query, name a file with --input, or pipe texts in"
        where = f"{opened.name}: " if opened.files else ""  # stdin is read where nothing else is given
        raise InputError(f"{where}there is no text to rank for the query", hint=hint)
    for result in found:
        screen.write(opened.located(result, before) if isinstance(result, Failure) else result)
    if most != top_k and count - screen.failed > MOST:
        console.say("note", f"the {MOST} best of {count - screen.failed:,} texts; --top-k N shows more")
    why = "each says why after the others"
    inputs = count if screen.failed else usage.texts  # a query that has a vector of its own is a text, too
    session.report(inputs, usage.truncated, usage.only_unknown, screen.failed, why, screen.hint)


def _split(source: InputStream[str]) -> tuple[str, Iterator[str | InputError]]:
    """The first text, and those to compare it with, at least one."""
    texts = source.records
    query, first = next(texts, None), next(texts, None)
    if query is None:
        raise InputError(f"{source.name}: there is no text")
    if isinstance(query, InputError):
        raise InputError(f"{source.name}: input 0, which is the query: {query.message}")
    if first is None:
        raise InputError(f"{source.name}: there is one text, expected two or more")
    return query, itertools.chain([first], texts)
