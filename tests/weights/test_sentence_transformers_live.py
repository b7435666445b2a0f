"""The vectors and scores of sentence-transformers, live: small random models that it saved, or in published layouts.

They are in its dialects of all ages. Rerankers of Qwen3 are next to transformers, too.
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import mlxbert
from mlxbert.errors import CheckpointError
from tests.helpers import published
from tests.helpers.frozen import read_config
from tests.helpers.tiny import VOCAB

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
st = pytest.importorskip("sentence_transformers", minversion="6.0", reason="live parity needs sentence-transformers")
from sentence_transformers.base.modules import Dense, Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling  # noqa: E402

pytestmark = pytest.mark.slow

Array = NDArray[np.float32]
Modules = list[Any]

BOUND = 2e-5  # of the largest value of a text's own vector
D = 33
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")  # as the old dialect joins them
OLD_NAMES = {mode: f"pooling_mode_{mode.removesuffix('_tokens')}_tokens" for mode in MODES}
OLD_NAMES |= {"cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}
# [PAD] is not 0, and capitals have tokens of their own.
WORDS = ["[UNK]", "the", "[CLS]", "[PAD]", *(word for word in VOCAB if word not in ("[UNK]", "the", "[CLS]", "[PAD]"))]
WORDS += ["中", "文", "😀", "The", "CAT", "Paris", "é", "e", "E", "##é", "##E", "T", "##T"]
TEXTS = [
    *("the cat sat on the mat .", "a dog in the store , he bought milk . " * 6, "", "😀 the cat 😀👩‍👩‍👧 sat"),
    *("中文 tokyo 文城中", "the\x00 cat\x07 sat\u200b\ton\x85mat\n", "dog", "He PLAYING, bought THE CAT in Paris!"),
    *("é e\u0301 E\u0301 T", "   play   [SEP] milk [MASK]  ", "largest " * 28, "largest " * 29, "largest " * 30),
]


def _shake(module: Any) -> None:
    """Moves every bias and norm away from 0 and 1, where it would go unnoticed."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)


def save_bert(folder: Path, *, lower: bool = True) -> Path:
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=D, num_attention_heads=3, num_hidden_layers=2, intermediate_size=47,
        max_position_embeddings=31, layer_norm_eps=0.01, pad_token_id=3, initializer_range=0.2,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    _shake(model)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": lower}), encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


def _edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")


def as_version_2(folder: Path) -> None:
    def old_pooling(config: dict[str, Any]) -> dict[str, Any]:
        modes = [config["pooling_mode"]] if isinstance(config["pooling_mode"], str) else config["pooling_mode"]
        assert modes == [mode for mode in MODES if mode in modes], "the old dialect knows one order"
        flags = {OLD_NAMES[mode]: mode in modes for mode in MODES}
        rest = {} if config["include_prompt"] else {"include_prompt": False}
        return {"word_embedding_dimension": config["embedding_dimension"], **flags, **rest}

    def old_tokenizer(config: dict[str, Any]) -> dict[str, Any]:
        normalizer = tokenizer["normalizer"]
        lower = normalizer["type"] == "Sequence"
        tokenizer["normalizer"] = normalizer["normalizers"][1] if lower else normalizer
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        settings = {"max_seq_length": config["model_max_length"], "do_lower_case": lower}
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
        return config | {"model_max_length": 512}

    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    entries = json.loads((folder / "modules.json").read_text())
    for entry in entries:
        entry["type"] = f"sentence_transformers.models.{entry['type'].rpartition('.')[2]}"
        kind, path = entry["type"].rpartition(".")[2], folder / entry["path"]
        if kind == "Pooling":
            _edit(path / "config.json", old_pooling)
        elif kind == "Normalize":
            shutil.rmtree(path)
        elif kind == "Dense":
            _edit(path / "config.json", lambda c: {key: c[key] for key in c if not key.startswith("module_")})
    (folder / "modules.json").write_text(json.dumps(entries))
    _edit(folder / "tokenizer_config.json", old_tokenizer)


def as_version_0(folder: Path) -> None:
    """Rewrites a folder into the layout of versions 0 and 1: the Transformer in a folder of its own."""
    as_version_2(folder)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(inner / path.name)
    _edit(folder / "modules.json", lambda entries: [entries[0] | {"path": inner.name}, *entries[1:]])
    (folder / "config.json").write_text(json.dumps({"__version__": "0.4.1"}))


