"""What several of these models compute."""

import math
from typing import Any

import torch
from torch.nn import functional


def mix(q: Any, k: Any, v: Any, mask: Any, bias: Any = 0.0) -> tuple[Any, Any]:
    """Attention of queries, keys and values (B, H, L, d), and its weights; the mask is (B, L)."""
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias
    if mask is not None:
        scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return weights @ v, weights


def loss_of(model: Any, logits: Any, labels: Any) -> Any:
    """The loss of classes of texts by their problem, or of tokens; `None` without labels."""
    if labels is None:
        return None
    problem = getattr(model.config, "problem_type", None)
    if problem == "regression":
        return functional.mse_loss(logits[:, 0], labels.flatten())
    if problem == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(logits, labels)
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
