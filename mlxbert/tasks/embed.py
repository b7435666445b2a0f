"""Texts to vectors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, overload

from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.model import Model
from mlxbert.nn.embedder import SMALLEST_NORM, Embedder
from mlxbert.nn.encoder import Batch
from mlxbert.results import Embedding, Failure
from mlxbert.tasks.runner import check_on_error, run
from mlxbert.text.batch import Usage, check_batch_tokens, in_batches
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

OVERFLOWS = ("truncate", "window", "error")


class EmbedOptions(TypedDict, total=False):
    """How texts become vectors. What is left out is done as the model's own files say (`model.embedder.config`).

    Attributes:
        pooling: One of `mlxbert.nn.pooling.POOLINGS`, or several joined by `+`.
        normalize: True brings vectors to length 1, after cutting; False leaves out the model's own normalizing.
        dimensions: Keep only so many leading values (Matryoshka). They are not normalized again unless `normalize`
            says so, as in sentence-transformers.
        prompt: Put before each text.
        prompt_name: One of the model's own prompts instead.
        overflow: A text too long for the model: `truncate` (the default) cuts the end off, `window` takes the mean of
            the vectors of windows that cover the text, weighted by their tokens, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.
    """

    pooling: str | None
    normalize: bool | None
    dimensions: int | None
    prompt: str | None
    prompt_name: str | None
    overflow: str
    batch_tokens: int | None


@dataclass(frozen=True)
class _Job:
    """A text and the inputs it becomes: one, or the windows that cover it."""

    text: str
    encodings: list[Encoding]
    truncated: bool


@dataclass(frozen=True)
class _Plan:
    """How the texts of one call become vectors; `lead` is how many tokens stand before the text itself."""

    embedder: Embedder
    tokenizer: Tokenizer
    prompt: str
    lead: int
    overflow: str
    batch_tokens: int | None

    def prepare(self, text: str) -> _Job:
        if not isinstance(text, str):
            raise InputError(f"expected a text, found {type(text).__name__}")
        if self.overflow == "window":
            return _Job(text, self.tokenizer.windows(text, stride=0, prompt=self.prompt), False)
        encoding = self.tokenizer.encode(self.prompt + text, overflow=self.overflow)
        if self.prompt and len(encoding) <= self.lead:
            raise InputError(f"the prompt and {text!r:.60} are fewer tokens together than the prompt alone")
        return _Job(text, [encoding], encoding.truncated)


def embed(
    model: Model,
    texts: str | Iterable[str],
    *,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Unpack[EmbedOptions],
) -> "Vector":
    """Turns texts into vectors.

    Args:
        model: Any model; one without sentence-transformers files is mean-pooled.
        texts: One text, or a sequence of them.
        on_progress: Called with the number of texts done and of all texts, after each.
        **options: See `EmbedOptions`.

    Returns:
        float32 (D,) for one text, (N, D) for N.

    Raises:
        ArgumentError: An argument outside what is possible.
        InputError: A text that cannot be used.
    """
    import numpy as np

    one = isinstance(texts, str)
    many = [texts] if isinstance(texts, str) else list(_iterable(texts))
    plan = _plan(model, **_known(options))
    vectors = np.empty((len(many), plan.embedder.size), np.float32)
    for number, result in enumerate(_embed(model, plan, many, None, "raise")):
        vectors[number] = cast(Embedding, result).embedding
        if on_progress is not None:
            on_progress(number + 1, len(many))
    return vectors[0] if one else vectors


@overload
def embed_stream(
    model: Model,
    texts: Iterable[str | InputError],
    *,
    usage: Usage | None = None,
    on_error: Literal["raise"] = "raise",
    **options: Unpack[EmbedOptions],
) -> Iterator[Embedding]: ...
@overload
def embed_stream(
    model: Model,
    texts: Iterable[str | InputError],
    *,
    usage: Usage | None = None,
    on_error: str,
    **options: Unpack[EmbedOptions],
) -> Iterator[Embedding | Failure]: ...
def embed_stream(
    model: Model,
    texts: Iterable[str | InputError],
    *,
    usage: Usage | None = None,
    on_error: str = "raise",
    **options: Unpack[EmbedOptions],
) -> Iterator[Embedding] | Iterator[Embedding | Failure]:
    """Turns any number of texts into vectors, in their order and in constant memory.

    Args:
        model: Any model; one without sentence-transformers files is mean-pooled.
        texts: The texts.
        usage: Counts tokens, padding and batches.
        on_error: `raise`, or `return` a Failure in the place of a text that cannot be used.
        **options: See `EmbedOptions`.

    Raises:
        ArgumentError: An argument outside what is possible.
        InputError: A text that cannot be used.
    """
    check_on_error(on_error)
    return _embed(model, _plan(model, **_known(options)), _iterable(texts), usage, on_error)


def _known(options: EmbedOptions) -> EmbedOptions:
    unknown = options.keys() - EmbedOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}, expected some of {', '.join(EmbedOptions.__annotations__)}")
    return options


def _iterable(texts: Iterable[str | InputError]) -> Iterable[str | InputError]:
    # A table would give the names of its columns, bytes would give numbers.
    if isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        raise ArgumentError(f"texts is {texts!r:.60}, expected an iterable of texts")
    return texts


def _plan(
    model: Model,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
) -> _Plan:
    if not isinstance(model, Model):
        raise ArgumentError(f"model is {model!r:.60}, expected what mlxbert.load gave")
    model.require("embed")
    if overflow not in OVERFLOWS:
        raise ArgumentError(f"overflow is {overflow!r}, expected one of {', '.join(OVERFLOWS)}")
    if not isinstance(normalize, bool | None):
        raise ArgumentError(f"normalize is {normalize!r:.60}, expected True, False or None")
    if batch_tokens is not None:
        check_batch_tokens(batch_tokens)
    embedder = model.embedder.variant(pooling=pooling, normalize=normalize, dimensions=dimensions)
    config = embedder.config
    tokenizer = model.embed_tokenizer
    chosen = _choose_prompt(config.prompts, config.default_prompt_name, prompt, prompt_name)
    lead = tokenizer.lead(chosen)
    if chosen and lead >= tokenizer.max_length - 1:
        raise ArgumentError(f"the prompt takes {lead} tokens, the model at most {tokenizer.max_length} with the text")
    return _Plan(embedder, tokenizer, chosen, lead, overflow, batch_tokens)


def _choose_prompt(prompts: Mapping[str, str], default: str | None, prompt: str | None, name: str | None) -> str:
    if prompt is not None and name is not None:
        raise ArgumentError(f"there are both a prompt {prompt!r:.60} and a prompt_name {name!r:.60}, expected one")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise ArgumentError(f"prompt is {prompt!r:.60}, expected a text")
        return prompt
    if name is not None and name not in list(prompts):  # a list: what was given may have no hash
        known = ", ".join(map(repr, prompts)) or "no prompts"
        raise ArgumentError(f"prompt_name is {name!r:.60}, the model has {known}")
    name = default if name is None else name
    return "" if name is None else prompts[name]


def _embed(
    model: Model, plan: _Plan, texts: Iterable[str | InputError], usage: Usage | None, on_error: str
) -> Iterator[Embedding | Failure]:
    def compute(jobs: Sequence[_Job]) -> list[Embedding]:
        model.require("embed")  # again: an iterator can be handed to another thread
        return _results(model, plan, jobs, usage)

    return run(texts, plan.prepare, compute, on_error)


def _results(model: Model, plan: _Plan, jobs: Sequence[_Job], usage: Usage | None) -> list[Embedding]:
    def compute(batch: Batch, group: list[int]) -> list["Vector"]:
        return list(_vectors(model, plan, batch))

    inputs = [encoding for job in jobs for encoding in job.encodings]
    vectors = iter(in_batches(inputs, compute, model.config, plan.batch_tokens, usage))
    results = []
    for job in jobs:
        parts = [next(vectors) for _ in job.encodings]
        vector = parts[0] if len(parts) == 1 else _mean(parts, job.encodings, plan)
        results.append(Embedding(job.text, vector, sum(map(len, job.encodings)), job.truncated))
        if usage is not None:
            usage.texts += 1
            usage.cut += job.truncated
    return results


def _vectors(model: Model, plan: _Plan, batch: Batch) -> "Vector":
    """The vectors (B, W) of a batch."""
    import numpy as np

    attentions = plan.embedder.needs_attentions
    output = model.network.encoder(
        batch.input_ids, batch.attention_mask, batch.token_type_ids, output_attentions=attentions
    )
    vectors = np.array(plan.embedder(output, batch.attention_mask, plan.lead if plan.prompt else 0))
    if not np.isfinite(vectors).all():
        raise MlxbertError("the model computed vectors that are no numbers (NaN)", hint="try --dtype float32")
    return vectors


def _mean(parts: list["Vector"], windows: Sequence[Encoding], plan: _Plan) -> "Vector":
    """The mean of windows' vectors, each as often as it has tokens of the text; of length 1 where they are."""
    import numpy as np

    around = plan.lead + 1  # a special token ends each window
    mean = np.average(np.stack(parts), axis=0, weights=[len(window) - around for window in windows])
    if plan.embedder.unit:
        mean = mean / max(float(np.linalg.norm(mean)), SMALLEST_NORM)
    return mean.astype(np.float32)
