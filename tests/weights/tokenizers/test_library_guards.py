"""Vocabularies over which `tokenizers` would end the process, take all memory, or say nothing of ours: refused."""

import base64
import json
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

import mlxbert
from mlxbert.errors import InputError, TokenizerError
from mlxbert.text.tokenizer import load_tokenizer
from mlxbert.weights.tokenizers import library_guards
from mlxbert.weights.tokenizers.library_guards import MAX_FILE, MAX_OUTPUT, MAX_TOKEN
from mlxbert.weights.tokenizers.text_growth import growth_of
from mlxbert.weights.tokenizers.tokenizer_files import lower_cased, read_tokenizer
from tests.helpers import tiny
from tests.helpers.cases import together
from tests.helpers.published import gemma
from tests.helpers.tiny import VOCAB, tiny_config
from tests.helpers.vocabularies import HEAD, pieces_file, plain, put

XLM = {"tokenizer_class": "XLMRobertaTokenizer"}


def charsmap(promised: int = 1024, behind: bytes = b"") -> bytes:
    """A table that makes "a" of "A", as https://github.com/s-yata/darts-clone builds it."""
    units = [0] * 256
    units[0], units[1 ^ 0x41], units[1 ^ 0x41 ^ 3] = 1 << 10, 3 << 10 | 1 << 8 | 0x41, 1 << 31
    return struct.pack("<257I", promised, *units) + b"a\0" + behind


def unigram(folder: Path, *tokens: str, steps: Any = None, unknown: int | None = 0) -> Path:
    entries = [[token, -1.0] for token in ("<unk>", "<s>", "</s>", "<pad>", "<mask>", "\u2581", "a", *tokens)]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    saved = json.loads(tokenizer.to_str()) | {"normalizer": steps}
    saved["model"] |= {"vocab": entries, "unk_id": unknown}
    return put(folder, {"tokenizer.json": saved, "tokenizer_config.json": XLM})


def word_pieces(folder: Path, parts: Mapping[str, Any] | None = None, **ids: int) -> Path:
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(VOCAB)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    saved = json.loads(tokenizer.to_str())
    saved["model"]["vocab"] |= ids
    return put(folder, {"tokenizer.json": saved | dict(parts or {})})


def pieces(folder: Path, *texts: str, table: bytes = b"") -> Path:
    entries = [*HEAD, *plain("\u2581", "a", *texts)]
    return put(folder, {"sentencepiece.bpe.model": pieces_file(entries, normalizer={2: table} if table else {})})


def text_of(folder: Path) -> str:
    return (folder / "tokenizer.json").read_text(encoding="utf-8")


def refusal(folder: Path) -> str:
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(folder, tiny_config())
    assert str(folder) in caught.value.message
    return caught.value.message


def precompiled(table: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# A folder with something of a size, the largest that is read, and what is said of one more.
LIMITS: dict[str, tuple[Callable[[Path, int], Path], int, str]] = {
    "token": (lambda folder, size: unigram(folder, "x" * size), MAX_TOKEN, "more than 2048"),
    "token in the settings": (
        lambda folder, size: put(unigram(folder), {"tokenizer_config.json": XLM | {"mask_token": "x" * size}}),
        MAX_TOKEN,
        "has 2,049 characters, expected at most 2,048",
    ),
    "piece": (lambda folder, size: pieces(folder, "x" * size), 512, "a piece has 513 characters, expected at most 512"),
    "steps that each may double a text": (
        lambda folder, n: word_pieces(folder, {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_BYTES] * n}}),
        4,
        "the pre_tokenizer can make a text 32 times as long, expected at most 16",
    ),
    "replacement": (lambda folder, n: pieces(folder, table=charsmap() + b"b" * n), MAX_OUTPUT, "replaced by 257 bytes"),
    "replacement in the whole file": (
        lambda folder, size: unigram(folder, steps=precompiled(charsmap() + b"b" * size)),
        MAX_OUTPUT,
        "replaced by 257 bytes",
    ),
}


@pytest.mark.parametrize("what", LIMITS)
def test_what_is_as_large_as_any_is_read_and_what_is_larger_refused(what: str, tmp_path: Path) -> None:
    make, largest, said = LIMITS[what]
    found = read_tokenizer(make(tmp_path / "read", largest)).tokenizer
    assert not what.startswith(("token", "piece")) or found.token_to_id("x" * largest) is not None
    assert said in refusal(make(tmp_path / "refused", largest + 1))


