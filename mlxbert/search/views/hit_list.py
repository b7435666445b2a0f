"""The list of passages of an interactive search: which one is selected, and the lines on the screen."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlxbert.cli.views import console, rich
from mlxbert.search.hit import Hit
from mlxbert.search.views.search import LINES, DrawnPassage, QueryWords, near, passage_lines

Fragment = tuple[str, str]  # a style of prompt_toolkit and a text
Line = list[Fragment]
_MARGIN = 2  # columns before each line
_STYLES = ("bold", "dim", "underline")  # attributes of rich's styles that prompt_toolkit has, too


@dataclass
class HitList:
    """The hits of the latest search."""

    query: str = ""
    hits: Sequence[Hit] = ()  # the hits, best first
    selected: int = 0  # the index of the selected hit
    message: str = ""  # what the last line of the screen says
    _top: int = field(default=0, init=False)  # the index of the first hit on the screen

    def show(self, query: str, hits: Sequence[Hit]) -> None:
        """Replaces the hits, and selects the first one."""
        self.query, self.hits, self.selected, self._top = query, hits, 0, 0
        self.message = _summary(hits) if query.strip() else ""

    def move(self, step: int) -> None:
        """Selects another hit; stops at the first and the last one."""
        self.selected = min(max(self.selected + step, 0), max(len(self.hits) - 1, 0))

    def line_of(self, hit: Hit) -> int | None:
        """Returns the line of the file on which the best sentence of a hit begins, if the file has lines."""
        return self._passage(hit, 1).line

    def lines(self, width: int, height: int) -> list[Line]:
        """Returns the lines on a screen; the selected hit is among them, with more of its passage than the others."""
        blocks = [self._block(number, width, min(LINES, height - 1)) for number in range(len(self.hits))]
        self._top = min(self._top, self.selected)
        while self._top < self.selected and sum(map(len, blocks[self._top : self.selected + 1])) > height:
            self._top += 1
        return [line for block in blocks[self._top :] for line in block][:height]

    def _block(self, number: int, width: int, most: int) -> list[Line]:
        hit, chosen = self.hits[number], number == self.selected
        passage = self._passage(hit, max(most, 1) if chosen else 1)
        place = f", page {hit.page}" if hit.page is not None else f", {hit.place}" if hit.place else ""
        name = near(hit.path) if hit.path is not None else hit.place
        name += f":{passage.line}" if passage.line is not None else ""
        alike = f"  +{len(hit.alike):,} alike" if hit.alike else ""
        room = width - _MARGIN - len(alike)
        name = console.end_of(name if hit.path is None else name + place, max(room, 2))
        title = rich.Text(f"  {console.line(hit.title)}" if hit.title and room > rich.cell_len(name) else "")
        title.truncate(max(room - rich.cell_len(name), 0), overflow="ellipsis")
        head: Line = [("reverse bold" if chosen else "bold", name), ("dim", alike + title.plain)]
        # Two columns less: a line may have an ellipsis on both sides.
        texts = passage_lines(passage, QueryWords(self.query), max(width - _MARGIN - 2, 1))
        return [[("", "> " if chosen else "  "), *head], *([("", " " * _MARGIN), *_fragments(text)] for text in texts)]

    def _passage(self, hit: Hit, lines: int) -> DrawnPassage:
        """Returns a passage to draw; its best sentence is the one that has most of the query's words."""
        from mlxbert.search.sentences import sentences

        words = QueryWords(self.query)
        spans = sentences(hit.text) or [(0, len(hit.text))]
        start, end = max(spans, key=lambda span: words.shared(hit.text[slice(*span)]))
        line = None if hit.start_line is None else hit.start_line + hit.text.count("\n", 0, start)
        return DrawnPassage(hit, hit.text, (start, end), lines, 0.0, line)


def _summary(hits: Sequence[Hit]) -> str:
    """Says how many hits there are, or that none of them is close."""
    if not hits:
        return "nothing was found"
    is_far = all(hit.is_close is False for hit in hits)
    return "nothing close; the nearest" if is_far else console.counted(len(hits), "passage")


def _fragments(text: "rich.Text") -> Line:
    text.rstrip()
    segments = text.render(console.stdout())
    return [
        (" ".join(name for name in _STYLES if segment.style and getattr(segment.style, name)), segment.text)
        for segment in segments
        if segment.text.strip("\n")
    ]
