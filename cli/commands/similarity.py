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
from mlxbert.cli.commands.embed import note_assumed_pooling
from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import FileOptions, PairInputOptions, ServedOptions, options_of, with_options
from mlxbert.cli.output.result_file import check_output
from mlxbert.cli.ranking_command import open_ranking, write_ranking
from mlxbert.cli.views import console, vectors as view
from mlxbert.errors import ArgumentError, InputError
from mlxbert.files import sha256
from mlxbert.options import Option
from mlxbert.readers.stream import RecordStream
from mlxbert.readers.vector_files import DATABASES, StoredVectors, read_texts, read_vectors
from mlxbert.results.related import Similarity
from mlxbert.tasks.options import RankingOptions, deciding_options

if TYPE_CHECKING:
    from mlxbert.cli.server_models import RemoteModel
    from mlxbert.model import Model
    from mlxbert.text.usage import Usage


def _similarity(
    model: ServedOptions,
    source: PairInputOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B…", help="The query, and texts.")] = None,
    vectors: Annotated[Path | None, Option("File with the vectors of the texts, from embed.", "FILE")] = None,
    pairs: Annotated[bool, Option("Compare the two texts of each row, columns a and b.")] = False,
    **given: Any,
) -> None:
    top_k = given.pop("top_k")
    check_output(out.output, out.overwrite, sources=[*(source.input or []), *([str(vectors)] if vectors else [])])
    if model.server is not None and (pairs or source.pair_column is not None or vectors is not None):
        what = "--pairs" if vectors is None else "--vectors"
        raise ArgumentError(f"{what} needs the model itself: it does not work with --server")
    if pairs or source.pair_column is not None:
        if vectors is not None:
            raise ArgumentError("there are both --vectors and pairs of texts", hint="omit one of them")
        return _pairs(model, source, given, out, texts or (), top_k)
    if vectors is not None and len(texts or ()) != 1:
        raise ArgumentError(f"there are {len(texts or ())} texts, --vectors needs one: the query")
    stored = None if vectors is None else read_vectors(vectors)
    opened = _opened(texts or (), source, vectors, stored)
    loaded = session.load_or_ask("embed", model)
    if stored is not None and not session.is_remote(loaded):
        given |= _options_of(vectors, stored, loaded, given)
    _note_vectors(loaded, given)

    def score(query: str, others: Iterator[Any], usage: "Usage") -> Iterator[Any]:
        if session.is_remote(loaded):
            return loaded.scores("similarity", query, others, usage, **given)
        from mlxbert.tasks.options import SimilarityOptions
        from mlxbert.tasks.similarity import score_texts, score_vectors

        how = SimilarityOptions(**given, batch_tokens=model.batch_tokens)
        if stored is None:
            return score_texts(loaded, query, others, how, usage)
        return score_vectors(loaded, query, _paired(others, stored.rows, f"{opened.name}, {vectors}"), how, usage)

    asked = {"texts": texts, "top_k": top_k, "vectors": vectors and sha256(vectors)}
    made_of = session.OutputManifest("similarity", loaded, model, given | asked)
    draw = _with_bars(view.draw_ranked, loaded)
    write_ranking(texts or (), opened, out, draw, top_k, made_of, score, lambda query, one: Similarity(query, *one[:6]))


similarity = with_options(
    _similarity,
    """Rank texts by how similar they are to the first: by cosine, unless the model names another function.

    The others may come from a file or a pipe; if A, the query, is not given, it is the first text of the file. The
    index in the output counts the others, from 0. A terminal shows the 20 most similar texts of a file.

    Example: mlxbert similarity "A man eats." "Someone is having lunch." "The sky is blue."
    """,
    options_of(RankingOptions, only=deciding_options(RankingOptions).keys() - {"normalize"}),
)


def _opened(
    texts: Sequence[str], source: PairInputOptions, vectors: Path | None, stored: StoredVectors | None
) -> RecordStream:
    """The texts, see `open_ranking`; without others those that are stored with the vectors."""
    if vectors is None or stored is None or source.input is not None:
        return open_ranking(texts, source, vectors)
    if vectors.suffix.lower() in DATABASES:
        opened = open_input(read_texts(vectors), source, "text")
        opened.name = str(vectors)
        return opened
    return open_ranking(texts, replace(source, input=[str(vectors)]) if stored.has_texts else source, vectors)


def _options_of(path: Path | None, stored: StoredVectors, model: "Model", given: dict[str, Any]) -> dict[str, Any]:
    """What the file of the vectors says of how they were made, for the query; an option that is given goes first."""
    if Path(name := stored.about.get("model", model.source)).name != Path(model.source).name:
        raise InputError(f"{path}: vectors of the model {name}, expected {model.source}", hint=f"give --model {name}")
    options = json.loads(stored.about.get("options", "{}"))
    return {name: options.get(name) for name in ("pooling", "dimensions") if given[name] is None}


def _paired(texts: Iterator[Any], vectors: Iterator[Any], names: str) -> Iterator[Any]:
    """Each text with its vector, or what is wrong with one of them."""
    for number, (text, vector) in enumerate(itertools.zip_longest(texts, vectors)):
        if text is None or vector is None:
            what, other = ("vectors", "texts") if text is None else ("texts", "vectors")
            raise InputError(
                f"{names}: there are more {what} than {other}, which are {number:,}",
                hint="give the file that was embedded, unchanged: --input FILE",
            )
        yield next((one for one in (text, vector) if isinstance(one, InputError)), (text, vector))


def _pairs(
    model: ServedOptions,
    source: PairInputOptions,
    given: dict[str, Any],
    out: FileOptions,
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
    how: dict[str, Any] = {"pairs": opened, "batch_tokens": model.batch_tokens, "on_error": opened.on_error}
    results = similarity_pairs(loaded, **given, **how)
    task = session.OutputManifest("similarity", loaded, model, given)
    session.stream(opened, results, _with_bars(view.draw_pair, loaded), out, task=task)


def _with_bars(draw: Callable[..., Any], model: "Model | RemoteModel") -> Callable[..., Any]:
    """Draws bars for cosines; other scores may be of any size."""
    return functools.partial(draw, bars=model.embedder.config.similarity == "cosine")


def _note_vectors(model: "Model | RemoteModel", given: dict[str, Any]) -> None:
    """Prints notes on what neither an option nor the model's files say, and on prompts that no option names."""
    from mlxbert.tasks.prompt_kinds import own_prompt

    note_assumed_pooling(model, given["pooling"])
    if (similarity := model.embedder.config.similarity) != "cosine":
        distance = f"the negative {similarity.capitalize()} distance"
        what = "the dot product" if similarity == "dot" else distance
        console.say("note", f"scores are {what} of vectors, as the files of the model say")
    own = [own_prompt(model.embedder.config.prompts, kind) or "none" for kind in ("query", "document")]
    if own != ["none", "none"] and all(value is None for name, value in given.items() if "prompt" in name):
        first, others = own
        console.say("note", f'prompts of the model: {first} for A, {others} for the others; --prompt "" omits them')
