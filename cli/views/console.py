"""The terminal: notes on stderr, and the tables, bars and lists that views are made of.

Texts are data: they are put into rich's `Text` objects, never into its markup, and control characters in them are made
visible, so that no text can steer the terminal.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlxbert.cli.options import to_options

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

BAR_WIDTH = 20
_SHOWN = 300  # characters of a text
_SAID = 4000  # characters of a line on stderr, which may repeat a name of any length
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {"error": "bold red", "hint": "cyan"}
# Control characters as their pictures, U+2400 and on; DEL, the C1 block and halves of surrogate pairs as U+FFFD.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32)}
_VISIBLE |= {code: "\ufffd" for code in (*range(127, 160), *range(0xD800, 0xE000))}
_quiet = False
_live: "Console | None" = None


def stdout() -> "Console":
    """A rich console on stdout."""
    from rich.console import Console

    return Console(highlight=False)


def stderr() -> "Console":
    """A rich console on stderr, which leaves long lines to the terminal; that of the live view while one is drawn."""
    from rich.console import Console

    return _live or Console(stderr=True, highlight=False, soft_wrap=True)


def at_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def may_draw() -> bool:
    """Whether stderr is a terminal to draw progress on, and `--quiet` is not given."""
    return not _quiet and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def live(screen: "Console") -> Iterator[None]:
    """While a live view is drawn on a console, notes appear above it."""
    global _live
    _live = screen
    try:
        yield
    finally:
        _live = None


def set_quiet(quiet: bool) -> None:
    """With `quiet`, only errors are printed from now on."""
    global _quiet
    _quiet = quiet


def say(kind: str, text: str, command: str = "") -> None:
    """Prints a line on stderr: `note: …`, `hint: …` or `error: …`; at a terminal it is wrapped between words.

    A `command` that follows the text is to be copied: it stays in one piece, on a line of its own if it is long.

    Hints of the library name arguments of Python; they are printed as options.
    """
    if sys.stderr is None or (_quiet and kind != "error"):
        return
    if len(text) > _SAID:
        text = f"{text[: _SAID // 2]} … {text[-_SAID // 2 :]}"
    shown, command = visible(to_options(text) if kind == "hint" else text), visible(command)
    if sys.stderr.isatty():
        from rich.cells import cell_len
        from rich.text import Text

        screen, style = stderr(), "" if "NO_COLOR" in os.environ else _STYLES.get(kind, "dim")
        whole = f"{kind}: {shown}"
        if command and cell_len(whole) + cell_len(command) < screen.width:
            whole, command = f"{whole} {command}", ""
        message = Text("\n".join([*wrapped(whole, screen.width), *([command] if command else [])]))
        message.stylize(style, 0, len(kind) + 1)
        screen.print(message, soft_wrap=True)
    else:
        print(f"{kind}: {shown}{' ' if command else ''}{command}", file=sys.stderr)  # noqa: T201 - everything on stderr comes through here


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, wrapped between words; words that are too long for a line, such as paths, stay whole.

    Args:
        text: One paragraph.
        width: Columns of a line; a wide character takes two.
    """
    from rich.cells import cell_len

    lines: list[str] = []
    for gap, word in re.findall("( *)([^ ]+)", text):
        if lines and cell_len(lines[-1]) + len(gap) + cell_len(word) <= width:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return lines


def counted(number: int, what: str, several: str = "") -> str:
    """A number of things: `1 text`, `2,000 texts`.

    Args:
        number: How many.
        what: The name of one.
        several: The name of several, if that is not the name of one with an s.
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def visible(text: str) -> str:
    """The text with its control characters made visible."""
    return text.translate(_VISIBLE)


def shortened(text: str) -> str:
    """The beginning of a text with its control characters made visible."""
    return visible(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def pair(first: str, second: str) -> Iterator["RenderableType"]:
    """Two texts, each on a line."""
    from rich.text import Text

    for name, text in (("A", first), ("B", second)):
        yield Text.assemble((f"{name}  ", "dim"), shortened(text))


def size(count: int) -> str:
    """A number of bytes in powers of 1000, for example 90.9 MB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of eighths of a character; `share` from 0 to 1."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip().ljust(width)


def grid(*headers: str) -> "Table":
    """A table without lines, with one column per header; without a header line where all are empty."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(headers), header_style="dim")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Iterator["RenderableType"]:
    """A heading and a list of names and values."""
    from rich.text import Text

    yield Text(visible(title), style="bold")
    table = grid("", "")
    for name, value in rows:
        shown = Text("-", style="dim") if value is None else Text(visible(str(value)))
        table.add_row(Text(f"  {name}", style="dim"), shown)
    yield table


def listing(headers: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> "RenderableType":
    """A table with a header line."""
    from rich.text import Text

    table = grid(*headers)
    for row in rows:
        table.add_row(*(Text(visible(str(value))) for value in row))
    return table
