"""Steps of a tokenizer.json, those of its class, and settings: which of them count, and what is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

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
