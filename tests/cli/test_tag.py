"""`mlxbert tag`: colours in the text in a terminal, words with their tags below them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.cli.views import tag as view
from mlxbert.results.text_results import Entity, Tagged
from tests.cli.test_terminal import colours, plain
from tests.helpers.gliner_models import LABELS, TEXTS
from tests.helpers.program import TERMINALS, Terminal, call
from tests.helpers.taggers import NER, POS, save_tagger

pytestmark = pytest.mark.usefixtures("loaded_once")

GLINER = str(Path(__file__).parents[1] / "tasks" / "gliner_goldens" / "bert")
NAMES = {"paris": "B-LOC", "city": "I-LOC", "tokyo": "B-LOC", "man": "B-PER"}
TEXT = "the man went to paris city, a man to tokyo."


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taggers")
    save_tagger(folder / "entities", NER, NAMES)
    save_tagger(folder / "words", POS, {"the": "DET", "a": "DET", "went": "VERB", ",": "PUNCT", ".": "PUNCT"})
    return folder


@pytest.fixture(scope="module")
def model(folders: Path) -> str:
    return str(folders / "entities")


def lines(results: Any) -> list[Any]:
    return [json.loads(json.dumps(result.to_dict())) for result in results]


def test_a_model_of_any_labels_needs_some() -> None:
    call("tag", "the", "--model", GLINER).fails(2, "no labels are given", "--labels 'person,")


@TERMINALS
def test_entities_stand_out_in_the_text_above_a_legend(show: Terminal, model: str) -> None:
    outcome, shown = show("tag", TEXT, "the cat", "--model", model)
    rows = plain(shown)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    assert rows[0] == "the [man PER] went to [paris city LOC], a [man PER] to [tokyo LOC]."
    assert rows[1] == "PER 2  LOC 2"
    assert rows[2:5] == ["", "the cat", "nothing found"]
    assert len(colours(shown)) == 2  # one for each type


@TERMINALS
def test_entities_of_any_labels_stand_out_in_the_text(show: Terminal) -> None:
    labels = ("--labels", ",".join(LABELS), "--threshold", "0.35")
    outcome, shown = show("tag", TEXTS[0], "", "--model", GLINER, *labels)
    (found,) = lines([mlxbert.tag(mlxbert.load(GLINER, task="tag"), TEXTS[0], labels=LABELS, threshold=0.35)])
    rows = plain(shown)
    assert outcome.status == 0 and found["entities"]
    assert all(f"[{one['text']} {one['label']}]" in rows[0] for one in found["entities"])
    assert re.sub(r"\[([^\]]*?) (?:" + "|".join(LABELS) + r")\]", r"\1", rows[0]) == TEXTS[0]
    assert "nothing found" in rows


def test_an_entity_inside_another_one_repeats_no_text_after_it() -> None:
    entities = (Entity("org", 0, 14, "New York Times", 0.9), Entity("place", 0, 8, "New York", 0.8))
    (text, _) = view.draw(Tagged("New York Times says", entities), ["org", "place"])
    assert str(text) == "[New York Times org][New York place] says"


@TERMINALS
def test_parts_of_speech_stand_under_their_words(show: Terminal, folders: Path) -> None:
    outcome, shown = show("tag", "The man went, a dog", "--model", str(folders / "words"))
    rows = plain(shown)
    assert outcome.status == 0 and len(colours(shown)) == 4
    assert rows[0].split() == ["The", "man", "went", ",", "a", "dog"]
    assert rows[1].split() == ["DET", "NOUN", "VERB", "PUNCT", "DET", "NOUN"]
    assert rows[0].index("man") == rows[1].index("NOUN") and rows[0].index(",") == rows[1].index("PUNCT")
