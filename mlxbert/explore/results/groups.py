"""Results about many texts together: which repeat each other, and what they are about."""

from dataclasses import dataclass

from mlxbert.results.result import Result


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
class DoubleGroup(Result):
    """A text that is kept, and the texts that repeat it.

    Attributes:
        kept: The index of the text that is kept, from 0.
        doubles: The indices of the other texts, in ascending order.
        scores: For each of the other texts, its similarity to the kept text: the cosine of the vectors, or 1 if the
            texts are equal.
    """

    kept: int
    doubles: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Doubles(Result):
    """The texts that repeat others.

    Attributes:
        texts: The number of texts.
        groups: The groups of at least two texts, sorted by the text that is kept. Other texts have no double.
    """

    texts: int
    groups: tuple[DoubleGroup, ...]

    @property
    def dropped(self) -> frozenset[int]:
        """The indices of the texts that repeat a kept one."""
        return frozenset(double for group in self.groups for double in group.doubles)

    @property
    def kept(self) -> list[int]:
        """The indices of the texts that remain: the kept text of each group, and texts without a double."""
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