DIALECTS: dict[str, Callable[[Path], object]] = {
    "version 6": lambda folder: None,  # as it was saved
    "version 2": as_version_2,
    "version 0": as_version_0,
}


def save_model(folder: Path, bert: Path, modules: Modules, settings: dict[str, Any], dialect: str) -> Path:
    """A model saved by sentence-transformers in one of its dialects; `settings` of the Transformer and of the model."""
    torch.manual_seed(11)
    for module in modules:
        _shake(module)
    first = ("max_seq_length", "do_lower_case")
    transformer = Transformer(str(bert), **{key: settings[key] for key in first if key in settings})
    rest = {key: value for key, value in settings.items() if key not in first}
    model = st.SentenceTransformer(modules=[transformer, *modules], device="cpu", **rest)
    model.save(str(folder), create_model_card=False)
    DIALECTS[dialect](folder)
    return folder


def _apart(found: Array, expected: Array) -> float:
    """The largest difference, as a share of the largest value of its row."""
    assert found.shape == expected.shape and found.dtype == expected.dtype == np.float32
    return float((np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())


def _check(folder: Path, theirs: dict[str, Any] | None = None, **ours: Any) -> Array:
    """Both read the same folder and give the same vectors; returns them."""
    reference = st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = reference.encode(TEXTS, batch_size=5, show_progress_bar=False, **(theirs or {}))
    found = mlxbert.embed(mlxbert.load(folder, task="embed", dtype="float32"), TEXTS, **ours)
    assert _apart(found, expected) <= BOUND
    return found


def _dense(width: int, out: int, activation: str = "Tanh", **options: Any) -> Any:
    return Dense(width, out, activation_function=getattr(torch.nn, activation)(), **options)


STACKS: dict[str, Callable[[], Modules]] = {
    **{mode: lambda mode=mode: [Pooling(D, mode)] for mode in MODES},  # type: ignore[misc]
    "cls and mean": lambda: [Pooling(D, ("cls", "mean"))],
    "max and lasttoken": lambda: [Pooling(D, ("max", "lasttoken"))],
    "all poolings": lambda: [Pooling(D, MODES)],
    **{
        f"Dense {name}": lambda name=name: [Pooling(D, "mean"), _dense(D, 17, name)]  # type: ignore[misc]
        for name in ("Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid")
    },
    "Dense without bias": lambda: [Pooling(D, "cls"), _dense(D, 40, bias=False)],
    "Dense with residual": lambda: [Pooling(D, "cls"), _dense(D, D, use_residual=True)],
    "Dense with residual of another width": lambda: [Pooling(D, "mean"), _dense(D, 9, "SiLU", use_residual=True)],
    "Dense behind two poolings": lambda: [Pooling(D, ("cls", "mean")), _dense(2 * D, 21, "GELU"), _dense(21, 8)],
    "LayerNorm": lambda: [Pooling(D, "mean"), LayerNorm(D)],
    "Normalize": lambda: [Pooling(D, "mean"), Normalize()],
    "Normalize in the middle": lambda: [Pooling(D, "mean"), Normalize(), _dense(D, 12, "Identity")],
    "Dropout": lambda: [Pooling(D, "mean"), _dense(D, 25), Dropout(0.9), Normalize()],
    "Dense, LayerNorm, Normalize": lambda: [Pooling(D, "mean"), _dense(D, 25), LayerNorm(25), Normalize()],
}


@pytest.mark.sampled
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stack", STACKS)
def test_vectors_equal_those_of_sentence_transformers(stack: str, dialect: str, bert: Path, tmp_path: Path) -> None:
    found = _check(save_model(tmp_path / "model", bert, STACKS[stack](), {}, dialect))
    assert _apart(found[:-1], found[1:]) > 0.01


def test_poolings_are_joined_in_the_order_that_the_model_names(bert: Path, tmp_path: Path) -> None:
    _check(save_model(tmp_path / "model", bert, [Pooling(D, ("lasttoken", "cls"))], {}, "version 6"))


PROMPTS: dict[str, Any] = {"prompts": {"query": "the largest city : ", "passage": "play"}}


@pytest.mark.sampled
@pytest.mark.parametrize("dialect", DIALECTS)
def test_prompts_are_put_before_texts(dialect: str, bert: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "named", bert, [Pooling(D, "mean")], PROMPTS, dialect)
    bare, named = _check(folder), _check(folder, {"prompt_name": "query"}, prompt_name="query")
    own = _check(folder, {"prompt": "a dog"}, prompt="a dog")  # joins the word that follows
    assert min(_apart(named, bare), _apart(own, bare), _apart(own, named)) > 0.01
    folder = save_model(
        tmp_path / "default", bert, [Pooling(D, "mean")], PROMPTS | {"default_prompt_name": "query"}, dialect
    )
    assert (_check(folder) == named).all()
    assert (_check(folder, {"prompt": ""}, prompt="") == bare).all()
    _check(folder, {"prompt_name": "passage"}, prompt_name="passage")


@pytest.mark.sampled
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("mode", [*MODES, MODES])
def test_a_prompt_can_be_left_out_of_the_pooling(
    mode: str | tuple[str, ...], dialect: str, bert: Path, tmp_path: Path
) -> None:
    folder = save_model(tmp_path / "model", bert, [Pooling(D, mode, include_prompt=False)], PROMPTS, dialect)
    _check(folder, {"prompt_name": "query"}, prompt_name="query")
    _check(folder, {"prompt": "  "}, prompt="  ")  # no token, and yet the first is left out


@pytest.mark.sampled
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("end", [[], [Normalize]])
def test_vectors_are_cut_and_then_normalized(end: list[Any], dialect: str, bert: Path, tmp_path: Path) -> None:
    folder = save_model(
        tmp_path / "model", bert, [Pooling(D, "mean"), *(m() for m in end)], {"truncate_dim": 20}, dialect
    )
    assert _check(folder).shape == (len(TEXTS), 20)
    for size in (1, 7, 33):
        _check(folder, {"truncate_dim": size}, dimensions=size)
        unit = _check(folder, {"truncate_dim": size, "normalize_embeddings": True}, dimensions=size, normalize=True)
        assert np.abs(np.linalg.norm(unit, axis=1) - 1).max() < 1e-6


@pytest.mark.sampled
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_models_own_limit_cuts_texts(dialect: str, bert: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", bert, [Pooling(D, "mean")], {"max_seq_length": 6}, dialect)
    found = _check(folder)
    assert _apart(found[-1:], found[-3:-2]) < 1e-5


@pytest.mark.sampled
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("lower", [False, True])
def test_texts_are_lower_cased_where_the_model_says_so(lower: bool, dialect: str, tmp_path: Path) -> None:
    cased = save_bert(tmp_path / "cased", lower=False)
    folder = save_model(tmp_path / "model", cased, [Pooling(D, "mean")], {"do_lower_case": lower}, dialect)
    # Not read from the folder: what transformers 5 reads is no longer lower-cased when version 6 has saved it.
    saved = st.SentenceTransformer(modules=[Transformer(str(cased), do_lower_case=lower), Pooling(D)], device="cpu")
    found = mlxbert.embed(mlxbert.load(folder, dtype="float32"), TEXTS)
    assert _apart(found, saved.encode(TEXTS)) <= BOUND
    if dialect != "version 6":
        _check(folder)


def test_a_bare_checkpoint_is_mean_pooled(bert: Path) -> None:
    _check(bert)


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "least"), [("float16", 0.999), ("bfloat16", 0.99)])
def test_halves_point_the_same_way(dtype: str, least: float, bert: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", bert, STACKS["Dense, LayerNorm, Normalize"](), {}, "version 6")
    expected = _check(folder)
    found = mlxbert.embed(mlxbert.load(folder, dtype=dtype), TEXTS)
    cosines = (found * expected).sum(axis=1)
    assert least <= cosines.min() and np.abs(found - expected).max() > 1e-5


_WIDTH, _NEAR = 30, 1e-5
_LONG = [
    "the cat sat on the mat .",
    "",
    "A dog in the store, he bought milk. " * 19,
    "中文 tokyo 😀 the\ncat  é",
    "dog",
]
_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_SIZES = {
    "hidden_size": _WIDTH, "num_hidden_layers": 3, "intermediate_size": 41, "rms_norm_eps": 0.01,
    "initializer_range": 0.2, "max_position_embeddings": 128,
}  # fmt: skip
_GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14}
_HEADS = {"num_attention_heads": 3}
_SHARED = _HEADS | {"num_key_value_heads": 1, "hidden_act": "silu"}
_OLD = _HEADS | {"layer_norm_eps": 0.01, "hidden_act": "gelu"}
_XLM = _OLD | {"type_vocab_size": 1}
_MODERN = _HEADS | {"norm_eps": 0.01, "local_attention": 16, "global_attn_every_n_layers": 3}
_GTE = _XLM | {
    "rope_theta": 160000, "rope_scaling": None, "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
    "pack_qkv": True, "unpad_inputs": "true", "logn_attention_scale": False,
}  # fmt: skip
_PIECES = partial(published.xlm_roberta, model_type="xlm-roberta")


