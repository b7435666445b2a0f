"""Records the outputs of transformers: `python scripts/make_goldens.py [FAMILY…]` writes mlxbert/goldens.

Covers every family and head of tests/helpers/families.py, whose configs differ from the defaults to expose forgotten
settings. The heads of a family share one encoder, which is stored once. Needs torch and transformers
(requirements-parity.txt); the tests that read the goldens do not.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.doctor.check import tiny_classifier
from mlxbert.goldens.golden_outputs import GOLDENS, load_network
from mlxbert.machine.device import nn
from tests.helpers.families import FROZEN, Compared, make_model
from tests.helpers.frozen import file_name, prefix_in
from tests.helpers.parity import reference_outputs

ACTIVATIONS = (
    *("gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu"),
    *("relu", "silu", "swish", "tanh", "sigmoid", "linear"),
)


def _saved(model: Any) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return config, load_file(Path(folder) / "model.safetensors")


def _freeze(compared: Compared, folder: Path) -> None:
    encoder = make_model(compared, "Model")
    _, shared = _saved(encoder)
    save_file(shared, folder / "encoder.safetensors")
    frozen = {}
    for head in compared.heads:
        model = make_model(compared, head)
        if head != "Model":
            getattr(model, model.base_model_prefix).load_state_dict(encoder.state_dict(), strict=False)
        config, tensors = _saved(model)
        prefix = prefix_in(tensors)
        from_encoder = {name for name in shared if prefix + name in tensors}
        head_tensors = {name: array for name, array in tensors.items() if name.removeprefix(prefix) not in from_encoder}
        golden = {"config": config, "prefix": prefix, "without": sorted(shared.keys() - from_encoder)}
        (folder / f"{head}.json").write_text(json.dumps(golden), encoding="utf-8")
        if head_tensors:
            save_file(head_tensors, folder / f"{head}.safetensors")
        for case_name, case in compared.cases.items():
            for output, array in reference_outputs(model, case).items():
                inside = output.startswith(("hidden", "attention"))  # large: kept for one input and one head only
                if not (inside or output == "last hidden") or (
                    head == "Model" and (case_name == "pairs" or not inside)
                ):
                    frozen[f"{head}/{case_name}/{output}"] = np.ascontiguousarray(array)
    save_file(frozen, folder / "outputs.safetensors")


def _freeze_classifier() -> None:
    """Records gradients and losses of the classifier of `doctor --check`, computed by torch in float64."""
    config = transformers.BertConfig.from_dict(tiny_classifier.CONFIG)
    model = transformers.BertForSequenceClassification(config).double().train()
    drawn = tiny_classifier.draw_weights({name: tuple(array.shape) for name, array in model.named_parameters()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(drawn[name]))
    with tempfile.TemporaryDirectory() as folder:
        network = load_network(
            tiny_classifier.write(Path(folder), {name: array.shape for name, array in drawn.items()})
        )
    flat = {name: np.array(array) for name, array in dict(nn.utils.tree_flatten(network.parameters())).items()}
    ours = {
        theirs: next(name for name, array in flat.items() if np.array_equal(array, weights))
        for theirs, weights in drawn.items()
    }
    assert {*ours.values()} == {*flat}
    optimizer = torch.optim.AdamW(model.parameters(), lr=tiny_classifier.RATE, weight_decay=tiny_classifier.DECAY)
    texts, losses = tiny_classifier.case(), []
    first: dict[str, np.ndarray[Any, Any]] = {}
    targets = torch.arange(len(texts.input_ids)) % tiny_classifier.CLASSES
    for _ in range(tiny_classifier.UPDATES):
        optimizer.zero_grad()
        ids, mask = torch.from_numpy(texts.input_ids).long(), torch.from_numpy(texts.real.astype(np.int64))
        loss = torch.nn.functional.cross_entropy(model(ids, attention_mask=mask).logits, targets)
        loss.backward()
        losses.append(loss.item())
        first = first or {name: each.grad.numpy().copy() for name, each in model.named_parameters()}
        optimizer.step()
    parameters = {
        name: {
            "ours": ours[name], "shape": list(array.shape), "projections": tiny_classifier.project(array, number)
        }
        for number, (name, array) in enumerate(first.items())
    }  # fmt: skip
    tiny_classifier.PATH.parent.mkdir(exist_ok=True)
    tiny_classifier.PATH.write_text(
        json.dumps({"parameters": parameters, "losses": losses}, indent=1), encoding="utf-8"
    )


def main() -> None:
    """Writes one folder per family, one for the gradients of a classifier, and one file for the activations."""
    for family in sys.argv[1:] or FROZEN:
        compared, folder = FROZEN[family], GOLDENS / file_name(family)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _freeze(compared, folder)
        print(f"{family}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e3:.0f} kB")
    if sys.argv[1:]:
        return
    _freeze_classifier()
    x = torch.cat([torch.linspace(-12, 12, 2001), torch.tensor([-100.0, 0.0, 100.0])])
    outputs = {name: transformers.activations.ACT2FN[name](x).numpy() for name in ACTIVATIONS}
    save_file({"x": x.numpy(), **outputs}, GOLDENS / "activations.safetensors")


if __name__ == "__main__":
    main()
