"""Steps of a tokenizer.json and settings next to transformers; padding at the left next to sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

import mlxbert
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.weights.tokenizers.test_steps import CASED, LOWERED, STEPS, TEXT, save_steps, split

pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="live parity needs transformers")
st = pytest.importorskip("sentence_transformers", minversion="6.0", reason="live parity needs sentence-transformers")
from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402

from tests.weights.test_sentence_transformers_live import D, save_bert  # noqa: E402

pytestmark = [pytest.mark.slow]

STEPS_OF_BERT = {
    "lower": normalizers.BertNormalizer(),
    "cased": normalizers.BertNormalizer(lowercase=False),
}
SPLITS = {"bert": pre_tokenizers.BertPreTokenizer(), "null": None, "spaces": pre_tokenizers.WhitespaceSplit()}


@pytest.mark.parametrize(
    "name", [None, "BertTokenizer", "MPNetTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"]
)
@pytest.mark.parametrize("lower", [None, True, False])
def test_tokens_are_those_of_transformers(name: str | None, lower: bool | None, tmp_path: Path) -> None:
    special = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
    settings = {"tokenizer_class": name, "do_lower_case": lower}
    given = {key: value for key, value in settings.items() if value is not None} | special
    for step, normalizer in (STEPS | STEPS_OF_BERT).items():
        for splits in SPLITS.values():
            folder = save_steps(tmp_path, normalizer, splits, **given)
            found, expected = split(folder), transformers.AutoTokenizer.from_pretrained(folder).tokenize(TEXT)
            if step == "cased" and lower is None and name in (None, "BertTokenizer", "MPNetTokenizer"):
                assert (found, expected) == (CASED, LOWERED)  # what differs on purpose
            else:
                assert found == expected, (step, splits)


@pytest.mark.parametrize(("name", "kind"), [("AlbertTokenizer", "albert"), ("DebertaV2Tokenizer", "deberta-v2")])
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"do_lower_case": False, "keep_accents": True}])
def test_a_null_normalizer_of_pieces_is_that_of_the_class(
    name: str, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    text = f"{TEXT}  ``x''  e\u0301 "
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [
        *((token, 0.0) for token in special),
        *((letter, -3.0) for letter in sorted({*'▁"e\u0301é', *text, *text.lower()})),
    ]
    getattr(transformers, name)(vocab=pieces, **settings).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"normalizer": None}), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)(text, add_special_tokens=False)["input_ids"]
    assert read_tokenizer(tmp_path).tokenizer.encode(text, add_special_tokens=False).ids == expected


def _models(folder: Path, mode: str, **settings: Any) -> tuple[mlxbert.Model, Any]:
    bert = save_bert(folder / "bert")
    path = bert / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | settings), encoding="utf-8")
    theirs = st.SentenceTransformer(modules=[Transformer(str(bert)), Pooling(D, pooling_mode=mode)], device="cpu")
    theirs.save(str(folder / "st"))
    opened = st.SentenceTransformer(str(folder / "st"), device="cpu")
    return mlxbert.load(folder / "st", task="embed", dtype="float32", device="cpu"), opened


TEXTS = ["The cat sat", "a dog in the store , he bought milk", "Paris", "the man sat on the mat in THE store"]


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_padding_at_the_left_makes_vectors_depend_on_the_batch_elsewhere(mode: str, tmp_path: Path) -> None:
    ours, theirs = _models(tmp_path, mode, padding_side="left")
    assert theirs.tokenizer.padding_side == "left"
    alone = np.stack([theirs.encode(text) for text in TEXTS])
    assert np.abs(theirs.encode(TEXTS) - alone).max() > 0.1
    assert np.abs(mlxbert.embed(ours, TEXTS) - alone).max() < 1e-5
