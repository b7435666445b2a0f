"""Invisible characters: they can reorder the text around them, and make different texts look alike."""

import re

# Control, format and separator characters, lone surrogates, and characters that Unicode calls "default ignorable", such
# as tags and fillers. Without variation selectors, and without visible characters of the category "format" (U+06DD, …).
_ALWAYS = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
# Characters that joiners change: Hebrew, Arabic, Mongolian, the scripts of India and its neighbours, and emoji.
_SHAPED = (
    "\u0590-\u109f\u1780-\u1cff\u2190-\u2bff\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00012fff"
    "\U0001e800-\U0001e95f\U0001f000-\U0001faff"
)
INVISIBLE = re.compile(f"[{_ALWAYS}]|(?<![{_SHAPED}])[\u200c\u200d](?![{_SHAPED}])")
"""Matches an invisible character; the joiners U+200C and U+200D match only away from characters that they change."""

_SELECTORS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def without_invisible(text: str) -> str:
    """Returns the text without invisible characters and variation selectors."""
    return _SELECTORS.sub("", INVISIBLE.sub("", text))
