"""Texts to vectors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from mlxbert.distributed import Group, Turns
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.model import Model
from mlxbert.nn.embedder import SMALLEST_NORM
from mlxbert.nn.encoder import Batch
from mlxbert.results import Embedding
from mlxbert.tasks.task import Job, Task, task_function
from mlxbert.text.batch import Usage
from mlxbert.text.encoding import Encoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]


class EmbedOptions(TypedDict, total=False):
    """How texts become vectors. Options that are left out follow the model's own files (`model.embedder.config`).

    Attributes:
        pooling: One of `mlxbert.nn.pooling.POOLINGS`, or several joined by `+`.
        normalize: True scales vectors to length 1, after `dimensions`; False omits the model's own normalization.
        dimensions: Keep only the first values (Matryoshka). They are not normalized again unless `normalize` is True,
            as in sentence-transformers.
        prompt: Put before each text.
        prompt_name: The name of one of the model's own prompts, instead of `prompt`.
        overflow: A text too long for the model: `truncate` (the default) drops its end, `window` takes the mean of the
            vectors of windows that cover the text, weighted by their tokens, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.
    """

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
        tokenizer: The model's tokenizer, with the limit and lower-casing of the embedder.
        prompt: Stands before each text; may be empty.
        prompt_length: How many tokens precede the text, the first special token included.
    """

    name = "embed"
    overflows = ("truncate", "window", "error")

    def __init__(
        self, model: Model, *, usage: Usage | None = None, group: Group | None = None, **options: Unpack[EmbedOptions]
    ) -> None:
        known = EmbedOptions.__annotations__
        if unknown := options.keys() - known.keys():
            raise TypeError(f"unknown option {min(unknown)!r}, expected some of {', '.join(known)}")
        super().__init__(model, options.get("overflow", "truncate"), options.get("batch_tokens"), usage)
        self._turns = Turns(group or Group())
        normalize = options.get("normalize")
        if not isinstance(normalize, bool | None):
            raise ArgumentError(f"normalize is {normalize!r:.60}, expected True, False or None")
        self.embedder = model.embedder.variant(
            pooling=options.get("pooling"), normalize=normalize, dimensions=options.get("dimensions")
        )
        self.tokenizer, config = model.embed_tokenizer, self.embedder.config
        self.prompt = _choose_prompt(
            config.prompts, config.default_prompt_name, options.get("prompt"), options.get("prompt_name")
        )
        self.prompt_length = self.tokenizer.prompt_length(self.prompt)
        most = self.tokenizer.max_length
        if self.prompt and self.prompt_length >= most - 1:
            raise ArgumentError(f"the prompt takes {self.prompt_length} tokens, the model at most {most} with the text")

    def is_item(self, given: object) -> bool:
        """Never: for one text there is `embed`."""
        check_texts(given)
        return False

    def prepare(self, item: str) -> Job[str]:
        """Tokenizes a text, with the prompt before it."""
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {type(item).__name__}")
        if self.overflow == "window":
            return Job(item, self.tokenizer.windows(item, stride=0, prompt=self.prompt), False)
        encoding = self.tokenizer.encode(self.prompt + item, overflow=self.overflow)
        if self.prompt and len(encoding) <= self.prompt_length:
            raise InputError(f"the prompt and {item!r:.60} are fewer tokens together than the prompt alone")
        return Job(item, [encoding], encoding.truncated)

    def outputs(self, jobs: Sequence[Job[str]]) -> Iterator[Sequence["Vector"]]:
        """The vectors of the encodings of each job; of several processes, when all have computed theirs."""
        found = super().outputs(jobs)
        if self._turns.group.size == 1:
            yield from found
            return
        rows = iter(self._turns.exchanged([row for some in found for row in some]))
        for job in jobs:
            yield [next(rows) for _ in job.encodings]

    def forward(self, batch: Batch, parts: Sequence[tuple[Job[str], int]]) -> Sequence["Vector"]:
        """One vector (W,) per row, where it is this process's turn."""
        return self._turns.take(len(parts), lambda: self._vectors(batch))

    def _vectors(self, batch: Batch) -> list["Vector"]:
        import numpy as np

        output = self.model.network.encoder(
            batch.input_ids,
            batch.attention_mask,
            batch.token_type_ids,
            output_attentions=self.embedder.needs_attentions,
        )
        vectors = np.array(self.embedder(output, batch.attention_mask, self.prompt_length if self.prompt else 0))
        if not np.isfinite(vectors).all():
            raise MlxbertError(
                "the model computed vectors that are not finite (NaN or infinite)",
                hint="load it with dtype='float32'; weights that are not finite do this, too",
            )
        return list(vectors)

    def result(self, job: Job[str], outputs: Sequence["Vector"]) -> Embedding:
        """The vector of a text, or the mean of those of its windows."""
        vector = outputs[0] if len(outputs) == 1 else self._mean(outputs, job.encodings)
        return Embedding(job.item, vector, sum(map(len, job.encodings)), job.truncated)

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
    on_progress: Callable[[int, int], None] | None = None,
    **options: Unpack[EmbedOptions],
) -> "Vector":
    """Computes the vectors of texts.

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: One text, or a sequence of texts.
        on_progress: Called after each text with the number of texts done and of all texts.
        **options: See `EmbedOptions`.

    Returns:
        float32 (D,) for one text, (N, D) for N.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used.
    """
    import numpy as np

    one = isinstance(texts, str)
    many = [texts] if isinstance(texts, str) else list(check_texts(texts))
    task = EmbedTask(model, **options)
    vectors = np.empty((len(many), task.embedder.size), np.float32)
    for number, result in enumerate(task.run(many)):
        vectors[number] = cast(Embedding, result).embedding
        if on_progress is not None:
            on_progress(number + 1, len(many))
    return vectors[0] if one else vectors


@task_function("texts")
def embed_stream(
    model: Model, *, usage: Usage | None = None, group: Group | None = None, **options: Unpack[EmbedOptions]
) -> EmbedTask:
    """Computes the vectors of any number of texts, in their order and in constant memory.

    Args:
        model: Any model; without sentence-transformers files, tokens are mean-pooled.
        texts: An iterable of texts.
        usage: Counts tokens, padding and batches.
        group: The processes that share the work, see `mlxbert.distributed`; each gets all vectors, of the same texts.
        on_error: `raise`, or `return` a Failure in place of a text that cannot be used.
        **options: See `EmbedOptions`.

    Returns:
        An iterator of `Embedding`.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used.
    """
    return EmbedTask(model, usage=usage, group=group, **options)


def check_texts(texts: object) -> Iterable[str]:
    """Returns `texts`, or refuses them if they are not an iterable of texts."""
    # A table would give the names of its columns, bytes would give numbers.
    if isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        raise ArgumentError(f"texts is {texts!r:.60}, expected an iterable of texts")
    return texts


def _choose_prompt(prompts: Mapping[str, str], default: str | None, prompt: str | None, name: str | None) -> str:
    if prompt is not None and name is not None:
        raise ArgumentError(f"there are both a prompt {prompt!r:.60} and a prompt_name {name!r:.60}, expected one")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise ArgumentError(f"prompt is {prompt!r:.60}, expected a text")
        return prompt
    if name is not None and name not in list(prompts):  # a list: the given name may not be hashable
        known = ", ".join(map(repr, prompts)) or "no prompts"
        raise ArgumentError(f"prompt_name is {name!r:.60}, the model has {known}")
    name = default if name is None else name
    return "" if name is None else prompts[name]
