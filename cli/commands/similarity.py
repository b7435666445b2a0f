"""`mlxbert similarity`."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input, refuse_reading_options
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.cli.ranking_command import open_ranking, write_ranking
from mlxbert.cli.shared_options import FileOptions, PairInputOptions, ServedOptions, options_of, with_options
from mlxbert.cli.views import console, vectors as view
from mlxbert.durable_files import sha256
from mlxbert.errors import ArgumentError, InputError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.option_declarations import Option
from mlxbert.readers.stream import RecordStream
from mlxbert.readers.vector_files import (
    DATABASE,
    StoredVectors,
    check_text,
    read_texts,
    read_vectors,
    stored_texts,
    unstated,
)
from mlxbert.results.text_relations import Similarity
from mlxbert.tasks.options import RankingOptions, deciding_options

if TYPE_CHECKING:
    from mlxbert.cli.session import RemoteModel
    from mlxbert.model import Model
    from mlxbert.text.usage import Usage


def _similarity(
    model: ServedOptions,
    source: PairInputOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B…", help="The query, and texts to rank.")] = None,
    vectors: Annotated[Path | None, Option("File with the vectors of the texts, written by embed.", "FILE")] = None,
    pairs: Annotated[bool, Option("Compare the two texts of each row, in columns a and b.")] = False,
    **values: Any,
) -> None:
    top_k, arguments = values.pop("top_k"), texts or ()
    check_output(out.output, out.overwrite, sources=[*(source.input or []), *([str(vectors)] if vectors else [])])
    pairs = pairs or source.pair_column is not None
    _check(model, arguments, vectors, pairs=pairs)
    if pairs:
        return _pairs(model, source, values, out, arguments, top_k)
    stored = None if vectors is None else read_vectors(vectors)
    if vectors and stored and (note := unstated(vectors, stored)):
        console.say("note", note)
    records = _opened(arguments, source, vectors, stored)
    loaded = session.load_or_ask("embed", model)
    if stored is not None and not session.is_remote(loaded):
        loaded.embedder  # noqa: B018 - raises an error for a model without dense vectors
        values |= _stored_options(vectors, stored, loaded, values)
    _note_vectors(loaded, values)

    def score(query: str, candidates: Iterator[Any], usage: "Usage") -> Iterator[Any]:
        if session.is_remote(loaded):
            return loaded.scores("similarity", query, candidates, usage, **values)
        from mlxbert.tasks.options import SimilarityOptions
        from mlxbert.tasks.similarity import score_texts, score_vectors

        options = SimilarityOptions(**values, batch_tokens=model.batch_tokens)
        if stored is None or vectors is None:
            return score_texts(loaded, query, candidates, options, usage)
        paired = _paired(candidates, stored.rows, records.name, vectors)
        return score_vectors(loaded, query, paired, options, usage)

    more = {"texts": texts, "top_k": top_k, "vectors": vectors and sha256(vectors)}
    manifest = session.OutputManifest("similarity", loaded, model, values | more)
    draw = _with_bars(view.draw_ranked, loaded)
    write_ranking(
        arguments, records, out, draw, top_k, manifest, score, lambda query, text: Similarity(query, *text[:6])
    )


similarity = with_options(
    _similarity,
    """Rank texts by how similar they are to the first: by cosine, unless the model names another function.

    A is the query. The other texts may come from a file or a pipe; without A, the query is the first text of the file.
    The index in the output counts the other texts from 0. A terminal shows the 20 most similar texts of a file.

    Example: mlxbert similarity "A man eats." "Someone is having lunch." "The sky is blue."
    """,
    options_of(RankingOptions, only=deciding_options(RankingOptions).keys() - {"normalize"}),
)


def _check(model: ServedOptions, texts: Sequence[str], vectors: Path | None, *, pairs: bool) -> None:
    if model.server is not None and (pairs or vectors is not None):
        option = "--pairs" if vectors is None else "--vectors"
        raise ArgumentError(f"{option} cannot be combined with --server, because {option} needs the model itself")
    if vectors is not None and pairs:
        raise ArgumentError("--vectors cannot be combined with --pairs", hint="omit --vectors or --pairs")
    if vectors is not None and len(texts) != 1:
        raise ArgumentError(f"--vectors needs exactly one text, the query, but has {len(texts)}")


def _opened(
    texts: Sequence[str], source: PairInputOptions, vectors: Path | None, stored: StoredVectors | None
) -> RecordStream:
    """Opens the texts to rank (see `open_ranking`). Without an input file, opens the texts stored with the vectors."""
    if vectors is None or stored is None or source.input is not None:
        return open_ranking(texts, source, vectors)
    if vectors.suffix.lower() == DATABASE:
        refuse_reading_options(replace(source, keep=None), f"the texts in {vectors}")
        return RecordStream([read_texts(vectors, source.keep)], strict=source.strict)
    return open_ranking(texts, replace(source, input=[str(vectors)]) if stored.has_texts else source, vectors)


def _stored_options(path: Path | None, stored: StoredVectors, model: "Model", values: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with which the stored vectors were made, so that the query is embedded alike.

    Options that the user gave are left out.
    """
    name, found, own = stored.about.get("model", model.source), stored.about.get("fingerprint"), model.files
    same_name = Path(name).name == Path(model.source).name
    if found != hash_model(own, times=False) if found else not same_name:  # a server's file has the name alone
        raise InputError(
            f"{path}: the vectors come from {'other files of ' * same_name}the model {name}, expected vectors from "
            f"{model.source}",
            hint="embed the texts again" if same_name else f"add --model {name}",
        )
    options = json.loads(stored.about.get("options", "{}"))
    return {name: options.get(name) for name in ("pooling", "dimensions") if values[name] is None}


