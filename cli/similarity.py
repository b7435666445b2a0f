"""`mlxbert similarity`."""

import itertools
from collections.abc import Iterator
from typing import Annotated

import typer

from mlxbert.cli import session, vectors
from mlxbert.cli.embed import say_assumed
from mlxbert.cli.inputs import Source, open_input, single
from mlxbert.cli.options import InputOptions, ModelOptions, OutputOptions, VectorOptions
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

    From a file, too, the first text is compared with all others. A prompt is put before each text.

    Example: mlxbert similarity "A man eats." "Someone is having lunch." "The sky is blue."
    """
    if texts and len(texts) < 2:
        raise ArgumentError("there is one text, expected two or more: A and those it is compared with")
    records = open_input(texts or (), source, ("text",))
    loaded = session.load("embed", model)
    from mlxbert.tasks.similarity import similarity as task

    say_assumed(loaded, vector.pooling)
    query, others = _split(records)
    found = task(
        loaded, query, others, top_k=top_k, batch_tokens=model.batch_tokens, on_error="return", **vector.given()
    )
    screen = session.Screen(session.View(vectors.similarity, gap=False), out)
    for result in session.numbered(found, 0, strict=records.strict):
        screen.write(result)
    session.report(len(found), screen.cut, screen.failed, "each says why behind the others")


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
