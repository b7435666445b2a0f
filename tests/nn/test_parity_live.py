"""The numbers of transformers, live, where there are no goldens: other sizes, activations, inputs and dialects."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.config import Disentangled
from mlxbert.goldens.golden_outputs import BOUNDS, Case, difference, load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.positions import Context, DistanceTable
from tests.helpers.families import CELLS, FAMILIES, FROZEN, Compared, make_model
from tests.helpers.frozen import (
    add_vocabulary,
    change_config,
    read_config,
    tensors_in,
    words_in,
    write_config,
    write_tensors,
)
from tests.helpers.parity import assert_equal, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

# Heads wide enough for the fused kernels of GPUs, and a stack deeper than any golden.
_WIDE = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 100, "initializer_range": 0.08}
Inputs = dict[str, Case] | None  # the cases of the family, unless there are others


def _changed(family: str, **changes: Any) -> Compared:
    return Compared(FAMILIES[family].classes, FAMILIES[family].changes | changes, FAMILIES[family].heads)


def _activations() -> dict[str, tuple[Compared, str, Inputs]]:
    """One family of each class of transformers, with other activations than its own."""
    found = {}
    for classes, family in {compared.classes: family for family, compared in reversed(FROZEN.items())}.items():
        # Where the feed-forward has a key of its own, heads follow the usual one.
        key = {"feed_forward_type": "hidden_act"}.get(str(own := FAMILIES[family].kind.activation_key), own)
        for head in {"ForMaskedLM", "ForSequenceClassification"} & {*FAMILIES[family].heads} if key else ():
            for name in ("gelu_new", "quick_gelu", "silu", "relu"):
                compared = _changed(family, **{str(key): name})
                found[f"{classes}{head}, {name}"] = compared, head, {"padding": compared.cases["padding"]}
    return dict(sorted(found.items()))


SIZES = {
    "bert, heads of 64": Compared("Bert", _WIDE | {"hidden_act": "quick_gelu"}),
    "bert, one head": Compared("Bert", {"num_attention_heads": 1, "num_hidden_layers": 5, "hidden_act": "silu"}),
    "deberta-v3, heads of 64": _changed("deberta-v3", **_WIDE),
    "modernbert, long": _changed("modernbert", max_position_embeddings=300, local_attention=70),
    "modernbert, heads of 64": _changed("modernbert", **_WIDE),
}
LARGE: dict[str, tuple[Compared, str, Inputs]] = {
    **{f"{family} {head}": (FAMILIES[family], head, None) for family, head in CELLS if family not in FROZEN},
    **{size: (compared, "ForMaskedLM", None) for size, compared in SIZES.items()},
}
_PADS = {
    family: np.array([[3, pad, 5, 9, pad, pad, 6, 11], [pad, pad, 3, 5, 9, 6, pad, pad]], dtype=np.int32)
    for family, pad in ((family, compared.facts["pad_token_id"]) for family, compared in FROZEN.items())
}
_PADDED = np.array([[1] * 8, [1] * 6 + [0] * 2], dtype=np.int32)
LIVE: dict[str, tuple[Compared, str, Inputs]] = {
    **LARGE,
    **_activations(),
    **{
        f"{family} ForPreTraining, {name}": (_changed(family, hidden_act=name), "ForPreTraining", None)
        for family in ("electra", "electra, as wide")
        for name in ("gelu_new", "relu")
    },
    **{f"{name}, pads inside": (FROZEN[name], "Model", {"": Case(ids, _PADDED)}) for name, ids in _PADS.items()},
    # It counts from 1, whatever the configuration calls padding.
    "mpnet, another pad": (
        _changed("mpnet", pad_token_id=7),
        "Model",
        {"inside": Case(np.array([[3, 7, 5, 9, 1, 1, 6, 11]], dtype=np.int32))},
    ),
    # The head that deberta-v3 was trained with, stored under names of its own.
    "deberta-v3, not legacy": (_changed("deberta-v3", legacy=False), "ForMaskedLM", None),
    **{
        f"deberta-v3, {kinds}, shared: {shared}": (
            _changed("deberta-v3", share_att_key=shared, pos_att_type=kinds),
            "Model",
            None,
        )
        for kinds in (None, ["c2p"], "p2c", "p2c|c2p")
        for shared in (True, False)
    },
}


def assert_as_transformers(model: Any, folder: Path, cases: dict[str, Case]) -> None:
    network = load_network(folder)
    for case in cases.values():
        assert_equal(outputs(network, case), reference_outputs(model, case))


@pytest.mark.parametrize("name", LIVE)
def test_outputs_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    compared, head, cases = LIVE[name]
    model = make_model(compared, head)
    model.save_pretrained(tmp_path)
    assert_as_transformers(model, tmp_path, cases or compared.cases)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LARGE)
def test_half_precision_is_as_near_as_that_of_transformers(name: str, dtype: str, tmp_path: Path) -> None:
    compared, head, _ = LARGE[name]
    model = make_model(compared, head)
    model.save_pretrained(tmp_path)
    network = load_network(tmp_path, dtype)
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


@pytest.mark.parametrize(
    ("family", "dialect"),
    [
        *((family, {}) for family in ("nomic", "gte", "modernbert")),
        *((family, {"rope_theta": 77.0}) for family in ("nomic", "gte")),
        ("gte", {"rope_theta": 77.0, "rope_parameters": {"rope_type": "default"}}),
        ("gte", {"rope_parameters": {"rope_theta": 33.0}}),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": 40.0}, "sliding_attention": {}}}),
    ],
)
def test_where_the_base_of_the_rotation_may_stand(family: str, dialect: dict[str, Any], tmp_path: Path) -> None:
    """What transformers makes of a config.json that it has not written itself."""
    compared = FROZEN[family]
    make_model(compared, "Model").save_pretrained(tmp_path)
    config = {key: value for key, value in read_config(tmp_path).items() if key != "rope_parameters"}
    write_config(tmp_path, config | dialect)
    model = getattr(transformers, f"{compared.classes}Model").from_pretrained(tmp_path, attn_implementation="eager")
    assert_as_transformers(model.eval(), tmp_path, compared.cases)


@pytest.mark.parametrize(("buckets", "reach"), [(256, 512), (8, 20), (9, 30), (32, 128), (4, 512), (128, 70)])
def test_far_distances_of_deberta_share_rows_as_in_transformers(buckets: int, reach: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    table = DistanceTable(Disentangled(600, None, reach, buckets, True, True, True, False), 1, 0.1)
    distances = table(Context(None), 600, mx.float32).distances
    assert distances is not None
    wanted = make_log_bucket_position(torch.arange(-599, 601), buckets, reach) + buckets
    assert np.array(distances.rows).tolist() == wanted.clamp(0, 2 * buckets - 1).int().tolist()


_DECODERS: dict[str, Any] = {
    family: FAMILIES[family].kind.decoder
    for family in ("bert", "roberta", "distilbert", "albert", "modernbert", "electra")
}


@pytest.mark.parametrize("states", [None, True, False])
@pytest.mark.parametrize(
    ("family", "own"),
    [
        (family, own)
        for family, (_, bias, _) in _DECODERS.items()
        for own in (("matrix", "bias", "both") if bias else ("matrix",))
    ],
)
def test_a_decoder_of_its_own_is_run(family: str, own: str, states: bool | None, tmp_path: Path) -> None:
    weight, copied, original = _DECODERS[family]
    made = make_model(FAMILIES[family], "ForMaskedLM")
    made.save_pretrained(tmp_path / "a")
    tensors = tensors_in(add_vocabulary(tmp_path / "a"))
    words = tensors[words_in(tensors)]
    tensors[weight] = mx.random.normal(words.shape) if own != "bias" else words
    if copied is not None:
        bias = tensors[original]
        tensors[copied] = bias + (mx.random.normal(bias.shape) if own != "matrix" else 0)
    write_tensors(tmp_path / "a", tensors)
    change_config(tmp_path / "a", **({} if states is None else {"tie_word_embeddings": states}))
    theirs = type(made).from_pretrained(tmp_path / "a", attn_implementation="eager").eval()
    ids = [[2, 7, 9, 11, 3]]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids)).logits.numpy()
    mlxbert.save(mlxbert.load(tmp_path / "a", task="fill-mask", dtype="float32"), tmp_path / "b")
    mlxbert.convert(tmp_path / "a", tmp_path / "c")
    for name in "abc":
        again = mlxbert.load(tmp_path / name, task="fill-mask", dtype="float32")
        found: Any = np.array(again.network.logits("masked_lm", Batch(mx.array(ids), None, None)))
        assert np.abs(found - expected).max() <= 1e-4, name
    assert "masked_lm" not in mlxbert.load(tmp_path / "a", task="embed").network.heads
