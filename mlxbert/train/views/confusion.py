"""Draws which labels are mistaken for which others: a matrix if it fits the terminal, and the most frequent mix-ups."""

from collections.abc import Iterator, Sequence

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable

Matrix = Sequence[Sequence[int]]

_MAX_LABEL, _MIN_LABEL = 24, 8  # terminal columns of a label's name
_MAX_HEAD = 12
_LISTED = 8  # mix-ups
_NAME = Column(wraps=True, most=_MAX_LABEL + 2)
_MIXED_UP = (_NAME, _NAME, Column(right=True), Column(bar=True, most=console.BAR_WIDTH))
_SHADES = " ░▒▓█"
# Backgrounds of a full cell, right or wrong, and of an almost empty one: on white, black would look strongest.
_RIGHT, _WRONG, _FAINT = (0, 95, 0), (135, 0, 0), (98, 98, 98)


def confusion(labels: Sequence[str], matrix: Matrix, width: int) -> Iterator["rich.RenderableType"]:
    """Draws the confusion matrix and the most frequent mix-ups.

    The matrix has numbers if they fit, otherwise shades. If these do not fit either, it is left out.
    """
    names = [console.visible(label) for label in labels]
    longest = max(map(rich.cell_len, names))
    digits = max(len(str(count)) for row in matrix for count in row)
    room = max(min(longest, _MAX_LABEL, width // 3), _MIN_LABEL)
    heads = max(digits, longest if longest <= _MAX_HEAD else _MAX_HEAD + 1) + 2
    numbered = max(digits, len(str(len(names)))) + 1
    place = room + len(str(len(names))) + 4
    yield rich.Text("confusion: rows are expected labels, columns predicted ones", "bold")
    if longest <= _MAX_HEAD and room + 4 + heads * len(names) <= width:
        yield from _cells(names, matrix, room, heads, [" " * (heads - rich.cell_len(name)) + name for name in names])
    elif place + numbered * len(names) <= width:
        tops = [f"{number:>{numbered}}" for number in range(1, len(names) + 1)]
        yield from _cells(_with_numbers(names), matrix, place - 2, numbered, tops)
    elif place + 2 * len(names) <= width:
        yield from _shades(_with_numbers(names), matrix, place - 2)
    else:
        yield rich.Text(f"  {len(names)} x {len(names)} numbers do not fit this terminal", "dim")
    yield from _mixed_up(names, matrix)


def _with_numbers(names: Sequence[str]) -> list[str]:
    digits = len(str(len(names)))
    return [f"{number:>{digits}} {name}" for number, name in enumerate(names, 1)]


def _name(name: str, room: int) -> "rich.Text":
    text = rich.Text(f"  {name}", no_wrap=True)
    text.truncate(room + 2, overflow="ellipsis", pad=True)
    return text


def _share(count: int, row: Sequence[int]) -> float:
    return count / total if (total := sum(row)) else 0.0


def _colour(share: float, right: bool) -> str:
    """Returns a background colour, which is stronger for a larger share of the row."""
    strength = share**0.5
    full = _RIGHT if right else _WRONG
    red, green, blue = (round(low + (high - low) * strength) for low, high in zip(_FAINT, full, strict=True))
    return f"on #{red:02x}{green:02x}{blue:02x}"


def _cells(
    names: Sequence[str], matrix: Matrix, room: int, width: int, heads: Sequence[str]
) -> Iterator["rich.RenderableType"]:
    """Draws the matrix as numbers on shades, with dots for zeros."""
    yield rich.Text(" " * (room + 2) + "".join(heads), "dim", no_wrap=True)
    for number, (name, row) in enumerate(zip(names, matrix, strict=True)):
        line = _name(name, room)
        for column, count in enumerate(row):
            style = f"white {_colour(_share(count, row), column == number)}" if count else "dim"
            line.append(f"{count or '·':>{width}}", style)
        yield line


def _shades(names: Sequence[str], matrix: Matrix, room: int) -> Iterator["rich.RenderableType"]:
    """Draws the matrix with two characters per cell, which are darker for a larger share of the row.

    The number of each column is written vertically.
    """
    digits = len(str(len(names)))
    for digit in range(digits):
        heads = "".join(f"{str(number).rjust(digits)[digit]:>2}" for number in range(1, len(names) + 1))
        yield rich.Text(" " * (room + 2) + heads, "dim", no_wrap=True)
    for number, (name, row) in enumerate(zip(names, matrix, strict=True)):
        line = _name(name, room)
        for column, count in enumerate(row):
            shade = _SHADES[min(1 + int(_share(count, row) * 4), 4)] if count else "·" if column == number else " "
            line.append(f" {shade}" if shade == "·" else shade * 2, "green" if column == number else "red")
        yield line
    yield rich.Text("  ░ ▒ ▓ █: up to a quarter, a half, three quarters, all of a row; · none right", "dim")


def _mixed_up(names: Sequence[str], matrix: Matrix) -> Iterator["rich.RenderableType"]:
    wrong = [
        (count, row, column)
        for row, counts in enumerate(matrix)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    if not wrong:
        return
    wrong.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    yield from (rich.Text(), rich.Text("most frequent mix-ups", "bold"))
    rows = []
    for count, row, column in wrong[:_LISTED]:
        bar = console.bar_of(_share(count, matrix[row]), "red")
        counts = rich.Text(f"{count:,} of {sum(matrix[row]):,}")
        rows.append((rich.Text(names[row]), rich.Text(f"→ {names[column]}"), counts, bar))
    yield PlainTable(_MIXED_UP, rows, indent=2)
    if len(wrong) > _LISTED:
        yield rich.Text(f"  … and {console.counted(len(wrong) - _LISTED, 'other pair')}", "dim")
