"""Fill-mask: predicts words for the masked places of a text."""

import bisect
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch, EncoderOutput
from mlxbert.nn.heads import probabilities
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Fill, FillMask, Mask
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import FillMaskOptions
from mlxbert.tasks.task import RESULT_BYTES, PreparedItem, Task, check_finite, one_or_many
from mlxbert.text.batch import padded_count
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.usage import Usage

COMMON_MASK = "[MASK]"  # understood by every model, whatever its own mask token
DEFAULT_TOP_K = 5
MOST_WITH_TEXT = 49  # masks whose fills repeat the text: with 2,000 masks, all texts would take 28 MB

_FILL_BYTES = 240  # the memory of a `Fill` without its text
_TEXT_BYTES = 60  # the memory of a text without its characters
_MAX_SCORES = 2**24  # scores computed at once: a batch of only masks has 2,048 per word of the vocabulary

# The token ids of the best words for one mask, best first, and their probabilities, K each. Uses arrays of the standard
# library: lists take many times the memory, and NumPy a tenth of a second to import.
Words = tuple["array[int]", "array[float]"]


class MaskedPlace(NamedTuple):
    """A mask: its place in the text, and the index of its token within the encoding that predicts it."""

    position: int
    start: int
    end: int
    token: int


@dataclass(frozen=True)
class MaskJob(PreparedItem[str]):
    """A text, and the masks that each of its encodings predicts, in the order of the text."""

    masks: Sequence[Sequence[MaskedPlace]]


