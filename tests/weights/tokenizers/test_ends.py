"""The special tokens around texts with a `tokenizer.json`: those of its class or of the file, and what is said.

Slow tests compare every class, template and vocabulary with transformers.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

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
_CONTROLS = [(name, 0.0, CONTROL) for name in ("[CLS]", "[SEP]", "[MASK]")]


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a folder with a certain tokenizer class."""

    model_type: str  # of a model with this tokenizer class
    files: Mapping[str, str | bytes]  # by name
    first: str = "[CLS]"  # the token before a text
    last: str = "[SEP]"  # the token after a text
    mask: str = "[MASK]"


_FAIRSEQ: dict[str, Any] = {"first": "<s>", "last": "</s>", "mask": "<mask>"}
_FAIRSEQ_FILES = {"sentencepiece.bpe.model": pieces_file([*HEAD, *_PIECES])}
VOCABULARIES = {
    "BertTokenizer": Vocabulary(
        "bert", {"vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS])}
    ),
    "DistilBertTokenizer": Vocabulary(
        "distilbert", {"vocab.txt": "\n".join(["[PAD]", *_WORDS, "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    ),
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
}  # fmt: skip


def _template(single: str, pair: str, ids: Mapping[str, int]) -> Any:
    used = [(token, number) for token, number in ids.items() if token in f"{single} {pair}"]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)


def templates(first: str, last: str, mask: str, ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns post-processors of all kinds, by name."""
    begin, end = (first, ids[first]), (last, ids[last])
    both = f"{first} $A {last}"
    return {
        "null": None,
        "first alone": _template(f"{first} $A", f"{first} $A $B:1", ids),
        "ByteLevel": processors.ByteLevel(trim_offsets=False),
        "one segment": _template(both, f"{both} $B {last}", ids),
        "two segments": _template(both, f"{both} $B:1 {last}:1", ids),
        "doubled": _template(both, f"{both} {last} $B {last}", ids),
        "other tokens": _template(f"{mask} $A {first}", f"{mask} $A {last} $B:1 {first}:1", ids),
        "BertProcessing": processors.BertProcessing(end, begin),
        "RobertaProcessing": processors.RobertaProcessing(end, begin, trim_offsets=False, add_prefix_space=True),
        "Sequence": processors.Sequence([processors.ByteLevel(), _template(f"$A {last}", f"$A {last} $B:1", ids)]),
        "nothing": _template("$A", "$A $B:1", ids),
    }


TEMPLATES = tuple(templates("a", "b", "c", {"a": 0, "b": 1, "c": 2}))


def save_ends(folder: Path, name: str, template: str, *, pruned: bool, declared: str | None, **settings: Any) -> Path:
    """Writes a model folder whose `tokenizer.json` has this post-processor; returns the folder.

    If `pruned`, the ids of the post-processor and of added tokens are still those before the vocabulary was pruned.
    """
    vocabulary = VOCABULARIES[name]
    (folder / "made").mkdir(parents=True)
    source = put(folder / "made", {**vocabulary.files, "tokenizer_config.json": {"tokenizer_class": name}})
    tokenizer = read_tokenizer(source)
    saved = json.loads(tokenizer.tokenizer.to_str())
    shift = SHIFT if pruned else 0
    ids = {token["content"]: token["id"] + shift for token in saved["added_tokens"]}
    for token in saved["added_tokens"]:
        token["id"] += shift
    step = templates(vocabulary.first, vocabulary.last, vocabulary.mask, ids)[template]
    saved["post_processor"] = None if step is None else json.loads(step.__getstate__())
    named = {f"{role}_token": token for role, token in tokenizer.special.items()}
    if name.startswith(("Roberta", "XLM", "Camembert", "MPNet")):
        named |= {"bos_token": "<s>", "eos_token": "</s>"}
    if declared is not None:
        named["tokenizer_class"] = declared
    return put(
        folder / "model",
        {
            "tokenizer.json": saved,
            "tokenizer_config.json": named | settings,
            "config.json": {"model_type": vocabulary.model_type},
        },
    )


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


TEXTS = (
    ("the cat", None),
    ("the cats", "the"),
    ("zzz \u00e9", "the"),
    ("the [MASK]cat", "cat"),
    ("the <mask>cat", "the"),
)
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend", "OtherTokenizer")
ROLES = ("pad", "mask", "cls", "sep", "unk")


def compare(folder: Path, segments: int) -> None:
    """Compares the inputs with those of transformers."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder, tiny_config(vocab_size=1000, type_vocab_size=segments))
    for text, pair in TEXTS:
        expected: Any = theirs(text, pair)
        found = ours.encode(text, pair)
        encoding = expected._encodings[0]
        offsets = []
        for (start, end), part in zip(encoding.offsets, encoding.sequence_ids, strict=True):
            before = (text, pair or "")[part][start - 1 : start] if part is not None else ""
            # A space after letters without a token is an empty span for the library, for us the last of these letters.
            offsets.append((start - 1, end) if start == end and before and not before.isspace() else (start, end))
        assert (found.ids, found.offsets) == (expected["input_ids"], offsets), (text, pair)
        assert [1] * len(found) == expected["attention_mask"]
        given = expected.get("token_type_ids", [0] * len(found))
        if "token_type_ids" not in expected and segments > 1 and "model_input_names" not in theirs.init_kwargs:
            given = expected._encodings[0].type_ids  # where mlxbert differs, which is said
        assert found.token_type_ids == given
    padded = theirs([text for text, _ in TEXTS], padding=True)["input_ids"]
    assert padded[0][-1] == ours.token_id(ours.special["pad"])
    assert [getattr(theirs, f"{role}_token_id") for role in ROLES] == [
        ours.token_id(ours.special[role]) for role in ROLES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_offsets_and_segments_are_those_of_transformers(name: str, pruned: bool, tmp_path: Path) -> None:
    own = (name, f"{name}Fast") if name == "DebertaTokenizer" else (name, f"{name}Fast", None)
    segments = 2 if name in ("BertTokenizer", "AlbertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer") else 1
    for template in TEMPLATES:
        for declared in (*own, *GENERIC):
            folder = save_ends(tmp_path / template / str(declared), name, template, pruned=pruned, declared=declared)
            compare(folder, segments)


@pytest.mark.slow
@pytest.mark.parametrize("names", [["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]])
@pytest.mark.parametrize("declared", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_segments_are_given_as_the_settings_say(declared: str, names: list[str], tmp_path: Path) -> None:
    compare(
        save_ends(tmp_path, "BertTokenizer", "two segments", pruned=False, declared=declared, model_input_names=names),
        2,
    )
