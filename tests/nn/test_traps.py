"""What other tools got wrong, shown right on every family: positions, segments, activations, norms, lengths."""

from pathlib import Path

import numpy as np
import pytest

from mlxbert.config import Absolute, RelativeBias
from mlxbert.errors import InputError
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from mlxbert.nn.positions import BiasTable, Context
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from tests.helpers.families import FROZEN
from tests.helpers.frozen import change_config, write_model
from tests.helpers.parity import Array, load_network


@pytest.fixture(params=FROZEN)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pad_of(family: str) -> int:
    return int(FROZEN[family].facts["pad_token_id"])


def hidden(
    network: Network, ids: list[list[int]], attention_mask: list[list[int]] | None = None, **inputs: list[list[int]]
) -> Array:
    """The last hidden states."""
    mask = None if attention_mask is None else mx.array(attention_mask)
    segments = mx.array(inputs["token_type_ids"]) if inputs else None
    return np.array(network(mx.array(ids), mask, segments).last_hidden_state)


def test_left_padding_changes_nothing_where_positions_are_distances_or_counted(family: str, tmp_path: Path) -> None:
    network, pad = load_network(write_model(family, "Model", tmp_path)), pad_of(family)
    ids = [3, 9, 5, 40, 6]
    alone = hidden(network, [ids])
    shifted = hidden(network, [[pad] * 4 + ids], attention_mask=[[0] * 4 + [1] * 5])[:, 4:]
    same = np.abs(alone - shifted).max() < 1e-4
    assert same == (network.encoder.config.positions.table is None or FROZEN[family].kind.counted)


def test_segment_ids_are_heeded_refused_or_of_no_use(family: str, tmp_path: Path) -> None:
    """A model without segments ignores them, as transformers does; no row past the table is ever read."""
    network, ids = load_network(write_model(family, "Model", tmp_path)), [[3, 9, 5, 40, 6]]
    plain, rows = hidden(network, ids), network.encoder.config.type_vocab_size
    if not rows:
        assert np.array_equal(plain, hidden(network, ids, token_type_ids=[[0, 0, 1, 1, 1]]))
        return
    if rows > 1:
        assert np.abs(plain - hidden(network, ids, token_type_ids=[[0, 0, 1, 1, 1]])).max() > 1e-2
    for wrong in (rows, -1):
        with pytest.raises(InputError, match=f"token_type_ids.*0.*{rows - 1}"):
            hidden(network, ids, token_type_ids=[[0, 0, 0, 0, wrong]])
    with pytest.raises(InputError, match=r"token_type_ids.*shape"):
        hidden(network, ids, token_type_ids=[[0]])


def _pair(segment: int) -> list[Encoding]:
    none: list[int | None] = [None] * 5
    return [Encoding([2, 5, 3, 6, 3], [0, 0, 0, segment, segment], [(0, 0)] * 5, none, none, [*range(5)], False)]


@pytest.mark.usefixtures("exact_lengths")
def test_the_second_text_of_a_pair_has_segment_1_where_the_model_has_one(family: str, tmp_path: Path) -> None:
    config = load_network(write_model(family, "Model", tmp_path)).encoder.config
    found = make_batch(_pair(1), config).token_type_ids
    if config.type_vocab_size > 1:
        assert found is not None and np.array(found).tolist() == [[0, 0, 0, 1, 1]]
        with pytest.raises(InputError, match=f"9.*0.*{config.type_vocab_size - 1}"):
            make_batch(_pair(9), config)
    else:
        assert found is None


def test_the_feed_forward_follows_hidden_act(family: str, tmp_path: Path) -> None:
    key = FROZEN[family].kind.activation_key
    ids, folder = [[3, 9, 5, 40, 6]], write_model(family, "Model", tmp_path)
    known = ("gelu", "gelu_new", "quick_gelu", "silu", "relu", "tanh")
    found = [hidden(load_network(change_config(folder, **{key: name})), ids) for name in known]
    for number, one in enumerate(found):
        assert all(np.abs(one - other).max() > 1e-5 for other in found[:number]), known[number]


def test_exactly_the_longest_input_is_taken(family: str, tmp_path: Path) -> None:
    network, most = load_network(write_model(family, "Model", tmp_path)), FROZEN[family].max_length
    assert network.encoder.config.max_length == most
    assert np.isfinite(hidden(network, [[3] * most])).all()
    with pytest.raises(InputError, match=f"input.*{most + 1}.*{most}"):
        hidden(network, [[3] * (most + 1)])


def test_far_distances_of_mpnet_share_the_last_bucket_of_their_side() -> None:
    table = BiasTable(RelativeBias(Absolute(400, 2)), num_heads=1)
    table.weight = mx.arange(32, dtype=mx.float32)[:, None]
    bias = table(Context(None), 300, mx.float32).bias
    assert bias is not None
    found = np.array(bias)[0, 0]
    for far, bucket in ((1, 1), (7, 7), (8, 8), (12, 9), (16, 10), (64, 14), (127, 15), (128, 15), (299, 15)):
        assert found[far, 0] == bucket and found[0, far] == 16 + bucket, far
    assert found[0, 0] == 0
