"""`mlxbert.verify_vectors`: checks vectors that another program computed, and finds out why they differ.

Legend: N texts, W size of a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.against.cause_texts import describe, unseen
from mlxbert.against.causes import CLOSED, CauseSearch, OnStep, Recipe, find_order
from mlxbert.against.check_options import VectorCheckOptions
from mlxbert.against.embedding_server import EmbeddingServer, is_url
from mlxbert.against.probe_texts import probe_texts
from mlxbert.against.recipes import Pooled, Reading, RecipeRunner
from mlxbert.against.stored_numbers import read_numbers
from mlxbert.against.vector_sources import ForeignVectors, check_vectors, read_source
from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.option_declarations import TOLERANCE
from mlxbert.results.vector_verification import (
    CosineRange,
    Cosines,
    DifferingText,
    VectorCause,
    VectorSizes,
    VectorVerification,
)
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.prompted_task import choose_prompt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

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
            variable `MLXBERT_API_KEY`; a file of vectors (`.npy`, `.safetensors`), of records with texts and vectors
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
    TOLERANCE.check_number("tolerance", tolerance)
    width = model.embedder.size  # raises an error for a model without dense vectors
    listed = None if texts is None else _listed(texts)
    choose_prompt(model.source, model.embedder.config, None, options.prompt_name)
    if not isinstance(against, str | Path):
        found = check_vectors(ForeignVectors("vectors", listed or (), against))
    elif is_url(str(against)):
        found = _from_server(str(against), listed, options, model.source, on_step)
    else:
        found = read_source(Path(against), listed, options.text_column, options.vector_column, width)
    own = _own_recipe(model, found, options.prompt_name)
    return _Comparison(model, found, own, options.max_texts, tolerance, on_step).result()


def _listed(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise ArgumentError("texts is a single text, expected a sequence of texts", hint="texts=[text]")
    listed = list(texts)
    wrong = next((text for text in listed if not isinstance(text, str)), None)
    if wrong is not None or not listed:
        raise ArgumentError(f"texts has {wrong!r:.60}, expected texts" if listed else "texts is empty")
    return listed


def _from_server(
    url: str, texts: Sequence[str] | None, options: VectorCheckOptions, source: str, on_step: OnStep
) -> ForeignVectors:
    """Returns the vectors of a server, without the texts that it refuses."""
    import numpy as np

    server = EmbeddingServer(url, options.server_model, source)
    asked = _spaced(probe_texts() if texts is None else texts, options.max_texts)
    vectors = server.vectors(asked, lambda done, total: on_step(f"{done} of {total} texts from the server"))
    kept = [number for number in range(len(asked)) if number not in server.refused]
    notes: tuple[str, ...] = ()
    if server.refused:
        reason = next(iter(server.refused.values()))
        notes = (f"the server refuses {len(server.refused):,} texts, which are not compared ({reason})",)
    return ForeignVectors(server.url, [asked[number] for number in kept], vectors[np.array(kept)], notes=notes)


def _spaced(items: Sequence[Any], most: int) -> list[Any]:
    return [items[number] for number in _places(len(items), most)]


def _places(count: int, most: int) -> list[int]:
    """Returns at most `most` evenly spaced numbers below `count`."""
    return [*range(count)] if count <= most else [place * count // most for place in range(most)]


def _own_recipe(model: Model, found: ForeignVectors, prompt_name: str | None) -> Recipe:
    """Returns how the vectors should have been computed: by the model's settings and by those that the file states."""
    settings, options = model.embedder.config, found.options
    name = prompt_name or options.get("prompt_name")
    prompt, kind = (None, None) if prompt_name else (options.get("prompt"), options.get("kind"))
    text = choose_prompt(model.source, settings, prompt, name, kind)
    known = next((key for key, value in settings.prompts.items() if value == text and text), None)
    pooling = options.get("pooling") or "+".join(settings.poolings)
    part = "windows" if options.get("overflow") == "window" else "start"
    return Recipe(Reading(prompt=(known, text), part=part), Pooled(pooling))


