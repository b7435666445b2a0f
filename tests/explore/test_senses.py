"""senses: places of a word in groups, their words, and what cannot be grouped."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.explore.senses import centered, group, kmeans_groups, mean_silhouette
from tests.helpers.cases import together
from tests.helpers.program import call, terminal

LINES = (
    "The river bank was muddy after the rain.",
    "The bank raised its interest rates again.",
    "She sat on the bank of the stream and watched the water.",
    "He opened an account at the bank to save money.",
    "The boat drifted towards the left bank of the river.",
    "The central bank lent money to other banks.",
    "Trees grow along the BANK of the lake.",
    "The bank refused the loan.",
    "Nothing to see here.",
)
WATER, MONEY = (0, 2, 4, 6), (1, 3, 5, 7)


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> mlxbert.Model:
    return mlxbert.load(tiny_folder, dtype="float32")


def test_rivers_and_money_are_two_senses_with_words_of_their_own(builtin: mlxbert.Model) -> None:
    found = mlxbert.senses(builtin, "bank", LINES)
    assert found.texts == len(LINES) and len(found.senses) == 2 and found.silhouette > 0.2
    of = {place.index: place.sense for place in found.occurrences}
    assert set(of) == {*WATER, *MONEY}
    assert len({of[line] for line in WATER}) == len({of[line] for line in MONEY}) == 1 and of[0] != of[1]
    for place in found.occurrences:
        assert LINES[place.index][place.start : place.end].lower() == "bank"
    water, money = found.senses[of[0]], found.senses[of[1]]
    assert water.count == money.count == 4
    assert {"side", "edge", "shore"} & {word.word for word in water.substitutes}
    assert not {word.word for word in water.substitutes} & {word.word for word in money.substitutes}
    assert "bank" not in {word.word for word in (*water.substitutes, *money.substitutes)}
    assert all(example.index in WATER and example.text == LINES[example.index] for example in water.typical)


def test_options_choose_places_senses_lines_and_words(model: mlxbert.Model) -> None:
    found = mlxbert.senses(model, "bank", LINES, senses=3, top_k=2, typical=1, match_case=True)
    assert mlxbert.senses(model, "bank", LINES, senses=3, top_k=2, typical=1, match_case=True) == found  # no chance
    assert len(found.senses) == 3 and len(found.occurrences) == 7  # without BANK
    assert sum(sense.count for sense in found.senses) == 7
    assert all(len(sense.substitutes) <= 2 and len(sense.typical) == 1 for sense in found.senses)
    counts = [sense.count for sense in found.senses]
    assert counts == sorted(counts, reverse=True)
    alone = mlxbert.senses(model, "left bank", LINES, senses=1)
    assert [place.index for place in alone.occurrences] == [4] and alone.silhouette == 0
    same = mlxbert.senses(model, "bank", [LINES[0]] * 4, senses=2)
    assert (len(same.senses), same.silhouette) == (1, 0.0)


def test_places_have_spans_in_long_texts_and_words_need_a_head(
    model: mlxbert.Model, tmp_path: Path, tiny_folder: Path
) -> None:
    text = "the cats sat , and two cats went to paris"
    words = [word for word in mlxbert.embed_words(model, text).words if word.word == "cats"]
    assert words[0].tokens > 1
    found = mlxbert.senses(model, "cats", [text], senses=2)
    assert [(place.start, place.end) for place in found.occurrences] == [(word.start, word.end) for word in words]
    long = "[MASK] milk " + "the cat sat on the mat . " * 12
    assert len(model.tokenizer.encode(long, overflow="truncate").ids) == model.tokenizer.max_length
    found = mlxbert.senses(model, "cat", [long], senses=1)
    assert len(found.occurrences) == 12 and found.senses[0].substitutes
    assert len(found.senses[0].typical) == 1  # one line for each text
    mlxbert.save(mlxbert.load(tiny_folder, task="embed"), tmp_path / "vectors")
    found = mlxbert.senses(mlxbert.load(tmp_path / "vectors"), "bank", LINES, senses=2)
    assert len(found.senses) == 2 and not any(sense.substitutes for sense in found.senses)


@together(
    ("word", "texts", "options", "error"),
    [
        ("zebra", LINES, {}, InputError), ("ban", LINES, {}, InputError), ("left bank", LINES, {}, InputError),
        ("bank", [], {}, InputError), ("bank", [""], {}, InputError), ("bank", [5], {}, InputError),
        ("bank", [InputError("unreadable")], {}, InputError), ("bank", LINES[0], {}, ArgumentError),
        ("", LINES, {}, ArgumentError), (5, LINES, {}, ArgumentError), ("bank", LINES, {"senses": 0}, ArgumentError),
        ("bank", LINES, {"senses": 9}, ArgumentError), ("bank", LINES, {"senses": 1000}, ArgumentError),
        ("bank", LINES, {"layer": 99}, ArgumentError), ("bank", LINES, {"top_k": 0}, ArgumentError),
    ],
)  # fmt: skip
def test_what_cannot_be_grouped_is_refused(
    model: mlxbert.Model, word: Any, texts: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        mlxbert.senses(model, word, texts, **options)


def test_k_means_finds_directions_and_the_silhouette_is_its_formula() -> None:
    rng = np.random.default_rng(3)
    centers = np.eye(3, 12, dtype=np.float32)
    truth = rng.permutation(np.repeat([0, 1, 2], [50, 30, 10]))
    vectors = centers[truth] + 0.15 * rng.standard_normal((90, 12)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    groups, silhouette = group(unit, None)
    assert np.bincount(groups).tolist() == [50, 30, 10] and (groups == truth).all()  # the largest group is the first
    distances = 1 - unit @ unit.T
    expected = []
    for one in range(90):
        inside = distances[one][(groups == groups[one]) & (np.arange(90) != one)].mean()
        outside = min(distances[one][groups == other].mean() for other in range(3) if other != groups[one])
        expected.append((outside - inside) / max(outside, inside))
    assert silhouette == pytest.approx(np.mean(expected), abs=1e-5)
    assert mean_silhouette(unit, np.zeros(90, np.int64)) == -1


def test_vectors_without_groups_are_one_sense() -> None:
    rng = np.random.default_rng(3)
    unit = centered(rng.standard_normal((200, 64)).astype(np.float32))
    groups, silhouette = group(unit, None)
    assert not groups.any() and silhouette == 0
    same = centered(np.ones((6, 4), np.float32))
    assert not group(same, None)[0].any() and len(kmeans_groups(same, 3)) == 6


def test_the_command_shows_senses_and_refuses_what_has_none(tmp_path: Path, tiny_folder: Path) -> None:
    texts = {
        "lines.txt": "".join(f"{line}\n" for line in LINES), "empty.txt": "",
        "bad.jsonl": '{"text": "the bank"}\n{"text": 5}\n',
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    run = partial(call, "senses", "--model", str(tiny_folder), "--quiet")
    lines, empty, bad = (["--input", str(tmp_path / name)] for name in texts)
    (found,) = run("bank", *lines, "--senses", "2").lines
    assert len(found["senses"]) == 2 and len(found["occurrences"]) == 8
    own = ["--model", str(tiny_folder), "--senses", "2", "--typical", "8"]
    _, shown = terminal("senses", "bank", *lines, *own)
    assert "sense 2" in shown and "river" in shown and "loan" in shown
    (piped,) = run("bank", "--senses", "1", stdin=texts["lines.txt"].encode()).lines
    assert len(piped["senses"]) == 1
    run("zebra", *lines).fails(1, "zebra", "hint: ")
    for number, said in (("0", "--senses"), ("50", "8")):
        run("bank", *lines, "--senses", number).fails(2, "--senses", said)
    run(" ", *lines).fails(2)
    run("bank", *empty).fails(1, "no texts", "hint: ")
    run("bank", *bad).fails(1, "bad.jsonl", "line 2")
