"""`mlxbert.verify_vectors`: checks vectors that another program computed, and finds out why they differ.

Legend: N texts, W size of a vector.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeAlias

from mlxbert.errors import ArgumentError, InputError
from mlxbert.export.against.causes import CLOSED, CauseSearch, OnStep, Recipe, describe, find_order, unseen
from mlxbert.export.against.embedding_server import EmbeddingServer, is_url
from mlxbert.export.against.recipes import Pooled, Reading, RecipeRunner
from mlxbert.export.against.stored_numbers import read_numbers
from mlxbert.export.against.vector_sources import ForeignVectors, VectorFile, stacked
from mlxbert.export.vector_verification import (
    CosineRange,
    Cosines,
    DifferingText,
    VectorCause,
    VectorCheckOptions,
    VectorSizes,
    VectorVerification,
)
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.option_declarations import TOLERANCE
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.prompted_task import choose_prompt
from mlxbert.text.sample_texts import english, languages

Floats: TypeAlias = "NDArray[np.float32]"


_SPELLINGS = (
    "NASA and the WHO met in Geneva.",
    "THE TRAIN TO OXFORD LEAVES FROM PLATFORM NINE.",
    "Polish the Polish table in March, then march to Turkey.",
    "Café, naïve, Zürich, São Paulo, Łódź.",
    "e-mail: someone@example.org, price: $1,299.00 (-15%)",
    "def add(a, b):\n    return a + b",
    "one",
    "One two",
)
_PROBE_LENGTHS = (16, 32, 48, 64, 96, 128, 160, 200, 256, 300, 400, 520, 700, 1000)  # sentences have about ten words


def probe_texts() -> list[str]:
    """Returns about 60 texts from one word to about 1,000 words, short and long ones mixed."""
    short = [*_SPELLINGS, *english()[:24], *languages()[::2]]
    long = [" ".join(_words(number, count)) for number, count in enumerate(_PROBE_LENGTHS)]
    long += [" ".join(_words(number + 40, count)).title() for number, count in enumerate(_PROBE_LENGTHS[2:10:3])]
    for number, text in enumerate(long):  # so that requests and batches have texts of all lengths
        short.insert(3 * number + 2, text)
    return short


def _words(start: int, count: int) -> Iterator[str]:
    """Yields the first words of sentences, beginning with another sentence for each text."""
    sentences = english()
    first = start * 7 % len(sentences)
    words = (word for text in cycle([*sentences[first:], *sentences[:first]]) for word in text.split())
    return islice(words, count)


_RANGES = (0.9999, 0.999, 0.99, 0.9, 0.5, -1.0)
_WORST = 5  # texts that are listed
_ORDERED = 64  # texts whose vectors are looked for among all
_LOOSE = 5e-3  # 1 - cosine of a rough explanation
_LENGTHS = 5e-3  # relative difference of equal lengths
VECTOR_TOLERANCE = 1e-4  # of 1 - cosine


def verify_vectors(
    model: Model,
    against: "str | Path | NDArray[Any]",
    texts: Iterable[str] | None = None,
    *,
    prompt_name: str | None = None,
    text_column: str | None = None,
    vector_column: str | None = None,
    server_model: str | None = None,
    max_texts: int = VectorCheckOptions.max_texts,
    tolerance: float = VECTOR_TOLERANCE,
    on_step: OnStep = lambda step: None,
) -> VectorVerification:
    """Compares vectors of another program with the model's own, and finds the cause of differences.

    The model computes the vectors of the same texts. If they differ, it computes them again in other ways: with a limit
    of tokens, from the last part of a text, with another pooling, prompt or layer, without special tokens, and so on,
    also in combination. The causes of the result are the changes that lead to the other vectors.

    Example:
        >>> model = mlxbert.load("sentence-transformers/all-MiniLM-L6-v2")
        >>> result = mlxbert.verify_vectors(model, "http://127.0.0.1:8080")
        >>> print(result.cause or "the vectors agree")

    Args:
        model: The model that is said to have computed the vectors.
        against: The URL of a server with OpenAI's `/v1/embeddings` or TEI's `/embed`, whose key is in the environment
            variable `MLXBERT_API_KEY`; a file of vectors (`.npy`), of records with texts and vectors
            (`.jsonl`, `.csv`, `.parquet` …), or an SQLite file: an index, a file of `embed`, or any table; or an array
            of vectors (N, W).
        texts: The texts, in the order of the vectors. By default the file's own texts; for a server, about 60 texts
            that tell causes apart.
        prompt_name: The model's prompt that should be before each text; by default the one that the file states, or the
            model's default.
        text_column: The column or field of a file with the texts; by default guessed.
        vector_column: The column or field with the vectors; by default guessed.
        server_model: The name of the model on the server; by default its only one.
        max_texts: The maximum number of texts to compare, evenly spaced among all.
        tolerance: The allowed value of 1 - cosine.
        on_step: Called with a few words for each step.

    Returns:
        The cosines, the causes, and what the texts cannot show. It is true if the vectors agree.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: The file has no usable vectors, or their size is not the model's.
        MlxbertError: The server cannot be reached, or its answer has no usable vectors.
    """
    check_model(model)
    options = VectorCheckOptions(
        prompt_name=prompt_name, text_column=text_column, vector_column=vector_column, server_model=server_model,
        max_texts=max_texts,
    )  # fmt: skip
    tolerance = TOLERANCE.check_number("tolerance", tolerance)
    width = model.embedder.size  # raises an error for a model without dense vectors
    listed = None if texts is None else _listed(texts)
    choose_prompt(model.source, model.embedder.config, None, options.prompt_name)
    if not isinstance(against, str | Path):
        theirs = ForeignVectors("vectors", listed or (), against)
    elif is_url(str(against)):
        theirs = _from_server(str(against), listed, options, model.source, on_step)
    else:
        theirs = VectorFile(Path(against), listed, options.text_column, options.vector_column, width).read()
    own = _own_recipe(model, theirs.options, options.prompt_name)
    return _Comparison(model, theirs, own, options.max_texts, tolerance, on_step).result()


def _listed(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise ArgumentError("`texts` is a single text, expected a sequence of texts", hint="`texts=[text]`")
    listed = list(texts)
    wrong = next((text for text in listed if not isinstance(text, str)), None)
    if wrong is not None or not listed:
        raise ArgumentError(f"`texts` has {wrong!r:.60}, expected texts" if listed else "`texts` is empty")
    return listed


def _from_server(
    url: str, texts: Sequence[str] | None, options: VectorCheckOptions, source: str, on_step: OnStep
) -> ForeignVectors:
    """Returns the vectors of a server, without the texts that it refuses."""
    server = EmbeddingServer(url, options.server_model, source)
    asked = probe_texts() if texts is None else texts
    asked = [asked[place] for place in _places(len(asked), options.max_texts)]
    rows = server.vectors(asked, lambda done, total: on_step(f"{done} of {total} texts from the server"))
    texts, vectors = zip(*(pair for pair in zip(asked, rows, strict=True) if pair[1] is not None), strict=True)
    notes: tuple[str, ...] = ()
    if server.refused:
        reason = next(iter(server.refused.values()))
        notes = (f"the server refuses {len(server.refused):,} texts, which are not compared ({reason})",)
    return ForeignVectors(server.url, texts, stacked(server.url, vectors), notes=notes)


def _places(count: int, most: int) -> list[int]:
    """Returns at most `most` evenly spaced numbers below `count`."""
    return [*range(count)] if count <= most else [place * count // most for place in range(most)]


def _own_recipe(model: Model, stated: Mapping[str, Any], prompt_name: str | None) -> Recipe:
    """Returns how the vectors should have been computed: by the model's settings and by the options that are stated."""
    settings = model.embedder.config
    name = prompt_name or stated.get("prompt_name")
    prompt, kind = (None, None) if prompt_name else (stated.get("prompt"), stated.get("kind"))
    text = choose_prompt(model.source, settings, prompt, name, kind)
    known = next((key for key, value in settings.prompts.items() if value == text and text), None)
    part = "windows" if stated.get("overflow") == "window" else "start"
    return Recipe(
        Reading(prompt=(known, text), part=part), Pooled(stated.get("pooling") or "+".join(settings.poolings))
    )


