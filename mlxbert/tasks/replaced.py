"""Replaced-token detection: which tokens of a text look as if they stood in the place of others."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, overload

from mlxbert.device import mx
from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.results import Failure, Replaced, ReplacedToken
from mlxbert.tasks.runner import check_finite, check_on_error, run
from mlxbert.text.batch import in_batches
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer

OVERFLOWS = ("window", "truncate", "error")


@dataclass(frozen=True)
class _Job:
    text: str
    encodings: list[Encoding]
    truncated: bool


@overload
def replaced(  # type: ignore[overload-overlap]  # a str is an iterable of str, too
    model: Model, texts: str, *, overflow: str = "window", batch_tokens: int | None = None
) -> Replaced: ...
@overload
def replaced(
    model: Model,
    texts: Iterable[str | InputError],
    *,
    overflow: str = "window",
    batch_tokens: int | None = None,
    on_error: Literal["raise"] = "raise",
) -> Iterator[Replaced]: ...
@overload
def replaced(
    model: Model,
    texts: Iterable[str | InputError],
    *,
    overflow: str = "window",
    batch_tokens: int | None = None,
    on_error: str,
) -> Iterator[Replaced | Failure]: ...
def replaced(
    model: Model,
    texts: str | Iterable[str | InputError],
    *,
    overflow: str = "window",
    batch_tokens: int | None = None,
    on_error: str = "raise",
) -> Replaced | Iterator[Replaced] | Iterator[Replaced | Failure]:
    """Says for every token of a text how much it looks like a replacement.

    Args:
        model: A model with a discriminator: ELECTRA (arXiv:2003.10555).
        texts: One text, or any number.
        overflow: A text too long for the model: `window` looks at it through overlapping windows and believes for each
            token the one in whose middle it stands, `truncate` cuts the end off, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.
        on_error: `raise`, or `return` a Failure in the place of a text that cannot be used.

    Returns:
        One result for one text; for many an iterator in their order, in constant memory.

    Raises:
        InputError: Something else than a text, or too long with `overflow="error"`.
        ArgumentError: An argument outside what is possible.
    """
    model.require("replaced")
    check_on_error(on_error)
    if overflow not in OVERFLOWS:
        raise ArgumentError(f"overflow is {overflow!r}, expected one of {', '.join(OVERFLOWS)}")

    def compute(jobs: Sequence[_Job]) -> list[Replaced]:
        model.require("replaced")  # again: an iterator can be handed to another thread
        return _detect(model, jobs, batch_tokens)

    one = isinstance(texts, str)
    many = [texts] if isinstance(texts, str) else texts
    results = run(many, lambda text: _prepare(model.tokenizer, text, overflow), compute, "raise" if one else on_error)
    if one:
        (result,) = results
        assert isinstance(result, Replaced)
        return result
    return results


def _prepare(tokenizer: Tokenizer, text: str, overflow: str) -> _Job:
    if overflow == "window":
        return _Job(text, tokenizer.windows(text, stride=tokenizer.max_length // 4), False)
    encoding = tokenizer.encode(text, overflow=overflow)
    return _Job(text, [encoding], encoding.truncated)


def _detect(model: Model, jobs: Sequence[_Job], batch_tokens: int | None) -> list[Replaced]:
    def compute(batch: Batch, group: list[int]) -> list[list[float]]:
        logits = model.network.logits("discriminator", batch)
        return cast(list[list[float]], mx.sigmoid(logits.astype(mx.float32)).tolist())

    encodings = [encoding for job in jobs for encoding in job.encodings]
    scores = iter(in_batches(encodings, compute, model.config, batch_tokens))
    return [_result(model.tokenizer, job, [next(scores) for _ in job.encodings]) for job in jobs]


def _result(tokenizer: Tokenizer, job: _Job, scores: list[list[float]]) -> Replaced:
    """Of a token that several windows hold the score from the one where it is furthest from the edge."""
    found: dict[int, tuple[int, ReplacedToken]] = {}
    for encoding, values in zip(job.encodings, scores, strict=True):
        real = check_finite(values[: len(encoding)])
        for place, (position, sequence) in enumerate(zip(encoding.positions, encoding.sequence_ids, strict=True)):
            inside = min(place, len(encoding) - 1 - place)
            if sequence is None or inside <= found.get(position, (-1,))[0]:
                continue
            name, (start, end) = tokenizer.token(encoding.ids[place]), encoding.offsets[place]
            token = ReplacedToken(name, position, start, end, real[place], real[place] > 0.5)
            found[position] = (inside, token)
    return Replaced(job.text, tuple(token for _, (_, token) in sorted(found.items())), job.truncated)
