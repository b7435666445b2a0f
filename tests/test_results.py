"""Results and errors as they are shown: JSON without invisible characters, and what `repr` and tracebacks print."""

import dataclasses
import inspect
import json
import math
import sys
import traceback
import unicodedata

import numpy as np

import mlxbert
from mlxbert.errors import InputError, MlxbertError
from mlxbert.results.embed import Embedding, Words, WordVector
from mlxbert.results.json import INVISIBLE, plain, to_json, without_invisible
from mlxbert.results.short_repr import Brief
from mlxbert.results.text_results import Entity, Fill, FillMask, Mask, Tagged, Token, Tokens
from tests.helpers.cases import together
from tests.helpers.rooms import needs


def test_a_line_has_no_invisible_characters_and_the_same_value() -> None:
    value = Tagged("a\u202eb\x1b\n\u00e9\u6771", (Entity("LOC", 0, 1, "a", 0.5),)).to_dict()
    line = to_json(value)
    assert line.isprintable() and "\u00e9\u6771" in line and json.loads(line) == json.loads(json.dumps(value))


@needs("train")
def test_numbers_that_json_does_not_have_are_null() -> None:
    from mlxbert.train.loop.events import Evaluated

    assert plain({1: (math.nan, 1.5, [-math.inf])}) == {"1": [None, 1.5, [None]]}
    assert plain(np.array([1.5, math.nan, 0.1], np.float32)) == [1.5, None, 0.1]
    assert plain(np.array([[0.1], [math.inf]], np.float32)) == [[0.1], [None]]
    event = Evaluated(step=1, epoch=1, metrics={"loss": math.nan}, metric="loss", best=False, seconds=1)
    assert json.loads(to_json(event.to_dict()))["metrics"] == {"loss": None}


CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Cs")
SIGNS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}  # format characters with a shape


def test_every_control_format_and_separator_is_invisible() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    invisible = {*INVISIBLE.findall(every)}
    found = {char for char in every if unicodedata.category(char) in CATEGORIES}
    assert found - invisible <= {*map(chr, SIGNS)}
    others = [*map(unicodedata.category, invisible - found)]
    assert {*others} == {"Cn", "Mn", "Lo"} and len(others) - others.count("Cn") == 7


@together(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian
        "\u0915\u094d\u200d \u0915\u094d\u200c\u0937",  # Hindi, also at the end of a word
        "\u0dc1\u0dca\u200d\u0dbb\u0dd3",  # Sinhala
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f\u200d\U0001f525 \U0001f441\ufe0f\u200d\U0001f5e8\ufe0f",
        "\U0001f9d1\U0001f3fd\u200d\U0001f91d\u200d\U0001f9d1\U0001f3fb",
        "\u0661\u06dd \u2603\ufe0f \u845b\U000e0100 \u1820\u180b",  # a sign of Arabic, variation selectors
        "na\u00efve \u00a0\u3000 \u6771\u4eac",
    ],
)
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert not INVISIBLE.search(text)


@together("text", ["pa\u200dypal", "cat\u200c", "\u200dcat", "cat\ufe0f", "ca\u200bt", "cat\U000e0041"])
def test_labels_that_look_the_same_are_the_same_without(text: str) -> None:
    assert without_invisible(text) in ("cat", "paypal")


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


@together("large", [*LARGE, mlxbert.Labels(tuple(f"many words {number}" for number in range(1000)))])
def test_a_large_result_prints_on_one_screen(large: Brief) -> None:
    lines = repr(large).splitlines()
    assert 1 < len(lines) <= 24 and max(map(len, lines)) <= 100
    assert lines[0] == f"{type(large).__name__}(" and lines[-1] == ")"
    assert "many words" in repr(large) and "1., 1." not in repr(large)


def test_a_small_result_prints_on_one_line_without_defaults_and_what_a_large_one_leaves_out_is_counted() -> None:
    assert "512 in all" in repr(LARGE[3]) and "float32 1024" in repr(LARGE[0])
    assert repr(FILL.__class__("japan", 7, 0.69351, "a")) == "Fill(token='japan', token_id=7, score=0.6935, text='a')"
    label = mlxbert.Label("good", 0.98765)
    shown = repr(mlxbert.Classification("A film.", (label,)))
    assert shown == "Classification(text='A film.', labels=(Label(label='good', score=0.9877),))"
    assert "truncated=True" in repr(mlxbert.Classification("A film.", (label,), truncated=True))


@needs("export")
@together("values", [(), (1.0,), {}, {"a": None}, [float("nan")], (True, "x", b"y")])
def test_plain_values_print_as_python_writes_them(values: object) -> None:
    assert repr(mlxbert.Difference("config", "x", values, None, "t")).count(repr(values)) == 1


def test_a_traceback_shows_the_hint() -> None:
    shown = traceback.format_exception_only(InputError("`texts` is a DataFrame", hint="give one of its columns"))
    assert "".join(shown).splitlines()[1] == "hint: give one of its columns"
    assert len(traceback.format_exception_only(MlxbertError("no hint"))) == 1
