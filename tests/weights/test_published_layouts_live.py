"""Vectors of newer embedding models against sentence-transformers: small random models in their published layouts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers import published

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
st = pytest.importorskip("sentence_transformers", minversion="6.0", reason="live parity needs sentence-transformers")
from sentence_transformers.base.modules import Dense, Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402

pytestmark = pytest.mark.slow

D = 30
BOUND = 1e-5
TEXTS = [
    "the cat sat on the mat .",
    "",
    "A dog in the store, he bought milk. " * 19,
    "中文 tokyo 😀 the\ncat  é",
    "dog",
]
_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_SIZES = {
    "hidden_size": D, "num_hidden_layers": 3, "intermediate_size": 41, "rms_norm_eps": 0.01, "initializer_range": 0.2,
    "max_position_embeddings": 128,
}  # fmt: skip
_GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14}


class Layout:
    """A published layout.

    Attributes:
        classes: The prefix of its classes in transformers.
        tokenizer: Writes the files of its tokenizer.
        facts: What its configuration has besides the common sizes.
        modules: Makes the modules after the transformer.
        prompts: Its prompts.
    """

    def __init__(
        self,
        classes: str,
        tokenizer: Callable[[Path], Path],
        facts: dict[str, Any],
        modules: Callable[[], list[Any]],
        prompts: dict[str, str],
    ) -> None:
        self.classes, self.tokenizer, self.facts, self.modules, self.prompts = (
            classes, tokenizer, facts, modules, prompts,
        )  # fmt: skip


def _dense(width: int, out: int) -> Any:
    return Dense(width, out, bias=False, activation_function=torch.nn.Identity())


LAYOUTS = {
    "jina-embeddings-v5-nano-retrieval": Layout(
        "EuroBert",
        published.eurobert,
        {"num_attention_heads": 3, "num_key_value_heads": 1, "mask_token_id": 3, "hidden_act": "silu"},
        lambda: [Pooling(D, "lasttoken"), Normalize()],
        {"query": "Query: ", "document": "Document: "},
    ),
    "Qwen3-Embedding": Layout(
        "Qwen3",
        published.qwen3,
        _GROUPED | {"hidden_act": "silu"},
        lambda: [Pooling(D, "lasttoken"), Normalize()],
        {"query": _INSTRUCTION, "document": ""},
    ),
    "gte-Qwen2-instruct": Layout(
        "Qwen2",
        published.qwen3,
        {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_act": "silu", "is_causal": False},
        lambda: [Pooling(D, "lasttoken"), Normalize()],
        {"query": _INSTRUCTION + " ", "document": ""},
    ),
    "embeddinggemma": Layout(
        "Gemma3Text",
        published.gemma,
        _GROUPED | {"use_bidirectional_attention": True, "sliding_window": 16, "query_pre_attn_scalar": 37},
        lambda: [Pooling(D, "mean"), _dense(D, 64), _dense(64, D), Normalize()],
        {"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
}


@pytest.fixture(params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random model in a published layout, saved by sentence-transformers."""
    layout = LAYOUTS[request.param]
    made = layout.tokenizer(tmp_path / "made")
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    torch.manual_seed(4)
    config = getattr(transformers, f"{layout.classes}Config")(
        **_SIZES, **layout.facts, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id
    )
    model = getattr(transformers, f"{layout.classes}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    (made / "config.json").unlink()
    model.save_pretrained(made)
    modules = [Transformer(str(made), max_seq_length=100), *layout.modules()]
    st.SentenceTransformer(modules=modules, prompts=layout.prompts, device="cpu").save(str(tmp_path / "saved"))
    return tmp_path / "saved"


@pytest.mark.parametrize("kind", ["query", "document"])
def test_queries_and_documents_have_the_same_vectors(folder: Path, kind: str) -> None:
    theirs = st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    model = mlxbert.load(folder, task="embed", dtype="float32")
    for dimensions in (None, 16):
        wanted = theirs.encode(TEXTS, prompt_name=kind, truncate_dim=dimensions, normalize_embeddings=True)
        found = mlxbert.embed(model, TEXTS, kind=kind, dimensions=dimensions, normalize=True)
        assert np.abs(found - wanted).max() <= BOUND
    alone = np.stack([mlxbert.embed(model, text, kind=kind, dimensions=16, normalize=True) for text in TEXTS])
    assert np.abs(alone - found).max() <= BOUND


def test_what_is_saved_opens_there_with_the_same_vectors(folder: Path, tmp_path: Path) -> None:
    model = mlxbert.load(folder, task="embed", dtype="float32")
    model.save(tmp_path / "again")
    again = st.SentenceTransformer(str(tmp_path / "again"), device="cpu", local_files_only=True)
    wanted = st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    for kind in ("query", "document"):
        assert np.array_equal(again.encode(TEXTS, prompt_name=kind), wanted.encode(TEXTS, prompt_name=kind))
