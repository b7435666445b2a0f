"""`similarity`: its lines and their order, texts from files, what is bad, and how it looks in a terminal."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.tasks.query_ranking import Ranking, Scored
from tests.cli.test_terminal import plain
from tests.helpers.cases import together
from tests.helpers.program import Outcome, call, terminal, tiny_model

pytestmark = pytest.mark.usefixtures("loaded_once")

QUERY = "the cat sat on the mat"
TEXTS = ["a dog", "paris , tokyo !", QUERY, "mat", "he bought milk in the largest store"]


@pytest.fixture
def similarity(unit_folder: Path) -> Callable[..., Outcome]:
    given = ("similarity", "--model", str(unit_folder), "--dtype", "float32")
    return lambda *arguments, **named: call(*given, *arguments, **named)


def ranked(outcome: Outcome) -> list[dict[str, Any]]:
    """The lines without what differs between arguments and files: what texts are compared with, and where they are."""
    assert outcome.status == 0
    left_out = ("query", "path", "line")
    return [{name: value for name, value in line.items() if name not in left_out} for line in outcome.lines]


def test_lines_are_those_of_the_library_the_nearest_first(
    similarity: Callable[..., Outcome], unit: mlxbert.Model
) -> None:
    outcome = similarity(QUERY, *TEXTS, "--prompt", "")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.lines == [found.to_dict() for found in mlxbert.similarity(unit, QUERY, TEXTS, prompt="")]
    assert [list(line) for line in outcome.lines] == [["query", "rank", "index", "score", "text"]] * len(TEXTS)
    assert [line["rank"] for line in outcome.lines] == [1, 2, 3, 4, 5]
    scores = [line["score"] for line in outcome.lines]
    assert scores == sorted(scores, reverse=True) and -1 <= scores[-1] < scores[0] <= 1
    assert outcome.lines[0] | {"score": 1} == {"query": QUERY, "rank": 1, "index": 2, "score": 1, "text": QUERY}
    assert [TEXTS[line["index"]] for line in outcome.lines] == [line["text"] for line in outcome.lines]


def test_the_prompts_of_the_model_are_used_and_named(similarity: Callable[..., Outcome], unit: mlxbert.Model) -> None:
    outcome = similarity(QUERY, "a dog")
    query, text = mlxbert.embed(unit, QUERY, prompt="man is : "), mlxbert.embed(unit, "a dog", prompt="in ")
    assert abs(outcome.lines[0]["score"] - float(query @ text)) < 1e-5
    assert "query" in outcome.err and "passage" in outcome.err and "--prompt" in outcome.err
    named = similarity(QUERY, "a dog", "--query-prompt-name", "query", "--prompt-name", "passage")
    assert (named.out, named.err) == (outcome.out, "")
    similarity(QUERY, "a dog", "--query-prompt-name", "doc").fails(2, "--query-prompt-name", "'doc'", "'query'")


def test_pairs_are_rows_of_two_texts(similarity: Callable[..., Outcome], unit: mlxbert.Model, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"a,b\n{QUERY},a dog\n{QUERY},{QUERY}\n")
    outcome = similarity("--pairs", "--input", str(tmp_path / "in.csv"), "--quiet")
    pairs = [(QUERY, "a dog"), (QUERY, QUERY)]
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.lines == [found.to_dict() for found in mlxbert.similarity_pairs(unit, pairs)]
    assert [list(line) for line in outcome.lines] == [["a", "b", "score"]] * 2
    alone = pytest.approx(outcome.lines[0]["score"], abs=1e-6)  # batches of other sizes have other last digits
    assert similarity("--pairs", QUERY, "a dog").lines == [outcome.lines[0] | {"score": alone}]
    similarity("--pairs", QUERY, "a dog", "cat").fails(2, "exactly two texts", "3")
    similarity("--pairs", QUERY, "a dog", "--top-k", "1").fails(2, "--top-k", "--pairs")


@together(
    "given,options",
    [
        (["--pooling", "cls"], {"pooling": "cls"}),
        (["--prompt-name", "passage"], {"prompt_name": "passage"}),
        (["--batch-tokens", "1"], {"batch_tokens": 1}),
    ],
)
def test_an_option_does_what_it_does_in_the_library(
    given: list[str], options: dict[str, str], similarity: Callable[..., Outcome], unit: mlxbert.Model
) -> None:
    texts = [*TEXTS, "cat " * 40]
    expected = [found.to_dict() for found in mlxbert.similarity(unit, QUERY, texts, **options)]  # type: ignore[call-overload]
    assert similarity(QUERY, *texts, *given).lines == expected
    assert similarity(QUERY, *texts, *given, "--top-k", "3").lines == expected[:3]


def test_the_first_text_of_a_file_is_compared_with_the_others(
    similarity: Callable[..., Outcome], tmp_path: Path
) -> None:
    expected = ranked(similarity(QUERY, *TEXTS))
    lines = "".join(f"{text}\n" for text in [QUERY, *TEXTS])
    (tmp_path / "in.txt").write_text(lines)
    (tmp_path / "in.csv").write_text("body\n" + "".join(f'"{text}"\n' for text in [QUERY, *TEXTS]))
    found = similarity("--input", str(tmp_path / "in.txt"))
    assert ranked(found) == expected and "query" not in found.lines[0]
    assert [(line["path"], line["line"]) for line in found.lines] == [
        (str(tmp_path / "in.txt"), line["index"] + 2) for line in expected
    ]
    assert ranked(similarity("--input", str(tmp_path / "in.csv"), "--text-column", "body")) == expected
    assert ranked(similarity("--input", "-", stdin=lines.encode())) == expected
    assert ranked(similarity(stdin=lines.encode())) == expected
    others = "".join(f"{text}\n" for text in TEXTS)
    (tmp_path / "others.txt").write_text(others)
    assert ranked(similarity(QUERY, "--input", str(tmp_path / "others.txt"))) == expected
    assert ranked(similarity(QUERY, stdin=others.encode())) == expected
    similarity(QUERY, "a dog", "--input", str(tmp_path / "in.txt")).fails(2, "--input cannot be combined with")


def test_texts_that_were_cut_are_counted(similarity: Callable[..., Outcome]) -> None:
    said = "note: 1 of 3 inputs was too long for the model and was truncated; see --overflow\n"
    none = ["--prompt", ""]
    assert similarity(QUERY, "a dog", "cat " * 40, *none).err == said
    assert similarity(QUERY, "a dog", "cat " * 40, "--quiet").err == ""
    assert similarity("cat " * 40, "a dog", "a cat", *none).err == said  # the first text is one of them
    assert similarity(QUERY, QUERY, "cat " * 40, "--top-k", "1", *none).err == said  # shown or not


def test_one_text_alone_is_refused(similarity: Callable[..., Outcome], tmp_path: Path) -> None:
    similarity(QUERY).fails(1, "no text to rank")
    outcome, shown = terminal("similarity", QUERY, on=("stdin", "stderr"))
    assert outcome.status == 2 and "error:" in shown
    (tmp_path / "in.txt").write_text(f"{QUERY}\n")
    similarity("--input", str(tmp_path / "in.txt")).fails(1, f"{tmp_path}/in.txt", "text")
    (tmp_path / "in.txt").write_text("")
    similarity("--input", str(tmp_path / "in.txt")).fails(1, f"{tmp_path}/in.txt: the input has no text")


def test_bad_records_come_behind_the_others(similarity: Callable[..., Outcome], tmp_path: Path) -> None:
    records = [f'{{"text": "{QUERY}"}}', '{"n": 1}', '{"text": "a dog"}', "no JSON", '{"text": "cat"}']
    (tmp_path / "in.jsonl").write_text("\n".join(records))
    given = ["--input", str(tmp_path / "in.jsonl")]
    outcome = similarity(*given)
    outcome.fails(1, "2 of 4", "failed")
    assert [line["index"] for line in outcome.lines[2:]] == [0, 2]
    assert "no field 'text'" in outcome.lines[2]["error"] and "not valid JSON" in outcome.lines[3]["error"]
    assert [line["rank"] for line in outcome.lines[:2]] == [1, 2]
    assert {line["index"]: line["text"] for line in outcome.lines[:2]} == {1: "a dog", 3: "cat"}
    strict = similarity(*given, "--strict")
    strict.fails(1, f"input 0: {tmp_path / 'in.jsonl'}, line 2: the record has no field 'text'")
    assert strict.out == ""


def test_a_bad_first_text_is_the_error(similarity: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"text": "a dog"}\n')
    outcome = similarity("--input", str(tmp_path / "in.jsonl"))
    outcome.fails(1, "in.jsonl, line 1: ", "field", "'text'", "query")
    assert outcome.out == ""
    long = similarity("cat " * 40, "a dog", "--overflow", "error", "--prompt", "")
    long.fails(1, "text", "42 tokens", "32")
    assert long.out == ""


def test_a_file_shows_its_first_20_at_a_terminal_and_a_bar(unit_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"cat {'w ' * (number % 9)}\n" for number in range(40)))
    given = ["similarity", QUERY, "--input", str(tmp_path / "in.txt"), "-m", str(unit_folder)]
    outcome, shown = terminal(*given)
    assert len(plain(shown)[:-1]) == 20 and "40 texts" in outcome.err and "--top-k" in outcome.err
    outcome, shown = terminal(*given, "--top-k", "30")
    assert len(plain(shown)[:-1]) == 30 and "--top-k" not in outcome.err
    assert len(call(*given).lines) == 40
    assert re.search(r"\d+ done", terminal(*given, on=["stderr"])[1])
    assert "done" not in terminal(*given, "--quiet", on=["stderr"])[1]


def test_equal_texts_have_equal_scores_and_ties_keep_the_order_of_the_input(unit: mlxbert.Model) -> None:
    texts = [text for number in range(40) for text in ("a dog", f"cat {'w ' * (number % 7)}", QUERY)]
    for top_k in (None, 50):
        found = mlxbert.similarity(unit, QUERY, texts, top_k=top_k, batch_tokens=40)
        for text in set(texts):
            ranked = [one for one in found if one.text == text]
            assert len({one.score for one in ranked}) <= 1
            assert [one.index for one in ranked] == sorted(one.index for one in ranked)


def test_scores_of_equal_texts_are_equal_where_batches_round_differently() -> None:
    ranking = Ranking(2)
    for index, (text, score) in enumerate([("a", 0.5), ("b", 0.4), ("a", 0.5000001), ("c", 0.6)]):
        ranking.add(index, Scored(score, text))
    assert [(one.rank, one.number, one.score) for one in ranking.sorted()] == [(1, 3, 0.6), (2, 0, 0.5)]
    ranking.add(4, Scored(0.7, "a"))  # one with this text is still kept
    ranking.add(5, Scored(0.65, "d"))
    assert [(one.text, one.number) for one in ranking.sorted()] == [("d", 5), ("c", 3)]
    ranking.add(6, Scored(0.7, "a"))
    assert [(one.text, one.score) for one in ranking.sorted()] == [("a", 0.7), ("d", 0.65)]


def test_a_ranking_keeps_columns_and_leaves_out_empty_texts(similarity: Callable[..., Outcome], tmp_path: Path) -> None:
    rows = ["id,text,shelf,line", f"a,{QUERY},x,7", "b,,y,8", "c,a dog,z,9", "d,   ,w,10"]
    (tmp_path / "in.csv").write_text("\n".join(rows))
    given = [QUERY, "--input", str(tmp_path / "in.csv")]
    outcome = similarity(*given)
    assert [(line["id"], line["index"], line["line"]) for line in outcome.lines] == [("a", 0, 2), ("c", 2, 4)]
    assert "2 empty texts" in outcome.err and outcome.status == 0
    kept = similarity(*given, "--keep", "shelf", "--keep", "line").lines
    assert [(line["shelf"], line["line"], line.get("id")) for line in kept] == [("x", "7", None), ("z", "9", None)]
    similarity(*given, "--keep", "text").fails(2, "--keep text")
    (tmp_path / "in.txt").write_text(f"{QUERY}\n\na dog\n")
    [line] = similarity("--input", str(tmp_path / "in.txt")).lines
    assert (line["text"], line["line"], line["index"]) == ("a dog", 3, 1)
    similarity(QUERY, "", " ").fails(1, "no text to rank")


def test_an_empty_query_is_refused_and_not_replaced_by_the_next_text(
    similarity: Callable[..., Outcome], tmp_path: Path
) -> None:
    similarity("", QUERY, "a dog").fails(1, "the text is ''", "query")
    (tmp_path / "in.txt").write_text(f"\n{QUERY}\na dog\n")
    similarity("--input", str(tmp_path / "in.txt")).fails(1, "in.txt, line 1", "the text is ''", "query")
    similarity(" ", "--input", str(tmp_path / "in.txt")).fails(1, "the query is ' '")


def test_a_ranking_is_written_to_a_file(similarity: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a dog", "id": 5}\n{"n": 1}\n{"text": "cat"}\n{"text": "mat"}\n')
    given, path = [QUERY, "--input", str(tmp_path / "in.jsonl"), "--top-k", "2"], tmp_path / "x.jsonl"
    outcome = similarity(*given, "--output", str(path))
    outcome.fails(1, "1 of 4 inputs failed")
    assert outcome.out == "" and sorted(one.name for one in tmp_path.iterdir()) == ["in.jsonl", path.name]
    found, printed = [json.loads(line) for line in path.read_text().splitlines()], similarity(*given).lines
    assert len(found) == len(printed) == 3 and all(
        line.items() <= row.items() for row, line in zip(found, printed, strict=True)
    )
    assert [row.get("query") for row in found[:2]] == [QUERY] * 2 and "line 2" in found[2]["error"]
    similarity(*given, "--output", str(path)).fails(2, "exists")


def test_a_column_that_is_kept_takes_the_place_of_where_a_text_stands(
    similarity: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text,Path,line\na dog,x,7\n")
    given = [QUERY, "--input", str(tmp_path / "in.csv"), "--keep", "Path", "--keep", "line"]
    assert similarity(*given, "--output", str(tmp_path / "x.sqlite")).status == 0  # which ignores the case of names
    (line,) = similarity(*given).lines
    assert (line["Path"], line["line"], "path" in line) == ("x", "7", False)


def test_texts_of_unknown_tokens_alone_are_counted(similarity: Callable[..., Outcome], unit_folder: Path) -> None:
    outcome = similarity(QUERY, "\u518d \u89c1", "a dog \u518d", "a dog")
    assert "1 of 4 texts" in outcome.err and "unknown" in outcome.err
    assert sorted((line["text"], line.get("unknown_tokens", 0)) for line in outcome.lines) == [
        ("a dog", 0), ("a dog \u518d", 1), ("\u518d \u89c1", 2),
    ]  # fmt: skip
    assert "unknown" in similarity("\u4f60\u597d", "a dog").err
    embedded = call("embed", "\u518d \u89c1", "a dog", "-m", str(unit_folder), "--prompt", "a man : ")
    assert "1 of 2 texts" in embedded.err
    assert [line.get("unknown_tokens") for line in embedded.lines] == [2, None]


def test_a_mask_among_unknown_tokens_is_counted(unit_folder: Path, tmp_path: Path) -> None:
    tiny = str(tiny_model(tmp_path / "tiny"))
    outcome = call("fill-mask", "\u518d [MASK] \u89c1", "the [MASK] \u518d", "[MASK]", "-m", tiny)
    assert "1 of 3 texts" in outcome.err
    assert [line.get("unknown_tokens") for line in outcome.lines] == [2, 1, None]
    again = call("fill-mask", "\u518d [MASK]", "-m", tiny, "--output", str(tmp_path / "out.jsonl"))
    assert "1 of 1 text" in again.err and json.loads((tmp_path / "out.jsonl").read_text())["unknown_tokens"] == 1
