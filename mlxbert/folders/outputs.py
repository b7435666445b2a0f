"""How far the outputs of two models lie apart on the fixed texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mlxbert.device import mx
from mlxbert.errors import InputError, MlxbertError
from mlxbert.folders.facts import cuts, spelled
from mlxbert.folders.opened import Side
from mlxbert.folders.probes import MASKED, TEXTS
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.results import Embedding, FillMask
from mlxbert.tasks.embed import embed_stream
from mlxbert.tasks.fill_mask import fill_mask
from mlxbert.tasks.runner import run_batches
from mlxbert.text.batch import Batch
from mlxbert.text.encoding import Encoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

T = TypeVar("T")

TOKEN_HEADS = ("token_classifier", "question_answering", "discriminator")
_WORDS = 10  # the best ones for a mask, whose probabilities are compared
_HIDDEN = "last_hidden_state"


def compare(a: Side, b: Side) -> tuple[dict[str, Any], dict[str, str]]:
    """Runs both models on the fixed texts.

    Returns:
        What was found, and why `A` or `B` computes nothing that can be compared, by its letter: NaN, say.
        `texts`: how many both models cut into the same tokens; of those `last_hidden_state` and `heads`, the largest
        differences at real tokens and of logits. `vectors`: the smallest cosine and the largest difference of the
        vectors of texts. `fill_mask`: how many masks there were, for which share of them both have the same first
        word, and the largest difference of probabilities of words that both find likely. What cannot be compared is
        left out.
    """
    broken: dict[str, str] = {}
    found = _of_networks(a, b, broken)
    one, other = a.embedder, b.embedder
    if not broken and isinstance(one, Embedder) and isinstance(other, Embedder) and one.size == other.size:
        found |= _of_vectors(a, b, broken)
    if not broken and a.has_loaded("masked_lm") and b.has_loaded("masked_lm"):
        found |= _of_masks(a, b, broken)
    return found, broken


def largest(outputs: dict[str, Any]) -> float:
    """The largest difference of all that were found."""
    found = [outputs.get(_HIDDEN, 0.0), *outputs.get("heads", {}).values()]
    if "vectors" in outputs:
        found += [outputs["vectors"]["largest_difference"], 1 - outputs["vectors"]["smallest_cosine"]]
    if "fill_mask" in outputs:
        found.append(outputs["fill_mask"]["largest_score_difference"])
    return max(found)


def _on_each(a: Side, b: Side, compute: Callable[[Side], T], broken: dict[str, str]) -> list[T]:
    """What both sides compute; why one of them does not goes to `broken`."""
    found = []
    for letter, side in (("A", a), ("B", b)):
        try:
            found.append(compute(side))
        except InputError:
            raise
        except MlxbertError as problem:
            broken[letter] = problem.message
    return found


def _of_networks(a: Side, b: Side, broken: dict[str, str]) -> dict[str, Any]:
    inputs = [
        (one, other)
        for one, other in zip(cuts(a), cuts(b), strict=True)
        if spelled(a, one) == spelled(b, other) and one.token_type_ids == other.token_type_ids
    ]
    found: dict[str, Any] = {"texts": len(inputs)}
    if not inputs:
        return found
    heads = [part for part in a.parts if part not in ("pooler", "masked_lm") and a.has_loaded(part)]
    heads = [part for part in heads if b.has_loaded(part)]
    both = _on_each(a, b, lambda side: _run(side.model, [pair[side is b] for pair in inputs], heads), broken)
    if broken:
        return {}
    first, second = both
    differences = {}
    for name in (_HIDDEN, *heads):
        if first[0][name].shape[-1:] == second[0][name].shape[-1:]:
            differences[name] = max(_apart(x[name], y[name]) for x, y in zip(first, second, strict=True))
    hidden = {_HIDDEN: differences.pop(_HIDDEN)} if _HIDDEN in differences else {}
    return found | hidden | {"heads": differences}


def _apart(one: "Array", other: "Array") -> float:
    return float(abs(one - other).max(initial=0.0))


def _run(model: Model, encodings: Sequence[Encoding], heads: Sequence[str]) -> list[dict[str, "Array"]]:
    """For each input the hidden states of its tokens, and the logits of heads."""
    import numpy as np

    network = model.network

    def compute(batch: Batch, group: list[int]) -> list[dict[str, "Array"]]:
        output = network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        arrays: dict[str, mx.array] = {_HIDDEN: output.last_hidden_state}
        for name in heads:
            more = (batch.attention_mask,) if name == "sequence_classifier" else ()
            arrays[name] = getattr(network, name)(output, *more)
        whole = {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}
        if not all(np.isfinite(array).all() for array in whole.values()):
            raise MlxbertError(_none(whole))
        return [
            {
                name: array[row, : len(encodings[number])] if name in (_HIDDEN, *TOKEN_HEADS) else array[row]
                for name, array in whole.items()
            }
            for row, number in enumerate(group)
        ]

    return run_batches(encodings, compute, model.config, None)


def _none(arrays: Mapping[str, "Array"]) -> str:
    """Which of these arrays hold no numbers, in a sentence."""
    import numpy as np

    name, array = next((name, array) for name, array in arrays.items() if not np.isfinite(array).all())
    what = "hidden states" if name == _HIDDEN else f"logits of {name}"
    return f"the model computed {what} that are no numbers ({'NaN' if np.isnan(array).any() else 'infinite'})"


def _of_vectors(a: Side, b: Side, broken: dict[str, str]) -> dict[str, Any]:
    import numpy as np

    found = _on_each(a, b, lambda side: list(embed_stream(side.model, TEXTS, on_error="return")), broken)
    if broken:
        return {}
    cosines, differences = [], []
    for one, other in zip(*found, strict=True):
        if isinstance(one, Embedding) and isinstance(other, Embedding):
            x, y = one.embedding.astype(np.float64), other.embedding.astype(np.float64)
            length = float(np.linalg.norm(x) * np.linalg.norm(y)) or 1.0
            cosines.append(1.0 if (x == y).all() else float(x @ y) / length)  # 1 exactly, whatever is rounded
            differences.append(_apart(one.embedding, other.embedding))
    if not cosines:
        return {}
    return {"vectors": {"smallest_cosine": min(cosines), "largest_difference": max(differences)}}


def _of_masks(a: Side, b: Side, broken: dict[str, str]) -> dict[str, Any]:
    count = min(_WORDS, a.model.tokenizer.vocab_size, b.model.tokenizer.vocab_size)
    try:
        found = _on_each(a, b, lambda side: list(fill_mask(side.model, list(MASKED), top_k=count)), broken)
    except InputError:  # a vocabulary without a mask token
        return {}
    if broken:
        return {}
    same, apart = [], [0.0]
    for one, other in zip(*found, strict=True):
        assert isinstance(one, FillMask) and isinstance(other, FillMask)
        for first, second in zip(one.masks, other.masks, strict=False):  # a tokenizer may miss a mask
            same.append(first.fills[0].token == second.fills[0].token)
            scores = {fill.token: fill.score for fill in second.fills}
            apart += [abs(fill.score - scores[fill.token]) for fill in first.fills if fill.token in scores]
    return {
        "fill_mask": {
            "masks": len(same),
            "same_first_word": sum(same) / len(same),
            "largest_score_difference": max(apart),
        }
    }
