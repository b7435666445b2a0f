"""Compares the first training step with torch: models without dropout, gradients by our names, and differences."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.goldens.golden_outputs import load_network
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from tests.helpers.families import FAMILIES, make_config, make_model

Arrays = dict[str, np.ndarray[Any, Any]]


def without_dropout(family: str, head: str) -> Any:
    compared = FAMILIES[family]
    known = make_config(compared, head).to_dict()
    rates = {key: 0.0 for key in known if key.endswith(("dropout", "dropout_prob"))}
    rates |= {"cls_dropout": 0.0} if compared.classes == "DebertaV2" else {}
    rates |= {"classifier_dropout": 0.0} if compared.classes.startswith("Qwen") else {}  # 0.1 where it is not named
    return make_model(replace(compared, changes=compared.changes | rates), head)


def precision(model: Any) -> Any:
    """Returns the dtype for torch: double precision, because its single precision is as inexact as ours."""
    import torch

    # In it torch gives NaN where a window holds padding alone.
    windows = type(model).__name__.startswith(("ModernBert", "Gemma3Text"))
    return torch.float32 if windows else torch.float64


def arrays_of(tree: Any) -> Arrays:
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(tree))
    return {name: np.array(array) for name, array in arrays.items()}


def their_gradients(model: Any, folder: Path) -> Arrays:
    """Returns the gradients of a torch model by our names: saves them in place of the weights, and loads them."""
    for parameter in model.parameters():
        parameter.data = parameter.detach() * 0 if parameter.grad is None else parameter.grad
    model.float().save_pretrained(folder)
    return arrays_of(load_network(folder).parameters())


def our_step(network: Network, loss: Callable[[Network], mx.array]) -> tuple[float, Arrays]:
    network.train()
    value, gradients = nn.value_and_grad(network, loss)(network)
    return float(value), arrays_of(gradients)


def assert_same_gradients(ours: Arrays, theirs: Arrays, bound: float = 1e-5, family: str | None = None) -> None:
    """Checks that gradients differ by a share of the largest at most; pad tokens of `family` have none in torch."""
    assert theirs.keys() == ours.keys()
    largest = max(float(np.abs(array).max()) for array in theirs.values())
    padded: dict[str, int] = {}
    if family is not None:
        tables = ("word", "position") if FAMILIES[family].kind.counted else ("word",)
        padded = {f"encoder.embeddings.{table}.weight": FAMILIES[family].facts["pad_token_id"] for table in tables}
    far = {}
    for name, array in theirs.items():
        difference = np.abs(ours[name] - array)
        if name in padded:
            difference[padded[name]] = 0
        far[name] = float(difference.max()) / largest
    worst = max(far, key=lambda name: far[name])
    assert far[worst] <= bound, f"{worst} differs by {far[worst]:.1e} of the largest gradient"