def _pooled(mode: str, *others: Callable[[], Any]) -> Callable[[], Modules]:
    return lambda: [Pooling(_WIDTH, mode), *(make() for make in others)]


def _plain(width: int, out: int) -> Callable[[], Any]:
    return lambda: _dense(width, out, "Identity", bias=False)


class Layout(NamedTuple):
    """A published layout."""

    classes: str  # the prefix of its classes in transformers
    tokenizer: Callable[[Path], Path]  # writes the files of its tokenizer
    facts: dict[str, Any]  # what its configuration has besides the common sizes
    modules: Callable[[], Modules]  # those after the transformer
    query: str = ""  # its prompts
    document: str = ""


LAYOUTS = {
    # Also multilingual-e5-large; its users write the prompts.
    "multilingual-e5-base": Layout("XLMRoberta", _PIECES, _XLM, _pooled("mean", Normalize), "query: ", "passage: "),
    # A BERT with pieces, whose configuration names another token for padding.
    "multilingual-e5-small": Layout(
        "Bert", _PIECES, _OLD | {"pad_token_id": 0}, _pooled("mean", Normalize), "query: ", "passage: "
    ),
    # bge-m3 and granite-embedding-278m-multilingual have no prompt.
    "snowflake-arctic-embed-l-v2.0": Layout("XLMRoberta", _PIECES, _XLM, _pooled("cls", Normalize), "query: "),
    "snowflake-arctic-embed-m-v2.0": Layout("Gte", _PIECES, _GTE, _pooled("cls", Normalize), "query: "),
    "granite-embedding-125m-english": Layout(
        "Roberta", published.jina_code, _XLM | {"max_position_embeddings": 514}, _pooled("cls", Normalize)
    ),
    "granite-embedding-english-r2": Layout("ModernBert", published.modernbert, _MODERN, _pooled("cls", Normalize)),
    "ettin-encoder": Layout("ModernBert", published.modernbert, _MODERN, _pooled("mean")),
    # Both kinds of layers rotate alike.
    "mmBERT": Layout(
        "ModernBert",
        partial(published.gemma, tokenizer_class="GemmaTokenizerFast"),
        _MODERN | {"global_rope_theta": 160000.0, "local_rope_theta": 160000.0},
        _pooled("mean"),
    ),
    "LaBSE": Layout(
        "Bert", partial(published.bert, lower=False), _OLD, _pooled("cls", lambda: _dense(_WIDTH, _WIDTH), Normalize)
    ),
    "distiluse-base-multilingual-cased-v2": Layout(
        "DistilBert",
        partial(published.bert, model_type="distilbert", lower=False),
        {"dim": _WIDTH, "n_layers": 3, "n_heads": 3, "hidden_dim": 41, "activation": "gelu"},
        _pooled("mean", lambda: _dense(_WIDTH, 21)),
    ),
    "jina-embeddings-v5-nano-retrieval": Layout(
        "EuroBert", published.eurobert, _SHARED | {"mask_token_id": 3}, _pooled("lasttoken", Normalize),
        "Query: ", "Document: ",
    ),
    "Qwen3-Embedding": Layout(
        "Qwen3", published.qwen3, _GROUPED | {"hidden_act": "silu"}, _pooled("lasttoken", Normalize), _INSTRUCTION
    ),
    "gte-Qwen2-instruct": Layout(
        "Qwen2", published.qwen3, _SHARED | {"is_causal": False}, _pooled("lasttoken", Normalize), _INSTRUCTION + " "
    ),
    "embeddinggemma": Layout(
        "Gemma3Text",
        published.gemma,
        _GROUPED | {"use_bidirectional_attention": True, "sliding_window": 16, "query_pre_attn_scalar": 37},
        _pooled("mean", _plain(_WIDTH, 64), _plain(64, _WIDTH), Normalize),
        "task: search result | query: ", "title: none | text: ",
    ),
}  # fmt: skip


