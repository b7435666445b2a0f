"""Records tiny ONNX exports as goldens: `python scripts/make_onnx.py` writes mlxbert/bench/goldens/onnx.

For each model it writes torch's export, `NAME.onnx`, and the parameters in torch, `NAME.safetensors`. Needs torch,
transformers, onnx and onnxscript; the tests that read these files need only onnx.
"""

import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.weights.formats.test_onnx import GOLDENS

_FACTS: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "attn_implementation": "eager",
}
# By file name: the class, changes to the facts above, and whether to use torch's newer exporter.
_MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bert": ("BertForMaskedLM", {"num_hidden_layers": 1}, False),
    "bert-new": ("BertForMaskedLM", {"num_hidden_layers": 1}, True),
    "albert": ("AlbertForSequenceClassification", {"embedding_size": 6}, False),
}
_SCOPES = "pkg.torch.onnx.name_scopes"


def _model(classes: str, changes: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    kind = getattr(transformers, classes)
    model = kind(kind.config_class(**_FACTS | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def _export(model: Any, newer: bool, path: Path) -> None:
    inputs = {name: torch.tensor([[3, 4, 5, 6], [7, 8, 9, 1]]) for name in ("input_ids", "attention_mask")}
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    assert list(inspect.signature(model.forward).parameters)[:2] == list(inputs)
    if newer:
        sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
        torch.onnx.export(model, tuple(inputs.values()), path, dynamo=True, dynamic_shapes=(sizes, sizes))
    else:
        axes = {key: {0: "batch", 1: "length"} for key in inputs}
        torch.onnx.export(
            model, tuple(inputs.values()), path, dynamo=False, input_names=list(inputs), dynamic_axes=axes
        )


def _plain(exported: Path, path: Path, *, outside: bool) -> None:
    """Writes the graph without source locations; `outside` stores its data in an external file."""
    model = onnx.load(exported)
    for node in model.graph.node:
        node.ClearField("doc_string")
        notes = [note for note in node.metadata_props if note.key == _SCOPES]
        del node.metadata_props[:]
        node.metadata_props.extend(notes)
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.graph.value_info[:]
    path.with_suffix(".onnx.data").unlink(missing_ok=True)
    location = f"{path.name}.data"
    onnx.save(model, path, save_as_external_data=outside, location=location, size_threshold=100)


def main() -> None:
    """Writes all goldens."""
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for name, (classes, changes, newer) in _MODELS.items():
        model = _model(classes, changes)
        save_file({key: tensor.clone() for key, tensor in model.state_dict().items()}, GOLDENS / f"{name}.safetensors")
        with tempfile.TemporaryDirectory() as folder:
            exported = Path(folder) / "model.onnx"
            _export(model, newer, exported)
            _plain(exported, GOLDENS / f"{name}.onnx", outside=newer)


if __name__ == "__main__":
    main()
