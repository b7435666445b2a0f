"""Texts to vectors through Python: one, many, long ones, prompts, sizes, bad inputs, threads."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from mlxbert.text.batch import WINDOW
from tests.helpers.cases import together

Vector = NDArray[np.float32]
D, LIMIT = 24, 32
TEXTS = ["the cat sat on the mat", "a dog", "", "paris , tokyo !", "he bought milk in the largest store", "cat " * 25]
LONG = " ".join(("the cat sat on mat in paris he bought milk " * 8).split()[:71])
MIXED = "the " * 30 + "bought " * 30 + ", ! " * 6
PROMPT = "man is : "


def near(found: Vector, expected: Vector) -> bool:
    """Whether vectors have the same shape and values."""
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= 1e-5)


def hidden_states(model: mlxbert.Model, ids: list[int]) -> tuple[Vector, Vector]:
    """The last hidden state (L, D), and how much the first token attends to each token, heads averaged (L,)."""
    output = model.network.encoder(mx.array([ids]), output_attentions=True)
    assert output.attentions is not None
    return np.array(output.last_hidden_state[0]), np.array(output.attentions[-1][0, :, 0].mean(axis=0))


def test_a_text_gives_a_vector_and_many_give_rows(tiny: mlxbert.Model) -> None:
    one = mlxbert.embed(tiny, TEXTS[0])
    assert type(one) is np.ndarray and one.shape == (D,) and one.dtype == np.float32
    rows = mlxbert.embed(tiny, TEXTS)
    assert rows.shape == (len(TEXTS), D) and rows.dtype == np.float32 and near(rows[0], one)
    assert (mlxbert.embed(tiny, tuple(TEXTS)) == rows).all() and (mlxbert.embed(tiny, iter(TEXTS)) == rows).all()
    nothings: list[Any] = [[], (), iter([])]
    for nothing in nothings:
        none = mlxbert.embed(tiny, nothing)
        assert none.shape == (0, D) and none.dtype == np.float32
    assert mlxbert.embed(tiny, [], dimensions=5).shape == (0, 5)
    assert mlxbert.embed(tiny, [], pooling="cls+max").shape == (0, 2 * D)


@together("batch_tokens", [None, 1, 33, 10**6])
def test_a_batch_gives_what_each_text_gives_alone(tiny: mlxbert.Model, batch_tokens: int | None) -> None:
    texts = TEXTS * 2 + TEXTS[::-1]
    alone = np.stack([mlxbert.embed(tiny, text) for text in texts])
    assert near(mlxbert.embed(tiny, texts, batch_tokens=batch_tokens), alone)
    assert np.abs(alone[:5] - alone[1:6]).max(axis=1).min() > 1e-3  # another order would show


def test_a_vector_is_the_pooled_encoder_output(tiny: mlxbert.Model) -> None:
    hidden, attention = hidden_states(tiny, tiny.tokenizer.encode(TEXTS[0]).ids)
    expected = {
        "mean": hidden.mean(axis=0),
        "cls+mean": np.concatenate([hidden[0], hidden.mean(axis=0)]),
        "last_token+max+cls": np.concatenate([hidden[-1], hidden.max(axis=0), hidden[0]]),
        "attention": attention @ hidden,
    }
    for name, vector in expected.items():
        found = mlxbert.embed(tiny, TEXTS, pooling=name)  # padded
        assert near(found[0], vector.astype(np.float32)), name
    assert near(mlxbert.embed(tiny, TEXTS[0]), expected["mean"])


@together("name", ["median", "", "cls+", "cls,mean", "CLS", 3])
def test_an_unknown_pooling_is_refused(tiny: mlxbert.Model, name: Any) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=r"pooling.*cls, mean, .* joined by '\+'"):
        mlxbert.embed(tiny, "a", pooling=name)


def test_a_stream_is_read_as_it_is_consumed_and_holds_nothing(tiny: mlxbert.Model) -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for _ in range(6 * WINDOW):
            taken += 1
            yield "a"

    stream = mlxbert.embed_stream(tiny, texts())
    assert taken == 0
    first = next(stream)
    assert isinstance(first, Embedding) and first.text == "a" and first.embedding.shape == (D,)
    assert taken <= 2 * WINDOW
    for number, _ in enumerate(stream, 2):
        assert taken <= number + 2 * WINDOW  # never more than two windows ahead
    assert number == taken == 6 * WINDOW


BAD: list[Any] = [None, 5, "half \ud800", mlxbert.InputError("not readable"), b"bytes", ["a"]]


def test_bad_inputs_keep_their_places(tiny: mlxbert.Model) -> None:
    texts: list[Any] = ["the cat", *BAD, "a dog", None, "milk"]
    found = list(mlxbert.embed_stream(tiny, texts, on_error="return"))
    bad = [result for result in found if isinstance(result, Failure)]
    good = [result for result in found if isinstance(result, Embedding)]
    assert [failure.index for failure in bad] == [1, 2, 3, 4, 5, 6, 8]
    assert [type(result) for result in found].index(Failure) == 1
    assert [result.text for result in good] == ["the cat", "a dog", "milk"]
    messages = [failure.error.message for failure in bad]
    assert messages[0] == "expected a text, found NoneType" and messages[1] == "expected a text, found int"
    assert "half of a surrogate pair" in messages[2] and messages[3] == "not readable"
    for result in good:
        assert near(result.embedding, mlxbert.embed(tiny, result.text))


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_bad_input_raises_unless_asked_otherwise(tiny: mlxbert.Model, bad: Any) -> None:
    with pytest.raises(mlxbert.InputError):
        mlxbert.embed(tiny, ["a", bad])
    with pytest.raises(mlxbert.InputError):
        list(mlxbert.embed_stream(tiny, ["a", bad], on_error="raise"))
    with pytest.raises(mlxbert.ArgumentError, match=r"on_error.*'skip'.*raise, return"):
        mlxbert.embed_stream(tiny, ["a"], on_error="skip")  # type: ignore[call-overload]


@together("texts", [5, None, b"a text"])
def test_what_is_no_text_and_no_iterable_is_refused(tiny: mlxbert.Model, texts: Any) -> None:
    for function in (mlxbert.embed, mlxbert.embed_stream):
        with pytest.raises(mlxbert.ArgumentError, match=f"texts.*{texts!r}.*iterable"):
            function(tiny, texts)
    with pytest.raises(mlxbert.ArgumentError, match=r"texts.*'a text'.*iterable"):
        mlxbert.embed_stream(tiny, "a text")


def test_a_long_text_is_cut_at_its_end(tiny: mlxbert.Model) -> None:
    (result,) = mlxbert.embed_stream(tiny, [LONG])
    assert result.truncated and result.tokens == LIMIT and result.text == LONG
    (start,) = mlxbert.embed_stream(tiny, [" ".join(LONG.split()[: LIMIT - 2])])
    assert not start.truncated and start.tokens == LIMIT and near(result.embedding, start.embedding)


def test_a_long_text_is_an_error_if_so_wished(tiny: mlxbert.Model) -> None:
    message = f"the text has 73 tokens, but the model takes at most {LIMIT}"
    with pytest.raises(mlxbert.InputError, match=message):
        mlxbert.embed(tiny, ["a", LONG], overflow="error")
    short, long = mlxbert.embed_stream(tiny, ["a", LONG], overflow="error", on_error="return")
    assert isinstance(short, Embedding) and isinstance(long, Failure) and long.error.message == message
    with pytest.raises(mlxbert.ArgumentError, match=r"overflow.*'cut'.*truncate, window, error"):
        mlxbert.embed(tiny, [], overflow="cut")  # type: ignore[arg-type]


def _windows(text: str, size: int) -> tuple[list[str], list[int]]:
    words = text.split()
    parts = [words[start : start + size] for start in range(0, len(words), size)]
    return [" ".join(part) for part in parts], [len(part) for part in parts]


def test_a_long_text_is_the_mean_of_its_windows(tiny: mlxbert.Model) -> None:
    parts, weights = _windows(LONG, LIMIT - 2)
    assert weights == [30, 30, 11]
    (result,) = mlxbert.embed_stream(tiny, [LONG], overflow="window")
    expected = np.average(mlxbert.embed(tiny, parts), axis=0, weights=weights)
    assert near(result.embedding, expected) and result.embedding.dtype == np.float32
    assert (result.tokens, result.truncated) == (71 + 3 * 2, False)
    assert not near(result.embedding, mlxbert.embed(tiny, parts).mean(axis=0))
    texts = ["a dog", LONG, "", LONG, "milk"]
    rows = mlxbert.embed(tiny, texts, overflow="window")
    assert near(rows[1], expected) and near(rows[3], expected)
    assert near(rows[[0, 2, 4]], mlxbert.embed(tiny, ["a dog", "", "milk"]))


def test_each_window_has_the_prompt_and_their_mean_unit_length(unit: mlxbert.Model) -> None:
    lead = len(unit.tokenizer.pieces(PROMPT))
    parts, weights = _windows(MIXED, LIMIT - 2 - lead)
    assert lead >= 3 and len(set(weights)) == 2
    (result,) = mlxbert.embed_stream(unit, [MIXED], overflow="window", prompt=PROMPT)
    mean = np.average(mlxbert.embed(unit, parts, prompt=PROMPT), axis=0, weights=weights)
    assert np.linalg.norm(mean) < 0.9999
    assert near(result.embedding, mean / np.linalg.norm(mean))
    assert result.tokens == 72 + len(parts) * (lead + 2)
    raw = mlxbert.embed(unit, MIXED, overflow="window", prompt=PROMPT, normalize=False)
    each = mlxbert.embed(unit, parts, prompt=PROMPT, normalize=False)
    assert near(raw, np.average(each, axis=0, weights=weights)) and np.linalg.norm(raw) > 1.5
    cut = mlxbert.embed(unit, MIXED, overflow="window", prompt=PROMPT, dimensions=7)
    assert near(cut, mean[:7])  # what is cut is not of unit length any more
