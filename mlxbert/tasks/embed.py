"""Computes vectors of texts."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias, cast

from mlxbert.errors import InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.progress import OnProgress, progress
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.keywords import CallOptions, UsageOptions, takes_keywords
from mlxbert.tasks.options import EmbedOptions
from mlxbert.tasks.prompted_task import PromptedTask, check_texts
from mlxbert.tasks.query_ranking import scores_of_pairs
from mlxbert.tasks.runner import check_on_error
from mlxbert.tasks.static_vectors import StaticVectors
from mlxbert.tasks.task import RESULT_BYTES, PreparedItem, check_finite, one_or_many
from mlxbert.tasks.vector_dtype import as_dtype, check_output_dtype, stored_width
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.usage import Usage

Vector: TypeAlias = "NDArray[np.float32]"

_LOG = logging.getLogger("mlxbert")


class EmbedTask(PromptedTask["Vector", Embedding]):
    """Computes the dense vector of a text."""

    options: EmbedOptions

    def __init__(self, model: Model, options: EmbedOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        # Turns hidden states into vectors, with the settings of the model and the options.
        self.embedder = model.embedder.variant(
            pooling=options.pooling, normalize=options.normalize, dimensions=options.dimensions
        )
        # The name of the function that compares the vectors, one of `SIMILARITIES`.
        self.similarity = self.embedder.config.similarity
        check_output_dtype(options.output_dtype, self.embedder.size)
        self.model = model.for_prompt(options.prompt_name, self.prompt)
        whole = self.embedder.config.include_prompt or not self.prompt
        fast = whole and StaticVectors.suit(self.model, self.embedder)
        # Computes the vectors, if the model is static and the options allow it.
        self.static = StaticVectors(self.model, self.embedder, self.tokenizer) if fast else None

    def text_settings(self) -> tuple[VectorSettings, Tokenizer]:
        return self.model.embedder.config, self.model.embed_tokenizer

    @property
    def output_bytes(self) -> int:
        return 4 * self.embedder.size

    def size(self, item: str, units: int) -> int:
        return RESULT_BYTES + self.output_bytes

    def is_item(self, value: object) -> bool:
        """Always false: `embed` computes single texts, `embed_stream` takes an iterable."""
        check_texts(value)
        return False

    def encode(self, text: str, pair: str | None = None) -> Encoding:
        """See `Task.encode`; a static model may have tokenized the text already, together with others."""
        ready = None if self.static is None or self.options.overflow != "truncate" else self.static.encoding(text)
        return super().encode(text, pair) if ready is None else ready

    @contextmanager
    def together(self, items: Sequence[str]) -> Iterator[None]:
        if self.static is None or self.options.overflow != "truncate":
            with super().together(items):
                yield
            return
        with self.static.together(self.prompt + item for item in items if isinstance(item, str)):
            yield

    def outputs(self, jobs: Sequence[PreparedItem[str]]) -> Iterator[Sequence["Vector"]]:
        return super().outputs(jobs) if self.static is None else self._means(self.static, jobs)

    def _means(self, static: StaticVectors, jobs: Sequence[PreparedItem[str]]) -> Iterator[Sequence["Vector"]]:
        self.model.require(self.name)
        encodings = [encoding for job in jobs for encoding in job.encodings]
        if self.usage is not None and encodings:
            self.usage.add([*map(len, encodings)], 1, sum(map(len, encodings)))  # without padding
        computed = static.compute([encoding.ids for encoding in encodings], static.table())
        vectors = iter(computed)
        for job in jobs:
            yield [next(vectors) for _ in job.encodings]

    def at_once(self, static: StaticVectors, texts: Sequence[str], on_progress: OnProgress | None) -> "Vector":
        """Returns the vectors of N texts, (N, W), by a static model, without a result for each text.

        Raises:
            InputError: A text is unusable; the message does not say which one.
        """
        vectors, counted, done = np.empty((len(texts), self.embedder.size), np.float32), Usage(), 0
        prompted = [self.prompt + text if isinstance(text, str) else text for text in texts] if self.prompt else texts
        for tokenized, part in static.batches(prompted):
            vectors[done : done + len(part)] = check_finite(part, "vectors")
            done += len(part)
            if self.usage is not None:
                lengths = [len(ids) for ids, _, _ in tokenized]
                counted.add(lengths, 1, sum(lengths))
                counted.texts += len(tokenized)
                counted.truncated += sum(truncated for _, _, truncated in tokenized)
                counted.only_unknown += sum(self.tokenizer.are_unknown(ids) for ids, _, _ in tokenized)
            if on_progress is not None:
                on_progress(done, len(texts))
        if self.usage is not None:
            self.usage.include(counted)
        return vectors

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the vectors (B, W)."""
        output = self.model.network.encoder(
            batch.input_ids,
            batch.attention_mask,
            batch.token_type_ids,
            output_attentions=self.embedder.needs_attentions,
        )
        return self.embedder(output, batch.attention_mask, self.prompt_length if self.prompt else 0)

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence["Vector"]:
        return list(np.array(arrays))

    def result(self, job: PreparedItem[str], outputs: Sequence["Vector"]) -> Embedding:
        """Makes the result from the vector of a text, or from the mean of the vectors of its windows."""
        vector = outputs[0] if len(outputs) == 1 else self._mean(outputs, job.encodings)
        stored = cast("Vector", as_dtype(check_finite(vector, "vectors"), self.options.output_dtype))
        tokens = sum(map(len, job.encodings))
        return Embedding(job.item, stored, tokens, job.truncated, job.unknown, job.only_unknown)

    def score(self, query: Embedding, text: Embedding) -> float:
        """Returns the similarity of two vectors; with `cosine`, they must have length 1."""
        return float(scores_of_pairs(self.similarity, query.embedding, text.embedding))

    def _mean(self, vectors: Sequence["Vector"], windows: Sequence[Encoding]) -> "Vector":
        """Returns the mean of the windows' vectors, weighted by tokens of text. It is normalized if the vectors are."""
        special = self.prompt_length + (not self.model.config.is_static)  # a special token ends each window
        weights = [max(len(window) - special, 0) for window in windows]
        mean = np.average(np.stack(vectors), axis=0, weights=weights if any(weights) else None)
        if self.embedder.unit:
            mean = unit_length(mean)
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

    Omitted options follow the model's own files. `kind` puts the model's own prompt for searches before each text, if
    the model has one: `query` and `retrieval.query` are for queries; `document`, `passage`, `corpus` and
    `retrieval.passage` for documents. `normalize=False` skips the model's own normalization; vectors shortened by
    `dimensions` are normalized again only with `normalize=True`, as in sentence-transformers. `int8` converts each
    vector x to round(127 · x / max|x|), `binary` to int8 values with eight dimensions each. The vector of a text in
    windows is the mean of the windows' vectors, weighted by their tokens.

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: One text, or a sequence of texts.
        on_error: `raise`; or `return` a row of NaN (of 0 with `int8` and `binary`) for an unusable text. The log says
            why.
        on_progress: Called after each text with the number of texts done and the total; without it, a notebook shows a
            progress bar.
        options: See `EmbedOptions`.
        call: See `UsageOptions`.

    Returns:
        (D,) for one text, (N, D) for N texts, where D is the size of a vector. With `binary`, D / 8 replaces D.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable.
    """
    single = isinstance(texts, str)
    check_on_error(on_error)
    check_model(model, texts)
    many = [texts] if isinstance(texts, str) else list(check_texts(texts))
    task = EmbedTask(model, options, usage=call.usage)
    with progress(on_progress, "texts") as update:
        vectors = stacked(task, many, "raise" if single else on_error, update)
    return cast("Vector", vectors[0] if single else vectors)


def stacked(task: EmbedTask, texts: Sequence[str], on_error: str, on_progress: OnProgress | None = None) -> "Vector":
    """Computes the vectors of N texts as an array (N, D). The row of an unusable text is NaN, or 0 in integers."""
    dtype = task.options.output_dtype
    if task.static is not None and dtype == "float32" and task.options.overflow == "truncate":
        with suppress(InputError):  # below, the message says which text is unusable
            return task.at_once(task.static, texts, on_progress)
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
) -> Embedding | Iterator[Embedding | Failure]:
    """Computes the vectors of any number of texts, in order and in constant memory.

    Example:
        >>> model = mlxbert.load()
        >>> for result in mlxbert.embed_stream(model, ["A man eats.", "It rains."]):
        ...     print(result.text, result.embedding.shape)  # (384,)

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: An iterable of texts.
        options: See `EmbedOptions`.
        call: See `CallOptions`.

    Returns:
        An iterator of `Embedding`.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable.
    """
    return one_or_many(EmbedTask, model, texts, options, call)
