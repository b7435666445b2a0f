"""Vocabulary files: vocab.txt and tokenizer.json say the same, settings next to them count, damaged ones fail."""

import gc
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library, models, normalizers, pre_tokenizers, processors

import mlxbert
from mlxbert import loading
from mlxbert.errors import CheckpointError, InputError, TokenizerError
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers import tiny
from tests.helpers.cases import together
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import put

VOCAB = list(dict.fromkeys(tiny.VOCAB))
TEXTS = [
    "The cats sat on mats in PARIS.",
    "playing, [MASK] bought milk!",
    "caf\u00e9 \u4e2d\u6587 \U0001f642 dog",
    "",
    "x" * 120,
    "[SEP] a\u0000b [mask]",
]
NEXT = len(VOCAB)


def write(folder: Path, vocab: list[str] = VOCAB, settings: Mapping[str, Any] | None = None) -> Path:
    """A folder with a vocab.txt and the settings next to it."""
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    return configure(folder, {} if settings is None else settings)


def configure(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The folder with a tokenizer_config.json."""
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def library(vocab: list[str] = VOCAB) -> Library:
    """The tokenizer of a vocabulary, put together by hand."""
    numbers = {token: number for number, token in enumerate(vocab)}
    found = Library(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    found.normalizer = normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    found.add_special_tokens(VOCAB[:5])
    return found


def tokens(folder: Path, text: str) -> list[str]:
    """What a text becomes, without special tokens around it."""
    found: list[str] = read_tokenizer(folder).tokenizer.encode(text, add_special_tokens=False).tokens
    return found


def opened(folder: Path, rows: int = NEXT + 20) -> Tokenizer:
    return Tokenizer(read_tokenizer(folder), tiny_config(vocab_size=rows))


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("vocab", [VOCAB, ["a"]])  # the second lacks the special tokens
def test_garbage_is_collected_afterwards_as_before(tmp_path: Path, vocab: list[str], collects: bool) -> None:
    write(tmp_path, vocab)
    try:
        (gc.enable if collects else gc.disable)()
        with nullcontext() if vocab is VOCAB else pytest.raises(TokenizerError):
            read_tokenizer(tmp_path)
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_both_kinds_of_file_give_the_same_inputs(tmp_path: Path) -> None:
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    plain.mkdir()
    whole.mkdir()
    write(plain)
    library().save(str(whole / "tokenizer.json"))
    one, other = opened(plain), opened(whole)
    assert one.special == other.special and one.vocab_size == other.vocab_size == NEXT
    for text in TEXTS:
        assert one.encode(text) == other.encode(text)
        assert one.encode(text, "the dog") == other.encode(text, "the dog")
    assert one.encode("[MASK] cats").ids == [2, 4, VOCAB.index("cat"), VOCAB.index("##s"), 3]


def test_the_whole_file_is_read_before_the_plain_one(tmp_path: Path) -> None:
    write(tmp_path, [*VOCAB, "cats"])
    library().save(str(tmp_path / "tokenizer.json"))
    assert tokens(tmp_path, "cats") == ["cat", "##s"]


def test_saved_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    saved = library()
    saved.enable_truncation(max_length=4)
    saved.enable_padding(length=30)
    saved.save(str(tmp_path / "tokenizer.json"))
    assert '"max_length": 4' in (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert len(opened(tmp_path).encode("the cat sat on a mat")) == 8


@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, ["cat", "cafe", "中", "文"]),
        ({"do_lower_case": True}, ["cat", "cafe", "中", "文"]),
        ({"do_lower_case": False}, ["Cat", "café", "中", "文"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Cat", "cafe", "中", "文"]),
        ({"strip_accents": False}, ["cat", "café", "中", "文"]),
        ({"strip_accents": None}, ["cat", "cafe", "中", "文"]),
        ({"tokenize_chinese_chars": False}, ["cat", "cafe", "中文"]),
        ({"tokenize_chinese_chars": True}, ["cat", "cafe", "中", "文"]),
    ],
)
def test_settings_beside_the_vocabulary_count(
    tmp_path: Path, kind: str, settings: dict[str, Any], found: list[str]
) -> None:
    words = [*VOCAB, "cafe", "café", "中", "文", "中文", *(f"filler{number}" for number in range(100)), "Cat"]
    write(tmp_path, words, settings)
    if kind == "tokenizer.json":
        library(words).save(str(tmp_path / kind))
    assert tokens(tmp_path, "Cat café 中文") == found


def test_a_cased_vocabulary_without_settings_is_not_lower_cased(tmp_path: Path) -> None:
    cased = [*VOCAB, "Paris", "Tokyo"]
    assert tokens(write(tmp_path, cased), "Paris paris Tokyo") == ["Paris", "paris", "Tokyo"]
    assert tokens(write(tmp_path, cased, {"do_lower_case": True}), "Paris") == ["paris"]
    (tmp_path / "tokenizer_config.json").unlink()
    assert tokens(tmp_path, "Paris") == ["Paris"]


def test_words_never_to_be_split_are_not(tmp_path: Path) -> None:
    write(tmp_path, [*VOCAB, "a.b"], {"never_split": ["a.b"]})
    assert tokens(tmp_path, "the a.b cat a.bc") == ["the", "a.b", "cat", "a", ".", "b", "##c"]
    write(tmp_path, VOCAB, {"never_split": ["a.b"]})
    with pytest.raises(TokenizerError, match=r"never_split.*'a\.b'.*vocabulary"):
        read_tokenizer(tmp_path)


def test_added_tokens_get_the_ids_of_their_files(tmp_path: Path) -> None:
    entry = {"content": "<Tag>", "lstrip": False, "rstrip": False, "single_word": False, "special": True}
    write(tmp_path, VOCAB, {"added_tokens_decoder": {"0": "[PAD]", str(NEXT + 1): entry}})
    numbers = {"old-town": NEXT + 2, "new-york": NEXT}  # in no order
    (tmp_path / "added_tokens.json").write_text(json.dumps(numbers), encoding="utf-8")
    found = opened(tmp_path)
    assert found.pieces("the new-york <Tag>cat <tag>")[:4] == [VOCAB.index("the"), NEXT, NEXT + 1, VOCAB.index("cat")]
    assert found.vocab_size == NEXT + 3 and found.token(NEXT + 1) == "<Tag>"
    assert found.encode("the new-york").offsets[2] == (4, 12) and found.pieces("old-town") == [NEXT + 2]


PLAIN: dict[str, Any] = {"vocab.txt": "\n".join(VOCAB) + "\n"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, r"tokenizer\.json.*vocab\.txt"),
    ({"vocab.txt": b"[PAD]\n\xff\xfe"}, r"vocab\.txt: the file is not UTF-8 at byte 6"),
    *(
        ({"tokenizer.json": content}, r"tokenizer\.json")
        for content in (b"[]", b"null", b"\xff", b'{"model": {"type": "Nope"}}', b"{" * 2000)
    ),
    (PLAIN | {"tokenizer_config.json": "{"}, "tokenizer_config.json: the file is not valid JSON"),
    (PLAIN | {"special_tokens_map.json": "{"}, "special_tokens_map.json: the file is not valid JSON"),
    (PLAIN | {"added_tokens.json": {"<x>": NEXT + 7}}, "'<x>' has id 52"),
    (PLAIN | {"added_tokens.json": {"the": 0}}, "'the' has id 5 in the vocabulary, expected 0"),
    (PLAIN | {"added_tokens.json": '["<x>"]'}, "expected a JSON object"),
    (PLAIN | {"added_tokens.json": {"<x>": "5", "<y>": NEXT}}, "<x>"),
    *(
        (PLAIN | {"tokenizer_config.json": {"added_tokens_decoder": decoder}}, named)
        for decoder, named in (
            ({"many": {"content": "<x>"}}, "'many': .*expected an id"),
            ({str(NEXT): {"text": "<x>"}}, "expected an id"),
            ({str(NEXT): {"content": "<x>", "special": True}, "9": "special"}, "special"),
            (["<x>"], "added_tokens_decoder"),
        )
    ),
    (PLAIN | {"tokenizer_config.json": {"never_split": [1]}}, "never_split"),
    (PLAIN | {"tokenizer_config.json": {"never_split": "ab"}}, "never_split"),
    *(
        (files | {"tokenizer_config.json": {key: "yes"}}, key)
        for files in (PLAIN, {"tokenizer.json": library().to_str()})
        for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    ),
]


@together(("files", "named"), REFUSED)
def test_files_that_are_missing_damaged_or_of_the_wrong_kind_are_refused_by_name(
    tmp_path: Path, files: dict[str, Any], named: str
) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(TokenizerError, match=named):
        read_tokenizer(put(tmp_path, files))


@pytest.mark.parametrize("mask", ["<mask>", {"content": "<mask>", "lstrip": False}])
def test_special_tokens_are_those_that_the_settings_name(tmp_path: Path, mask: object) -> None:
    words = [*VOCAB[:4], "<mask>", *VOCAB[5:]]
    write(tmp_path, words, {"mask_token": mask})
    (tmp_path / "special_tokens_map.json").write_text('{"mask_token": "the", "pad_token": "[PAD]"}', encoding="utf-8")
    found = opened(tmp_path)
    assert found.mask_token == "<mask>" and found.token_id("<mask>") == 4
    assert found.encode("the <mask> sat").ids == [2, 5, 4, VOCAB.index("sat"), 3]
    assert found.encode("the [MASK]").ids.count(4) == 0


def test_a_role_without_a_token_is_left_out(tmp_path: Path) -> None:
    assert "mask" not in read_tokenizer(write(tmp_path, [*VOCAB[:4], *VOCAB[5:]])).special
    with pytest.raises(TokenizerError, match=r"'</s>'.*vocabulary"):
        read_tokenizer(write(tmp_path, VOCAB, {"sep_token": "</s>"}))


@pytest.mark.parametrize(("written", "longest"), [(16, 16), (10**30, 32), (1e30, 32), (None, 32), (512, 32)])
def test_the_longest_input_is_what_model_and_tokenizer_both_take(
    tmp_path: Path, written: float | None, longest: int
) -> None:
    assert opened(write(tmp_path, VOCAB, {"model_max_length": written})).max_length == longest


@pytest.mark.parametrize("number", [len(VOCAB), 5000, 2**32 - 1])
def test_an_id_beyond_the_word_embeddings_is_refused_with_the_model(tmp_path: Path, number: int) -> None:
    saved = json.loads(library().to_str())
    saved["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", number], "cls": ["[CLS]", 2]}
    put(tmp_path, {"tokenizer.json": saved})
    with pytest.raises(TokenizerError, match=rf"{number}.* {len(VOCAB)} word embeddings"):
        opened(tmp_path, rows=len(VOCAB))


@pytest.mark.parametrize("number", [len(VOCAB), 5000, 2**32 - 1])
def test_one_of_the_vocabulary_is_refused_where_it_is_used(tmp_path: Path, number: int) -> None:
    """To look at all ids takes as long as a tenth of reading the largest vocabularies."""
    saved = json.loads(library().to_str())
    saved["model"]["vocab"]["cat"] = number
    found = opened(put(tmp_path, {"tokenizer.json": saved}), rows=len(VOCAB))
    assert found.encode("the dog").ids
    ways: list[Callable[[], object]] = [
        lambda: found.encode("the cat sat"),
        lambda: found.encode("dog", "cat"),
        lambda: found.windows("dog " * 99 + "cat", stride=0),
        lambda: found.token_id("cat"),
        lambda: found.word_id("cat"),
        lambda: found.encode_many(["dog"]),
        lambda: found.adapted(lower_case=True),
        found.known_ids,
    ]
    for way in ways:
        with pytest.raises(TokenizerError, match=rf"{number}.* {len(VOCAB)} word embeddings"):
            way()


def bare(folder: Path, **parts: Any) -> Path:
    """A folder with a tokenizer without special tokens."""
    saved = json.loads(library().to_str()) | {"added_tokens": []} | parts
    saved["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps(saved), encoding="utf-8")
    return folder


def test_a_text_without_a_token_is_a_bad_record(tmp_path: Path) -> None:
    found = opened(bare(tmp_path))
    assert found.encode("the cat").ids == [VOCAB.index("the"), VOCAB.index("cat")]
    ways: list[Callable[[], object]] = [
        lambda: found.encode(""),
        lambda: found.encode(" ", ""),
        lambda: found.windows("", stride=0),
        lambda: found.windows("", "", stride=0),
        lambda: found.around("", 4),
        lambda: found.encode_each("", [""]),
    ]
    for way in ways:
        with pytest.raises(InputError, match="no token"):
            way()


def test_a_normalizer_that_leaves_nothing_is_read(tmp_path: Path) -> None:
    """Word markers are looked for in a text of which nothing is left."""
    nothing = {"type": "Replace", "pattern": {"Regex": "[ a]"}, "content": ""}
    metaspace = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True}
    model = {"type": "BPE", "vocab": {token: number for number, token in enumerate(VOCAB)}, "merges": []}
    saved = bare(tmp_path, normalizer=nothing, pre_tokenizer=metaspace, model=model | {"unk_token": "[UNK]"})
    assert read_tokenizer(saved).spelling.word_start == ""


def test_dropout_of_merges_is_switched_off_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    vocab = {token: number for number, token in enumerate(("<unk>", *"abcd", "ab", "cd", "abcd"))}
    merges = [["a", "b"], ["c", "d"], ["ab", "cd"]]
    model = {"type": "BPE", "dropout": 0.9, "unk_token": "<unk>", "vocab": vocab, "merges": merges}
    found = read_tokenizer(bare(tmp_path, model=model, normalizer=None, pre_tokenizer=None))
    assert {tuple(found.tokenizer.encode("abcd").tokens) for _ in range(50)} == {("abcd",)}
    assert "dropout 0.9" in caplog.text


def test_line_ends_of_windows_are_no_part_of_the_tokens(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(VOCAB).encode())
    assert opened(tmp_path).encode("the milk").ids == [2, 5, VOCAB.index("milk"), 3]


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer", "XLMTokenizerFast"])
def test_a_class_that_splits_words_in_its_own_way_is_refused_by_name(tmp_path: Path, name: str) -> None:
    library().save(str(tmp_path / "tokenizer.json"))  # which cannot say what the class does
    with pytest.raises(TokenizerError, match=name.removesuffix("Fast")) as caught:
        read_tokenizer(write(tmp_path, VOCAB, {"tokenizer_class": name}))
    assert caught.value.hint is not None


@pytest.mark.parametrize("name", ["HerbertTokenizer", "MyTokenizer"])
def test_an_unknown_class_is_refused_without_a_tokenizer_json(tmp_path: Path, name: str) -> None:
    write(tmp_path, VOCAB, {"tokenizer_class": name})
    with pytest.raises(TokenizerError, match=name) as caught:
        read_tokenizer(tmp_path)
    assert caught.value.hint is not None and "tokenizer.json" in caught.value.hint
    library().save(str(tmp_path / "tokenizer.json"))
    assert tokens(tmp_path, "the cat") == ["the", "cat"]


def test_an_error_of_the_tokenizer_comes_before_one_of_the_weights(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are read at the same time."""

    def fail(*_: object, **__: object) -> None:
        raise CheckpointError("the weights are damaged")

    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    monkeypatch.setattr(loading, "build_network", fail)
    with pytest.raises(CheckpointError, match="weights are damaged"):
        mlxbert.load(folder)
    for path in [*folder.glob("vocab.txt"), *folder.glob("tokenizer.json")]:
        path.unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        mlxbert.load(folder)
