"""The numbers of transformers, live: freshly made random models of every family and head."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.goldens.golden_outputs import BOUNDS, difference, load_network, outputs
from tests.helpers.families import CELLS, FAMILIES, Compared, make_model
from tests.helpers.parity import assert_equal, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

# Heads wide enough for the fused kernels of GPUs, and a stack deeper than any golden.
_WIDE = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 100, "initializer_range": 0.08}
SIZES = {
    "bert, heads of 64": Compared("Bert", _WIDE | {"hidden_act": "quick_gelu"}),
    "bert, one head": Compared("Bert", {"num_attention_heads": 1, "num_hidden_layers": 5, "hidden_act": "silu"}),
    "deberta-v3, heads of 64": Compared("DebertaV2", FAMILIES["deberta-v3"].changes | _WIDE),
    "modernbert, long": Compared(
        "ModernBert", FAMILIES["modernbert"].changes | {"max_position_embeddings": 300, "local_attention": 70}
    ),
    "modernbert, heads of 64": Compared("ModernBert", FAMILIES["modernbert"].changes | _WIDE),
}
ALL = FAMILIES | SIZES


@pytest.fixture(scope="module", params=[*CELLS, *((size, "ForMaskedLM") for size in SIZES)], ids=" ".join)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Compared]:
    """A random model, saved by transformers."""
    family, head = request.param
    model = make_model(ALL[family], head)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder, model, ALL[family]


def test_outputs_equal_those_of_transformers(saved: tuple[Path, Any, Compared]) -> None:
    folder, model, compared = saved
    network = load_network(folder)
    for case in compared.cases.values():
        assert_equal(outputs(network, case), reference_outputs(model, case))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_as_near_as_that_of_transformers(saved: tuple[Path, Any, Compared], dtype: str) -> None:
    folder, model, compared = saved
    network = load_network(folder, dtype)
    half = copy.deepcopy(model).to(getattr(torch, dtype))
    for case in compared.cases.values():
        exact, rounded = reference_outputs(model, case), reference_outputs(half, case)
        own = max(difference(rounded[name], array) for name, array in exact.items())
        assert_equal(outputs(network, case), exact, dtype, bound=max(BOUNDS[dtype], 2 * own))


@pytest.mark.parametrize("family", FAMILIES)
def test_attentions_are_as_near_to_double_precision_as_those_of_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single precision of two libraries differs by up to 2e-6; each is about as far from exact weights."""
    model = make_model(FAMILIES[family], "Model")
    model.save_pretrained(tmp_path)
    network, wide = load_network(tmp_path), copy.deepcopy(model).double()
    softmax, narrow = torch.nn.functional.softmax, torch.Tensor.float
    own, theirs = [], []
    for case in FAMILIES[family].cases.values():
        found, reference = outputs(network, case), reference_outputs(model, case)
        with monkeypatch.context() as patched:  # eager attention asks for a softmax in single precision
            patched.setattr(torch.nn.functional, "softmax", lambda x, dim, **_: softmax(x, dim=dim))
            patched.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else narrow(x))
            exact = reference_outputs(wide, case)
        for name, weights in exact.items():
            if name.startswith("attention"):
                assert weights.dtype == np.float64
                assert difference(found[name], reference[name]) <= 2e-6
                own.append(((found[name] - weights) ** 2).mean())
                theirs.append(((reference[name] - weights) ** 2).mean())
    assert np.mean(own) ** 0.5 <= 1.3 * np.mean(theirs) ** 0.5
