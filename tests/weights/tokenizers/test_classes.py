"""Vocabularies without a tokenizer.json: each class's files, layout of ids, special tokens and segments."""

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlxbert.errors import TokenizerError
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.sentencepiece_tokenizer import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    read_sentencepiece,
)
from mlxbert.weights.tokenizers.tokenizer_files import TokenizerFiles, read_tokenizer
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import BYTE_TOKENS, HEAD, SENTENCES, byte_files, pieces_file, plain, put, trained

FAIRSEQ = "sentencepiece.bpe.model"
TEXTS = [
    *SENTENCES,
    "",
    "  the   cats \t in\nParis ",
    "Tokyo 2,500, 2019, x",
    "cafe\u0301 \ufb01ne \u2460 \u3000(no)-space",
    "\U0001f642\u4e2d\u6587",
    "x" * 300,
]
PIECES = plain("\u2581", "\u2581the", "\u2581P", "aris", "\u2581cat", "s", "a", "r", "i", "t", "h", "e", "P", "c")


def files(folder: Path, content: dict[str, Any], name: str | None = None, **settings: Any) -> TokenizerFiles:
    """The tokenizer of a folder with these files, and a class if one is named."""
    named = {} if name is None else {"tokenizer_class": name}
    return read_tokenizer(put(folder, {**content, "tokenizer_config.json": {**named, **settings}}))


def ids(found: TokenizerFiles, text: str, pair: str | None = None) -> list[int]:
    return list(found.tokenizer.encode(text, pair).ids)


def test_byte_pairs_are_merged_in_the_order_of_the_lines(tmp_path: Path) -> None:
    found = files(tmp_path, byte_files(), "RobertaTokenizer")
    encoding = found.tokenizer.encode("Paris the\u00e9 ##")
    assert encoding.tokens == ["<s>", "Paris", "\u0120the", "\u00c3\u00a9", "\u0120", "##", "</s>"]
    assert encoding.offsets == [(0, 0), (0, 5), (6, 9), (9, 10), (11, 11), (11, 13), (0, 0)]
    assert [BYTE_TOKENS[number] for number in encoding.ids[1:3]] == ["Paris", "\u0120the"]


def test_roberta_has_two_separators_and_one_segment(tmp_path: Path) -> None:
    encoding = files(tmp_path, byte_files(), "RobertaTokenizerFast").tokenizer.encode("Paris", "the")
    assert encoding.tokens == ["<s>", "Paris", "</s>", "</s>", "th", "e", "</s>"]
    assert not any(encoding.type_ids)


def test_the_mask_of_roberta_takes_the_space_before_it(tmp_path: Path) -> None:
    found = files(tmp_path, byte_files(), "RobertaTokenizer")
    assert found.tokenizer.encode("Paris <mask> the", add_special_tokens=False).tokens == [
        "Paris",
        " <mask>",
        "\u0120the",
    ]
    plainly = {"content": "<mask>", "lstrip": False}
    kept = files(tmp_path, byte_files(), "RobertaTokenizer", mask_token=plainly)
    assert kept.tokenizer.encode("Paris <mask>", add_special_tokens=False).tokens == ["Paris", "\u0120", "<mask>"]


def test_a_space_is_put_before_texts_where_the_settings_say_so(tmp_path: Path) -> None:
    found = files(tmp_path, byte_files(), "RobertaTokenizer", add_prefix_space=True)
    assert found.tokenizer.encode("the").tokens == ["<s>", "\u0120the", "</s>"]
    found.tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = files(tmp_path, {}, "RobertaTokenizer", add_prefix_space=False)
    assert again.tokenizer.encode("the").tokens == ["<s>", "th", "e", "</s>"]


def test_mpnet_is_word_pieces_with_the_special_tokens_of_roberta(tmp_path: Path) -> None:
    vocab = "\n".join(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "the", "cat", "##s", "<mask>"])
    found = files(tmp_path, {"vocab.txt": vocab}, "MPNetTokenizer")
    encoding = found.tokenizer.encode("The cats <mask>", "zebra")
    assert encoding.ids == [0, 5, 6, 7, 8, 2, 2, 4, 2] and not any(encoding.type_ids)
    assert encoding.offsets[4] == (9, 15)
    assert found.special == {"unk": "[UNK]", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}


