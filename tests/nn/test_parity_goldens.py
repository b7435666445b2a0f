"""The numbers of transformers, frozen, of every family and head; and what other tools got wrong, right on each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Absolute, RelativeBias
from mlxbert.errors import InputError
from mlxbert.goldens.golden_outputs import BOUNDS, GOLDENS, Array, Case, arrays, difference, load_network, outputs
from mlxbert.machine.device import choose_dtype, mx, nn
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.heads import HEADS, Network
from mlxbert.nn.ops import backend
from mlxbert.nn.positions import AlibiSlopes, BiasTable, Context
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from tests.helpers.families import FROZEN, FROZEN_CELLS
from tests.helpers.frozen import (
    change_config,
    frozen_network,
    frozen_outputs,
    read_config,
    tensors_in,
    words_in,
    write_model,
)
from tests.helpers.parity import assert_equal

TOGETHER = [pytest.param(cell.values, marks=cell.marks) for cell in FROZEN_CELLS]
IN_DTYPES = [  # in half precision, fast tests compute BERT alone
    pytest.param(
        cell.values,
        dtype,
        marks=cell.marks if dtype == "float32" or cell.values[0] == "bert" else [*cell.marks, pytest.mark.slow],
        id=f"{' '.join(map(str, cell.values))}-{dtype}",
    )
    for cell in FROZEN_CELLS
    for dtype in BOUNDS
]
CASES = ("padding", "pairs", "full length", "one token")


@pytest.mark.parametrize(("cell", "dtype"), IN_DTYPES)
def test_outputs_equal_those_of_transformers(cell: tuple[str, str], dtype: str) -> None:
    family, head = cell
    network = frozen_network(family, head, dtype)
    for name in CASES if dtype == "float32" else CASES[1:3]:
        frozen = frozen_outputs(family, head, name)
        assert frozen
        assert_equal(outputs(network, FROZEN[family].cases[name]), frozen, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("cell", TOGETHER, ids=" ".join)
def test_a_batch_equals_its_inputs_alone(cell: tuple[str, str]) -> None:
    family, head = cell
    network, case = frozen_network(family, head), FROZEN[family].cases["pairs"]
    assert case.mask is not None and case.segments is not None
    together = outputs(network, case)
    for row, length in enumerate(case.mask.sum(axis=1)):
        ids, segments = case.input_ids[row : row + 1, :length], case.segments[row : row + 1, :length]
        alone = outputs(network, Case(ids, segments=segments))
        for name in alone.keys() - {name for name in alone if name.startswith("attention")}:
            whole = together[name][row : row + 1]
            over_tokens = whole.shape[1:2] == case.mask.shape[1:]
            assert difference(alone[name], whole[:, :length] if over_tokens else whole) <= 1e-5, name


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_those_of_transformers(name: str) -> None:
    frozen = {name: np.array(array) for name, array in arrays(GOLDENS / "activations.safetensors").items()}
    found = np.array(backend().activate(name, mx.array(frozen["x"])))
    scale = np.maximum(1, np.abs(frozen["x"]))
    assert (np.abs(found - frozen[name]) / scale).max() <= 1e-6


@pytest.fixture(params=FROZEN)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pad_of(family: str) -> int:
    return int(FROZEN[family].facts["pad_token_id"])


def hidden(network: Network, ids: Any, mask: Any = None, segments: Any = None) -> Array:
    given = [None if one is None else mx.array(one) for one in (mask, segments)]
    return np.array(network(mx.array(ids), *given).last_hidden_state)


def position_rows(family: str, ids: list[int]) -> list[int]:
    """Which row of the table each token gets."""
    if not FROZEN[family].kind.counted:
        return list(range(len(ids)))
    pad = row = pad_of(family)
    rows = []
    for number in ids:
        row += number != pad
        rows.append(pad if number == pad else row)
    return rows


def embedded(family: str, folder: Path, ids: list[int], segments: list[int]) -> Array:
    """The embeddings (L, D) by hand, from the tensors of the file."""
    tensors = {name: np.array(array) for name, array in tensors_in(folder).items()}
    classes = FROZEN[family].classes
    x = tensors[words_in(tensors)][ids]
    if classes == "Gemma3Text":
        x = x * np.float32(30**0.5)
    positions = tensors.get("embeddings.position_embeddings.weight")
    if positions is not None and read_config(folder).get("position_biased_input", True):
        x = x + positions[position_rows(family, ids)]
    if "embeddings.token_type_embeddings.weight" in tensors:
        x = x + tensors["embeddings.token_type_embeddings.weight"][segments]
    if "embeddings.embed_proj.weight" in tensors:
        x = x @ tensors["embeddings.embed_proj.weight"].T
    stems = "embeddings.LayerNorm", "embeddings.norm", "emb_ln"
    norm = next((stem for stem in stems if f"{stem}.weight" in tensors), None)
    if norm is None:
        return np.asarray(x)
    scale = np.sqrt(x.var(axis=-1, keepdims=True) + (1e-12 if classes == "DistilBert" else 0.01))
    x = (x - x.mean(axis=-1, keepdims=True)) / scale * tensors[f"{norm}.weight"]
    x = x + tensors.get(f"{norm}.bias", np.zeros(1))
    for stem in ("encoder.embedding_hidden_mapping_in", "embeddings_project"):
        if f"{stem}.weight" in tensors:
            x = x @ tensors[f"{stem}.weight"].T + tensors[f"{stem}.bias"]
    return np.asarray(x)


@pytest.mark.sampled("bert", "roberta")
def test_embeddings_are_those_made_by_hand(family: str, tmp_path: Path) -> None:
    folder = write_model(family, "Model", tmp_path)
    network, pad, last = frozen_network(family), pad_of(family), FROZEN[family].segments - 1
    ids = [3, pad, 5, 40, pad, pad, 6]
    for segments in (None, [0, 0, last, last, last, 0, last]):
        given = None if segments is None else mx.array([segments])
        found = network.encoder.embeddings(mx.array([ids]), given)[0]
        assert np.abs(np.array(found) - embedded(family, folder, ids, segments or [0] * 7)).max() < 1e-5


@pytest.mark.sampled("bert-ForPreTraining")
@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_layer_norm_eps_reaches_every_norm(family: str, head: str, tmp_path: Path) -> None:
    classes = FROZEN[family].classes
    folder = change_config(write_model(family, head, tmp_path), **{FROZEN[family].kind.eps_key: 0.37})
    norms = [module for module in load_network(folder).modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
    assert {norm.eps for norm in norms} == {1e-12 if classes == "DistilBert" else 0.37}
    config = read_config(folder)
    steps = int(config.get("num_hidden_layers", config.get("n_layers", 0)))
    stored = int(config["num_hidden_groups"]) if classes == "Albert" else steps
    assert len(norms) >= 2 * stored + 1


@pytest.mark.sampled
def test_left_padding_changes_nothing_where_positions_are_distances_or_counted(family: str) -> None:
    network, pad = frozen_network(family), pad_of(family)
    ids = [3, 9, 5, 40, 6]
    padded = [[pad] * 4 + ids], [[0] * 4 + [1] * 5]
    if FROZEN[family].classes == "Qwen3":
        with pytest.raises(InputError, match="attention_mask"):
            hidden(network, *padded)
        return
    same = np.abs(hidden(network, [ids]) - hidden(network, *padded)[:, 4:]).max() < 1e-4
    assert same == (network.encoder.config.positions.table is None or FROZEN[family].kind.counted)


@pytest.mark.sampled
def test_segment_ids_are_heeded_refused_or_of_no_use(family: str) -> None:
    """A model without segments ignores them, as transformers does; no row past the table is ever read."""
    network, ids, second = frozen_network(family), [[3, 9, 5, 40, 6]], [[0, 0, 1, 1, 1]]
    plain, rows = hidden(network, ids), network.encoder.config.type_vocab_size
    if not rows:
        assert np.array_equal(plain, hidden(network, ids, None, second))
        return
    if rows > 1:
        assert np.abs(plain - hidden(network, ids, None, second)).max() > 1e-2
    for wrong, said in (([0, 0, 0, 0, rows], f"0.*{rows - 1}"), ([0, 0, 0, 0, -1], f"0.*{rows - 1}"), ([0], "shape")):
        with pytest.raises(InputError, match=f"token_type_ids.*{said}"):
            hidden(network, ids, None, [wrong])


@pytest.mark.sampled
@pytest.mark.usefixtures("exact_lengths")
def test_the_second_text_of_a_pair_has_segment_1_where_the_model_has_one(family: str) -> None:
    config, none = frozen_network(family).encoder.config, list[int | None]([None] * 5)

    def segments(second: int) -> mx.array | None:
        ids, places = [0, 0, 0, second, second], [(0, 0)] * 5
        return make_batch(
            [Encoding([2, 5, 3, 6, 3], ids, places, none, none, [*range(5)], False)], config
        ).token_type_ids

    found = segments(1)
    assert (None if found is None else found.tolist()) == ([[0, 0, 0, 1, 1]] if config.type_vocab_size > 1 else None)
    if config.type_vocab_size > 1:
        with pytest.raises(InputError, match=f"9.*0.*{config.type_vocab_size - 1}"):
            segments(9)


@pytest.mark.sampled
def test_the_feed_forward_follows_hidden_act(family: str, tmp_path: Path) -> None:
    key, ids = FROZEN[family].kind.activation_key, [[3, 9, 5, 40, 6]]
    if key is None:
        pytest.skip("one activation")
    folder = write_model(family, "Model", tmp_path)
    known = ["geglu", "reglu"] if key == "feed_forward_type" else ["gelu", "silu"]
    one, other = (hidden(load_network(change_config(folder, **{key: name})), ids) for name in known)
    assert np.abs(one - other).max() > 1e-5


@pytest.mark.sampled
def test_exactly_the_longest_input_is_taken(family: str) -> None:
    network, most = frozen_network(family), FROZEN[family].max_length
    assert network.encoder.config.max_length == most
    assert np.isfinite(hidden(network, [[3] * most])).all()
    with pytest.raises(InputError, match=f"input.*{most + 1}.*{most}"):
        hidden(network, [[3] * (most + 1)])


def test_the_slopes_of_alibi() -> None:
    """Those of the largest power of two, then every other one of twice that power."""
    for heads, exponents in (
        (1, [8]), (2, [4, 8]), (3, [4, 8, 2]), (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]), (14, [*range(1, 9), 0.5, 1.5, 2.5, 3.5, 4.5, 5.5]),
    ):  # fmt: skip
        found = AlibiSlopes(heads)(Context(None), 5, mx.float32).slopes
        assert found is not None and np.array(found).tolist() == pytest.approx([2**-one for one in exponents])


def test_far_distances_of_mpnet_share_the_last_bucket_of_their_side() -> None:
    table = BiasTable(RelativeBias(Absolute(400, 2)), num_heads=1)
    table.weight = mx.arange(32, dtype=mx.float32)[:, None]
    bias = table(Context(None), 300, mx.float32).bias
    assert bias is not None
    found = np.array(bias)[0, 0]
    for far, bucket in ((1, 1), (7, 7), (8, 8), (12, 9), (16, 10), (64, 14), (127, 15), (128, 15), (299, 15)):
        assert found[far, 0] == bucket and found[0, far] == 16 + bucket, far
    assert found[0, 0] == 0


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_nothing_is_promoted_and_nothing_is_nan(family: str, head: str, dtype: str, tmp_path: Path) -> None:
    """Three rows: one full, one padded, one of padding alone, which batches of other programs do hold."""
    network, wanted = load_network(write_model(family, head, tmp_path), dtype), choose_dtype(dtype)
    parameters: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    assert {array.dtype for array in parameters.values()} == {wanted}
    facts, classes = FROZEN[family].facts, FROZEN[family].classes
    pad = facts["pad_token_id"]
    ids = mx.array([[3, 9, 5, 40, 6, 11], [3, 9, pad, pad, pad, pad], [pad] * 6])
    mask = mx.array([[1] * 6, [1, 1, 0, 0, 0, 0], [0] * 6])
    for rows, given in ((ids, mask), (ids[:1], None)):
        output = network.encoder(rows, given, output_hidden_states=True, output_attentions=True)
        assert output.hidden_states is not None and output.attentions is not None
        found = [*output.hidden_states, *output.attentions, output.last_hidden_state]
        found += [] if output.pooler_output is None else [output.pooler_output]
        for name in network.heads:
            logits = network.logits(name, output)
            # The mean of no tokens is not a number, in transformers neither.
            means = facts.get("classifier_pooling") == "mean" or classes == "EuroBert"
            found.append(logits[:2] if means and name == "sequence_classifier" else logits)
        for array in found:
            assert array.dtype == wanted and mx.isfinite(array).all().item()
    own = {name for name, spec in HEADS.items() if spec.class_names[0] == head}
    if head == "ForPreTraining":
        pretraining = {"Bert": {"masked_lm", "next_sentence"}, "Albert": {"masked_lm", "sentence_order"}}
        own = pretraining.get(classes, {"discriminator"})
    assert own <= network.heads.keys()
