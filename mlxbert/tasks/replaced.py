"""Replaced-token detection: finds the tokens of a text that have replaced the original ones."""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from mlxbert.errors import InputError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Replaced, ReplacedToken
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import ReplacedOptions
from mlxbert.tasks.task import PreparedItem, Task, check_finite, one_or_many
from mlxbert.text.window_stitching import best_windows


class ReplacedTask(Task[str, PreparedItem[str], list[float], Replaced]):
    """Computes for each token of a text the probability that it is a replacement."""

    name = "replaced"
    part_bytes = 360  # the memory of a `ReplacedToken`

    def prepare(self, item: str) -> PreparedItem[str]:
        """Tokenizes a text; windows overlap by a quarter."""
        tokenizer = self.model.tokenizer
        if self.windowed:
            return PreparedItem(item, tokenizer.windows(item, stride=tokenizer.max_length // 4), False)
        encoding = self.encode(item)
        return PreparedItem(item, [encoding], encoding.truncated)

    @property
    def output_bytes(self) -> int:
        """The memory of the outputs of the longest input, in bytes: a Python number for each token."""
        return 32 * self.tokenizer.max_length

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the probabilities (B, L)."""
        return mx.sigmoid(self.model.network.logits("discriminator", batch).astype(mx.float32))

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> list[list[float]]:
        """Returns the probabilities of the tokens of each row, including padding."""
        return cast(list[list[float]], arrays.tolist())

    def result(self, job: PreparedItem[str], outputs: Sequence[list[float]]) -> Replaced:
        """Makes the result: the tokens with their scores, each from the window where it is furthest from the edge."""
        tokens = []
        for number, place in best_windows(job.encodings):
            window, score = job.encodings[number], outputs[number][place]
            name, (start, end) = self.model.tokenizer.token(window.ids[place]), window.offsets[place]
            tokens.append(ReplacedToken(name, window.positions[place], start, end, score, score > 0.5))
        check_finite([token.score for token in tokens])
        return Replaced(job.item, tuple(tokens), job.truncated)


@takes_keywords
def replaced(
    model: Model, texts: str | Iterable[str | InputError], *, options: ReplacedOptions, call: CallOptions
) -> Replaced | Iterator[Replaced | Failure]:
    """Scores every token of a text by how likely it is to be a replacement.

    Windows overlap, and a token is scored in the window where it is furthest from the edge.

    Example:
        >>> model = mlxbert.load("google/electra-small-discriminator", task="replaced")
        >>> result = mlxbert.replaced(model, "The quick brown fox fake over the lazy dog.")
        >>> [token.token for token in result.tokens if token.replaced]

    Args:
        model: A model with a discriminator: ELECTRA (arXiv:2003.10555).
        texts: One text, or any number of texts.
        options: See `ReplacedOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a text, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    return one_or_many(ReplacedTask, model, texts, options, call)
