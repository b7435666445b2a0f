"""In a terminal results are drawn, no text steers it, and colours can be read on any background."""

import ast
import functools
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.table import Table
from rich.text import Text

from mlxbert.cli.views import console, rich, rich_console
from mlxbert.cli.views.vectors import _colour as of_cosine
from mlxbert.results.json import INVISIBLE
from tests.docs.pages import ROOT
from tests.helpers.cases import together
from tests.helpers.program import TERMINALS, Terminal, _TerminalStream, call, terminal, tiny_model
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
    assert [row.split()[0] for row in rows] == ["japan", "tokyo", "china"]
    assert all(re.search(r"\d+\.\d%", row) and len(row) <= 100 for row in rows)
    widths = [row.count("█") for row in rows]
    assert widths == sorted(widths, reverse=True) and widths[0] > 10
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
        assert colours(coloured) and not colours(uncoloured) and plain(uncoloured) == plain(coloured)


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
        ["verify", "a/b\u202e\u200b\U000e0041", "builtin", "--offline"],
    ],
)
def test_control_characters_never_reach_the_terminal(arguments: list[str], small: str) -> None:
    _, shown = terminal(*arguments, on=["stdout", "stderr"], MLXBERT_MODEL=small)
    assert shown and raw_controls(shown) == set()


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
    assert [line for line in lines if len(line) > 40] == [line for line in lines if path in line] != []
    _, shown = terminal("finetune", "--train", "x.csv", on=["stdout", "stderr"], COLUMNS="40", **variables)
    lines = plain(shown)
    assert len(lines) > 2 and max(map(len, lines)) <= 40
    assert "needs one of classify" in " ".join(lines)


def test_words_without_the_filled_text_are_drawn_in_it_all_the_same(small: str) -> None:
    given = ["fill-mask", "the [MASK] on", "--targets", "sat", "--model", small]
    assert plain(terminal(*given, "--no-text")[1]) == plain(terminal(*given)[1])
    fills = call(*given, "--no-text").lines[0]["masks"][0]["fills"]
    assert [list(fill) for fill in fills] == [["token", "token_id", "score"]]


