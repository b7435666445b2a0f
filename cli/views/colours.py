"""Colours that can be read on white and on black, whatever the sixteen colours of a terminal are.

Views say `green`. As one of the sixteen, green, yellow and cyan are too pale on white in most palettes, and blue is too
dark on black; Terminal.app, which is white at first, draws bold ones brighter still. Terminals with 256 colours or more
draw a fixed colour of the same name in their place, and those with sixteen only red and magenta. Whatever a colour says
is said in another way, too.
"""

import re

from mlxbert.cli.views import rich

# Numbers of xterm's 256 colours, of middle luminance: their contrast to white and to black is at least 3.5.
FIXED = {
    "red": "color(196)",
    "green": "color(28)",
    "yellow": "color(130)",
    "blue": "color(33)",
    "magenta": "color(164)",
    "cyan": "color(30)",
    "white": "color(231)",  # on a background that is fixed, too
}
SIXTEEN = {"red": "red", "magenta": "magenta", "yellow": "magenta"}  # the others are the default colour
OF_RICH = {  # in its progress bars
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
    """A console that draws the colours of views by what its terminal has."""

    def get_style(self, name: str | rich.Style, *, default: str | rich.Style | None = None) -> rich.Style:
        """The style of a name, or of words such as `bold green`."""
        if isinstance(name, str):
            words, link, target = OF_RICH.get(name, name).partition("link ")
            name = f"{self._fitting(words)}{link}{target}"
        return super().get_style(name, default=default)

    def _fitting(self, words: str) -> str:
        if self.color_system in ("standard", "windows"):
            words = _BACKGROUND.sub("", words)
            return _WORDS.sub(lambda found: SIXTEEN.get(found[0], "default"), words)
        return _WORDS.sub(lambda found: FIXED[found[0]], words)
