"""Replaced-token detection: scores are the discriminator's, each at its place, in texts of any length."""

from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import InputError
from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.text.window_stitching import best_windows
from tests.helpers.families import COMMON
from tests.helpers.frozen import write_model
from tests.helpers.program import terminal

WORDS = [
    "the", "cat", "dog", "sat", "on", "mat", "in", "a", "is", "of", "man", "went", "to", "store", "he", "bought",
    "milk", "play", "##ing", "##s", ",", ".",
]  # fmt: skip
VOCAB = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LONG = "the cat sat on a mat , the dog went to the store . the man bought milk , he is playing in the store . a cat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_model("electra", "ForPreTraining", tmp_path_factory.mktemp("electra"))
    rows = [*VOCAB, *(f"[unused{number}]" for number in range(COMMON["vocab_size"] - len(VOCAB)))]
    rows[7], rows[rows.index("[unused3]")] = "[PAD]", rows[7]
    (made / "vocab.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    weights = arrays(made / "model.safetensors")
    bias = "discriminator_predictions.dense_prediction.bias"
    weights = {name: mx.array(np.array(array)) for name, array in weights.items()}  # read before they are overwritten
    weights[bias] = weights[bias] - 1.45  # random as it is, it would suspect every token
    mx.save_safetensors(str(made / "model.safetensors"), weights)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return mlxbert.load(folder, device="cpu")


def scores(model: Model, ids: list[int]) -> list[float]:
    logits = model.network.logits("discriminator", model.network(mx.array([ids])))
    return np.array(mx.sigmoid(logits))[0].tolist()


def test_every_token_has_the_score_of_the_discriminator(model: Model) -> None:
    found = mlxbert.replaced(model, "the cat sat, playing")
    assert [token.token for token in found.tokens] == ["the", "cat", "sat", ",", "play", "##ing"]
    assert [found.text[token.start : token.end] for token in found.tokens] == ["the", "cat", "sat", ",", "play", "ing"]
    assert [token.position for token in found.tokens] == [1, 2, 3, 4, 5, 6]
    wanted = scores(model, model.tokenizer.encode("the cat sat, playing").ids)[1:-1]
    assert [token.score for token in found.tokens] == pytest.approx(wanted, abs=1e-6)
    assert [token.replaced for token in found.tokens] == [score > 0.5 for score in wanted]
    assert 0 < sum(token.replaced for token in found.tokens) < 6
    texts = ["the cat", "", "a man went to the store .", "milk"]
    for text, found in zip(texts, mlxbert.replaced(model, texts), strict=True):
        wanted = scores(model, model.tokenizer.encode(text).ids)[1:-1]
        assert found.text == text and [token.score for token in found.tokens] == pytest.approx(wanted, abs=1e-5)


def test_a_long_text_is_seen_whole_and_each_token_where_it_has_most_context(model: Model) -> None:
    assert model.tokenizer.max_length == 27
    found = mlxbert.replaced(model, LONG)
    pieces = model.tokenizer.pieces(LONG)
    assert len(pieces) > 25 and not found.truncated
    assert [model.tokenizer.token_id(token.token) for token in found.tokens] == pieces
    assert [token.position for token in found.tokens] == list(range(1, len(pieces) + 1))
    windows = model.tokenizer.windows(LONG, stride=27 // 4)
    wanted = [scores(model, windows[number].ids)[place] for number, place in best_windows(windows)]
    assert [token.score for token in found.tokens] == pytest.approx(wanted, abs=1e-5)


def test_a_long_text_can_be_cut_or_refused(model: Model) -> None:
    cut = mlxbert.replaced(model, LONG, overflow="truncate")
    assert cut.truncated and len(cut.tokens) == 25
    with pytest.raises(InputError, match="at most 27"):
        mlxbert.replaced(model, LONG, overflow="error")


def test_the_terminal_shows_the_suspects(folder: Path, model: Model) -> None:
    suspects = [token for token in mlxbert.replaced(model, "the cat sat, playing").tokens if token.replaced]
    outcome, shown = terminal("replaced", "the cat sat, playing", "--model", str(folder), "--dtype", "float32")
    assert outcome.status == 0
    for token in suspects:
        assert f"{token.score:6.1%}" in shown and f"{token.start} to {token.end}" in shown
