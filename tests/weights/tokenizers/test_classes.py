"""Vocabularies without a tokenizer.json: each class's files, ids, special tokens and segments; SentencePiece files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlxbert.errors import TokenizerError
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.sentencepiece_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)
from mlxbert.weights.tokenizers.tokenizer_files import TokenizerFiles, read_tokenizer
from tests.helpers.cases import together
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import BYTE_TOKENS, HEAD, SENTENCES, byte_files, field, pieces_file, plain, put, trained

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
    named = {} if name is None else {"tokenizer_class": name}
    return read_tokenizer(put(folder, {**content, "tokenizer_config.json": {**named, **settings}}))


def ids(found: TokenizerFiles, text: str, pair: str | None = None) -> list[int]:
    return list(found.tokenizer.encode(text, pair).ids)


def test_byte_pairs_are_merged_in_the_order_of_the_lines(tmp_path: Path) -> None:
    """Roberta has two separators and one segment."""
    found = files(tmp_path, byte_files(), "RobertaTokenizer").tokenizer
    encoding = found.encode("Paris the\u00e9 ##")
    assert encoding.tokens == ["<s>", "Paris", "\u0120the", "\u00c3\u00a9", "\u0120", "##", "</s>"]
    assert encoding.offsets == [(0, 0), (0, 5), (6, 9), (9, 10), (11, 11), (11, 13), (0, 0)]
    assert [BYTE_TOKENS[number] for number in encoding.ids[1:3]] == ["Paris", "\u0120the"]
    pair = found.encode("Paris", "the")
    assert pair.tokens == ["<s>", "Paris", "</s>", "</s>", "th", "e", "</s>"] and not any(pair.type_ids)


def test_the_mask_of_roberta_takes_the_space_before_it(tmp_path: Path) -> None:
    found = files(tmp_path, byte_files(), "RobertaTokenizer").tokenizer
    assert found.encode("Paris <mask> the").tokens[1:-1] == ["Paris", " <mask>", "\u0120the"]
    plainly = {"content": "<mask>", "lstrip": False}
    kept = files(tmp_path, byte_files(), "RobertaTokenizer", mask_token=plainly).tokenizer
    assert kept.encode("Paris <mask>").tokens[1:-1] == ["Paris", "\u0120", "<mask>"]
    saved = json.loads(found.to_str()) | {"added_tokens": []}
    read = files(tmp_path / "whole", {"tokenizer.json": saved}, "RobertaTokenizer").tokenizer
    assert read.encode("Paris <mask>").tokens == ["<s>", "Paris", " <mask>", "</s>"]


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


@pytest.mark.parametrize(("name", "shift"), [("XLMRobertaTokenizer", 1), ("CamembertTokenizer", 4)])
def test_fairseq_puts_its_own_tokens_before_the_pieces(tmp_path: Path, name: str, shift: int) -> None:
    found = files(tmp_path, {FAIRSEQ: pieces_file([*HEAD, *PIECES])}, name)
    place = {text: number + 3 + shift for number, (text, *_) in enumerate(PIECES)}
    last, (first, end) = len(PIECES) + 3 + shift, (0, 2) if shift == 1 else (5, 6)
    assert ids(found, "the Paris") == [first, place["\u2581the"], place["\u2581P"], place["aris"], end]
    assert ids(found, "\u4e2d", "a") == [first, place["\u2581"], 3, end, end, place["\u2581"], place["a"], end]
    assert found.tokenizer.token_to_id("<mask>") == last and found.tokenizer.token_to_id("<pad>") == 1
    assert ids(found, "the <mask>")[1:-1] == [place["\u2581the"], last]
    assert not any(found.tokenizer.encode("a", "a").type_ids)


def test_albert_lower_cases_drops_accents_replaces_quotes_and_takes_commas_from_digits(tmp_path: Path) -> None:
    head = [("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), *((f"[{name}]", 0.0, CONTROL) for name in ("CLS", "SEP"))]
    words = "\u2581caf", "e", "\u00e9", '"', "\u2581", "C", "\u2581C", "af"
    commas = "\u25812019,", "\u25812019", ",", "\u2581so,", "\u2581so"
    content = {"spiece.model": pieces_file([*head, ("[MASK]", 0.0, CONTROL), *plain(*words, *commas)])}
    found = files(tmp_path, content, "AlbertTokenizer").tokenizer
    encoding = found.encode("``e''", "Caf\u00e9")
    assert encoding.tokens == ["[CLS]", "\u2581", '"', "e", '"', "[SEP]", "\u2581caf", "e", "[SEP]"]
    assert encoding.type_ids == [0] * 6 + [1] * 3
    assert found.encode("2019, so,").tokens[1:-1] == ["\u25812019", ",", "\u2581so,"]
    cased = files(tmp_path, content, "AlbertTokenizer", do_lower_case=False, keep_accents=True).tokenizer
    assert cased.encode("Caf\u00e9").tokens == ["[CLS]", "\u2581C", "af", "\u00e9", "[SEP]"]


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
    assert USER_DEFINED in read(tmp_path, model).types.values()
    found = files(tmp_path, {"spiece.model": model}, "AlbertTokenizer", do_lower_case=False, keep_accents=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in ("the (cold)milk", "a-b -- (the)cats", "(Paris)", *SENTENCES[:2]):
        got, want = found.tokenizer.encode(text, add_special_tokens=False).tokens, theirs.encode(text, out_type=str)
        assert got == want or ("2019," in text and "".join(got) == "".join(want))


@together("score", [-1.1, -0.9, -0.7])
@together("symbol", ["(", "\u20ac", "((("])
def test_user_defined_symbols_weigh_what_sentencepiece_gives_them(tmp_path: Path, score: float, symbol: str) -> None:
    entries = [*HEAD, (symbol, -5.0, USER_DEFINED), *plain("\u2581a", "b"), (f"\u2581a{symbol}", score, NORMAL)]
    content = pieces_file(entries)
    found = files(tmp_path, {FAIRSEQ: content}, "XLMRobertaTokenizer")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert found.tokenizer.encode(f"a{symbol}b").tokens[1:-1] == theirs.encode(f"a{symbol}b", out_type=str)


def test_settings_of_the_model_file_count(tmp_path: Path) -> None:
    entries = [*HEAD, *plain("\u2581", "a", "\u2581a", "b")]
    for settings, text in (({3: 0}, "a b"), ({4: 0}, " a  b"), ({}, "  a  b ")):
        content = pieces_file(entries, normalizer=settings)
        found = files(tmp_path, {FAIRSEQ: content}, "XLMRobertaTokenizer")
        theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
        want = [3 if number == 0 else number + 1 for number in theirs.encode(text)]
        assert found.tokenizer.encode(text, add_special_tokens=False).ids == want, (settings, text)


@pytest.mark.parametrize(
    ("model_type", "of_config", "of_settings"),
    [
        ("xlm-roberta", None, None),
        ("bert", "XLMRobertaTokenizer", None),
        ("bert", None, "XLMRobertaTokenizer"),
        ("xlm-roberta", None, "PreTrainedTokenizerFast"),
        ("new", None, None),
        ("bert", None, "BertTokenizer"),
    ],
)
def test_the_class_is_what_the_files_name_else_what_the_model_is(
    tmp_path: Path, model_type: str, of_config: str | None, of_settings: str | None
) -> None:
    config = {"model_type": model_type} | ({"tokenizer_class": of_config} if of_config else {})
    pieces = {FAIRSEQ: pieces_file([*HEAD, *PIECES])}, ["<s>", "\u2581the", "</s>"]
    words = {"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe"}, ["[CLS]", "the", "[SEP]"]
    content, tokens = words if of_settings == "BertTokenizer" else pieces
    found = files(tmp_path, {**content, "config.json": config}, of_settings)
    assert found.tokenizer.encode("the").tokens == tokens


def test_a_tokenizer_json_without_a_template_gets_that_of_its_class(tmp_path: Path) -> None:
    found = files(tmp_path, byte_files(), "RobertaTokenizer").tokenizer
    saved = json.loads(found.to_str()) | {"post_processor": None}
    read = files(tmp_path / "whole", {"tokenizer.json": saved}, "RobertaTokenizer").tokenizer
    assert read.encode("Paris", "the").tokens == found.encode("Paris", "the").tokens
    whole = files(tmp_path / "again", {"tokenizer.json": json.loads(found.to_str())})
    assert whole.special["mask"] == "<mask>" and whole.tokenizer.encode("Paris").ids == found.encode("Paris").ids


@together(
    ("content", "name", "message"),
    [
        *(
            (content, "RobertaTokenizer", said)
            for content, said in (
                ({"vocab.json": byte_files()["vocab.json"]}, r"no tokenizer\.json and no merges\.txt"),
                ({**byte_files(), "vocab.json": "[]"}, "vocab.json: expected a JSON object"),
                ({**byte_files(), "vocab.json": {"a": 0, "b": 2}}, "vocab.json: id 2 follows id 0"),
                ({**byte_files(), "vocab.json": {"a": 0, "b": 0}}, "vocab.json: id 0 appears twice"),
                ({**byte_files(), "vocab.json": {"a": "0"}}, "vocab.json: token 'a' has id '0'"),
                ({**byte_files(), "vocab.json": {"a": 0, "b": True}}, "'b' has id True"),
                (byte_files(merges=["i n", "x y"]), r"merges\.txt: .*`x` out of vocabulary"),
                (byte_files(merges=["i n", "in"]), r"merges\.txt: line 3 is 'in'"),
                (byte_files(merges=["i n g"]), r"merges\.txt: line 2 is 'i n g'"),
                (byte_files(BYTE_TOKENS[1:]), "the cls token '<s>' is not in the vocabulary"),
            )
        ),
        ({}, "XLMRobertaTokenizer", "no tokenizer.json and no sentencepiece.bpe.model"),
        ({"spm.model": b""}, "AlbertTokenizer", "no tokenizer.json and no spiece.model"),
        ({FAIRSEQ: pieces_file([*HEAD[::-1], *PIECES])}, "XLMRobertaTokenizer", "starts with </s> <s> <unk>, expected"),
        ({"spiece.model": pieces_file([*HEAD, *PIECES])}, "AlbertTokenizer", r"the sep token '\[SEP\]' is not in the"),
        ({FAIRSEQ: pieces_file(HEAD, normalizer={2: b"xy"})}, "CamembertTokenizer", "model: the vocabulary is"),
        ({}, 5, "tokenizer_class is 5"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused_by_name(
    tmp_path: Path, content: dict[str, Any], name: str, message: str
) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(TokenizerError, match=message):
        files(tmp_path, content, name)


def test_ends_that_the_vocabulary_does_not_have_are_refused(tmp_path: Path) -> None:
    content = {FAIRSEQ: pieces_file([*HEAD, *PIECES])}
    with pytest.raises(TokenizerError, match=r"the bos token '\[BOS\]' is not in the vocabulary"):
        files(tmp_path, content, "XLMRobertaTokenizer", bos_token="[BOS]")


def test_a_library_that_panics_is_an_error(tmp_path: Path) -> None:
    broken = bytes([0, 4, 0, 0]) + b"\xff\x07\x00\x00" * 256 + b"abc"  # a table of replacements that points nowhere
    content = {FAIRSEQ: pieces_file([*HEAD, *PIECES], normalizer={2: broken})}
    with pytest.raises(TokenizerError, match="damaged"):
        found = Tokenizer(files(tmp_path, content, "XLMRobertaTokenizer"), tiny_config(vocab_size=100))
        found.encode("".join(map(chr, range(32, 500))), overflow="truncate")


def test_a_model_under_another_name_is_pointed_out(tmp_path: Path) -> None:
    several = "copy spiece.model of the model into the folder"
    one = "if 30k-clean.model is the vocabulary of the model, copy it to spiece.model"
    for names, hint in (("", several), ("30k-clean", one), ("a b", several)):
        with pytest.raises(TokenizerError) as caught:
            files(tmp_path / names, {f"{name}.model": b"" for name in names.split()}, "AlbertTokenizer")
        assert caught.value.hint == hint


WHOLE = pieces_file([*HEAD, *plain("\u2581the", "a")])


def read(folder: Path, content: bytes) -> SentencePieceModel:
    (folder / "some.model").write_bytes(content)
    return read_sentencepiece(folder / "some.model")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_all_is_read_as_sentencepiece_reads_it(tmp_path: Path, kind: str) -> None:
    symbols = "(,\u20ac" if kind == "unigram" else ""
    content = trained(kind, 100, symbols, "[X]")
    found = read(tmp_path, content)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert found.kind == kind and found.unknown == "<unk>" and len(found.charsmap) > 100_000
    assert found.dummy_prefix and found.collapse_spaces and not found.byte_fallback
    assert found.texts == theirs.id_to_piece(list(range(len(theirs))))
    for number, score in enumerate(found.scores):
        assert score == theirs.get_score(number)
        assert (found.types.get(number) == UNKNOWN) == theirs.is_unknown(number)
    assert {*found.of_type(USER_DEFINED)} == set(symbols) - {","}


def test_switches_are_read_and_fields_of_no_interest_passed_over(tmp_path: Path) -> None:
    more = field(4, b"self test") + field(9, 5) + field(10, 1.5) + bytes([11 << 3 | 1]) + b"12345678"
    entries = [*HEAD, *plain("x" * 200), ("<0x00>", 0.0, BYTE)]
    content = pieces_file(entries, trainer={3: 2, 35: 1}, normalizer={2: b"map", 3: 0, 4: 0})
    found = read(tmp_path, more + content + more)
    assert (found.kind, found.byte_fallback, found.charsmap, found.texts[3]) == ("bpe", True, b"map", "x" * 200)
    assert not found.dummy_prefix and not found.collapse_spaces


@pytest.mark.parametrize("size", [1, 50, *range(115, 132), 200])
def test_pieces_are_read_whatever_their_length(tmp_path: Path, size: int) -> None:
    pieces = [*HEAD, *plain("x" * size, "b"), ("<0x00>", -0.5, BYTE), ("c", -1.0, NORMAL)]
    untyped = field(1, field(1, b"c") + field(2, -1.0))
    found = read(tmp_path, pieces_file(pieces[:-1]) + untyped)
    types = [found.types.get(number, NORMAL) for number in range(len(pieces))]
    assert list(zip(found.texts, found.scores, types, strict=True)) == pieces


def test_a_line_feed_in_a_piece_is_read_in_linear_time(tmp_path: Path) -> None:
    pieces = [*HEAD, *plain(*(f"x{number}" for number in range(20_000)), "a\nb")]
    assert read(tmp_path, pieces_file(pieces)).texts == [text for text, *_ in pieces]


@together(
    ("settings", "message"),
    [
        ({"trainer": {3: 3}}, "model_type is word, expected unigram or bpe"),
        ({"trainer": {3: 4}}, "model_type is char, expected unigram or bpe"),
        ({"trainer": {3: 99}}, "model_type is 99"),
        ({"trainer": {24: 1}}, "treat_whitespace_as_suffix"),
        ({"normalizer": {5: 0}}, "escape_whitespaces is false"),
    ],
)
def test_models_of_another_kind_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=rf"some\.model: .*{message}") as caught:
        read(tmp_path, pieces_file(HEAD, **settings))
    assert caught.value.hint is not None


@together(
    ("content", "message"),
    [
        *(
            (pieces_file([*HEAD, *entries]), said)
            for entries, said in (
                ([("b", 0.0, UNKNOWN)], "2 of 4 pieces"), (plain("a", "a"), "appears twice"),
                ([("a", 0.0, UNUSED)], "unused pieces"), ([("a", 0.0, 7)], "damaged.* score 0.0 and type 7"),
                ([("a", float("nan"), NORMAL)], "damaged.* score nan"),
                ([("a", float("inf"), NORMAL)], "damaged.* score inf"),
                ([("", 0.0, NORMAL)], "damaged.* has text b''"),
            )
        ),
        (b"", "0 of 0 pieces have the type 'unknown', expected 1"),
        (pieces_file(plain("a")), "0 of 1 pieces"),
        (pieces_file([*HEAD, ("a", 0.0, USER_DEFINED)], trainer={3: 2}), "user-defined symbols"),
        (field(1, field(1, b"\xff") + field(2, 0.0)), "not UTF-8"),
        (b"not a model", "the SentencePiece model is damaged"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "the varint at byte"),
        (WHOLE + b"\x0b", "the field at byte"),
        (b"\x00\x00" + WHOLE, "field at byte 0"),
    ],
)  # fmt: skip
def test_files_that_are_no_models_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        read(tmp_path, content)


def test_a_file_cut_anywhere_is_refused_or_lacks_pieces(tmp_path: Path) -> None:
    for size in range(len(WHOLE)):
        try:
            assert len(read(tmp_path, WHOLE[:size]).texts) < 5 or size > len(WHOLE) - 5
        except TokenizerError as problem:
            assert "some.model" in problem.message
