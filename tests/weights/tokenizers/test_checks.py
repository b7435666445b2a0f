"""Vocabularies over which the `tokenizers` library would end the process, take all memory, or say nothing of ours."""

import base64
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from mlxbert.errors import InputError, TokenizerError
from mlxbert.text.tokenizer import load_tokenizer
from mlxbert.weights.tokenizers import library_guards
from mlxbert.weights.tokenizers.library_guards import MAX_FILE, MAX_TOKEN
from mlxbert.weights.tokenizers.tokenizer_files import lower_cased, read_tokenizer
from tests.helpers.published import gemma
from tests.helpers.tiny import VOCAB, tiny_config
from tests.helpers.vocabularies import HEAD, pieces_file, plain, put


def charsmap(promised: int = 1024, behind: int = 0) -> bytes:
    """A table that makes "a" of "A", as https://github.com/s-yata/darts-clone builds it."""
    units = [0] * 256
    units[0], units[1 ^ 0x41], units[1 ^ 0x41 ^ 3] = 1 << 10, 3 << 10 | 1 << 8 | 0x41, 1 << 31
    return struct.pack("<257I", promised, *units) + b"a\0" + b"x\0" * (behind // 2)


def unigram(folder: Path, *tokens: str, steps: Any = None, unknown: int | None = 0) -> Path:
    """A folder with a tokenizer.json of these tokens behind a few."""
    entries = [[token, -1.0] for token in ("<unk>", "<s>", "</s>", "<pad>", "<mask>", "\u2581", "a", *tokens)]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    saved = json.loads(tokenizer.to_str()) | {"normalizer": steps}
    saved["model"] |= {"vocab": entries, "unk_id": unknown}
    return put(folder, {"tokenizer.json": saved, "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}})


def word_pieces(folder: Path, **ids: int) -> Path:
    """A folder with a tokenizer.json of the tiny vocabulary, some ids changed."""
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(VOCAB)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    saved = json.loads(tokenizer.to_str())
    saved["model"]["vocab"] |= ids
    return put(folder, {"tokenizer.json": saved})


def refusal(folder: Path) -> str:
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(folder, tiny_config())
    assert str(folder) in caught.value.message
    return caught.value.message


def precompiled(table: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def test_tokens_as_long_as_any_are_read_and_longer_ones_refused(tmp_path: Path) -> None:
    longest = "x" * MAX_TOKEN
    found = load_tokenizer(unigram(tmp_path / "long", longest), tiny_config())
    assert found.token_id(longest) == 7
    assert "more than 2048" in refusal(unigram(tmp_path / "longer", longest + "x"))
    quoted = '"\\' * (MAX_TOKEN // 2 + 1)  # as many bytes where each is escaped
    assert "more than 2048" in refusal(unigram(tmp_path / "quoted", quoted))


def test_so_are_those_in_the_settings(tmp_path: Path) -> None:
    for size in (MAX_TOKEN, MAX_TOKEN + 1):
        folder = unigram(tmp_path / str(size))
        put(folder, {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer", "mask_token": "x" * size}})
        if size == MAX_TOKEN:
            assert load_tokenizer(folder, tiny_config()).mask_token == "x" * size
        else:
            assert "has 2,049 characters, expected at most 2,048" in refusal(folder)


def test_tokens_of_a_sentencepiece_model_are_as_long_as_it_makes_them(tmp_path: Path) -> None:
    for size in (512, 513):
        model = pieces_file([*HEAD, *plain("\u2581", "a", "x" * size)])
        folder = put(tmp_path / str(size), {"sentencepiece.bpe.model": model})
        if size == 512:
            assert read_tokenizer(folder).tokenizer.token_to_id("x" * size) is not None
        else:
            assert "a piece has 513 characters, expected at most 512" in refusal(folder)


def test_a_file_larger_than_any_is_refused_unread(tmp_path: Path) -> None:
    folder = word_pieces(tmp_path)
    for size, said in (
        (MAX_FILE, "damaged|more than 2048"),
        (MAX_FILE + 1, "67,108,865 bytes, expected at most 67,108,864"),
    ):
        with (folder / "tokenizer.json").open("r+b") as file:
            file.truncate(size)  # zeros, which are not JSON
        with pytest.raises(TokenizerError, match=said):
            read_tokenizer(folder)


def test_a_table_of_replacements_must_be_as_large_as_it_says(tmp_path: Path) -> None:
    sound = charsmap(behind=5000)  # longer than any token
    found = read_tokenizer(unigram(tmp_path / "sound", steps=precompiled(sound)))
    assert found.tokenizer.encode("A", add_special_tokens=False).tokens[-1] == "\u2581a"[-1]
    nested = {"type": "Sequence", "normalizers": [precompiled(charsmap(2**32 - 4))]}
    for number, steps in enumerate((precompiled(charsmap(2**32 - 4)), nested, precompiled(b"\xff\xff\xff\xff"))):
        assert "expected at least 429496729" in refusal(unigram(tmp_path / str(number), steps=steps))


def test_so_must_that_of_a_sentencepiece_model(tmp_path: Path) -> None:
    entries = [*HEAD, *plain("\u2581", "a")]
    for promised in (1024, 2**31):
        model = pieces_file(entries, normalizer={2: charsmap(promised)})
        folder = put(tmp_path / str(promised), {"sentencepiece.bpe.model": model})
        if promised == 1024:
            assert read_tokenizer(folder).tokenizer.normalizer.normalize_str("A") == "a"
        else:
            assert "1030 bytes, expected at least 2147483648" in refusal(folder)


def test_a_vocabulary_with_an_id_of_billions_is_not_copied(tmp_path: Path) -> None:
    found = read_tokenizer(word_pieces(tmp_path, cat=2**31))
    with pytest.raises(TokenizerError, match=r"2147483648.*16777216"):
        lower_cased(found.tokenizer)
    assert lower_cased(read_tokenizer(word_pieces(tmp_path / "sound")).tokenizer).encode("CAT").tokens[1] == "cat"


def test_steps_that_multiply_a_text_are_few(tmp_path: Path) -> None:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    for number in (4, 5):  # each may double it
        folder = word_pieces(tmp_path / str(number))
        saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        saved["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [step] * number}
        put(folder, {"tokenizer.json": saved})
        if number == 4:
            load_tokenizer(folder, tiny_config())
        else:
            assert "the pre_tokenizer can make a text 32 times as long, expected at most 16" in refusal(folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("compiled_", "compiled\\u005f", "expected at least 4294967295"),
        ("_charsmap", "_char\\u0073map", "expected at least 4294967295"),
        ('"////', '"\\/\\/\\/\\/', "expected at least 4294967295"),
        ('"////', '"\\u002f\\u002f\\u002F/', "expected at least 4294967295"),
        ("compiled_", "compiled\\u005z", "damaged (Invalid"),
        ("compiled_", "compiled\\u005f\\ud800", "damaged ('utf-8' codec can't encode"),
        ('"normalizer": ', '"\\u006eormalizer": ' + "[" * 100_000, "damaged ("),
    ],
)
def test_nothing_hides_behind_escapes(tmp_path: Path, old: str, new: str, said: str) -> None:
    folder = unigram(tmp_path, steps=precompiled(charsmap(2**32 - 1)))
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    assert old in text
    put(folder, {"tokenizer.json": text.replace(old, new)})
    assert said in refusal(folder)


def test_plain_letters_may_be_escaped_and_tokens_look_like_escapes(tmp_path: Path) -> None:
    """As Go's and Gson's writers do; what they write is the same vocabulary."""
    tokens = ("\\u0041", "\\", "\\/", "a'b", "<x>&", '"', "\u20ac\U0001f600", "\t", "x/y")
    folder = unigram(tmp_path, *tokens, steps=precompiled(charsmap()))
    expected = read_tokenizer(folder).tokenizer.to_str()
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    for letter, escape in {"<": "u003c", ">": "u003E", "&": "u0026", "'": "u0027", "=": "u003d", "/": "/"}.items():
        text = text.replace(letter, f"\\{escape}")
    assert "\\u003cx\\u003E\\u0026" in text and "A\\u003d" in text
    put(folder, {"tokenizer.json": text})
    found = read_tokenizer(folder).tokenizer
    assert found.to_str() == expected
    assert [found.token_to_id(token) for token in tokens] == list(range(7, 7 + len(tokens)))


def test_what_the_library_says_of_a_text_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`unk_id` is missing"):
        load_tokenizer(unigram(tmp_path / "unigram", unknown=None), tiny_config()).encode("\u6771")
    folder = word_pieces(tmp_path / "words")
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    put(folder, {"tokenizer.json": text.replace('"unk_token": "[UNK]"', '"unk_token": "[GONE]"')})
    found = read_tokenizer(folder)
    assert found.tokenizer.token_to_id("[GONE]") is None
    with pytest.raises(InputError, match=r"error: Missing .* token"):
        load_tokenizer(folder, tiny_config()).encode("zzz \u6771")


@pytest.mark.parametrize("file", ["tokenizer_config.json", "added_tokens.json", "vocab.txt"])
def test_half_a_surrogate_pair_is_no_token(tmp_path: Path, file: str) -> None:
    half: dict[str, Any] = {"\ud800": len(VOCAB)} if file == "added_tokens.json" else {"sep_token": "\ud800"}
    content: Any = "\n".join(VOCAB).encode() + b"\n\xed\xa0\x80\n" if file == "vocab.txt" else half
    assert str(tmp_path) in refusal(put(tmp_path, {"vocab.txt": "\n".join(VOCAB), file: content}))


def test_a_vocabulary_that_cannot_be_written_is_no_foreign_error(tmp_path: Path) -> None:
    vocab = {token: number for number, token in enumerate(("t", "h", "th", "<s>", "</s>", "<unk>"))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab | {"h": 0}, merges=[("t", "h")], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(Regex("x"), "y")
    with pytest.raises(TokenizerError, match="out of vocabulary"):
        lower_cased(tokenizer)


def test_a_backslash_before_a_slash_is_no_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte pairs of code have such tokens, and to write the whole file anew takes seconds."""
    calls: list[Path] = []
    unescaped = library_guards._unescape

    def counted(path: Path, data: bytes) -> bytes:
        calls.append(path)
        return unescaped(path, data)

    monkeypatch.setattr(library_guards, "_unescape", counted)
    for tokens, rewritten in (
        (["\\/", "\\\\/", "\\u0041", "\\\\\\u0041", '\\"', "\\"], False),
        (["x/y"], True),
    ):
        folder = unigram(tmp_path / str(rewritten), *tokens)
        if rewritten:
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
            put(folder, {"tokenizer.json": text.replace("x/y", "\\\\x\\/y")})
        assert load_tokenizer(folder, tiny_config()).token_id(tokens[0]) == (None if rewritten else 7)
        assert len(calls) == rewritten


def test_thousands_of_added_tokens_are_added_at_once(tmp_path: Path) -> None:
    """One at a time takes 15 seconds for the 6,000 of Gemma, whose tables the library makes anew each time."""
    folder = gemma(tmp_path)
    found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    first = len(found["model"]["vocab"])
    tokens = [dict(found["added_tokens"][5], content=f"<extra{n}>", id=first + n) for n in range(2000)]
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["added_tokens_decoder"] |= {str(one["id"]): {k: v for k, v in one.items() if k != "id"} for one in tokens}
    put(folder, {"tokenizer_config.json": settings})
    start = time.process_time()
    assert read_tokenizer(folder).tokenizer.token_to_id("<extra1999>") == first + 1999
    put(folder, {"tokenizer.json": found | {"added_tokens": found["added_tokens"] + tokens}})
    assert read_tokenizer(folder).tokenizer.token_to_id("<extra1999>") == first + 1999
    assert time.process_time() - start < 1  # one at a time: 2 seconds
