"""The tables of formats in the documentation have the rows that there are, and shards hold the whole model.

That each format is read and written as it should be is tested in `tests/weights/formats` and `tests/folders`.
"""

from pathlib import Path

import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.weights.formats.weight_files import open_weights
from tests.docs.pages import rows

PAGE = "docs/formats.md"


def test_the_tables_have_no_other_rows() -> None:
    read = ["safetensors", "torch", "NumPy", "TensorFlow 1", "MLX, quantized"]
    assert [cells[0] for cells in rows(PAGE, "in")] == read
    assert [cells[0] for cells in rows(PAGE, "out")] == ["unchanged", "another dtype", "shards", "quantized", "GGUF"]


@pytest.mark.usefixtures("measurement")
def test_a_model_is_written_as_it_is_and_in_shards(tiny_folder: Path, tmp_path: Path) -> None:
    source = open_weights(tiny_folder).arrays()
    for name, size in (("whole", "5GB"), ("shards", "12KB")):
        mlxbert.convert(tiny_folder, tmp_path / name, max_shard_size=size)
        found = open_weights(tmp_path / name).arrays()
        assert found.keys() == source.keys()
        assert all(mx.array_equal(found[key], source[key]).item() for key in source)
    assert not list((tmp_path / "whole").glob("model-*")) and len(list((tmp_path / "shards").glob("model-*"))) > 2
