"""Makes tables fit any terminal.

If a terminal is too narrow, first the bars shrink, then secondary columns are dropped, and last each cell gets its own
line.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlxbert.cli.views import rich

Bar = Callable[[int], "rich.Text"]  # draws a bar of a width
Cell: TypeAlias = "rich.Text | Bar"

_GAP = 2  # terminal columns between the table's columns
_MIN_BAR = 4  # terminal columns of a bar
_FULL_BAR = 24  # bars wider than this leave the rest to cells that would otherwise be wrapped
_MIN_WRAPPED = 16  # the minimum terminal columns of a cell that may be wrapped
_INDENTED = 24  # minimum terminal columns for indented texts


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    # The name of the column, which is shown above it, or before each cell if cells have their own lines.
    header: str = ""
    wraps: bool = False  # whether cells may be wrapped
    right: bool = False  # whether cells are aligned to the right
    most: int = 0  # the maximum width in terminal columns; 0 for no limit
    bar: bool = False  # whether the cells are bars, which take the remaining space; at most one column has bars
    secondary: int = 0  # the order in which columns are dropped: larger numbers first, 0 never


class PlainTable:
    """A table without lines between cells; invisible characters in its texts must already be escaped."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], indent: int = 0) -> None:
        self._rows, self._indent = [*rows], indent
        self._columns = list(columns)

    def __rich_console__(
        self, screen: "rich.Console", options: "rich.ConsoleOptions"
    ) -> Iterator["rich.RenderableType"]:
        places, bar = self._fitting(options.max_width - self._indent)
        if places:
            yield rich.Padding(self._table(places, bar), (0, 0, 0, self._indent), expand=False)
        else:
            yield from self._stacked()

    def _fitting(self, width: int) -> tuple[list[int], int]:
        """Returns the indexes of the columns that fit side by side, and the width of bars.

        If even the columns that are never dropped do not fit, the list of indexes is empty.
        """
        bars = [place for place, column in enumerate(self._columns) if column.bar]
        needs = {place: self._need(place) for place in range(len(self._columns)) if place not in bars}
        kept = [place for place, need in needs.items() if need]
        while (room := width - sum(needs[place] + _GAP for place in kept) + _GAP) < 0:
            last = max(kept, key=lambda place: self._columns[place].secondary, default=None)
            if last is None or not self._columns[last].secondary:
                return [], 0
            kept.remove(last)
        if not bars or room < _MIN_BAR + _GAP:
            return kept, 0
        wrapped = sum(self._widest(place) - needs[place] for place in kept)
        remaining = room - _GAP - min(wrapped, max(room - _GAP - _FULL_BAR, 0))
        return sorted([*kept, *bars]), min(remaining, self._columns[bars[0]].most or remaining)

    def _need(self, place: int) -> int:
        """Returns the minimum width of a column in terminal columns."""
        widest = self._widest(place)
        return min(widest, _MIN_WRAPPED) if self._columns[place].wraps else widest

    def _widest(self, place: int) -> int:
        """Returns the width of a column in terminal columns if space is unlimited."""
        column = self._columns[place]
        cells = (cell.cell_len for row in self._rows if isinstance(cell := row[place], rich.Text))
        widest = max(rich.cell_len(column.header), *cells, 0)
        return min(widest, column.most or widest)

    def _table(self, places: Sequence[int], bar: int) -> "rich.RenderableType":
        columns = [self._columns[place] for place in places]
        headed = any(column.header for column in columns)
        table = rich.Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=headed, header_style="dim")
        for column in columns:
            table.add_column(
                rich.Text(column.header),
                justify="right" if column.right else "left",
                overflow="fold",
                no_wrap=not column.wraps and (column.bar or not column.most),
                max_width=column.most or None,
            )
        for row in self._rows:
            cells = (row[place] for place in places)
            table.add_row(*(cell if isinstance(cell, rich.Text) else cell(bar) for cell in cells))
        return table

    def _stacked(self) -> Iterator["rich.Text"]:
        """Draws each cell on its own line after its header; cells of secondary columns and bars are left out."""
        for row in self._rows:
            for column, cell in zip(self._columns, row, strict=True):
                if isinstance(cell, rich.Text) and cell.plain.strip() and not column.secondary:
                    text = cell[len(cell.plain) - len(cell.plain.lstrip()) :]
                    yield rich.Text.assemble((f"{column.header.strip()} ", "dim"), text) if column.header else text


class Indented:
    """A text that is indented if the terminal is wide enough."""

    def __init__(self, text: "rich.Text", by: int = 2) -> None:
        self._text, self._by = text, by

    def __rich_console__(
        self, screen: "rich.Console", options: "rich.ConsoleOptions"
    ) -> Iterator["rich.RenderableType"]:
        room = options.max_width >= _INDENTED
        yield rich.Padding(self._text, (0, 0, 0, self._by)) if room else self._text