@pytest.mark.parametrize(
    ("name", "file", "shift", "unknown", "first"),
    [("XLMRobertaTokenizer", FAIRSEQ, 1, 3, 0), ("CamembertTokenizer", FAIRSEQ, 4, 3, 5)],
)
def test_fairseq_puts_its_own_tokens_before_the_pieces(
    tmp_path: Path, name: str, file: str, shift: int, unknown: int, first: int
) -> None:
    found = files(tmp_path, {file: pieces_file([*HEAD, *PIECES])}, name)
    place = {text: number + 3 + shift for number, (text, *_) in enumerate(PIECES)}
    last, end = len(PIECES) + 3 + shift, 2 if first == 0 else 6
    assert ids(found, "the Paris") == [first, place["\u2581the"], place["\u2581P"], place["aris"], end]
    assert ids(found, "\u4e2d", "a") == [first, place["\u2581"], unknown, end, end, place["\u2581"], place["a"], end]
    assert found.tokenizer.token_to_id("<mask>") == last and found.tokenizer.token_to_id("<pad>") == 1
    assert ids(found, "the <mask>")[1:-1] == [place["\u2581the"], last]
    assert not any(found.tokenizer.encode("a", "a").type_ids)


def test_albert_lower_cases_drops_accents_and_replaces_quotes(tmp_path: Path) -> None:
    head = [("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), *((f"[{name}]", 0.0, CONTROL) for name in ("CLS", "SEP"))]
    entries = [*head, ("[MASK]", 0.0, CONTROL), *plain("\u2581caf", "e", "\u00e9", '"', "\u2581", "C", "\u2581C", "af")]
    content = {"spiece.model": pieces_file(entries)}
    found = files(tmp_path, content, "AlbertTokenizer")
    encoding = found.tokenizer.encode("``e''", "Caf\u00e9")
    assert encoding.tokens == ["[CLS]", "\u2581", '"', "e", '"', "[SEP]", "\u2581caf", "e", "[SEP]"]
    assert encoding.type_ids == [0] * 6 + [1] * 3
    cased = files(tmp_path, content, "AlbertTokenizer", do_lower_case=False, keep_accents=True)
    assert cased.tokenizer.encode("Caf\u00e9").tokens == ["[CLS]", "\u2581C", "af", "\u00e9", "[SEP]"]


def test_deberta_keeps_the_ids_of_its_model_and_puts_the_mask_behind(tmp_path: Path) -> None:
    head = [("[PAD]", 0.0, CONTROL), ("[CLS]", 0.0, CONTROL), ("[SEP]", 0.0, CONTROL), ("[UNK]", 0.0, UNKNOWN)]
    found = files(tmp_path, {"spm.model": pieces_file([*head, *PIECES])}, "DebertaV2Tokenizer")
    the = 4 + [text for text, *_ in PIECES].index("\u2581the")
    encoding = found.tokenizer.encode("the [MASK]", "\u4e2d the")
    assert encoding.ids == [1, the, 4 + len(PIECES), 2, 4, 3, the, 2]
    assert encoding.type_ids == [0, 0, 0, 0, 1, 1, 1, 1]
    lower = files(tmp_path, {}, "DebertaV2Tokenizer", do_lower_case=True, split_by_punct=True)
    assert lower.tokenizer.encode("THE").ids == [1, the, 2]
    assert lower.tokenizer.encode("a.a").tokens == ["[CLS]", "\u2581", "a", "\u2581", ".", "\u2581", "a", "[SEP]"]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    ("name", "file", "shift"),
    [("XLMRobertaTokenizer", FAIRSEQ, 1), ("CamembertTokenizer", FAIRSEQ, 4), ("DebertaV2Tokenizer", "spm.model", 0)],
)
def test_pieces_are_those_of_sentencepiece(tmp_path: Path, kind: str, name: str, file: str, shift: int) -> None:
    found = files(tmp_path, {file: trained(kind)}, name)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    unknown = found.tokenizer.token_to_id("<unk>")
    for text in TEXTS:
        want = [unknown if number == 0 else number + shift for number in theirs.encode(text)]
        assert found.tokenizer.encode(text, add_special_tokens=False).ids == want, repr(text)


def test_user_defined_symbols_win_over_pieces_and_cut_nothing(tmp_path: Path) -> None:
    model = trained("unigram", 100, "(,),-", "[CLS],[SEP],[MASK],<pad>")
    assert USER_DEFINED in read_sentencepiece(put(tmp_path, {"m": model}) / "m").types.values()
    found = files(tmp_path, {"spiece.model": model}, "AlbertTokenizer", do_lower_case=False, keep_accents=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in ("the (cold)milk", "a-b -- (the)cats", "(Paris)", *SENTENCES[:2]):
        want = [piece for piece in theirs.encode(text, out_type=str)]
        assert "".join(found.tokenizer.encode(text, add_special_tokens=False).tokens) == "".join(want)
        if "2019," not in text and "2,500" not in text:
            assert found.tokenizer.encode(text, add_special_tokens=False).tokens == want, repr(text)


@pytest.mark.parametrize("score", [-1.1, -0.9, -0.7])
def test_user_defined_symbols_weigh_what_sentencepiece_gives_them(tmp_path: Path, score: float) -> None:
    for symbol in ("(", "\u20ac", "((("):
        entries = [*HEAD, (symbol, -5.0, USER_DEFINED), *plain("\u2581a", "b"), (f"\u2581a{symbol}", score, NORMAL)]
        content = pieces_file(entries)
        found = files(tmp_path, {FAIRSEQ: content}, "XLMRobertaTokenizer")
        theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
        assert found.tokenizer.encode(f"a{symbol}b").tokens[1:-1] == theirs.encode(f"a{symbol}b", out_type=str)


def test_albert_takes_a_comma_from_the_digits_before_it(tmp_path: Path) -> None:
    head = [("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), *((f"[{name}]", 0.0, CONTROL) for name in ("CLS", "SEP"))]
    entries = [*head, *plain("\u25812019,", "\u25812019", ",", "\u2581so,", "\u2581so")]
    found = files(tmp_path, {"spiece.model": pieces_file(entries)}, "AlbertTokenizer")
    assert found.tokenizer.encode("2019, so,").tokens[1:-1] == ["\u25812019", ",", "\u2581so,"]


def test_settings_of_the_model_file_count(tmp_path: Path) -> None:
    entries = [*HEAD, *plain("\u2581", "a", "\u2581a", "b")]
    for settings, text in (({3: 0}, "a b"), ({4: 0}, " a  b"), ({}, "  a  b ")):
        content = pieces_file(entries, normalizer=settings)
        found = files(tmp_path, {FAIRSEQ: content}, "XLMRobertaTokenizer")
        theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
        want = [3 if number == 0 else number + 1 for number in theirs.encode(text)]
        assert found.tokenizer.encode(text, add_special_tokens=False).ids == want, (settings, text)


@pytest.mark.parametrize(
    ("config", "settings", "tokens"),
    [
        ({"model_type": "xlm-roberta"}, {}, ["<s>", "\u2581the", "</s>"]),
        ({"model_type": "bert", "tokenizer_class": "XLMRobertaTokenizer"}, {}, ["<s>", "\u2581the", "</s>"]),
        ({"model_type": "bert"}, {"tokenizer_class": "XLMRobertaTokenizer"}, ["<s>", "\u2581the", "</s>"]),
        ({"model_type": "xlm-roberta"}, {"tokenizer_class": "PreTrainedTokenizerFast"}, ["<s>", "\u2581the", "</s>"]),
        ({"model_type": "new"}, {}, ["<s>", "\u2581the", "</s>"]),
        ({"model_type": "bert"}, {"tokenizer_class": "BertTokenizer"}, ["[CLS]", "the", "[SEP]"]),
    ],
)
def test_the_class_is_what_the_files_name_else_what_the_model_is(
    tmp_path: Path, config: dict[str, Any], settings: dict[str, Any], tokens: list[str]
) -> None:
    vocab = {"vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"])}
    content = vocab if tokens[0] == "[CLS]" else {FAIRSEQ: pieces_file([*HEAD, *PIECES])}
    put(tmp_path, {**content, "config.json": config, "tokenizer_config.json": settings})
    assert read_tokenizer(tmp_path).tokenizer.encode("the").tokens == tokens


def test_a_tokenizer_json_without_a_template_gets_that_of_its_class(tmp_path: Path) -> None:
    found = files(tmp_path, byte_files(), "RobertaTokenizer").tokenizer
    saved = json.loads(found.to_str()) | {"post_processor": None}
    read = files(tmp_path / "whole", {"tokenizer.json": saved}, "RobertaTokenizer").tokenizer
    assert read.encode("Paris", "the").tokens == found.encode("Paris", "the").tokens
    whole = files(tmp_path / "again", {"tokenizer.json": json.loads(found.to_str())})
    assert whole.special["mask"] == "<mask>" and whole.tokenizer.encode("Paris").ids == found.encode("Paris").ids


def test_special_tokens_beside_a_tokenizer_json_are_recognised(tmp_path: Path) -> None:
    found = files(tmp_path, byte_files(), "RobertaTokenizer").tokenizer
    saved = json.loads(found.to_str()) | {"added_tokens": []}
    read = files(tmp_path / "whole", {"tokenizer.json": saved}, "RobertaTokenizer").tokenizer
    assert read.encode("Paris <mask>").tokens == ["<s>", "Paris", " <mask>", "</s>"]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ({"vocab.json": byte_files()["vocab.json"]}, "RobertaTokenizer", r"no tokenizer\.json and no merges\.txt"),
        ({}, "XLMRobertaTokenizer", "no tokenizer.json and no sentencepiece.bpe.model"),
        ({"spm.model": b""}, "AlbertTokenizer", "no tokenizer.json and no spiece.model"),
        ({**byte_files(), "vocab.json": "[]"}, "RobertaTokenizer", "vocab.json: expected a JSON object"),
        ({**byte_files(), "vocab.json": {"a": 0, "b": 2}}, "RobertaTokenizer", "vocab.json: id 2 follows id 0"),
        ({**byte_files(), "vocab.json": {"a": 0, "b": 0}}, "RobertaTokenizer", "vocab.json: id 0 appears twice"),
        ({**byte_files(), "vocab.json": {"a": "0"}}, "RobertaTokenizer", "vocab.json: token 'a' has id '0'"),
        ({**byte_files(), "vocab.json": {"a": 0, "b": True}}, "RobertaTokenizer", "'b' has id True"),
        (byte_files(merges=["i n", "x y"]), "RobertaTokenizer", r"merges\.txt: .*`x` out of vocabulary"),
        (byte_files(merges=["i n", "in"]), "RobertaTokenizer", r"merges\.txt: line 3 is 'in'"),
        (byte_files(merges=["i n g"]), "RobertaTokenizer", r"merges\.txt: line 2 is 'i n g'"),
        (byte_files(BYTE_TOKENS[1:]), "RobertaTokenizer", "the cls token '<s>' is not in the vocabulary"),
        ({FAIRSEQ: pieces_file([*HEAD[::-1], *PIECES])}, "XLMRobertaTokenizer", "starts with </s> <s> <unk>, expected"),
        (
            {"spiece.model": pieces_file([*HEAD, *PIECES])},
            "AlbertTokenizer",
            r"the sep token '\[SEP\]' is not in the vocabulary",
        ),
        (
            {FAIRSEQ: pieces_file([*HEAD, *PIECES], normalizer={2: b"xy"})},
            "CamembertTokenizer",
            "model: the vocabulary is",
        ),
        ({}, 5, "tokenizer_class is 5"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused_by_name(
    tmp_path: Path, content: dict[str, Any], name: str, message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        files(tmp_path, content, name)


def test_ends_that_the_vocabulary_does_not_have_are_refused(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "XLMRobertaTokenizer", "bos_token": "[BOS]"}
    folder = put(tmp_path, {FAIRSEQ: pieces_file([*HEAD, *PIECES]), "tokenizer_config.json": settings})
    with pytest.raises(TokenizerError, match=r"the bos token '\[BOS\]' is not in the vocabulary"):
        read_tokenizer(folder)


def test_a_library_that_panics_is_an_error(tmp_path: Path) -> None:
    broken = bytes([0, 4, 0, 0]) + b"\xff\x07\x00\x00" * 256 + b"abc"  # a table of replacements that points nowhere
    folder = put(tmp_path, {FAIRSEQ: pieces_file([*HEAD, *PIECES], normalizer={2: broken})})
    put(folder, {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}})
    with pytest.raises(TokenizerError, match="damaged"):
        found = Tokenizer(read_tokenizer(folder), tiny_config(vocab_size=100))
        found.encode("".join(map(chr, range(32, 500))), overflow="truncate")


@pytest.mark.parametrize(("others", "hint"), [
    (["30k-clean.model"], "if 30k-clean.model is the vocabulary of the model, copy it to spiece.model"),
    (["a.model", "b.model"], "copy spiece.model of the model into the folder"),
    ([], "copy spiece.model of the model into the folder"),
])  # fmt: skip
def test_a_model_under_another_name_is_pointed_out(others: list[str], hint: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        files(tmp_path, dict.fromkeys(others, b""), "AlbertTokenizer")
    assert caught.value.hint == hint
