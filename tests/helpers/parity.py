"""Compares the outputs of a model with those that transformers computes on torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.goldens.golden_outputs import BOUNDS, Array, Case, difference, without_padding
from mlxbert.nn.heads import HEADS


def reference_outputs(model: object, case: Case) -> dict[str, Array]:
    """Returns the outputs of a transformers model with eager attention, by name."""
    import torch

    def tensor(values: NDArray[np.int32] | None) -> object:
        return None if values is None else torch.tensor(values, dtype=torch.int64)

    inputs = {"attention_mask": tensor(case.mask)} | (
        {"token_type_ids": tensor(case.segments)} if case.segments is not None and case.segments.any() else {}
    )
    with torch.no_grad():
        output = model(tensor(case.input_ids), **inputs, output_hidden_states=True, output_attentions=True)  # type: ignore[operator]
    arrays = {f"hidden {layer}": array for layer, array in enumerate(output.hidden_states)}
    arrays |= {f"attention {layer}": array for layer, array in enumerate(output.attentions)}
    arrays["last hidden"] = output.hidden_states[-1]
    arrays |= _reference_heads(type(model).__name__, output)
    return {name: without_padding(array.float().numpy(), case) for name, array in arrays.items()}


def _reference_heads(kind: str, output: Any) -> dict[str, Any]:
    if kind.endswith(("Model", "NeoBERT")):
        pooled = getattr(output, "pooler_output", None)
        return {} if pooled is None else {"pooler": pooled}
    if kind.endswith("ForQuestionAnswering"):
        import torch

        return {"question_answering": torch.stack([output.start_logits, output.end_logits], dim=-1)}
    if kind == "BertForPreTraining":
        return {"masked_lm": output.prediction_logits, "next_sentence": output.seq_relationship_logits}
    if kind == "AlbertForPreTraining":
        return {"masked_lm": output.prediction_logits, "sentence_order": output.sop_logits}
    if kind.endswith("ForPreTraining"):
        return {"discriminator": output.logits}
    (head,) = (
        name for name, spec in HEADS.items() if kind.replace("LMHead", "ForMaskedLM").endswith(spec.class_names[0])
    )
    return {head: output.logits}


def assert_equal(
    ours: Mapping[str, Array], reference: Mapping[str, Array], dtype: str = "float32", bound: float | None = None
) -> None:
    """Checks that every output of the reference exists and differs by at most `bound`, or by the bound of the dtype."""
    bound = BOUNDS[dtype] if bound is None else bound
    missing = reference.keys() - ours.keys()
    assert not missing, f"outputs missing: {missing}"
    shapes = {name: (ours[name].shape, array.shape) for name, array in reference.items()}
    assert all(ours_shape == theirs_shape for ours_shape, theirs_shape in shapes.values()), shapes
    far = {name: difference(ours[name], array) for name, array in reference.items()}
    worst = max(far, key=lambda name: far[name])
    assert far[worst] <= bound, f"{worst} differs by {far[worst]:.2e}, allowed {bound:.0e} ({far})"
