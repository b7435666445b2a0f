"""`mlxbert similarity`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.commands.embed import say_assumed
from mlxbert.cli.inputs import Source, open_input, single
from mlxbert.cli.options import InputOptions, ModelOptions, OutputOptions, VectorOptions
from mlxbert.cli.views import vectors
from mlxbert.errors import ArgumentError, InputError


def similarity(
    model: ModelOptions,
    source: InputOptions,
    vector: VectorOptions,
    out: OutputOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B…", help="A text, and others.")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show only the nearest N.")] = None,
) -> None:
    """Rank texts by how near they are in meaning to the first one: the cosine of their vectors, from -1 to 1.

    The others may come from a file or a pipe; without A on the command line, its first text is A. The index in the
    output counts the others, from 0. A prompt is put before each text.

    Example: mlxbert similarity "A man eats." "Someone is having lunch." "The sky is blue."
    """
    alone = len(texts or ()) == 1  # those it is compared with come from --input or a pipe
    records = _open(() if alone else texts or (), source, alone=alone)
    loaded = session.load("embed", model)
    from mlxbert.tasks.similarity import similarity as task
    from mlxbert.text.batch import Usage

    say_assumed(loaded, vector.pooling)
    query, others = (texts[0], single(records.records)) if texts and alone else _split(records)
    usage = Usage()
    given = vector.given() | {"top_k": top_k, "batch_tokens": model.batch_tokens, "usage": usage}
    found = task(loaded, query, others, on_error="raise" if records.strict else "return", **given)
    if not found:
        raise InputError(f"{records.name}: there is no text to compare with")
    screen = session.Screen(session.View(vectors.similarity, gap=False), out)
    for result in found:
        screen.write(result)
    session.report(usage.texts + screen.failed, usage.truncated, screen.failed, "each says why behind the others")


def _open(texts: Sequence[str], source: InputOptions, *, alone: bool) -> Source:
    try:
        return open_input(texts, source, ("text",))
    except ArgumentError as problem:
        if alone and source.input is None:
            raise ArgumentError(
                "there is one text, expected two or more: A and those it is compared with", hint=problem.hint
            ) from None
        raise


def _split(source: Source) -> tuple[str, Iterator[str | InputError]]:
    """The first text and those it is compared with, of which there is at least one."""
    texts = single(source.records)
    query, first = next(texts, None), next(texts, None)
    if query is None:
        raise InputError(f"{source.name}: there is no text")
    if isinstance(query, InputError):
        raise InputError(f"{source.name}: input 0, which the others are compared with: {query.message}")
    if first is None:
        raise InputError(f"{source.name}: there is one text, expected two or more")
    return query, itertools.chain([first], texts)
