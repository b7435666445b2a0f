"""Makes the built-in model from a full checkpoint: `python scripts/make_builtin.py CHECKPOINT weights/builtin`.

Matrices are stored in 8 bits with one scale per row, vectors in float16; configuration and vocabulary are copied.
"""

import argparse
import shutil
from pathlib import Path

from mlxbert.machine.device import mx
from mlxbert.weights.formats import quantized, safetensors
from mlxbert.weights.formats.weight_files import open_weights

COPIED = (
    "config.json",
    "tokenizer_config.json",
    "vocab.txt",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)


def main() -> None:
    """Reads the arguments and writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    arrays = dict(open_weights(arguments.source).arrays())
    metadata = {"format": "mlx", quantized.STORAGE_KEY: quantized.STORAGE}
    mx.save_safetensors(str(arguments.target / safetensors.SINGLE), quantized.pack(arrays), metadata)
    for name in COPIED:
        (arguments.target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(arguments.source / name, arguments.target / name)
    total = sum(path.stat().st_size for path in arguments.target.rglob("*") if path.is_file())
    print(f"{total / 1e6:.2f} MB in {arguments.target}")


if __name__ == "__main__":
    main()
