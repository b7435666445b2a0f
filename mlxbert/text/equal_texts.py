"""Which texts are copies of each other: the keys by which they are equal, or nearly equal."""

import re
import unicodedata

# Double quotes as word processors and keyboards of other languages type them. Single ones are others: 5" is not 5'.
PLAIN_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f\uff02", '"'))
_FORMS = (
    PLAIN_QUOTES
    | str.maketrans(dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\u02bc\uff07", "'"))
    | str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"))
)
# A number with its sign and the word after it, which may be a unit; a negation; a symbol, of which C# has one.
_DETAIL = re.compile(
    r"((?:(?<!\w)[-+])?\d(?:[\d.,:/]*\d)?)(?:\s?([^\W\d_]+))?"
    r"|(n't\b|\b(?:cannot|never|neither|no|nobody|none|nor|nothing|not|without|kein\w*|nichts?|nie|niemals|ohne)\b)"
    r"|((?<=\w)#|[^\w\s.,;:!?()\[\]{}\"'*`#\u2026\u2022-])"
)
_NO_UNITS = """a an and are as at by for from had has have he i in is it of on or she that the they to was we were will
    with you am bei das der die er es hat im ist mit sie sind um und von war waren wir zu"""
_FULL_STOP = re.compile("(?<=[^\\W\\d_])[.\u3002\u0964\u06d4](?!\\S)")  # not of "1.", which is an ordinal in German
_RUN = re.compile("[\u0300-\u036f]{100}")  # more marks than any letter has, and slow to normalize


def equal_key(text: str) -> str:
    """Returns what equal texts share: texts that differ in case, white space, and forms of dashes and quotes only.

    `str.casefold` and NFKC would do more: to them, `Ma\u00dfen` is `Massen`, and `5\u00b2` is `52`.
    """
    text = " ".join(text.translate(_FORMS).lower().split())
    return text if text.isascii() or _RUN.search(text) else unicodedata.normalize("NFC", text)


def nearly_equal_key(text: str) -> str:
    """Returns what nearly equal texts share: texts that would be equal without the full stops after words.

    The words, numbers, signs and symbols must be the same, in the same order: each of them may be what matters.
    """
    return _FULL_STOP.sub("", equal_key(text))


def details(text: str) -> tuple[str, ...]:
    """Returns the numbers with their signs and units, the symbols and the negations of a text.

    Texts in which these differ say different things, however similar their vectors are.
    """
    small = _NO_UNITS.split()
    return tuple(
        "not" if negation else f"{number} {unit * (unit not in small)}{symbol}"
        for number, unit, negation, symbol in _DETAIL.findall(equal_key(text))
    )
