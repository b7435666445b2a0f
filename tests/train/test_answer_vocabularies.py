"""Answers in original vocabularies: their tokens give back every run of words, and blocks have the tokens of the whole.

Needs `MLXBERT_TEST_TOKENIZERS`.
"""

import itertools
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.text.encoding import Encoding
from mlxbert.text.text_windows import pair_blocks, text_windows
from mlxbert.train.objectives.answer import target

FOLDER = Path(os.environ.get("MLXBERT_TEST_TOKENIZERS", "/none"))
TEXT = (
    "The Eiffel Tower 🗼 was built in 1889. It is 330 m high — café «Paris», said Émile.\n\nIt stands in Paris. "
    "埃菲尔铁塔建于1889年。برج إيفل بني عام 1889 في باريس. 👩\u200d👩\u200d👧 went   to\tParis\u00a0in 2,019 back. "
)
KINDS: dict[str, dict[str, Any]] = {
    "roberta-base": {"model_type": "roberta", "vocab_size": 50265, "pad_token_id": 1, "type_vocab_size": 1},
    "xlm-roberta-base": {"model_type": "xlm-roberta", "vocab_size": 250002, "pad_token_id": 1, "type_vocab_size": 1},
    "albert-base-v2": {"model_type": "albert", "vocab_size": 30000, "embedding_size": 16},
    "bert-base-chinese": {"model_type": "bert", "vocab_size": 21128},
}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER.is_dir(), reason="needs MLXBERT_TEST_TOKENIZERS")]


def places(windows: list[Encoding], before: int) -> set[tuple[int, int, int]]:
    return {
        (number, before + start, before + end)
        for window in windows
        for number, (start, end), text in zip(window.ids, window.offsets, window.sequence_ids, strict=True)
        if text == 1
    }


@pytest.mark.parametrize("name", KINDS)
def test_offsets_are_those_of_the_text(name: str, tmp_path: Path) -> None:
    for file in (FOLDER / name).iterdir():
        shutil.copy(file, tmp_path / file.name.removesuffix(".rebuilt"))
    config = SIZES | {"max_position_embeddings": 514} | KINDS[name]
    model = mlxbert.new_model(config, tmp_path, heads={"question_answering": None})
    (window,) = model.tokenizer.windows("When?", TEXT, stride=10)
    words = [found.span() for found in re.finditer(r"\S+", TEXT)]
    for (start, _), (_, end) in itertools.combinations_with_replacement(words, 2):
        first, last = target(window, start, end)
        found = TEXT[window.offsets[first][0] : window.offsets[last][1]].strip()
        assert found == TEXT[start:end]
    long = TEXT * 40
    whole = places(model.tokenizer.windows("When?", long, stride=20), 0)
    blocks = pair_blocks(model.tokenizer, "When?", long, stride=20, size=3000)
    assert set().union(*(places(windows, before) for before, windows in blocks)) == whole
    found_windows = text_windows(model.tokenizer, long, stride=20, size=3000)
    for window, wanted in zip(found_windows, model.tokenizer.windows(long, stride=20), strict=True):
        assert (window.ids, window.offsets, window.word_ids) == (wanted.ids, wanted.offsets, wanted.word_ids)
    answer = mlxbert.answer(model, ("When?", long), top_k=20, no_answer_threshold=1)
    assert all(long[span.start : span.end] == span.answer == span.answer.strip() != "" for span in answer.spans)
