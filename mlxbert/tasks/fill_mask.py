"""Fill-mask: which words may stand at the masked places of a text."""

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, overload

from mlxbert.device import mx
from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import probabilities
from mlxbert.results import Failure, Fill, FillMask, Mask
from mlxbert.tasks.runner import check_finite, check_on_error, run
from mlxbert.text.batch import in_batches
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer

COMMON_MASK = "[MASK]"  # understood by every model, whatever its own mask token
OVERFLOWS = ("window", "truncate", "error")
DEFAULT_TOP_K = 5

# (token id, probability) of the best words of one mask.
_Best = list[tuple[int, float]]


class _Place(NamedTuple):
    """A mask: its place in the text, and the input and the token there that it is read from."""

    position: int
    start: int
    end: int
    input: int
    token: int


@dataclass(frozen=True)
class _Job:
    """A text to fill, its inputs and its masks."""

    text: str
    encodings: list[Encoding]
    masks: list[_Place]
    truncated: bool


@overload
def fill_mask(  # type: ignore[overload-overlap]  # a str is an iterable of str, too
    model: Model,
    texts: str,
    *,
    top_k: int | None = None,
    targets: Sequence[str] | None = None,
    overflow: str = "window",
    batch_tokens: int | None = None,
) -> FillMask: ...
@overload
def fill_mask(
    model: Model,
    texts: Iterable[str | InputError],
    *,
    top_k: int | None = None,
    targets: Sequence[str] | None = None,
    overflow: str = "window",
    batch_tokens: int | None = None,
    on_error: Literal["raise"] = "raise",
) -> Iterator[FillMask]: ...
@overload
def fill_mask(
    model: Model,
    texts: Iterable[str | InputError],
    *,
    top_k: int | None = None,
    targets: Sequence[str] | None = None,
    overflow: str = "window",
    batch_tokens: int | None = None,
    on_error: str,
) -> Iterator[FillMask | Failure]: ...
def fill_mask(
    model: Model,
    texts: str | Iterable[str | InputError],
    *,
    top_k: int | None = None,
    targets: Sequence[str] | None = None,
    overflow: str = "window",
    batch_tokens: int | None = None,
    on_error: str = "raise",
) -> FillMask | Iterator[FillMask] | Iterator[FillMask | Failure]:
    """Finds words for the masked places of texts.

    Args:
        model: A model with a masked-word head.
        texts: One text, or any number; each with at least one `[MASK]` (or the model's own mask token). Several masks
            of a text are filled independently, each while the others stay masked.
        top_k: How many words per mask; default 5, or all targets where there are some.
        targets: Only these words compete. Their scores stay probabilities over the whole vocabulary.
        overflow: A text too long for the model: `window` looks at each mask with as much text as fits on both sides,
            `truncate` cuts the end off, `error` refuses it.
        batch_tokens: Tokens per batch, padding included.
        on_error: `raise`, or `return` a Failure in the place of a text that cannot be used.

    Returns:
        One result for one text; for many an iterator in their order, in constant memory.

    Raises:
        InputError: A text without a mask, or too long with `overflow="error"`.
        ArgumentError: `top_k`, `targets` or another argument outside what is possible.
    """
    model.require("fill-mask")
    check_on_error(on_error)
    if overflow not in OVERFLOWS:
        raise ArgumentError(f"overflow is {overflow!r}, expected one of {', '.join(OVERFLOWS)}")
    chosen = None if targets is None else target_ids(model.tokenizer, targets)
    most = model.tokenizer.vocab_size if chosen is None else len(chosen)
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ArgumentError(f"top_k is {top_k!r}, expected a whole number of at least 1")
    if top_k is not None and chosen is None and top_k > most:
        raise ArgumentError(f"top_k is {top_k}, the vocabulary has {most} tokens")
    candidates = model.tokenizer.known_ids() if chosen is None else chosen
    count = min(top_k or (DEFAULT_TOP_K if chosen is None else most), most)

    def compute(jobs: Sequence[_Job]) -> list[FillMask]:
        model.require("fill-mask")  # again: an iterator can be handed to another thread
        return _fill(model, jobs, count, candidates, batch_tokens)

    one = isinstance(texts, str)
    many = [texts] if isinstance(texts, str) else texts
    results = run(many, lambda text: _prepare(model.tokenizer, text, overflow), compute, "raise" if one else on_error)
    if one:
        (result,) = results
        assert isinstance(result, FillMask)
        return result
    return results


def target_ids(tokenizer: Tokenizer, targets: Sequence[str]) -> list[int]:
    """The ids of target words, each once.

    A word counts as known if it is spelled as in the vocabulary ("ĠParis"), or if it is exactly one token where a word
    begins ("Paris" as "ĠParis" or "paris"), or else where it goes on with another.

    Raises:
        ArgumentError: There are none, or one is not in the vocabulary.
    """
    if isinstance(targets, str) or not targets:
        raise ArgumentError(f"targets is {targets!r}, expected a list of at least one word")
    found = []
    for target in targets:
        try:
            number = tokenizer.word_id(target)
        except InputError as problem:
            raise ArgumentError(f"target {target!r}: {problem.message}") from None
        if number is None:
            pieces = tokenizer.pieces(target)
            raise ArgumentError(
                f"target {target!r} is not in the vocabulary",
                hint=f"the model sees it as: {' '.join(map(tokenizer.token, pieces))}" if len(pieces) > 1 else None,
            )
        found.append(number)
    return list(dict.fromkeys(found))


