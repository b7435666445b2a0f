"""Steps of a tokenizer.json, those of its class, and settings: which of them count, and what is said.

Slow tests compare tokens with transformers, and vectors with sentence-transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import mlxbert
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer

TEXT = "The Café 中文 cat's"
LOWERED = ["the", "cafe", "中", "文", "cat", "'", "s"]
CASED = ["The", "Café", "中", "文", "cat", "'", "s"]
STEPS: dict[str, normalizers.Normalizer | None] = {
    "null": None,
    "Lowercase": normalizers.Lowercase(),
    "Sequence": normalizers.Sequence([normalizers.NFC(), normalizers.BertNormalizer()]),
}


def save_steps(
    folder: Path, normalizer: normalizers.Normalizer | None, splits: pre_tokenizers.PreTokenizer | None, **settings: Any
) -> Path:
    """A `tokenizer.json` with these steps, in which the words of `TEXT` are tokens."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LOWERED, "The", "Café", "中文", "cat's"]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    for part, step in (("normalizer", normalizer), ("pre_tokenizer", splits)):
        if step is not None:
            setattr(tokenizer, part, step)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def split(folder: Path) -> list[str]:
    """How `TEXT` is split."""
    return read_tokenizer(folder).tokenizer.encode(TEXT, add_special_tokens=False).tokens


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("settings", "expected"), [({}, LOWERED), ({"do_lower_case": False}, CASED)])
@pytest.mark.parametrize("name", [None, "BertTokenizer", "BertTokenizerFast"])
def test_other_steps_than_those_of_the_class_are_replaced_and_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    step: str,
    settings: dict[str, Any],
    expected: list[str],
    name: str | None,
) -> None:
    for splits in (pre_tokenizers.BertPreTokenizer(), pre_tokenizers.WhitespaceSplit(), None):
        caplog.clear()
        assert split(save_steps(tmp_path, STEPS[step], splits, **settings, tokenizer_class=name)) == expected
        assert f"normalizer is {step}" in caplog.text
        assert ("pre_tokenizer is" in caplog.text) == (type(splits) is not pre_tokenizers.BertPreTokenizer)


def test_a_file_of_a_generic_class_is_read_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("PreTrainedTokenizerFast", "TokenizersBackend", "OtherTokenizer"):
        given: dict[str, Any] = {"tokenizer_class": name, "do_lower_case": True}
        splits = pre_tokenizers.WhitespaceSplit()
        assert split(save_steps(tmp_path, None, splits, **given)) == ["The", "Café", "中文", "cat's"]
        cased = normalizers.BertNormalizer(lowercase=False)
        assert split(save_steps(tmp_path, cased, pre_tokenizers.BertPreTokenizer(), **given)) == CASED
    assert not caplog.records


def test_a_cased_file_without_settings_is_not_lower_cased_which_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cased, splits = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    assert split(save_steps(tmp_path, cased, splits, do_lower_case=False)) == CASED and not caplog.records
    assert split(save_steps(tmp_path, cased, splits)) == CASED
    assert "do_lower_case" in caplog.text


@pytest.mark.parametrize("key", ["padding_side", "truncation_side"])
def test_sides_that_are_not_followed_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str) -> None:
    steps = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    right: dict[str, Any] = {key: "right"}
    read_tokenizer(save_steps(tmp_path, *steps, **right))
    assert not caplog.records
    left: dict[str, Any] = {key: "left"}
    read_tokenizer(save_steps(tmp_path, *steps, **left))
    assert f"{key} is left" in caplog.text


STEPS_OF_BERT = {
    "lower": normalizers.BertNormalizer(),
    "cased": normalizers.BertNormalizer(lowercase=False),
}
SPLITS = {"bert": pre_tokenizers.BertPreTokenizer(), "null": None, "spaces": pre_tokenizers.WhitespaceSplit()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [None, "BertTokenizer", "MPNetTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"]
)
@pytest.mark.parametrize("lower", [None, True, False])
def test_tokens_are_those_of_transformers(name: str | None, lower: bool | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("AlbertTokenizer", "albert"), ("DebertaV2Tokenizer", "deberta-v2")])
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"do_lower_case": False, "keep_accents": True}])
def test_a_null_normalizer_of_pieces_is_that_of_the_class(
    name: str, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
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


TEXTS = ["The cat sat", "a dog in the store , he bought milk", "Paris", "the man sat on the mat in THE store"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_padding_at_the_left_makes_vectors_depend_on_the_batch_elsewhere(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", minversion="6.0")
    from tests.weights.test_sentence_transformers_live import STACKS, save_bert, save_model, st

    path = save_bert(tmp_path / "bert") / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"padding_side": "left"}))
    folder = save_model(tmp_path / "st", path.parent, STACKS[mode](), {}, "version 6")
    ours, theirs = (
        mlxbert.load(folder, task="embed", dtype="float32"),
        st.SentenceTransformer(str(folder), device="cpu"),
    )
    assert theirs.tokenizer.padding_side == "left"
    alone = np.stack([theirs.encode(text) for text in TEXTS])
    assert np.abs(theirs.encode(TEXTS) - alone).max() > 0.1
    assert np.abs(mlxbert.embed(ours, TEXTS) - alone).max() < 1e-5
