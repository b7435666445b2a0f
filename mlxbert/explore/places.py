"""`mlxbert.project`: places texts in two dimensions, so that similar texts are near each other.

Shapes: N vectors, W values per vector, D dimensions.
"""

import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mlxbert.errors import MlxbertError
from mlxbert.explore.options import MapOptions
from mlxbert.explore.text_vectors import checked_texts, unit_vectors
from mlxbert.model import Model
from mlxbert.optional_packages import install_command
from mlxbert.progress import OnProgress
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import TaskOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

_NEAR = 15  # vectors that UMAP looks at around each one
_FEW = 20  # vectors for which UMAP finds no structure
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
        >>> places = mlxbert.project(mlxbert.load(), texts)  # (N, 2)

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given.
        texts: The texts.
        options: See `MapOptions`.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        computing: See `TaskOptions`.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The places, (N, 2).

    Raises:
        ArgumentError: An argument is invalid.
        InputError: A text is unusable.
        MlxbertError: The package of the method is not installed.
    """
    import numpy as np

    found, method = checked_texts(texts), chosen_method(options.method)
    if not found:
        return np.zeros((0, 2), np.float32)
    units = unit_vectors(model, found, vectors, batch_tokens=computing.batch_tokens, on_progress=on_progress)
    return places_of(units, 2, method, options.seed)


def chosen_method(method: str) -> str:
    """Returns the method that `auto` stands for, or the method itself; raises an error if its package is missing."""
    packages = {"tsne": "sklearn", "umap": "umap"}
    if method == "auto":
        return "tsne" if find_spec("sklearn") is not None else "pca"
    if method in packages and find_spec(packages[method]) is None:
        raise MlxbertError(
            f"the method {method} needs the package {packages[method]}, which is not installed",
            hint=install_command("cluster"),
        )
    return method


def places_of(vectors: "Vectors", dimensions: int, method: str, seed: int) -> "Vectors":
    """Returns the places of vectors in fewer dimensions, (N, D).

    Args:
        vectors: The vectors, (N, W), of length 1.
        dimensions: The number of dimensions D.
        method: `pca`, `tsne` (two dimensions only) or `umap`. Too few vectors, and vectors that are all the same, are
            placed by `pca`.
        seed: The seed of random numbers.
    """
    import numpy as np

    if method == "pca" or len(vectors) < _FEW or float(vectors.std(0).max()) < _FLAT:
        return _main_directions(vectors, dimensions)
    with warnings.catch_warnings(action="ignore"):  # about one thread, which a seed needs
        if method == "tsne":
            from sklearn.manifold import TSNE

            perplexity = min(_NEAR * 2, (len(vectors) - 1) / 3)
            model = TSNE(dimensions, init="pca", perplexity=perplexity, random_state=seed)
        else:
            from umap import UMAP

            model = UMAP(_NEAR, dimensions, metric="cosine", min_dist=0.0 if dimensions > 2 else 0.1, random_state=seed)
        return np.asarray(model.fit_transform(vectors), np.float32)


def _main_directions(vectors: "Vectors", dimensions: int) -> "Vectors":
    """Places vectors along the directions in which they differ most (PCA); directions that are missing are 0."""
    import numpy as np

    centred = vectors - vectors.mean(0) if len(vectors) else vectors
    _, directions = np.linalg.eigh(centred.T @ centred)
    directions = directions[:, ::-1][:, :dimensions]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(directions.shape[1])])
    places = np.zeros((len(vectors), dimensions), np.float32)
    places[:, : directions.shape[1]] = centred @ (directions * signs)
    return places
