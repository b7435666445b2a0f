"""Searches for the change of the computation that leads to the vectors of another program.

The search tries short texts first. No limit of tokens affects these, so that all other changes, and combinations of
them, take little time; every pooling and every layer of an input comes from the same hidden states. The longer texts
that still differ then have a limit, which is found by zooming in: the cosine rises towards the right limit. Each guess
is tried on one or two texts before more are computed. Vectors in another order are recognized before, because each is
then the vector of another text.

Legend: N texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from mlxbert.export.against.recipes import LAST, POOLER, Pooled, Reading, RecipeRunner
from mlxbert.export.against.stored_numbers import StoredNumbers
from mlxbert.export.vector_verification import VectorCause
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.nn.unit_vectors import unit_length

Floats: TypeAlias = "NDArray[np.float32]"


OnStep = Callable[[str], None]
# Limits that programs and models have by default, with and without the special tokens.
LIMITS = (32, 64, 100, 126, 128, 130, 192, 200, 254, 256, 258, 300, 350, 384, 500, 510, 512, 1024, 2048, 4096, 8192)
# Prompts of E5, Nomic and BGE, which programs put before texts, though the files of few models state them.
_COMMON_PROMPTS = (
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
    "classification: ",
    "clustering: ",
    "Represent this sentence for searching relevant passages: ",
)
_PADDED = (64, 128, 256, 384, 512, -8, -16, -32, -64, -128, -(10**9))
_POOLINGS = ("mean", "cls", "max", "last_token", "weighted_mean")
_LEAST = 4  # tokens of a limit
_SHORT = 48  # tokens of a text that hardly any program truncates
_DIFFERING, _EQUAL = 6, 3  # short texts that are tried
_FIRST, _FEW = 2, 8  # texts that are tried before others
_BEST = 2  # limits that are tried on all texts, and twice as many recipes for short texts
CLOSED = 0.1  # the share of the differences that an explanation may leave
_ROWS = 2**16  # vectors that are compared at once
_UNEXPLAINED = 3  # of the differing texts, this share may have another cause, such as a tokenizer: one in three
_ZOOM = 24  # limits that are tried at once
_Range = tuple[int, int, list[int]]  # the lowest limit, the highest, and the texts to try


@dataclass(frozen=True)
class Recipe:
    """A way to compute vectors, and how near it comes to the vectors of the other program."""

    reading: Reading  # how inputs are made from texts
    pooled: Pooled  # what becomes of the hidden states
    changes: int = 0  # the number of differences from the model's own way
    mean: float = 1.0  # the mean of the cosines


class CauseSearch:
    """Compares recipes with the vectors of another program.

    Args:
        allowed: The largest value of 1 - cosine of equal vectors.
    """

    def __init__(
        self, runner: RecipeRunner, theirs: StoredNumbers, own: Recipe, allowed: float, on_step: OnStep
    ) -> None:
        self.runner, self.theirs, self.own, self.allowed = runner, theirs, own, allowed
        self._step = on_step
        self.slack = 0  # differing texts that need not be explained
        self.numbers = range(len(runner.texts))
        self.lengths = [runner.length(number, own.reading) for number in self.numbers]
        self.own_cosines = self.cosines(own)
        prompts = runner.model.embedder.config.prompts
        self._prompts = dict.fromkeys([own.reading.prompt, (None, ""), *prompts.items()])

    def cosines(self, recipe: Recipe, numbers: Sequence[int] | None = None) -> "Floats":
        """Returns the cosines of texts, by default of all, after the model computes by a recipe."""
        (cosines,) = self._cosines(recipe.reading, [recipe.pooled], self.numbers if numbers is None else numbers)
        return cosines

    def _cosines(self, reading: Reading, pooled: Sequence[Pooled], numbers: Sequence[int]) -> "list[Floats]":
        rows = self.theirs.rows[[*numbers]]
        return [self.theirs.cosines(vectors, rows) for vectors in self.runner.vectors(reading, pooled, numbers)]

    def differing(self, cosines: "Floats") -> list[int]:
        return [number for number in self.numbers if not cosines[number] >= 1 - self.allowed]

    def find_for_most(self) -> list[Recipe]:
        """Returns recipes that explain at least two thirds of the differing texts, and change no equal one."""
        self.slack = len(self.differing(self.own_cosines)) // _UNEXPLAINED
        try:
            return self.find() if self.slack else []
        finally:
            self.slack = 0

    def find(self) -> list[Recipe]:
        """Returns the recipes that explain all vectors, with as few changes as possible; empty if there is none."""
        left = self.differing(self.own_cosines)
        explained: list[Recipe] = []
        if min(self.lengths[number] for number in left) > _SHORT:  # a limit alone is the usual cause
            explained = self._limits(self.own, left, [self.own.pooled], self._ranges(left, self.lengths))
        if not explained:
            for recipe in self._for_short_texts()[: _BEST * 2]:
                explained += self._with_limit(recipe)
        explained = explained or self._limits_of_any(left)
        gap = 1 - self.own_cosines.mean()
        explained = [recipe for recipe in explained if self.slack or 1 - recipe.mean <= gap * CLOSED]
        explained.sort(key=lambda recipe: (recipe.changes, -recipe.mean))
        # Without those that are clearly worse than the best, and those with the same inputs as another one.
        near = [
            recipe
            for recipe in explained
            if recipe.changes == explained[0].changes and recipe.mean > explained[0].mean - self.allowed / 100
        ]
        inputs = {(self.runner.inputs(recipe.reading), recipe.pooled): recipe for recipe in reversed(near)}
        return [*reversed(inputs.values())]

    def _short_texts(self) -> list[int]:
        """Returns short texts with different vectors, and then a few with equal ones, which must stay equal."""
        order = sorted(self.numbers, key=lambda number: self.lengths[number])
        differing = {*self.differing(self.own_cosines)}
        first = [number for number in order if number in differing]
        usual = [number for number in first if 8 <= self.lengths[number] <= _SHORT] or first[:_DIFFERING]
        equal = [number for number in order if number not in differing and self.lengths[number] >= 4]
        return [*_spread(usual, _DIFFERING), *_spread(equal, _EQUAL)]

    def _short_readings(self) -> Iterator[Reading]:
        """Yields the ways to read a text that do not depend on its length, the model's own first."""
        own = self.own.reading
        for prompt, case, special in product(self._prompts, self.runner.cases, (True, False)):
            yield replace(own, prompt=prompt, case=case, special=special)
        for text in _COMMON_PROMPTS:
            if text not in {stated for _, stated in self._prompts}:
                yield replace(own, prompt=(None, text))
        for padded in dict.fromkeys((self.runner.limit, *_PADDED)):
            yield replace(own, padded=padded)

    def _all_poolings(self) -> list[Pooled]:
        own, runner = self.own.pooled, self.runner
        later = [True, *([False] if runner.has_later_layers else [])]
        names = dict.fromkeys([own.pooling, *_POOLINGS])
        poolings = [Pooled(name, later=follows) for name in names for follows in later]
        poolings += [Pooled(POOLER)] if "pooler" in runner.model.network.encoder else []
        if not runner.model.config.is_static:
            layers = range(len(runner.model.config.layer_schedule))
            poolings += [
                Pooled(name, layer) for layer in layers for name in dict.fromkeys((own.pooling, "cls", "mean"))
            ]
        return [each for each in poolings if self._fits(each)]

    def _fits(self, pooled: Pooled) -> bool:
        """Whether a pooling gives vectors of at least the width of the other ones."""
        parts, expected = len(pooled.pooling.split("+")), len(self.runner.model.embedder.config.poolings)
        if pooled.later and self.runner.has_later_layers and parts != expected:
            return False
        return self.theirs.width <= self.runner.width(pooled)

    def _for_short_texts(self) -> list[Recipe]:
        """Returns the recipes that explain the vectors of short texts, those with the fewest changes first."""
        numbers, poolings, recipes = self._short_texts(), self._all_poolings(), list[Recipe]()
        missed = min(self.slack, len(numbers) // 4)  # texts that a recipe need not explain
        for reading in self._short_readings():
            self._step("short texts")
            # Without special tokens, the first token is one of the text.
            tried = [each for each in poolings if reading.special or each.pooling != POOLER]
            if reading.padded:
                last = [each for each in poolings if each.layer == LAST and each.pooling != POOLER]
                tried = [*last, *(replace(each, padding=True) for each in last)]
            for some in (numbers[: _FIRST + missed], numbers):
                each_cosines = self._cosines(reading, tried, some) if tried else []
                fitting = [(cosines < 1 - self.allowed).sum() <= missed for cosines in each_cosines]
                tried = [pooled for pooled, fits in zip(tried, fitting, strict=True) if fits]
            means = [float(cosines.mean()) for cosines, fits in zip(each_cosines, fitting, strict=True) if fits]
            for pooled, mean in zip(tried, means, strict=True):
                recipes.append(Recipe(reading, pooled, self._changes(reading, pooled), mean))
        return sorted(recipes, key=lambda recipe: (recipe.changes, -recipe.mean))

    def _changes(self, reading: Reading, pooled: Pooled) -> int:
        own = {**vars(self.own.reading), **vars(self.own.pooled)}
        tried = {**vars(reading), **vars(pooled)}
        cut = reading.part in ("end", "windows") and reading.limit is not None  # one change
        return sum(value != own[name] for name, value in tried.items()) - cut - pooled.padding

    def _with_limit(self, recipe: Recipe) -> list[Recipe]:
        """Returns the recipe with a limit of tokens that explains all vectors; the recipe itself if it needs none."""
        cosines = self.cosines(recipe)
        if self._explains(cosines):
            return [replace(recipe, mean=float(cosines.mean()))]
        left = self.differing(cosines)
        lengths = [self.runner.length(number, recipe.reading) for number in self.numbers]
        if self.slack:  # texts that are left without an explanation may be short
            left = [number for number in left if lengths[number] > _SHORT] or left
        return self._limits(recipe, left, [recipe.pooled], self._ranges(left, lengths))

    def _explains(self, cosines: "Floats") -> bool:
        left = self.differing(cosines)
        return len(left) <= self.slack and {*left} <= {*self.differing(self.own_cosines)}

    def _ranges(self, left: Sequence[int], lengths: Sequence[int]) -> list[_Range]:
        """Returns the ranges of possible limits for the texts in `left`; the other texts are explained already.

        A limit of the other program is at least as high as the longest text that it does not affect, and lower than
        the shortest text that it affects; or it is higher than the model's own limit.
        """
        limit, differing = self.runner.limit, {*left}
        shortest, longest = _ends(left, lengths)
        low = min(max((lengths[number] for number in self.numbers if number not in differing), default=0), limit)
        ends = [*dict.fromkeys([shortest, longest])]  # a vector of few bits may fit several limits of one text
        ranges = [(max(low, _LEAST), lengths[shortest] - 1, ends)]
        if lengths[shortest] > limit:
            ranges.append((limit + 1, min(self.runner.most, lengths[longest]), ends))
        return ranges

    def _limits_of_any(self, left: Sequence[int]) -> list[Recipe]:
        """Returns recipes with a limit if even the shortest texts may be truncated: any prompt, with any pooling."""
        poolings = [each for each in self._all_poolings() if each.layer == LAST]
        shortest, longest = _ends(left, self.lengths)
        for prompt in self._prompts:
            reading = replace(self.own.reading, prompt=prompt)
            low = _LEAST + len(self.runner.tokenizer.split(prompt[1]))
            whole = min(self.runner.length(shortest, reading), self.runner.most)
            high = min(self.runner.length(longest, reading), self.runner.most)
            ends = [*dict.fromkeys([shortest, longest])]
            ranges = [(low, whole - 1, ends), (max(low, whole), high, ends)]
            if recipes := self._limits(Recipe(reading, self.own.pooled), left, poolings, ranges):
                return recipes
        return []

    def _limits(
        self, recipe: Recipe, left: Sequence[int], poolings: Sequence[Pooled], ranges: Sequence[_Range]
    ) -> list[Recipe]:
        """Returns recipes with a limit or with another part of long texts that explain all vectors."""
        recipes: list[Recipe] = []
        for part in ("start", "end", "windows", "unclosed"):
            if recipes or (part == "unclosed" and not recipe.reading.special):
                break
            reading = replace(recipe.reading, part=part)
            for limit, pooled in (fitting for each in ranges for fitting in self._zoom(reading, *each, poolings)):
                whole = replace(reading, limit=None if limit == self.runner.limit and part != "start" else limit)
                tried = Recipe(whole, pooled, self._changes(whole, pooled))
                if (self.cosines(tried, _spread(left, _FEW)) >= 1 - self.allowed).all():
                    cosines = self.cosines(tried)
                    recipes += [replace(tried, mean=float(cosines.mean()))] if self._explains(cosines) else []
        return recipes

    def _zoom(
        self, reading: Reading, least: int, most: int, numbers: list[int], poolings: Sequence[Pooled]
    ) -> list[tuple[int, Pooled]]:
        """Returns the limits that fit a few texts best, with their poolings; empty if none fits."""
        if least <= most and self.runner.length(numbers[0], reading) <= least:  # the same with any of these limits
            each_cosines = self._cosines(replace(reading, limit=most), poolings, numbers[:1])
            fitting = zip(poolings, each_cosines, strict=True)
            poolings = [pooled for pooled, cosines in fitting if cosines[0] >= 1 - self.allowed]
        if least > most or not poolings:
            return []
        places = {limit for limit in (*LIMITS, self.runner.limit) if least <= limit <= most} | {most}
        low, high, scores = least, most, dict[tuple[int, Pooled], float]()
        while True:
            step = max((high - low) // _ZOOM, 1)
            places |= {*range(low, high + 1, step)}
            limits = sorted(places - {limit for limit, _ in scores})
            self._step(f"limits from {low} to {high} tokens")
            readings = [replace(reading, limit=limit) for limit in limits]
            by_limit = self.runner.vectors_of(readings, poolings, numbers) if limits else []
            for limit, each_vectors in zip(limits, by_limit, strict=True):
                for pooled, vectors in zip(poolings, each_vectors, strict=True):
                    scores[limit, pooled] = float(self.theirs.cosines(vectors, self.theirs.rows[numbers]).min())
            best, _ = max(scores, key=lambda key: scores[key])
            if step == 1:
                break
            low, high, places = max(best - step, least), min(best + step, most), set()
        top = max(scores.values())
        good = [key for key, score in scores.items() if score >= max(1 - self.allowed, top - self.allowed / 100)]
        return sorted(good, key=lambda key: -scores[key])[:_BEST]


def _ends(numbers: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """Returns the texts with the fewest and with the most tokens."""
    return min(numbers, key=lengths.__getitem__), max(numbers, key=lengths.__getitem__)


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """Returns `count` of the numbers at equal distances."""
    if len(numbers) <= count:
        return [*numbers]
    return [numbers[place * (len(numbers) - 1) // (count - 1)] for place in range(count)]


def find_order(
    vectors: "Floats", numbers: "NDArray[np.int64]", theirs: StoredNumbers, everything: "NDArray[Any]", allowed: float
) -> "tuple[NDArray[np.int64], Floats] | None":
    """Returns for each text the index of its vector among the other ones, and the cosine, if the order is another one.

    Args:
        everything: The other vectors of all texts as they are stored. They are read in blocks.
    """
    ours = unit_length(vectors[:, : theirs.width])
    nearest, highest = np.zeros(len(ours), np.int64), np.full(len(ours), -np.inf, np.float32)
    for start in range(0, len(everything), _ROWS):
        products = ours @ unit_length(theirs.convert(everything[start : start + _ROWS])).T
        best = products.argmax(axis=1)
        better = products.max(axis=1) > highest
        nearest[better], highest[better] = best[better] + start, products.max(axis=1)[better]
    before, after = (theirs.cosines(vectors, theirs.convert(everything[rows])) for rows in (numbers, nearest))
    is_found = (after >= 1 - allowed).all() and 1 - after.mean() <= (1 - before.mean()) * CLOSED
    return (nearest, after) if is_found and (nearest != numbers).any() else None


_CASES = {"as_is": "as they are", "lower": "lowercased", "kept": "not lowercased"}


def describe(recipe: Recipe, search: CauseSearch) -> Iterator[VectorCause]:
    """Yields the changes between the model's own recipe and another one."""
    differing = len(search.differing(search.own_cosines))
    yield from _reading(recipe.reading, search, differing)
    yield from _pooling(recipe.pooled, search.own.pooled, differing)


def _reading(reading: Reading, search: CauseSearch, differing: int) -> Iterator[VectorCause]:
    own, total = search.own.reading, len(search.numbers)
    lengths = [search.runner.length(number, reading) for number in search.numbers]
    limit = reading.limit or search.runner.limit
    longer = sum(length > min(limit, search.runner.limit) for length in lengths)
    count = f"{longer:,} of {total:,} texts"
    if (reading.part, reading.limit) != (own.part, own.limit):
        if reading.part == "end":
            yield VectorCause("last_part", f"only the last {limit:,} tokens of longer texts are used: {count}", longer)
        elif reading.part == "windows":
            text = f"longer texts are split every {limit:,} tokens and the vectors averaged: {count}"
            yield VectorCause("windows", text, longer)
        elif limit >= max(lengths):
            text = f"texts are not truncated, but the model truncates them at {search.runner.limit:,} tokens: {count}"
            yield VectorCause("limit", text, longer)
        else:
            place = f", not at {search.runner.limit:,}" if limit > search.runner.limit else ""
            end = ", and the special token at the end is dropped" * (reading.part == "unclosed")
            yield VectorCause("limit", f"texts are truncated at {limit:,} tokens{place}{end}: {count}", longer)
    if reading.prompt != own.prompt:
        yield VectorCause("prompt", _prompts(reading.prompt, own.prompt), total)
    if reading.case != own.case:
        count = f"{differing:,} of {total:,} texts"
        yield VectorCause("case", f"texts are {_CASES[reading.case]} before the tokenizer: {count}", differing)
    if reading.special != own.special:
        yield VectorCause("special_tokens", "special tokens such as [CLS] and [SEP] are missing", total)
    if reading.padded != own.padded:
        yield VectorCause("padding", _padding(reading.padded, limit), differing)


def _prompts(prompt: tuple[str | None, str], own: tuple[str | None, str]) -> str:
    def named(each: tuple[str | None, str]) -> str:
        name, text = each
        return f"the prompt {name or text!r}" if text else "no prompt"

    return f"texts have {named(prompt)}, expected {named(own)}"


def _padding(padded: int, limit: int) -> str:
    if padded > 0:
        where = f"to {min(padded, limit):,} tokens"
    else:
        where = "to the longest text of each batch" + f" of {-padded:,}" * (-padded < 10**9)
    return f"the model attends to padding: inputs are padded {where}"


def _pooling(pooled: Pooled, own: Pooled, differing: int) -> Iterator[VectorCause]:
    if pooled.pooling != own.pooling:
        name = "the pooler (pooler_output)" if pooled.pooling == POOLER else f"pooling {pooled.pooling!r}"
        yield VectorCause("pooling", f"vectors come from {name}, expected pooling {own.pooling!r}", differing)
    elif pooled.padding != own.padding:
        yield VectorCause("pooling", "padding is pooled, too", differing)
    if pooled.layer != own.layer:
        name = f"layer {pooled.layer}" if pooled.layer else "the embeddings before the first layer"
        yield VectorCause("layer", f"vectors come from {name}, expected the last layer", differing)
    if pooled.later != own.later:
        yield VectorCause("later_layers", "the layers after the pooling are missing", differing)


def unseen(search: CauseSearch, recipes: Sequence[Recipe]) -> Iterator[str]:
    """Yields what the texts cannot show, as no vector would be different."""
    runner, reading = search.runner, recipes[0].reading if recipes else search.own.reading
    longest, most = max(search.lengths), reading.limit or runner.limit
    if longest <= most:
        yield f"the longest text has {longest:,} tokens: a limit of {longest:,} tokens or more would not show"
    if len(search.numbers) == 1:
        yield "a single text shows neither the order of vectors nor effects of padding"
    elif longest == min(search.lengths):
        yield "all texts have the same number of tokens: attended padding would not show"
    if reading.case == "as_is":
        other = replace(reading, case=runner.cases[-1])  # without the lowercasing of the tokenizer, if it lowercases
        if all(runner.pieces(text, other).ids == runner.pieces(text, reading).ids for text in search.numbers):
            yield "no text has capital letters: lowercasing would not show"
