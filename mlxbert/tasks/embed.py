"""Texts to vectors."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from mlxbert.errors import ArgumentError, InputError, shown
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import ProcessGroup, Turns
from mlxbert.model import Model
from mlxbert.nn.embedder import SMALLEST_NORM
from mlxbert.nn.encoder import Batch
from mlxbert.progress import OnProgress, progress
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from mlxbert.tasks.argument_checks import check_inputs, check_model
from mlxbert.tasks.keywords import CallOptions, UsageOptions, takes_keywords
from mlxbert.tasks.options import EmbedOptions
from mlxbert.tasks.prompt_kinds import KINDS, own_prompt
from mlxbert.tasks.runner import check_on_error
from mlxbert.tasks.task import RESULT_BYTES, PreparedItem, Task, check_finite, one_or_many
from mlxbert.tasks.vector_dtype import as_dtype, check_output_dtype, stored_width
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

_LOG = logging.getLogger("mlxbert")


class EmbedTask(Task[str, PreparedItem[str], "Vector", Embedding]):
    """The vector of a text.

    Attributes:
        embedder: Makes vectors of hidden states, as the model and the options say.
        similarity: How its vectors are compared.
        tokenizer: The model's tokenizer, with the limit and lower-casing of the embedder.
        prompt: Stands before each text; may be empty.
        prompt_length: How many tokens precede the text, the first special token included.
    """

    name = "embed"
    options: EmbedOptions

    def __init__(
        self, model: Model, options: EmbedOptions, *, usage: Usage | None = None, group: ProcessGroup | None = None
    ) -> None:
        super().__init__(model, options, usage=usage)
        self._turns = Turns(group or ProcessGroup())
        self.embedder = model.embedder.variant(
            pooling=options.pooling, normalize=options.normalize, dimensions=options.dimensions
        )
        self.similarity = self.embedder.config.similarity
        check_output_dtype(options.output_dtype, self.embedder.size)
        self.tokenizer = model.embed_tokenizer
        self.prompt = choose_prompt(model, options.prompt, options.prompt_name, options.kind)
        self.model = model.for_prompt(options.prompt_name, self.prompt)
        self.prompt_length = self.tokenizer.prompt_length(self.prompt)
        most = self.tokenizer.max_length
        if self.prompt and self.prompt_length >= most - 1:
            raise ArgumentError(f"the prompt takes {self.prompt_length} tokens, the model at most {most} with the text")

    @property
    def output_bytes(self) -> int:
        """That of a vector."""
        return 4 * self.embedder.size

    def size(self, item: str, units: int) -> int:
        """That of a vector."""
        return RESULT_BYTES + self.output_bytes

    def is_item(self, given: object) -> bool:
        """Never: for one text there is `embed`."""
        check_texts(given)
        return False

    def prepare(self, item: str) -> PreparedItem[str]:
        """Tokenizes a text, with the prompt before it."""
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {type(item).__name__}")
        before = self.prompt_length if self.prompt else 0
        if self.options.overflow == "window":
            windows = self.tokenizer.windows(item, stride=0, prompt=self.prompt)
            unknown, only = self.tokenizer.unknown(windows, before)
            return PreparedItem(item, windows, False, unknown=unknown, only_unknown=only)
        encoding = self.tokenizer.encode(self.prompt + item, overflow=self.options.overflow)
        if self.prompt and len(encoding) <= self.prompt_length:
            raise InputError(f"{item!r:.60} and the prompt give fewer tokens than the prompt alone")
        unknown, only = self.tokenizer.unknown([encoding], before)
        return PreparedItem(item, [encoding], encoding.truncated, unknown=unknown, only_unknown=only)

    def texts(self, item: str) -> list[str]:
        """The text with the prompt before it; the prompt alone is split for every text with windows."""
        return [self.prompt + item, *[self.prompt] * bool(self.prompt)] if isinstance(item, str) else []

    def outputs(self, jobs: Sequence[PreparedItem[str]]) -> Iterator[Sequence["Vector"]]:
        """The vectors of the encodings of each job; of several processes, when all have computed theirs."""
        found = super().outputs(jobs)
        return found if self._turns.group.size == 1 else self._gathered(jobs, found)

    def _gathered(
        self, jobs: Sequence[PreparedItem[str]], found: Iterator[Sequence["Vector"]]
    ) -> Iterator[Sequence["Vector"]]:
        rows = iter(self._turns.all_gather([row for some in found for row in some]))
        for job in jobs:
            yield [next(rows) for _ in job.encodings]

    def is_mine(self) -> bool:
        """See `Task.is_mine`."""
        return self._turns.is_mine()

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """The vectors (B, W)."""
        output = self.model.network.encoder(
            batch.input_ids,
            batch.attention_mask,
            batch.token_type_ids,
            output_attentions=self.embedder.needs_attentions,
        )
        return self.embedder(output, batch.attention_mask, self.prompt_length if self.prompt else 0)

    def read(self, found: mx.array | None, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence["Vector"]:
        """One vector (W,) per row; `None` where it was another process's turn."""
        import numpy as np

        if found is None:
            return cast(Sequence["Vector"], [None] * len(parts))
        return list(check_finite(np.array(found), "vectors"))

    def result(self, job: PreparedItem[str], outputs: Sequence["Vector"]) -> Embedding:
        """The vector of a text, or the mean of those of its windows."""
        vector = outputs[0] if len(outputs) == 1 else self._mean(outputs, job.encodings)
        stored = cast("Vector", as_dtype(vector, self.options.output_dtype))
        tokens = sum(map(len, job.encodings))
        return Embedding(job.item, stored, tokens, job.truncated, job.unknown, job.only_unknown)

    def _mean(self, vectors: Sequence["Vector"], windows: Sequence[Encoding]) -> "Vector":
        """The mean of windows' vectors, weighted by tokens of the text; of length 1 if they are."""
        import numpy as np

        special = self.prompt_length + 1  # a special token ends each window
        mean = np.average(np.stack(vectors), axis=0, weights=[len(window) - special for window in windows])
        if self.embedder.unit:
            mean = mean / max(float(np.linalg.norm(mean)), SMALLEST_NORM)
        return mean.astype(np.float32)


