"""Which characters are invisible: those of Unicode's categories, less what scripts need."""

import sys
import unicodedata

import pytest

from mlxbert.results.json import INVISIBLE, without_invisible

CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Cs")
SIGNS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}  # format characters with a shape


def test_every_control_format_and_separator_is_invisible() -> None:
    found = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in CATEGORIES}
    visible = {code for code in found if not INVISIBLE.fullmatch(chr(code))}
    assert visible - SIGNS == set()
    others = {code for code in range(sys.maxunicode + 1) if INVISIBLE.fullmatch(chr(code))} - found
    assert {unicodedata.category(chr(code)) for code in others} == {"Cn", "Mn", "Lo"}
    assert len({code for code in others if unicodedata.category(chr(code)) != "Cn"}) == 7


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian
        "\u0915\u094d\u200d \u0915\u094d\u200c\u0937",  # Hindi, also at the end of a word
        "\u0dc1\u0dca\u200d\u0dbb\u0dd3",  # Sinhala
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f\u200d\U0001f525 \U0001f441\ufe0f\u200d\U0001f5e8\ufe0f",
        "\U0001f9d1\U0001f3fd\u200d\U0001f91d\u200d\U0001f9d1\U0001f3fb",
        "\u0661\u06dd \u2603\ufe0f \u845b\U000e0100 \u1820\u180b",  # a sign of Arabic, variation selectors
        "na\u00efve \u00a0\u3000 \u6771\u4eac",
    ],
)
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert not INVISIBLE.search(text)


@pytest.mark.parametrize("text", ["pa\u200dypal", "cat\u200c", "\u200dcat", "cat\ufe0f", "ca\u200bt", "cat\U000e0041"])
def test_labels_that_look_the_same_are_the_same_without(text: str) -> None:
    assert without_invisible(text) in ("cat", "paypal")
