"""The comparison with a reference implementation: which inputs, which outputs, how close."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.machine.device import choose_dtype, mx
from mlxbert.nn.heads import HEADS, Network
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint

Array = NDArray[np.float32]

# Largest difference allowed, as a share of max(1, largest reference value).
BOUNDS = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Case:
    """One input of the model; `mask` and `segments` may be omitted."""

    input_ids: NDArray[np.int32]
    mask: NDArray[np.int32] | None = None
    segments: NDArray[np.int32] | None = None

    @property
    def real(self) -> NDArray[np.bool_]:
        """Which tokens are not padding."""
        return np.ones_like(self.input_ids, dtype=bool) if self.mask is None else self.mask.astype(bool)


def make_cases(vocab_size: int, max_length: int, pad_id: int, segments: int) -> dict[str, Case]:
    """The inputs every model is compared on; padding is on the right only."""
    generator = np.random.default_rng(7)

    def ids(batch: int, length: int) -> NDArray[np.int32]:
        found = generator.integers(0, vocab_size - 1, (batch, length), dtype=np.int32)
        return (found + (found >= pad_id)).astype(np.int32)

    lengths = np.array([[5], [max_length // 2], [1], [max_length // 2 - 3]])
    mask = (np.arange(max_length // 2)[None] < lengths).astype(np.int32)
    padded = np.where(mask == 1, ids(*mask.shape), pad_id).astype(np.int32)
    second = ((np.arange(mask.shape[1])[None] >= lengths // 2) * (mask == 1)).astype(np.int32)
    return {
        "padding": Case(padded, mask),
        "pairs": Case(padded, mask, second * (segments - 1)),
        "full length": Case(ids(3, max_length)),
        "one token": Case(ids(1, 1)),
    }


def load_network(folder: Path, dtype: str = "float32") -> Network:
    """The network with all parts of a checkpoint."""
    checkpoint = open_checkpoint(folder)
    return build_network(checkpoint, checkpoint.parts, choose_dtype(dtype))


def _array(values: NDArray[np.int32] | None) -> mx.array | None:
    return None if values is None else mx.array(values)


def outputs(network: Network, case: Case) -> dict[str, Array]:
    """All outputs of the network for an input in float32, with zeros for padding."""
    found = network.encoder(
        mx.array(case.input_ids), _array(case.mask), _array(case.segments), output_hidden_states=True,
        output_attentions=True,
    )  # fmt: skip
    assert found.hidden_states is not None and found.attentions is not None
    arrays = {f"hidden {layer}": array for layer, array in enumerate(found.hidden_states)}
    arrays |= {f"attention {layer}": array for layer, array in enumerate(found.attentions)}
    arrays["last hidden"] = found.last_hidden_state
    if found.pooler_output is not None:
        arrays["pooler"] = found.pooler_output
    arrays |= {name: network.logits(name, found) for name in network.heads}
    return {name: _real(np.array(array.astype(mx.float32)), case) for name, array in arrays.items()}


def _real(array: Array, case: Case) -> Array:
    """The array with zeros for padding."""
    if array.shape[:2] == case.real.shape:
        return array * case.real.reshape(*case.real.shape, *(1,) * (array.ndim - 2))
    if array.ndim == 4:  # attention weights: of real tokens
        return array * case.real[:, None, :, None]
    return array


def reference_outputs(model: object, case: Case) -> dict[str, Array]:
    """The same from a transformers model with eager attention."""
    import torch

    def tensor(values: NDArray[np.int32] | None) -> object:
        return None if values is None else torch.tensor(values, dtype=torch.int64)

    given = {"attention_mask": tensor(case.mask)} | (
        {"token_type_ids": tensor(case.segments)} if case.segments is not None and case.segments.any() else {}
    )
    with torch.no_grad():
        found = model(tensor(case.input_ids), **given, output_hidden_states=True, output_attentions=True)  # type: ignore[operator]
    arrays = {f"hidden {layer}": array for layer, array in enumerate(found.hidden_states)}
    arrays |= {f"attention {layer}": array for layer, array in enumerate(found.attentions)}
    arrays["last hidden"] = found.hidden_states[-1]
    arrays |= _reference_heads(type(model).__name__, found)
    return {name: _real(array.float().numpy(), case) for name, array in arrays.items()}


def _reference_heads(kind: str, found: Any) -> dict[str, Any]:
    """The outputs of the heads of a transformers class, by the names of our parts."""
    if kind.endswith("Model"):
        pooled = getattr(found, "pooler_output", None)
        return {} if pooled is None else {"pooler": pooled}
    if kind.endswith("ForQuestionAnswering"):
        import torch

        return {"question_answering": torch.stack([found.start_logits, found.end_logits], dim=-1)}
    if kind == "BertForPreTraining":
        return {"masked_lm": found.prediction_logits, "next_sentence": found.seq_relationship_logits}
    if kind == "AlbertForPreTraining":
        return {"masked_lm": found.prediction_logits, "sentence_order": found.sop_logits}
    if kind.endswith("ForPreTraining"):
        return {"discriminator": found.logits}
    (head,) = (name for name, spec in HEADS.items() if kind.endswith(spec.class_names[0]))
    return {head: found.logits}


def difference(ours: Array, reference: Array) -> float:
    """The largest difference as a share of max(1, largest reference value)."""
    assert ours.shape == reference.shape, (ours.shape, reference.shape)
    assert np.isfinite(ours).all()
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))


def assert_equal(
    ours: Mapping[str, Array], reference: Mapping[str, Array], dtype: str = "float32", bound: float | None = None
) -> None:
    """Checks that every output of the reference exists and is within `bound`, by default that of the dtype."""
    bound = BOUNDS[dtype] if bound is None else bound
    missing = reference.keys() - ours.keys()
    assert not missing, f"outputs missing: {missing}"
    far = {name: difference(ours[name], array) for name, array in reference.items()}
    worst = max(far, key=lambda name: far[name])
    assert far[worst] <= bound, f"{worst} differs by {far[worst]:.2e}, allowed {bound:.0e} ({far})"
