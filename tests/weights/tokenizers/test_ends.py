"""The special tokens around texts with a `tokenizer.json`: those of its class or of the file, and what is said."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import TokenizerError
from mlxbert.text.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.ends import SHIFT, TEMPLATES, VOCABULARIES, save_ends
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import put

ALWAYS = [name for name in VOCABULARIES if name != "AlbertTokenizer"]  # whose tokens replace those of a file
SEGMENTS = ("BertTokenizer", "DistilBertTokenizer", "AlbertTokenizer", "DebertaV2Tokenizer")
FILES = {  # what a file asks for, around A and around A and B
    "null": ("A", "AB"), "first alone": ("fA", "fAB"), "ByteLevel": ("A", "AB"), "one segment": ("fAl", "fAlBl"),
    "two segments": ("fAl", "fAlBl"), "doubled": ("fAl", "fAllBl"), "other tokens": ("mAf", "mAlBf"),
    "BertProcessing": ("fAl", "fAlBl"), "RobertaProcessing": ("fAl", "fAllBl"), "Sequence": ("Al", "AlB"),
    "nothing": ("A", "AB"),
}  # fmt: skip


def opened(folder: Path, rows: int = 100, **facts: Any) -> Tokenizer:
    return load_tokenizer(folder, tiny_config(vocab_size=rows, **facts))


def shapes(name: str, found: Tokenizer, shift: int = 0) -> tuple[str, str]:
    """What is around texts, in the letters of `FILES`; `shift` is what ids are too large by."""
    vocabulary = VOCABULARIES[name]
    tokens = {"f": vocabulary.first, "l": vocabulary.last, "m": vocabulary.mask}
    letters = {(found.token_id(token) or 0) + shift: letter for letter, token in tokens.items()}
    single, pair = (
        "".join("?" if number is None else letters.get(number, "!") for number, _ in template)
        for template in found.templates
    )
    return single.replace("?", "A"), pair.replace("?", "A", 1).replace("?", "B")


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("name", ALWAYS)
def test_a_class_replaces_the_special_tokens_of_a_file(
    name: str, pruned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = ("fAl", "fAlBl" if name in SEGMENTS else "fAllBl")
    for number, template in enumerate(TEMPLATES):
        caplog.clear()
        declared = (name, f"{name}Fast")[number % 2]
        found = opened(save_ends(tmp_path / str(number), name, template, pruned=pruned, declared=declared))
        assert shapes(name, found) == expected, template
        segments = [segment for _, segment in found.templates[1]]
        assert segments == ([0, 0, 0, 1, 1] if name in ("BertTokenizer", "DebertaV2Tokenizer") else [0] * len(segments))
        same = FILES[template] == expected and (template != "one segment" or name not in SEGMENTS)
        shifted = pruned and set("".join(FILES[template])) & set("flm")
        assert ("post_processor is" in caplog.text) == (not same or bool(shifted)), template


def test_a_file_has_precedence_over_albert(tmp_path: Path) -> None:
    for template in TEMPLATES:
        found = opened(save_ends(tmp_path / template, "AlbertTokenizer", template, pruned=False, declared=None))
        assert shapes("AlbertTokenizer", found) == (("fAl", "fAlBl") if template == "null" else FILES[template])


@pytest.mark.parametrize("declared", ["PreTrainedTokenizerFast", "TokenizersBackend", "OtherTokenizer"])
def test_without_a_class_the_file_alone_counts(declared: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, template in enumerate(TEMPLATES):
        caplog.clear()
        folder = save_ends(tmp_path / str(number), "BertTokenizer", template, pruned=False, declared=declared)
        assert shapes("BertTokenizer", opened(folder)) == FILES[template]
        assert ("no special tokens" in caplog.text) == (template == "null")


@pytest.mark.parametrize("model_type", ["modernbert", "eurobert", "neobert"])
def test_families_without_a_class_of_their_own_use_the_file(model_type: str, tmp_path: Path) -> None:
    declared = "BertTokenizer" if model_type == "modernbert" else None
    folder = save_ends(tmp_path, "BertTokenizer", "first alone", pruned=False, declared=declared)
    put(folder, {"config.json": {"model_type": model_type}})
    assert shapes("BertTokenizer", opened(folder)) == ("fA", "fAB")


def test_ids_of_another_vocabulary_are_said_and_those_without_an_embedding_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_ends(tmp_path, "BertTokenizer", "one segment", pruned=True, declared="PreTrainedTokenizerFast")
    found = opened(folder)
    assert shapes("BertTokenizer", found, SHIFT) == FILES["one segment"]
    assert re.search(rf"\[CLS\] with the id {2 + SHIFT}.* 2 ", caplog.text)
    with pytest.raises(TokenizerError, match=rf"id {3 + SHIFT},.* {3 + SHIFT} word embeddings"):
        opened(folder, rows=3 + SHIFT)
    opened(save_ends(tmp_path / "class", "BertTokenizer", "one segment", pruned=True, declared=None), rows=3 + SHIFT)


def test_a_vocabulary_of_another_kind_than_the_class_has_is_used_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_ends(tmp_path, "RobertaTokenizer", "first alone", pruned=False, declared="BertTokenizer")
    assert shapes("RobertaTokenizer", opened(folder)) == ("fA", "fAB")
    assert "BPE" in caplog.text and "WordPiece" in caplog.text


def test_a_normalizer_and_splits_that_roberta_does_not_have_are_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_ends(tmp_path, "RobertaTokenizer", "RobertaProcessing", pruned=False, declared="RobertaTokenizer")
    before = opened(folder).pieces("Paris the")
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    saved["normalizer"] = {"type": "Lowercase"}
    saved["pre_tokenizer"]["add_prefix_space"] = True
    put(folder, {"tokenizer.json": saved})
    caplog.clear()
    assert opened(folder).pieces("Paris the") == before
    assert "normalizer is Lowercase, but null" in caplog.text and "pre_tokenizer is ByteLevel" in caplog.text


@pytest.mark.parametrize(
    ("declared", "settings", "types", "segment", "said"),
    [
        ("BertTokenizer", {}, 2, 1, False),
        ("BertTokenizer", {"model_input_names": ["input_ids", "attention_mask"]}, 2, 0, False),
        ("DistilBertTokenizer", {}, 2, 0, False),
        ("AlbertTokenizer", {}, 2, 1, True),
        ("PreTrainedTokenizerFast", {"model_input_names": ["input_ids", "token_type_ids"]}, 2, 1, False),
        ("PreTrainedTokenizerFast", {}, 2, 1, True),
        ("PreTrainedTokenizerFast", {}, 1, 0, False),
    ],
)
def test_a_model_gets_segments_where_the_files_or_the_class_say_so(
    declared: str,
    settings: dict[str, Any],
    types: int,
    segment: int,
    said: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = declared if declared in VOCABULARIES else "BertTokenizer"
    folder = save_ends(tmp_path, name, "two segments", pruned=False, declared=declared, **settings)
    found = opened(folder, type_vocab_size=types)
    found.encode("the")
    assert not caplog.records
    assert [found.encode("the", "cat").token_type_ids[-1] for _ in range(2)] == [segment] * 2
    assert len(caplog.records) == said


def test_input_names_that_are_no_list_are_refused(tmp_path: Path) -> None:
    folder = save_ends(
        tmp_path, "BertTokenizer", "null", pruned=False, declared=None, model_input_names="token_type_ids"
    )
    with pytest.raises(TokenizerError, match="model_input_names is 'token_type_ids', expected a list"):
        opened(folder)
