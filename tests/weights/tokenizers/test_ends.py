"""A `tokenizer.json` next to what its class and the settings say: special tokens, steps, and what is said.

Slow tests compare every class, template and vocabulary with transformers.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import Tokenizer as Library, models, normalizers, pre_tokenizers, processors

from mlxbert.errors import TokenizerError
from mlxbert.text.tokenizer import Tokenizer, load_tokenizer
from mlxbert.weights.tokenizers.sentencepiece_tokenizer import CONTROL, UNKNOWN
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import BYTE_TOKENS, HEAD, byte_files, pieces_file, plain, put

SHIFT = 7  # what ids were larger by before the vocabulary was pruned
_WORDS = ["the", "cat", "##s", "t", "##he"]
_PIECES = plain("\u2581the", "\u2581cat", "\u2581", *"thecas")
_BERT_NAMES = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
_ENDS = ("[CLS]", "[SEP]", "[MASK]")
_CONTROLS = [(name, 0.0, CONTROL) for name in _ENDS]


class Vocabulary(NamedTuple):
    """The vocabulary of a folder with a certain tokenizer class."""

    model_type: str  # of a model with this tokenizer class
    files: Mapping[str, str | bytes]  # by name
    first: str = "[CLS]"  # the token before a text
    last: str = "[SEP]"  # the token after a text
    mask: str = "[MASK]"


_FAIRSEQ: dict[str, Any] = {"first": "<s>", "last": "</s>", "mask": "<mask>"}
_FAIRSEQ_FILES = {"sentencepiece.bpe.model": pieces_file([*HEAD, *_PIECES])}
VOCABULARIES = {
    "BertTokenizer": Vocabulary("bert", {"vocab.txt": "\n".join(["[PAD]", "[UNK]", *_ENDS, *_WORDS])}),
    "DistilBertTokenizer": Vocabulary("distilbert", {"vocab.txt": "\n".join(["[PAD]", *_WORDS, "[UNK]", *_ENDS])}),
    "MPNetTokenizer": Vocabulary(
        "mpnet", {"vocab.txt": "\n".join(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *_WORDS, "<mask>"])}, **_FAIRSEQ
    ),
    "RobertaTokenizer": Vocabulary("roberta", byte_files(), **_FAIRSEQ),
    "DebertaTokenizer": Vocabulary("deberta", byte_files([_BERT_NAMES.get(token, token) for token in BYTE_TOKENS])),
    "XLMRobertaTokenizer": Vocabulary("xlm-roberta", _FAIRSEQ_FILES, **_FAIRSEQ),
    "CamembertTokenizer": Vocabulary("camembert", _FAIRSEQ_FILES, **_FAIRSEQ),
    "AlbertTokenizer": Vocabulary(
        "albert",
        {"spiece.model": pieces_file([("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), *_CONTROLS, *_PIECES])},
    ),
    "DebertaV2Tokenizer": Vocabulary(
        "deberta-v2",
        {"spm.model": pieces_file([("[PAD]", 0.0, CONTROL), *_CONTROLS[:2], ("[UNK]", 0.0, UNKNOWN), *_PIECES])},
    ),
}


def templates(first: str, last: str, mask: str, ids: Mapping[str, int]) -> dict[str, Any]:
    def template(single: str, pair: str) -> Any:
        used = [(token, number) for token, number in ids.items() if token in f"{single} {pair}"]
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)

    begin, end, both = (first, ids[first]), (last, ids[last]), f"{first} $A {last}"
    return {
        "null": None,
        "first alone": template(f"{first} $A", f"{first} $A $B:1"),
        "ByteLevel": processors.ByteLevel(trim_offsets=False),
        "one segment": template(both, f"{both} $B {last}"),
        "two segments": template(both, f"{both} $B:1 {last}:1"),
        "doubled": template(both, f"{both} {last} $B {last}"),
        "other tokens": template(f"{mask} $A {first}", f"{mask} $A {last} $B:1 {first}:1"),
        "BertProcessing": processors.BertProcessing(end, begin),
        "RobertaProcessing": processors.RobertaProcessing(end, begin, trim_offsets=False, add_prefix_space=True),
        "Sequence": processors.Sequence([processors.ByteLevel(), template(f"$A {last}", f"$A {last} $B:1")]),
        "nothing": template("$A", "$A $B:1"),
    }


TEMPLATES = tuple(templates("a", "b", "c", {"a": 0, "b": 1, "c": 2}))


def save_ends(
    folder: Path, name: str, template: str, declared: str | None, *, pruned: bool = False, **settings: Any
) -> Path:
    """Writes a model folder whose `tokenizer.json` has this post-processor; returns the folder.

    If `pruned`, the ids of the post-processor and of added tokens are still those before the vocabulary was pruned.
    """
    vocabulary = VOCABULARIES[name]
    tokenizer = read_tokenizer(
        put(folder / "made", {**vocabulary.files, "tokenizer_config.json": {"tokenizer_class": name}})
    )
    saved = json.loads(tokenizer.tokenizer.to_str())
    for token in saved["added_tokens"]:
        token["id"] += SHIFT if pruned else 0
    ids = {token["content"]: token["id"] for token in saved["added_tokens"]}
    step = templates(vocabulary.first, vocabulary.last, vocabulary.mask, ids)[template]
    saved["post_processor"] = None if step is None else json.loads(step.__getstate__())
    named = {f"{role}_token": token for role, token in tokenizer.special.items()}
    if name.startswith(("Roberta", "XLM", "Camembert", "MPNet")):
        named |= {"bos_token": "<s>", "eos_token": "</s>"}
    if declared is not None:
        named["tokenizer_class"] = declared
    config = {"model_type": vocabulary.model_type}
    files = {"tokenizer.json": saved, "tokenizer_config.json": named | settings, "config.json": config}
    return put(folder / "model", files)


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
    for number, template in enumerate(TEMPLATES[:: 1 + pruned]):
        caplog.clear()
        declared = (name, f"{name}Fast")[number % 2]
        found = opened(save_ends(tmp_path / str(number), name, template, declared, pruned=pruned))
        assert shapes(name, found) == expected, template
        segments = [segment for _, segment in found.templates[1]]
        assert segments == ([0, 0, 0, 1, 1] if name in ("BertTokenizer", "DebertaV2Tokenizer") else [0] * len(segments))
        same = FILES[template] == expected and (template != "one segment" or name not in SEGMENTS)
        shifted = pruned and set("".join(FILES[template])) & set("flm")
        assert ("post_processor is" in caplog.text) == (not same or bool(shifted)), template


@pytest.mark.parametrize("declared", ["PreTrainedTokenizerFast", "TokenizersBackend", "OtherTokenizer", None])
def test_without_a_class_the_file_alone_counts(
    declared: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And before that of ALBERT."""
    name = "BertTokenizer" if declared else "AlbertTokenizer"
    for template in TEMPLATES:
        caplog.clear()
        found = shapes(name, opened(save_ends(tmp_path / template, name, template, declared)))
        assert found == (("fAl", "fAlBl") if template == "null" and not declared else FILES[template])
        assert not declared or ("no special tokens" in caplog.text) == (template == "null")


