"""The special tokens around texts of every class, template and vocabulary, next to transformers."""

from pathlib import Path
from typing import Any

import pytest

from mlxbert.text.tokenizer import load_tokenizer
from tests.helpers.ends import TEMPLATES, VOCABULARIES, save_ends
from tests.helpers.tiny import tiny_config

transformers = pytest.importorskip("transformers", minversion="5.0", reason="live parity needs transformers")

pytestmark = [pytest.mark.slow]

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


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_offsets_and_segments_are_those_of_transformers(name: str, pruned: bool, tmp_path: Path) -> None:
    own = (name, f"{name}Fast") if name == "DebertaTokenizer" else (name, f"{name}Fast", None)
    segments = 2 if name in ("BertTokenizer", "AlbertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer") else 1
    for template in TEMPLATES:
        for declared in (*own, *GENERIC):
            folder = save_ends(tmp_path / template / str(declared), name, template, pruned=pruned, declared=declared)
            compare(folder, segments)


@pytest.mark.parametrize("names", [["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]])
@pytest.mark.parametrize("declared", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_segments_are_given_as_the_settings_say(declared: str, names: list[str], tmp_path: Path) -> None:
    compare(
        save_ends(tmp_path, "BertTokenizer", "two segments", pruned=False, declared=declared, model_input_names=names),
        2,
    )
