"""Writes to the terminal: prints notes on stderr, and makes the tables, bars and lists that views consist of.

Texts are data. They go into rich's `Text` objects, never into its markup, and their invisible characters are escaped,
so that no text can control the terminal or look like another text.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from mlxbert.cli.views import rich
from mlxbert.cli.views.option_spelling import to_options
from mlxbert.cli.views.table import Bar, Column, PlainTable
from mlxbert.errors import MlxbertError
from mlxbert.results.json import INVISIBLE

BAR_WIDTH = 20
BESIDE = (Column(), Column(wraps=True))  # a name or numbers, next to a text
LESS_MEMORY = (
    "--lora, --checkpointing, a smaller --max-length, or a smaller --batch-size with --gradient-accumulation takes less"
)
CLOSE = "close other programs to free memory"
_SHOWN = 300  # characters of a text
_MAX_NOTE = 4000  # characters of a line on stderr, which may repeat a name of any length
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {"error": "bold red", "hint": "cyan"}
_LIMIT = 9999  # the most columns or lines that the environment may set
_quiet = False
_live: "rich.Console | None" = None


def stdout() -> "rich.Console":
    """Returns a rich console on stdout; if stdout is not a terminal, the console removes trailing spaces."""
    from mlxbert.cli.views.rich_console import Console, Trim

    screen = Console(highlight=False, _environ=_environment())
    if not at_terminal():
        screen.push_render_hook(Trim())
    return screen


def stderr() -> "rich.Console":
    """Returns a rich console on stderr that does not wrap lines; while a live view is drawn, returns its console."""
    from mlxbert.cli.views.rich_console import Console

    return _live or Console(stderr=True, highlight=False, soft_wrap=True, _environ=_environment())


def _environment() -> dict[str, str]:
    """Returns the environment without impossible terminal sizes, so that rich uses the real size or 80 columns."""
    sizes = {name: os.environ.get(name, "") for name in ("COLUMNS", "LINES")}
    wrong = {name for name, size in sizes.items() if not (re.fullmatch("[0-9]{1,9}", size) and 0 < int(size) <= _LIMIT)}
    return {name: value for name, value in os.environ.items() if name not in wrong}


def require_stdout() -> None:
    """Raises an error if stdout is closed, because rich would silently drop its output."""
    if sys.stdout is None:
        raise MlxbertError("stdout is closed")


def at_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def draws(json: bool | None) -> bool:
    """Whether results are drawn instead of printed as JSON. If `json` is `None`, they are drawn in a terminal only."""
    return at_terminal() if json is None else not json


def may_draw() -> bool:
    """Whether progress may be drawn, which requires that stderr is a terminal and `--quiet` was not given."""
    return not _quiet and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def live(screen: "rich.Console") -> Iterator[None]:
    """Makes notes appear above the live view that is drawn on this console."""
    global _live
    before, _live = _live, screen
    try:
        yield
    finally:
        _live = before


def set_quiet(quiet: bool) -> None:
    """Turns notes and progress bars off or on."""
    global _quiet
    _quiet = quiet


def can_ask() -> bool:
    """Whether a user can be asked, which requires that stdin and stderr are terminals."""
    return sys.stdin is not None and sys.stderr is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> bool:
    """Asks a question on stderr, because stdout is for data; returns whether the answer is yes."""
    print(f"{visible(question)} [y/N]: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_heard(kind: str) -> bool:
    """Whether lines of this kind are printed (see `say`)."""
    return sys.stderr is not None and not (_quiet and kind == "note")


def say(kind: str, text: str, command: str = "") -> None:
    """Prints a line on stderr: `note: …`, `hint: …` or `error: …`. Does nothing if stderr cannot be written to.

    In a terminal, the line is wrapped between words. A `command` that follows the text is meant to be copied; it is
    never wrapped, and gets its own line if it is long.

    Errors and hints of the library name arguments in Python; they are printed as options of the command line.
    """
    if not is_heard(kind):
        return
    if len(text) > _MAX_NOTE:
        text = f"{text[: _MAX_NOTE // 2]} … {text[-_MAX_NOTE // 2 :]}"
    message, command = visible(to_options(text)), visible(command)
    with suppress(OSError):  # a closed terminal must not change how the program ends
        _print(kind, message, command)


def _print(kind: str, message: str, command: str) -> None:
    if sys.stderr.isatty():
        screen, style = stderr(), "" if "NO_COLOR" in os.environ else _STYLES.get(kind, "dim")
        line = f"{kind}: {message}"
        if command and rich.cell_len(line) + rich.cell_len(command) < screen.width:
            line, command = f"{line} {command}", ""
        styled = rich.Text("\n".join([*wrapped(line, screen.width), *([command] if command else [])]))
        styled.stylize(style, 0, len(kind) + 1)
        screen.print(styled, soft_wrap=True)
    else:
        print(f"{kind}: {message}{' ' if command else ''}{command}", file=sys.stderr)  # noqa: T201 - everything on stderr comes through here


def wrapped(text: str, width: int) -> list[str]:
    """Wraps a paragraph between words; a word that is too long for a line, such as a path, is not split."""
    lines: list[str] = []
    for gap, word in re.findall("( *)([^ ]+)", text):
        if lines and rich.cell_len(lines[-1]) + len(gap) + rich.cell_len(word) <= width:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return lines


def counted(number: float, what: str, several: str = "") -> str:
    """Formats a count: `1 text`, `2,000 texts`; `several` is the plural of an irregular noun."""
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def visible(text: str) -> str:
    """Makes invisible characters visible.

    An ASCII control character becomes a symbol such as `␛`; any other becomes an escape with its number.
    """
    return INVISIBLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 32 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str) -> str:
    """Returns the beginning of a text, in which invisible characters are made visible."""
    return visible(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def line(text: str, limit: int = 1000) -> str:
    """Returns the beginning of a text on a single line, in which invisible characters are made visible."""
    joined = visible(" ".join(text[: 4 * limit].split()))
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def end_of(path: str, width: int) -> str:
    """Returns the end of a path that fits `width` columns; invisible characters are made visible."""
    text = visible(path)
    if rich.cell_len(text) <= width:
        return text
    text = text[-width:]
    while rich.cell_len(text) > width - 1:
        text = text[1:]
    return f"…{text}"


def pair(first: str, second: str) -> Iterator["rich.RenderableType"]:
    """Draws two texts, each on its own line."""
    texts = (("A", first), ("B", second))
    yield PlainTable(BESIDE, [(rich.Text(name, "dim"), rich.Text(shortened(text))) for name, text in texts])


def size(count: int) -> str:
    """Formats a number of bytes in powers of 1000: `90.9 MB`."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def portion(count: int, whole: int) -> str:
    """Formats a number of bytes out of a total: `3.1 of 16.0 GB`."""
    number, there = size(count), size(whole)
    amount, unit = number.split(" ")
    return f"{amount if there.endswith(f' {unit}') else number} of {there}"


