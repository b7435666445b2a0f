"""Turns a stream of scored tokens into tagged words and entities. Only the current tokens and words are in memory.

The aggregations are the same as in `TokenClassificationPipeline` of transformers, which has its own rule for where
words begin.

Shapes: T tokens, C tags.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, tee
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from mlxbert.labels.schemes import OUTSIDE, decode, marks_entities, scheme_of, spelled
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.nn.crf import CRF
from mlxbert.results.text_results import Entity
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.words import Span, trimmed, words_of_tokens

Scores: TypeAlias = "NDArray[np.float32]"


class TaggedToken(NamedTuple):
    """A token of a text."""

    span: Span  # the offsets of the token in the text
    id: int
    scores: "Scores"  # the score of each tag, (C,)


@dataclass(frozen=True)
class Word:
    """A word of a text: its offsets in the text, and its tokens (at least one)."""

    span: Span
    tokens: list[TaggedToken]


@dataclass(frozen=True)
class TaggedSpan:
    """A token or a word with its tag."""

    tag: str  # the tag, as named by the model
    span: Span  # the offsets in the text
    score: float  # the probability of the tag


def words_with_tokens(text: str, tokens: Iterable[TaggedToken], words: Iterable[Span]) -> Iterator[Word]:
    """Groups tokens by words.

    A word is left out if a token of an earlier word covers it, so that no token begins in it.

    Args:
        words: The offsets of each word.
    """
    tokens, places = tee(tokens)
    owners = words_of_tokens(text, (token.span for token in places), words)
    owned = ((token, owner) for token, owner in zip(tokens, owners, strict=True) if owner is not None)
    # An invisible mark has no owner, and does not end a word.
    for (_, (start, end)), run in groupby(owned, itemgetter(1)):
        word_tokens = [token for token, _ in run]
        yield Word((start, max(end, trimmed(text, word_tokens[-1].span)[1])), word_tokens)


def pipeline_words(text: str, tokens: Iterable[TaggedToken], tokenizer: Tokenizer) -> Iterator[Word]:
    """Groups tokens into words by the rule of the transformers pipeline, which only looks at tokens."""
    marked = bool(tokenizer.files.spelling.continuation_prefix)
    unknown = tokenizer.token_id(tokenizer.special.get("unk", ""))
    run: list[TaggedToken] = []
    for token in tokens:
        start, end = token.span
        if marked:
            continues = len(tokenizer.token(token.id)) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        if run and not (continues and token.id != unknown):
            yield Word((run[0].span[0], run[-1].span[1]), run)
            run = []
        run.append(token)
    if run:
        yield Word((run[0].span[0], run[-1].span[1]), run)


def tag_tokens(tokens: Iterable[TaggedToken], names: Sequence[str]) -> Iterator[TaggedSpan]:
    """Gives each token its most probable tag."""
    return (_best(token.scores, token.span, names) for token in tokens)


def tag_words(words: Iterable[Word], names: Sequence[str], how: str) -> Iterator[TaggedSpan]:
    """Gives each word its tag.

    Args:
        names: The C tags.
        how: Which scores decide: `first`, the scores of the first token; `average`, the mean scores of all
            tokens; `max`, the scores of the most certain token.
    """
    for word in words:
        rows = np.array([token.scores for token in word.tokens])
        judge = 0 if how == "first" else rows.max(axis=-1).argmax()
        row = rows.mean(axis=0) if how == "average" else rows[judge]
        yield _best(row, word.span, names)


def _best(row: "Scores", span: Span, names: Sequence[str]) -> TaggedSpan:
    tag = int(row.argmax())
    return TaggedSpan(names[tag], span, float(row[tag]))


def decode_words(words: Iterable[Word], names: Sequence[str], crf: CRF) -> Iterator[TaggedSpan]:
    """Gives words the most probable sequence of tags, and each tag its probability over all sequences.

    A CRF decides only after the last word, so the offsets of all words and the scores of their first tokens are kept.

    Args:
        words: The words; the scores of their tokens are logits.
        names: The C tags.
        crf: Scores sequences of tags, given the logits of the first token of each word.
    """
    spans, first_scores = array("q"), array("f")
    for word in words:
        spans.extend(word.span)
        first_scores.frombytes(word.tokens[0].scores.tobytes())
    emissions = np.asarray(first_scores).reshape(-1, len(names))
    tags = crf.decode(emissions)
    places = zip(spans[::2], spans[1::2], strict=True)
    for tag, span, score in zip(tags, places, crf.shares(emissions, tags), strict=True):
        yield TaggedSpan(names[tag], span, float(score))


def group(text: str, tagged: Iterable[TaggedSpan]) -> list[Entity]:
    """Joins adjacent spans of the same type into entities, as the transformers pipeline does: `B-` begins an entity."""
    return [*_entities(text, ((run[0].tag.split("-", 1)[-1], run) for run in _runs(tagged)))]


def _runs(tagged: Iterable[TaggedSpan]) -> Iterator[list[TaggedSpan]]:
    run: list[TaggedSpan] = []
    last = None
    for span in tagged:
        kind = span.tag[2:] if span.tag.startswith(("B-", "I-")) else span.tag
        if run and (span.tag.startswith("B-") or kind != last):
            yield run
            run = []
        last = kind
        if kind != OUTSIDE:  # `O` is left out; it is the tag of most words
            run.append(span)
    if run:
        yield run


def each(text: str, tagged: Iterable[TaggedSpan]) -> list[Entity]:
    """Makes an entity of each token or word whose tag is not `O`."""
    return [*_entities(text, ((span.tag, [span]) for span in tagged))]


def of_words(text: str, words: Iterable[TaggedSpan], names: Sequence[str]) -> list[Entity]:
    """Makes entities of tagged words, as seqeval does; if the tags mark no entities, each word becomes an entity."""
    if not marks_entities(names):
        return [*_entities(text, ((word.tag, [word]) for word in words), leave_out=None)]
    scheme = scheme_of(names)
    return [*_entities(text, (entity for run in _inside(words) for entity in _decoded(run, scheme)))]


def _inside(words: Iterable[TaggedSpan]) -> Iterator[list[TaggedSpan]]:
    """Yields the runs of words between `O` tags. No entity crosses the end of a run, so only one run is in memory."""
    return ([*run] for outside, run in groupby(words, lambda word: word.tag == OUTSIDE) if not outside)


def _decoded(words: Sequence[TaggedSpan], scheme: str) -> Iterator[tuple[str, Sequence[TaggedSpan]]]:
    if scheme == "plain":  # tags are only types: neighbours of the same type are an entity
        tags, scheme = [f"I-{word.tag}" for word in words], "iob1"
    else:
        tags = [spelled(word.tag, scheme) for word in words]
    return ((kind, words[start:end]) for kind, start, end in decode(tags, scheme))


def _entities(
    text: str, runs: Iterable[tuple[str, Sequence[TaggedSpan]]], leave_out: str | None = OUTSIDE
) -> Iterator[Entity]:
    for label, run in runs:
        start, end = trimmed(text, (run[0].span[0], run[-1].span[1]))
        if label != leave_out and start < end:
            score = sum(span.score for span in run) / len(run)
            yield Entity(label, start, end, text[start:end], score)
