"""Results of folders: what cannot be changed, and what JSON they are."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.frozen_dict import FrozenDict, frozen
from mlxbert.machine.device import mx
from mlxbert.results.json import plain
from tests.helpers.rooms import needs
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st


@pytest.fixture
def a(tmp_path: Path) -> Path:
    modules = pooling("mean"), dense(mx.ones((6, 24))), NORMALIZE
    return save_st(tmp_path / "a", *modules, settings={"prompts": {"query": "q: "}, "similarity_fn_name": "dot"})


def unchangeable(value: Any) -> bool:
    """Whether a value is made of frozen dataclasses, read-only mappings, tuples and single values alone."""
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return type(value).__dataclass_params__.frozen and all(map(unchangeable, fields))  # type: ignore[union-attr]
    if isinstance(value, FrozenDict):
        return all(map(unchangeable, value.values()))
    if isinstance(value, tuple):
        return all(map(unchangeable, value))
    return value is None or isinstance(value, bool | int | float | str | Path)


@needs("export")
def test_results_are_frozen_all_the_way_down(a: Path, tmp_path: Path) -> None:
    b = save_st(tmp_path / "b", pooling("cls"), settings={"prompts": {"other": ""}})
    results = mlxbert.inspect(a), mlxbert.verify(a, b), mlxbert.convert(a, tmp_path / "c")
    for found in results:
        assert unchangeable(found)
        json.dumps(found.to_dict(), allow_nan=False)
    prompts = next(one for one in results[1].differences if one.name == "prompts")
    assert (prompts.a, prompts.to_dict()["a"]) == (FrozenDict({"query": "q: "}), {"query": "q: "})


def test_a_frozen_dictionary_is_a_mapping_that_cannot_be_changed() -> None:
    found = frozen({"a": [1, {"b": None}], "c": {}})
    assert list(found) == ["a", "c"] and found["a"][1]["b"] is None and len(found["c"]) == 0
    assert plain(found) == {"a": [1, {"b": None}], "c": {}} and found == {"a": (1, {"b": None}), "c": {}}
    assert len({found, frozen({"a": [1, {"b": None}], "c": {}})}) == 1
    one, other = FrozenDict({"a": 1, "b": 2}), FrozenDict({"b": 2, "a": 1})
    assert one == other == {"a": 1, "b": 2} and len({one, other}) == 1
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(KeyError):
        found["x"]
    with pytest.raises(TypeError):
        found["a"] = 1