def _opened(folder: Path) -> Any:
    return st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.mark.sampled(*LAYOUTS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts_have_the_same_vectors_also_when_they_are_saved(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    made = layout.tokenizer(tmp_path / "made")
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    torch.manual_seed(4)
    facts = {"pad_token_id": tokenizer.pad_token_id, **_SIZES, **layout.facts, "vocab_size": len(tokenizer)}
    config = getattr(transformers, f"{layout.classes}Config")(**facts)
    model = getattr(transformers, f"{layout.classes}Model")(config).eval()
    _shake(model)
    (made / "config.json").unlink()
    model.save_pretrained(made)
    modules = [Transformer(str(made), max_seq_length=100), *layout.modules()]
    prompts = {"query": layout.query, "document": layout.document}
    st.SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(tmp_path / "saved"))
    theirs, ours = _opened(tmp_path / "saved"), mlxbert.load(tmp_path / "saved", task="embed", dtype="float32")
    ours.save(tmp_path / "again")
    again, kinds = _opened(tmp_path / "again"), list[Any](prompts)
    for kind in kinds:
        for size in (None, 16):
            wanted = theirs.encode(_LONG, prompt_name=kind, truncate_dim=size, normalize_embeddings=True)
            found = mlxbert.embed(ours, _LONG, kind=kind, dimensions=size, normalize=True)
            assert np.abs(found - wanted).max() <= _NEAR
        alone = np.stack([mlxbert.embed(ours, text, kind=kind, dimensions=16, normalize=True) for text in _LONG])
        assert np.abs(alone - found).max() <= _NEAR
        assert np.array_equal(again.encode(_LONG, prompt_name=kind), theirs.encode(_LONG, prompt_name=kind))


@pytest.mark.sampled
@pytest.mark.parametrize("activation", ["torch.nn.modules.linear.Identity", None])
def test_a_cross_encoder_has_the_same_scores_in_the_same_order(activation: str | None, tmp_path: Path) -> None:
    """ms-marco-MiniLM: a BERT with one class, whose configuration names the activation; newer ones have Identity."""
    published.bert(tmp_path)
    torch.manual_seed(4)
    named = {"sentence_transformers": {"activation_fn": activation, "version": "4.0.1"}} if activation else {}
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(tmp_path))
    config = transformers.BertConfig(**_SIZES | _OLD | named, vocab_size=vocabulary, id2label={0: "LABEL_0"})
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    query, *texts = _LONG
    theirs = st.CrossEncoder(str(tmp_path), device="cpu", local_files_only=True).rank(query, texts)
    found = mlxbert.rerank(mlxbert.load(tmp_path, task="classify", dtype="float32"), query, texts)
    assert [one.index for one in found] == [row["corpus_id"] for row in theirs]
    assert np.ptp([row["score"] for row in theirs]) > 100 * _NEAR
    assert all(abs(one.score - row["score"]) <= _NEAR for one, row in zip(found, theirs, strict=True))


