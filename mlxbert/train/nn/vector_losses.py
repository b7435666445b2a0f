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

    Also known as multiple negatives ranking loss (arXiv:1705.00652) and InfoNCE. The candidates of anchors (B, W) are
    the positives in the order of the anchors, then the negatives, (B + M, W). `excluded`, (B, B + M), is true for
    candidates that are not negatives of an anchor, like its own text. With `symmetric`, each positive must also find
    its anchor, and the loss is the mean of both directions. `dots` compares by dot product instead of by cosine.
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

    Takes the token vectors of queries, (B, Q, W), and of documents, (B + M, L, W), the queries' own documents first.
    `of_queries`, (B, Q), and `of_documents`, (B + M, L), are true for tokens that count.
    """
    (count, tokens, width), (others, length, _) = queries.shape, documents.shape
    products = queries.reshape(-1, width) @ documents.reshape(-1, width).T
    products = mx.where(of_documents.reshape(1, -1), products, _EXCLUDED)
    best = products.reshape(count, tokens, others, length).max(axis=-1)
    scores = mx.where(of_queries[:, :, None], best, 0).sum(axis=1)
    logits = mx.where(excluded, _EXCLUDED, scores / temperature)
    return cross_entropy(logits, mx.arange(count))


def cosine_error(first: mx.array, second: mx.array, scores: mx.array) -> mx.array:
    """Returns the sum, over pairs (B, W), of the squared difference between a pair's cosine and its score (B,)."""
    return mean_squared_error(cosines(first, second), scores)


def same_class(vectors: mx.array, classes: mx.array) -> mx.array:
    """Returns the squared error of the cosines of all pairs of vectors (B, W), given the class of each vector (B,).

    The target is 1 within a class and 0 between classes. Both kinds of pairs have the same weight: the loss is the mean
    over pairs within classes plus the mean over pairs between classes, because SetFit (arXiv:2209.11055) draws equally
    many of both.
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
    https://kexue.fm/archives/8847. Of the scores (B,) of the pairs (B, W), only the order matters.
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
    """Returns the FLOPS regularizer of vectors (T, V): the sum of each token's squared mean (arXiv:2004.05665)."""
    return mx.square(vectors.mean(axis=0)).sum()


def matryoshka(loss: Callable[[mx.array], mx.array], vectors: mx.array, sizes: Sequence[int]) -> mx.array:
    """Returns the sum of a loss over prefixes of the vectors (T, W), scaled to length 1 again (arXiv:2205.13147)."""
    return sum((loss(_unit(vectors[:, :size])) for size in sizes), mx.array(0.0))
