"""A console whose colours are readable on white and on black, and which prints no spaces at the end of a line to files.

Views use names of colours such as `green`. In most palettes of sixteen colours, green, yellow and cyan are too pale on
white, and blue is too dark on black. Terminal.app, which is white by default, draws bold colours even brighter.
Terminals with at least 256 colours get a fixed colour for each name; terminals with sixteen colours get only red and
magenta. Colours never carry information that the text does not have.
"""

import re
from collections.abc import Iterator

from mlxbert.cli.views import rich

# Numbers of xterm's 256 colours with medium luminance: their contrast to white and to black is at least 3.5.
FIXED = {
    "red": "color(196)",
    "green": "color(28)",
    "yellow": "color(130)",
    "blue": "color(33)",
    "magenta": "color(164)",
    "cyan": "color(30)",
    "white": "color(231)",  # only on a fixed background
}
SIXTEEN = {"red": "red", "magenta": "magenta", "yellow": "magenta"}  # other names become the default colour
OF_RICH = {  # rich's styles of progress bars
    "bar.back": "dim",
    "bar.complete": "magenta",
    "bar.finished": "green",
    "bar.pulse": "magenta",
    "progress.data.speed": "red",
    "progress.download": "green",
    "progress.remaining": "cyan",
}
_WORDS = re.compile(rf"\b(?:{'|'.join(FIXED)})\b")
_BACKGROUND = re.compile(r"\bwhite on #\w+")


class Console(rich.Console):
    """A console that maps the colour names of views to colours that the terminal has."""

    def get_style(self, name: str | rich.Style, *, default: str | rich.Style | None = None) -> rich.Style:
        if isinstance(name, str):
            words, link, target = OF_RICH.get(name, name).partition("link ")
            name = f"{self._fitting(words)}{link}{target}"
        return super().get_style(name, default=default)

    def _fitting(self, words: str) -> str:
        if self.color_system in ("standard", "windows"):
            words = _BACKGROUND.sub("", words)
            return _WORDS.sub(lambda match: SIXTEEN.get(match[0], "default"), words)
        return _WORDS.sub(lambda match: FIXED[match[0]], words)


class Trim(rich.RenderHook):
    """Removes the spaces at the end of each line that a console prints."""

    def process_renderables(self, renderables: "list[rich.ConsoleRenderable]") -> "list[rich.ConsoleRenderable]":
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
