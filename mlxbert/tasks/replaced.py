"""Replaced-token detection: which tokens of a text replace the original ones?"""

from collections.abc import Sequence
from typing import cast

from mlxbert.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.results import Replaced, ReplacedToken
from mlxbert.tasks.task import Job, Task, check_finite, task_function


class ReplacedTask(Task[str, Job[str], list[float], Replaced]):
    """The probability of every token that it is a replacement."""

    name = "replaced"
    overflows = ("window", "truncate", "error")

    def prepare(self, item: str) -> Job[str]:
        """Tokenizes a text; windows overlap by a quarter."""
        tokenizer = self.model.tokenizer
        if self.overflow == "window":
            return Job(item, tokenizer.windows(item, stride=tokenizer.max_length // 4), False)
        encoding = tokenizer.encode(item, overflow=self.overflow)
        return Job(item, [encoding], encoding.truncated)

    def forward(self, batch: Batch, parts: Sequence[tuple[Job[str], int]]) -> list[list[float]]:
        """For each row the probabilities of its tokens, padding included."""
        logits = self.model.network.logits("discriminator", batch)
        return cast(list[list[float]], mx.sigmoid(logits.astype(mx.float32)).tolist())

    def result(self, job: Job[str], outputs: Sequence[list[float]]) -> Replaced:
        """A token of several windows has the score from the window where it is furthest from the edge."""
        found: dict[int, tuple[int, ReplacedToken]] = {}
        for encoding, values in zip(job.encodings, outputs, strict=True):
            scores = check_finite(values[: len(encoding)])
            for place, (position, sequence) in enumerate(zip(encoding.positions, encoding.sequence_ids, strict=True)):
                inside = min(place, len(encoding) - 1 - place)
                if sequence is None or inside <= found.get(position, (-1,))[0]:
                    continue
                name, (start, end) = self.model.tokenizer.token(encoding.ids[place]), encoding.offsets[place]
                token = ReplacedToken(name, position, start, end, scores[place], scores[place] > 0.5)
                found[position] = (inside, token)
        return Replaced(job.item, tuple(token for _, (_, token) in sorted(found.items())), job.truncated)


@task_function("texts")
def replaced(model: Model, *, overflow: str = "window", batch_tokens: int | None = None) -> ReplacedTask:
    """Scores every token of a text by how likely it is to be a replacement.

    Args:
        model: A model with a discriminator: ELECTRA (arXiv:2003.10555).
        texts: One text, or any number of texts.
        overflow: A text too long for the model: `window` covers it with overlapping windows and scores each token in
            the window where it is furthest from the edge, `truncate` drops its end, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.
        on_error: `raise`, or `return` a Failure in place of a text that cannot be used.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: Not a text, or too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    return ReplacedTask(model, overflow, batch_tokens)
