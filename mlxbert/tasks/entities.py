"""From scores of tokens to tags of words and to entities, one after the other: nothing is kept of the others.

The aggregations are those of `TokenClassificationPipeline` of transformers, with its idea of where words begin.

Shapes: T tokens, C tags.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, tee
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from mlxbert.labels.schemes import OUTSIDE, decode, marks_entities, scheme_of, spelled
from mlxbert.nn.crf import CRF
from mlxbert.results.tag import Entity
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.words import Span, trimmed, words_of_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores = NDArray[np.float32]


class TaggedToken(NamedTuple):
    """A token of a text.

    Attributes:
        span: Its place in the text.
        id: Its id.
        scores: (C,).
    """

    span: Span
    id: int
    scores: "Scores"


@dataclass(frozen=True)
class Word:
    """A word of a text: its place, and its tokens, of which there is at least one."""

    span: Span
    tokens: list[TaggedToken]


@dataclass(frozen=True)
class TaggedSpan:
    """A token or a word with its tag.

    Attributes:
        tag: The tag as the model names it.
        span: Its place in the text.
        score: Its probability.
    """

    tag: str
    span: Span
    score: float


def words_with_tokens(text: str, tokens: Iterable[TaggedToken], words: Iterable[Span]) -> Iterator[Word]:
    """The words that tokens begin in; a word that a token of the word before takes along has none of its own.

    Args:
        text: The text.
        tokens: Its tokens.
        words: The place of each word.
    """
    tokens, places = tee(tokens)
    owners = words_of_tokens(text, (token.span for token in places), words)
    owned = ((token, owner) for token, owner in zip(tokens, owners, strict=True) if owner is not None)
    for (_, (start, end)), run in groupby(
        owned, itemgetter(1)
    ):  # an invisible mark, without owner, does not end a word
        own = [token for token, _ in run]
        yield Word((start, max(end, trimmed(text, own[-1].span)[1])), own)


def pipeline_words(text: str, tokens: Iterable[TaggedToken], tokenizer: Tokenizer) -> Iterator[Word]:
    """The words of a text where the pipeline of transformers takes them to be, from nothing but tokens."""
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
    """Each token with its most probable tag."""
    return (_best(token.scores, token.span, names) for token in tokens)


def tag_words(words: Iterable[Word], names: Sequence[str], how: str) -> Iterator[TaggedSpan]:
    """Words with their tags.

    Args:
        words: The words.
        names: The C tags.
        how: `first`: the tag of its first token; `average`: that of the mean of its tokens; `max`: that of the token
            that is most certain.
    """
    import numpy as np

    for word in words:
        rows = np.array([token.scores for token in word.tokens])
        judge = 0 if how == "first" else rows.max(axis=-1).argmax()
        row = rows.mean(axis=0) if how == "average" else rows[judge]
        yield _best(row, word.span, names)


def _best(row: "Scores", span: Span, names: Sequence[str]) -> TaggedSpan:
    tag = int(row.argmax())
    return TaggedSpan(names[tag], span, float(row[tag]))


def decode_words(words: Iterable[Word], names: Sequence[str], crf: CRF) -> Iterator[TaggedSpan]:
    """Words with the tags that are the most probable together, each with its probability among all sequences.

    A CRF decides when it has seen all words: their places and the scores of their first tokens are kept.

    Args:
        words: The words; the scores of their tokens are logits.
        names: The C tags.
        crf: Scores sequences of tags, by the logits of the first token of each word.
    """
    import numpy as np

    spans, kept = array("q"), array("f")
    for word in words:
        spans.extend(word.span)
        kept.frombytes(word.tokens[0].scores.tobytes())
    emissions = np.asarray(kept).reshape(-1, len(names))
    tags = crf.decode(emissions)
    places = zip(spans[::2], spans[1::2], strict=True)
    for tag, span, score in zip(tags, places, crf.shares(emissions, tags), strict=True):
        yield TaggedSpan(names[tag], span, float(score))


def group(text: str, tagged: Iterable[TaggedSpan]) -> list[Entity]:
    """Neighbours of one type, up to the next `B-`, as the pipeline of transformers groups them; without `O`."""
    return [*_entities(text, ((run[0].tag.split("-", 1)[-1], run) for run in _runs(tagged)))]


def _runs(tagged: Iterable[TaggedSpan]) -> Iterator[list[TaggedSpan]]:
    run: list[TaggedSpan] = []
    last = None
    for one in tagged:
        kind = one.tag[2:] if one.tag.startswith(("B-", "I-")) else one.tag
        if run and (one.tag.startswith("B-") or kind != last):
            yield run
            run = []
        last = kind
        if kind != OUTSIDE:  # most of a text, and left out
            run.append(one)
    if run:
        yield run


def each(text: str, tagged: Iterable[TaggedSpan]) -> list[Entity]:
    """Every token or word under its tag; without `O`."""
    return [*_entities(text, ((one.tag, [one]) for one in tagged))]


def of_words(text: str, words: Iterable[TaggedSpan], names: Sequence[str]) -> list[Entity]:
    """Words under their tags; where these make up entities, the entities, as seqeval reads them.

    Args:
        text: The text.
        words: The words with their tags.
        names: All tags of the model.
    """
    if not marks_entities(names):
        return [*_entities(text, ((word.tag, [word]) for word in words), leave_out=None)]
    scheme = scheme_of(names)
    return [*_entities(text, (found for run in _inside(words) for found in _decoded(run, scheme)))]


def _inside(words: Iterable[TaggedSpan]) -> Iterator[list[TaggedSpan]]:
    """The longest runs of words in entities: no entity goes beyond one, so that the others need not be kept."""
    return ([*run] for outside, run in groupby(words, lambda word: word.tag == OUTSIDE) if not outside)


def _decoded(words: Sequence[TaggedSpan], scheme: str) -> Iterator[tuple[str, Sequence[TaggedSpan]]]:
    if scheme == "plain":  # types alone: neighbours of one type are an entity
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
            score = sum(one.score for one in run) / len(run)
            yield Entity(label, start, end, text[start:end], score)