@pytest.mark.parametrize("model_type", ["modernbert", "eurobert", "neobert"])
def test_families_without_a_class_of_their_own_use_the_file(model_type: str, tmp_path: Path) -> None:
    declared = "BertTokenizer" if model_type == "modernbert" else None
    folder = put(
        save_ends(tmp_path, "BertTokenizer", "first alone", declared), {"config.json": {"model_type": model_type}}
    )
    assert shapes("BertTokenizer", opened(folder)) == ("fA", "fAB")


def test_ids_of_another_vocabulary_are_said_and_those_without_an_embedding_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_ends(tmp_path, "BertTokenizer", "one segment", "PreTrainedTokenizerFast", pruned=True)
    found = opened(folder)
    assert shapes("BertTokenizer", found, SHIFT) == FILES["one segment"]
    assert re.search(rf"\[CLS\] with the id {2 + SHIFT}.* 2 ", caplog.text)
    with pytest.raises(TokenizerError, match=rf"id {3 + SHIFT},.* {3 + SHIFT} word embeddings"):
        opened(folder, rows=3 + SHIFT)
    opened(save_ends(tmp_path / "class", "BertTokenizer", "one segment", None, pruned=True), rows=3 + SHIFT)


def test_a_vocabulary_of_another_kind_than_the_class_has_is_used_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_ends(tmp_path, "RobertaTokenizer", "first alone", "BertTokenizer")
    assert shapes("RobertaTokenizer", opened(folder)) == ("fA", "fAB")
    assert "BPE" in caplog.text and "WordPiece" in caplog.text