MOST = 260
QUERY = "Who sat on the mat?"
PASSAGES = [
    "the cat sat on the mat .",
    *_LONG[1:3],
    "\nA dog in the store, he bought milk. ",
    *_LONG[3:],
    "(dog)",
    "5 dogs",
]
INSTRUCTION = "Find pets:\n"


def make(folder: Path, *, tied: bool = True, dtype: str = "float32") -> Path:
    """A causal model as the first release has it, with the template of today."""
    published.qwen3_reranker(folder)
    (folder / "config.json").unlink()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(4)
    facts: dict[str, Any] = _SIZES | _GROUPED
    facts |= {"hidden_size": 32, "max_position_embeddings": 512, "tie_word_embeddings": tied}
    facts |= {"vocab_size": len(tokenizer), "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1}
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**facts)).eval()
    _shake(model)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def limited(folder: Path) -> Path:
    """The folder, whose tokenizer takes as many tokens as the published layout."""
    _edit(folder / "tokenizer_config.json", lambda settings: settings | {"model_max_length": MOST})
    return folder


def in_layout(folder: Path) -> Path:
    """The same as sentence-transformers publishes it."""
    how: dict[str, Any] = {"activation_fn": torch.nn.Identity(), "max_length": MOST}
    found = st.CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": "float32"}, **how)
    found.save_pretrained(str(folder.parent / "st"))
    return folder.parent / "st"


def theirs(folder: Path, **options: Any) -> list[float]:
    model = st.CrossEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
    return [float(model.predict([(QUERY, text)], **options)[0]) for text in PASSAGES]


def ours(model: mlxbert.Model, **options: Any) -> list[float]:
    found = sorted(mlxbert.rerank(model, QUERY, PASSAGES, **options), key=lambda one: one.index)
    return [one.score for one in found]


def close(one: list[float], other: list[float]) -> None:
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= _NEAR
    assert max(one) - min(one) > 100 * _NEAR


