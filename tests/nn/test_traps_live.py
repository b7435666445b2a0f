"""The traps in which only transformers itself can be asked: activations, pad tokens inside a text, other dialects."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Disentangled
from mlxbert.goldens.golden_outputs import Case, load_network, outputs
from mlxbert.machine.device import mx
from mlxbert.nn.positions import Context, DistanceTable
from tests.helpers.families import FAMILIES, FROZEN, Compared, make_model, walked
from tests.helpers.frozen import read_config, write_config
from tests.helpers.parity import assert_equal, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

# One of each class of transformers.
FAMILY_OF = {compared.classes: family for family, compared in reversed(FROZEN.items())}


def assert_as_transformers(model: Any, folder: Path, cases: dict[str, Case]) -> None:
    network = load_network(folder)
    for case in cases.values():
        assert_equal(outputs(network, case), reference_outputs(model, case))


@pytest.mark.parametrize("activation", ["gelu_new", "quick_gelu", "silu", "relu"])
@pytest.mark.parametrize(
    ("classes", "head"),
    [
        (classes, head)
        for classes, family in FAMILY_OF.items()
        for head in ("ForMaskedLM", "ForSequenceClassification")
        if head in FAMILIES[family].heads and FAMILIES[family].kind.activation_key
    ],
)
def test_activations_are_where_transformers_has_them(classes: str, head: str, activation: str, tmp_path: Path) -> None:
    whole = FAMILIES[FAMILY_OF[classes]]
    # Where the feed-forward has a key of its own, heads follow the usual one.
    key = "hidden_act" if whole.kind.activation_key == "feed_forward_type" else whole.kind.activation_key
    compared = Compared(classes, whole.changes | {str(key): activation}, whole.heads)
    model = make_model(compared, head)
    model.save_pretrained(tmp_path)
    assert_as_transformers(model, tmp_path, {"padding": compared.cases["padding"]})


@pytest.mark.parametrize("family", ["electra", "electra, as wide"])
@pytest.mark.parametrize("activation", ["gelu_new", "relu"])
def test_the_discriminator_follows_hidden_act(family: str, activation: str, tmp_path: Path) -> None:
    compared = Compared("Electra", FAMILIES[family].changes | {"hidden_act": activation})
    model = make_model(compared, "ForPreTraining")
    model.save_pretrained(tmp_path)
    assert_as_transformers(model, tmp_path, {"padding": compared.cases["padding"]})


@pytest.mark.parametrize("family", walked(FROZEN))
def test_pad_tokens_inside_a_text_are_what_transformers_makes_of_them(family: str, tmp_path: Path) -> None:
    compared, pad = FROZEN[family], FROZEN[family].facts["pad_token_id"]
    model = make_model(compared, "Model")
    model.save_pretrained(tmp_path)
    ids = np.array([[3, pad, 5, 9, pad, pad, 6, 11], [pad, pad, 3, 5, 9, 6, pad, pad]], dtype=np.int32)
    mask = np.array([[1] * 8, [1] * 6 + [0] * 2], dtype=np.int32)
    assert_as_transformers(model, tmp_path, {"inside": Case(ids, mask)})


def test_the_head_that_deberta_v3_was_trained_with(tmp_path: Path) -> None:
    """It is what transformers makes when `legacy` is false, stored under names of its own."""
    compared = Compared("DebertaV2", FAMILIES["deberta-v3"].changes | {"legacy": False})
    model = make_model(compared, "ForMaskedLM")
    model.save_pretrained(tmp_path)
    assert_as_transformers(model, tmp_path, compared.cases)


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_the_old_dialect_of_modernbert(every: int, tmp_path: Path) -> None:
    compared = FAMILIES["modernbert"]
    old = {
        key: value for key, value in compared.changes.items() if key not in ("rope_parameters", "layer_types") and value
    } | {"global_attn_every_n_layers": every, "global_rope_theta": 300.0, "local_rope_theta": 20.0}
    model = make_model(Compared("ModernBert", compared.changes | old | {"rope_parameters": None}), "Model")
    model.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert config["rope_parameters"]["full_attention"]["rope_theta"] == 300.0
    assert_as_transformers(model, tmp_path, compared.cases)
    for key in ("rope_parameters", "layer_types"):
        del config[key]
    write_config(tmp_path, config | old)
    assert_as_transformers(model, tmp_path, compared.cases)


@pytest.mark.parametrize(
    ("family", "dialect"),
    [
        ("nomic", {"rope_theta": 77.0}),
        ("gte", {"rope_theta": 77.0}),
        ("gte", {"rope_theta": 77.0, "rope_parameters": {"rope_type": "default"}}),
        ("gte", {"rope_parameters": {"rope_theta": 33.0}}),
        ("nomic", {}),
        ("gte", {}),
        ("modernbert", {}),
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


@pytest.mark.parametrize("kinds", [None, [], ["c2p"], ["p2c"], ["p2c", "c2p"], "c2p", "p2c|c2p"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_kinds_of_attention_of_deberta(kinds: Any, shared: bool, tmp_path: Path) -> None:
    changes = FAMILIES["deberta-v3"].changes | {"share_att_key": shared}
    compared = Compared("DebertaV2", changes | {"pos_att_type": kinds})
    model = make_model(compared, "Model")
    model.save_pretrained(tmp_path)
    assert_as_transformers(model, tmp_path, compared.cases)


def test_mpnet_counts_from_1_whatever_the_configuration_calls_padding(tmp_path: Path) -> None:
    compared = Compared("MPNet", FAMILIES["mpnet"].changes | {"pad_token_id": 7})
    model = make_model(compared, "Model")
    model.save_pretrained(tmp_path)
    ids = np.array([[3, 7, 5, 9, 1, 1, 6, 11]], dtype=np.int32)
    assert_as_transformers(model, tmp_path, {"inside": Case(ids)})


@pytest.mark.parametrize(("buckets", "reach"), [(256, 512), (8, 20), (9, 30), (32, 128), (4, 512), (128, 70)])
def test_far_distances_of_deberta_share_rows_as_in_transformers(buckets: int, reach: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    table = DistanceTable(Disentangled(600, None, reach, buckets, True, True, True, False), 1, 0.1)
    distances = table(Context(None), 600, mx.float32).distances
    assert distances is not None
    wanted = make_log_bucket_position(torch.arange(-599, 601), buckets, reach) + buckets
    assert np.array(distances.rows).tolist() == wanted.clamp(0, 2 * buckets - 1).int().tolist()