class _Comparison:
    """Compares vectors with those of a recipe."""

    def __init__(
        self, model: Model, foreign: ForeignVectors, own: Recipe, max_texts: int, tolerance: float, on_step: OnStep
    ) -> None:
        self.model, self.foreign, self.own = model, foreign, own
        self.places = np.array(_places(len(foreign.texts), max_texts))
        self.few = np.array(_places(len(self.places), _ORDERED))
        self.texts = [foreign.texts[place] for place in self.places]
        self.runner = RecipeRunner(model, self.texts)
        self.expected = foreign.options.get("dimensions") or model.embedder.size
        full = self.runner.width(own.pooled)
        theirs = read_numbers(foreign.vectors[self.places], full)
        if not 2 <= theirs.width <= max(full, model.config.hidden_size):
            raise InputError(
                f"{foreign.name}: the vectors have {theirs.width:,} values, but those of {model.source} have {full:,}",
                hint="another model computed them; give that model",
            )
        self.comparable = theirs.width <= full
        self.ours = self._vectors(own)
        self.theirs = theirs.with_ranges(self.ours) if self.comparable else theirs
        self.allowed = self.theirs.allowed(tolerance)
        self.search = CauseSearch(self.runner, self.theirs, own, self.allowed, on_step)

    def _vectors(self, recipe: Recipe) -> "Floats":
        (vectors,) = self.runner.vectors(recipe.reading, [recipe.pooled], range(len(self.texts)))
        return vectors

    def result(self) -> VectorVerification:
        search, causes, recipes = self.search, list[VectorCause](), list[Recipe]()
        after = search.own_cosines  # with the causes that are found
        differing = search.differing(after)
        if differing and self.comparable and (other_order := self._order()) is not None:
            order, after = other_order
            causes = [VectorCause("order", _order_text(order, self.places[self.few]), len(differing))]
        elif differing and (recipes := self._recipes()):
            causes, after = [*describe(recipes[0], search)], search.cosines(recipes[0])
        if causes or not differing:
            causes += self._number_causes(self._vectors(recipes[0]) if recipes else self.ours)
        explained = _summary(after) if causes else None
        ours = self._lengths(self.ours, self.expected)[self.scale]
        return VectorVerification(
            not differing and not causes,
            *(self.model.source, self.foreign.name, len(self.texts), len(differing), _summary(search.own_cosines)),
            "; ".join(cause.text for cause in causes) if causes else None,
            tuple(causes),
            explained,
            tuple("; ".join(each.text for each in describe(other, search)) for other in recipes[1:]),
            tuple(self._worst(differing)),
            VectorSizes(self.expected, self.model.dtype, float(ours.min()), float(ours.max())),
            self.theirs.facts(),
            (*self.foreign.notes, *self._notes(len(differing), explained, recipes)),
            len(self.runner.tried),
        )

    def _recipes(self) -> list[Recipe]:
        """Returns the recipes that explain the vectors: all or most, or else as far as lower precision allows."""
        search = self.search
        if recipes := search.find() or search.find_for_most():
            return recipes
        search.allowed = max(search.allowed, _LOOSE)
        return [] if 1 - search.own_cosines.mean() < _LOOSE * CLOSED else search.find()[:1]

    def _order(self) -> "tuple[NDArray[np.int64], Floats] | None":
        """Returns for a few texts which of all vectors are theirs, and the cosines, if the order is another one."""
        few = self.few
        return find_order(self.ours[few], self.places[few], self.theirs, self.foreign.vectors, self.allowed)

    @property
    def scale(self) -> str:
        """The expected scale of the vectors: `unit`, `raw`, or `shortened` if they were once of length 1, but wider."""
        embedder, normalize = self.model.embedder, self.foreign.options.get("normalize")
        if self.foreign.unit or embedder.variant(normalize=normalize).unit:
            return "unit"
        cuts = normalize is not False and embedder.config.dimensions is not None and bool(embedder.layers)
        whole = self.runner.width(self.own.pooled)
        return "shortened" if cuts and embedder.variant(dimensions=whole).unit else "raw"

    @staticmethod
    def _lengths(vectors: "Floats", width: int) -> "dict[str, Floats]":
        """Returns the lengths of vectors that are shortened to `width` values, for each scale."""
        raw = np.linalg.norm(vectors[:, :width], axis=1)
        return {"unit": np.ones_like(raw), "shortened": raw / np.linalg.norm(vectors, axis=1), "raw": raw}

    def _number_causes(self, vectors: "Floats") -> Iterator[VectorCause]:
        """Yields the causes that only the numbers show, not the directions: their format, width and length."""
        count, theirs, width = len(self.texts), self.theirs, self.theirs.width
        if theirs.kind in ("int8", "binary") and self.foreign.options.get("output_dtype") != theirs.kind:
            ranges = ", each dimension with a range of its own" if theirs.ranged else ""
            yield VectorCause("quantization", f"vectors are quantized to {theirs.kind}{ranges}", count)
        if width < self.expected:
            yield VectorCause("dimensions", f"vectors have the first {width:,} of {self.expected:,} values", count)
        elif width > self.expected:
            yield VectorCause("dimensions", f"vectors have all {width:,} values, not {self.expected:,}", count)
        ways = self._lengths(vectors, width)
        fitting = {way for way, lengths in ways.items() if np.allclose(theirs.lengths, lengths, rtol=_LENGTHS)}
        own = self.scale
        shortened = width < vectors.shape[1] and fitting & {"unit", "shortened"} and own != "raw"
        if theirs.kind in ("int8", "binary") or own in fitting or shortened:
            return
        times = np.median(theirs.lengths / ways[own])
        text = f"vectors are {times:.4g} times as long as the model's"
        if own == "raw" and "unit" in fitting:
            text = "vectors are normalized to length 1, and the model's are not"
        elif own != "raw" and ("raw" in fitting or not np.allclose(theirs.lengths, ways[own] * times, rtol=_LENGTHS)):
            low, high = theirs.lengths.min(), theirs.lengths.max()
            text = f"vectors are not normalized: their lengths are {low:.4g} to {high:.4g}"
        yield VectorCause("normalization", text, count)

    def _worst(self, differing: Sequence[int]) -> Iterator[DifferingText]:
        cosines = self.search.own_cosines
        for number in sorted(differing, key=lambda number: cosines[number])[:_WORST]:
            place, tokens = int(self.places[number]), self.search.lengths[number]
            yield DifferingText(place, self.texts[number], tokens, float(cosines[number]))

    def _notes(self, differing: int, explained: Cosines | None, recipes: Sequence[Recipe]) -> Iterator[str]:
        search = self.search
        if len(self.texts) < len(self.foreign.texts):
            yield f"{len(self.texts):,} of {len(self.foreign.texts):,} texts are compared"
        if self.theirs.kind in ("float16", "bfloat16"):
            yield f"the vectors are stored in {self.theirs.kind}"
        if differing and explained is None and (search.own_cosines > 1 - _LOOSE).all():
            yield "cosines are all above 0.995, as if the weights or the arithmetic had a lower precision"
        unexplained = len(search.differing(search.cosines(recipes[0]))) if recipes else 0
        if unexplained:
            yield f"{unexplained:,} of {differing:,} differing texts have another cause, which was not found"
        elif explained is not None and not explained.lowest >= 1 - self.allowed:
            low = explained.lowest
            yield f"the rest may come from lower precision of weights or arithmetic: cosines down to {low:.4f}"
        yield from unseen(search, recipes)


def _order_text(order: "NDArray[np.int64]", places: "NDArray[np.int64]") -> str:
    shifts = {*(order - places).tolist()}
    if len(shifts) == 1:
        by = shifts.pop()
        return f"vectors are in the rows of other texts: {abs(by)} {'later' if by > 0 else 'earlier'}"
    if len({*(order + places).tolist()}) == 1:
        return "vectors are in the reverse order of the texts"
    moved = order != places
    number = int(moved.argmax())
    return (
        f"vectors are in another order than the texts: {int(moved.sum()):,} of {len(moved):,} are in other rows, "
        f"for example, the vector of text {places[number]} is in row {order[number]}"
    )


def _summary(cosines: "Floats") -> Cosines:
    counts, left = list[CosineRange](), np.maximum(cosines, -1)  # rounded, a cosine may be below -1
    for least in _RANGES:
        counts.append(CosineRange(least, int((left >= least).sum())))
        left = left[left < least]
    lowest, median, mean = (round(float(value), 6) for value in (cosines.min(), np.median(cosines), cosines.mean()))
    return Cosines(lowest, median, mean, tuple(counts))