def load(folder: Path) -> mlxbert.Model:
    return mlxbert.load(folder, task="classify", dtype="float32")


def by_the_card(folder: Path) -> list[float]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    first, last = (tokenizer.encode(text, add_special_tokens=False) for text in (before, after))
    task = "Given a web search query, retrieve relevant passages that answer the query"
    inputs = tokenizer(
        [f"<Instruct>: {task}\n<Query>: {QUERY}\n<Document>: {text}" for text in PASSAGES],
        padding=False, truncation="longest_first", return_attention_mask=False,
        max_length=MOST - len(first) - len(last),
    )  # fmt: skip
    rows = {"input_ids": [first + row + last for row in inputs["input_ids"]]}
    with torch.no_grad():
        logits = model(**tokenizer.pad(rows, padding=True, return_tensors="pt")).logits[:, -1, :]
    answers = [logits[:, tokenizer.convert_tokens_to_ids(word)] for word in ("no", "yes")]
    found: list[float] = torch.nn.functional.log_softmax(torch.stack(answers, 1), dim=1)[:, 1].exp().tolist()
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_classifier_needs_the_template_too(tied: bool, tmp_path: Path) -> None:
    made, folder = limited(make(tmp_path / "made", tied=tied)), tmp_path / "classifier"
    causal = transformers.Qwen3ForCausalLM.from_pretrained(made)
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    model = transformers.Qwen3ForSequenceClassification.from_pretrained(made, num_labels=1)
    model.config.pad_token_id = tokenizer.pad_token_id
    yes, no = (causal.lm_head.weight[tokenizer.convert_tokens_to_ids(word)] for word in ("yes", "no"))
    with torch.no_grad():
        model.score.weight[0] = yes - no
    for one in (model, tokenizer):
        one.save_pretrained(folder)
    close(ours(load(limited(folder))), theirs(folder))
    close(ours(load(folder)), by_the_card(made))
    (folder / "chat_template.jinja").unlink()
    if tied:
        with pytest.raises(CheckpointError, match="no chat template"):
            load(folder)


@pytest.mark.parametrize(
    ("tied", "dtype", "published"),
    [(True, "float32", True), (False, "bfloat16", True), (True, "float32", False), (False, "float32", False)],
)
def test_scores_are_the_same_also_when_they_are_written(
    tied: bool, dtype: str, published: bool, tmp_path: Path
) -> None:
    folder = make(tmp_path / "made", tied=tied, dtype=dtype)
    folder = limited(in_layout(folder) if published else folder)
    wanted, model = theirs(folder), load(folder)
    assert model.tokenizer.max_length == MOST
    close(ours(model), wanted)
    if published:
        close(ours(model, prompt=INSTRUCTION), theirs(folder, prompt=INSTRUCTION))
        close([mlxbert.rerank(model, QUERY, [text])[0].score for text in PASSAGES], wanted)
    else:
        close(wanted, by_the_card(folder))
    model.save(tmp_path / "saved")
    mlxbert.convert(folder, tmp_path / "converted")
    assert (tmp_path / "converted/1_LogitScore").exists() is (folder / "1_LogitScore").is_dir() is published
    assert read_config(tmp_path / "saved")["architectures"] == ["Qwen3ForSequenceClassification"]
    for again in ("saved", "converted"):
        close(theirs(tmp_path / again), wanted)
        close(ours(load(tmp_path / again)), wanted)
    many = st.CrossEncoder(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    close(many.predict([(QUERY, text) for text in PASSAGES]).tolist(), wanted)


def test_a_quantized_reranker_ranks_alike(tmp_path: Path) -> None:
    folder = in_layout(make(tmp_path / "made", tied=False))
    mlxbert.convert(folder, tmp_path / "quantized", quantize=8, group_size=32)
    one, other = ours(load(folder)), ours(load(tmp_path / "quantized"))
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 0.1 * (max(one) - min(one))


def test_a_trained_reranker_has_the_same_scores_there(tmp_path: Path) -> None:
    folder = make(tmp_path / "made", tied=False)
    rows = enumerate(PASSAGES * 2)
    data = [{"query": QUERY, "text": text, "label": float(number % 2)} for number, text in rows if text]
    options: dict[str, Any] = {"epochs": 1, "lr": 1e-3, "batch_size": 4, "max_length": MOST}
    [*_] = mlxbert.finetune("rerank", train=data, valid=data, model=folder, output=tmp_path / "out", **options)
    limited(tmp_path / "out")
    close(ours(load(tmp_path / "out")), theirs(tmp_path / "out"))
