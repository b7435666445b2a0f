"""What results print: on a screen, however large they are."""

import dataclasses
import inspect

import numpy as np
import pytest

import mlxbert
from mlxbert.results.embed import Embedding, Words, WordVector
from mlxbert.results.short_repr import Brief
from mlxbert.results.text_results import Fill, FillMask, Mask, Token, Tokens
from tests.helpers.rooms import needs

SETTINGS = {"ModelRef", "EngineOptions", "Usage", "Example", "TrainBatch"}  # what is given, not what is returned
LONG = "many words " * 200
VECTOR = np.ones(1024, dtype=np.float32)
FILL = Fill("token", 7, 0.123456789, LONG)
LARGE = (
    Embedding(LONG, VECTOR, 400),
    Words(LONG, tuple(WordVector("word", 0, 4, 1, VECTOR) for _ in range(200))),
    FillMask(LONG, tuple(Mask(place, 0, 6, tuple([FILL] * 50)) for place in range(30))),
    Tokens(LONG, tuple(Token("token", 7, 0, 1, 0, 5) for _ in range(512)), False),
)


@needs("export", "train", "serve")
def test_every_public_result_prints_briefly() -> None:
    found = [getattr(mlxbert, name) for name in dir(mlxbert)]
    results = [one for one in found if inspect.isclass(one) and dataclasses.is_dataclass(one)]
    others = {one.__name__ for one in results if not issubclass(one, Brief) or one.__repr__ is not Brief.__repr__}
    assert len(results) > 30 and others == SETTINGS


@pytest.mark.parametrize("large", LARGE, ids=lambda one: type(one).__name__)
def test_a_large_result_prints_on_one_screen(large: Brief) -> None:
    lines = repr(large).splitlines()
    assert 1 < len(lines) <= 24 and max(map(len, lines)) <= 100
    assert lines[0] == f"{type(large).__name__}(" and lines[-1] == ")"
    assert "many words" in repr(large) and "1., 1." not in repr(large)


def test_a_small_result_prints_on_one_line_without_defaults() -> None:
    assert repr(FILL.__class__("japan", 7, 0.69351, "a")) == "Fill(token='japan', token_id=7, score=0.6935, text='a')"
    label = mlxbert.Label("good", 0.98765)
    shown = repr(mlxbert.Classification("A film.", (label,)))
    assert shown == "Classification(text='A film.', labels=(Label(label='good', score=0.9877),))"
    assert "truncated=True" in repr(mlxbert.Classification("A film.", (label,), truncated=True))


def test_what_is_left_out_is_counted() -> None:
    shown = repr(LARGE[3])
    assert "512 in all" in shown
    assert "float32 1024" in repr(LARGE[0])


@needs("export")
@pytest.mark.parametrize("values", [(), (1.0,), {}, {"a": None}, [float("nan")], (True, "x", b"y")], ids=repr)
def test_plain_values_print_as_python_writes_them(values: object) -> None:
    assert repr(mlxbert.Difference("config", "x", values, None, "t")).count(repr(values)) == 1


def test_a_model_with_many_labels_prints_on_one_screen() -> None:
    labels = mlxbert.Labels(tuple(f"class {number}" for number in range(1000)))
    assert len(repr(labels).splitlines()) <= 24 and "1,000 in all" in repr(labels)
