"""Lines without the spaces that fill a table's last column: a file or another program gets no more than is seen."""

from collections.abc import Iterator

from mlxbert.cli.views import rich


class Trim(rich.RenderHook):
    """Takes spaces from the ends of all lines that a console prints."""

    def process_renderables(self, renderables: "list[rich.ConsoleRenderable]") -> "list[rich.ConsoleRenderable]":
        """What is printed, trimmed."""
        return [_Trimmed(one) for one in renderables]


class _Trimmed:
    def __init__(self, shown: "rich.ConsoleRenderable") -> None:
        self._shown = shown

    def __rich_console__(self, screen: "rich.Console", options: "rich.ConsoleOptions") -> "Iterator[rich.Segment]":
        waiting: list[rich.Segment] = []  # spaces that end the line, unless something follows
        for text, style, control in screen.render(self._shown, options):
            for place, piece in enumerate(text.split("\n")):
                if place:
                    waiting.clear()
                    yield rich.Segment.line()
                seen = piece if _is_drawn(screen, style) or control else piece.rstrip(" ")
                if seen or control:
                    yield from waiting
                    waiting.clear()
                    yield rich.Segment(seen, style, control)
                if rest := piece[len(seen) :]:
                    waiting.append(rich.Segment(rest, style))
        yield from waiting


def _is_drawn(screen: "rich.Console", style: "rich.Style | None") -> bool:
    """Whether spaces of a style can be seen."""
    return bool(screen.color_system and style and (style.bgcolor or style.reverse or style.underline))