def and_free(free: int | None) -> str:
    """Formats the bytes of a memory that nothing holds, to follow its size: `, 9.1 GB free`; empty if unknown."""
    return "" if free is None else f", {size(free)} free"


def fitting(needed: int, available: int, free: int | None) -> str:
    """Says whether something fits into a memory, of which programs hold all but `free` bytes."""
    if needed > available:
        return "does not fit"
    return "fits" if free is None or needed <= free else "fits without other programs"


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Draws a bar in eighths of a character; `share` is from 0 to 1."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip().ljust(width)


def bar_of(share: float, style: str) -> Bar:
    """Makes a bar for a cell of a table; a negative `share` counts as 0."""
    return lambda width: rich.Text(bar(min(max(share, 0.0), 1.0), width), style)


def meter(before: "rich.Text", share: float, style: str, after: str = "") -> PlainTable:
    """Draws a line that consists of a text, a bar if it fits the terminal, and the text `after`."""
    columns = (Column(), Column(bar=True, most=BAR_WIDTH), Column())
    return PlainTable(columns, [(before, bar_of(share, style), rich.Text(after))])


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Iterator["rich.RenderableType"]:
    """Draws a heading and a list of names and values."""

    def cells(name: str, value: object) -> tuple["rich.Text", "rich.Text"]:
        return rich.Text(visible(name), "dim"), rich.Text("-", "dim") if value is None else rich.Text(
            visible(str(value))
        )

    yield rich.Text(visible(title), style="bold")
    yield PlainTable((Column(wraps=True), Column(wraps=True)), [cells(*row) for row in rows], indent=2)


def listing(headers: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> PlainTable:
    """Makes a table with a header line."""
    columns = [Column(header, wraps=True) for header in headers]
    return PlainTable(columns, [[rich.Text(visible(str(value))) for value in row] for row in rows])
