"""`mlxbert similarity`."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.commands.embed import note_assumed_pooling
from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import FileOptions, ModelOptions, OutputOptions, PairInputOptions, VectorOptions
from mlxbert.cli.ranking import open_ranking, write_ranking
from mlxbert.cli.views import console, vectors as view
from mlxbert.errors import ArgumentError
from mlxbert.options import Option

if TYPE_CHECKING:
    from mlxbert.model import Model
    from mlxbert.text.batch import Usage


def similarity(
    model: ModelOptions,
    source: PairInputOptions,
    vector: VectorOptions,
    out: OutputOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B…", help="A text, and others.")] = None,
    top_k: Annotated[int | None, Option("Show only the N most similar.")] = None,
    pairs: Annotated[bool, Option("Compare the two texts of each row, columns a and b.")] = False,
    query_prompt: Annotated[str | None, Option("Text to put before A only.", "TEXT", panel="Vectors")] = None,
    query_prompt_name: Annotated[
        str | None,
        Option("One of the model's own prompts, for A only.", panel="Vectors"),
    ] = None,
) -> None:
    """Rank texts by how similar they are to the first: by cosine, unless the model names another function.

    The others may come from a file or a pipe. If A is not given, the first text of the file is A. The index in the
    output counts the others, from 0. In a terminal, the 20 most similar texts of a file are shown. If the model has
    prompts for queries and documents, A is the query.

    Example: mlxbert similarity "A man eats." "Someone is having lunch." "The sky is blue."
    """
    given = vars(vector) | {"query_prompt": query_prompt, "query_prompt_name": query_prompt_name}
    if pairs or source.pair_column is not None:
        return _pairs(model, source, given, out, texts or (), top_k)
    if source.keep:
        hint = "its index says which record a text is"
        raise ArgumentError("--keep goes with --pairs: a ranking has no other columns", hint=hint)
    opened = open_ranking(texts or (), source)
    loaded = session.load("embed", model)
    _note_vectors(loaded, given)
    from mlxbert.tasks.similarity import similarity as task

    def rank(query: str, others: Iterator[Any], top_k: int | None, usage: "Usage", on_error: str) -> Any:
        how = given | {"batch_tokens": model.batch_tokens}
        return task(loaded, query, others, top_k=top_k, usage=usage, on_error=on_error, **how)

    write_ranking(texts or (), opened, out, _with_bars(view.draw_ranked, loaded), top_k, rank)


def _pairs(
    model: ModelOptions,
    source: PairInputOptions,
    given: dict[str, Any],
    out: OutputOptions,
    texts: Sequence[str],
    top_k: int | None,
) -> None:
    """How similar the two texts of each pair are, in the order of the input."""
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
    task = session.OutputManifest("similarity", loaded, model, given)
    session.stream(opened, results, _with_bars(view.draw_pair, loaded), FileOptions(**vars(out)), task=task)


def _with_bars(draw: Callable[..., Any], model: "Model") -> Callable[..., Any]:
    """Draws bars for cosines; other scores may be of any size."""
    return functools.partial(draw, bars=model.embedder.config.similarity == "cosine")


def _note_vectors(model: "Model", given: dict[str, Any]) -> None:
    """Prints notes on what neither an option nor the model's files say, and on prompts that no option names."""
    from mlxbert.tasks.embed import own_prompt

    note_assumed_pooling(model, given["pooling"])
    if (similarity := model.embedder.config.similarity) != "cosine":
        distance = f"the negative {similarity.capitalize()} distance"
        what = "the dot product" if similarity == "dot" else distance
        console.say("note", f"scores are {what} of vectors, as the files of the model say")
    own = [own_prompt(model.embedder.config.prompts, kind) or "none" for kind in ("query", "document")]
    if own != ["none", "none"] and all(value is None for name, value in given.items() if "prompt" in name):
        first, others = own
        console.say("note", f'prompts of the model: {first} for A, {others} for the others; --prompt "" omits them')
