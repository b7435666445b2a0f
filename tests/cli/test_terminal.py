"""In a terminal results are drawn: bars, percents, colours, rows; and no text steers the terminal."""

import io
import json
import re
from pathlib import Path

import pytest

from mlxbert.cli.views import console
from mlxbert.results.json import INVISIBLE, to_json
from tests.helpers.cases import together
from tests.helpers.program import TERMINALS, Terminal, _TerminalStream, call, real_terminal, terminal, tiny_model
from tests.helpers.rooms import needs

pytestmark = pytest.mark.usefixtures("loaded_once")

TEXT = "Tokyo is the largest city in [MASK]."
# Sequences that set a title, move the cursor, ring, switch character sets, and do the same in one C1 character;
# characters that turn or isolate a direction, that have no width, that end a line, and tags.
STEERING = "\x1b]0;title\x07 \x1b[5A \x9b5A \x9d0;t\x9c \x08\x7f \x0e \u202e\u2066\u200b\u2028\U000e0041 the cat"
CODES = re.compile(r"\x1b\[([0-9;]*)m")


def plain(shown: str) -> list[str]:
    """Lines without colours."""
    return [line.rstrip() for line in CODES.sub("", shown).split("\n")]


def colours(shown: str) -> set[str]:
    """The colours in use, as "select graphic rendition" has them: one of 16, of 256, or red, green and blue."""
    one = re.compile(r"[34]8;5;\d+|[34]8;2(?:;\d+){3}|(?<!\d)(?:[349]|10)[0-7](?!\d)")
    return {found for code in CODES.findall(shown) for found in one.findall(code)}


def raw_controls(shown: str) -> set[str]:
    """Control and invisible characters besides newlines and colours."""
    return {*INVISIBLE.findall(CODES.sub("", shown))} - {"\n"}


@TERMINALS
def test_fill_mask_draws_words_bars_percents_and_the_sentence(show: Terminal, tmp_path: Path) -> None:
    outcome, shown = show("fill-mask", TEXT, "--top-k", "3", MLXBERT_DATA=str(tmp_path))
    rows = [line for line in plain(shown) if line]
    assert len(rows) == 3
    assert [row.split()[0] for row in rows] == ["japan", "tokyo", "china"]
    for row in rows:
        assert re.search(r"\d+\.\d%", row)
        assert max(map(len, rows)) <= 100
    widths = [row.count("█") for row in rows]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 10
    assert rows[0].endswith("Tokyo is the largest city in japan.")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err.startswith("note: the built-in model")


def test_the_word_that_fills_the_mask_is_highlighted(small: str) -> None:
    _, shown = terminal("fill-mask", "the cat [MASK] on", "--targets", "sat,##s", "--model", small)
    rows = {re.findall(r"(\S+)\x1b\[0m", row)[0]: row for row in shown.split("\n") if "█" in row or "%" in row}
    sat = next(row for row in rows.values() if "sat" in row)
    assert re.search(r"\x1b\[2mthe cat \x1b\[0m\x1b\[1;38;5;28msat\x1b\[0m\x1b\[2m on\x1b\[0m", sat)
    assert any("the cats on" in line for line in plain(shown))  # a continuation joins the word before it
    assert colours(shown)


def test_no_color_removes_the_colours_and_nothing_else(small: str) -> None:
    for arguments in (["fill-mask", "the [MASK]"], ["tokenize", "the cat"]):
        _, coloured = terminal(*arguments, "--model", small)
        _, uncoloured = terminal(*arguments, "--model", small, NO_COLOR="1")
        assert colours(coloured)
        assert not colours(uncoloured)
        assert plain(uncoloured) == plain(coloured)


def test_tokenize_draws_the_sum_of_token_segment_and_position(small: str) -> None:
    _, shown = terminal("tokenize", "the cats!", "--pair", "sat.", "--model", small)
    rows = [line.split() for line in plain(shown) if line]
    assert rows[0] == ["token", "[CLS]", "the", "cat", "##s", "!", "[SEP]", "sat", ".", "[SEP]"]
    assert rows[1] == ["id", "2", "5", "6", "13", "16", "3", "8", "14", "3"]
    assert rows[2] == ["+", "segment", *"AAAAAABBB"]
    assert rows[3] == ["+", "position", *"012345678"]


def test_a_bad_text_is_an_error_on_stderr_in_its_place(small: str) -> None:
    outcome, shown = terminal("fill-mask", "the", "w1 [MASK]", "--model", small)
    outcome.fails(1, "error: input 0: the text 'the' has no [MASK]", "1 of 2")
    assert "no [MASK]" not in shown


@together(
    "arguments",
    [
        ["fill-mask", f"{STEERING} [MASK] {STEERING} [MASK]"],
        ["tokenize", STEERING],
        ["next-sentence", STEERING, STEERING],
        ["fill-mask", STEERING],
        ["fill-mask", "[MASK]", STEERING],
        ["fill-mask", "[MASK]", "--targets", STEERING],
        ["fill-mask", "[MASK]", "--input", STEERING],
        ["fill-mask", "[MASK]", "--output", f"{STEERING}.ogg"],
        ["inspect", STEERING],
        ["tokenize", "the", "--format", STEERING],
        [STEERING],
        ["tokenize", STEERING, "--json"],
        ["fill-mask", f"{STEERING} [MASK]", "--json"],
    ],
)
def test_control_characters_never_reach_the_terminal(arguments: list[str], small: str) -> None:
    _, shown = terminal(*arguments, on=["stdout", "stderr"], MLXBERT_MODEL=small)
    assert shown
    assert raw_controls(shown) == set()


