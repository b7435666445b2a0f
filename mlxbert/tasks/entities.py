"""From scores of tokens to tags of words and to entities.

The aggregations are those of `TokenClassificationPipeline` of transformers, with its idea of where words begin.

Shapes: T tokens, C tags.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from mlxbert.nn.crf import CRF
from mlxbert.results import Entity
from mlxbert.tagging import OUTSIDE, decode, scheme_of, spelled
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.words import Span, trimmed, words_of_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores = NDArray[np.float32]

AGGREGATIONS = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class Word:
    """A word of a text: its place, and the numbers of its tokens, of which there is at least one."""

    span: Span
    tokens: list[int]


@dataclass(frozen=True)
class Piece:
    """A token or a word with its tag.

    Attributes:
        tag: The tag as the model names it.
        span: Its place in the text.
        score: Its probability.
    """

    tag: str
    span: Span
    score: float


def words_with_tokens(text: str, tokens: Sequence[Span], words: Sequence[Span]) -> list[Word]:
    """The words that tokens begin in; a word that a token of the word before takes along has none of its own.

    Args:
        text: The text.
        tokens: The place of each token.
        words: The place of each word.
    """
    owners = enumerate(words_of_tokens(text, tokens, words))
    owned = ((place, owner) for place, owner in owners if owner is not None)  # an invisible mark does not end a word
    found = []
    for owner, run in groupby(owned, itemgetter(1)):
        places = [place for place, _ in run]
        start, end = words[owner]
        found.append(Word((start, max(end, trimmed(text, tokens[places[-1]])[1])), places))
    return found


def pipeline_words(text: str, tokens: Sequence[Span], ids: Sequence[int], tokenizer: Tokenizer) -> list[Word]:
    """The words of a text where the pipeline of transformers takes them to be, from nothing but tokens."""
    marked = bool(tokenizer.files.spelling.continuation_prefix)
    unknown = tokenizer.token_id(tokenizer.special.get("unk", ""))
    runs: list[list[int]] = []
    for place, ((start, end), number) in enumerate(zip(tokens, ids, strict=True)):
        if marked:
            continues = len(tokenizer.token(number)) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        if runs and continues and number != unknown:
            runs[-1].append(place)
        else:
            runs.append([place])
    return [Word((tokens[run[0]][0], tokens[run[-1]][1]), run) for run in runs]


def tag_tokens(scores: "Scores", tokens: Sequence[Span], names: Sequence[str]) -> list[Piece]:
    """Each token with its most probable tag; `scores` is (T, C)."""
    return [_best(row, span, names) for row, span in zip(scores, tokens, strict=True)]


def tag_words(scores: "Scores", words: Iterable[Word], names: Sequence[str], how: str) -> list[Piece]:
    """Words with their tags.

    Args:
        scores: (T, C).
        words: The words.
        names: The C tags.
        how: `first`: the tag of its first token; `average`: that of the mean of its tokens; `max`: that of the token
            that is most certain.
    """
    found = []
    for word in words:
        rows = scores[word.tokens]
        judge = 0 if how == "first" else rows.max(axis=-1).argmax()
        row = rows.mean(axis=0) if how == "average" else rows[judge]
        found.append(_best(row, word.span, names))
    return found


def _best(row: "Scores", span: Span, names: Sequence[str]) -> Piece:
    tag = int(row.argmax())
    return Piece(names[tag], span, float(row[tag]))


def decode_words(logits: "Scores", words: Sequence[Word], names: Sequence[str], crf: CRF) -> list[Piece]:
    """Words with the tags that are the most probable together, each with its probability among all sequences.

    Args:
        logits: (T, C).
        words: The words.
        names: The C tags.
        crf: Scores sequences of tags, by the logits of the first token of each word.
    """
    emissions = logits[[word.tokens[0] for word in words]]
    shares = crf.marginals(emissions)
    tags = zip(words, crf.decode(emissions), shares, strict=True)
    return [Piece(names[tag], word.span, float(row[tag])) for word, tag, row in tags]


def group(text: str, tagged: Iterable[Piece]) -> list[Entity]:
    """Neighbours of one type, up to the next `B-`, as the pipeline of transformers groups them; without `O`."""
    runs: list[list[Piece]] = []
    last = None
    for one in tagged:
        begins = one.tag.startswith("B-")
        kind = one.tag[2:] if one.tag.startswith(("B-", "I-")) else one.tag
        if begins or kind != last or not runs:
            runs.append([])
        runs[-1].append(one)
        last = kind
    return [*_entities(text, ((run[0].tag.split("-", 1)[-1], run) for run in runs))]


def each(text: str, tagged: Iterable[Piece]) -> list[Entity]:
    """Every token or word under its tag; without `O`."""
    return [*_entities(text, ((one.tag, [one]) for one in tagged))]


def marks_entities(names: Iterable[str]) -> bool:
    """Whether tags mark entities, and not something that every word has, as parts of speech."""
    names = {*names}
    return OUTSIDE in names or scheme_of(names) != "plain"


def of_words(text: str, words: Sequence[Piece], names: Sequence[str]) -> list[Entity]:
    """Words under their tags; where these make up entities, the entities, as seqeval reads them.

    Args:
        text: The text.
        words: The words with their tags.
        names: All tags of the model.
    """
    if not marks_entities(names):
        return [*_entities(text, ((word.tag, [word]) for word in words), leave_out=None)]
    scheme = scheme_of(names)
    if scheme == "plain":  # types alone: neighbours of one type are an entity
        tags, scheme = [word.tag if word.tag == OUTSIDE else f"I-{word.tag}" for word in words], "iob1"
    else:
        tags = [spelled(word.tag, scheme) for word in words]
    return [*_entities(text, ((kind, words[start:end]) for kind, start, end in decode(tags, scheme)))]


def _entities(
    text: str, runs: Iterable[tuple[str, Sequence[Piece]]], leave_out: str | None = OUTSIDE
) -> Iterator[Entity]:
    for label, run in runs:
        start, end = trimmed(text, (run[0].span[0], run[-1].span[1]))
        if label != leave_out and start < end:
            score = sum(one.score for one in run) / len(run)
            yield Entity(label, start, end, text[start:end], score)
