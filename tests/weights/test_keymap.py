"""Tensor names: the way to our names and back is the identity, and a family's table names every weight once."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mlxbert.config import EncoderConfig
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families import keymap
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Entry
from mlxbert.weights.families.registry import FAMILIES
from tests.helpers.cells import quick
from tests.helpers.families import FROZEN, FROZEN_CELLS
from tests.helpers.frozen import arrays, write_model
from tests.helpers.tiny import random_network, tensors_of, tiny_config, to_theirs

QUICK = quick(50)
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
Shape = tuple[int, ...]


def filled(shape: Shape, first: int = 0) -> mx.array:
    """Numbers that are all different."""
    size = 1
    for length in shape:
        size *= length
    return mx.arange(first, first + size, dtype=mx.float32).reshape(shape)


def assert_returns(entry: Entry, theirs: dict[str, mx.array]) -> dict[str, mx.array]:
    """Loading and saving give what was there before; returns what was loaded."""
    ours = keymap.load(entry, theirs)
    assert tuple(ours) == entry.ours
    back = keymap.save(entry, ours)
    assert tuple(back) == entry.theirs
    for name, array in theirs.items():
        assert back[name].shape == array.shape and mx.array_equal(back[name], array).item()
    again = keymap.load(entry, back)
    assert all(mx.array_equal(again[name], array).item() for name, array in ours.items())
    return ours


@QUICK
@given(SHAPES)
def test_the_same_array_comes_back(shape: Shape) -> None:
    ours = assert_returns(keymap.same("a", "b"), {"b": filled(shape)})
    assert mx.array_equal(ours["a"], filled(shape)).item()


@QUICK
@given(SHAPES, st.integers(1, 4))
def test_a_fused_array_is_split_in_order_and_comes_back(shape: Shape, count: int) -> None:
    names = tuple(f"part {number}" for number in range(count))
    whole = filled((shape[0] * count, *shape[1:]))
    ours = assert_returns(keymap.split(names, "fused"), {"fused": whole})
    for number, name in enumerate(names):
        assert ours[name].shape == shape
        assert mx.array_equal(ours[name], whole[number * shape[0] : (number + 1) * shape[0]]).item()


def test_a_table_within_another_keeps_the_number_of_the_layer() -> None:
    table = keymap.within("in.{}.", "out.{}.", (keymap.same("a", "b"), keymap.split(("q", "k"), "qk")))
    assert keymap.expand(table, 2) == (
        Entry(("in.0.a",), ("out.0.b",)),
        Entry(("in.1.a",), ("out.1.b",)),
        Entry(("in.0.q", "in.0.k"), ("out.0.qk",), keymap.SPLIT),
        Entry(("in.1.q", "in.1.k"), ("out.1.qk",), keymap.SPLIT),
    )
    assert keymap.expand((keymap.same("a", "b"),), 7) == (keymap.same("a", "b"),)
    assert keymap.expand(table, 0) == ()


def test_only_wanted_tensors_are_paired() -> None:
    table = (keymap.same("a", "b"), keymap.split(("q", "k"), "qk"))
    found = list(keymap.pairs(table, 1, {"a.bias": 0, "q.weight": 0, "k.weight": 0, "q.bias": 0, "z.weight": 0}))
    assert [(entry.ours, entry.theirs) for entry in found] == [
        (("a.bias",), ("b.bias",)),
        (("q.weight", "k.weight"), ("qk.weight",)),
    ]
    assert found[1].operation is keymap.SPLIT


def whole_table(family: Family) -> keymap.Table:
    return family.encoder + tuple(entry for part in family.parts.values() for entry in part)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_stem_stands_twice_on_either_side_of_a_table(name: str) -> None:
    family = FAMILIES[name]
    ours = keymap.expand(whole_table(family), 3)
    sides = [[stem for entry in ours for stem in entry.ours]]
    for part in family.parts.values():  # two heads may have one name in files: no file holds both
        sides.append([stem for entry in keymap.expand(family.encoder + part, 3) for stem in entry.theirs])
    for stems in sides:
        counts = Counter(stems)
        assert counts and set(counts.values()) == {1}
        assert not any("{" in stem for stem in counts)


def three_layers() -> EncoderConfig:
    return tiny_config(layer_schedule=(0, 1, 2))


@pytest.mark.parametrize("name", FROZEN)
def test_every_weight_of_a_whole_network_has_exactly_one_entry(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(name, "Model", tmp_path))
    config, family = checkpoint.config, checkpoint.family
    heads = [part for part in family.parts if part != "pooler"]
    network = Network(replace(config, pooler="pooler" in family.parts), heads)
    names: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    entries = list(keymap.pairs(whole_table(family), config.num_stored_layers, names))
    assert Counter(name for entry in entries for name in entry.ours) == Counter(names.keys())


@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_what_was_loaded_is_saved_as_it_was(family: str, head: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(family, head, tmp_path))
    network = build_network(checkpoint, checkpoint.parts, mx.float32)
    ours: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    theirs = to_theirs(checkpoint.family, checkpoint.config, ours)
    stored = arrays(tmp_path / "model.safetensors")
    assert theirs.keys() == stored.keys()
    assert all(mx.array_equal(theirs[name], array).item() for name, array in stored.items())


def test_names_and_shapes_are_those_of_published_files() -> None:
    found = {name: tuple(array.shape) for name, array in tensors_of(random_network(three_layers())).items()}
    layer = {
        "attention.self.query": (24, 24),
        "attention.self.key": (24, 24),
        "attention.self.value": (24, 24),
        "attention.output.dense": (24, 24),
        "intermediate.dense": (40, 24),
        "output.dense": (24, 40),
        "attention.output.LayerNorm": (24,),
        "output.LayerNorm": (24,),
    }
    stems = {f"bert.encoder.layer.{number}.{stem}": shape for number in range(3) for stem, shape in layer.items()}
    stems |= {"bert.embeddings.LayerNorm": (24,), "bert.pooler.dense": (24, 24), "cls.seq_relationship": (2, 24)}
    stems |= {"cls.predictions.transform.dense": (24, 24), "cls.predictions.transform.LayerNorm": (24,)}
    rows = tiny_config().vocab_size
    tables = {"word": (rows, 24), "position": (32, 24), "token_type": (2, 24)}
    wanted: dict[str, Shape] = {f"bert.embeddings.{name}_embeddings.weight": shape for name, shape in tables.items()}
    wanted |= {f"{stem}.weight": shape for stem, shape in stems.items()}
    wanted |= {f"{stem}.bias": shape[:1] for stem, shape in stems.items()}
    assert found == wanted | {"cls.predictions.bias": (rows,)}