@takes_keywords
def embed(
    model: Model,
    texts: str | Iterable[str],
    *,
    options: EmbedOptions,
    call: UsageOptions,
    on_error: Literal["raise", "return"] = "raise",
    on_progress: OnProgress | None = None,
) -> "NDArray[np.float32]":
    """Computes the vectors of texts.

    Example:
        >>> model = mlxbert.load()
        >>> vectors = mlxbert.embed(model, ["A man eats.", "It rains."])  # (2, 384)
        >>> vector = mlxbert.embed(model, "A man eats.")  # (384,)

    Options that are left out follow the model's own files. `kind` puts the model's own prompt for searches before each
    text, if the model has one: `query` and `retrieval.query` are for queries; `document`, `passage`, `corpus` and
    `retrieval.passage` for documents. `normalize=False` leaves out the model's own normalization; vectors that
    `dimensions` shortens are normalized again only with `normalize=True`, as in sentence-transformers. `int8` is
    round(127 · x / max|x|) of each vector, `binary` is int8 with eight dimensions in each value. The vector of a text
    in windows is the mean of the windows' vectors, weighted by their tokens.

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: One text, or a sequence of texts.
        on_error: `raise`; or `return` a row of NaN (of 0 with `int8` and `binary`) in place of a text that cannot be
            used. The log says why.
        on_progress: Called after each text with the number of texts done and of all texts; without it, a notebook shows
            a bar.
        options: See `EmbedOptions`.
        call: See `UsageOptions`.

    Returns:
        (D,) for one text, (N, D) for N, where D is the size of a vector; D / 8 with `binary`.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used.
    """
    one = isinstance(texts, str)
    check_on_error(on_error)
    check_model(model, texts)
    many = [texts] if isinstance(texts, str) else list(check_texts(texts))
    task = EmbedTask(model, options, usage=call.usage)
    with progress(on_progress, "texts") as update:
        vectors = stacked(task, many, "raise" if one else on_error, update)
    return cast("Vector", vectors[0] if one else vectors)


