"""Removes trailing spaces, such as the padding of a table's last column, from output to files and other programs."""

from collections.abc import Iterator

from mlxbert.cli.views import rich


class Trim(rich.RenderHook):
    """Removes the spaces at the end of each line that a console prints."""

    def process_renderables(self, renderables: "list[rich.ConsoleRenderable]") -> "list[rich.ConsoleRenderable]":
        """Wraps renderables so that trailing spaces are removed when they are printed."""
        return [_Trimmed(renderable) for renderable in renderables]


class _Trimmed:
    def __init__(self, renderable: "rich.ConsoleRenderable") -> None:
        self._renderable = renderable

    def __rich_console__(self, screen: "rich.Console", options: "rich.ConsoleOptions") -> "Iterator[rich.Segment]":
        waiting: list[rich.Segment] = []  # spaces that end the line, unless something follows
        for text, style, control in screen.render(self._renderable, options):
            for number, piece in enumerate(text.split("\n")):
                if number:
                    waiting.clear()
                    yield rich.Segment.line()
                visible = piece if _is_drawn(screen, style) or control else piece.rstrip(" ")
                if visible or control:
                    yield from waiting
                    waiting.clear()
                    yield rich.Segment(visible, style, control)
                if rest := piece[len(visible) :]:
                    waiting.append(rich.Segment(rest, style))
        yield from waiting


def _is_drawn(screen: "rich.Console", style: "rich.Style | None") -> bool:
    """Whether a style makes spaces visible, so that they must be kept."""
    return bool(screen.color_system and style and (style.bgcolor or style.reverse or style.underline))
