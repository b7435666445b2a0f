"""The results of this room: groups of texts, topics, senses, explanations and attention."""

from dataclasses import dataclass, field
from typing import Any

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.results.json import NOT_IN_JSON, Each, listed
from mlxbert.results.result import Result, grid
from mlxbert.results.short_repr import Brief
from mlxbert.results.text_results import Token


@dataclass(frozen=True)
class SimilarPair(Result):
    """Two texts with their similarity.

    Attributes:
        score: The cosine of the vectors, -1 to 1.
        first: The index of one text, from 0.
        second: The index of the other text, larger than `first`.
    """

    score: float
    first: int
    second: int


@dataclass(frozen=True)
class DuplicateGroup(Result):
    """A text that is kept, and the texts that repeat it.

    Attributes:
        kept: The index of the text that is kept, from 0.
        duplicates: The indices of the other texts, in ascending order.
        scores: For each of the other texts, its similarity to the kept text: the cosine of the vectors, or 1 if the
            texts are equal.
    """

    kept: int
    duplicates: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Duplicates(Result):
    """The texts that repeat others.

    Attributes:
        texts: The number of texts.
        groups: The groups of at least two texts, sorted by the text that is kept. Other texts have no duplicate.
    """

    texts: int
    groups: tuple[DuplicateGroup, ...]

    @property
    def dropped(self) -> frozenset[int]:
        """The indices of the texts that repeat a kept one."""
        return frozenset(duplicate for group in self.groups for duplicate in group.duplicates)

    @property
    def kept(self) -> list[int]:
        """The indices of the texts that remain: the kept text of each group, and texts without a duplicate."""
        dropped = self.dropped
        return [index for index in range(self.texts) if index not in dropped]


@dataclass(frozen=True)
class TopicWord(Result):
    """A word that distinguishes a topic.

    Attributes:
        word: The word in lower case.
        score: Its class-based TF-IDF.
    """

    word: str
    score: float


@dataclass(frozen=True)
class Topic(Result):
    """A group of texts about the same thing.

    Attributes:
        topic: The number of the topic, from 0; the largest topic comes first.
        size: The number of texts.
        words: The words that distinguish the topic from the others, best first.
        typical: The indices of the texts nearest to the mean vector of the topic, nearest first.
    """

    topic: int
    size: int
    words: tuple[TopicWord, ...]
    typical: tuple[int, ...]


@dataclass(frozen=True)
class Topics(Result):
    """The topics of many texts.

    Attributes:
        labels: The topic of each text; -1 for a text that belongs to none.
        topics: The topics, largest first.
    """

    labels: tuple[int, ...]
    topics: tuple[Topic, ...]

    @property
    def outliers(self) -> int:
        """The number of texts that belong to no topic."""
        return self.labels.count(-1)


@dataclass(frozen=True)
class Occurrence(Brief):
    """A place where a word occurs.

    Attributes:
        index: The number of the text, from 0.
        start: The first code point of the word in the text.
        end: The code point after the word.
        sense: The number of the sense, from 0, that the word has there.
    """

    index: int
    start: int
    end: int
    sense: int


@dataclass(frozen=True)
class TypicalLine(Brief):
    """A typical line of a sense: the text around the word.

    Attributes:
        index: The number of the text, from 0.
        text: The whole text.
        start: The first code point of the word in the text.
        end: The code point after the word.
    """

    index: int
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Substitute(Brief):
    """A word that could stand in the place of another one.

    Attributes:
        word: The word.
        score: Its probability there, the mean of the typical lines.
    """

    word: str
    score: float


@dataclass(frozen=True)
class Sense(Brief):
    """A group of places where a word has the same meaning.

    Attributes:
        count: The number of places.
        substitutes: The words that could stand there, the most typical of this sense first; empty if the model has no
            head that predicts words.
        typical: The most typical lines.
    """

    count: int
    substitutes: tuple[Substitute, ...]
    typical: tuple[TypicalLine, ...]


@dataclass(frozen=True)
class Senses(Result):
    """The senses in which texts use a word.

    Attributes:
        word: The word.
        texts: The number of texts.
        senses: The senses, the most frequent first.
        silhouette: How distinct the senses are, from -1 to 1: the mean silhouette of the vectors. 0 for a single sense.
        occurrences: Every place where the word occurs, in the order of the texts.
    """

    word: str
    texts: int
    senses: tuple[Sense, ...]
    silhouette: float
    occurrences: tuple[Occurrence, ...]


SIMILARITY = "similarity"  # the target of two texts that are compared


@dataclass(frozen=True)
class Share(Brief):
    """The part of a token, or of a word, in a score.

    Attributes:
        token: The token in the spelling of the vocabulary, or the word as it stands in the text.
        text: The number of the text that it belongs to: 0, or 1 for the second text.
        start: The first code point of it in its text; equals `end` for a special token.
        end: The code point after it.
        score: What it adds to the score; negative if it speaks against the target.
    """

    token: str
    text: int
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Explanation(Result):
    """Which tokens decided a result.

    Attributes:
        text: The text.
        pair: The second text; `None` if there is one text.
        target: What is explained: a label, a word, `similarity`, or `relevance`.
        method: `gradients` or `occlusion`.
        score: The output of the model for the target: a logit, or a similarity.
        baseline_score: The same output for the baseline, in which each token of the text is replaced by a neutral one.
        gap: What the sum of the tokens' scores lacks of `score` - `baseline_score`; for the similarity of two texts, of
            twice this difference, as each text has its own baseline. `None` for occlusion: its scores need not add up.
        tokens: The tokens, special ones included, in the order of the input.
        words: The words with the sums of their tokens, in the order of the text.
        truncated: Whether the text was truncated.
    """

    text: str
    pair: str | None
    target: str
    method: str
    score: float
    baseline_score: float
    gap: float | None
    tokens: tuple[Share, ...]
    words: tuple[Share, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)


@dataclass(frozen=True, eq=False)
class Attention(Result):
    """The attention weights of a text: how much of its attention each token gives to every token.

    Attributes:
        text: The text.
        pair: The second text, if there is one.
        tokens: The tokens, special ones included.
        layers: The numbers of the layers, from 0.
        heads: The numbers of the heads, from 0; empty for a rollout.
        weights: float32 (layers, heads, tokens, tokens); they add up to 1 along the last axis. For a rollout, (layers,
            1, tokens, tokens).
        truncated: Whether the text was truncated.
        rollout: Whether the weights are those of a rollout: the product of all layers up to each one.
    """

    text: str
    pair: str | None
    tokens: tuple[Token, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    weights: "NDArray[np.float32]"
    truncated: bool = False
    rollout: bool = False

    @property
    def mean(self) -> "NDArray[np.float32]":
        """The mean over layers and heads, (tokens, tokens); of a rollout, its last layer."""
        if self.rollout:
            return self.weights[self.layers.index(max(self.layers)), 0]
        average: NDArray[np.float32] = self.weights.mean(axis=(0, 1))
        return average

    def _repr_html_(self) -> str:
        names = [token.token for token in self.tokens]
        return grid(["", *names], [[name, *row] for name, row in zip(names, self.mean.tolist(), strict=True)])

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the JSON of the command line, with weights rounded to six decimals."""
        pair = {} if self.pair is None else {"pair": self.pair}
        return {
            "text": self.text, **pair, "tokens": [token.token for token in self.tokens], "layers": [*self.layers],
            "heads": [*self.heads], "attention": self.weights.astype(float).round(6).tolist(),
            **({"truncated": True} if self.truncated else {}), **({"rollout": True} if self.rollout else {}),
        }  # fmt: skip