@pytest.mark.parametrize(("variables", "system"), [({}, "256"), ({"COLORTERM": "truecolor"}, "truecolor")])
def test_colours_of_24_bits_are_for_terminals_that_say_they_have_them(
    variables: dict[str, str], system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal_app = {"TERM_PROGRAM": "Apple_Terminal", "TERM": "xterm-256color"}  # it has none, and says so
    for name, value in {"COLORTERM": "", **terminal_app, **variables}.items():
        monkeypatch.setenv(name, value)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", _TerminalStream(io.BytesIO(), encoding="utf-8"))
    assert console.stdout().color_system == console.stderr().color_system == system


@together("colours", [{}, {"FORCE_COLOR": "1"}])
@together("arguments", [("tokenize", "hello world", "--no-json"), ("help", "embed")])
def test_no_line_ends_with_spaces(arguments: tuple[str, ...], colours: dict[str, str]) -> None:
    outcome = call(*arguments, **colours)  # type: ignore[arg-type]
    lines = Text.from_ansi(outcome.out).plain.split("\n")
    assert outcome.status == 0 and len(lines) > 2
    assert not [line for line in lines if line.endswith(" ")]


def test_spaces_that_are_seen_are_kept() -> None:
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column()
    for cells in (("a", "b"), ("", ""), ("  c", "")):
        table.add_row(*cells)
    texts = ("a  ", Text("b c  \n\n d "), Text("e ", end=""))
    coloured: dict[str, Any] = {"color_system": "256", "force_terminal": True}
    for shown, how, expected in (
        ((table,), {}, " a    b\n\n   c\n"),
        (texts, {}, "a\nb c\n\n d\ne\n"),
        ((Text("  ", "on red"),), coloured, "\x1b[48;5;196m  \x1b[0m\n"),
        ((Text("  ", "on red"),), {"color_system": None}, "\n"),
    ):
        file = io.StringIO()
        console = rich_console.Console(file=file, width=12, **how)
        console.push_render_hook(rich_console.Trim())
        for one in shown:
            console.print(one)
        assert file.getvalue() == expected


Colour = tuple[int, int, int]
System = Literal["standard", "256", "truecolor"]
READABLE = 3.0  # the ratio that WCAG 2 asks for of large and bold text
# The sixteen colours, black to white and the bright ones: of xterm, and of the profiles that a Mac has at first.
PALETTES = {
    "xterm": "000000cd000000cd00cdcd000000eecd00cd00cdcde5e5e57f7f7fff000000ff00ffff005c5cffff00ff00ffffffffff",
    "Terminal.app": "000000c2362125bc24adad27492ee1d338d333bbc8cbcccd818383fc391f31e722eaec235833fff935f814f0f0e9ebeb",
}
WORDS = {*rich_console.FIXED, "bold", "dim", "italic", "underline", "reverse", "on"}


def luminance(colour: Colour) -> float:
    red, green, blue = (part / 3294 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    """The ratio of WCAG 2, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def drawn(style: str, system: System, palette: str) -> list[Colour]:
    """What a terminal may draw text of a style in: of the sixteen, a bold colour as itself or as the bright one."""
    terminal = screen(system)
    found = terminal.get_style(style)
    if found.color is None or found.color.is_default:
        return []
    assert terminal._color_system is not None
    number = found.color.downgrade(terminal._color_system).number
    assert number is not None, style
    channels = bytes.fromhex(PALETTES[palette])
    sixteen = [*zip(channels[::3], channels[1::3], channels[2::3], strict=True)]
    if number < 16:
        return [sixteen[number], *([sixteen[number + 8]] if found.bold and number < 8 else [])]
    return [found.color.get_truecolor()]


def screen(system: System, file: io.StringIO | None = None) -> rich_console.Console:
    return rich_console.Console(force_terminal=True, color_system=system, legacy_windows=False, file=file, width=80)


def strings(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The strings of a module, and whether another part follows in an f-string."""
    parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node in parts


@functools.cache
def styles() -> dict[str, str]:
    """Every style with a colour in the views, by where it stands; `dim` before another part is one too."""
    found = {}
    for path in sorted((ROOT / "cli").rglob("*.py")):
        for text, is_part in strings(ast.parse(path.read_text(encoding="utf-8"))):
            words = text.split()
            coloured = rich_console.FIXED.keys() & words or (is_part and "dim" in words)
            if coloured and WORDS.issuperset(words):
                found[text] = path.name
    assert {"bold green", "cyan", "bold red", "yellow", "bold reverse green"} <= found.keys()
    return found


@together("style", lambda: [*styles(), *rich_console.OF_RICH, "dim"])
@together("system", ["standard", "256", "truecolor"])
@together("palette", PALETTES)
def test_every_style_can_be_read_on_white_and_on_black(style: str, system: System, palette: str) -> None:
    if style.startswith("white"):  # it has a background, see below
        return
    assert style == "dim" or "dim" not in style.split(), f"{styles()[style]}: a dim colour is hard to read"
    for colour in drawn(style, system, palette):
        assert min(contrast(colour, (255, 255, 255)), contrast(colour, (0, 0, 0))) >= READABLE, colour


@needs("train")
@pytest.mark.parametrize("system", ["256", "truecolor"])
def test_numbers_on_a_background_can_be_read(system: System) -> None:
    from mlxbert.train.views import evaluation

    shares = [part / 50 for part in range(51)]
    backgrounds = [f"on {of_cosine(share)}" for share in shares]
    backgrounds += [evaluation._colour(share, right) for share in shares for right in (True, False)]
    for background in backgrounds:
        terminal = screen(system)
        found = terminal.get_style(f"white {background}")
        assert found.color is not None and found.bgcolor is not None and terminal._color_system is not None
        below = found.bgcolor.downgrade(terminal._color_system)
        assert contrast(found.color.get_truecolor(), below.get_truecolor()) >= READABLE, background
        assert str(screen("standard").get_style(f"white {background}")) == "none"


def test_fixed_colours_differ_from_white_and_black_by_as_much() -> None:
    for name in rich_console.FIXED.keys() - {"white"}:
        (colour,) = drawn(name, "256", "xterm")
        assert min(contrast(colour, (255, 255, 255)), contrast(colour, (0, 0, 0))) >= 3.5, name


def test_the_consoles_of_the_program_have_these_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_live", None)
    assert isinstance(console.stdout(), rich_console.Console) and isinstance(console.stderr(), rich_console.Console)
    for path in (ROOT / "cli").rglob("*.py"):
        made = re.findall(r"(?<!class )\bConsole\([^)]", path.read_text(encoding="utf-8"))
        assert not made or path.name in ("console.py", "colours.py"), path


def test_a_bar_of_progress_has_them_and_the_name_of_a_file_in_a_link_is_none() -> None:
    style = screen("256").get_style("bold link file:///notes/green.md#3")
    assert style.link == "file:///notes/green.md#3" and style.bold
    out = io.StringIO()
    with rich.Progress(rich.BarColumn(), rich.DownloadColumn(), console=screen("256", out)) as bar:
        bar.add_task("", total=100, completed=50)
    assert "\x1b[38;5;164m" in out.getvalue() and "\x1b[38;5;28m" in out.getvalue()
