"""`mlxbert.cluster`: finds topics among many texts, and describes each by its words and by typical texts.

Shapes: N texts, W values per vector.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from math import log
from typing import Any, TypeAlias

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.explore.near_vectors import checked_texts, unit_vectors
from mlxbert.explore.options import ClusterOptions
from mlxbert.explore.results import Topic, Topics, TopicWord
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.other_libraries import install_command
from mlxbert.progress import OnProgress
from mlxbert.readers.front_matter import front_matter_end
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import TaskOptions
from mlxbert.text.words import UNSPACED, split_words

Vectors: TypeAlias = "NDArray[np.float32]"
Numbers: TypeAlias = "NDArray[np.int64]"

_LOG = logging.getLogger("mlxbert")
_MANY = 10_000  # texts from which k-means looks at samples
_STARTS = 10  # of k-means, of which the best is taken
_EXAGGERATION = 4  # of the coordinates in which HDBSCAN looks for dense regions
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
        raise ArgumentError(f"`clusters` is {options.clusters:,}, expected at most the number of texts, {texts:,}")


def find_clusters(vectors: "Vectors", options: ClusterOptions) -> "Numbers":
    """Returns the number of the cluster of each vector, (N,), the largest cluster first; `OUTLIER` for none.

    Args:
        vectors: The vectors, (N, W), of length 1.
    """
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
    from sklearn.cluster import HDBSCAN

    from mlxbert.explore.projection import coordinates_of

    if len(vectors) < options.min_size:
        return np.full(len(vectors), OUTLIER)
    coordinates = coordinates_of(vectors, "tsne", options.seed, _EXAGGERATION)
    if not coordinates.any():  # all vectors are equal
        return np.zeros(len(vectors), np.int64)
    labels: Numbers = HDBSCAN(min_cluster_size=options.min_size).fit_predict(coordinates)
    return np.maximum(labels, OUTLIER)


def describe(texts: Sequence[str], vectors: "Vectors", labels: "Numbers", options: ClusterOptions) -> Topics:
    """Returns the topics of texts in clusters.

    Args:
        vectors: Their vectors, (N, W), of length 1.
        labels: The number of each text's cluster, (N,).
    """
    listed = labels.tolist()
    words = distinguishing_words(texts, listed, options.words)
    topics = []
    for number in range(max(listed, default=OUTLIER) + 1):
        members = np.flatnonzero(labels == number)
        nearness = vectors[members] @ vectors[members].mean(0)
        typical = members[np.argsort(-nearness, kind="stable")[: options.typical]]
        topics.append(Topic(number, len(members), words[number], tuple(typical.tolist())))
    return Topics(tuple(listed), tuple(topics))


_LIFT = 2.5  # how much larger the share of the group's texts with a word must be than that of the other texts
# Among few texts, no count tells words without a subject from others. Some of them are words with one in the other
# language ("die", "war"), so a list counts only if enough words of the texts are in it.
_ENGLISH = """about after again all also am an and any are as at be because been before being but by can cannot could
    did do does down each either every few for from get got had has have he her here hers him his how if in into is
    it its just me more most my no nor not now of off on once one only or other our out over own same she should so
    some still such than that the their them then there these they this those through to too under until up us very
    was we well were what when where which while who whom why will with would yet you your"""
_GERMAN = """aber alle allem allen aller alles als also am an auch auf aus bei beim bin bis da damit dann das dass
    dem den denn der des die dies diese diesem diesen dieser dieses doch dort du durch ein eine einem einen einer
    eines er es etwas euch für gegen hab habe haben hat hatte hatten hier ich ihm ihn ihnen ihr ihre ihrem ihren
    ihrer im in ins ist ja jede jeden jeder jetzt kann kein keine keinen können man mehr mein meine mich mir mit muss
    musste müssen nach nicht noch nun nur ob oder ohne schon sehr sein seine seinem seinen seiner seit sich sie sind
    so soll sollte um und uns unser unsere unter vom von vor war waren was weil wenn wer werden wie wir wird wo wurde
    wurden zu zum zur über"""
_LISTS = [frozenset(words.split()) for words in (_ENGLISH, _GERMAN)]
_SHARED, _SPOKEN = frozenset.intersection(*_LISTS), 0.05


def distinguishing_words(texts: Iterable[str], labels: Sequence[int], count: int) -> dict[int, tuple[TopicWord, ...]]:
    """Returns the words that distinguish each group of texts, best first.

    The score of a word in a group is its share of the group's words times log(1 + A / F), where A is the mean number of
    words of a group, and F how often the word occurs in all groups. Words that are in hardly more texts of the group
    than of the others are left out: among many texts, these are the stop words of any language. Those of English and
    German are left out of few texts, too.

    Args:
        count: The maximum number of words of a group.
    """
    words: dict[int, Counter[str]] = {label: Counter() for label in labels}  # how often each word occurs
    texts_with: dict[int, Counter[str]] = {label: Counter() for label in labels}
    for text, label in zip(texts, labels, strict=True):
        counted = Counter(_words(text))
        words[label].update(counted)
        texts_with[label].update(counted.keys())
    everywhere, all_texts_with = Counter[str](), Counter[str]()
    for label in words:
        everywhere.update(words[label])
        all_texts_with.update(texts_with[label])
    mean, sizes = everywhere.total() / max(len(words), 1), Counter(labels)
    result: dict[int, tuple[TopicWord, ...]] = {}
    for label, counts in words.items():
        least = _LIFT * sizes[label] / max(len(labels) - sizes[label], 1)  # for one text of the others
        heard = [sum(counts[word] for word in own - _SHARED) for own in _LISTS]
        least_words = max(_SPOKEN * counts.total(), max(heard) / 4)
        spoken = _SHARED.union(*(own for own, number in zip(_LISTS, heard, strict=True) if number > least_words))
        scores = {
            word: number / counts.total() * log(1 + mean / everywhere[word])
            for word, number in counts.items()
            if word not in spoken
            and texts_with[label][word] >= least * (all_texts_with[word] - texts_with[label][word])
        }
        best = sorted(scores, key=lambda word: (-scores[word], word))[:count]
        result[label] = tuple(TopicWord(word, scores[word]) for word in best)
    return result


def _words(text: str) -> Iterator[str]:
    """Yields the words of a text in lower case, without punctuation, numbers and single letters.

    In scripts without spaces, each two characters that follow each other make a word.
    """
    text = text[front_matter_end(text) :]  # the keys of the front matter are those of all notes
    spans = [(text[start:end].lower(), start, end) for start, end in split_words(text)]
    for word, _, _ in spans:
        is_contracted = word.startswith(("'", "\u2019")) or word.endswith(("n't", "n\u2019t"))
        if len(word) > 1 and any(map(str.isalpha, word)) and not (is_contracted or UNSPACED.match(word)):
            yield word
    for (word, _, end), (following, start, _) in pairwise(spans):
        if end == start and UNSPACED.match(word) and UNSPACED.match(following):
            yield word + following
