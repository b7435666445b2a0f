"""Characters that leave no mark on a screen: they reorder what stands around them, and make texts look alike."""

import re

# Control, format and separator characters, halves of surrogate pairs, and what Unicode calls ignorable by default, such
# as tags and fillers. Left out: signs that Unicode files under "format" but that have a shape (U+06DD, …), and
# variation selectors.
_ALWAYS = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
# Characters that joiners shape: of Hebrew, Arabic, Mongolian and the scripts of India and its neighbours; and emoji.
_SHAPED = (
    "\u0590-\u109f\u1780-\u1cff\u2190-\u2bff\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00012fff"
    "\U0001e800-\U0001e95f\U0001f000-\U0001faff"
)
INVISIBLE = re.compile(f"[{_ALWAYS}]|(?<![{_SHAPED}])[\u200c\u200d](?![{_SHAPED}])")
"""Matches an invisible character; U+200C and U+200D only where no character that they shape is next to them."""

_SELECTORS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def without_invisible(text: str) -> str:
    """The text without invisible characters and variation selectors."""
    return _SELECTORS.sub("", INVISIBLE.sub("", text))
