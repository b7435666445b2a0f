"""The terminal: notes on stderr, and the tables, bars and lists that views are made of.

Texts are data: they are put into rich's `Text` objects, never into its markup, and invisible characters in them are
escaped, so that no text can steer the terminal or look like another.
"""

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from mlxbert.cli.views import rich
from mlxbert.cli.views.table import Bar, Column, PlainTable
from mlxbert.errors import MlxbertError
from mlxbert.invisible import INVISIBLE

BAR_WIDTH = 20
BESIDE = (Column(), Column(wraps=True))  # a name, or numbers, and a text
LESS_MEMORY = (
    "--lora, --checkpointing, a smaller --max-length, or a smaller --batch-size with --gradient-accumulation takes less"
)
_SHOWN = 300  # characters of a text
_SAID = 4000  # characters of a line on stderr, which may repeat a name of any length
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {"error": "bold red", "hint": "cyan"}
_MOST = 9999  # columns or lines that a terminal may be said to have
# `name='value'`, `name=True`, `name=8` or `name=` as words of a sentence; a path may contain something like them.
_ARGUMENT = re.compile(
    r"""(?<![^\s(])([a-z]\w*)=(?:(True|False)|'([^']+)'|"([^"]+)"|(\d+(?:\.\d+)?))?(?=[,;:)]|\.?(?:\s|$))"""
)
_CALL = re.compile(r"mlxbert\.[a-z_]+\(")
_COMMANDS = {"load": "models download", "open_index": "index"}  # where they are not the names of functions
_OPTIONS = {"path": "--index", "paths": ""}
_quiet = False
_live: "rich.Console | None" = None


def stdout() -> "rich.Console":
    """A rich console on stdout; in a pipe or a file, lines do not end with spaces."""
    from mlxbert.cli.views.colours import Console
    from mlxbert.cli.views.trimmed import Trim

    screen = Console(highlight=False, _environ=_environment())
    if not at_terminal():
        screen.push_render_hook(Trim())
    return screen


def stderr() -> "rich.Console":
    """A rich console on stderr, which leaves long lines to the terminal; that of the live view while one is drawn."""
    from mlxbert.cli.views.colours import Console

    return _live or Console(stderr=True, highlight=False, soft_wrap=True, _environ=_environment())


def _environment() -> dict[str, str]:
    """The environment without sizes of the terminal that cannot be: its real size counts, or else 80 columns."""
    sizes = {name: os.environ.get(name, "") for name in ("COLUMNS", "LINES")}
    wrong = {name for name, size in sizes.items() if not (re.fullmatch("[0-9]{1,9}", size) and 0 < int(size) <= _MOST)}
    return {name: value for name, value in os.environ.items() if name not in wrong}


def require_stdout() -> None:
    """Refuses to draw where there is no stdout: rich would drop what it draws."""
    if sys.stdout is None:
        raise MlxbertError("stdout is closed")


def at_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def draws(json: bool | None) -> bool:
    """Whether results are drawn: as `--json` or `--no-json` says, and else at a terminal."""
    return at_terminal() if json is None else not json


def may_draw() -> bool:
    """Whether stderr is a terminal to draw progress on, and `--quiet` is not given."""
    return not _quiet and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def live(screen: "rich.Console") -> Iterator[None]:
    """While a live view is drawn on a console, notes appear above it."""
    global _live
    before, _live = _live, screen
    try:
        yield
    finally:
        _live = before


def set_quiet(quiet: bool) -> None:
    """With `quiet`, neither notes nor progress are printed from now on."""
    global _quiet
    _quiet = quiet


