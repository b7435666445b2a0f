"""Parts that several of these models share."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def mix(q: Any, k: Any, v: Any, mask: Any, bias: Any = None, *, weighed: bool = True) -> tuple[Any, Any]:
    """Returns the attention output for q, k, v (B, H, L, d) and a mask (B, L), and the weights if `weighed`."""
    if mask is not None:
        mask = mask[:, None, None, :] != 0
    if not weighed:  # as fast as torch can
        if bias is not None and mask is not None:
            mask = bias.masked_fill(~mask, torch.finfo(q.dtype).min)
        return functional.scaled_dot_product_attention(
            q, k, v, mask if bias is None or mask is not None else bias
        ), None
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = functional.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return weights @ v, weights


def run(
    layers: Any,
    x: Any,
    *inputs: Any,
    hidden: bool | None,
    attentions: bool | None,
    last: Callable[[Any], Any] = lambda x: x,
) -> dict[str, Any]:
    """Returns the fields of an encoder's output in transformers; `last` computes the last hidden states."""
    states, maps = [], []
    for layer in layers:
        states.append(x)
        x, weights = layer(x, *inputs, weighed=attentions)
        maps.append(weights)
    x = last(x)
    found = {"hidden_states": (*states, x) if hidden else None, "attentions": (*maps,) if attentions else None}
    return {"last_hidden_state": x, **found}


def loss_of(model: Any, logits: Any, labels: Any) -> Any:
    """Returns the loss of a text classifier, by its problem type, or of a token classifier; `None` without labels."""
    if labels is None:
        return None
    problem = getattr(model.config, "problem_type", None)
    if problem == "regression":
        return functional.mse_loss(logits[:, 0], labels.flatten())
    if problem == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(logits, labels)
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
