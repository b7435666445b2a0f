"""Tables that fit any terminal: bars take what is left, secondary columns go next, then cells stand on lines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlxbert.cli.views import rich

Bar = Callable[[int], "rich.Text"]  # draws itself in some columns
Cell: TypeAlias = "rich.Text | Bar"

_GAP = 2  # columns between columns
_SHORTEST = 4  # columns of a bar
_ENOUGH = 24  # columns of a bar that gives none to cells that could be wrapped
_WRAPPED = 16  # columns that a cell which is wrapped has, if it needs as many
_INDENTED = 24  # columns of a terminal from which on texts are indented


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: Its name, above it or, where cells stand below each other, before each.
        wraps: Whether its cells may be wrapped.
        right: Whether its cells are flush right.
        most: The most columns of the terminal that it takes; 0 is any number.
        bar: Whether its cells are bars, which take what is left; one column at most.
        secondary: Columns with a larger number go first; those with 0 stay.
    """

    header: str = ""
    wraps: bool = False
    right: bool = False
    most: int = 0
    bar: bool = False
    secondary: int = 0


class PlainTable:
    """A table without lines; invisible characters in its texts are escaped already."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], indent: int = 0) -> None:
        self._rows, self._indent = [*rows], indent
        self._columns = list(columns)

    def __rich_console__(
        self, screen: "rich.Console", options: "rich.ConsoleOptions"
    ) -> Iterator["rich.RenderableType"]:
        shown, bar = self._fitting(options.max_width - self._indent)
        if shown:
            yield rich.Padding(self._table(shown, bar), (0, 0, 0, self._indent), expand=False)
        else:
            yield from self._stacked()

    def _fitting(self, width: int) -> tuple[list[int], int]:
        """The places of the columns that fit side by side, none if those that stay do not; the width of bars."""
        bars = [place for place, column in enumerate(self._columns) if column.bar]
        needs = {place: self._need(place) for place in range(len(self._columns)) if place not in bars}
        kept = [place for place, need in needs.items() if need]
        while (room := width - sum(needs[place] + _GAP for place in kept) + _GAP) < 0:
            last = max(kept, key=lambda place: self._columns[place].secondary, default=None)
            if last is None or not self._columns[last].secondary:
                return [], 0
            kept.remove(last)
        if not bars or room < _SHORTEST + _GAP:
            return kept, 0
        wrapped = sum(self._widest(place) - needs[place] for place in kept)
        left = room - _GAP - min(wrapped, max(room - _GAP - _ENOUGH, 0))
        return sorted([*kept, *bars]), min(left, self._columns[bars[0]].most or left)

    def _need(self, place: int) -> int:
        """The columns of the terminal that a column takes at least."""
        widest = self._widest(place)
        return min(widest, _WRAPPED) if self._columns[place].wraps else widest

    def _widest(self, place: int) -> int:
        """The columns of the terminal that a column takes where there is room for all of them."""
        column = self._columns[place]
        cells = (cell.cell_len for row in self._rows if isinstance(cell := row[place], rich.Text))
        widest = max(rich.cell_len(column.header), *cells, 0)
        return min(widest, column.most or widest)

    def _table(self, shown: Sequence[int], bar: int) -> "rich.RenderableType":
        columns = [self._columns[place] for place in shown]
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
            cells = (row[place] for place in shown)
            table.add_row(*(cell if isinstance(cell, rich.Text) else cell(bar) for cell in cells))
        return table

    def _stacked(self) -> Iterator["rich.Text"]:
        """The cells that stay, each on a line of its own, after its header."""
        for row in self._rows:
            for column, cell in zip(self._columns, row, strict=True):
                if isinstance(cell, rich.Text) and cell.plain.strip() and not column.secondary:
                    whole = cell[len(cell.plain) - len(cell.plain.lstrip()) :]
                    yield rich.Text.assemble((f"{column.header.strip()} ", "dim"), whole) if column.header else whole


class Indented:
    """A text with space on its left, if the terminal has room for that."""

    def __init__(self, text: "rich.Text", by: int = 2) -> None:
        self._text, self._by = text, by

    def __rich_console__(
        self, screen: "rich.Console", options: "rich.ConsoleOptions"
    ) -> Iterator["rich.RenderableType"]:
        room = options.max_width >= _INDENTED
        yield rich.Padding(self._text, (0, 0, 0, self._by)) if room else self._text
