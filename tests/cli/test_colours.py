"""Everything that views print can be read on a white and on a black terminal, with 16 and with more colours."""

import ast
import functools
import io
import re
from collections.abc import Iterator
from typing import Literal

import pytest

from mlxbert.cli.views import console, rich_console
from mlxbert.cli.views.vectors import _colour as of_cosine
from tests.docs.pages import ROOT
from tests.helpers.cases import together
from tests.helpers.rooms import needs

Colour = tuple[int, int, int]
System = Literal["standard", "256", "truecolor"]
READABLE = 3.0  # the ratio that WCAG 2 asks for of large and bold text
# The sixteen colours, black to white and the bright ones: of xterm, and of the profiles that a Mac has at first.
PALETTES = {
    "xterm": (
        "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 "
        "7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff"
    ),
    "Terminal.app": (
        "000000 c23621 25bc24 adad27 492ee1 d338d3 33bbc8 cbcccd "
        "818383 fc391f 31e722 eaec23 5833ff f935f8 14f0f0 e9ebeb"
    ),
}
WORDS = {*rich_console.FIXED, "bold", "dim", "italic", "underline", "reverse", "on"}


def luminance(colour: Colour) -> float:
    red, green, blue = (part / 3294 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    """The ratio of WCAG 2, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def can_be_read(colour: Colour) -> bool:
    return all(contrast(colour, other) >= READABLE for other in ((255, 255, 255), (0, 0, 0)))


def of_hex(word: str) -> Colour:
    red, green, blue = bytes.fromhex(word)
    return red, green, blue


def drawn(style: str, system: System, palette: str) -> list[Colour]:
    """What a terminal may draw text of a style in: of the sixteen, a bold colour as itself or as the bright one."""
    terminal = screen(system)
    found = terminal.get_style(style)
    if found.color is None or found.color.is_default:
        return []
    assert terminal._color_system is not None
    number = found.color.downgrade(terminal._color_system).number
    assert number is not None, style
    sixteen = [of_hex(word) for word in PALETTES[palette].split()]
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
            if (
                words
                and WORDS.issuperset(words)
                and (rich_console.FIXED.keys() & words or (is_part and "dim" in words))
            ):
                found[text] = path.name
    return found


def test_the_styles_of_the_views_are_found() -> None:
    assert {"bold green", "cyan", "bold red", "yellow", "bold reverse green"} <= styles().keys()


@together("style", lambda: [*styles(), *rich_console.OF_RICH, "dim"])
@together("system", ["standard", "256", "truecolor"])
@together("palette", PALETTES)
def test_every_style_can_be_read_on_white_and_on_black(style: str, system: System, palette: str) -> None:
    if style.startswith("white"):  # it has a background, see below
        return
    assert style == "dim" or "dim" not in style.split(), f"{styles()[style]}: a dim colour is hard to read"
    for colour in drawn(style, system, palette):
        assert can_be_read(colour), colour


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


def test_the_names_of_files_in_links_are_no_colours() -> None:
    style = screen("256").get_style("bold link file:///notes/green.md#3")
    assert style.link == "file:///notes/green.md#3" and style.bold


def test_the_consoles_of_the_program_have_these_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_live", None)
    assert isinstance(console.stdout(), rich_console.Console) and isinstance(console.stderr(), rich_console.Console)
    for path in (ROOT / "cli").rglob("*.py"):
        made = re.findall(r"(?<!class )\bConsole\([^)]", path.read_text(encoding="utf-8"))
        assert not made or path.name in ("console.py", "colours.py"), path


def test_a_bar_of_progress_has_them() -> None:
    from mlxbert.cli.views import rich

    out = io.StringIO()
    with rich.Progress(rich.BarColumn(), rich.DownloadColumn(), console=screen("256", out)) as bar:
        bar.add_task("", total=100, completed=50)
    assert "\x1b[38;5;164m" in out.getvalue() and "\x1b[38;5;28m" in out.getvalue()
