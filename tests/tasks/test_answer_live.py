"""answer next to the models of transformers, with the rule of its former pipeline, in every family that has the head.

The rule is written again here. Needs torch and transformers.
"""

import os
import random
import re
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.frozen import add_vocabulary
from tests.text.test_spans import made_up

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.slow

KIND, BOUND = "ForQuestionAnswering", 1e-5
ANSWERING = [name for name, compared in FAMILIES.items() if KIND in compared.heads]
TOKENIZERS = Path(os.environ.get("MLXBERT_TEST_TOKENIZERS", "/none"))
WORDS = 7  # most words of an answer
Found = tuple[dict[tuple[int, int], float], float]


def pipeline(model: Any, tokenizer: Any, question: str, context: str, length: int, stride: int) -> Found:
    """Every span of every window with its best score, and the lowest score of no answer."""
    windows = tokenizer(
        question, context, truncation="only_second", max_length=length, stride=stride,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    found: dict[tuple[int, int], float] = {}
    none = 1.0
    for number, ids in enumerate(windows["input_ids"]):
        given = {key: torch.tensor([windows[key][number]]) for key in tokenizer.model_input_names}
        with torch.no_grad():
            output = model(**given)
        kept = np.array([sequence == 1 for sequence in windows.sequence_ids(number)])
        allowed = kept | (np.array(ids) == tokenizer.cls_token_id)
        ends = [
            np.where(allowed, logits[0].double().numpy(), -10000.0)
            for logits in (output.start_logits, output.end_logits)
        ]
        first, last = (np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum() for logits in ends)
        none = min(none, first[0] * last[0])
        offsets = windows["offset_mapping"][number]
        for i in np.flatnonzero(kept):
            for j in np.flatnonzero(kept)[np.flatnonzero(kept) >= i]:
                start, end = offsets[i][0], offsets[j][1]
                part = context[start:end]
                if not all(context[slice(*offsets[token])].strip() for token in (i, j)) or words(part) > WORDS:
                    continue
                start, end = start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
                while start > 0 and within(context, start):
                    start -= 1  # the first word whole
                while end < len(context) and unicodedata.category(context[end]).startswith("M"):
                    end += 1  # the last letter whole
                found[start, end] = max(found.get((start, end), 0.0), float(first[i] * last[j]))
    return found, none


def within(text: str, place: int) -> bool:
    """Whether a place is in the middle of a letter, a digit or a symbol and its marks, or between letters of a word."""
    marks = [unicodedata.category(text[at]) in ("Mn", "Mc", "Me", "Cf", "Sk") for at in (place - 1, place)]
    letters = [bool(re.fullmatch(r"[^\W_\u4e00-\u9fff]", text[at])) for at in (place - 1, place)]
    return marks[1] or (letters[1] and (letters[0] or (marks[0] and text[place - 1] not in "\u200b\u200e\u200f\ufeff")))


def words(text: str) -> int:
    """How many there are, each ideograph on its own."""
    return len(re.sub("([\u4e00-\u9fff])", r" \1 ", text).split())


def assert_alike(
    folder: Path, theirs: Any, tokenizer: Any, items: list[tuple[str, str]], length: int, stride: int
) -> None:
    """The same best spans, but for ties, with the same scores."""
    model = mlxbert.load(folder, task="answer", dtype="float32")
    found = mlxbert.answer(
        model, items, top_k=3, max_words=WORDS, max_length=length, stride=stride, no_answer_threshold=1
    )
    for (question, context), answer in zip(items, found, strict=True):
        wanted, none = pipeline(theirs, tokenizer, question, context, length, stride)
        assert answer.no_answer_score == pytest.approx(none, abs=BOUND)
        best = sorted(wanted.values(), reverse=True)[:3]
        assert [span.score for span in answer.spans] == pytest.approx(best, abs=BOUND)
        for span in answer.spans:
            assert wanted[span.start, span.end] == pytest.approx(span.score, abs=BOUND)


def items_of(rng: random.Random) -> list[tuple[str, str]]:
    return [("who sat ?", made_up(rng.randint(1, 60), rng.randrange(999)).strip() or "cat") for _ in range(6)]


@pytest.mark.parametrize("family", ANSWERING)
def test_answers_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    made = make_model(compared, KIND).eval()
    made.save_pretrained(tmp_path)
    add_vocabulary(tmp_path, min(compared.facts["vocab_size"], 43))
    theirs = type(made).from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    tokenizer.model_input_names = ["input_ids", "attention_mask", *["token_type_ids"] * (compared.segments > 1)]
    length = min(compared.max_length, 24)
    assert_alike(tmp_path, theirs, tokenizer, items_of(random.Random(family)), length, 5)


# By the folder of original files: the family's classes in transformers and the files that it expects.
ORIGINAL = {
    "roberta-base": ("Roberta", ("vocab.json", "merges.txt")),
    "bert-base-chinese": ("Bert", ("vocab.txt",)),
    "bert-base-cased": ("Bert", ("vocab.txt",)),
}
TEXTS = (
    "The Eiffel Tower 🗼 was built in 1889. It is 330 m high — café «Paris», said Émile.\n\nIt stands in Paris.",
    "埃菲尔铁塔建于1889年。它高330米。位于法国巴黎。设计师是居斯塔夫·埃菲尔。",
    "برج إيفل بني عام 1889 في باريس. مدينة كبيرة.",
    "👩‍👩‍👧 went   to\tParis\u00a0in 2,019 \u200band back; naïve co-operation.",
)


@pytest.mark.skipif(not TOKENIZERS.is_dir(), reason="needs MLXBERT_TEST_TOKENIZERS")
@pytest.mark.parametrize("name", ORIGINAL)
def test_original_vocabularies_and_templates_give_the_same_spans(name: str, tmp_path: Path) -> None:
    classes, files = ORIGINAL[name]
    for file in files:
        shutil.copy(TOKENIZERS / name / file, tmp_path / file)
    tokenizer = getattr(transformers, f"{classes}Tokenizer").from_pretrained(tmp_path, do_lower_case=False)
    config = getattr(transformers, f"{classes}Config")(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5, pad_token_id=tokenizer.pad_token_id, max_position_embeddings=70,
        type_vocab_size=1 if classes == "Roberta" else 2,
    )  # fmt: skip
    torch.manual_seed(5)
    theirs = getattr(transformers, f"{classes}{KIND}")(config).eval()
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    items = [("When was the tower built?", text * 3) for text in TEXTS]
    assert_alike(tmp_path, theirs, tokenizer, items, 48, 11)
