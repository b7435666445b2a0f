"""Original vocabularies next to transformers and sentencepiece: ids, offsets and segments on thousands of lines.

Where the three differ, a line is put down to a named reason, and the lines of each reason are counted.
"""

import functools
import json
import os
import random
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.cells import ALL
from tests.helpers.tiny import tiny_config
from tests.helpers.vocabularies import put

FOLDER = Path(os.environ.get("MLXBERT_TEST_TOKENIZERS", "/none"))
DATA = Path(os.environ.get("MLXBERT_TEST_DATA", "/none"))
LINES = 5000 if ALL else 1500
RANGES = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0x980), (0xE00, 0xE80)),
    *((0x1100, 0x1200), (0x2000, 0x2100), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFF00, 0xFFEF)),
    *((0x1F300, 0x1F700), (0x1F1E6, 0x1F200), (0, 0x20), (0x7F, 0xA1)),
)
WORDS = (
    *("the", "Paris", "1,000", "2019,", "(x)", "``hi''", "#", "##", "'s", "e\u0301", "\u1100\u1161\u11a8", "\ufb01"),
    *("<mask>", "[MASK]", "<s>", "</s>", "[SEP]", "  ", "\t", "\n", "\u3000", "\u200b", "\x85", "\xad", "x" * 120),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2581", "\u0120", "\ufffd", "\u0130"),
    *("\u0928\u092e\u0938\u094d\u0924\u0947", "\u0926\u0941\u0928\u093f\u092f\u093e", "\u0e2b\u0e19\u0e31\u0e07"),
)
SENTENCES = (
    "\u092d\u093e\u0930\u0924 \u090f\u0915 \u092c\u0921\u093c\u093e \u0926\u0947\u0936 \u0939\u0948\u0964",
    "\u041c\u043e\u0441\u043a\u0432\u0430 \u2014 \u0441\u0442\u043e\u043b\u0438\u0446\u0430.",
    "\uc11c\uc6b8\uc740 \ub300\ud55c\ubbfc\uad6d\uc758 \uc218\ub3c4\uc774\ub2e4.",
    "\u0627\u0644\u0642\u0627\u0647\u0631\u0629 \u0645\u062f\u064a\u0646\u0629 \u0643\u0628\u064a\u0631\u0629.",
    *("", " ", "\n\n", "x" * 1500, "Hello <mask> there", "Hello [MASK], [MASK] there", "a<mask>b[MASK]c", " <mask>"),
    "<mask> ",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sampled,
    pytest.mark.skipif(
        not FOLDER.is_dir() or not DATA.is_dir(), reason="MLXBERT_TEST_TOKENIZERS and MLXBERT_TEST_DATA name no folders"
    ),
]


