"""Records the outputs of transformers: `python scripts/make_goldens.py [FAMILY…]` writes mlxbert/bench/goldens.

Covers every family and head of tests/helpers/families.py, whose configs differ from the defaults so that a forgotten
setting shows. The heads of a family share one encoder, which is stored once. Needs torch and transformers
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
from mlxbert.bench.reference import GOLDENS
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
        own = {name: array for name, array in tensors.items() if name.removeprefix(prefix) not in from_encoder}
        golden = {"config": config, "prefix": prefix, "without": sorted(shared.keys() - from_encoder)}
        (folder / f"{head}.json").write_text(json.dumps(golden), encoding="utf-8")
        if own:
            save_file(own, folder / f"{head}.safetensors")
        for case_name, case in compared.cases.items():
            for output, array in reference_outputs(model, case).items():
                inside = output.startswith(("hidden", "attention"))  # large: kept for one input and one head only
                if not (inside or output == "last hidden") or (
                    head == "Model" and (case_name == "pairs" or not inside)
                ):
                    frozen[f"{head}/{case_name}/{output}"] = np.ascontiguousarray(array)
    save_file(frozen, folder / "outputs.safetensors")


def main() -> None:
    """Writes one folder per family, and one file for the activations."""
    for family in sys.argv[1:] or FROZEN:
        compared, folder = FROZEN[family], GOLDENS / file_name(family)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _freeze(compared, folder)
        print(f"{family}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e3:.0f} kB")
    if sys.argv[1:]:
        return
    x = torch.cat([torch.linspace(-12, 12, 2001), torch.tensor([-100.0, 0.0, 100.0])])
    found = {name: transformers.activations.ACT2FN[name](x).numpy() for name in ACTIVATIONS}
    save_file({"x": x.numpy(), **found}, GOLDENS / "activations.safetensors")


if __name__ == "__main__":
    main()
