"""Next-sentence prediction: does one text follow the other?"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, cast, overload

from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import probabilities
from mlxbert.results import Failure, NextSentence
from mlxbert.tasks.runner import check_finite, check_on_error, run
from mlxbert.text.batch import in_batches
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer

Pair = tuple[str, str]
OVERFLOWS = ("truncate", "error")


@overload
def next_sentence(
    model: Model, pairs: Pair, *, overflow: str = "truncate", batch_tokens: int | None = None
) -> NextSentence: ...
@overload
def next_sentence(
    model: Model,
    pairs: Iterable[Pair | InputError],
    *,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
    on_error: Literal["raise"] = "raise",
) -> Iterator[NextSentence]: ...
@overload
def next_sentence(
    model: Model,
    pairs: Iterable[Pair | InputError],
    *,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
    on_error: str,
) -> Iterator[NextSentence | Failure]: ...
def next_sentence(
    model: Model,
    pairs: Pair | Iterable[Pair | InputError],
    *,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
    on_error: str = "raise",
) -> NextSentence | Iterator[NextSentence] | Iterator[NextSentence | Failure]:
    """Says for pairs of texts whether the second follows the first.

    Args:
        model: A model with a next-sentence head.
        pairs: One pair, a tuple of two texts; or any number of pairs.
        overflow: A pair too long for the model: `truncate` cuts the longer text, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.
        on_error: `raise`, or `return` a Failure in the place of a pair that cannot be used.

    Returns:
        One result for one pair; for many an iterator in their order, in constant memory.

    Raises:
        InputError: Something else than two texts, or too long with `overflow="error"`.
        ArgumentError: An argument outside what is possible.
    """
    model.require("next-sentence")
    check_on_error(on_error)
    if overflow not in OVERFLOWS:
        raise ArgumentError(f"overflow is {overflow!r}, expected one of {', '.join(OVERFLOWS)}")
    one = isinstance(pairs, tuple) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs)

    def compute(jobs: Sequence[tuple[Pair, Encoding]]) -> list[NextSentence]:
        model.require("next-sentence")  # again: an iterator can be handed to another thread
        return _score(model, jobs, batch_tokens)

    many: Iterable[Pair | InputError] = [pairs] if one else pairs  # type: ignore[list-item, assignment]
    results = run(
        many, lambda pair: (pair, _encode(model.tokenizer, pair, overflow)), compute, "raise" if one else on_error
    )
    if one:
        (result,) = results
        assert isinstance(result, NextSentence)
        return result
    return results


def _encode(tokenizer: Tokenizer, pair: Pair, overflow: str) -> Encoding:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise InputError(f"expected a pair of texts, found {pair!r:.60}", hint="one pair is a tuple: (a, b)")
    return tokenizer.encode(pair[0], pair[1], overflow=overflow)


def _score(model: Model, jobs: Sequence[tuple[Pair, Encoding]], batch_tokens: int | None) -> list[NextSentence]:
    encodings = [encoding for _, encoding in jobs]

    def compute(batch: Batch, group: list[int]) -> list[float]:
        scores = probabilities(model.network.logits("next_sentence", batch))
        return check_finite(cast(list[float], scores[:, 0].tolist()))

    scores = in_batches(encodings, compute, model.config, batch_tokens)
    return [
        NextSentence(first, second, score > 0.5, score, encoding.truncated)
        for ((first, second), encoding), score in zip(jobs, scores, strict=True)
    ]
