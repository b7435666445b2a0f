"""Freezes what transformers computes: `python scripts/make_goldens.py` writes tests/goldens.

Tiny random models in which every number stands far from its default (eps, widths, pad id, norms), so that a forgotten
one shows. Needs torch and transformers (requirements-parity.txt); the tests that read the goldens do not.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.parity import make_cases, reference_outputs

GOLDENS = Path(__file__).parents[1] / "tests" / "goldens"
SEED = 20

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    # name: (class, what differs from FACTS)
    "bert-pretraining": (transformers.BertForPreTraining, {}),
    "bert-masked-lm": (transformers.BertForMaskedLM, {"hidden_act": "gelu_new", "num_hidden_layers": 2}),
    "bert-bare": (transformers.BertModel, {"hidden_act": "relu", "num_hidden_layers": 1, "type_vocab_size": 2}),
}
FACTS: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 50,
    "hidden_act": "gelu",
    "layer_norm_eps": 0.01,
    "max_position_embeddings": 29,
    "type_vocab_size": 3,
    "pad_token_id": 7,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
}


def shake(model: torch.nn.Module) -> None:
    """Moves every bias and norm away from 0 and 1, where it would go unnoticed."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "word_embeddings" in name:
                parameter[FACTS["pad_token_id"]] = torch.randn(parameter.shape[1]) * 0.2


def main() -> None:
    """Writes a folder per model and a file of activations."""
    for name, (kind, changes) in MODELS.items():
        torch.manual_seed(SEED)
        facts = FACTS | changes
        model = kind(transformers.BertConfig(**facts)).eval()
        shake(model)
        folder = GOLDENS / name
        model.save_pretrained(folder)
        cases = make_cases(
            facts["vocab_size"], facts["max_position_embeddings"], facts["pad_token_id"], facts["type_vocab_size"]
        )
        frozen = {}
        for case_name, case in cases.items():
            for output, array in reference_outputs(model, case).items():
                frozen[f"{case_name}/{output}"] = np.ascontiguousarray(array)
        save_file(frozen, folder / "outputs.safetensors")
        print(f"{name}: {len(frozen)} arrays, {sum(array.nbytes for array in frozen.values()) / 1e3:.0f} kB")
    x = torch.cat([torch.linspace(-12, 12, 2001), torch.tensor([-100.0, 0.0, 100.0])])
    names: tuple[str, ...] = (
        "gelu",
        "gelu_python",
        "gelu_new",
        "gelu_pytorch_tanh",
        "gelu_fast",
        "quick_gelu",
        "relu",
        "silu",
        "swish",
    )
    names += ("tanh", "sigmoid", "linear")
    activations = {name: transformers.activations.ACT2FN[name](x).numpy() for name in names}
    save_file({"x": x.numpy(), **activations}, GOLDENS / "activations.safetensors")


if __name__ == "__main__":
    main()
