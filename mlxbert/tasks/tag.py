"""Tagging: entities, or the tag of every word, in texts of any length.

Shapes: B batch, L length, T tokens of a text, C tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from mlxbert.device import mx
from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import TokenClassifier, probabilities
from mlxbert.results import Entity, Tagged
from mlxbert.tasks import entities
from mlxbert.tasks.task import Job, Task, check_finite, task_function
from mlxbert.text.batch import Usage
from mlxbert.text.stitch import best_windows
from mlxbert.text.words import Span, split_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores = NDArray[np.float32]

HEAD = "token_classifier"
Item = str | tuple[str, ...]  # a text, or its words; among several these may be a list


@dataclass(frozen=True)
class TagJob(Job[Item]):
    """A text and its words.

    Attributes:
        text: The text; that of words is the words with spaces between them.
        words: The words that were given; `None` for a text.
        chosen: For each window the indices of the tokens that it judges; those of all windows in a row are the text's.
    """

    text: str
    words: list[Span] | None
    chosen: list[list[int]]

    def each(self, name: str) -> list[Any]:
        """What `name` of `Encoding` says of each token of the text, without special tokens."""
        pairs = zip(self.encodings, self.chosen, strict=True)
        return [getattr(window, name)[place] for window, places in pairs for place in places]


class TagTask(Task[Item, TagJob, "Scores", Tagged]):
    """The entities of a text, or its words with their tags.

    Attributes:
        names: The tags of the model.
        aggregation: One of `AGGREGATIONS`; `None` for words as in the training data of taggers.
        crf: The CRF that decides over the tags of words; `None` without one, or where the aggregation asks for tokens.
    """

    name = "tag"
    overflows = ("window", "truncate", "error")

    def __init__(
        self,
        model: Model,
        aggregation: str | None,
        overflow: str,
        batch_tokens: int | None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(model, overflow, batch_tokens, usage)
        if aggregation not in (None, *entities.AGGREGATIONS):
            expected = ", ".join(entities.AGGREGATIONS)
            raise ArgumentError(f"aggregation is {aggregation!r:.60}, expected None or one of {expected}")
        assert model.labels is not None  # a model with the head has labels
        self.names, self.aggregation = model.labels.names, aggregation
        head = cast(TokenClassifier, model.network.heads[HEAD])
        self.crf = head.crf if aggregation is None and "crf" in head else None

    def is_item(self, given: object) -> bool:
        """Whether `given` is a text, or the words of one: a tuple, since a list may hold any number of texts."""
        words = isinstance(given, tuple) and all(isinstance(word, str) for word in given)
        return isinstance(given, str) or words

    def prepare(self, item: Item) -> TagJob:
        """Tokenizes a text or its words; windows overlap by a quarter."""
        text, words = _joined(item)
        tokenizer = self.model.tokenizer
        if self.overflow == "window":
            encodings = tokenizer.windows(text, stride=tokenizer.max_length // 4)
        else:
            encodings = [tokenizer.encode(text, overflow=self.overflow)]
        chosen: list[list[int]] = [[] for _ in encodings]
        for window, place in best_windows(encodings):
            chosen[window].append(place)
        truncated = self.overflow == "truncate" and encodings[0].truncated
        return TagJob(item, encodings, truncated, text, words, chosen)

    def forward(self, batch: Batch, parts: Sequence[tuple[TagJob, int]]) -> list["Scores"]:
        """For each row the probabilities, or logits for a CRF, of the tokens that it judges."""
        import numpy as np

        logits = self.model.network.logits(HEAD, batch)
        rows = np.array(logits.astype(mx.float32) if self.crf is not None else probabilities(logits))
        return [row[job.chosen[number]] for row, (job, number) in zip(rows, parts, strict=True)]

    def result(self, job: TagJob, outputs: Sequence["Scores"]) -> Tagged:
        """The entities of a text."""
        import numpy as np

        scores = np.concatenate(outputs)
        check_finite([float(scores.sum())])
        return Tagged(job.text, tuple(self._entities(job, scores)), job.truncated)

    def _entities(self, job: TagJob, scores: "Scores") -> list[Entity]:
        how, text, names, tokens = self.aggregation, job.text, self.names, job.each("offsets")
        if how in ("none", "simple"):
            pieces = entities.tag_tokens(scores, tokens, names)
            return entities.each(text, pieces) if how == "none" else entities.group(text, pieces)
        if job.words is None and how is not None:
            words = entities.pipeline_words(text, tokens, job.each("ids"), self.model.tokenizer)
        else:
            words = entities.words_with_tokens(text, tokens, split_words(text) if job.words is None else job.words)
        if how is not None:
            return entities.group(text, entities.tag_words(scores, words, names, how))
        if self.crf is not None:
            return entities.of_words(text, entities.decode_words(scores, words, names, self.crf), names)
        return entities.of_words(text, entities.tag_words(scores, words, names, "first"), names)


@task_function("texts")
def tag(
    model: Model,
    *,
    aggregation: str | None = None,
    overflow: str = "window",
    batch_tokens: int | None = None,
    usage: Usage | None = None,
) -> TagTask:
    """Finds entities in texts, or tags their words, with a token classifier.

    Example:
        >>> model = mlxbert.load("dslim/bert-base-NER", task="tag")
        >>> result = mlxbert.tag(model, "Angela Merkel was born in Hamburg.")
        >>> [(entity.label, entity.text) for entity in result.entities]

    Args:
        model: A model with a token classifier.
        texts: One text, or any number of texts. In place of a text its words can be given: among several a list or a
            tuple, a single one as a tuple. The words are joined by spaces, and offsets are those of this text.
        aggregation: `None` takes the tag of each word from its first token, as taggers are trained, or from the CRF if
            the model has one, and returns entities, or every word where the tags mark no entities (parts of speech).
            The others are those of transformers: `none` returns every token with its tag, `simple` joins neighbouring
            tokens of a type, `first`, `average` and `max` join neighbouring words of a type, whose tags come from the
            first token, the mean of the tokens, or the most certain one. They leave out the tag `O`, and the CRF.
        overflow: A text too long for the model: `window` covers it with overlapping windows and takes each token's
            scores from the window where it is furthest from the edge, `truncate` drops its end, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.
        usage: Counts tokens, padding and truncated inputs.
        on_error: `raise`, or `return` a Failure in place of a text that cannot be used.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: Neither a text nor words, or too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    return TagTask(model, aggregation, overflow, batch_tokens, usage)


def _joined(item: Item) -> tuple[str, list[Span] | None]:
    """The text, and the places of its words where words are given.

    Raises:
        InputError: It is neither a text nor words.
    """
    if isinstance(item, str):
        return item, None
    if not isinstance(item, list | tuple) or not all(isinstance(word, str) for word in item):
        raise InputError(f"expected a text or a list of its words, found {item!r:.60}")
    ends = [*accumulate(len(word) + 1 for word in item)]
    return " ".join(item), [(end - 1 - len(word), end - 1) for word, end in zip(item, ends, strict=True)]