def test_a_long_token_of_short_escapes_is_refused(tmp_path: Path) -> None:
    assert "more than 2048" in refusal(unigram(tmp_path, '"\\' * (MAX_TOKEN // 2 + 1)))  # as many bytes, escaped


def test_a_file_larger_than_any_is_refused_unread(tmp_path: Path) -> None:
    folder = word_pieces(tmp_path)
    for size, said in ((MAX_FILE, "damaged|more than 2048"), (MAX_FILE + 1, "67,108,865 bytes, expected at most")):
        with (folder / "tokenizer.json").open("r+b") as file:
            file.truncate(size)  # zeros, which are not JSON
        with pytest.raises(TokenizerError, match=said):
            read_tokenizer(folder)


def test_a_table_of_replacements_must_be_as_large_as_it_says(tmp_path: Path) -> None:
    sound = charsmap(behind=b"x\0" * 2500)  # longer than any token
    found = read_tokenizer(unigram(tmp_path / "sound", steps=precompiled(sound)))
    assert found.tokenizer.encode("A", add_special_tokens=False).tokens[-1] == "a"
    assert read_tokenizer(pieces(tmp_path / "model", table=charsmap())).tokenizer.normalizer.normalize_str("A") == "a"
    nested = {"type": "Sequence", "normalizers": [precompiled(charsmap(2**32 - 4))]}
    for number, steps in enumerate((precompiled(charsmap(2**32 - 4)), nested, precompiled(b"\xff\xff\xff\xff"))):
        assert "expected at least 429496729" in refusal(unigram(tmp_path / str(number), steps=steps))
    assert "1030 bytes, expected at least 2147483648" in refusal(pieces(tmp_path / "large", table=charsmap(2**31)))


def test_a_vocabulary_with_an_id_of_billions_is_not_copied(tmp_path: Path) -> None:
    found = read_tokenizer(word_pieces(tmp_path, cat=2**31))
    with pytest.raises(TokenizerError, match=r"2147483648.*16777216"):
        lower_cased(found.tokenizer)
    assert lower_cased(read_tokenizer(word_pieces(tmp_path / "sound")).tokenizer).encode("CAT").tokens[1] == "cat"


@together(
    ("old", "new", "said"),
    [
        *(
            (old, new, "expected at least 4294967295")
            for old, new in (
                ("compiled_", "compiled\\u005f"), ("_charsmap", "_char\\u0073map"), ('"////', '"\\/\\/\\/\\/'),
                ('"////', '"\\u002f\\u002f\\u002F/'),
            )
        ),
        ("compiled_", "compiled\\u005z", "damaged (Invalid"),
        ("compiled_", "compiled\\u005f\\ud800", "damaged ('utf-8' codec can't encode"),
        ('"normalizer": ', '"\\u006eormalizer": ' + "[" * 100_000, "damaged ("),
    ],
)  # fmt: skip
def test_nothing_hides_behind_escapes(tmp_path: Path, old: str, new: str, said: str) -> None:
    folder = unigram(tmp_path, steps=precompiled(charsmap(2**32 - 1)))
    assert old in text_of(folder)
    put(folder, {"tokenizer.json": text_of(folder).replace(old, new)})
    assert said in refusal(folder)


def test_plain_letters_may_be_escaped_and_tokens_look_like_escapes(tmp_path: Path) -> None:
    """As Go's and Gson's writers do; what they write is the same vocabulary."""
    tokens = ("\\u0041", "\\", "\\/", "a'b", "<x>&", '"', "\u20ac\U0001f600", "\t", "x/y")
    folder = unigram(tmp_path, *tokens, steps=precompiled(charsmap()))
    expected, text = read_tokenizer(folder).tokenizer.to_str(), text_of(folder)
    for letter, escape in {"<": "u003c", ">": "u003E", "&": "u0026", "'": "u0027", "=": "u003d", "/": "/"}.items():
        text = text.replace(letter, f"\\{escape}")
    assert "\\u003cx\\u003E\\u0026" in text and "A\\u003d" in text
    found = read_tokenizer(put(folder, {"tokenizer.json": text})).tokenizer
    assert found.to_str() == expected
    assert [found.token_to_id(token) for token in tokens] == list(range(7, 7 + len(tokens)))


def test_what_the_library_says_of_a_text_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`unk_id` is missing"):
        load_tokenizer(unigram(tmp_path / "unigram", unknown=None), tiny_config()).encode("\u6771")
    folder = word_pieces(tmp_path / "words")
    gone = text_of(folder).replace('"unk_token": "[UNK]"', '"unk_token": "[GONE]"')
    found = load_tokenizer(put(folder, {"tokenizer.json": gone}), tiny_config())
    assert found.token_id("[GONE]") is None
    with pytest.raises(InputError, match=r"error: Missing .* token"):
        found.encode("zzz \u6771")


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
    unescape = mock.Mock(wraps=library_guards._unescape)
    monkeypatch.setattr(library_guards, "_unescape", unescape)
    plainly = unigram(tmp_path / "plain", "\\/", "\\\\/", "\\u0041", "\\\\\\u0041", '\\"', "\\")
    assert load_tokenizer(plainly, tiny_config()).token_id("\\/") == 7 and not unescape.called
    folder = unigram(tmp_path / "escaped", "x/y")
    put(folder, {"tokenizer.json": text_of(folder).replace("x/y", "\\\\x\\/y")})
    assert load_tokenizer(folder, tiny_config()).token_id("x/y") is None and unescape.call_count == 1


def test_thousands_of_added_tokens_are_added_at_once(tmp_path: Path) -> None:
    """One at a time takes 15 seconds for the 6,000 of Gemma, whose tables the library makes anew each time."""
    folder = gemma(tmp_path)
    found, first = json.loads(text_of(folder)), len(json.loads(text_of(folder))["model"]["vocab"])
    tokens = [dict(found["added_tokens"][5], content=f"<extra{n}>", id=first + n) for n in range(2000)]
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["added_tokens_decoder"] |= {str(one["id"]): {k: v for k, v in one.items() if k != "id"} for one in tokens}
    whole = found | {"added_tokens": found["added_tokens"] + tokens}
    start = time.process_time()
    for name, content in (("tokenizer_config.json", settings), ("tokenizer.json", whole)):
        put(folder, {name: content})
        assert read_tokenizer(folder).tokenizer.token_to_id("<extra1999>") == first + 1999
    assert time.process_time() - start < 1  # one at a time: 2 seconds


def replace(old: Any, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old} if isinstance(old, str) else old, "content": new}


def with_steps(folder: Path, part: str, *steps: dict[str, Any], **more: Any) -> Path:
    """A folder with a tokenizer.json that has these steps, in a sequence within a sequence."""
    name = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[part]
    inner = {"type": "Sequence", name: list(steps)}
    return word_pieces(folder, {part: {"type": "Sequence", name: [inner]}} | more)


TEN = replace("a", "a" * 10)
GROWING: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "ten of one, twelve times": ("normalizer", [TEN] * 12, "1,000,000,000,000 times"),
    "two of one": ("normalizer", [replace("a", "aa")] * 7, "128 times"),
    "a few between any two": ("normalizer", [replace({"Regex": "x*"}, "y" * 64)], "65 times"),
    "nothing replaced": ("normalizer", [replace("", "y" * 64)], "65 times"),
    "put in front": ("normalizer", [{"type": "Prepend", "prepend": "a" * 2000}, TEN], "20,010 times"),
    "compatibility forms": ("normalizer", [{"type": "NFKD"}, replace(" ", "\ufdfa")] * 3, "times as long"),
    "a table": ("normalizer", [precompiled(charsmap() + b"b" * 200)] * 2, "40,000 times"),
    "in the decoder": ("decoder", [TEN] * 12, "1,000,000,000,000 times"),
    "before the model": ("pre_tokenizer", [{"type": "Metaspace", "replacement": "_"}] * 2, "25 times"),
    "many steps": ("normalizer", [{"type": "Strip", "strip_left": True, "strip_right": True}] * 65, "has 65 steps"),
}


@pytest.mark.parametrize("case", GROWING)
def test_a_vocabulary_that_multiplies_a_text_is_refused_before_it_is_used(tmp_path: Path, case: str) -> None:
    part, steps, said = GROWING[case]
    start = time.perf_counter()
    message = refusal(with_steps(tmp_path, part, *steps))
    assert said in message and part in message
    assert time.perf_counter() - start < 2


def test_it_cannot_hide_in_escapes_or_old_spellings(tmp_path: Path) -> None:
    folder = with_steps(tmp_path, "normalizer", *[TEN] * 12)
    text = text_of(folder)
    for old, new in (
        ('"normalizer"', '"norm\\u0061lizer"'),
        ('{"type": "Sequence", "normalizers"', '{"normalizers"'),
        ('{"String": "a"}', '{"Str\\u0069ng": "\\u0061"}'),
    ):
        assert old in text
        put(folder, {"tokenizer.json": text.replace(old, new)})
        assert "1,000,000,000,000 times" in refusal(folder)


@pytest.mark.parametrize("many", ["texts", "tokens", "ids", "steps"])
def test_a_post_processor_that_makes_many_tokens_is_refused(tmp_path: Path, many: str) -> None:
    cls, text = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    single = {"texts": [text, text], "tokens": [cls] * 65 + [text]}.get(many, [cls, text])
    ids = [2] * (65 if many == "ids" else 1)
    template = {
        **{"type": "TemplateProcessing", "single": single, "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}]},
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": ["[CLS]"] * len(ids)}},
    }
    steps = {"type": "Sequence", "processors": [template] * (65 if many == "steps" else 1)}
    assert "post_processor" in refusal(word_pieces(tmp_path, {"post_processor": steps}))


def test_added_tokens_may_not_be_long_when_they_are_normalized(tmp_path: Path) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}

    def folder(name: str, normalized: bool) -> Path:
        added = [
            {"id": len(VOCAB) + n, "content": f"{n}" + "a" * 2000, "normalized": normalized, **flags}
            for n in range(200)
        ]
        return with_steps(tmp_path / name, "normalizer", replace("a", "a" * 60), added_tokens=added)

    assert "the 400,490 bytes of the added tokens" in refusal(folder("normalized", True))
    assert read_tokenizer(folder("as they are", False)).tokenizer.token_to_id("0" + "a" * 2000) == len(VOCAB)
    entries = {str(len(VOCAB)): {"content": "a" * 400_000, "normalized": True, **flags}}
    settings = with_steps(tmp_path / "settings", "normalizer", replace("a", "a" * 60))
    put(settings, {"tokenizer_config.json": {"added_tokens_decoder": entries}})
    assert "the 400,000 bytes of the added tokens" in refusal(settings)


NORMALIZERS = {
    **{name: getattr(normalizers, name)() for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer")},
    **{name: getattr(normalizers, name)() for name in ("Nmt", "StripAccents", "ByteLevel")},
    "Replace": normalizers.Replace(" ", "\u2581"),
    "Regex": normalizers.Replace(Regex(" {2,}"), " "),
    "Prepend": normalizers.Prepend("\u2581"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMALIZERS)
def test_no_character_grows_more_than_is_said(tmp_path: Path, name: str) -> None:
    """Of the planes that have any."""
    found = read_tokenizer(word_pieces(tmp_path)).tokenizer
    found.normalizer = NORMALIZERS[name]
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    growth = growth_of(found)
    assert growth.written <= 2
    for number in (*range(1, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)):
        grown = len(NORMALIZERS[name].normalize_str(chr(number)).encode()) / len(chr(number).encode())
        assert grown <= growth.total, hex(number)


def test_usual_vocabularies_take_two_million_characters(tmp_path: Path) -> None:
    albert = [replace("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    albert += [precompiled(charsmap() + b"b" * 33), replace({"Regex": "^ | $"}, "")]
    growth = load_tokenizer(with_steps(tmp_path, "normalizer", *albert), tiny_config()).growth
    assert growth.total == pytest.approx(11 * 1.5 * 33)
    assert growth.max_text == mlxbert.load().tokenizer.growth.max_text == 2**21


def test_a_pattern_that_fails_on_a_text_fails_only_this_text(tmp_path: Path) -> None:
    folder = with_steps(tmp_path, "normalizer", replace({"Regex": "(x|xx|xxx)+$"}, "y"))
    for file in tiny.save(tmp_path / "model").iterdir():
        put(folder, {file.name: file.read_bytes()})
    put(folder, {"tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}'})  # read as it is
    model = mlxbert.load(folder)
    bad = "x" * 60 + "b"  # more ways than the library tries
    first, failure, last = mlxbert.tokenize(model, ["the cat", bad, "dog"], on_error="return")
    assert isinstance(failure, mlxbert.Failure) and isinstance(failure.error, InputError)
    assert "the tokenizer fails" in failure.error.message and failure.error.hint is None
    assert isinstance(first, mlxbert.Tokens) and isinstance(last, mlxbert.Tokens)
    assert [token.token for token in last.tokens] == ["[CLS]", "dog", "[SEP]"] and len(first.tokens) == 4
    results = [*mlxbert.embed_stream(model, ["the cat", bad, "dog"], on_error="return")]
    assert [isinstance(result, mlxbert.Failure) for result in results] == [False, True, False]
