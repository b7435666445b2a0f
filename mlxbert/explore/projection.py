"""`mlxbert.project`: places texts in two dimensions, so that similar texts are near each other.

Shapes: N vectors, W values per vector.
"""

import os
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, TypeAlias

from mlxbert.errors import MlxbertError
from mlxbert.explore.near_vectors import checked_texts, unit_vectors
from mlxbert.explore.options import MapOptions
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.other_libraries import install_command
from mlxbert.progress import OnProgress
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import TaskOptions

Vectors: TypeAlias = "NDArray[np.float32]"

_PERPLEXITY = 30  # of t-SNE: how many near vectors it looks at
_FEW = 20  # vectors, among which t-SNE shows no structure
_PARALLEL = 2_000  # vectors for which several threads are worth their start
_FLAT = 1e-6  # the standard deviation of vectors that are all the same


@takes_keywords
def project(
    model: Model | None,
    texts: Iterable[str],
    *,
    options: MapOptions,
    vectors: Any = None,
    computing: TaskOptions,
    on_progress: OnProgress | None = None,
) -> "NDArray[np.float32]":
    """Places texts in two dimensions, so that similar texts are near each other.

    Example:
        >>> coordinates = mlxbert.project(mlxbert.load(), texts)  # (N, 2)

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given.
        texts: The texts.
        options: See `MapOptions`.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        computing: See `TaskOptions`.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The coordinates, (N, 2).

    Raises:
        ArgumentError: An argument is invalid.
        InputError: A text is unusable.
        MlxbertError: The package of the method is not installed.
    """
    listed, method = checked_texts(texts), chosen_method(options.method)
    if not listed:
        return np.zeros((0, 2), np.float32)
    units = unit_vectors(model, listed, vectors, batch_tokens=computing.batch_tokens, on_progress=on_progress)
    return coordinates_of(units, method, options.seed)


def chosen_method(method: str) -> str:
    """Returns the method that `auto` stands for, or the method itself; raises an error if its package is missing."""
    has_package = find_spec("openTSNE") is not None
    if method == "tsne" and not has_package:
        raise MlxbertError("the method tsne needs openTSNE, which is not installed", hint=install_command("cluster"))
    return ("tsne" if has_package else "pca") if method == "auto" else method


def method_for(vectors: "Vectors", method: str) -> str:
    """Returns the method for vectors if `method` is asked for: `pca` for few vectors, and for equal ones."""
    return "pca" if len(vectors) < _FEW or float(vectors.std(0).max()) < _FLAT else method


def coordinates_of(vectors: "Vectors", method: str, seed: int, exaggeration: float = 1.0) -> "Vectors":
    """Returns coordinates of vectors in two dimensions, (N, 2).

    Args:
        vectors: The vectors, (N, W), of length 1.
        method: `pca` or `tsne`. Few vectors, and vectors that are all the same, are placed by `pca`.
        exaggeration: How much more strongly than usual t-SNE pulls similar vectors together, which makes groups denser.
    """
    if not len(vectors) or float(vectors.std(0).max()) < _FLAT:
        return np.zeros((len(vectors), 2), np.float32)
    if method_for(vectors, method) == "pca":
        return _main_directions(vectors)
    from openTSNE import TSNE

    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    jobs = os.cpu_count() if len(vectors) > _PARALLEL else 1
    model = TSNE(2, perplexity=perplexity, metric="cosine", exaggeration=exaggeration, n_jobs=jobs, random_state=seed)
    with warnings.catch_warnings(action="ignore"):  # of the search for neighbours, about vectors that are equal
        return np.asarray(model.fit(vectors), np.float32)


def _main_directions(vectors: "Vectors") -> "Vectors":
    """Places vectors along the two directions in which they differ most (PCA); a direction that is missing is 0."""
    centred = vectors - vectors.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    directions = directions[:, ::-1][:, :2]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(directions.shape[1])])
    coordinates = np.zeros((len(vectors), 2), np.float32)
    coordinates[:, : directions.shape[1]] = centred @ (directions * signs)
    return coordinates
