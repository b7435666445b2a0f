"""The file names of the weight formats, for readers and for code that selects files without reading them."""

import re

from mlxbert.mac_files import is_system_file

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # of PEFT
ADAPTERS = "adapters"  # the folder of jina-embeddings-v5's adapters
TORCH, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
NPZ = "*.npz"
TENSORFLOW = "TensorFlow 1"
TF_READER = f"reader of {TENSORFLOW}"  # a part of a room
TF_INDEX, TF_STATE = ".index", "checkpoint"  # TF_STATE names the latest of several checkpoints
EXPECTED = "model.safetensors, pytorch_model.bin, an .npz, or a TensorFlow 1 checkpoint (.index)"
_OLD = (
    'convert it with "transformers<5": `AutoModel.from_pretrained(DIR, {}).save_pretrained(NEW)`; '
    "for a model with a head, use the class of that head instead of AutoModel"
)
# Unsupported formats by file name suffix, and what to do instead.
NOT_READ = {
    ".h5": ("a Keras file", _OLD.format("from_tf=True")),
    ".msgpack": ("a Flax file", _OLD.format("from_flax=True")),
    ".onnx": ("an ONNX file", "use the .safetensors or .bin file from which this file was exported"),
    ".gguf": ("a GGUF file", "use the original model, from which this file was converted"),
    ".pt": ("a torch file with a non-standard name", "if this file holds a state dict, rename it to pytorch_model.bin"),
    ".ckpt": ("a training checkpoint", "save only the model, as safetensors"),
}
GGUF = ".gguf"  # the ending of the files of llama.cpp, which mlxbert only writes
ONNX = "onnx/model.onnx"  # in the folder of an encoder, where other programs look for it
_WEIGHTS = re.compile(r".*\.(safetensors|bin|npz|index|data-\d{5}-of-\d{5})", re.DOTALL)


def holds_weights(name: str) -> bool:
    """Whether a file with this name holds weights in a format that mlxbert can read."""
    return _WEIGHTS.fullmatch(name) is not None and not is_system_file(name)
