"""Texts to vectors."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack, cast, overload

from mlxbert.errors import ArgumentError, InputError, MlxbertError, shown
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import ProcessGroup, Turns
from mlxbert.model import Model
from mlxbert.nn.embedder import SMALLEST_NORM
from mlxbert.nn.encoder import Batch
from mlxbert.progress import Progress, progress
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from mlxbert.tasks.arguments import check_inputs, check_model
from mlxbert.tasks.prompts import KINDS, own_prompt
from mlxbert.tasks.runner import check_on_error
from mlxbert.tasks.task import RESULT_BYTES, Job, Task, one_or_many
from mlxbert.tasks.vector_dtype import as_dtype, check_output_dtype, stored_width
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

_LOG = logging.getLogger("mlxbert")


class EmbedOptions(TypedDict, total=False):
    """How texts become vectors, see `embed`. Options that are left out follow the model's own files."""

    pooling: str | None
    normalize: bool | None
    dimensions: int | None
    prompt: str | None
    prompt_name: str | None
    overflow: str
    batch_tokens: int | None


class EmbedTask(Task[str, Job[str], "Vector", Embedding]):
    """The vector of a text.

    Attributes:
        embedder: Makes vectors of hidden states, as the model and the options say.
        similarity: How its vectors are compared.
        output_dtype: One of `mlxbert.tasks.vector_dtype.OUTPUT_DTYPES`.
        tokenizer: The model's tokenizer, with the limit and lower-casing of the embedder.
        prompt: Stands before each text; may be empty.
        prompt_length: How many tokens precede the text, the first special token included.
    """

    name = "embed"
    overflows: ClassVar[tuple[str, ...]] = ("truncate", "window", "error")

    def __init__(
        self,
        model: Model,
        *,
        kind: str | None = None,
        output_dtype: str = "float32",
        usage: Usage | None = None,
        group: ProcessGroup | None = None,
        **options: Unpack[EmbedOptions],
    ) -> None:
        known = EmbedOptions.__annotations__
        if unknown := options.keys() - known.keys():
            raise TypeError(f"unknown option {min(unknown)!r}, expected any of {', '.join(known)}")
        chosen: EmbedOptions = {"overflow": "truncate", **options}
        super().__init__(model, chosen["overflow"], chosen.get("batch_tokens"), usage)
        self._turns = Turns(group or ProcessGroup())
        normalize = chosen.get("normalize")
        if not isinstance(normalize, bool | None):
            raise ArgumentError(f"normalize is {normalize!r:.60}, expected True, False or None")
        self.embedder = model.embedder.variant(
            pooling=chosen.get("pooling"), normalize=normalize, dimensions=chosen.get("dimensions")
        )
        self.similarity = self.embedder.config.similarity
        check_output_dtype(output_dtype, self.embedder.size)
        self.output_dtype = output_dtype
        self.tokenizer = model.embed_tokenizer
        self.prompt = choose_prompt(model, chosen.get("prompt"), chosen.get("prompt_name"), kind)
        self.model = model.for_prompt(chosen.get("prompt_name"), self.prompt)
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

    def prepare(self, item: str) -> Job[str]:
        """Tokenizes a text, with the prompt before it."""
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {type(item).__name__}")
        before = self.prompt_length if self.prompt else 0
        if self.overflow == "window":
            windows = self.tokenizer.windows(item, stride=0, prompt=self.prompt)
            unknown, only = self.tokenizer.unknown(windows, before)
            return Job(item, windows, False, unknown=unknown, only_unknown=only)
        encoding = self.tokenizer.encode(self.prompt + item, overflow=self.overflow)
        if self.prompt and len(encoding) <= self.prompt_length:
            raise InputError(f"{item!r:.60} and the prompt give fewer tokens than the prompt alone")
        unknown, only = self.tokenizer.unknown([encoding], before)
        return Job(item, [encoding], encoding.truncated, unknown=unknown, only_unknown=only)

    def texts(self, item: str) -> list[str]:
        """The text with the prompt before it; the prompt alone is split for every text with windows."""
        return [self.prompt + item, *[self.prompt] * bool(self.prompt)] if isinstance(item, str) else []

    def outputs(self, jobs: Sequence[Job[str]]) -> Iterator[Sequence["Vector"]]:
        """The vectors of the encodings of each job; of several processes, when all have computed theirs."""
        found = super().outputs(jobs)
        return found if self._turns.group.size == 1 else self._gathered(jobs, found)

    def _gathered(self, jobs: Sequence[Job[str]], found: Iterator[Sequence["Vector"]]) -> Iterator[Sequence["Vector"]]:
        rows = iter(self._turns.all_gather([row for some in found for row in some]))
        for job in jobs:
            yield [next(rows) for _ in job.encodings]

    def is_mine(self) -> bool:
        """See `Task.is_mine`."""
        return self._turns.is_mine()

    def forward(self, batch: Batch, parts: Sequence[tuple[Job[str], int]]) -> mx.array:
        """The vectors (B, W)."""
        output = self.model.network.encoder(
            batch.input_ids,
            batch.attention_mask,
            batch.token_type_ids,
            output_attentions=self.embedder.needs_attentions,
        )
        return self.embedder(output, batch.attention_mask, self.prompt_length if self.prompt else 0)

    def read(self, found: mx.array | None, parts: Sequence[tuple[Job[str], int]]) -> Sequence["Vector"]:
        """One vector (W,) per row; `None` where it was another process's turn."""
        import numpy as np

        if found is None:
            return cast(Sequence["Vector"], [None] * len(parts))
        vectors = np.array(found)
        if not np.isfinite(vectors).all():
            raise MlxbertError(
                "the model computed vectors that are not finite (NaN or infinite)",
                hint="load it with dtype='float32'; weights that are not finite cause this, too",
            )
        return list(vectors)

    def result(self, job: Job[str], outputs: Sequence["Vector"]) -> Embedding:
        """The vector of a text, or the mean of those of its windows."""
        vector = outputs[0] if len(outputs) == 1 else self._mean(outputs, job.encodings)
        stored = cast("Vector", as_dtype(vector, self.output_dtype))
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


