"""`mlxbert similarity`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.commands.embed import note_assumed_pooling
from mlxbert.cli.inputs import ARGUMENTS, Source, open_input
from mlxbert.cli.options import FileOptions, ModelOptions, OutputOptions, PairInputOptions, VectorOptions
from mlxbert.cli.views import console, progress
from mlxbert.cli.views import vectors as view
from mlxbert.errors import ArgumentError, InputError
from mlxbert.results import Failure, Similarity

if TYPE_CHECKING:
    from mlxbert.model import Model
    from mlxbert.text.batch import Usage

MOST = 20  # texts of a file that a terminal shows where nothing else is asked for


def similarity(
    model: ModelOptions,
    source: PairInputOptions,
    vector: VectorOptions,
    out: OutputOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B…", help="A text, and others.")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show only the N most similar.")] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Compare the two texts of each row, columns a and b.")] = False,
    query_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to put before A only.", rich_help_panel="Vectors")
    ] = None,
    query_prompt_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One of the model's own prompts, for A only.", rich_help_panel="Vectors"),
    ] = None,
) -> None:
    """Rank texts by how similar they are to the first: the cosine of their vectors.

    The others may come from a file or a pipe; without A on the command line, its first text is A. The index in the
    output counts the others, from 0. At a terminal, the 20 nearest of a file are shown. Where the model has prompts of
    its own for queries and documents, A is the query.

    Example: mlxbert similarity "A man eats." "Someone is having lunch." "The sky is blue."
    """
    given = vector.given() | {"query_prompt": query_prompt, "query_prompt_name": query_prompt_name}
    if pairs or source.pair_column is not None:
        return _pairs(model, source, given, out, texts or (), top_k)
    alone = len(texts or ()) == 1  # the others come from --input or a pipe
    opened = _open(() if alone else texts or (), source, alone=alone)
    loaded = session.load("embed", model)
    _note_vectors(loaded, given)
    query, others = (texts[0], opened.records) if texts and alone else _split(opened)
    from_file = opened.name != ARGUMENTS
    screen = session.Screen(view.draw_similarity, out, gap=False, left_out=["query"] if from_file else ())
    most = MOST if top_k is None and from_file and screen.drawn else top_k
    given |= {"top_k": most, "batch_tokens": model.batch_tokens}
    found, usage = _ranked(loaded, query, others, opened, given)
    before = 0 if alone else 1
    for result in found:
        screen.write(opened.located(result, before) if isinstance(result, Failure) else result)
    if most != top_k and usage.texts - 1 > MOST:
        console.say("note", f"the {MOST} most similar of {usage.texts - 1:,} texts; --top-k N shows more")
    count, why = usage.texts + screen.failed, "each says why after the others"
    session.report(count, usage.truncated, usage.only_unknown, screen.failed, why, screen.hint)


def _ranked(
    model: "Model", query: str, others: Iterator[str | InputError], source: Source[str], given: dict[str, Any]
) -> tuple[Sequence[Similarity | Failure], "Usage"]:
    """The others in their order, and what was computed; a bar is shown for a file."""
    from mlxbert.tasks.similarity import similarity as task
    from mlxbert.text.batch import Usage

    usage = Usage()
    with progress.records(source.size, shown=source.name != ARGUMENTS) as update:

        def read() -> Iterator[str | InputError]:
            for record in others:
                update(source.places.after(usage.texts), usage.texts)
                yield record

        found = task(model, query, read(), usage=usage, on_error="raise" if source.strict else "return", **given)
    if not found:
        raise InputError(f"{source.name}: there is no text to compare with")
    return found, usage


def _pairs(
    model: ModelOptions,
    source: PairInputOptions,
    given: dict[str, Any],
    out: OutputOptions,
    texts: Sequence[str],
    top_k: int | None,
) -> None:
    """The cosine of the two texts of each pair, in the order of the input."""
    if top_k is not None:
        raise ArgumentError(
            "--top-k keeps the texts nearest to A, but --pairs does not rank texts", hint="omit one of them"
        )
    if texts and len(texts) != 2:
        raise ArgumentError(f"there are {len(texts)} texts, expected two with --pairs", hint="quote each text")
    opened = open_input(texts, source, ("a", "b"))
    loaded = session.load("embed", model)
    from mlxbert.tasks.pairs import similarity_pairs

    _note_vectors(loaded, given)
    how: dict[str, Any] = given | {"batch_tokens": model.batch_tokens, "on_error": opened.on_error}
    results = similarity_pairs(loaded, opened.records, **how)
    task = session.Task("similarity", loaded, model, given)
    session.stream(opened, results, view.draw_pair, FileOptions(**vars(out)), task=task)


def _note_vectors(model: "Model", given: dict[str, Any]) -> None:
    """Prints notes on what neither an option nor the model's files say, and on prompts that no option names."""
    from mlxbert.tasks.embed import own_prompt

    note_assumed_pooling(model, given["pooling"])
    own = [own_prompt(model.embedder.config.prompts, kind) or "none" for kind in ("query", "document")]
    if own != ["none", "none"] and all(value is None for name, value in given.items() if "prompt" in name):
        first, others = own
        console.say("note", f'prompts of the model: {first} for A, {others} for the others; --prompt "" omits them')


def _open(texts: Sequence[str], source: PairInputOptions, *, alone: bool) -> Source[str]:
    if source.keep:
        hint = "its index says which record a text is"
        raise ArgumentError("--keep goes with --pairs: a ranking has no other columns", hint=hint)
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