def _respell(text: str, mask: str) -> tuple[str, Callable[[int], int]]:
    """The text with every `[MASK]` as the model's own mask token, and the way back for offsets."""
    if mask == COMMON_MASK or COMMON_MASK not in text:
        return text, lambda offset: offset
    pieces = text.split(COMMON_MASK)
    ends = list(itertools.accumulate(len(piece) + len(mask) for piece in pieces[:-1]))
    longer = len(COMMON_MASK) - len(mask)
    return mask.join(pieces), lambda offset: offset + longer * bisect.bisect_right(ends, offset)


def _prepare(tokenizer: Tokenizer, text: str, overflow: str) -> _Job:
    mask = tokenizer.mask_token
    mask_id = None if mask is None else tokenizer.token_id(mask)
    if mask is None or mask_id is None:
        raise InputError("the model's vocabulary has no mask token")
    if not isinstance(text, str):
        raise InputError(f"expected a text, found {type(text).__name__}")
    spelled, restore = _respell(text, mask)
    if overflow == "window":
        encodings, places = tokenizer.around(spelled, mask_id)
    else:
        encodings = [tokenizer.encode(spelled, overflow=overflow)]
        places = [(0, token) for token, found in enumerate(encodings[0].ids) if found == mask_id]
    if not places:
        within = f" within the first {tokenizer.max_length} tokens" if encodings[0].truncated else ""
        wanted = mask if mask == COMMON_MASK else f"{mask} or {COMMON_MASK}"
        raise InputError(
            f"no {wanted}{within} in the text {_shortened(text)}", hint=f"put {COMMON_MASK} where a word is missing"
        )
    masks = []
    for number, token in places:
        start, end = encodings[number].offsets[token]
        around = spelled[start:end]  # some masks take the spaces beside them with them
        start, end = start + len(around) - len(around.lstrip()), end - len(around) + len(around.rstrip())
        start, end = restore(start), restore(end)
        masks.append(_Place(encodings[number].positions[token], start, end, number, token))
    return _Job(text, encodings, masks, overflow == "truncate" and encodings[0].truncated)


def _shortened(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def _fill(
    model: Model, jobs: Sequence[_Job], count: int, chosen: list[int] | None, batch_tokens: int | None
) -> list[FillMask]:
    inputs: list[tuple[Encoding, list[int]]] = []
    for job in jobs:
        tokens: list[list[int]] = [[] for _ in job.encodings]
        for mask in job.masks:
            tokens[mask.input].append(mask.token)
        inputs += zip(job.encodings, tokens, strict=True)

    def compute(batch: Batch, group: list[int]) -> list[list[_Best]]:
        return _best_words(model, batch, [inputs[number][1] for number in group], count, chosen)

    best = iter(in_batches([encoding for encoding, _ in inputs], compute, model.config, batch_tokens))
    results = []
    for job in jobs:
        # Masks of one input stand in the order of the text, and so do the inputs.
        words = itertools.chain.from_iterable(next(best) for _ in job.encodings)
        masks = (_result(model.tokenizer, job.text, mask, fills) for mask, fills in zip(job.masks, words, strict=True))
        results.append(FillMask(job.text, tuple(masks), job.truncated))
    return results


def _best_words(
    model: Model, batch: Batch, masks: Sequence[list[int]], count: int, chosen: list[int] | None
) -> list[list[_Best]]:
    """For each input of a batch, for each of its masked tokens: the `count` best words, the best first."""
    output = model.network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    rows = [row for row, tokens in enumerate(masks) for _ in tokens]
    columns = [token for tokens in masks for token in tokens]
    # The product with the vocabulary costs as much as several layers: only masked tokens go through it.
    masked = output.select(mx.array(rows), mx.array(columns))
    scores = probabilities(model.network.logits("masked_lm", masked))
    if chosen is not None:
        scores = scores[:, mx.array(chosen)]
    best = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
    numbers = cast(list[list[int]], best.tolist())
    values = cast(list[list[float]], mx.take_along_axis(scores, best, axis=-1).tolist())
    for row in values:
        check_finite(row)
    words = iter(
        [
            sorted(
                ((number if chosen is None else chosen[number], score) for number, score in zip(*pair, strict=True)),
                key=lambda word: (-word[1], word[0]),
            )
            for pair in zip(numbers, values, strict=True)
        ]
    )
    return [[next(words) for _ in tokens] for tokens in masks]


def _result(tokenizer: Tokenizer, text: str, mask: _Place, words: _Best) -> Mask:
    left, right = text[: mask.start], text[mask.end :]
    fills = tuple(
        Fill(tokenizer.shown(number), number, score, tokenizer.filled(left, number, right)) for number, score in words
    )
    return Mask(mask.position, mask.start, mask.end, fills)
