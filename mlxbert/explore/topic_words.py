"""Finds the words that distinguish groups of texts, by class-based TF-IDF."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import log

from mlxbert.results.groups import TopicWord
from mlxbert.search.folding import is_unspaced
from mlxbert.text.words import split_words

_LIFT = 2.5  # how much larger the share of the group's texts with a word must be than that of the other texts


def distinguishing_words(texts: Iterable[str], labels: Sequence[int], count: int) -> dict[int, tuple[TopicWord, ...]]:
    """Returns the words that distinguish each group of texts, best first.

    The score of a word in a group is its share of the group's words times log(1 + A / F), where A is the mean number of
    words of a group, and F how often the word occurs in all groups. Words that are in hardly more texts of the group
    than of the others are left out. These are the stop words of any language.

    Args:
        texts: The texts.
        labels: The group of each text.
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
        scores = {
            word: number / counts.total() * log(1 + mean / everywhere[word])
            for word, number in counts.items()
            if texts_with[label][word] >= least * (all_texts_with[word] - texts_with[label][word])
        }
        best = sorted(scores, key=lambda word: (-scores[word], word))[:count]
        result[label] = tuple(TopicWord(word, scores[word]) for word in best)
    return result


def _words(text: str) -> Iterator[str]:
    """Yields the words of a text in lower case, without punctuation, numbers and single letters.

    In scripts without spaces, each two characters that follow each other make a word.
    """
    spans = [(text[start:end].lower(), start, end) for start, end in split_words(text)]
    for word, _, _ in spans:
        if len(word) > 1 and any(letter.isalpha() for letter in word) and not is_unspaced(word):
            yield word
    for (word, _, end), (following, start, _) in pairwise(spans):
        if end == start and is_unspaced(word) and is_unspaced(following):
            yield word + following
