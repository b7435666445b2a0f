"""The numbers of transformers, live: freshly made random models of every class it has for BERT."""

from pathlib import Path
from typing import Any

import pytest

from tests.parity import BOUNDS, assert_equal, load_network, make_cases, outputs, reference_outputs

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

CLASSES = ("BertModel", "BertForMaskedLM", "BertForNextSentencePrediction", "BertForPreTraining")
FACTS: dict[str, Any] = {
    "layer_norm_eps": 0.01,
    "pad_token_id": 5,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
}
SIZES: dict[str, dict[str, Any]] = {
    "odd": {
        "vocab_size": 53,
        "hidden_size": 33,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 47,
        "max_position_embeddings": 31,
        "type_vocab_size": 3,
        "hidden_act": "gelu",
    },
    "one head, many layers": {
        "vocab_size": 40,
        "hidden_size": 20,
        "num_attention_heads": 1,
        "num_hidden_layers": 5,
        "intermediate_size": 24,
        "max_position_embeddings": 18,
        "type_vocab_size": 2,
        "hidden_act": "silu",
    },
    "heads of 64": {
        "vocab_size": 70,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 100,
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "hidden_act": "quick_gelu",
        "initializer_range": 0.08,  # wide enough that 0.2 would saturate every softmax
    },
}


def _shake(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)


@pytest.fixture(scope="module", params=[(kind, size) for kind in CLASSES for size in SIZES], ids=str)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, dict[str, Any]]:
    """A random model, saved by transformers."""
    kind, size = request.param
    facts = FACTS | SIZES[size]
    torch.manual_seed(len(kind) + len(size))
    model = getattr(transformers, kind)(transformers.BertConfig(**facts)).eval()
    _shake(model)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder, model, facts


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("case", ["padding", "pairs", "full length", "one token"])
def test_outputs_equal_those_of_transformers(saved: tuple[Path, Any, dict[str, Any]], case: str, dtype: str) -> None:
    folder, model, facts = saved
    cases = make_cases(
        facts["vocab_size"], facts["max_position_embeddings"], facts["pad_token_id"], facts["type_vocab_size"]
    )
    assert_equal(outputs(load_network(folder, dtype), cases[case]), reference_outputs(model, cases[case]), dtype)
