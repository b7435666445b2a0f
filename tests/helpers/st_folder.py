"""The tiny model with modules in the layout of sentence-transformers, written without torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxbert.machine.device import mx
from tests.helpers.tiny import save

# A module: the name of its class, its config.json (None for none), its tensors (None for no file).
Spec = tuple[str, Mapping[str, Any] | None, Mapping[str, mx.array] | None]

FLAGS = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def pooling(*modes: str, old: bool = False, **settings: Any) -> Spec:
    """Returns a Pooling module, in the newer or the older dialect."""
    named: dict[str, Any] = {"pooling_mode": modes[0] if len(modes) == 1 else list(modes)}
    if old:
        named = {flag: mode in modes for mode, flag in FLAGS.items()}
    return "Pooling", {"word_embedding_dimension" if old else "embedding_dimension": 24} | named | settings, None


def dense(weight: mx.array, bias: mx.array | None = None, activation: str = "Tanh", **settings: Any) -> Spec:
    """Returns a Dense module; the setting `residual` is a tensor."""
    residual = settings.pop("residual", None)
    config = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": bias is not None,
        "activation_function": f"torch.nn.modules.activation.{activation}",
    }
    tensors = {"linear.weight": weight, "linear.bias": bias, "residual.weight": residual}
    return "Dense", config | settings, {name: array for name, array in tensors.items() if array is not None}


def layer_norm(weight: mx.array, bias: mx.array) -> Spec:
    return "LayerNorm", {"dimension": weight.size}, {"norm.weight": weight, "norm.bias": bias}


PROMPTS = {"prompts": {"query": "man is : ", "passage": "in "}}
NORMALIZE: Spec = ("Normalize", None, None)
TRANSFORMER: Spec = ("Transformer", None, None)


def list_modules(folder: Path, *entries: tuple[str, str]) -> Path:
    """Writes `modules.json`: the subfolder and the class of each module."""
    modules = [{"idx": n, "name": str(n), "path": path, "type": _named(kind)} for n, (path, kind) in enumerate(entries)]
    write_json(folder / "modules.json", modules)
    return folder


def _named(kind: str) -> str:
    return kind if "." in kind else f"sentence_transformers.models.{kind}"


def write_modules(folder: Path, specs: Sequence[Spec], namespace: str = "sentence_transformers.models") -> Path:
    """Writes `modules.json` and the folder of each module. The first module is a Transformer in `folder` itself."""
    entries = list[tuple[str, str]]()
    for number, (kind, config, tensors) in enumerate([TRANSFORMER, *specs]):
        subfolder = f"{number}_{kind}" if number else ""
        entries.append((subfolder, f"{namespace}.{kind}"))
        if config is not None:
            write_json(folder / subfolder / "config.json", config)
        if tensors is not None:
            mx.save_safetensors(str(folder / subfolder / "model.safetensors"), dict(tensors))
    return list_modules(folder, *entries)


def save_st(folder: Path, *specs: Spec, transformer: object = None, settings: object = None) -> Path:
    """Writes the tiny model, followed by other modules, with settings of the Transformer and of the model."""
    write_modules(save(folder), specs)
    for name, value in (("sentence_bert_config", transformer), ("config_sentence_transformers", settings)):
        if value is not None:
            write_json(folder / f"{name}.json", value)
    return folder