def can_ask() -> bool:
    """Whether there is somebody to ask: stdin and stderr are terminals."""
    return sys.stdin is not None and sys.stderr is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> bool:
    """Whether the answer to a question is yes.

    typer's own question goes to stdout, which is for data, when stdout is not a terminal.
    """
    print(f"{visible(question)} [y/N]: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_heard(kind: str) -> bool:
    """Whether lines of a kind are printed on stderr; see `say`."""
    return sys.stderr is not None and not (_quiet and kind == "note")


def say(kind: str, text: str, command: str = "") -> None:
    """Prints a line on stderr: `note: …`, `hint: …` or `error: …`; nothing where stderr cannot be written.

    In a terminal it is wrapped between words.

    A `command` that follows the text is to be copied: it stays in one piece, on a line of its own if it is long.

    Hints of the library name arguments of Python; they are printed as options.
    """
    if not is_heard(kind):
        return
    if len(text) > _SAID:
        text = f"{text[: _SAID // 2]} … {text[-_SAID // 2 :]}"
    shown, command = visible(to_options(text) if kind == "hint" else text), visible(command)
    with suppress(OSError):  # a terminal that was closed: what runs is to end as it would
        _print(kind, shown, command)


def to_options(text: str) -> str:
    """A hint of the library as one for the command line.

    `dtype='float32'` becomes `--dtype float32`, `overwrite=True` becomes `--overwrite`, `top_k=` becomes `--top-k`.
    A call becomes a command: `mlxbert.finetune('tag', train=FILE)` becomes `mlxbert finetune tag --train FILE`. A call
    that no command can say, as one with a call among its arguments, stays as it is.
    """
    if (found := _CALL.search(text)) is None:
        return _ARGUMENT.sub(_option, text)
    shown, rest = _command(found[0], text[found.end() :])
    return _ARGUMENT.sub(_option, text[: found.start()]) + shown + to_options(rest)


def _option(found: re.Match[str]) -> str:
    name, truth, *values = found.groups()
    no = "no-" if truth == "False" else ""
    value = next((f" {shlex.quote(value)}" for value in values if value), "")
    return f"--{no}{name.replace('_', '-')}{value}"


def _command(start: str, rest: str) -> tuple[str, str]:
    """The command for a call of a function of the package, and what follows; variables, in small letters, are left out.

    Args:
        start: The name of the function, and a parenthesis.
        rest: What follows it.
    """
    for bracket in re.finditer(r"\)", rest):  # the first one may stand in a string
        call = start + rest[: bracket.end()]
        with suppress(SyntaxError, ValueError):
            return _words(ast.parse(call, mode="eval").body) or call, rest[bracket.end() :]
    return start, rest  # an ellipsis


def _words(call: ast.expr) -> str | None:
    """The words of a command, or `None` if it has no such words."""
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    name = call.func.attr
    try:
        words = ["mlxbert", _COMMANDS.get(name, name.replace("_", "-")), *map(_word, call.args)]
        for one in call.keywords:
            words += _flag_or_option(one.arg or "", one.value)
    except ValueError:  # not a name or a literal
        return None
    return " ".join(filter(None, words))


def _flag_or_option(name: str, value: ast.expr) -> list[str]:
    """The option for an argument with a value; a flag has none."""
    flag = name.replace("_", "-")
    match value:
        case ast.Constant(value=True):
            return [f"--{flag}"]
        case ast.Constant(value=False):
            return [f"--no-{flag}"]
    return [_OPTIONS.get(name, f"--{flag}"), _word(value)]


def _word(value: ast.expr) -> str:
    match value:
        case ast.Name(id=name):
            return name if name.isupper() else ""
        case ast.List(elts=entries):
            return ",".join(map(_word, entries))
    return shlex.quote(str(ast.literal_eval(value)))


def _print(kind: str, shown: str, command: str) -> None:
    if sys.stderr.isatty():
        screen, style = stderr(), "" if "NO_COLOR" in os.environ else _STYLES.get(kind, "dim")
        whole = f"{kind}: {shown}"
        if command and rich.cell_len(whole) + rich.cell_len(command) < screen.width:
            whole, command = f"{whole} {command}", ""
        message = rich.Text("\n".join([*wrapped(whole, screen.width), *([command] if command else [])]))
        message.stylize(style, 0, len(kind) + 1)
        screen.print(message, soft_wrap=True)
    else:
        print(f"{kind}: {shown}{' ' if command else ''}{command}", file=sys.stderr)  # noqa: T201 - everything on stderr comes through here


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a paragraph, wrapped between words; words too long for a line, such as paths, stay whole."""
    lines: list[str] = []
    for gap, word in re.findall("( *)([^ ]+)", text):
        if lines and rich.cell_len(lines[-1]) + len(gap) + rich.cell_len(word) <= width:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return lines


def counted(number: float, what: str, several: str = "") -> str:
    """A number of things: `1 text`, `2,000 texts`; `several` is their name if that is not the one with an s."""
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def visible(text: str) -> str:
    """The text with its invisible characters made visible: `␛` for ASCII's, U+ and a number for others."""
    return INVISIBLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 32 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str) -> str:
    """The beginning of a text with its invisible characters made visible."""
    return visible(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def line(text: str, limit: int = 1000) -> str:
    """The beginning of a text, on one line and with its invisible characters made visible."""
    joined = visible(" ".join(text[: 4 * limit].split()))
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def pair(first: str, second: str) -> Iterator["rich.RenderableType"]:
    """Two texts, each on a line."""
    texts = (("A", first), ("B", second))
    yield PlainTable(BESIDE, [(rich.Text(name, "dim"), rich.Text(shortened(text))) for name, text in texts])


def size(count: int) -> str:
    """A number of bytes in powers of 1000, for example 90.9 MB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def portion(count: int, whole: int) -> str:
    """A number of bytes of a whole, for example 3.1 of 16.0 GB."""
    number, there = size(count), size(whole)
    amount, unit = number.split(" ")
    return f"{amount if there.endswith(f' {unit}') else number} of {there}"


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of eighths of a character; `share` from 0 to 1."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip().ljust(width)


def bar_of(share: float, style: str) -> Bar:
    """A bar for a cell of a table; `share` is 0 where it is negative."""
    return lambda width: rich.Text(bar(min(max(share, 0.0), 1.0), width), style)


def meter(before: "rich.Text", share: float, style: str, after: str = "") -> PlainTable:
    """A line: a text, a bar if the terminal has room for all of it, and what follows."""
    columns = (Column(), Column(bar=True, most=BAR_WIDTH), Column())
    return PlainTable(columns, [(before, bar_of(share, style), rich.Text(after))])


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Iterator["rich.RenderableType"]:
    """A heading and a list of names and values."""

    def cells(name: str, value: object) -> tuple["rich.Text", "rich.Text"]:
        return rich.Text(visible(name), "dim"), rich.Text("-", "dim") if value is None else rich.Text(
            visible(str(value))
        )

    yield rich.Text(visible(title), style="bold")
    yield PlainTable((Column(wraps=True), Column(wraps=True)), [cells(*row) for row in rows], indent=2)


def listing(headers: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> PlainTable:
    """A table with a header line."""
    columns = [Column(header, wraps=True) for header in headers]
    return PlainTable(columns, [[rich.Text(visible(str(value))) for value in row] for row in rows])
