"""`mlxbert.cluster`: finds topics among many texts, and describes each by its words and by typical texts.

Shapes: N texts, W values per vector.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.explore.options import ClusterOptions
from mlxbert.explore.text_vectors import checked_texts, unit_vectors
from mlxbert.explore.topic_words import distinguishing_words
from mlxbert.model import Model
from mlxbert.optional_packages import install_command
from mlxbert.progress import OnProgress
from mlxbert.results.groups import Topic, Topics
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import TaskOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Numbers = NDArray[np.int64]

_LOG = logging.getLogger("mlxbert")
_MANY = 10_000  # texts from which k-means looks at samples
_STARTS = 10  # of k-means, of which the best is taken
_EXAGGERATION = 4  # of the places in which HDBSCAN looks for dense regions
OUTLIER = -1


@takes_keywords
def cluster(
    model: Model | None,
    texts: Iterable[str],
    *,
    options: ClusterOptions,
    vectors: Any = None,
    computing: TaskOptions,
    on_progress: OnProgress | None = None,
) -> Topics:
    """Finds the topics of many texts, with the words that distinguish each of them and typical texts.

    Example:
        >>> topics = mlxbert.cluster(mlxbert.load(), texts, clusters=5)
        >>> [word.word for word in topics.topics[0].words]

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given.
        texts: The texts.
        options: See `ClusterOptions`.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        computing: See `TaskOptions`.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The topic of each text, and the topics. There may be fewer than `clusters` if many texts have the same vector.

    Raises:
        ArgumentError: An argument is invalid, or there are fewer texts than `clusters`.
        InputError: A text is unusable.
        MlxbertError: scikit-learn or, without `clusters`, openTSNE is not installed.
    """
    listed = checked_texts(texts)
    check_clusters(options, len(listed))
    if not listed:
        return Topics((), ())
    units = unit_vectors(model, listed, vectors, batch_tokens=computing.batch_tokens, on_progress=on_progress)
    return describe(listed, units, find_clusters(units, options), options)


def missing_package(options: ClusterOptions) -> str | None:
    """Returns the name of a package that finding clusters needs and that is not installed; `None` if there is none."""
    needed = {"sklearn": "scikit-learn"} | ({"openTSNE": "openTSNE"} if options.clusters is None else {})
    return next((name for module, name in needed.items() if find_spec(module) is None), None)


def check_clusters(options: ClusterOptions, texts: int | None = None) -> None:
    """Raises an error if a package is missing, or if there are fewer texts than clusters."""
    if (missing := missing_package(options)) is not None:
        raise MlxbertError(f"finding topics needs {missing}, which is not installed", hint=install_command("cluster"))
    if texts and options.clusters is not None and options.clusters > texts:
        raise ArgumentError(f"clusters is {options.clusters:,}, expected at most the number of texts, {texts:,}")


def find_clusters(vectors: "Vectors", options: ClusterOptions) -> "Numbers":
    """Returns the number of the cluster of each vector, (N,), the largest cluster first; `OUTLIER` for none.

    Args:
        vectors: The vectors, (N, W), of length 1.
        options: How to find clusters.
    """
    import numpy as np

    with warnings.catch_warnings(action="ignore"):  # of k-means about vectors that are equal
        labels = _by_means(vectors, options) if options.clusters is not None else _by_density(vectors, options)
    sizes = Counter(labels[labels != OUTLIER].tolist())
    first = {label: place for place, label in reversed([*enumerate(labels.tolist())])}
    order = sorted(sizes, key=lambda label: (-sizes[label], first[label]))
    numbers = {label: number for number, label in enumerate(order)}
    if options.clusters is not None and len(order) < options.clusters:
        _LOG.warning("found %d of %d clusters, because many texts have the same vector", len(order), options.clusters)
    return np.array([numbers.get(label, OUTLIER) for label in labels.tolist()], np.int64)


def _by_means(vectors: "Vectors", options: ClusterOptions) -> "Numbers":
    from sklearn.cluster import KMeans, MiniBatchKMeans

    kind = MiniBatchKMeans if len(vectors) > _MANY else KMeans
    labels: Numbers = kind(options.clusters, n_init=_STARTS, random_state=options.seed).fit_predict(vectors)
    return labels


def _by_density(vectors: "Vectors", options: ClusterOptions) -> "Numbers":
    import numpy as np
    from sklearn.cluster import HDBSCAN

    from mlxbert.explore.places import places_of

    if len(vectors) < options.min_size:
        return np.full(len(vectors), OUTLIER)
    places = places_of(vectors, "tsne", options.seed, _EXAGGERATION)
    if not places.any():  # all vectors are equal
        return np.zeros(len(vectors), np.int64)
    labels: Numbers = HDBSCAN(min_cluster_size=options.min_size).fit_predict(places)
    return np.maximum(labels, OUTLIER)


def describe(texts: Sequence[str], vectors: "Vectors", labels: "Numbers", options: ClusterOptions) -> Topics:
    """Returns the topics of texts in clusters.

    Args:
        texts: The texts.
        vectors: Their vectors, (N, W), of length 1.
        labels: The number of each text's cluster, (N,).
        options: How many words and texts describe a topic.
    """
    import numpy as np

    listed = labels.tolist()
    words = distinguishing_words(texts, listed, options.words)
    topics = []
    for number in range(max(listed, default=OUTLIER) + 1):
        members = np.flatnonzero(labels == number)
        nearness = vectors[members] @ vectors[members].mean(0)
        typical = members[np.argsort(-nearness, kind="stable")[: options.typical]]
        topics.append(Topic(number, len(members), words[number], tuple(typical.tolist())))
    return Topics(tuple(listed), tuple(topics))
