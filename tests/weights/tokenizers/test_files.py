"""Vocabulary files: both kinds say the same, settings and added tokens next to them count, damaged ones fail."""

import gc
import json
import shutil
from collections.abc import Callable, Mapping
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
from tests.helpers.vocabularies import byte_files, put

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
    return put(folder, {"vocab.txt": "\n".join(vocab) + "\n", "tokenizer_config.json": dict(settings or {})})


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
def test_garbage_is_collected_afterwards_as_before(tmp_path: Path, collects: bool) -> None:
    try:
        (gc.enable if collects else gc.disable)()
        read_tokenizer(write(tmp_path))
        assert gc.isenabled() == collects
        with pytest.raises(TokenizerError):
            read_tokenizer(write(tmp_path, ["a"]))  # without special tokens
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_both_kinds_of_file_give_the_same_inputs(tmp_path: Path) -> None:
    """The whole file is read before the plain one, without the truncation and padding that it was saved with."""
    saved = library()
    saved.enable_truncation(max_length=4)
    saved.enable_padding(length=30)
    one = opened(write(tmp_path / "plain"))
    other = opened(put(write(tmp_path / "whole", [*VOCAB, "cats"]), {"tokenizer.json": saved.to_str()}))
    assert one.special == other.special and one.vocab_size == other.vocab_size == NEXT
    for text in TEXTS:
        assert one.encode(text) == other.encode(text)
        assert one.encode(text, "the dog") == other.encode(text, "the dog")
    assert one.encode("[MASK] cats").ids == [2, 4, VOCAB.index("cat"), VOCAB.index("##s"), 3]


