"""Which of the formats of a folder is read, and what is said of a model that Google published."""

from pathlib import Path

from mlxbert.machine.device import mx
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.torch import reader
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.hub import needed_files
from tests.helpers import tf_files, torch_files
from tests.helpers.rooms import needs


@needs("export")
def test_formats_are_tried_in_one_order(tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / safetensors.SINGLE), {"w": mx.zeros(2)})
    (tmp_path / reader.SINGLE).write_bytes(torch_files.archive())
    mx.savez(str(tmp_path / "weights.npz"), w=mx.zeros(2))
    tf_files.write_index(tmp_path, {"w": tf_files.entry()})
    first = {
        "safetensors": safetensors.SINGLE,
        "PyTorch": reader.SINGLE,
        "NumPy archive": "weights.npz",
        "TensorFlow 1": f"{tf_files.STEM}.index",
    }
    for format, file in first.items():
        names = [path.name for path in tmp_path.iterdir()]
        (chosen,) = open_weights(tmp_path).headers
        assert (open_weights(tmp_path).format, chosen.name) == (format, file)
        on_the_hub = needed_files.needed_files("org/name", ["config.json", *names], lambda name: {})
        assert on_the_hub[1] == file  # the same of a repository
        for path in tmp_path.glob(file.replace(".index", ".*")):
            path.unlink()
