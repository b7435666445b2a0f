"""Searches for the change of the computation that leads to the vectors of another program.

The search tries short texts first. No limit of tokens affects these, so that all other changes, and combinations of
them, take little time; every pooling and every layer of an input comes from the same hidden states. The longer texts
that still differ then have a limit, which is found by zooming in: the cosine rises towards the right limit. Vectors in
another order are recognized before, because each is then the vector of another text.

Legend: N texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING

from mlxbert.against.recipes import LAST, POOLER, Pooled, Reading, RecipeRunner
from mlxbert.against.stored_numbers import StoredNumbers
from mlxbert.nn.embedder import SMALLEST_NORM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

OnStep = Callable[[str], None]
# Limits that programs and models have by default, with and without the special tokens.
LIMITS = (32, 64, 100, 126, 128, 130, 192, 200, 254, 256, 258, 300, 350, 384, 500, 510, 512, 1024, 2048, 4096, 8192)
_PADDED = (64, 128, 256, 384, 512, -8, -16, -32, -64, -128, -(10**9))
_POOLINGS = ("mean", "cls", "max", "last_token", "weighted_mean")
_LEAST = 4  # tokens of a limit
_SHORT = 48  # tokens of a text that hardly any program truncates
_DIFFERING, _EQUAL, _LONG = 6, 3, 2  # texts that are tried
CLOSED = 0.1  # the share of the differences that an explanation may leave
_ROWS = 2**16  # vectors that are compared at once
_FEW = 8  # texts that are tried before all
_UNEXPLAINED = 3  # of the differing texts, this share may have another cause, such as a tokenizer: one in three
_ZOOM = 24  # limits that are tried at once


@dataclass(frozen=True)
class Recipe:
    """A way to compute vectors, and how near it comes to the vectors of the other program.

    Attributes:
        reading: How inputs are made from texts.
        pooled: What becomes of the hidden states.
        changes: The number of differences from the model's own way.
        lowest: The lowest cosine.
        mean: The mean of the cosines.
    """

    reading: Reading
    pooled: Pooled
    changes: int = 0
    lowest: float = 1.0
    mean: float = 1.0


class CauseSearch:
    """Compares recipes with the vectors of another program.

    Args:
        runner: Computes vectors.
        theirs: The other vectors.
        own: The model's own recipe.
        allowed: The largest value of 1 - cosine of equal vectors.
        on_step: Called with a word for each step.
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

    def cosines(self, recipe: Recipe, numbers: Sequence[int] | None = None) -> "Floats":
        """Returns the cosines of texts, by default of all, after the model computes by a recipe."""
        numbers = self.numbers if numbers is None else numbers
        (vectors,) = self.runner.vectors(recipe.reading, [recipe.pooled], numbers)
        return self.theirs.cosines(vectors, [*numbers])

    def differing(self, cosines: "Floats") -> list[int]:
        """Returns the texts whose cosines are too low."""
        return [number for number in self.numbers if not cosines[number] >= 1 - self.allowed]

    def find_for_most(self) -> list[Recipe]:
        """Returns recipes that explain at least two thirds of the differing texts, and change no equal one."""
        self.slack = len(self.differing(self.own_cosines)) // _UNEXPLAINED
        try:
            return self.find() if self.slack else []
        finally:
            self.slack = 0

    def _explains(self, cosines: "Floats") -> bool:
        left = self.differing(cosines)
        return len(left) <= self.slack and {*left} <= {*self.differing(self.own_cosines)}

    def find(self) -> list[Recipe]:
        """Returns the recipes that explain all vectors, with as few changes as possible; empty if there is none."""
        left = self.differing(self.own_cosines)
        explained: list[Recipe] = []
        if min(self.lengths[number] for number in left) > _SHORT:  # a limit alone is the usual cause
            explained = self._limits(self.own, left, [self.own.pooled], self._ranges(left, self.lengths))
        found = [] if explained else self._explaining()
        for recipe in found[: _LONG * 2]:
            explained += self._with_limit(recipe)
        if not explained:
            explained = self._limits_of_any()
        gap = 1 - self.own_cosines.mean()
        explained = [recipe for recipe in explained if self.slack or 1 - recipe.mean <= gap * CLOSED]
        explained.sort(key=lambda recipe: (recipe.changes, -recipe.mean))
        fewest = [recipe for recipe in explained if recipe.changes == explained[0].changes]
        return self._distinct(fewest)

    def _distinct(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Leaves out recipes that are clearly worse than the best, and those with the same inputs as another one."""
        near = [recipe for recipe in recipes if recipe.mean > recipes[0].mean - self.allowed / 100]
        inputs = {(self.runner.inputs(recipe.reading), recipe.pooled): recipe for recipe in reversed(near)}
        return [*reversed(inputs.values())]

    def _short_texts(self) -> list[int]:
        """Returns short texts with different vectors, and a few with equal ones, which must stay equal."""
        order = sorted(self.numbers, key=lambda number: self.lengths[number])
        differing = {*self.differing(self.own_cosines)}
        first = [number for number in order if number in differing]
        usual = [number for number in first if 8 <= self.lengths[number] <= _SHORT] or first[:_DIFFERING]
        equal = [number for number in order if number not in differing and self.lengths[number] >= 4]
        return sorted({*_spread(usual, _DIFFERING), *_spread(equal, _EQUAL)})

    def _short_readings(self) -> Iterator[Reading]:
        """Yields the ways to read a text that do not depend on its length, the model's own first."""
        own, runner = self.own.reading, self.runner
        yield own
        prompts = dict.fromkeys([own.prompt, (None, ""), *runner.model.embedder.config.prompts.items()])
        cases = ["as_is", "lower", *(["kept"] if runner.has_kept_case() else [])]
        for prompt, case, special in product(prompts, cases, (True, False)):
            yield replace(own, prompt=prompt, case=case, special=special)
        for padded in (runner.limit, *_PADDED):
            yield replace(own, padded=padded)

    def _all_poolings(self) -> list[Pooled]:
        own, model = self.own.pooled, self.runner.model
        later = [True, *([False] if self.runner.has_later_layers else [])]
        names = dict.fromkeys([own.pooling, *_POOLINGS])
        found = [Pooled(name, later=follows) for name in names for follows in later]
        found += [Pooled(POOLER)] if "pooler" in model.network.encoder else []
        if not model.config.is_static:
            layers = range(len(model.config.layer_schedule))
            found += [Pooled(name, layer) for layer in layers for name in dict.fromkeys((own.pooling, "cls", "mean"))]
        return [each for each in found if self._fits(each)]

    def _fits(self, pooled: Pooled) -> bool:
        """Whether a pooling gives vectors of at least the width of the other ones."""
        embedder = self.runner.model.embedder
        parts = len(pooled.pooling.split("+"))
        if pooled.later and self.runner.has_later_layers and parts != len(embedder.config.poolings):
            return False
        return self.theirs.width <= self.runner.width(pooled)

    def _explaining(self) -> list[Recipe]:
        """Returns the recipes that explain the vectors of short texts, those with the fewest changes first."""
        numbers, poolings, found = self._short_texts(), self._all_poolings(), list[Recipe]()
        for reading in dict.fromkeys(self._short_readings()):
            self._step("short texts")
            tried = [*poolings, *(replace(each, padding=True) for each in poolings if reading.padded)]
            if reading.padded:
                tried = [each for each in tried if each.layer == LAST and each.pooling != POOLER]
            if not reading.special:  # the first token is then one of the text
                tried = [each for each in tried if each.pooling != POOLER]
            for pooled, vectors in zip(tried, self.runner.vectors(reading, tried, numbers), strict=True):
                cosines = self.theirs.cosines(vectors, [*numbers])
                if (cosines < 1 - self.allowed).sum() <= min(self.slack, len(numbers) // 4):
                    changes = self._changes(reading, pooled)
                    found.append(Recipe(reading, pooled, changes, float(cosines.min()), float(cosines.mean())))
        return sorted(found, key=lambda recipe: (recipe.changes, -recipe.mean))

    def _changes(self, reading: Reading, pooled: Pooled) -> int:
        own = {**vars(self.own.reading), **vars(self.own.pooled)}
        tried = {**vars(reading), **vars(pooled)}
        cut = reading.part in ("end", "windows") and reading.limit is not None  # one change
        return sum(value != own[name] for name, value in tried.items()) - cut - pooled.padding

    def _with_limit(self, recipe: Recipe) -> list[Recipe]:
        """Returns the recipe with a limit of tokens that explains all vectors; the recipe itself if it needs none."""
        cosines = self.cosines(recipe)
        left = self.differing(cosines)
        if self._explains(cosines):
            return [replace(recipe, lowest=float(cosines.min()), mean=float(cosines.mean()))]
        lengths = [self.runner.length(number, recipe.reading) for number in self.numbers]
        if self.slack:  # texts that are left without an explanation may be short
            left = [number for number in left if lengths[number] > _SHORT] or left
        return self._limits(recipe, left, [recipe.pooled], self._ranges(left, lengths))

    def _ranges(self, left: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, list[int]]]:
        """Returns the ranges of possible limits, each with two texts to try; the other texts are explained already.

        A limit of the other program is at least as high as the longest text that it does not affect, and lower than
        the shortest text that it affects; or it is higher than the model's own limit.
        """
        limit, differing = self.runner.limit, {*left}
        by_length = sorted(left, key=lambda number: lengths[number])
        shortest, longest = lengths[by_length[0]], lengths[by_length[-1]]
        unaffected = max((lengths[number] for number in self.numbers if number not in differing), default=0)
        low = min(unaffected, limit)
        ranges = [(max(low, _LEAST), shortest - 1, by_length[:_LONG])]
        if shortest > limit:
            ranges.append((limit + 1, min(self.runner.most, longest), [by_length[0], by_length[-1]]))
        return [(low, high, sorted({*numbers})) for low, high, numbers in ranges if low <= high]

    def _limits(
        self,
        recipe: Recipe,
        left: Sequence[int],
        poolings: Sequence[Pooled],
        ranges: Sequence[tuple[int, int, list[int]]],
    ) -> list[Recipe]:
        """Returns recipes with a limit or with another part of long texts that explain all vectors.

        Args:
            recipe: The recipe without a limit.
            left: The texts that it does not explain.
            poolings: The poolings to try.
            ranges: The ranges of limits (see `_ranges`).
        """
        found: list[Recipe] = []
        for part in ("start", "end", "windows", "unclosed"):
            reading = replace(recipe.reading, part=part)
            if part == "unclosed" and not reading.special:
                continue
            few = _spread(left, _FEW)
            for limit, pooled in chain.from_iterable(self._zoom(reading, *each, poolings) for each in ranges):
                whole = replace(reading, limit=None if limit == self.runner.limit and part != "start" else limit)
                tried = Recipe(whole, pooled, self._changes(whole, pooled))
                if not (self.cosines(tried, few) >= 1 - self.allowed).all():
                    continue
                cosines = self.cosines(tried)
                if self._explains(cosines):
                    found.append(replace(tried, lowest=float(cosines.min()), mean=float(cosines.mean())))
            if found:
                break
        return found

    def _zoom(
        self, reading: Reading, least: int, most: int, numbers: Sequence[int], poolings: Sequence[Pooled]
    ) -> list[tuple[int, Pooled]]:
        """Returns the limits that fit a few texts best, with their poolings; empty if none fits."""
        places = {limit for limit in (*LIMITS, self.runner.limit) if least <= limit <= most} | {most}
        low, high, scores = least, most, dict[tuple[int, Pooled], float]()
        while True:
            step = max((high - low) // _ZOOM, 1)
            places |= {*range(low, high + 1, step)}
            for limit in sorted(places - {limit for limit, _ in scores}):
                self._step(f"a limit of {limit} tokens")
                vectors = self.runner.vectors(replace(reading, limit=limit), poolings, numbers)
                for pooled, rows in zip(poolings, vectors, strict=True):
                    scores[limit, pooled] = float(self.theirs.cosines(rows, [*numbers]).min())
            best, _ = max(scores, key=lambda key: scores[key])
            if step == 1:
                break
            low, high, places = max(best - step, least), min(best + step, most), set()
        top = max(scores.values())
        fitting = [key for key, score in scores.items() if score >= max(1 - self.allowed, top - self.allowed / 100)]
        return sorted(fitting, key=lambda key: -scores[key])[:_LONG]

    def _limits_of_any(self) -> list[Recipe]:
        """Returns recipes with a limit if even the shortest texts may be truncated: any prompt, with any pooling."""
        left = self.differing(self.own_cosines)
        poolings = [each for each in self._all_poolings() if each.layer == LAST]
        by_length = sorted(left, key=lambda number: self.lengths[number])
        numbers = sorted({by_length[0], by_length[-1]})
        prompts = dict.fromkeys(
            [self.own.reading.prompt, (None, ""), *self.runner.model.embedder.config.prompts.items()]
        )
        for prompt in prompts:
            reading = replace(self.own.reading, prompt=prompt)
            least = _LEAST + len(self.runner.tokenizer.split(prompt[1]))
            ranges = [(least, min(self.runner.most, max(self.lengths)), numbers)]
            if found := self._limits(Recipe(reading, self.own.pooled), left, poolings, ranges):
                return found
        return []


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """Returns `count` of the numbers at equal distances."""
    if len(numbers) <= count:
        return [*numbers]
    return [numbers[place * (len(numbers) - 1) // (count - 1)] for place in range(count)]


def find_order(
    vectors: "Floats", numbers: Sequence[int], theirs: StoredNumbers, allowed: float
) -> "NDArray[np.int64] | None":
    """Returns for each text the index of its vector among the other ones, if these are in another order.

    Args:
        vectors: The model's vectors of some texts, (N, W).
        numbers: The indices of these texts.
        theirs: The vectors of all texts.
        allowed: The largest value of 1 - cosine of equal vectors.
    """
    import numpy as np

    ours = _unit(vectors[:, : theirs.width])
    nearest, highest = np.zeros(len(ours), np.int64), np.full(len(ours), -np.inf, np.float32)
    for start in range(0, len(theirs.rows), _ROWS):
        products = ours @ _unit(theirs.rows[start : start + _ROWS]).T
        best = products.argmax(axis=1)
        better = products.max(axis=1) > highest
        nearest[better], highest[better] = best[better] + start, products.max(axis=1)[better]
    before, after = theirs.cosines(vectors, numbers), theirs.cosines(vectors, nearest)
    is_found = (after >= 1 - allowed).all() and 1 - after.mean() <= (1 - before.mean()) * CLOSED
    return nearest if is_found and (nearest != numbers).any() else None


def _unit(rows: "Floats") -> "Floats":
    import numpy as np

    units: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), SMALLEST_NORM)
    return units
