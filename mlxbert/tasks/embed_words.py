"""Computes vectors of the words of texts from the hidden states of their tokens."""

from collections.abc import Iterable, Iterator, Sequence

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.results.embed import Words, WordVector
from mlxbert.results.result import Failure
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import EmbedWordsOptions
from mlxbert.tasks.task import one_or_many
from mlxbert.tasks.token_task import Item, Scores, TokenJob, TokenTask
from mlxbert.text.usage import Usage

_WORD_BYTES = 500  # the memory of a `WordVector` and its array, without the numbers


class EmbedWordsTask(TokenTask[Words]):
    """Computes the vectors of the words of a text."""

    name = "embed"
    options: EmbedWordsOptions

    def __init__(self, model: Model, options: EmbedWordsOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        self.part_bytes = 4 * model.config.hidden_size + _WORD_BYTES
        layers = len(model.config.layer_schedule)
        if not -layers - 1 <= options.layer <= layers:
            raise ArgumentError(
                f"`layer` is {options.layer}, expected a number from {-layers - 1} to {layers}",
                hint="0 is the embeddings, 1 the first layer",
            )

    @property
    def output_bytes(self) -> int:
        return 4 * self.model.config.hidden_size * self.tokenizer.max_length

    def units(self, job: TokenJob) -> int:
        """Returns the number of words in the text; for a truncated text, at most the number of its tokens."""
        words = self.count_words(job)
        return words if self.windowed else min(words, job.tokens)

    def forward(self, batch: Batch, parts: Sequence[tuple[TokenJob, int]]) -> mx.array:
        """Returns the hidden states (B, L, D)."""
        output = self.model.network.encoder(
            batch.input_ids, batch.attention_mask, batch.token_type_ids, output_hidden_states=True
        )
        assert output.hidden_states is not None
        return output.hidden_states[self.options.layer].astype(mx.float32)

    def result(self, job: TokenJob, outputs: Sequence["Scores"]) -> Words:
        """Makes the result from the words that have tokens; words that were truncated have none."""
        vectors = []
        for word in self.words(job, self.tokens(job, outputs)):
            start, end = word.span
            mean = np.stack([token.scores for token in word.tokens]).mean(axis=0)
            vectors.append(WordVector(job.text[start:end], start, end, len(word.tokens), mean))
        return Words(job.text, tuple(vectors), job.truncated)


@takes_keywords
def embed_words(
    model: Model, texts: Item | Iterable[Item | InputError], *, options: EmbedWordsOptions, call: CallOptions
) -> Words | Iterator[Words | Failure]:
    """Computes the vector of every word in its context: the mean of the hidden states of its tokens.

    Example:
        >>> model = mlxbert.load()
        >>> result = mlxbert.embed_words(model, "The river bank was muddy.")
        >>> [(word.word, word.embedding.shape) for word in result.words]

    Windows overlap, and each token comes from the window where it is furthest from the edge. `layer` is an index into
    the `hidden_states` of transformers.

    Args:
        model: Any model.
        texts: One text, or any number of texts. A text can also be a list of its words, as in `tag`.
        options: See `EmbedWordsOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is neither a text nor words, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    return one_or_many(EmbedWordsTask, model, texts, options, call)
