"""Ways to compute the vector of a text: how its tokens are chosen, and what becomes of the hidden states.

Shapes: N texts, B batch, L length, D hidden size, W size of a vector.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from tokenizers import Tokenizer as Plain

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder, Normalize
from mlxbert.nn.encoder import Batch
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.tasks.task import evaluation_mode
from mlxbert.text.encoding import Encoding, Pieces

Vectors: TypeAlias = "NDArray[np.float32]"

POOLER, LAST = "pooler", -1


@dataclass(frozen=True)
class Reading:
    """How the input of the model is made from a text."""

    # The maximum number of tokens, special tokens included; `None` for the embedding model's own limit.
    limit: int | None = None
    # The part of a longer text that is used: its `start` or `end`; all of it, in `windows` whose vectors are averaged;
    # or the start without the special token at the end, `unclosed`.
    part: str = "start"
    # The name and the text of the prompt; the name is `None` for a prompt that the model does not have.
    prompt: tuple[str | None, str] = (None, "")
    case: str = "as_is"  # `as_is`; `lower` lowercases texts first; `kept` leaves out the lowercasing of the tokenizer
    special: bool = True  # whether special tokens are added
    # To how many tokens inputs are padded with tokens that are attended to; 0 for no such padding, and a negative
    # number -n for the longest of each n texts in order.
    padded: int = 0


@dataclass(frozen=True)
class Pooled:
    """What becomes of the hidden states."""

    pooling: str  # a pooling such as `mean` or `cls+max`, or `pooler` for the pooler of BERT
    # The number of the layer whose hidden states are pooled, 0 for the embeddings; -1 for the last one.
    layer: int = LAST
    later: bool = True  # whether the layers after the pooling follow
    padding: bool = False  # whether padding tokens that are attended to are also pooled


class ReadText(NamedTuple):
    """An input of the model."""

    encoding: Encoding  # the tokens, perhaps with padding that is attended to
    real: int  # the number of tokens without padding


@dataclass
class RecipeRunner:
    """Computes vectors of texts by any reading; remembers tokens and vectors.

    Vectors are not normalized, and not shortened.
    """

    model: Model
    texts: Sequence[str]
    # The distinct combinations of a reading and a pooling that were computed.
    tried: set[tuple[Reading, Pooled]] = field(default_factory=set)
    _tokens: dict[tuple[str, str, int], Pieces] = field(default_factory=dict)
    _vectors: dict[Pooled, dict[tuple[object, ...], "Vectors"]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokenizer = self.model.embed_tokenizer
        template = [special for special, _ in self.tokenizer.templates[0]]
        place = template.index(None)
        self._before = [special for special in template[:place] if special is not None]
        self._after = [special for special in template[place:] if special is not None]
        self.most = self.model.config.max_length
        self.limit = self.tokenizer.max_length
        self._embedder = cache(self._make_embedder)
        self.has_later_layers = any(not isinstance(layer, Normalize) for layer in self.model.embedder.layers)
        self._kept = kept_case(self.tokenizer.files.tokenizer)
        self.cases = ("as_is", "lower", *(("kept",) if self._kept is not None else ()))

    def pieces(self, number: int, reading: Reading) -> Pieces:
        """Returns all tokens of a text with its prompt, without special tokens."""
        key = (reading.prompt[1], reading.case, number)
        if key not in self._tokens:
            text = reading.prompt[1] + self.texts[number]
            if reading.case == "kept" and self._kept is not None:
                ids = self._kept.encode(text, add_special_tokens=False).ids
                pieces = Pieces(ids, [(0, 0)] * len(ids), [None] * len(ids))
            else:
                pieces = self.tokenizer.split(text.lower() if reading.case == "lower" else text)
            self._tokens[key] = pieces
        return self._tokens[key]

    def length(self, number: int, reading: Reading) -> int:
        """Returns the number of tokens of a text, special tokens included, without any limit."""
        return len(self.pieces(number, reading)) + reading.special * (len(self._before) + len(self._after))

    def width(self, pooled: Pooled) -> int:
        if pooled.later and self.has_later_layers:
            return self._embedder(self.model.embedder.config.poolings[0], True).size
        return self.model.config.hidden_size * len(pooled.pooling.split("+"))

    def vectors(self, reading: Reading, pooled: Sequence[Pooled], numbers: Sequence[int]) -> list["Vectors"]:
        """Returns the vectors of some texts by several poolings, each (N, W)."""
        (vectors,) = self.vectors_of([reading], pooled, numbers)
        return vectors

    def vectors_of(
        self, readings: Sequence[Reading], pooled: Sequence[Pooled], numbers: Sequence[int]
    ) -> list[list["Vectors"]]:
        """Returns the vectors of each reading. All are computed together; they differ only in limits of tokens."""
        self.tried |= {(reading, each) for reading in readings for each in pooled}
        inputs = {(reading, number): self._inputs(reading, number) for reading in readings for number in numbers}
        keys = {place: self._key(place[0], each) for place, each in inputs.items()}
        known = [self._vectors.setdefault(each, {}) for each in pooled]
        missing = {
            key: inputs[place] for place, key in keys.items() if not all(key in stored for stored in known)
        }  # texts with equal inputs are computed once
        for key, rows in zip(missing, self._compute(readings[0], pooled, [*missing.values()]), strict=True):
            for stored, row in zip(known, rows, strict=True):
                stored[key] = row
        return [
            [np.stack([stored[keys[reading, number]] for number in numbers]) for stored in known]
            for reading in readings
        ]

    def inputs(self, reading: Reading) -> tuple[object, ...]:
        """Returns all inputs of a reading, to tell whether two readings differ on these texts."""
        return tuple(self._key(reading, self._inputs(reading, number)) for number in range(len(self.texts)))

    def _key(self, reading: Reading, inputs: Sequence[ReadText]) -> tuple[object, ...]:
        """Returns what the vectors of a text depend on, besides the pooling."""
        return (reading.prompt, *((*each.encoding.ids, each.real) for each in inputs))

    def _compute(
        self, reading: Reading, pooled: Sequence[Pooled], windows: Sequence[Sequence[ReadText]]
    ) -> list[list["Vectors"]]:
        """Returns for each text, given by its windows, its vector by each pooling."""
        from mlxbert.tasks.runner import run_batches

        inputs = [each for text in windows for each in text]
        model = self.model.for_prompt(*reading.prompt)
        skip = len(self._before) * reading.special + len(self.tokenizer.split(reading.prompt[1]))

        def forward(batch: Batch, group: list[int]) -> list[mx.array]:
            model.require("embed")
            with evaluation_mode(model.network):
                lengths = [inputs[number].real for number in group] + [1] * (len(batch.input_ids) - len(group))
                return self._pool(model, batch, mx.array(lengths), pooled, skip if reading.prompt[1] else 0)

        def read(arrays: Any, group: list[int]) -> list[list["Vectors"]]:
            columns = [np.array(array) for array in arrays]
            return [[column[row] for column in columns] for row in range(len(group))]

        rows = iter(list(run_batches([each.encoding for each in inputs], forward, read, model.config, None)))
        special = (len(self._before) + len(self._after)) * reading.special
        unit = self.model.embedder.unit
        return [
            _mean([next(rows) for _ in text], [max(each.real - special, 1) for each in text], unit=unit)
            for text in windows
        ]

    def _pool(
        self, model: Model, batch: Batch, lengths: mx.array, pooled: Sequence[Pooled], skip: int
    ) -> list[mx.array]:
        output = model.network.encoder(
            batch.input_ids, batch.attention_mask, batch.token_type_ids,
            output_hidden_states=any(each.layer != LAST for each in pooled),
            output_attentions=any("attention" in each.pooling for each in pooled),
        )  # fmt: skip
        real = mx.arange(batch.input_ids.shape[1])[None] < lengths[:, None]

        def one(each: Pooled) -> mx.array:
            if each.pooling == POOLER:
                assert output.pooler_output is not None
                return output.pooler_output.astype(mx.float32)
            shown = output
            if each.layer != LAST:
                assert output.hidden_states is not None
                shown = replace(output, last_hidden_state=output.hidden_states[each.layer])
            return self._embedder(each.pooling, each.later)(shown, batch.attention_mask if each.padding else real, skip)

        return [one(each) for each in pooled]

    def _make_embedder(self, pooling: str, later: bool) -> Embedder:
        embedder = self.model.embedder.variant(pooling=pooling if later else None, normalize=False)
        config = replace(embedder.config, dimensions=None)
        if later:
            return Embedder(config, embedder.width, embedder.layers)
        return Embedder(config, embedder.width).variant(pooling=pooling)

    def _inputs(self, reading: Reading, number: int) -> list[ReadText]:
        encodings = self._encodings(reading, number)
        if not reading.padded:
            return [ReadText(encoding, len(encoding)) for encoding in encodings]
        length, pad = self._padded_length(reading, number), self.model.config.pad_token_id
        return [
            ReadText(self._plain([*each.ids, *[pad] * max(length - len(each), 0)]), len(each)) for each in encodings
        ]

    def _encodings(self, reading: Reading, number: int) -> list[Encoding]:
        if (reading.limit, reading.part, reading.special, reading.case) == (None, "start", True, "as_is"):
            return [self.tokenizer.encode(reading.prompt[1] + self.texts[number], overflow="truncate")]
        pieces, limit = self.pieces(number, reading), min(reading.limit or self.limit, self.most)
        if reading.part == "unclosed":
            return [self._plain([*self._before, *pieces.ids, *self._after][:limit])]
        room = max(limit - (len(self._before) + len(self._after)) * reading.special, 1)
        starts = {
            "start": [0], "end": [max(len(pieces) - room, 0)], "windows": [*range(0, max(len(pieces), 1), room)],
        }[reading.part]  # fmt: skip
        slices = [pieces.slice(start, start + room) for start in starts]
        if reading.special:
            return [self.tokenizer.assemble([part], truncated=len(part) < len(pieces)) for part in slices]
        return [self._plain(part.ids or [*self._before, *self._after]) for part in slices]

    def _padded_length(self, reading: Reading, number: int) -> int:
        """Returns the length to which the input of a text is padded."""
        limit = min(reading.limit or self.limit, self.most)
        if reading.padded > 0:
            return min(reading.padded, limit)
        size = -reading.padded
        first = number // size * size
        together = range(first, min(first + size, len(self.texts)))
        return min(max(self.length(other, reading) for other in together), limit)

    def _plain(self, ids: list[int]) -> Encoding:
        segment = self.tokenizer.templates[0][0][1]
        return Encoding(ids, [segment] * len(ids), [(0, 0)] * len(ids), [], [], [], False)


def _mean(rows: Sequence[Sequence["Vectors"]], lengths: Sequence[int], *, unit: bool) -> list["Vectors"]:
    """Returns the mean of the vectors of windows, weighted by their tokens of text, for each pooling.

    With `unit`, the vectors of the windows are scaled to length 1 before.
    """
    if len(rows) == 1:
        return list(rows[0])
    stacked = (np.stack(column) for column in zip(*rows, strict=True))
    return [np.average(unit_length(each) if unit else each, axis=0, weights=lengths) for each in stacked]


def kept_case(tokenizer: Plain) -> Plain | None:
    """Returns a copy of a tokenizer that does not lowercase texts; `None` if it does not lowercase them anyway."""
    settings = json.loads(tokenizer.to_str())
    normalizer = _without_lowercasing(settings["normalizer"])
    if normalizer == settings["normalizer"]:
        return None
    copied = Plain.from_str(json.dumps(settings | {"normalizer": normalizer}))
    copied.no_truncation()
    copied.no_padding()
    return copied


def _without_lowercasing(normalizer: Any) -> Any:
    """Returns the settings of a normalizer without the steps that lowercase."""
    if not isinstance(normalizer, dict):
        return normalizer
    if normalizer.get("type") == "Lowercase":
        return {"type": "Sequence", "normalizers": []}
    changed = normalizer | ({"lowercase": False} if normalizer.get("lowercase") else {})
    if "normalizers" in changed:
        changed["normalizers"] = [*map(_without_lowercasing, changed["normalizers"])]
    return changed
