"""What files of weights are called, for those that read them and those that must choose without reading."""

import re

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
TORCH, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
NPZ = "*.npz"
TF_INDEX, TF_CHOICE = ".index", "checkpoint"  # the file that says which of several checkpoints is the last
ONNX = ("model.onnx", "onnx/model.onnx")
EXPECTED = "model.safetensors, pytorch_model.bin, an .npz, a TensorFlow 1 checkpoint (.index), or model.onnx"
_OLD = (
    'with "transformers<5", save it once more: AutoModel.from_pretrained(DIR, {}).save_pretrained(NEW); '
    "if it has a head, take the class of that instead of AutoModel"
)
# What is not read, by how the files' names end, and what to do instead.
NOT_READ = {
    ".h5": ("Keras", _OLD.format("from_tf=True")),
    ".msgpack": ("Flax", _OLD.format("from_flax=True")),
    ".gguf": ("GGUF", "take the model that it was made of"),
    ".pt": ("a torch file of no standard name", "if it is a state dict, call it pytorch_model.bin"),
    ".ckpt": ("a checkpoint of a training run", "save the model alone as safetensors"),
}
_WEIGHTS = re.compile(r".*\.(safetensors|bin|npz|index|data-\d{5}-of-\d{5}|onnx|onnx_data\w*|onnx\.data)", re.DOTALL)


def holds_weights(name: str) -> bool:
    """Whether a file with this name is one of weights, in a format that mlxbert reads."""
    return _WEIGHTS.fullmatch(name) is not None
