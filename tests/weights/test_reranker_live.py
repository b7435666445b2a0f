"""Qwen3-Reranker next to sentence-transformers and transformers: small random models in its published layouts."""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import CheckpointError
from tests.helpers import published
from tests.helpers.frozen import read_config

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
st = pytest.importorskip("sentence_transformers", minversion="6.0", reason="live parity needs sentence-transformers")

pytestmark = pytest.mark.slow

BOUND = 1e-5
MOST = 260
QUERY = "Who sat on the mat?"
TEXTS = [
    "the cat sat on the mat .",
    "",
    "\nA dog in the store, he bought milk. ",
    "A dog in the store, he bought milk. " * 30,
    "  中文 tokyo 😀 the\ncat  é",
    "(dog)",
    "5 dogs",
]
INSTRUCTION = "Find pets:\n"
_SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 41, "rms_norm_eps": 0.01, "initializer_range": 0.2,
    "max_position_embeddings": 512, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14,
}  # fmt: skip


def change_json(path: Path, **changes: Any) -> Path:
    """Changes keys of a file; returns its folder."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return path.parent


def make(folder: Path, *, tied: bool = True, dtype: Any = None) -> Path:
    """A causal model as the first release has it, with the template of today."""
    published.qwen3_reranker(folder)
    (folder / "config.json").unlink()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(4)
    config = transformers.Qwen3Config(
        **_SIZES, vocab_size=len(tokenizer), tie_word_embeddings=tied, pad_token_id=None, bos_token_id=0, eos_token_id=1
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.to(dtype or torch.float32).save_pretrained(folder)
    return folder


def in_layout(folder: Path, activation: Any = None) -> Path:
    """The same as sentence-transformers publishes it."""
    found = st.CrossEncoder(
        str(folder),
        device="cpu",
        activation_fn=activation or torch.nn.Identity(),
        max_length=MOST,
        model_kwargs={"dtype": "float32"},
    )
    found.save_pretrained(str(folder.parent / "st"))
    return folder.parent / "st"


def theirs(folder: Path, query: str = QUERY, **options: Any) -> list[float]:
    model = st.CrossEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
    return [float(model.predict([(query, text)], **options)[0]) for text in TEXTS]


def ours(model: mlxbert.Model, query: str = QUERY, **options: Any) -> list[float]:
    found = sorted(mlxbert.rerank(model, query, TEXTS, **options), key=lambda one: one.index)
    return [one.score for one in found]


def close(one: list[float], other: list[float]) -> None:
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= BOUND
    assert max(one) - min(one) > 100 * BOUND


def load(folder: Path) -> mlxbert.Model:
    return mlxbert.load(folder, task="classify", dtype="float32")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_are_those_of_the_published_layout(tied: bool, dtype: str, tmp_path: Path) -> None:
    folder = in_layout(make(tmp_path / "made", tied=tied, dtype=getattr(torch, dtype)))
    assert (folder / "1_LogitScore").is_dir()
    model = load(folder)
    assert model.tokenizer.max_length == MOST
    close(ours(model), theirs(folder))
    close(ours(model, prompt=INSTRUCTION), theirs(folder, prompt=INSTRUCTION))
    alone = [mlxbert.rerank(model, QUERY, [text])[0].score for text in TEXTS]
    close(alone, ours(model))


def by_the_card(folder: Path) -> list[float]:
    """What the model card computes."""
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
        [f"<Instruct>: {task}\n<Query>: {QUERY}\n<Document>: {text}" for text in TEXTS],
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
def test_without_other_files_scores_are_the_probabilities_of_the_card(tied: bool, tmp_path: Path) -> None:
    folder = make(tmp_path / "made", tied=tied)
    change_json(folder / "tokenizer_config.json", model_max_length=MOST)
    close(ours(load(folder)), by_the_card(folder))


def classifier(folder: Path) -> Path:
    """The model as a sequence classifier."""
    causal = transformers.Qwen3ForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.Qwen3ForSequenceClassification.from_pretrained(folder, num_labels=1)
    model.config.pad_token_id = tokenizer.pad_token_id
    yes, no = (causal.lm_head.weight[tokenizer.convert_tokens_to_ids(word)] for word in ("yes", "no"))
    with torch.no_grad():
        model.score.weight[0] = yes - no
    model.save_pretrained(folder.parent / "classifier")
    tokenizer.save_pretrained(folder.parent / "classifier")
    change_json(folder.parent / "classifier/tokenizer_config.json", model_max_length=MOST)
    return folder.parent / "classifier"


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_classifier_needs_the_template_too(tied: bool, tmp_path: Path) -> None:
    folder = classifier(make(tmp_path / "made", tied=tied))
    close(ours(load(folder)), theirs(folder))
    close(ours(load(folder)), by_the_card(change_json(tmp_path / "made/tokenizer_config.json", model_max_length=MOST)))
    (folder / "chat_template.jinja").unlink()
    if tied:
        with pytest.raises(CheckpointError, match="no chat template"):
            load(folder)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("published", [True, False])
def test_what_is_written_opens_there_with_the_same_scores(tied: bool, published: bool, tmp_path: Path) -> None:
    folder = make(tmp_path / "made", tied=tied)
    folder = in_layout(folder) if published else folder
    change_json(folder / "tokenizer_config.json", model_max_length=MOST)
    wanted = theirs(folder)
    model = load(folder)
    close(ours(model), wanted)
    model.save(tmp_path / "saved")
    mlxbert.convert(folder, tmp_path / "converted")
    assert (tmp_path / "converted/1_LogitScore").exists() is published
    assert read_config(tmp_path / "saved")["architectures"] == ["Qwen3ForSequenceClassification"]
    for again in ("saved", "converted"):
        close(theirs(tmp_path / again), wanted)
        close(ours(load(tmp_path / again)), wanted)
    many = st.CrossEncoder(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    close(many.predict([(QUERY, text) for text in TEXTS]).tolist(), wanted)


@pytest.mark.parametrize("bits", [8])
def test_a_quantized_reranker_ranks_alike(bits: int, tmp_path: Path) -> None:
    folder = in_layout(make(tmp_path / "made", tied=False))
    mlxbert.convert(folder, tmp_path / "quantized", quantize=bits, group_size=32)
    one, other = ours(load(folder)), ours(load(tmp_path / "quantized"))
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 0.1 * (max(one) - min(one))


def test_a_trained_reranker_has_the_same_scores_there(tmp_path: Path) -> None:
    folder = make(tmp_path / "made", tied=False)
    data = [{"query": QUERY, "text": text, "label": float(number % 2)} for number, text in enumerate(TEXTS * 2) if text]
    options: dict[str, Any] = {"epochs": 1, "lr": 1e-3, "batch_size": 4, "max_length": MOST}
    [*_] = mlxbert.finetune("rerank", train=data, valid=data, model=folder, output=tmp_path / "out", **options)
    change_json(tmp_path / "out/tokenizer_config.json", model_max_length=MOST)
    close(ours(load(tmp_path / "out")), theirs(tmp_path / "out"))