def _paired(texts: Iterator[Any], vectors: Iterator[Any], name: str, path: Path) -> Iterator[Any]:
    """Yields each text with its vector; yields the error instead if either could not be read."""
    texts_of_vectors = stored_texts(path)
    for number, (text, vector) in enumerate(itertools.zip_longest(texts, vectors)):
        if text is None or vector is None:
            more, fewer = ("vectors", "texts") if text is None else ("texts", "vectors")
            raise InputError(
                f"{name}, {path}: there are more {more} than {fewer}, which end after {number:,}",
                hint="use --input FILE with the unchanged file that was embedded",
            )
        embedded = next(texts_of_vectors)
        if isinstance(text, str):
            check_text(path, number, embedded, text)
        # The vector first: a failed text is stored as an empty one, but an empty text has a vector.
        yield next((part for part in (vector, text) if isinstance(part, InputError)), (text, vector))


def _pairs(
    model: ServedOptions,
    source: PairInputOptions,
    values: dict[str, Any],
    out: FileOptions,
    texts: Sequence[str],
    top_k: int | None,
) -> None:
    if top_k is not None:
        raise ArgumentError(
            "--top-k cannot be combined with --pairs, which does not rank texts", hint="omit --top-k or --pairs"
        )
    if texts and len(texts) != 2:
        raise ArgumentError(f"--pairs needs exactly two texts, but has {len(texts)}", hint="quote each text")
    records = open_input(texts, source, ("a", "b"))
    loaded = session.load("embed", model)
    from mlxbert.tasks.pairs import similarity_pairs

    _note_vectors(loaded, values)
    arguments: dict[str, Any] = {"pairs": records, "batch_tokens": model.batch_tokens, "on_error": records.on_error}
    results = similarity_pairs(loaded, **values, **arguments)
    task = session.OutputManifest("similarity", loaded, model, values)
    session.stream(records, results, _with_bars(view.draw_pair, loaded), out, task=task)


def _with_bars(draw: Callable[..., Any], model: "Model | RemoteModel") -> Callable[..., Any]:
    """Makes a view draw bars only if scores are cosines, because other scores may have any size."""
    return functools.partial(draw, bars=model.vectors[0] != "tokens" and _settings(model).similarity == "cosine")


def _settings(model: "Model | RemoteModel") -> Any:
    return model.embedder.config if session.is_remote(model) else model.vector_settings


def _note_vectors(model: "Model | RemoteModel", values: dict[str, Any]) -> None:
    """Prints notes about an assumed pooling, scores that are not cosines, and the model's own prompts."""
    from mlxbert.tasks.prompt_kinds import own_prompt

    if model.vectors[0] == "tokens":
        return
    settings, dense = _settings(model), session.is_remote(model) or model.vectors[0] == "dense"
    if dense:
        session.note_assumed_pooling(model, values["pooling"])
    if not dense and settings.similarity == "dot":
        console.say("note", "scores are the dot product of sparse vectors")
    elif (similarity := settings.similarity) != "cosine":
        distance = f"the negative {similarity.capitalize()} distance"
        function = "the dot product" if similarity == "dot" else distance
        console.say("note", f"scores are {function} of vectors, as the model's files say")
    prompts = [own_prompt(settings.prompts, kind) or "none" for kind in ("query", "document")]
    stated = any(settings.prompts.get(prompt) for prompt in prompts)
    if stated and all(value is None for name, value in values.items() if "prompt" in name):
        query_prompt, document_prompt = prompts
        console.say(
            "note",
            f'the prompts are {query_prompt} for A, {document_prompt} for other texts; --prompt "" omits the prompts',
        )
