"""How results look: JSON lines for programs, tables and bars for people. The only place with colours.

Texts are data: they are put into rich's `Text` objects, never into its markup, and control characters in them are made
visible, so that no text can steer the terminal.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mlxbert.errors import MlxbertError
from mlxbert.results import FillMask, Mask, NextSentence

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

BAR_WIDTH = 20
EXCERPT = 60  # characters shown on each side of a mask
_UNSAFE = re.compile("[\x7f-\x9f\ud800-\udfff]")  # control characters beyond ASCII's, halves of surrogate pairs
_quiet = False
_EIGHTHS = " ▏▎▍▌▋▊▉"
# Control characters as their pictures, U+2400 and on; DEL, the C1 block and halves of surrogate pairs as U+FFFD.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32)}
_VISIBLE |= {code: "\ufffd" for code in (*range(127, 160), *range(0xD800, 0xE000))}


class OutputClosedError(Exception):
    """Whoever read stdout has gone."""


def to_json(value: object) -> str:
    """One line of JSON, as UTF-8 text without anything that a terminal would act on."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False, allow_nan=False))


def put_line(text: str) -> None:
    """One line on stdout, not kept in a buffer."""
    if sys.stdout is None:
        raise MlxbertError("stdout is closed")
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # typer would take the OSError for a failure
        raise OutputClosedError from None


def at_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def hush(quiet: bool) -> None:
    """With `quiet`, nothing but errors is said from now on."""
    global _quiet
    _quiet = quiet


def visible(text: str) -> str:
    """The text with its control characters made visible."""
    return text.translate(_VISIBLE)


def console(stderr: bool = False) -> "Console":
    """A rich console on stdout, or on stderr."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=stderr)


def say(kind: str, text: str) -> None:
    """One line of talk on stderr: `note: …`, `hint: …`, `error: …`."""
    if sys.stderr is None or (_quiet and kind != "error"):
        return
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        from rich.text import Text

        style = {"error": "bold red", "hint": "cyan", "warning": "yellow"}.get(kind, "dim")
        console(stderr=True).print(Text.assemble((f"{kind}:", style), " ", visible(text)))
    else:
        print(f"{kind}: {visible(text)}", file=sys.stderr)  # noqa: T201 - the one place that talks


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of eighths of a character; `share` from 0 to 1."""
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip().ljust(width)


def grid(*headers: str) -> "Table":
    """A table without lines; without a header where there are none."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(headers), header_style="dim")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _excerpt(text: str, start: int, end: int) -> tuple[str, str]:
    """What stands before and after a place, shortened, on one line."""
    left, right = " ".join(text[:start].split(" ")), text[end:]
    if len(left) > EXCERPT:
        left = "…" + left[-EXCERPT:]
    if len(right) > EXCERPT:
        right = right[:EXCERPT] + "…"
    return visible(left), visible(right)


def _fill_rows(result: FillMask, mask: Mask) -> "Table":
    from rich.text import Text

    table = grid()
    for _ in range(4):
        table.add_column(no_wrap=True)
    table.columns[3].no_wrap = False
    for fill in mask.fills:
        word_end = len(fill.text) - len(result.text[mask.end :])
        token = fill.token.strip()
        word_start = word_end - len(token.removeprefix("##"))
        left, right = _excerpt(fill.text, word_start, word_end)
        word = visible(fill.text[word_start:word_end])
        table.add_row(
            Text(visible(token), style="bold"),
            Text(bar(fill.score), style="green"),
            Text(f"{fill.score:6.1%}"),
            Text.assemble((left, "dim"), (word, "bold green"), (right, "dim")),
        )
    return table


def fill_mask(result: FillMask) -> Iterator["RenderableType"]:
    """A table per mask: the words, their probabilities, the sentence filled."""
    from rich.text import Text

    for number, mask in enumerate(result.masks, 1):
        if len(result.masks) > 1:
            left, right = _excerpt(result.text, mask.start, mask.end)
            here = visible(result.text[mask.start : mask.end])
            yield Text.assemble((f"mask {number} of {len(result.masks)}: ", "dim"), left, (here, "bold yellow"), right)
        yield _fill_rows(result, mask)


def next_sentence(result: NextSentence) -> Iterator["RenderableType"]:
    """The answer with its probability, and the two texts."""
    from rich.text import Text

    answer = ("follows", "bold green") if result.is_next else ("does not follow", "bold red")
    share = result.score if result.is_next else 1 - result.score
    yield Text.assemble(answer, "  ", (bar(share), answer[1].split()[1]), f" {share:.1%}")
    for name, text in (("A", result.a), ("B", result.b)):
        yield Text.assemble((f"{name}  ", "dim"), visible(text if len(text) <= 300 else text[:299] + "…"))


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Iterator["RenderableType"]:
    """A heading and a list of names and values."""
    from rich.text import Text

    yield Text(visible(title), style="bold")
    table = grid("", "")
    table.show_header = False
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


def may_draw() -> bool:
    """Whether there is a terminal on stderr to draw progress on, and nobody asked for silence."""
    return not _quiet and sys.stderr is not None and sys.stderr.isatty()


def size(count: int) -> str:
    """A number of bytes for people, in powers of 1000: 90.9 MB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


@contextmanager
def progress(
    total: int | None, *, shown: bool, before: tuple[int, int] = (0, 0)
) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, if that is a terminal.

    Args:
        total: Bytes to read; `None` where that is not known.
        shown: Whether there is room for one: results go elsewhere.
        before: Bytes and results that an earlier run is done with: the bar begins there, the rate counts the rest.

    Yields:
        A function of (bytes read, results so far).
    """
    if not shown or not may_draw():
        yield lambda done, results: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [BarColumn(), TextColumn("{task.fields[results]} done, {task.fields[rate]:.0f}/s")]
    drawing = Progress(
        *columns, TimeRemainingColumn(), console=console(stderr=True), transient=True, redirect_stdout=False
    )
    with drawing as drawn:  # stdout is left alone: rich would send what is written there to the console, too
        task = drawn.add_task("", total=total, completed=before[0], results=before[1], rate=0.0)

        def update(done: int, results: int) -> None:
            elapsed = drawn.tasks[0].elapsed or 1e-9
            drawn.update(task, completed=done, results=results, rate=(results - before[1]) / elapsed)

        yield update
