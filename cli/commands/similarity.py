"""`mlxbert similarity`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.commands.embed import note_assumed_pooling
from mlxbert.cli.inputs import Source, open_input
from mlxbert.cli.options import InputOptions, ModelOptions, OutputOptions, VectorOptions
from mlxbert.cli.views import vectors as view
from mlxbert.errors import ArgumentError, InputError
from mlxbert.results import Failure


def similarity(
    model: ModelOptions,
    source: InputOptions,
    vector: VectorOptions,
    out: OutputOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B…", help="A text, and others.")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show only the N most similar.")] = None,
) -> None:
    """Rank texts by how similar they are to the first one: by the cosine of their vectors, from -1 to 1.

    The others may come from a file or a pipe; without A on the command line, its first text is A. The index in the
    output counts the others, from 0. A prompt precedes each text.

    Example: mlxbert similarity "A man eats." "Someone is having lunch." "The sky is blue."
    """
    alone = len(texts or ()) == 1  # the others come from --input or a pipe
    opened = _open(() if alone else texts or (), source, alone=alone)
    loaded = session.load("embed", model)
    from mlxbert.tasks.similarity import similarity as task
    from mlxbert.text.batch import Usage

    note_assumed_pooling(loaded, vector.pooling)
    query, others = (texts[0], opened.records) if texts and alone else _split(opened)
    before = 0 if alone else 1
    usage = Usage()
    given = vector.given() | {"top_k": top_k, "batch_tokens": model.batch_tokens, "usage": usage}
    found = task(loaded, query, others, on_error="raise" if opened.strict else "return", **given)
    if not found:
        raise InputError(f"{opened.name}: there is no text to compare with")
    screen = session.Screen(view.draw_similarity, out, gap=False)
    for result in found:
        screen.write(opened.located(result, before) if isinstance(result, Failure) else result)
    count, why = usage.texts + screen.failed, "each says why after the others"
    session.report(count, usage.truncated, screen.failed, why, screen.hint)


def _open(texts: Sequence[str], source: InputOptions, *, alone: bool) -> Source[str]:
    try:
        return open_input(texts, source, "text")
    except ArgumentError as problem:
        if alone and source.input is None:
            raise ArgumentError(
                "there is one text, expected two or more: A and those to compare it with", hint=problem.hint
            ) from None
        raise


def _split(source: Source[str]) -> tuple[str, Iterator[str | InputError]]:
    """The first text, and those to compare it with, at least one."""
    texts = source.records
    query, first = next(texts, None), next(texts, None)
    if query is None:
        raise InputError(f"{source.name}: there is no text")
    if isinstance(query, InputError):
        raise InputError(f"{source.name}: input 0, with which the others are compared: {query.message}")
    if first is None:
        raise InputError(f"{source.name}: there is one text, expected two or more")
    return query, itertools.chain([first], texts)
