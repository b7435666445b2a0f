"""The vectors of many texts, of length 1, and similar ones among them.

Blocks are compared, so that memory does not grow with the number of pairs.

Shapes: N vectors, W values per vector, B vectors of a block, K cells.
"""

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.progress import OnProgress, progress
from mlxbert.tasks.argument_checks import check_inputs, check_model

Vectors: TypeAlias = "NDArray[np.float32]"
Numbers: TypeAlias = "NDArray[np.int64]"


_LOG = logging.getLogger("mlxbert")


def checked_texts(texts: object) -> list[str]:
    """Returns the texts as a list; raises an error if they are not a series of texts."""
    listed = list(check_inputs(texts, "texts", "a list of texts"))
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"text {index} is of type {type(text).__name__}, expected a text")
    return listed


def unit_vectors(
    model: Model | None,
    texts: Sequence[str],
    vectors: Any = None,
    *,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> "Vectors":
    """Returns the vectors of texts, (N, W), scaled to length 1.

    Args:
        model: The model that computes the vectors; not used if `vectors` are given.
        vectors: The vectors, (N, W); `None` to compute them.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Raises:
        ArgumentError: There is no model, or `vectors` are not one vector per text.
        InputError: A vector has a value that is not finite, or a text is unusable.
    """
    if vectors is None:
        check_model(model)
        from mlxbert.tasks.embed import EmbedTask, stacked
        from mlxbert.tasks.options import EmbedOptions
        from mlxbert.text.usage import Usage

        usage = Usage()
        task = EmbedTask(cast(Model, model), EmbedOptions(batch_tokens=batch_tokens), usage=usage)
        with progress(on_progress, "texts") as update:
            rows = stacked(task, texts, "raise", update)
        if usage.truncated:
            _LOG.warning(
                "%s of %s texts are longer than %s tokens, so only their beginnings are compared; all of a text counts "
                "with `vectors=` that were made with `overflow='window'`",
                *(f"{number:,}" for number in (usage.truncated, len(texts), task.tokenizer.max_length)),
            )
    else:
        try:
            with np.errstate(over="ignore"):  # infinite numbers are refused below
                rows = np.array(vectors, np.float32)
        except (ValueError, TypeError):
            raise ArgumentError(f"`vectors` is {type(vectors).__name__}, expected numbers (N, W)") from None
        if rows.ndim != 2 or len(rows) != len(texts):
            raise ArgumentError(
                f"`vectors` has the shape {rows.shape}, expected one vector for each of {len(texts):,} texts"
            )
    if not np.isfinite(rows).all():
        place = int(np.flatnonzero(~np.isfinite(rows).all(1))[0])
        raise InputError(f"the vector of text {place} has a value that is not finite")
    rows /= np.maximum(np.abs(rows).max(axis=1, keepdims=True, initial=0), np.finfo(np.float32).tiny)
    return unit_length(rows, out=rows)


_FEW = 2**15  # vectors of which all pairs are compared
_BLOCK = 1024  # vectors whose order is decided together
_WIDE = 8 * _BLOCK  # vectors that are looked up in the cells together
_TOGETHER = 2**14  # vectors that a block is compared with at a time
_PROBED = 8  # cells that a vector is compared with; benchmarks/duplicates.py measures the share of duplicates found
_ROUNDS, _SAMPLE = 4, 32  # of k-means, which makes the cells; vectors per cell that it looks at
_PAIRS = 512  # vectors that are compared with all later ones together
_ROUNDING = 1e-6  # of a cosine


def find_leaders(vectors: "Vectors", threshold: float, *, all_pairs: bool = False) -> "tuple[Numbers, Vectors]":
    """Finds for each vector an earlier one that is similar to it and is not similar to an earlier one itself.

    The first vector leads. Each further vector follows the most similar of the leaders before it, if their cosine is at
    least `threshold`; otherwise it becomes a leader. Of many vectors, each is compared with the leaders of a few cells
    only (see `_Cells`), unless `all_pairs` is true.

    Args:
        vectors: The vectors, (N, W), of length 1.
        threshold: The smallest cosine of a vector and its leader.
        all_pairs: Whether each vector is compared with all leaders, however many there are.

    Returns:
        The index of the leader of each vector, (N,), and the cosine with it; a leader leads itself, with a cosine of 1.
    """
    count = len(vectors)
    leaders, scores = np.arange(count), np.ones(count, np.float32)
    leads = np.ones(count, bool)
    cells = None if all_pairs or count <= _FEW else _Cells(vectors)
    before = np.tri(_BLOCK, k=-1, dtype=bool)
    start_of_wide, least = 0, threshold - _ROUNDING
    for start in range(0, count, _BLOCK):
        block = vectors[start : start + _BLOCK]
        if cells is not None and start % _WIDE == 0:
            cells.add(np.arange(start_of_wide, start)[leads[start_of_wide:start]])
            start_of_wide = start
            wide_best, wide_near = cells.nearest(start, start + _WIDE)
        best, near = _nearest(block, vectors, np.flatnonzero(leads[start_of_wide:start]) + start_of_wide)
        if cells is not None:
            part = slice(start - start_of_wide, start - start_of_wide + len(block))
            near = np.where(wide_best[part] > best, wide_near[part], near)
            best = np.maximum(wide_best[part], best)
        inside = block @ block.T
        close = (inside >= least) & before[: len(block), : len(block)]
        for row in np.flatnonzero(close.any(1) | (best >= least)):
            others = np.flatnonzero(close[row] & leads[start : start + len(block)])
            if len(others) and inside[row, others].max() > best[row]:
                nearest = others[inside[row, others].argmax()]
                best[row], near[row] = inside[row, nearest], start + nearest
            if best[row] >= least:
                leads[start + row] = False
                leaders[start + row], scores[start + row] = near[row], min(best[row], 1.0)
    return leaders, scores


def _nearest(block: "Vectors", vectors: "Vectors", places: "Numbers") -> "tuple[Vectors, Numbers]":
    """Returns the largest cosine of each vector of a block with the vectors at `places`, and the place of that one."""
    best, near = np.full(len(block), -np.inf, np.float32), np.zeros(len(block), np.int64)
    for start in range(0, len(places), _TOGETHER):
        some = places[start : start + _TOGETHER]
        products = block @ vectors[some].T
        number = products.argmax(1)
        highest = products[np.arange(len(block)), number]
        near = np.where(highest > best, some[number], near)
        best = np.maximum(highest, best)
    return best, near


class _Cells:
    """Vectors in cells, which are the surroundings of K centres; a near vector is almost always in a near cell.

    Args:
        vectors: All vectors, (N, W), of length 1.
    """

    def __init__(self, vectors: "Vectors") -> None:
        self._vectors = vectors
        count = int(len(vectors) ** 0.5)
        random = np.random.default_rng(0)
        sample = vectors[np.sort(random.choice(len(vectors), min(_SAMPLE * count, len(vectors)), replace=False))]
        centres = sample[random.choice(len(sample), count, replace=False)]
        self._centres = spherical_kmeans(sample, centres, _ROUNDS)
        self._members: list[list[Numbers]] = [[] for _ in range(count)]
        self._cells = np.zeros(len(vectors), np.int32)  # the nearest cell of each vector that was looked up

    def add(self, places: "Numbers") -> None:
        """Adds vectors that were looked up before, each to its nearest cell."""
        cells = self._cells[places]
        order = np.argsort(cells, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
            if len(part):
                self._members[cells[part[0]]].append(places[part])

    def nearest(self, start: int, end: int) -> "tuple[Vectors, Numbers]":
        """Returns the largest cosine of each vector from `start` to `end` with one in a near cell, and its place."""
        block = self._vectors[start:end]
        products = block @ self._centres.T
        self._cells[start:end] = products.argmax(1)
        probed = np.argpartition(-products, min(_PROBED, products.shape[1]) - 1, axis=1)[:, :_PROBED]
        best, near = np.full(len(block), -np.inf, np.float32), np.zeros(len(block), np.int64)
        order = np.argsort(probed.reshape(-1), kind="stable")
        cells = probed.reshape(-1)[order]
        for part in np.split(order, np.flatnonzero(np.diff(cells)) + 1):
            cell, rows = probed.reshape(-1)[part[0]], part // probed.shape[1]
            if self._members[cell]:
                members = self._members[cell] = [np.concatenate(self._members[cell])]
                highest, place = _nearest(block[rows], self._vectors, members[0])
                near[rows] = np.where(highest > best[rows], place, near[rows])
                best[rows] = np.maximum(highest, best[rows])
        return best, near


def similar_pairs(vectors: "Vectors", least: float, most: int) -> "tuple[Numbers, Numbers, Vectors]":
    """Finds the most similar pairs of vectors, most similar first.

    Args:
        vectors: The vectors, (N, W), of length 1.
        least: The smallest cosine of a pair.
        most: The maximum number of pairs.

    Returns:
        The smaller index of each pair, the larger index, and the cosine.
    """
    pairs: list[tuple[Numbers, Numbers, Vectors]] = []
    waiting, floor = 0, least - _ROUNDING

    def best() -> "tuple[Numbers, Numbers, Vectors]":
        first, second, scores = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        kept = np.lexsort((second, first, -scores))[:most]
        return first[kept], second[kept], scores[kept]

    pairs.append((np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)))
    for start in range(0, len(vectors), _PAIRS):
        for other in range(start, len(vectors), _TOGETHER // 2):
            products = vectors[start : start + _PAIRS] @ vectors[other : other + _TOGETHER // 2].T
            rows, columns = np.nonzero(products >= floor)
            later = other + columns > start + rows
            rows, columns = rows[later], columns[later]
            pairs.append((start + rows, other + columns, np.minimum(products[rows, columns], 1.0)))
            waiting += len(rows)
            if waiting > most:
                pairs = [best()]
                waiting, floor = 0, max(floor, float(pairs[0][2][-1]) if len(pairs[0][2]) == most else floor)
    return best()


def nearest_of_each(vectors: "Vectors", count: int) -> "tuple[Numbers, Vectors]":
    """Finds the vectors nearest to each vector, without itself; all pairs are compared.

    Args:
        vectors: The vectors, (N, W), of length 1.
        count: The number C of near vectors; at most N - 1 are found.

    Returns:
        The indices of the near vectors, nearest first, and the cosines with them: (N, C).
    """
    count = max(min(count, len(vectors) - 1), 0)
    near, scores = np.zeros((len(vectors), count), np.int64), np.zeros((len(vectors), count), np.float32)
    for start in range(0, len(vectors) if count else 0, _PAIRS):
        products = vectors[start : start + _PAIRS] @ vectors.T
        rows = np.arange(len(products))
        products[rows, start + rows] = -np.inf
        nearest = np.argpartition(-products, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(products, nearest, 1), axis=1, kind="stable")
        near[start : start + len(rows)] = nearest = np.take_along_axis(nearest, order, 1)
        scores[start : start + len(rows)] = np.take_along_axis(products, nearest, 1)
    return near, np.clip(scores, -1, 1)


def spherical_kmeans(
    vectors: "NDArray[np.float32]", centers: "NDArray[np.float32]", rounds: int
) -> "NDArray[np.float32]":
    """Moves each center to the mean direction of the vectors that are nearest to it, until no vector changes its group.

    Args:
        vectors: The vectors, (N, W), of length 1.
        centers: The first centers, (K, W), of length 1. A center without vectors stays where it is.

    Returns:
        The centers, (K, W).
    """
    groups = np.full(len(vectors), -1)
    for _ in range(rounds):
        before, groups = groups, (vectors @ centers.T).argmax(1)
        if (groups == before).all():
            break
        sums = np.zeros_like(centers)
        np.add.at(sums, groups, vectors)
        centers = np.where(sums.any(1, keepdims=True), unit_length(sums), centers)
    return centers