class FillMaskTask(Task[str, MaskJob, list[Words], FillMask]):
    """Finds the most probable words for every mask of a text."""

    name = "fill-mask"
    options: FillMaskOptions
    smaller = "use a smaller `top_k=`, `targets=`, or `text=False`"
    by_row = False

    def __init__(self, model: Model, options: FillMaskOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        self._word_cache = dict[int, str]()  # displayed words by token id: many masks share them
        targets = None if options.targets is None else target_ids(model.tokenizer, options.targets)
        available = model.tokenizer.vocab_size if targets is None else len(targets)
        top_k = options.top_k
        if top_k is not None and targets is None and top_k > available:
            raise ArgumentError(f"`top_k` is {top_k}, but the vocabulary has {available} tokens")
        self.candidates = model.tokenizer.known_ids() if targets is None else targets
        self.count = min(top_k or (DEFAULT_TOP_K if targets is None else available), available)

    @property
    def output_bytes(self) -> int:
        """The memory of the words for a mask, in bytes; they are stored as two arrays."""
        return 12 * self.count

    def size(self, item: str, units: int) -> int:
        """Returns the memory of the words for each mask, and of the filled texts for the first masks, in bytes."""
        text = _TEXT_BYTES + len(item) * (1 if item.isascii() else 2) if self.options.text else 0
        return RESULT_BYTES + self.count * (_FILL_BYTES * units + text * min(units, MOST_WITH_TEXT))

    def units(self, job: MaskJob) -> int:
        return sum(map(len, job.masks))

    def most_units(self, item: str) -> int:
        """Returns the number of places in the text that are spelled like a mask."""
        return sum(item.count(mask) for mask in {COMMON_MASK, self.model.tokenizer.mask_token or COMMON_MASK})

    def prepare(self, item: str) -> MaskJob:
        tokenizer = self.model.tokenizer
        mask = tokenizer.mask_token
        mask_id = None if mask is None else tokenizer.token_id(mask)
        if mask is None or mask_id is None:
            raise InputError("the model's vocabulary has no mask token")
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {type(item).__name__}")
        spelled, restore = respell(item, mask)
        if self.windowed:
            encodings, places = tokenizer.around(spelled, mask_id)
        else:
            encodings = [self.encode(spelled)]
            places = [(0, token) for token, id in enumerate(encodings[0].ids) if id == mask_id]
        if not places:
            within = f" within the first {tokenizer.max_length} tokens" if encodings[0].truncated else ""
            names = mask if mask == COMMON_MASK else f"{mask} or {COMMON_MASK}"
            put = f"put {COMMON_MASK} where a word is missing"
            raise InputError(
                f"the text {_shortened(item)} has no {names}{within}",
                hint=f"`overflow='window'` reads all of the text, or {put}" if within else put,
            )
        masks: list[list[MaskedPlace]] = [[] for _ in encodings]
        for number, token in places:
            start, end = encodings[number].offsets[token]
            span = spelled[start:end]  # some mask tokens include the spaces around them
            start, end = start + len(span) - len(span.lstrip()), end - len(span) + len(span.rstrip())
            start, end = restore(start), restore(end)
            masks[number].append(MaskedPlace(encodings[number].positions[token], start, end, token))
        unknown, only = tokenizer.unknown(encodings)
        truncated = not self.windowed and encodings[0].truncated
        return MaskJob(item, encodings, truncated, masks, unknown=unknown, only_unknown=only)

    def texts(self, item: str) -> list[str]:
        mask = self.model.tokenizer.mask_token
        return [respell(item, mask)[0]] if mask and isinstance(item, str) else []

    def forward(self, batch: Batch, parts: Sequence[tuple[MaskJob, int]]) -> tuple[mx.array, mx.array]:
        """Returns the indices of the best words for M masks, and their scores, both (M, K).

        On a GPU, the last mask is repeated until M is one of a few fixed numbers; this limits the number of shapes.
        """
        network = self.model.network
        output = network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        masks = [job.masks[number] for job, number in parts]
        rows = [row for row, places in enumerate(masks) for _ in places]
        columns = [mask.token for places in masks for mask in places]
        more = padded_count(len(rows)) - len(rows)
        rows, columns = [*rows, *rows[-1:] * more], [*columns, *columns[-1:] * more]
        # The product with the vocabulary costs as much as several layers: only masked places go through it.
        size = max(_MAX_SCORES // self.model.tokenizer.vocab_size, 1)
        chunks = [
            self._best(output.select(mx.array(rows[start : start + size]), mx.array(columns[start : start + size])))
            for start in range(0, len(rows), size)
        ]
        best, scores = (mx.concatenate([*parts]) for parts in zip(*chunks, strict=True))
        return best, scores

    def _best(self, selected: EncoderOutput) -> tuple[mx.array, mx.array]:
        """Converts hidden states of masks, (M, D), to the indices of the best words and their scores, (M, K) each."""
        scores = probabilities(self.model.network.logits("masked_lm", selected))
        if self.candidates is not None:
            scores = scores[:, mx.array(self.candidates)]
        best = mx.argpartition(-scores, kth=self.count - 1, axis=-1)[:, : self.count]
        return mx.contiguous(best), mx.contiguous(mx.take_along_axis(scores, best, axis=-1))

    def read(self, arrays: tuple[mx.array, mx.array], parts: Sequence[tuple[MaskJob, int]]) -> list[list[Words]]:
        best, best_scores = (memoryview(cast(Any, values)).cast("B") for values in arrays)
        columns, scores = best.cast("I"), best_scores.cast("f")
        places = range(0, len(columns), self.count)
        words = (self._words(columns[at : at + self.count], scores[at : at + self.count]) for at in places)
        return [[next(words) for _ in job.masks[number]] for job, number in parts]

    def _words(self, columns: "memoryview[int]", scores: "memoryview[float]") -> Words:
        """Returns words and their scores, best first; words with equal scores are in the order of the vocabulary."""
        ids, values = columns.tolist(), cast(list[float], scores.tolist())
        if self.candidates is not None:
            ids = [self.candidates[column] for column in ids]
        order = sorted(range(len(ids)), key=lambda place: (-values[place], ids[place]))
        return array("i", [ids[place] for place in order]), array("f", [values[place] for place in order])

    def result(self, job: MaskJob, outputs: Sequence[list[Words]]) -> FillMask:
        check_finite([score for best in outputs for _, scores in best for score in scores])
        pairs = (
            (mask, words)
            for places, best in zip(job.masks, outputs, strict=True)
            for mask, words in zip(places, best, strict=True)
        )
        masks = (
            self._mask(job.item, mask, words, with_text=self.options.text and number < MOST_WITH_TEXT)
            for number, (mask, words) in enumerate(pairs)
        )
        return FillMask(job.item, tuple(masks), job.truncated, job.unknown, job.only_unknown)

    def _mask(self, text: str, mask: MaskedPlace, words: Words, *, with_text: bool) -> Mask:
        tokenizer, left, right = self.model.tokenizer, text[: mask.start], text[mask.end :]
        cache = self._word_cache
        self.pause(False)
        for number in words[0].tolist():
            if number not in cache:
                cache[number] = tokenizer.shown(number)
        fills = (
            Fill(cache[number], number, score, tokenizer.filled(left, number, right) if with_text else None)
            for number, score in zip(*(column.tolist() for column in words), strict=True)
        )
        return Mask(mask.position, mask.start, mask.end, tuple(fills))


@takes_keywords
def fill_mask(
    model: Model, texts: str | Iterable[str | InputError], *, options: FillMaskOptions, call: CallOptions
) -> FillMask | Iterator[FillMask | Failure]:
    """Predicts words for the masked places of texts.

    If a text is too long for the model, each mask gets a window with as much text as fits on both sides.

    Example:
        >>> result = mlxbert.fill_mask(mlxbert.load(), "Tokyo is the largest city in [MASK].", top_k=3)
        >>> [(fill.token, fill.score) for fill in result.masks[0].fills]

    Args:
        model: A model with a masked-LM head.
        texts: One text, or any number of texts; each with at least one `[MASK]` (or the model's own mask token).
            Several masks of a text are filled independently: while one is filled, the others stay masked.
        options: See `FillMaskOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: A text has no mask, or is too long with `overflow="error"`.
        ArgumentError: `top_k`, `targets` or another argument has an invalid value.
    """
    return one_or_many(FillMaskTask, model, texts, options, call)


def target_ids(tokenizer: Tokenizer, targets: Sequence[str]) -> list[int]:
    """Returns the ids of target words, without duplicates.

    A target is looked up as it is spelled in the vocabulary ("ĠParis"), then as a single token at the beginning of a
    word ("Paris" as "ĠParis" or "paris"), then as a single token within a word.
    """
    ids = []
    for target in targets:
        try:
            number = tokenizer.word_id(target)
        except InputError as problem:
            raise ArgumentError(f"target {target!r}: {problem.message}") from None
        if number is None:
            pieces = tokenizer.pieces(target)
            raise ArgumentError(
                f"target {target!r} is not in the vocabulary",
                hint=f"the tokenizer splits {target!r:.60} into {' '.join(map(tokenizer.token, pieces))}"
                if len(pieces) > 1
                else None,
            )
        ids.append(number)
    return list(dict.fromkeys(ids))


def respell(text: str, mask: str) -> tuple[str, Callable[[int], int]]:
    """Replaces `[MASK]` with the model's own mask token; also returns a function that maps offsets back."""
    if mask == COMMON_MASK or COMMON_MASK not in text:
        return text, lambda offset: offset
    pieces = text.split(COMMON_MASK)
    ends = list(itertools.accumulate(len(piece) + len(mask) for piece in pieces[:-1]))
    longer = len(COMMON_MASK) - len(mask)
    return mask.join(pieces), lambda offset: offset + longer * bisect.bisect_right(ends, offset)


def _shortened(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