def embed(
    model: Model,
    texts: str | Iterable[str],
    *,
    kind: str | None = None,
    output_dtype: str = "float32",
    on_error: str = "raise",
    usage: Usage | None = None,
    on_progress: Progress | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
) -> "NDArray[np.float32]":
    """Computes the vectors of texts.

    Example:
        >>> model = mlxbert.load()
        >>> vectors = mlxbert.embed(model, ["A man eats.", "It rains."])  # (2, 384)
        >>> vector = mlxbert.embed(model, "A man eats.")  # (384,)

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: One text, or a sequence of texts.
        kind: `query` or `document`, for search: puts the model's own prompt for it before each text, if the model has
            one. Prompts named `query` are for queries; `document`, `passage` or `corpus` for documents.
        output_dtype: `float32`; `int8`, round(127 · x / max|x|) of each vector; or `binary`, int8 with eight dimensions
            in each value.
        on_error: `raise`; or `return` a row of NaN (of 0 with `int8` and `binary`) in place of a text that cannot be
            used. The log says why.
        usage: Counts tokens, padding and truncated texts.
        on_progress: Called after each text with the number of texts done and of all texts; without it, a notebook shows
            a bar.
        pooling: `cls`, `mean`, `max`, `mean_sqrt_len`, `weighted_mean`, `last_token` or `attention`; or several joined
            by `+`.
        normalize: True scales vectors to length 1, after `dimensions`; False omits the model's own normalization.
        dimensions: Keep only the first values (Matryoshka). They are not normalized again unless `normalize` is True,
            as in sentence-transformers.
        prompt: Put before each text.
        prompt_name: The name of one of the model's own prompts, instead of `prompt`.
        overflow: A text too long for the model: `truncate` drops its end, `window` takes the mean of the vectors of
            windows that cover the text, weighted by their tokens, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.

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
    task = EmbedTask(
        model, kind=kind, output_dtype=output_dtype, usage=usage, pooling=pooling, normalize=normalize,
        dimensions=dimensions, prompt=prompt, prompt_name=prompt_name, overflow=overflow, batch_tokens=batch_tokens,
    )  # fmt: skip
    with progress(on_progress, "texts") as update:
        vectors = stacked(task, many, "raise" if one else on_error, update)
    return cast("Vector", vectors[0] if one else vectors)


def stacked(task: EmbedTask, texts: Sequence[str], on_error: str, on_progress: Progress | None = None) -> "Vector":
    """The vectors of N texts in one array (N, D); a text that cannot be used is NaN, or 0 in whole numbers."""
    import numpy as np

    shape = len(texts), stored_width(task.output_dtype, task.embedder.size)
    vectors: Any = np.full(shape, np.nan, np.float32) if task.output_dtype == "float32" else np.zeros(shape, np.int8)
    for number, result in enumerate(task.run(texts, on_error, early=False)):
        if isinstance(result, Failure):
            _LOG.warning("input %d: %s", number, result.error.message)
        else:
            vectors[number] = result.embedding
        if on_progress is not None:
            on_progress(number + 1, len(texts))
    return cast("Vector", vectors)


# fmt: off
@overload
def embed_stream(  # type: ignore[overload-overlap]  # a text is an iterable of texts, too
    model: Model, texts: str, *, kind: str | None = None, output_dtype: str = "float32", usage: Usage | None = None,
    group: ProcessGroup | None = None, pooling: str | None = None, normalize: bool | None = None,
    dimensions: int | None = None, prompt: str | None = None, prompt_name: str | None = None,
    overflow: str = "truncate", batch_tokens: int | None = None, on_error: str = "raise"
) -> Embedding: ...
@overload
def embed_stream(
    model: Model, texts: Iterable[str | InputError], *, kind: str | None = None, output_dtype: str = "float32",
    usage: Usage | None = None, group: ProcessGroup | None = None, pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, overflow: str = "truncate", batch_tokens: int | None = None,
    on_error: Literal["raise"] = "raise"
) -> Iterator[Embedding]: ...
@overload
def embed_stream(
    model: Model, texts: Iterable[str | InputError], *, kind: str | None = None, output_dtype: str = "float32",
    usage: Usage | None = None, group: ProcessGroup | None = None, pooling: str | None = None,
    normalize: bool | None = None, dimensions: int | None = None, prompt: str | None = None,
    prompt_name: str | None = None, overflow: str = "truncate", batch_tokens: int | None = None, on_error: str
) -> Iterator[Embedding | Failure]: ...
# fmt: on
def embed_stream(
    model: Model,
    texts: str | Iterable[str | InputError],
    *,
    kind: str | None = None,
    output_dtype: str = "float32",
    usage: Usage | None = None,
    group: ProcessGroup | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
    on_error: str = "raise",
) -> Embedding | Iterator[Embedding | Failure]:
    """Computes the vectors of any number of texts, in their order and in constant memory.

    Example:
        >>> model = mlxbert.load()
        >>> for result in mlxbert.embed_stream(model, ["A man eats.", "It rains."]):
        ...     print(result.text, result.embedding.shape)  # (384,)

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: An iterable of texts.
        kind: `query` or `document`, see `embed`.
        output_dtype: `float32`, `int8` or `binary`, see `embed`.
        usage: Counts tokens, padding and truncated texts.
        group: The processes that share the work, see `mlxbert.machine.distributed`; each gets all vectors of the
            same texts.
        on_error: `raise`, or `return` a Failure in place of a text that cannot be used.
        pooling: `cls`, `mean`, `max`, `mean_sqrt_len`, `weighted_mean`, `last_token` or `attention`; or several joined
            by `+`.
        normalize: True scales vectors to length 1, after `dimensions`; False omits the model's own normalization.
        dimensions: Keep only the first values (Matryoshka). They are not normalized again unless `normalize` is True,
            as in sentence-transformers.
        prompt: Put before each text.
        prompt_name: The name of one of the model's own prompts, instead of `prompt`.
        overflow: A text too long for the model: `truncate` drops its end, `window` takes the mean of the vectors of
            windows that cover the text, weighted by their tokens, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.

    Returns:
        An iterator of `Embedding`.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used.
    """

    def task() -> EmbedTask:
        return EmbedTask(
            model, kind=kind, output_dtype=output_dtype, usage=usage, group=group, pooling=pooling,
            normalize=normalize, dimensions=dimensions, prompt=prompt, prompt_name=prompt_name, overflow=overflow,
            batch_tokens=batch_tokens,
        )  # fmt: skip

    return one_or_many(task, model, texts, "texts", on_error)


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
