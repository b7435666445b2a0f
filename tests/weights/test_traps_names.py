"""Names of tensors on every family: the way to ours and back, prefixes, copies, a head more, missing parts."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import CheckpointError
from mlxbert.goldens.golden_outputs import load_network
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families import keymap
from tests.helpers.families import FROZEN, FROZEN_CELLS, walked
from tests.helpers.frozen import frozen_network, prefix_in, tensors_in, words_in, write_model, write_tensors
from tests.helpers.tiny import to_theirs

# The decoder of each family's masked-LM head: the copy of the word embeddings, and that of the bias where it has one.
TIED = {family: compared.kind.decoder for family, compared in FROZEN.items() if compared.kind.decoder}
MASKED_LM = [family for family in TIED if "ForMaskedLM" in FROZEN[family].heads]
TWO_BIASES = [family for family in MASKED_LM if TIED[family][1]]
_NEW = (
    *("ModernBert", "NomicBert", "NomicMoe", "Gte", "DebertaV2", "EuroBert", "JinaEmbeddingsV3", "JinaFlash", "Qwen3"),
    *("Qwen2", "Gemma3Text", "NeoBERT"),
)
OLD_ENOUGH = [name for name, compared in FROZEN.items() if compared.classes not in _NEW]
POOLED = [name for name, compared in FROZEN.items() if compared.kind.counted or compared.classes in ("Bert", "Albert")]
Arrays = dict[str, mx.array]


def parameters(network: Network) -> Arrays:
    return dict(nn.utils.tree_flatten(network.parameters()))


def assert_loads_as(folder: Path, wanted: Network) -> None:
    found, expected = parameters(load_network(folder)), parameters(wanted)
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], array).item() for name, array in expected.items())


def golden(family: str, head: str, folder: Path) -> tuple[Network, Arrays]:
    return frozen_network(family, head), tensors_in(write_model(family, head, folder))


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_the_prefix_may_be_left_out(family: str, head: str, tmp_path: Path) -> None:
    wanted, tensors = golden(family, head, tmp_path)
    prefix = prefix_in(tensors)
    assert (prefix == "") == (head == "Model")
    assert_loads_as(
        write_tensors(tmp_path, {name.removeprefix(prefix): array for name, array in tensors.items()}), wanted
    )


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(name for name in FROZEN if "ForMaskedLM" in FROZEN[name].heads))
def test_a_head_more_changes_nothing(family: str, tmp_path: Path) -> None:
    """A file that holds the masked-LM head and that of another class, as published files do."""
    wanted, tensors = golden(family, "ForMaskedLM", tmp_path)
    stem, more = "classifier", {}
    if FROZEN[family].kind.counted or FROZEN[family].classes in ("Electra", "NeoBERT"):
        own = "" if FROZEN[family].classes == "NeoBERT" else "classifier."
        stem = "classifier" if not own else "classifier.out_proj"
        more = {f"{own}dense.weight": mx.zeros((30, 30)), f"{own}dense.bias": mx.zeros(30)}
    more |= {f"{stem}.weight": mx.zeros((4, 30)), f"{stem}.bias": mx.zeros(4)}
    found = parameters(load_network(write_tensors(tmp_path, tensors | more)))
    for name, array in parameters(wanted).items():
        assert mx.array_equal(found[name], array).item(), name
    with pytest.raises(CheckpointError, match=r"tensor 'another_head\.weight'"):
        open_checkpoint(write_tensors(tmp_path, tensors | {"another_head.weight": mx.zeros(3)}))


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(MASKED_LM))
def test_an_equal_copy_of_the_decoder_is_taken_and_another_run(family: str, tmp_path: Path) -> None:
    """And the copy alone, without the words."""
    wanted, tensors = golden(family, "ForMaskedLM", tmp_path)
    words, prefix, (weight, bias, original) = words_in(tensors), prefix_in(tensors), TIED[family]
    copies = {weight: tensors[words]}
    if bias is not None and original is not None:
        copies[bias] = tensors.get(bias, tensors.get(original, mx.zeros(1)))
        tensors[original] = copies[bias]
    assert prefix and not any(name.startswith(prefix) for name in copies)
    assert_loads_as(write_tensors(tmp_path, tensors | copies), wanted)
    only = {name: array for name, array in (tensors | copies).items() if name != words}
    assert_loads_as(write_tensors(tmp_path, only), wanted)
    for name, array in copies.items():
        changed = {**copies, name: array.at[-1].add(1e-3)}
        found: Any = load_network(write_tensors(tmp_path, tensors | changed)).heads["masked_lm"]
        assert any(mx.array_equal(value, changed[name]).item() for value in parameters(found).values())


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(TWO_BIASES))
def test_the_bias_of_the_decoder_goes_by_either_name(family: str, tmp_path: Path) -> None:
    wanted, tensors = golden(family, "ForMaskedLM", tmp_path)
    _, copy, original = TIED[family]
    assert copy is not None and original is not None
    stored = next(array for name, array in tensors.items() if name in (copy, original))
    rest = {name: array for name, array in tensors.items() if name not in (copy, original)}
    for names in ([copy], [original], [copy, original]):
        assert_loads_as(write_tensors(tmp_path, rest | dict.fromkeys(names, stored)), wanted)
    with pytest.raises(CheckpointError, match=f"'{re.escape(original)}' is missing"):
        load_network(write_tensors(tmp_path, rest))


@pytest.mark.parametrize("name", FROZEN)
def test_every_weight_of_a_whole_network_has_exactly_one_entry(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(name, "Model", tmp_path))
    config, family = checkpoint.config, checkpoint.family
    heads = [part for part in family.parts if part != "pooler"]
    network = Network(replace(config, pooler="pooler" in family.parts), heads)
    names = parameters(network)
    table = family.encoder + tuple(entry for part in family.parts.values() for entry in part)
    entries = list(keymap.pairs(table, config, names))
    assert Counter(name for entry in entries for name in entry.ours) == Counter(names.keys())


@pytest.mark.sampled("neobert-ForMaskedLM")
@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_what_was_loaded_is_saved_as_it_was(family: str, head: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(family, head, tmp_path))
    ours = parameters(build_network(checkpoint, checkpoint.parts, mx.float32))
    named = to_theirs(checkpoint.family, checkpoint.config, ours)
    theirs = {checkpoint.family.exported(checkpoint.config_json, name): array for name, array in named.items()}
    stored = tensors_in(tmp_path)
    assert theirs.keys() == stored.keys()
    assert all(mx.array_equal(theirs[name], array).item() for name, array in stored.items())