@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    ("settings", "found"),
    [
        *((given, ["cat", "cafe", "中", "文"]) for given in ({}, {"do_lower_case": True}, {"strip_accents": None})),
        ({"do_lower_case": False}, ["Cat", "café", "中", "文"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Cat", "cafe", "中", "文"]),
        ({"strip_accents": False}, ["cat", "café", "中", "文"]),
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


def test_added_tokens_get_the_ids_of_their_files(tmp_path: Path) -> None:
    write(tmp_path, VOCAB, {"added_tokens_decoder": {"0": "[PAD]", str(NEXT + 1): entry("<Tag>")}})
    put(tmp_path, {"added_tokens.json": {"old-town": NEXT + 2, "new-york": NEXT}})  # in no order
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
    *(
        (PLAIN | {f"{name}.json": "{"}, f"{name}.json: the file is not valid JSON")
        for name in ("tokenizer_config", "special_tokens_map")
    ),
    *(
        (PLAIN | {"added_tokens.json": content}, said)
        for content, said in (
            ({"<x>": NEXT + 7}, "'<x>' has id 52"), ({"the": 0}, "'the' has id 5 in the vocabulary, expected 0"),
            ('["<x>"]', "expected a JSON object"), ({"<x>": "5", "<y>": NEXT}, "<x>"),
        )
    ),
    *(
        (PLAIN | {"tokenizer_config.json": settings}, named)
        for settings, named in (
            ({"added_tokens_decoder": {"many": {"content": "<x>"}}}, "'many': .*expected an id"),
            ({"added_tokens_decoder": {str(NEXT): {"text": "<x>"}}}, "expected an id"),
            ({"added_tokens_decoder": {str(NEXT): {"content": "<x>", "special": True}, "9": "special"}}, "special"),
            ({"added_tokens_decoder": ["<x>"]}, "added_tokens_decoder"),
            ({"never_split": [1]}, "never_split"), ({"never_split": "ab"}, "never_split"),
            ({"never_split": ["a.b"]}, r"never_split.*'a\.b'.*vocabulary"),
            ({"sep_token": "</s>"}, r"'</s>'.*vocabulary"),
            ({"tokenizer_class": "HerbertTokenizerFast"}, "'HerbertTokenizerFast'"),
        )
    ),
    *(
        (files | {"tokenizer_config.json": {key: "yes"}}, key)
        for files in (PLAIN, {"tokenizer.json": library().to_str()})
        for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    ),
]  # fmt: skip


@together(("files", "named"), REFUSED)
def test_files_that_are_missing_damaged_or_of_the_wrong_kind_are_refused_by_name(
    tmp_path: Path, files: dict[str, Any], named: str
) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(TokenizerError, match=named):
        read_tokenizer(put(tmp_path, files))


@pytest.mark.parametrize("mask", ["<mask>", {"content": "<mask>", "lstrip": False}])
def test_special_tokens_are_those_that_the_settings_name(tmp_path: Path, mask: object) -> None:
    write(tmp_path, [*VOCAB[:4], "<mask>", *VOCAB[5:]], {"mask_token": mask})
    found = opened(put(tmp_path, {"special_tokens_map.json": {"mask_token": "the", "pad_token": "[PAD]"}}))
    assert found.mask_token == "<mask>" and found.token_id("<mask>") == 4
    assert found.encode("the <mask> sat").ids == [2, 5, 4, VOCAB.index("sat"), 3]
    assert found.encode("the [MASK]").ids.count(4) == 0


def test_a_role_without_a_token_is_left_out(tmp_path: Path) -> None:
    assert "mask" not in read_tokenizer(write(tmp_path, [*VOCAB[:4], *VOCAB[5:]])).special


@pytest.mark.parametrize(("written", "longest"), [(16, 16), (10**30, 32), (1e30, 32), (None, 32), (512, 32)])
def test_the_longest_input_is_what_model_and_tokenizer_both_take(
    tmp_path: Path, written: float | None, longest: int
) -> None:
    assert opened(write(tmp_path, VOCAB, {"model_max_length": written})).max_length == longest


@pytest.mark.parametrize("number", [len(VOCAB), 5000, 2**32 - 1])
def test_an_id_beyond_the_word_embeddings_is_refused(tmp_path: Path, number: int) -> None:
    """One of the vocabulary where it is used: to look at all takes as long as a tenth of reading the largest ones."""
    saved = json.loads(library().to_str())
    ends = {"type": "BertProcessing", "sep": ["[SEP]", number], "cls": ["[CLS]", 2]}
    put(tmp_path, {"tokenizer.json": saved | {"post_processor": ends}})
    with pytest.raises(TokenizerError, match=rf"{number}.* {len(VOCAB)} word embeddings"):
        opened(tmp_path, rows=len(VOCAB))
    saved["model"]["vocab"]["cat"] = number
    found = opened(put(tmp_path, {"tokenizer.json": saved}), rows=len(VOCAB))
    assert found.encode("the dog").ids
    ways: list[Callable[[], object]] = [
        lambda: found.encode("the cat sat"), lambda: found.encode("dog", "cat"), lambda: found.token_id("cat"),
        lambda: found.windows("dog " * 99 + "cat", stride=0), lambda: found.word_id("cat"), found.known_ids,
        lambda: found.encode_many(["dog"]), lambda: found.adapted(lower_case=True),
    ]  # fmt: skip
    for way in ways:
        with pytest.raises(TokenizerError, match=rf"{number}.* {len(VOCAB)} word embeddings"):
            way()


def bare(folder: Path, **parts: Any) -> Path:
    ends = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return put(
        folder,
        {"tokenizer.json": json.loads(library().to_str()) | {"added_tokens": [], **parts, "post_processor": ends}},
    )


def test_a_text_without_a_token_is_a_bad_record(tmp_path: Path) -> None:
    found = opened(bare(tmp_path))
    assert found.encode("the cat").ids == [VOCAB.index("the"), VOCAB.index("cat")]
    ways: list[Callable[[], object]] = [
        lambda: found.encode(""), lambda: found.encode(" ", ""), lambda: found.windows("", stride=0),
        lambda: found.windows("", "", stride=0), lambda: found.around("", 4), lambda: found.encode_each("", [""]),
    ]  # fmt: skip
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
    assert opened(put(tmp_path, {"vocab.txt": "\r\n".join(VOCAB)})).encode("the milk").ids == [
        2,
        5,
        VOCAB.index("milk"),
        3,
    ]


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer", "XLMTokenizerFast"])
def test_a_class_that_splits_words_in_its_own_way_is_refused_by_name(tmp_path: Path, name: str) -> None:
    library().save(str(tmp_path / "tokenizer.json"))  # which cannot say what the class does
    with pytest.raises(TokenizerError, match=name.removesuffix("Fast")) as caught:
        read_tokenizer(write(tmp_path, VOCAB, {"tokenizer_class": name}))
    assert caught.value.hint is not None


def test_an_unknown_class_is_refused_without_a_tokenizer_json(tmp_path: Path) -> None:
    for name in ("HerbertTokenizer", "MyTokenizer"):
        write(tmp_path / name, VOCAB, {"tokenizer_class": name})
        with pytest.raises(TokenizerError, match=name) as caught:
            read_tokenizer(tmp_path / name)
        assert caught.value.hint is not None and "tokenizer.json" in caught.value.hint
        library().save(str(tmp_path / name / "tokenizer.json"))
        assert tokens(tmp_path / name, "the cat") == ["the", "cat"]


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


# Special tokens, words, the parts of "foobar".
NAMED = list(dict.fromkeys([*tiny.VOCAB, "[unused1]", *"fobarx", "##o", "##b", "##a", "##r"]))
END = len(NAMED)
BERT: dict[str, Any] = {"vocab.txt": "\n".join(NAMED) + "\n"}
TEXT = "the cat<e1> [unused1] <E1> FooBar x foobar <bos> <e2>[MASK] <s></s> the"


def entry(content: str) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, "special": True, **plain}


WAYS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "additional": ({"additional_special_tokens": ["[unused1]", "<e1>"]}, {}),
    "extra, a list": ({"extra_special_tokens": ["<e2>", "<e1>"]}, {}),
    "extra, a table": ({"extra_special_tokens": {"first_token": "<e1>", "second_token": "<e2>"}}, {}),
    "both lists": ({"extra_special_tokens": ["<e2>"], "additional_special_tokens": ["<e1>"]}, {}),
    "bos and an extra": ({"bos_token": "<bos>", "extra_special_tokens": ["<e1>"]}, {}),
    "added_tokens.json": ({}, {"FooBar": END, "<e1>": END + 1}),
    "added_tokens.json, special": ({"additional_special_tokens": ["<e1>"]}, {"FooBar": END, "<e1>": END + 1}),
    "decoder": ({"added_tokens_decoder": {str(END): entry("<e1>"), str(END + 1): entry("<e2>")}}, {}),
}


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *((way, kind) for way in WAYS for kind in ("plain", "whole")),
        *((way, "roberta") for way in ("additional", "bos and an extra")),
    ],
)
@pytest.mark.slow
def test_added_tokens_have_the_ids_of_transformers(way: str, kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings, added = WAYS[way]
    name, files = ("Roberta", byte_files()) if kind == "roberta" else ("Bert", BERT)
    folder = put(tmp_path, {**files, "config.json": {"model_type": name.lower()}})
    if kind == "whole":
        read_tokenizer(folder).tokenizer.save(str(folder / "tokenizer.json"))
    put(folder, {"tokenizer_config.json": {"tokenizer_class": f"{name}Tokenizer", **settings}})
    if added:
        put(folder, {"added_tokens.json": added})
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours = read_tokenizer(folder).tokenizer
    assert ours.encode(TEXT).ids == theirs(TEXT)["input_ids"] and ours.get_vocab_size() == len(theirs)


@together(
    ("key", "value"),
    [
        ("mask_token", 5), ("bos_token", ["a"]), ("extra_special_tokens", "<e1>"), ("additional_special_tokens", [3]),
        ("model_max_length", "512"), ("model_max_length", True),
    ],
)  # fmt: skip
@together("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_malformed_settings_are_refused_by_file_and_key(tmp_path: Path, key: str, value: object, file: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        read_tokenizer(put(tmp_path / f"{key}{value}{file}", {**PLAIN, file: json.dumps({key: value})}))
    assert all(part in caught.value.message for part in (file, key, repr(value), "expected"))
