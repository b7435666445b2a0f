"""Chooses colours that are readable on white and on black, whatever palette of sixteen colours a terminal has.

Views use names such as `green`. In most palettes, green, yellow and cyan are too pale on white, and blue is too dark on
black. Terminal.app, which is white by default, draws bold colours even brighter. Terminals with at least 256 colours
get a fixed colour for each name; terminals with sixteen colours get only red and magenta. Colours never carry
information that the text does not have.
"""

import re

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
        """Returns the style for a name, or for words such as `bold green`."""
        if isinstance(name, str):
            words, link, target = OF_RICH.get(name, name).partition("link ")
            name = f"{self._fitting(words)}{link}{target}"
        return super().get_style(name, default=default)

    def _fitting(self, words: str) -> str:
        if self.color_system in ("standard", "windows"):
            words = _BACKGROUND.sub("", words)
            return _WORDS.sub(lambda match: SIXTEEN.get(match[0], "default"), words)
        return _WORDS.sub(lambda match: FIXED[match[0]], words)
