"""Finds the words that distinguish groups of texts, by class-based TF-IDF."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import log

from mlxbert.results.groups import TopicWord
from mlxbert.search.folding import is_unspaced
from mlxbert.text.words import split_words

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
_LISTS, _SPOKEN = [frozenset(words.split()) for words in (_ENGLISH, _GERMAN)], 0.15


def distinguishing_words(texts: Iterable[str], labels: Sequence[int], count: int) -> dict[int, tuple[TopicWord, ...]]:
    """Returns the words that distinguish each group of texts, best first.

    The score of a word in a group is its share of the group's words times log(1 + A / F), where A is the mean number of
    words of a group, and F how often the word occurs in all groups. Words that are in hardly more texts of the group
    than of the others are left out: among many texts, these are the stop words of any language. Those of English and
    German are left out of few texts, too.

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
    least_words = _SPOKEN * everywhere.total()
    spoken = [listed for listed in _LISTS if sum(everywhere[word] for word in listed) > least_words]
    mean, sizes = everywhere.total() / max(len(words), 1), Counter(labels)
    result: dict[int, tuple[TopicWord, ...]] = {}
    for label, counts in words.items():
        least = _LIFT * sizes[label] / max(len(labels) - sizes[label], 1)  # for one text of the others
        scores = {
            word: number / counts.total() * log(1 + mean / everywhere[word])
            for word, number in counts.items()
            if not any(word in listed for listed in spoken)
            and texts_with[label][word] >= least * (all_texts_with[word] - texts_with[label][word])
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
        is_contracted = word.startswith(("'", "\u2019")) or word.endswith(("n't", "n\u2019t"))
        if len(word) > 1 and any(map(str.isalpha, word)) and not (is_contracted or is_unspaced(word)):
            yield word
    for (word, _, end), (following, start, _) in pairwise(spans):
        if end == start and is_unspaced(word) and is_unspaced(following):
            yield word + following
