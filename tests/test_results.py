"""The JSON of results: without the command line."""

import json
import math

import numpy as np

from mlxbert.results.json import plain, to_json
from mlxbert.results.text_results import Entity, Tagged
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
