"""Losses over the vectors of texts, in float32; they compare the texts of a whole batch with each other.

Shapes: B examples, M negatives, W size of a vector.
"""

from collections.abc import Callable, Sequence

from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Normalize
from mlxbert.train.nn.losses import cross_entropy, mean_squared_error

_EXCLUDED = -1e4  # a logit whose exponential is 0; finite, as 0 · inf is NaN
_unit = Normalize()


def cosines(first: mx.array, second: mx.array) -> mx.array:
    """Returns the cosine of each pair of rows: (B, W) and (B, W) → (B,)."""
    return (_unit(first) * _unit(second)).sum(axis=-1)


def in_batch_negatives(
    anchors: mx.array,
    candidates: mx.array,
    excluded: mx.array,
    *,
    temperature: float,
    symmetric: bool = False,
    dots: bool = False,
) -> mx.array:
    """Returns the cross-entropy of each anchor's positive among all candidates of the batch, summed over the anchors.

    Also known as multiple negatives ranking loss (arXiv:1705.00652) and InfoNCE.

    Args:
        anchors: (B, W).
        candidates: (B + M, W): the positives in the order of their anchors, then the negatives.
        excluded: Boolean (B, B + M), true for candidates that are not negatives of an anchor, like its own text.
        temperature: Divides the cosines.
        symmetric: Whether each positive must also find its anchor. If so, the loss is the mean of both directions.
        dots: Whether to compare by dot product instead of by cosine.
    """
    first, second = (anchors, candidates) if dots else (_unit(anchors), _unit(candidates))
    # An excluded candidate gets a logit far below all others, however large dot products are.
    logits = first @ second.T / temperature
    logits = mx.where(excluded, mx.minimum(logits.min(), 0) + _EXCLUDED if dots else _EXCLUDED, logits)
    count = anchors.shape[0]
    forward = cross_entropy(logits, mx.arange(count))
    if not symmetric:
        return forward
    return (forward + cross_entropy(logits[:, :count].T, mx.arange(count))) / 2


def late_interaction(
    queries: mx.array,
    of_queries: mx.array,
    documents: mx.array,
    of_documents: mx.array,
    excluded: mx.array,
    *,
    temperature: float,
) -> mx.array:
    """Returns the cross-entropy of each query's document among all documents, by MaxSim, summed over the queries.

    Args:
        queries: The token vectors of queries, (B, Q, W).
        of_queries: Boolean (B, Q), true for tokens that count.
        documents: The token vectors of documents, (B + M, L, W), the queries' own documents first.
        of_documents: Boolean (B + M, L), true for tokens that count.
        temperature: Divides the scores.
    """
    (count, tokens, width), (others, length, _) = queries.shape, documents.shape
    products = queries.reshape(-1, width) @ documents.reshape(-1, width).T
    products = mx.where(of_documents.reshape(1, -1), products, _EXCLUDED)
    best = products.reshape(count, tokens, others, length).max(axis=-1)
    scores = mx.where(of_queries[:, :, None], best, 0).sum(axis=1)
    logits = mx.where(excluded, _EXCLUDED, scores / temperature)
    return cross_entropy(logits, mx.arange(count))


def cosine_error(first: mx.array, second: mx.array, scores: mx.array) -> mx.array:
    """Returns the sum, over the pairs, of the squared difference between a pair's cosine and its score.

    Args:
        first: (B, W).
        second: (B, W).
        scores: (B,).
    """
    return mean_squared_error(cosines(first, second), scores)


def same_class(vectors: mx.array, classes: mx.array) -> mx.array:
    """Returns the squared error of the cosines of all pairs; the target is 1 within a class and 0 between classes.

    Both kinds of pairs have the same weight: the loss is the mean over pairs within classes plus the mean over pairs
    between classes, because SetFit (arXiv:2209.11055) draws equally many of both.

    Args:
        vectors: (B, W).
        classes: Integers (B,).
    """
    units = _unit(vectors)
    alike = (classes[:, None] == classes[None, :]).astype(mx.float32)
    pairs = 1 - mx.eye(classes.size)  # each pair twice, without pairs of a vector with itself
    errors = mx.square(units @ units.T - alike)
    within, between = pairs * alike, 1 - alike
    return sum(((errors * kind).sum() / mx.maximum(kind.sum(), 1) for kind in (within, between)), mx.array(0.0))


def cosent(first: mx.array, second: mx.array, scores: mx.array, *, temperature: float) -> mx.array:
    """CoSENT: pairs with a higher score should have a higher cosine; returns one number for the whole batch.

    `log(1 + Σ exp((cos(j) - cos(i)) / temperature))` over all pairs i, j with `scores[i] > scores[j]`. See
    https://kexue.fm/archives/8847.

    Args:
        first: (B, W).
        second: (B, W).
        scores: (B,); only their order matters.
        temperature: Divides the cosines.
    """
    logits = cosines(first, second) / temperature
    differences = logits[None, :] - logits[:, None]  # (i, j): cos(j) - cos(i)
    differences = mx.where(scores[:, None] > scores[None, :], differences, _EXCLUDED)
    return mx.logsumexp(mx.concatenate([mx.zeros(1), differences.reshape(-1)]))


def triplet(anchors: mx.array, positives: mx.array, negatives: mx.array, *, margin: float) -> mx.array:
    """Returns the sum of `max(0, |anchor - positive| - |anchor - negative| + margin)` (Euclidean). All are (B, W)."""

    def distance(other: mx.array) -> mx.array:
        return mx.sqrt(mx.maximum(mx.square(anchors - other).sum(axis=-1), 1e-12))  # at 0 the slope is infinite

    return mx.maximum(distance(positives) - distance(negatives) + margin, 0).sum()


def flops(vectors: mx.array) -> mx.array:
    """Returns the FLOPS regularizer (arXiv:2004.05665): the sum of the squared mean weight of each token.

    Args:
        vectors: Sparse vectors (T, V).
    """
    return mx.square(vectors.mean(axis=0)).sum()


def matryoshka(loss: Callable[[mx.array], mx.array], vectors: mx.array, sizes: Sequence[int]) -> mx.array:
    """Returns the sum of a loss over several prefixes of the vectors (arXiv:2205.13147).

    Args:
        loss: Takes vectors (T, W').
        vectors: (T, W).
        sizes: The number of values in each prefix; prefixes are scaled to length 1 again.
    """
    return sum((loss(_unit(vectors[:, :size])) for size in sizes), mx.array(0.0))
