"""A folder is opened once: networks that are built, and files that are read; results that cannot be changed."""

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import mlxbert
from mlxbert.config import EncoderConfig
from mlxbert.folders.results import Table, frozen, to_json
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from mlxbert.weights import checkpoint
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st

_READ: Counter[Path] = Counter()  # what hooks see: they cannot be taken off again


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).endswith(".json") and arguments[1] in ("r", "rb"):
        _READ[Path(str(arguments[0]))] += 1


@pytest.fixture
def a(tmp_path: Path) -> Path:
    modules = pooling("mean"), dense(mx.ones((6, 24))), NORMALIZE
    return save_st(tmp_path / "a", *modules, settings={"prompts": {"query": "q: "}, "similarity_fn_name": "dot"})


@pytest.fixture
def built(a: Path, monkeypatch: pytest.MonkeyPatch) -> list[EncoderConfig]:
    """The configurations of the networks that are built."""
    found: list[EncoderConfig] = []
    make = Network.__init__

    def counted(self: Network, config: EncoderConfig, heads: Any = ()) -> None:
        found.append(config)
        make(self, config, heads)

    monkeypatch.setattr(Network, "__init__", counted)
    checkpoint._network_shapes.cache_clear()
    if not hasattr(sys, "_mlxbert_watched"):
        sys.addaudithook(_watch)
        sys._mlxbert_watched = True  # type: ignore[attr-defined]
    _READ.clear()
    return found


@pytest.mark.parametrize(("work", "networks"), [(mlxbert.load, 1), (mlxbert.inspect, 0)])
def test_load_and_inspect(work: Callable[[Path], object], networks: int, a: Path, built: list[EncoderConfig]) -> None:
    work(a)
    assert len(built) == networks + 1  # one for shapes
    read = {path.relative_to(a).as_posix(): count for path, count in _READ.items()}
    assert {"config.json", "modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"} <= {*read}
    assert set(read.values()) == {1}, read


def test_verify(a: Path, tmp_path: Path, built: list[EncoderConfig]) -> None:
    b = save_st(tmp_path / "b", pooling("mean"))
    built.clear()
    assert not mlxbert.verify(a, b)
    assert len(built) == 3  # one for shapes: both have the same
    assert set(_READ.values()) == {1} and _READ[a / "config.json"] == _READ[b / "config.json"] == 1


def test_convert(a: Path, tmp_path: Path, built: list[EncoderConfig]) -> None:
    assert mlxbert.convert(a, tmp_path / "b").difference
    assert len(built) <= 4
    # Parsed, and read for its SHA-256; those of modules are also copied.
    assert _READ[a / "config.json"] == 2 and _READ[a / "1_Pooling" / "config.json"] == 3


def unchangeable(value: Any) -> bool:
    """Whether a value is made of frozen dataclasses, read-only mappings, tuples and single values alone."""
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return type(value).__dataclass_params__.frozen and all(map(unchangeable, fields))  # type: ignore[union-attr]
    if isinstance(value, MappingProxyType):
        return all(map(unchangeable, value.values()))
    if isinstance(value, tuple):
        return all(map(unchangeable, value))
    return value is None or isinstance(value, bool | int | float | str | Path)


def test_results_are_frozen_all_the_way_down(a: Path, tmp_path: Path) -> None:
    b = save_st(tmp_path / "b", pooling("cls"), settings={"prompts": {"other": ""}})
    results = mlxbert.inspect(a), mlxbert.verify(a, b), mlxbert.convert(a, tmp_path / "c")
    for found in results:
        assert unchangeable(found)
        json.dumps(found.to_dict(), allow_nan=False)
    prompts = next(one for one in results[1].differences if one.name == "prompts")
    assert (prompts.a, prompts.to_dict()["a"]) == (Table((("query", "q: "),)), {"query": "q: "})


def test_a_table_is_a_mapping_that_cannot_be_changed() -> None:
    found = frozen({"a": [1, {"b": None}], "c": {}})
    assert list(found) == ["a", "c"] and found["a"][1]["b"] is None and len(found["c"]) == 0
    assert to_json(found) == {"a": [1, {"b": None}], "c": {}} and found == {"a": (1, {"b": None}), "c": {}}
    assert len({found, frozen({"a": [1, {"b": None}], "c": {}})}) == 1
    with pytest.raises(KeyError):
        found["x"]
    with pytest.raises(TypeError):
        found["a"] = 1
