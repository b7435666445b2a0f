"""Linear models on vectors: a baseline, and the classifier of a model that is trained on few examples.

Shapes: N examples, C labels, D size of a vector.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlxbert.train.scores.metrics import Floats, Numbers

_STEPS, _TOLERANCE = 500, 1e-6


@dataclass(frozen=True)
class Link:
    """The function that turns the scores of a linear model into predictions."""

    # Turns scores (N, C) into probabilities; if numbers are predicted, returns the scores (N,) unchanged.
    function: Callable[[Floats], Floats]
    curvature: float | None  # an upper bound of the curvature of the cross-entropy; `None` for squared errors


@dataclass(frozen=True)
class LinearModel:
    """A linear model on vectors."""

    weights: Floats  # the weights, (D, C), or (D,) for numbers
    bias: Floats  # the bias, (C,), or a single number
    link: Callable[[Floats], Floats]  # turns `vectors @ weights + bias` into predictions

    def __call__(self, vectors: Numbers) -> Floats:
        """Turns vectors (M, D) into probabilities (M, C), or into numbers (M,)."""
        return self.link(vectors @ self.weights + self.bias)


def fit_linear(vectors: Numbers, targets: Floats, link: Link) -> LinearModel:
    """Fits a linear model with an L2 penalty on the weights (not the bias).

    Vectors are centred, and scaled so that their mean squared length is 1. (Vectors of sentence-transformers have this
    length without scaling, other vectors do not.) So a penalty of strength 1, the default of scikit-learn, suits the
    vectors of any model. Dimensions are not scaled individually, because in some models a dimension is constant except
    for rounding errors.

    Args:
        targets: For `SOFTMAX` and `SIGMOID`, 0 or 1 for each label, (N, C); for `SOFTMAX`, each row has a single 1. For
            `IDENTITY`, numbers (N,).
    """
    mean = vectors.mean(0, dtype=np.float64)
    length = math.sqrt(float(((vectors - mean) ** 2).sum(1).mean())) or 1.0
    x = np.hstack([(vectors - mean) / length, np.ones((len(vectors), 1))])
    penalty = np.append(np.ones(x.shape[1] - 1), 0.0)
    if link.curvature is None:
        weights = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ targets)
    else:
        weights = _minimize(x, targets, penalty, link.function, link.curvature)
    return LinearModel(weights[:-1] / length, weights[-1] - mean @ weights[:-1] / length, link.function)


def _minimize(
    x: Floats, targets: Floats, penalty: Floats, link: Callable[[Floats], Floats], curvature: float
) -> Floats:
    """Returns the weights, (D, C), that minimize the cross-entropy plus half the penalty times the squared weights.

    The method is Newton's, with a bound of the Hessian (Böhning and Lindsay 1988). The bound is inverted only once, and
    makes every step safe without a line search. Nesterov's acceleration with restarts speeds it up (arXiv:1204.3982).
    """
    inverse = np.linalg.inv(curvature * (x.T @ x) + np.diag(penalty))
    weights = ahead = np.zeros((x.shape[1], targets.shape[1]))
    pace = 1.0
    for _ in range(_STEPS):
        gradient = x.T @ (link(x @ ahead) - targets) + penalty[:, None] * ahead
        step = inverse @ gradient
        before, weights = weights, ahead - step
        if np.vdot(gradient, step) < _TOLERANCE * len(x):
            break
        if np.vdot(gradient, weights - before) > 0:
            pace = 1.0
        faster = (1 + math.sqrt(1 + 4 * pace**2)) / 2
        ahead, pace = weights + (pace - 1) / faster * (weights - before), faster
    return weights


def _identity(values: Floats) -> Floats:
    return values


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _sigmoid(logits: Floats) -> Floats:
    return (1 + np.tanh(logits / 2)) / 2


IDENTITY, SOFTMAX, SIGMOID = Link(_identity, None), Link(_softmax, 0.5), Link(_sigmoid, 0.25)