@TERMINALS
def test_names_and_words_of_a_model_do_not_steer_the_terminal(show: Terminal, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model\x1b]0;title\x07")
    words = (model / "vocab.txt").read_text(encoding="utf-8").replace("cat", "\x1b[5A").replace("dog", "[red]dog")
    (model / "vocab.txt").write_text(words, encoding="utf-8")
    for arguments in (["inspect", str(model)], ["fill-mask", "[MASK]", "--top-k", "60", "--model", str(model)]):
        _, shown = show(*arguments)
        assert raw_controls(shown) == set()
    assert any(line.startswith("[red]dog") for line in plain(shown))


@TERMINALS
def test_long_work_shows_a_bar_with_its_rate_on_stderr(show: Terminal, small: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n" * 300, encoding="utf-8")
    arguments = ["tokenize", "--input", str(tmp_path / "in.txt"), "--model", small]
    outcome, shown = show(*arguments, "--output", str(tmp_path / "out.jsonl"), on=["stderr"])
    assert outcome.status == 0
    assert re.search(r"100% +of 2\.4 kB, 300 done, [\d,]+/s", shown)
    _, quiet = show(*arguments, "--output", str(tmp_path / "quiet.jsonl"), "--quiet", on=["stderr"])
    assert quiet == ""


@TERMINALS
def test_talk_on_a_terminal_has_colours_unless_no_color_is_set(show: Terminal, small: str) -> None:
    arguments = ["fill-mask", "the", "--model", small]
    assert colours(show(*arguments, on=["stderr"])[1])
    _, uncoloured = show(*arguments, on=["stderr"], NO_COLOR="1")
    assert "error: the text 'the' has no [MASK]" in uncoloured
    assert not colours(uncoloured)


@needs("train")
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_messages_are_wrapped_between_words_and_long_paths_stay_whole(variables: dict[str, str]) -> None:
    path = "/no/folder/" + "long" * 20
    _, shown = terminal("inspect", path, on=["stdout", "stderr"], COLUMNS="40", **variables)
    lines = plain(shown)
    (long,) = [line for line in lines if path in line]
    assert all(len(line) <= 40 for line in lines if line != long)
    _, shown = terminal("finetune", "--train", "x.csv", on=["stdout", "stderr"], COLUMNS="40", **variables)
    lines = plain(shown)
    assert len(lines) > 2 and max(map(len, lines)) <= 40
    assert "needs one of classify" in " ".join(lines)


def test_words_without_the_filled_text_are_drawn_in_it_all_the_same(small: str) -> None:
    given = ["fill-mask", "the [MASK] on", "--targets", "sat", "--model", small]
    assert plain(terminal(*given, "--no-text")[1]) == plain(terminal(*given)[1])
    fills = call(*given, "--no-text").lines[0]["masks"][0]["fills"]
    assert [list(fill) for fill in fills] == [["token", "token_id", "score"]]


@pytest.mark.parametrize(
    "text", ["\u202e\u2066a\u200b\u2028\U000e0041b\x7f\x9b\ud83d", "\u0645\u200c\u062e \U0001f468\u200d\U0001f469"]
)
def test_lines_of_json_escape_what_is_invisible_and_say_the_same(text: str) -> None:
    line = to_json({"text": text, text: [text]})
    assert json.loads(line) == {"text": text, text: [text]}
    assert not INVISIBLE.search(line)
    assert line.isascii() or text in line  # joiners of scripts stay


def test_names_in_errors_do_not_steer_the_terminal() -> None:
    _, shown = terminal("verify", "a/b\u202e\u200b\U000e0041", "builtin", "--offline", on=["stderr"], NO_COLOR="1")
    assert "error: " in shown and raw_controls(shown) == set()


APPLE = {"TERM_PROGRAM": "Apple_Terminal", "TERM": "xterm-256color"}  # it has no colours of 24 bits, and says so


@pytest.mark.parametrize(("variables", "system"), [({}, "256"), ({"COLORTERM": "truecolor"}, "truecolor")])
def test_colours_of_24_bits_are_for_terminals_that_say_they_have_them(
    variables: dict[str, str], system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLORTERM": "", **APPLE, **variables}.items():
        monkeypatch.setenv(name, value)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", _TerminalStream(io.BytesIO(), encoding="utf-8"))
    assert console.stdout().color_system == console.stderr().color_system == system


@pytest.mark.slow
def test_terminal_app_gets_no_colours_of_24_bits(small: str, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("the cat sat\n" * 3000)
    drawn = ["stdout", "stderr"]
    given = ["embed", "--input", str(path), "--model", small, "--overwrite", "--output", str(tmp_path / "x.npy")]
    for command in (given, ["embed", "the cat sat", "the dog", "--model", small]):  # a bar of progress; a heat map
        _, shown = real_terminal(*command, on=drawn, **APPLE)
        assert "38;5;" in shown and not re.search(r"[34]8;2;", shown)
    _, shown = real_terminal(*command, on=drawn, **APPLE, COLORTERM="truecolor")
    assert re.search(r"48;2;", shown)