def test_a_normalizer_and_splits_that_roberta_does_not_have_are_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_ends(tmp_path, "RobertaTokenizer", "RobertaProcessing", "RobertaTokenizer")
    before = opened(folder).pieces("Paris the")
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")) | {"normalizer": {"type": "Lowercase"}}
    saved["pre_tokenizer"]["add_prefix_space"] = True
    caplog.clear()
    assert opened(put(folder, {"tokenizer.json": saved})).pieces("Paris the") == before
    assert "normalizer is Lowercase, but null" in caplog.text and "pre_tokenizer is ByteLevel" in caplog.text


@pytest.mark.parametrize(
    ("declared", "names", "types", "segment", "said"),
    [
        ("BertTokenizer", None, 2, 1, False),
        ("BertTokenizer", ["input_ids", "attention_mask"], 2, 0, False),
        ("DistilBertTokenizer", None, 2, 0, False),
        ("AlbertTokenizer", None, 2, 1, True),
        ("PreTrainedTokenizerFast", ["input_ids", "token_type_ids"], 2, 1, False),
        ("PreTrainedTokenizerFast", None, 2, 1, True),
        ("PreTrainedTokenizerFast", None, 1, 0, False),
    ],
)
def test_a_model_gets_segments_where_the_files_or_the_class_say_so(
    declared: str, names: list[str] | None, types: int, segment: int, said: bool, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    name = declared if declared in VOCABULARIES else "BertTokenizer"
    settings: dict[str, Any] = {} if names is None else {"model_input_names": names}
    found = opened(save_ends(tmp_path, name, "two segments", declared, **settings), type_vocab_size=types)
    found.encode("the")
    assert not caplog.records
    assert [found.encode("the", "cat").token_type_ids[-1] for _ in range(2)] == [segment] * 2
    assert len(caplog.records) == said


def test_input_names_that_are_no_list_are_refused(tmp_path: Path) -> None:
    folder = save_ends(tmp_path, "BertTokenizer", "null", None, model_input_names="token_type_ids")
    with pytest.raises(TokenizerError, match="model_input_names is 'token_type_ids', expected a list"):
        opened(folder)


TEXTS = (
    ("the cat", None), ("the cats", "the"), ("zzz \u00e9", "the"), ("the [MASK]cat", "cat"), ("the <mask>cat", "the"),
)  # fmt: skip
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend", "OtherTokenizer")


@pytest.mark.slow
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_offsets_and_segments_are_those_of_transformers(name: str, pruned: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    own = (name, f"{name}Fast") if name == "DebertaTokenizer" else (name, f"{name}Fast", None)
    segments = 2 if name in ("BertTokenizer", "AlbertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer") else 1
    for number, template in enumerate(TEMPLATES):
        for declared in (*own, GENERIC[number % 3]):
            folder = save_ends(tmp_path / template / str(declared), name, template, declared, pruned=pruned)
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            ours = load_tokenizer(folder, tiny_config(vocab_size=1000, type_vocab_size=segments))
            for text, pair in TEXTS:
                expected: Any = theirs(text, pair)
                found, encoding = ours.encode(text, pair), expected._encodings[0]
                offsets = []
                for (start, end), part in zip(encoding.offsets, encoding.sequence_ids, strict=True):
                    before = (text, pair or "")[part][start - 1 : start] if part is not None else ""
                    # A space after letters without a token is an empty span for the library, for us their last.
                    spaced = start == end and before and not before.isspace()
                    offsets.append((start - 1, end) if spaced else (start, end))
                assert (found.ids, found.offsets) == (expected["input_ids"], offsets), (text, pair)
                given = expected.get("token_type_ids", [0] * len(found))
                if "token_type_ids" not in expected and segments > 1:
                    given = encoding.type_ids  # where mlxbert differs, which is said
                assert found.token_type_ids == given
            padded = theirs([text for text, _ in TEXTS], padding=True)["input_ids"]
            assert padded[0][-1] == ours.token_id(ours.special["pad"])
            for role in ("pad", "mask", "cls", "sep", "unk"):
                assert getattr(theirs, f"{role}_token_id") == ours.token_id(ours.special[role])


TEXT = "The Café 中文 cat's"
LOWERED = ["the", "cafe", "中", "文", "cat", "'", "s"]
CASED = ["The", "Café", "中", "文", "cat", "'", "s"]
STEPS: dict[str, normalizers.Normalizer | None] = {
    "null": None,
    "Lowercase": normalizers.Lowercase(),
    "Sequence": normalizers.Sequence([normalizers.NFC(), normalizers.BertNormalizer()]),
}
STEPS_OF_BERT = {"lower": normalizers.BertNormalizer(), "cased": normalizers.BertNormalizer(lowercase=False)}
BERT = pre_tokenizers.BertPreTokenizer()
SPLITS = {"bert": BERT, "null": None, "spaces": pre_tokenizers.WhitespaceSplit()}


def save_steps(
    folder: Path, normalizer: normalizers.Normalizer | None, splits: pre_tokenizers.PreTokenizer | None, **settings: Any
) -> Path:
    """A `tokenizer.json` with these steps, in which the words of `TEXT` are tokens."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LOWERED, "The", "Café", "中文", "cat's"]
    tokenizer = Library(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    for part, step in (("normalizer", normalizer), ("pre_tokenizer", splits)):
        if step is not None:
            setattr(tokenizer, part, step)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    files = {"config.json": {"model_type": "bert"}, "tokenizer_config.json": settings}
    return put(folder, {"tokenizer.json": tokenizer.to_str(), **files})


def split(folder: Path) -> list[str]:
    return read_tokenizer(folder).tokenizer.encode(TEXT, add_special_tokens=False).tokens


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("settings", "expected"), [({}, LOWERED), ({"do_lower_case": False}, CASED)])
@pytest.mark.parametrize("name", [None, "BertTokenizer", "BertTokenizerFast"])
def test_other_steps_than_those_of_the_class_are_replaced_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: str, settings: dict[str, Any], expected: list[str],
    name: str | None,
) -> None:  # fmt: skip
    for splits in SPLITS.values():
        caplog.clear()
        assert split(save_steps(tmp_path, STEPS[step], splits, **settings, tokenizer_class=name)) == expected
        assert f"normalizer is {step}" in caplog.text
        assert ("pre_tokenizer is" in caplog.text) == (splits is not BERT)


def test_a_file_of_a_generic_class_is_read_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in GENERIC:
        given: dict[str, Any] = {"tokenizer_class": name, "do_lower_case": True}
        assert split(save_steps(tmp_path, None, SPLITS["spaces"], **given)) == ["The", "Café", "中文", "cat's"]
        assert split(save_steps(tmp_path, STEPS_OF_BERT["cased"], BERT, **given)) == CASED
    assert not caplog.records


def test_a_cased_file_without_settings_is_not_lower_cased_which_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cased = STEPS_OF_BERT["cased"]
    assert split(save_steps(tmp_path, cased, BERT, do_lower_case=False)) == CASED and not caplog.records
    assert split(save_steps(tmp_path, cased, BERT)) == CASED
    assert "do_lower_case" in caplog.text


@pytest.mark.parametrize("key", ["padding_side", "truncation_side"])
def test_sides_that_are_not_followed_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str) -> None:
    for side in ("right", "left"):
        settings: dict[str, Any] = {key: side}
        read_tokenizer(save_steps(tmp_path, STEPS_OF_BERT["lower"], BERT, **settings))
        assert (f"{key} is left" in caplog.text) == bool(caplog.records) == (side == "left")


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
    pieces = [(token, 0.0) for token in ("<pad>", "<unk>", *_ENDS)]
    pieces += [(letter, -3.0) for letter in sorted({*'▁"e\u0301é', *text, *text.lower()})]
    getattr(transformers, name)(vocab=pieces, **settings).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    put(tmp_path, {"tokenizer.json": values | {"normalizer": None}, "config.json": {"model_type": kind}})
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)(text, add_special_tokens=False)["input_ids"]
    assert read_tokenizer(tmp_path).tokenizer.encode(text, add_special_tokens=False).ids == expected
