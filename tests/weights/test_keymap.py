"""Tensor names: the way to our names and back is the identity, and a family's table names every weight once."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families import keymap
from mlxbert.weights.families.family import Family
from tests.helpers.families import FROZEN, FROZEN_CELLS
from tests.helpers.frozen import write_model
from tests.helpers.tiny import to_theirs


def whole_table(family: Family) -> keymap.Table:
    return family.encoder + tuple(entry for part in family.parts.values() for entry in part)


@pytest.mark.parametrize("name", FROZEN)
def test_every_weight_of_a_whole_network_has_exactly_one_entry(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(name, "Model", tmp_path))
    config, family = checkpoint.config, checkpoint.family
    heads = [part for part in family.parts if part != "pooler"]
    network = Network(replace(config, pooler="pooler" in family.parts), heads)
    names: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    entries = list(keymap.pairs(whole_table(family), config, names))
    assert Counter(name for entry in entries for name in entry.ours) == Counter(names.keys())


@pytest.mark.sampled("neobert-ForMaskedLM")
@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_what_was_loaded_is_saved_as_it_was(family: str, head: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(family, head, tmp_path))
    network = build_network(checkpoint, checkpoint.parts, mx.float32)
    ours: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    named = to_theirs(checkpoint.family, checkpoint.config, ours)
    theirs = {checkpoint.family.exported(checkpoint.config_json, name): array for name, array in named.items()}
    stored = arrays(tmp_path / "model.safetensors")
    assert theirs.keys() == stored.keys()
    assert all(mx.array_equal(theirs[name], array).item() for name, array in stored.items())
