"""How far the outputs of two models are apart on the fixed texts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from mlxbert.errors import InputError, MlxbertError
from mlxbert.folders.compare.compared_model import OpenedModel
from mlxbert.folders.compare.facts import encoded, spelled
from mlxbert.folders.compare.fixed_texts import MASKED, TEXTS
from mlxbert.folders.compare.reports import MaskDifferences, OutputDifferences, VectorDifferences
from mlxbert.frozen import FrozenDict
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS
from mlxbert.results.embed import Embedding
from mlxbert.results.fill_mask import FillMask
from mlxbert.tasks.embed import embed_stream
from mlxbert.tasks.fill_mask import fill_mask
from mlxbert.tasks.runner import run_batches
from mlxbert.text.encoding import Encoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

T = TypeVar("T")

_WORDS = 10  # the best ones for a mask, whose probabilities are compared
_TINY = 1e-9  # a probability
_HIDDEN = "last_hidden_state"


def compare(a: OpenedModel, b: OpenedModel) -> tuple[OutputDifferences, dict[str, str]]:
    """Runs both models on the fixed texts.

    Returns:
        The differences, without a tolerance, and why model `A` or `B` computes nothing that can be compared, by its
        letter. If one does not, there are no differences of what would have followed.
    """
    broken: dict[str, str] = {}
    found = _of_networks(a, b, broken)
    one, other = a.embedder, b.embedder
    if not broken and isinstance(one, Embedder) and isinstance(other, Embedder) and one.size == other.size:
        found = replace(found, vectors=_of_vectors(a, b, broken))
    if not broken and a.has_loaded("masked_lm") and b.has_loaded("masked_lm"):
        found = replace(found, fill_mask=_of_masks(a, b, broken))
    return found, broken


def _on_each(a: OpenedModel, b: OpenedModel, compute: Callable[[OpenedModel], T], broken: dict[str, str]) -> list[T]:
    """The results of both models; if one fails, the reason goes to `broken`."""
    found = []
    for letter, model in (("A", a), ("B", b)):
        try:
            found.append(compute(model))
        except InputError:
            raise
        except MlxbertError as problem:
            broken[letter] = problem.message
    return found


def _of_networks(a: OpenedModel, b: OpenedModel, broken: dict[str, str]) -> OutputDifferences:
    inputs = [
        (one, other)
        for one, other in zip(encoded(a), encoded(b), strict=True)
        if spelled(a, one) == spelled(b, other) and one.token_type_ids == other.token_type_ids
    ]
    if not inputs:
        return OutputDifferences(texts=0)
    heads = [part for part in a.parts if part in HEADS and HEADS[part].scope != "vocabulary"]  # see `_of_masks`
    heads = [part for part in heads if a.has_loaded(part) and b.has_loaded(part)]
    both = _on_each(a, b, lambda model: _run(model.model, [pair[model is b] for pair in inputs], heads), broken)
    if broken:
        return OutputDifferences()
    first, second = both
    differences = {}
    for name in (_HIDDEN, *heads):
        if first[0][name].shape[-1:] == second[0][name].shape[-1:]:
            differences[name] = max(_apart(x[name], y[name]) for x, y in zip(first, second, strict=True))
    hidden = differences.pop(_HIDDEN, None)
    choices = {name: _same_choices(name, [x[name] for x in first], [y[name] for y in second]) for name in differences}
    known = {name: share for name, share in choices.items() if share is not None}
    return OutputDifferences(len(inputs), hidden, heads=FrozenDict(differences), choices=FrozenDict(known))


def _same_choices(head: str, first: list["Array"], second: list["Array"]) -> float | None:
    """How far a head chooses the same in both, see `OutputDifferences`; the logits are those of each input."""
    import numpy as np

    if HEADS[head].scope == "span":  # (tokens, 2): the best token for each end
        same = [x.argmax(axis=0) == y.argmax(axis=0) for x, y in zip(first, second, strict=True)]
        return float(np.concatenate(same).mean())
    joined = np.stack if HEADS[head].scope == "text" else np.concatenate
    one, other = joined(first), joined(second)
    if one.ndim == 1:  # a number for each token, of which the sign counts
        return float(((one > 0) == (other > 0)).mean())
    if one.shape[1] > 1:
        return float((one.argmax(axis=1) == other.argmax(axis=1)).mean())
    varies = one.std() > 0 and other.std() > 0
    return float(np.corrcoef(one[:, 0], other[:, 0])[0, 1]) if varies else None


def _apart(one: "Array", other: "Array") -> float:
    return float(abs(one - other).max(initial=0.0))


def _run(model: Model, encodings: Sequence[Encoding], heads: Sequence[str]) -> list[dict[str, "Array"]]:
    """For each input the hidden states of its tokens, and the logits of heads."""
    import numpy as np

    network = model.network

    def forward(batch: Batch, group: list[int]) -> dict[str, mx.array]:
        output = network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        arrays: dict[str, mx.array] = {_HIDDEN: output.last_hidden_state}
        for name in heads:
            arrays[name] = network.logits(name, output)
        return {name: array.astype(mx.float32) for name, array in arrays.items()}

    def read(found: dict[str, mx.array], group: list[int]) -> list[dict[str, "Array"]]:
        whole = {name: np.array(array) for name, array in found.items()}
        if not all(np.isfinite(array).all() for array in whole.values()):
            raise MlxbertError(_not_finite(whole))
        return [
            {
                name: array[row, : len(encodings[number])]
                if name == _HIDDEN or HEADS[name].scope in ("token", "span")
                else array[row]
                for name, array in whole.items()
            }
            for row, number in enumerate(group)
        ]

    return list(run_batches(encodings, forward, read, model.config, None))


def _not_finite(arrays: Mapping[str, "Array"]) -> str:
    """Which of these arrays hold NaN or infinite numbers, in a sentence."""
    import numpy as np

    name, array = next((name, array) for name, array in arrays.items() if not np.isfinite(array).all())
    what = "hidden states" if name == _HIDDEN else f"logits of {name}"
    return f"the model computed {what} that are not numbers ({'NaN' if np.isnan(array).any() else 'infinite'})"


def _of_vectors(a: OpenedModel, b: OpenedModel, broken: dict[str, str]) -> VectorDifferences | None:
    import numpy as np

    found = _on_each(a, b, lambda model: list(embed_stream(model.model, TEXTS, on_error="return")), broken)
    if broken:
        return None
    cosines, differences = [], []
    for one, other in zip(*found, strict=True):
        if isinstance(one, Embedding) and isinstance(other, Embedding):
            x, y = one.embedding.astype(np.float64), other.embedding.astype(np.float64)
            length = float(np.linalg.norm(x) * np.linalg.norm(y)) or 1.0
            cosines.append(1.0 if (x == y).all() else float(x @ y) / length)  # exactly 1, whatever the rounding
            differences.append(_apart(one.embedding, other.embedding))
    if not cosines:
        return None
    return VectorDifferences(sum(cosines) / len(cosines), min(cosines), max(differences))


def _of_masks(a: OpenedModel, b: OpenedModel, broken: dict[str, str]) -> MaskDifferences | None:
    count = min(_WORDS, a.model.tokenizer.vocab_size, b.model.tokenizer.vocab_size)
    try:
        found = _on_each(a, b, lambda model: list(fill_mask(model.model, list(MASKED), top_k=count)), broken)
    except InputError:  # a vocabulary without a mask token
        return None
    if broken:
        return None
    same, apart, kept = [], [0.0], []
    for one, other in zip(*found, strict=True):
        assert isinstance(one, FillMask) and isinstance(other, FillMask)
        for first, second in zip(one.masks, other.masks, strict=False):  # a tokenizer may miss a mask
            same.append(first.fills[0].token == second.fills[0].token)
            scores = {fill.token: fill.score for fill in second.fills}
            apart += [abs(fill.score - scores[fill.token]) for fill in first.fills if fill.token in scores]
            kept.append(math.exp(-_divergence({fill.token: fill.score for fill in first.fills}, scores)))
    return MaskDifferences(len(same), sum(same) / len(same), sum(kept) / len(kept), max(apart))


def _divergence(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Kullback and Leibler's divergence of probabilities of some words, in nats; all others count as one word each."""
    least = min(*other.values(), max(1 - sum(other.values()), _TINY))  # no word that is left out is likelier
    known = sum(p * math.log(p / max(other.get(word, least), _TINY)) for word, p in one.items() if p > 0)
    rest, other_rest = (max(1 - sum(each.values()), _TINY) for each in (one, other))
    return max(0.0, known + rest * math.log(rest / other_rest))