@dataclass
class _Comparison:
    """Compares vectors with those of a recipe."""

    model: Model
    found: ForeignVectors
    own: Recipe
    max_texts: int
    tolerance: float
    on_step: OnStep

    def __post_init__(self) -> None:
        import numpy as np

        places = _places(len(self.found.texts), self.max_texts)
        self.texts = [self.found.texts[place] for place in places]
        self.places = np.array(places)
        self.runner = RecipeRunner(self.model, self.texts)
        self.expected = self.found.options.get("dimensions") or self.model.embedder.size
        full = self.runner.width(self.own.pooled)
        rows = np.asarray(self.found.vectors[self.places])
        self.theirs = read_numbers(rows, full)
        widest = max(full, self.model.config.hidden_size)
        if self.theirs.width > widest or self.theirs.width < 2:
            raise InputError(
                f"{self.found.name}: the vectors have {self.theirs.width:,} values, but those of {self.model.source} "
                f"have {full:,}",
                hint="another model computed them; give that model",
            )
        self.comparable = self.theirs.width <= full

    def result(self) -> VectorVerification:
        """Returns the result."""
        if self.comparable:
            (ours,) = self.runner.vectors(self.own.reading, [self.own.pooled], range(len(self.texts)))
            self.theirs = self.theirs.with_ranges(ours)
        allowed = self.theirs.allowed(self.tolerance)
        search = CauseSearch(self.runner, self.theirs, self.own, allowed, self.on_step)
        cosines, recipes, order = search.own_cosines, [], None
        differing = search.differing(cosines)
        if differing and self.comparable:
            order = self._order(ours, allowed)
        if differing and order is None:
            recipes = self._recipes(search)
        explained = recipes[0] if recipes else self.own
        causes = [*describe(explained, search)] if recipes else []
        causes += [VectorCause("order", _order_text(order, self.places), len(differing))] if order is not None else []
        is_known = not differing or bool(causes)
        causes += self._number_causes(explained, known=is_known)
        after = None
        if causes and is_known:
            known = cosines if order is None else self._ordered(ours, order)
            after = _summary(search.cosines(explained) if recipes else known)
        notes = [*self.found.notes, *self._notes(search, differing, after, recipes)]
        return VectorVerification(
            not differing and not causes,
            *(self.model.source, self.found.name, len(self.texts), len(differing), _summary(cosines)),
            "; ".join(cause.text for cause in causes) if causes and is_known else None,
            tuple(causes) if is_known else (),
            after,
            tuple("; ".join(each.text for each in describe(other, search)) for other in recipes[1:]),
            tuple(self._worst(search, cosines, differing)),
            self._our_facts(ours if self.comparable else None),
            self.theirs.facts(),
            tuple(notes),
            len(self.runner.tried),
        )

    def _recipes(self, search: CauseSearch) -> list[Recipe]:
        """Returns the recipes that explain the vectors: all or most, or else as far as lower precision allows."""
        if found := search.find() or search.find_for_most():
            return found
        left = 1 - search.own_cosines.mean()
        search.allowed = max(search.allowed, _LOOSE)
        return [] if left < _LOOSE * CLOSED else search.find()[:1]

    def _order(self, ours: "Floats", allowed: float) -> "NDArray[np.int64] | None":
        """Returns for a few texts which of all vectors are theirs, if the vectors are in another order."""
        import numpy as np

        everything = self.theirs
        if len(self.places) < len(self.found.vectors):
            everything = read_numbers(np.asarray(self.found.vectors), self.runner.width(self.own.pooled))
        few = np.array(_places(len(self.texts), _ORDERED))
        if everything.ranged or self.theirs.ranged:
            everything = self.theirs
        return find_order(ours[few], self.places[few].tolist(), everything, allowed)

    def _ordered(self, ours: "Floats", order: "NDArray[np.int64]") -> "Floats":
        """Returns the cosines of a few texts with the vectors that are theirs."""
        import numpy as np

        few = np.array(_places(len(self.texts), _ORDERED))
        rows = read_numbers(np.asarray(self.found.vectors[order]), self.runner.width(self.own.pooled))
        return rows.cosines(ours[few], range(len(few)))

    def _our_facts(self, ours: "Floats | None") -> VectorSizes:
        lengths = self._lengths(self.own, self.expected)
        return VectorSizes(self.expected, self.model.dtype, float(lengths.min()), float(lengths.max()))

    @property
    def _is_unit(self) -> bool:
        normalize = self.found.options.get("normalize")
        variant = self.model.embedder.variant(normalize=normalize)
        return self.found.unit or variant.unit

    def _lengths(self, recipe: Recipe, width: int) -> "Floats":
        """Returns the lengths of the model's vectors."""
        import numpy as np

        (rows,) = self.runner.vectors(recipe.reading, [recipe.pooled], range(len(self.texts)))
        short = np.linalg.norm(rows[:, :width], axis=1)
        if self._is_unit:
            return np.ones_like(short)
        return short / np.linalg.norm(rows, axis=1) if self._cuts_units else short

    @property
    def _cuts_units(self) -> bool:
        """Whether vectors are normalized first and shortened afterwards."""
        embedder = self.model.embedder
        if self.found.options.get("normalize") is False:
            return False
        return (
            replace(embedder.config, dimensions=None) != embedder.config
            and bool(embedder.layers)
            and (embedder.variant(dimensions=self.runner.width(self.own.pooled)).unit)
        )

    def _number_causes(self, explained: Recipe, *, known: bool) -> Iterator[VectorCause]:
        """Yields the causes that only the numbers show, not the directions: their format, width and length."""
        import numpy as np

        count, theirs = len(self.texts), self.theirs
        stated = self.found.options.get("output_dtype", "float32")
        if theirs.kind in ("int8", "binary") and stated != theirs.kind:
            ranges = ", each dimension with a range of its own" if theirs.ranged else ""
            yield VectorCause("quantization", f"vectors are quantized to {theirs.kind}{ranges}", count)
        if theirs.width != self.expected:
            what = f"the first {theirs.width:,}" if theirs.width < self.expected else f"all {theirs.width:,}"
            rest = f"of {self.expected:,} values" if theirs.width < self.expected else f"values, not {self.expected:,}"
            yield VectorCause("dimensions", f"vectors have {what} {rest}", count)
        if theirs.kind in ("int8", "binary") or not known:
            return
        (rows,) = self.runner.vectors(explained.reading, [explained.pooled], range(count))
        raw = np.linalg.norm(rows[:, : theirs.width], axis=1)
        ways = {"unit": np.ones_like(raw), "shortened": raw / np.linalg.norm(rows, axis=1), "raw": raw}
        fitting = [way for way, lengths in ways.items() if np.allclose(theirs.lengths, lengths, rtol=_LENGTHS)]
        own = "unit" if self._is_unit else "shortened" if self._cuts_units else "raw"
        shortened = theirs.width < rows.shape[1] and {*fitting} & {"unit", "shortened"} and own != "raw"
        if own in fitting or shortened:
            return
        low, high = theirs.lengths.min(), theirs.lengths.max()
        if own == "raw":
            text = "vectors are normalized to length 1, and the model's are not" if "unit" in fitting else ""
        else:
            text = f"vectors are not normalized: their lengths are {low:.4g} to {high:.4g}"
        scale = np.median(theirs.lengths / ways[own])
        text = text or f"vectors are {scale:.4g} times as long as the model's"
        if own == "raw" or "raw" in fitting or not np.allclose(theirs.lengths, ways[own] * scale, rtol=_LENGTHS):
            yield VectorCause("normalization", text, count)
        else:
            yield VectorCause("normalization", f"vectors are {scale:.4g} times as long as the model's", count)

    def _worst(self, search: CauseSearch, cosines: "Floats", differing: Sequence[int]) -> Iterator[DifferingText]:
        for number in sorted(differing, key=lambda number: cosines[number])[:_WORST]:
            place = int(self.places[number])
            yield DifferingText(place, self.texts[number], search.lengths[number], float(cosines[number]))

    def _notes(
        self, search: CauseSearch, differing: Sequence[int], after: Cosines | None, recipes: Sequence[Recipe]
    ) -> Iterator[str]:
        if len(self.texts) < len(self.found.texts):
            yield f"{len(self.texts):,} of {len(self.found.texts):,} texts are compared"
        if self.theirs.kind in ("float16", "bfloat16"):
            yield f"the vectors are stored in {self.theirs.kind}"
        if differing and after is None and (search.own_cosines > 1 - _LOOSE).all():
            yield "cosines are all above 0.995, as if the weights or the arithmetic had a lower precision"
        unexplained = len(search.differing(search.cosines(recipes[0]))) if recipes else 0
        if unexplained:
            yield f"{unexplained:,} of {len(differing):,} differing texts have another cause, which was not found"
        elif after is not None and not after.lowest >= 1 - self.theirs.allowed(self.tolerance):
            yield f"the rest may come from lower precision of weights or arithmetic: cosines down to {after.lowest:.4f}"
        yield from unseen(search, recipes)


def _order_text(order: "NDArray[np.int64] | None", places: "NDArray[np.int64]") -> str:
    import numpy as np

    assert order is not None
    few = places[np.array(_places(len(places), _ORDERED))]
    shifts = {*(order - few).tolist()}
    if len(shifts) == 1:
        by = shifts.pop()
        return f"vectors are in the rows of other texts: {abs(by)} {'later' if by > 0 else 'earlier'}"
    if len({*(order + few).tolist()}) == 1:
        return "vectors are in the reverse order of the texts"
    number = int(np.argmax(order != few))
    return f"vectors are in another order than the texts: the vector of text {few[number]} is in row {order[number]}"


def _summary(cosines: "Floats") -> Cosines:
    import numpy as np

    counts, left = list[CosineRange](), np.asarray(cosines)
    for least in _RANGES:
        counts.append(CosineRange(least, int((left >= least).sum())))
        left = left[left < least]
    lowest, median, mean = (round(float(value), 6) for value in (cosines.min(), np.median(cosines), cosines.mean()))
    return Cosines(lowest, median, mean, tuple(counts))
