"""Vectors and scores against sentence-transformers: small random models in the layouts of published ones."""

from collections.abc import Callable
from functools import partial
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


def _pieces(folder: Path) -> Path:
    return published.xlm_roberta(folder, "xlm-roberta")


_HEADS = {"num_attention_heads": 3}
_OLD = _HEADS | {"layer_norm_eps": 0.01, "hidden_act": "gelu"}
_MODERN = _HEADS | {"norm_eps": 0.01, "local_attention": 16, "global_attn_every_n_layers": 3}
_NONE = {"query": "", "document": ""}
LAYOUTS = {
    # Also multilingual-e5-large; its users write the prompts.
    "multilingual-e5-base": Layout(
        "XLMRoberta",
        _pieces,
        _OLD | {"type_vocab_size": 1},
        lambda: [Pooling(D, "mean"), Normalize()],
        {"query": "query: ", "document": "passage: "},
    ),
    # A BERT with pieces, whose configuration names another token for padding.
    "multilingual-e5-small": Layout(
        "Bert",
        _pieces,
        _OLD | {"pad_token_id": 0},
        lambda: [Pooling(D, "mean"), Normalize()],
        {"query": "query: ", "document": "passage: "},
    ),
    # bge-m3 and granite-embedding-278m-multilingual have no prompt.
    "snowflake-arctic-embed-l-v2.0": Layout(
        "XLMRoberta",
        _pieces,
        _OLD | {"type_vocab_size": 1},
        lambda: [Pooling(D, "cls"), Normalize()],
        {"query": "query: ", "document": ""},
    ),
    "snowflake-arctic-embed-m-v2.0": Layout(
        "Gte",
        _pieces,
        _OLD
        | {"type_vocab_size": 1, "rope_theta": 160000, "rope_scaling": None, "position_embedding_type": "rope"}
        | {"layer_norm_type": "layer_norm", "pack_qkv": True, "unpad_inputs": "true", "logn_attention_scale": False},
        lambda: [Pooling(D, "cls"), Normalize()],
        {"query": "query: ", "document": ""},
    ),
    "granite-embedding-125m-english": Layout(
        "Roberta",
        published.jina_code,
        _OLD | {"type_vocab_size": 1, "max_position_embeddings": 514},
        lambda: [Pooling(D, "cls"), Normalize()],
        _NONE,
    ),
    "granite-embedding-english-r2": Layout(
        "ModernBert", published.modernbert, _MODERN, lambda: [Pooling(D, "cls"), Normalize()], _NONE
    ),
    "ettin-encoder": Layout("ModernBert", published.modernbert, _MODERN, lambda: [Pooling(D, "mean")], _NONE),
    # Both kinds of layers rotate alike.
    "mmBERT": Layout(
        "ModernBert",
        partial(published.gemma, tokenizer_class="GemmaTokenizerFast"),
        _MODERN | {"global_rope_theta": 160000.0, "local_rope_theta": 160000.0},
        lambda: [Pooling(D, "mean")],
        _NONE,
    ),
    "LaBSE": Layout(
        "Bert",
        partial(published.bert, lower=False),
        _OLD,
        lambda: [Pooling(D, "cls"), Dense(D, D, activation_function=torch.nn.Tanh()), Normalize()],
        _NONE,
    ),
    "distiluse-base-multilingual-cased-v2": Layout(
        "DistilBert",
        partial(published.bert, model_type="distilbert", lower=False),
        {"dim": D, "n_layers": 3, "n_heads": 3, "hidden_dim": 41, "activation": "gelu"},
        lambda: [Pooling(D, "mean"), Dense(D, 21, activation_function=torch.nn.Tanh())],
        _NONE,
    ),
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
        **{"pad_token_id": tokenizer.pad_token_id, **_SIZES, **layout.facts}, vocab_size=len(tokenizer)
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
def test_queries_and_documents_have_the_same_vectors(folder: Path, kind: Any) -> None:
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


@pytest.mark.parametrize("activation", ["torch.nn.modules.linear.Identity", None])
def test_a_cross_encoder_has_the_same_scores(activation: str | None, tmp_path: Path) -> None:
    """ms-marco-MiniLM: a BERT with one class, whose configuration names the activation; newer ones have Identity."""
    published.bert(tmp_path)
    torch.manual_seed(4)
    named = {"sentence_transformers": {"activation_fn": activation, "version": "4.0.1"}} if activation else {}
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(tmp_path))
    config = transformers.BertConfig(**_SIZES | _OLD | named, vocab_size=vocabulary, id2label={0: "LABEL_0"})
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    query, *texts = TEXTS
    theirs = st.CrossEncoder(str(tmp_path), device="cpu", local_files_only=True)
    wanted = theirs.predict([(query, text) for text in texts])
    found = mlxbert.rerank(mlxbert.load(tmp_path, task="classify", dtype="float32"), query, texts)
    assert np.ptp(wanted) > 100 * BOUND
    assert all(abs(one.score - wanted[one.index]) <= BOUND for one in found)