def stacked(task: EmbedTask, texts: Sequence[str], on_error: str, on_progress: OnProgress | None = None) -> "Vector":
    """The vectors of N texts in one array (N, D); a text that cannot be used is NaN, or 0 in whole numbers."""
    import numpy as np

    dtype = task.options.output_dtype
    shape = len(texts), stored_width(dtype, task.embedder.size)
    vectors: Any = np.full(shape, np.nan, np.float32) if dtype == "float32" else np.zeros(shape, np.int8)
    for number, result in enumerate(task.run(texts, on_error, early=False)):
        if isinstance(result, Failure):
            _LOG.warning("input %d: %s", number, result.error.message)
        else:
            vectors[number] = result.embedding
        if on_progress is not None:
            on_progress(number + 1, len(texts))
    return cast("Vector", vectors)


@takes_keywords
def embed_stream(
    model: Model,
    texts: str | Iterable[str | InputError],
    *,
    options: EmbedOptions,
    call: CallOptions,
    group: ProcessGroup | None = None,
) -> Embedding | Iterator[Embedding | Failure]:
    """Computes the vectors of any number of texts, in their order and in constant memory.

    Example:
        >>> model = mlxbert.load()
        >>> for result in mlxbert.embed_stream(model, ["A man eats.", "It rains."]):
        ...     print(result.text, result.embedding.shape)  # (384,)

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: An iterable of texts.
        group: The processes that share the work, see `mlxbert.machine.distributed`; each gets all vectors of the
            same texts.
        options: See `EmbedOptions`.
        call: See `CallOptions`.

    Returns:
        An iterator of `Embedding`.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used.
    """
    return one_or_many(EmbedTask, model, texts, options, call, group=group)


def check_texts(texts: object, name: str = "texts") -> Iterable[str]:
    """Returns `texts`, or refuses them if they are not an iterable of texts."""
    return check_inputs(texts, name, "an iterable of texts")


def choose_prompt(
    model: Model, prompt: str | None, name: str | None, kind: str | None = None, *, prefix: str = ""
) -> str:
    """The text that is put before each text.

    Args:
        model: The model, which may have prompts of its own.
        prompt: The prompt itself.
        name: The name of one of the model's prompts.
        kind: What the texts are, one of `KINDS`: chooses among the model's prompts.
        prefix: Of the names of these arguments in errors.
    """
    given = {f"{prefix}prompt": prompt, f"{prefix}prompt_name": name, "kind": kind}
    several = [f"a {key} {shown(value)}" for key, value in given.items() if value is not None]
    if len(several) > 1:
        raise ArgumentError(f"there are both {' and '.join(several)}, expected one")
    prompts, default = model.embedder.config.prompts, model.embedder.config.default_prompt_name
    if prompt is not None:
        if not isinstance(prompt, str):
            raise ArgumentError(f"{prefix}prompt is {shown(prompt)}, expected a text")
        return prompt
    if name is not None and name not in list(prompts):  # a list: the given name may not be hashable
        known = ", ".join(map(repr, prompts)) or "no prompts"
        raise ArgumentError(f"{prefix}prompt_name is {name!r:.60}, the model has {known}")
    if kind is not None:
        name = own_prompt(prompts, kind)
        if not any(own_prompt(prompts, one) for one in KINDS):
            _LOG.warning(
                "%s has no prompts for queries and documents: kind=%r changes nothing; give prompt= if it needs one",
                *(model.source, kind),
            )
    name = default if name is None else name
    return "" if name is None else prompts[name]