@functools.cache
def lines() -> list[str]:
    """Questions and paragraphs in three languages, and as many made of words and characters of all kinds."""
    found = []
    for language in ("en", "de", "zh"):
        for article in json.loads((DATA / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                found += [paragraph["context"], *(question["question"] for question in paragraph["qas"])]
    generator = random.Random(11)
    generator.shuffle(found)
    found = [*SENTENCES, *found[: LINES // 2 - len(SENTENCES)]]
    while len(found) < LINES:
        parts = []
        for _ in range(generator.randrange(1, 25)):
            if generator.random() < 0.5:
                parts.append(generator.choice(WORDS))
            else:
                first, last = generator.choice(RANGES)
                parts.append("".join(chr(generator.randrange(first, last)) for _ in range(generator.randrange(1, 5))))
            parts.append(generator.choice(("", "", " ", "  ")))
        found.append(unicodedata.normalize(generator.choice(("NFC", "NFD")), "".join(parts)))
    return found


def lstrip(token: str) -> dict[str, Any]:
    """The mask as the checkpoint's own tokenizer.json has it; of the plain files transformers makes one without."""
    return {"mask_token": {"__type": "AddedToken", "content": token, "lstrip": True, "rstrip": False,
                           "normalized": False, "single_word": False}}  # fmt: skip


def mpnet(folder: Path) -> None:
    words = (folder / "vocab.txt").read_text(encoding="utf-8").rstrip("\n")
    (folder / "vocab.txt").write_text(f"<s>\n<pad>\n</s>\n<unk>\n{words}\n<mask>\n", encoding="utf-8")


class Case(NamedTuple):
    """A vocabulary as one family has it."""

    model_type: str  # in config.json
    files: dict[str, str]  # where each file of the folder comes from
    settings: dict[str, Any] | None = None  # tokenizer_config.json
    change: Callable[[Path], None] | None = None  # done to the folder
    shift: Callable[[int], int] | None = None  # the id of a piece of the SentencePiece model
    differs: tuple[str, ...] = ()  # why ids may differ from transformers; the first that shows counts


_UNIGRAM = "sentencepiece-fixtures/test_sentencepiece.model"
_BPE = "sentencepiece-fixtures/test_sentencepiece_bpe.model"
_NO_BOS = "sentencepiece-fixtures/test_sentencepiece_no_bos.model"
_FAIRSEQ = "sentencepiece.bpe.model"
_NO_TABLE, _PAIRS = ("no table of replacements",), ("pairs read as unigrams",)
_ROBERTA = {name: f"roberta-base/{name}" for name in ("vocab.json", "merges.txt")}


def _shifted(places: int) -> Callable[[int], int]:
    return lambda number: number + places if number else 3


_xlm, _camembert = _shifted(1), _shifted(4)


CASES = {
    "bert-base-uncased": Case("bert", {"vocab.txt": "bert-base-uncased/vocab.txt"}),
    **{
        name: Case("bert", {"vocab.txt": f"{name}/vocab.txt"}, {"do_lower_case": False})
        for name in ("bert-base-cased", "bert-base-chinese", "bert-base-multilingual-cased")
    },
    "distilbert": Case("distilbert", {"vocab.txt": "bert-base-uncased/vocab.txt"}),
    "mpnet": Case("mpnet", {"vocab.txt": "bert-base-uncased/vocab.txt"}, change=mpnet),
    "roberta-base": Case("roberta", _ROBERTA, lstrip("<mask>")),
    "roberta-base with a space": Case("roberta", _ROBERTA, lstrip("<mask>") | {"add_prefix_space": True}),
    "roberta-base, plain files": Case("roberta", _ROBERTA, differs=("a space before the mask",)),
    "xlm-roberta-base": Case(
        "xlm-roberta", {_FAIRSEQ: "xlm-roberta-base/sentencepiece.bpe.model.rebuilt"}, lstrip("<mask>"), shift=_xlm
    ),
    "unigram as XLM-R": Case("xlm-roberta", {_FAIRSEQ: _UNIGRAM}, lstrip("<mask>"), shift=_xlm),
    "unigram as CamemBERT": Case("camembert", {_FAIRSEQ: _UNIGRAM}, shift=_camembert),
    "unigram as DeBERTa-v2": Case("deberta-v2", {"spm.model": _UNIGRAM}, shift=int, differs=_NO_TABLE),
    "unigram without <s> as DeBERTa-v2": Case("deberta-v2", {"spm.model": _NO_BOS}, shift=int, differs=_NO_TABLE),
    "albert-base-v2": Case(
        "albert", {"spiece.model": "albert-base-v2/spiece.model"}, lstrip("[MASK]"), shift=int,
        differs=("symbols cut texts", "a comma behind digits"),
    ),
    "bpe as XLM-R": Case("xlm-roberta", {_FAIRSEQ: _BPE}, lstrip("<mask>"), shift=_xlm, differs=_PAIRS),
    "bpe as DeBERTa-v2": Case("deberta-v2", {"spm.model": _BPE}, shift=int, differs=_PAIRS),
}  # fmt: skip


def folder_of(case: Case, folder: Path) -> Path:
    for name, source in case.files.items():
        shutil.copyfile(FOLDER / source, folder / name)
    if case.change is not None:
        case.change(folder)
    return put(folder, {"config.json": {"model_type": case.model_type}, "tokenizer_config.json": case.settings or {}})


# Why transformers gives other ids for the files of a checkpoint than the checkpoint was trained with: what shows it.
REASONS: dict[str, Callable[[str], bool]] = {
    # RobertaTokenizer adds the mask without lstrip, so a space before it becomes a token that no training text had.
    "a space before the mask": lambda text: re.search(r"\s<mask>", text) is not None,
    # It adds user-defined symbols as tokens, behind which the text starts anew as if a space stood there.
    "symbols cut texts": lambda text: re.search("[()\".\\-\u2013\u00a3\u20ac]|''|``", normal(text)) is not None,
    # ALBERT takes "2019," apart; converting the model has lost that.
    "a comma behind digits": lambda text: re.search(r"\d,", normal(text)) is not None,
    # DebertaV2Tokenizer leaves the model's own normalization (NFKC and more) out, for NFC.
    "no table of replacements": lambda text: not text.isascii() or re.search(r"[\x00-\x1f\x7f]|^\s", text) is not None,
    # It puts pairs into a Unigram model, whose scores they are not.
    "pairs read as unigrams": lambda text: True,
}


def normal(text: str) -> str:
    return unicodedata.normalize("NFKD", text)


@pytest.fixture(scope="module")
def transformers() -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    pytest.importorskip("google.protobuf", reason="transformers reads SentencePiece models with protobuf")
    return pytest.importorskip("transformers", reason="parity needs transformers")


def opened(folder: Path) -> Tokenizer:
    return Tokenizer(read_tokenizer(folder), tiny_config(vocab_size=300_000))


@pytest.mark.parametrize("name", CASES)
def test_ids_offsets_and_segments_are_those_of_transformers(
    name: str, transformers: Any, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    case = CASES[name]
    folder = folder_of(case, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours, found = read_tokenizer(folder), Counter[str]()
    mask = ours.tokenizer.token_to_id(ours.special["mask"])
    previous = "the first"
    for text in lines():
        single, encoding = theirs(text, return_offsets_mapping=True), ours.tokenizer.encode(text)
        found["lines"] += 1
        if single["input_ids"] != encoding.ids:
            found[next((reason for reason in case.differs if REASONS[reason](text)), f"none: {text!r}")] += 1
            continue
        # Where a mask takes the space before it, ALBERT's in transformers does not, and only the start differs.
        places = zip(encoding.ids, encoding.offsets, single["offset_mapping"], strict=True)
        if any(a != b and (number != mask or a[1] != b[1]) for number, a, b in places):
            found["offsets" if case.differs else f"offsets: {text!r}"] += 1
        if text:  # transformers takes an empty second text for none
            pair, both = theirs(previous, text), ours.tokenizer.encode(previous, text)
            if pair["input_ids"] == both.ids:
                assert pair._encodings[0].type_ids == both.type_ids
            else:
                found["pairs" if case.differs else f"pairs: {text!r}"] += 1
        previous = text
    record_property("counts", dict(found))
    assert found.keys() <= {"lines", "pairs", "offsets", *case.differs}, list(found)[:9]
    assert found["lines"] == LINES and all(found[reason] for reason in case.differs)


def albert_pieces(text: str, encode: Callable[[str], list[str]]) -> list[str]:
    """ALBERT's own: what it does to a text, and a comma behind digits is a piece of its own."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    text = "".join(letter for letter in normal(text) if not unicodedata.combining(letter)).lower()
    found = []
    for piece in encode(text):
        if not re.search(r"\d,$", piece):
            found.append(piece)
            continue
        digits = encode(piece[:-1].replace("\u2581", ""))
        if not piece.startswith("\u2581") and digits[0].startswith("\u2581"):
            digits = [part for part in (digits[0][1:], *digits[1:]) if part]
        found += [*digits, ","]
    return found


# Where tokenizers, and so every fast tokenizer, differs from sentencepiece.
OTHER_PIECES: dict[str, Callable[[str], bool]] = {
    "Hangul in parts": lambda text: re.search("[\u1100-\u11ff]", text) is not None,
    "U+0085 is white space": lambda text: "\x85" in text,
    "marks without a class": lambda text: any(
        unicodedata.category(letter) == "Mn" and not unicodedata.combining(letter) for letter in text
    ),
    "characters replaced by clusters": lambda text: any(unicodedata.category(letter)[0] in "MC" for letter in text),
}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.shift])
def test_pieces_are_those_of_sentencepiece(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    import sentencepiece

    case = CASES[name]
    folder, found = folder_of(case, tmp_path), Counter[str]()
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / next(iter(case.files))))
    encode, shift = functools.partial(theirs.encode, out_type=str), case.shift
    ours = opened(folder)
    assert shift is not None
    for text in lines():
        if re.search(r"<mask>|\[MASK\]|</?s>|\[SEP\]", text):
            continue
        pieces = albert_pieces(text, encode) if case.model_type == "albert" else encode(text)
        found["lines"] += 1
        if ours.pieces(text) != [shift(theirs.piece_to_id(piece)) for piece in pieces]:
            found[next((why for why, shows in OTHER_PIECES.items() if shows(text)), f"none: {text!r}")] += 1
    record_property("counts", dict(found))
    assert found.keys() <= {"lines", *OTHER_PIECES}, list(found)[:9]
    assert sum(found.values()) - found["lines"] < found["lines"] * 0.15


@pytest.mark.parametrize("name", ["bert-base-uncased", "roberta-base", "albert-base-v2", "unigram as DeBERTa-v2"])
def test_fills_read_as_in_the_pipeline_of_transformers(name: str, transformers: Any, tmp_path: Path) -> None:
    folder = folder_of(CASES[name], tmp_path)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True), opened(folder)
    for number in range(ours.vocab_size):
        assert ours.shown(number) == theirs.decode([number])
