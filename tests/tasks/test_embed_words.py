"""The vectors of words in their context."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.results.result import Failure
from tests.helpers.cases import together
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.frozen import add_vocabulary

TEXT = "the cats sat, on the mat."


def hidden(model: mlxbert.Model, ids: list[int], layer: int) -> Any:
    states = model.network.encoder(mx.array([ids]), output_hidden_states=True).hidden_states
    assert states is not None
    return np.array(states[layer][0])


@together("layer", [0, 1, 2, -1, -3])
def test_a_word_is_the_mean_of_its_tokens(tiny: mlxbert.Model, layer: int) -> None:
    found = mlxbert.embed_words(tiny, TEXT, layer=layer)
    assert [word.word for word in found.words] == ["the", "cats", "sat", ",", "on", "the", "mat", "."]
    tokens = mlxbert.tokenize(tiny, TEXT).tokens
    states = hidden(tiny, [token.id for token in tokens], layer)
    for word in found.words:
        own = [n for n, token in enumerate(tokens) if word.start <= token.start < token.end <= word.end]
        assert word.word == TEXT[word.start : word.end] and len(own) == word.tokens
        assert np.abs(word.embedding - states[own].mean(0)).max() <= 1e-6
    assert max(word.tokens for word in found.words) > 1
    assert not found.truncated and found.words[1].embedding.dtype == np.float32
    written = found.to_dict()["words"][1]
    assert (np.float32(written.pop("embedding")) == found.words[1].embedding).all()
    assert written == {"word": "cats", "start": 4, "end": 8, "tokens": found.words[1].tokens}


def test_a_word_has_another_vector_in_another_context(tiny: mlxbert.Model) -> None:
    one, other = (mlxbert.embed_words(tiny, text) for text in ("the cat sat", "a cat ."))
    assert np.abs(one.words[1].embedding - other.words[1].embedding).max() > 1e-3
    one, other = (mlxbert.embed_words(tiny, text, layer=0) for text in ("the cat sat", ("a", "cat", ".")))
    assert (one.words[1].embedding == other.words[1].embedding).all()  # the same word at the same place
    given = mlxbert.embed_words(tiny, ("the cat", "sat"))
    assert [(word.word, word.start, word.tokens) for word in given.words] == [("the cat", 0, 2), ("sat", 8, 1)]


def test_a_long_text_is_covered_cut_or_refused(tiny: mlxbert.Model) -> None:
    most = tiny.tokenizer.max_length
    text = " ".join(["the cat sat"] * most)
    whole, cut = (mlxbert.embed_words(tiny, text, overflow=how) for how in ("window", "truncate"))
    assert len(whole.words) == 3 * most and not whole.truncated
    assert len(cut.words) == most - 2 and cut.truncated
    assert np.abs(whole.words[0].embedding - cut.words[0].embedding).max() <= 1e-5
    assert np.isfinite([word.embedding for word in whole.words]).all()
    with pytest.raises(InputError):
        mlxbert.embed_words(tiny, text, overflow="error")
    mixed: list[Any] = ["the cat", 5, text]
    _, bad, long = mlxbert.embed_words(tiny, mixed, overflow="error", on_error="return")
    assert isinstance(bad, Failure) and isinstance(long, Failure)
    assert mlxbert.embed_words(tiny, "  ").words == ()


@pytest.mark.parametrize("layer", [3, -4, True, 1.0, "1", None, pytest.param(10**5000, id="long")])
def test_a_layer_that_the_model_does_not_have_is_refused(tiny: mlxbert.Model, layer: Any) -> None:
    with pytest.raises(ArgumentError, match=r"`layer` is .*from (-3 to 2|-1,000 to 1,000)"):
        mlxbert.embed_words(tiny, TEXT, layer=layer)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    theirs = make_model(FAMILIES[family], "Model")
    theirs.save_pretrained(tmp_path)
    tokenizer = transformers.BertTokenizer.from_pretrained(add_vocabulary(tmp_path))
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    model = mlxbert.load(tmp_path, dtype="float32")
    words = ["cats", "bought", "milk", "in", "paris", ",", "playing", "the", "zz"]
    given = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    owners = np.array([-1 if owner is None else owner for owner in given.word_ids()])
    assert len(owners) > len(words) + 2  # some have several tokens
    with torch.no_grad():
        states = theirs(**given, output_hidden_states=True).hidden_states
    for layer, reference in enumerate(states):
        found = mlxbert.embed_words(model, " ".join(words), layer=layer).words
        assert [word.word for word in found] == words
        for number, word in enumerate(found):
            mean = reference[0].numpy()[owners == number].mean(0)
            assert np.abs(word.embedding - mean).max() <= 1e-5 * max(1, np.abs(mean).max())
