"""The program on folders that transformers saved, of every family, with original vocabularies: its own numbers."""

import json
import os
import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.program import call

FOLDER = Path(os.environ.get("MLXBERT_TEST_TOKENIZERS", "/none"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sampled,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="MLXBERT_TEST_TOKENIZERS names no folder of vocabularies"),
]

TEXTS = [
    "Paris is the [MASK] of France.",
    "[MASK] isst gern Käse, aber nicht immer.",
    "They went to the [MASK], and then \u2013 home.",
    "北京 是 [MASK] 的 首都",
]
SMALL = {"num_hidden_layers": 2, "initializer_range": 0.2, "max_position_embeddings": 66}
WIDTHS = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 80}
DISTIL = {"dim": 48, "n_heads": 3, "n_layers": 2, "hidden_dim": 80}
DEBERTA = {
    **{"relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    **{"pos_att_type": "p2c|c2p", "position_biased_input": False},
}


@dataclass(frozen=True)
class Saved:
    """A family: transformers' classes, the folder of its vocabulary, and what that is called here and there."""

    classes: str
    tokenizer: str
    vocabulary: str
    files: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)


_WORDS, _BYTES = {"vocab.txt": "vocab.txt"}, {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}
_XLM_R = {"sentencepiece.bpe.model.rebuilt": "sentencepiece.bpe.model"}
_FIXTURE = "test_sentencepiece.model"
FAMILIES = {
    "bert": Saved("Bert", "BertTokenizer", "bert-base-uncased", _WORDS),
    "bert cased": Saved("Bert", "BertTokenizer", "bert-base-cased", _WORDS),
    "bert multilingual": Saved("Bert", "BertTokenizer", "bert-base-multilingual-cased", _WORDS),
    "bert chinese": Saved("Bert", "BertTokenizer", "bert-base-chinese", _WORDS),
    "roberta": Saved("Roberta", "RobertaTokenizer", "roberta-base", _BYTES),
    "xlm-roberta": Saved("XLMRoberta", "XLMRobertaTokenizer", "xlm-roberta-base", _XLM_R),
    "camembert": Saved(
        "Camembert", "CamembertTokenizer", "sentencepiece-fixtures", {_FIXTURE: "sentencepiece.bpe.model"}
    ),
    "distilbert": Saved("DistilBert", "DistilBertTokenizer", "bert-base-uncased", _WORDS, DISTIL),
    "albert": Saved("Albert", "AlbertTokenizer", "albert-base-v2", {"spiece.model": "spiece.model"}),
    "electra": Saved("Electra", "ElectraTokenizer", "bert-base-uncased", _WORDS, {"embedding_size": 32}),
    "mpnet": Saved("MPNet", "MPNetTokenizer", "bert-base-uncased", _WORDS),
    "modernbert": Saved("ModernBert", "BertTokenizer", "bert-base-cased", _WORDS, {"local_attention": 16}),
    "nomic": Saved("NomicBert", "BertTokenizer", "bert-base-uncased", _WORDS),
    "gte": Saved("Gte", "XLMRobertaTokenizer", "xlm-roberta-base", _XLM_R),
    "deberta": Saved("DebertaV2", "DebertaV2Tokenizer", "sentencepiece-fixtures", {_FIXTURE: "spm.model"}, DEBERTA),
}


def _vocabulary(saved: Saved, folder: Path) -> Path:
    folder.mkdir()
    for source, name in saved.files.items():
        shutil.copyfile(FOLDER / saved.vocabulary / source, folder / name)
    if saved.classes == "MPNet":  # there is no file of its own: BERT's words behind its special tokens
        words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
        special = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
        (folder / "vocab.txt").write_text("\n".join(special) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A folder as transformers saves it, its model and its tokenizer."""
    torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
    transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
    family: Saved = FAMILIES[request.param]
    parent = tmp_path_factory.mktemp("saved")
    with warnings.catch_warnings(action="ignore"):
        tokenizer = getattr(transformers, family.tokenizer).from_pretrained(_vocabulary(family, parent / "vocabulary"))
    torch.manual_seed(5)
    widths = {} if "dim" in family.facts else WIDTHS
    special = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    config = getattr(transformers, f"{family.classes}Config")(**SMALL | widths | special | family.facts)
    model = getattr(transformers, f"{family.classes}ForMaskedLM")(config).eval()
    folder = parent / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


def encode(tokenizer: Any, text: str) -> dict[str, Any]:
    """The inputs of transformers; the text has its own mask token."""
    return dict(tokenizer(text.replace("[MASK]", tokenizer.mask_token), return_tensors="pt"))


def test_numbers_are_those_of_transformers(saved: tuple[Path, Any, Any]) -> None:
    import torch

    folder, model, tokenizer = saved
    filled = call("fill-mask", *TEXTS, "--model", str(folder), "--dtype", "float32")
    assert filled.status == 0 and len(filled.lines) == len(TEXTS)
    for text, line in zip(TEXTS, filled.lines, strict=True):
        inputs = encode(tokenizer, text)
        (place,) = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero(as_tuple=True)
        with torch.no_grad():
            best = model(**inputs).logits[0, place[0]].softmax(-1).topk(5)
        (mask,) = line["masks"]
        assert mask["position"] == int(place[0]) and text[mask["start"] : mask["end"]] == "[MASK]"
        assert [fill["token_id"] for fill in mask["fills"]] == best.indices.tolist()
        assert [fill["token"] for fill in mask["fills"]] == [tokenizer.decode([int(word)]) for word in best.indices]
        assert [fill["score"] for fill in mask["fills"]] == pytest.approx(best.values.tolist(), abs=1e-5)
    texts = [text.replace("[MASK]", "town") for text in TEXTS]
    embedded = call("embed", *texts, "--model", str(folder), "--dtype", "float32", "--no-normalize")
    for text, line in zip(texts, embedded.lines, strict=True):
        with torch.no_grad():
            wanted = model.base_model(**encode(tokenizer, text)).last_hidden_state[0].mean(0).numpy()
        assert np.abs(np.array(line["embedding"]) - wanted).max() <= 2e-5 * max(1, np.abs(wanted).max())
    (found,) = call("inspect", "--json", str(folder)).lines
    assert found["family"] == json.loads((folder / "config.json").read_text())["model_type"]
    assert found["parameters"]["total"] == sum(parameter.numel() for parameter in model.parameters())
