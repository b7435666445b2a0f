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
# Numbers, days and months in words of English, German, French and Spanish; a hyphen stands for any ending. After those
# of `_NUMBERS`, the next word may be a unit. Words that often mean something else, such as "one" and "may", are left
# out: a text without a number differs from a text with one all the same.
_NUMBERS = """two four- five fift- six- seven- eigh- nine- nint- ten tenth- eleven- twel- twent- thirt- third- forty
    fortie- hundred- thousand- million- billion- dozen- zwei- drei- dritt- vier- fünf- fuenf- sech- sieben- siebt-
    siebz- acht- neun- zehn- elf- zwölf- zwoelf- zwanzig- einund- einhundert- tausend- deux- troi- quatr- quator- quart-
    quaran- cinq- huit- neuv- neuf dix- onz- douz- treiz- quinz- vingt- trent- soixant- octant- nonant- cent cents mille
    dos tres tercer- cinco cincu- cuatr- cuart- cuaren- quint- sext- sept- sépt- siete seten- ocho- ochen- octav- nueve-
    noven- diez- dieci- décim- doce trece catorce veint- treint- cien ciento- doscient- mil millon-"""
_DATES = """first- once twice erste- premier premiers premièr- primer- segund- monday- tuesday- wednesday- thursday-
    friday- saturday- sunday- montag- dienstag- mittwoch- donnerstag- freitag- samstag- sonnabend- sonntag- lundi-
    mardi- mercredi- jeudi- vendredi- samedi- dimanche- lunes martes miércoles jueves viernes sábado- domingo- tue tues
    wed thu fri jan janua- jänner- janv- ene enero feb febr- févr- mar march mars marzo märz- apr april- avril- abril-
    mayo jun june juni juin- junio- jul july juli juil- julio- aug august- août- agosto- sep septem- septiem- oct octob-
    octub- okt oktober- nov novem- noviem- dec decem- dez dezem- déc décem- dic diciem-"""
_NUMBER, _DATE = ("|".join(rf"{word}\b" for word in text.replace("-", r"\w*").split()) for text in (_NUMBERS, _DATES))
# A number with its sign and the word after it, which may be a unit; a negation; a symbol, of which C# has one.
_DETAIL = re.compile(
    rf"((?:(?<!\w)[-+])?\d(?:[\d.,:/]*\d)?|\b(?:(?:{_NUMBER})[\s-]?)+)(?:\s?([^\W\d_]+))?"
    r"|(n't\b|\b(?:cannot|never|neither|no|nobody|none|nor|nothing|not|without|kein\w*|nichts?|nie|niemals|ohne)\b)"
    rf"|((?<=\w)#|\b(?:{_DATE})|[^\w\s.,;:!?()\[\]{{}}\"'*`#\u2026\u2022-])"
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
    """Returns the numbers with their signs and units, the dates, the symbols and the negations of a text.

    Texts in which these differ say different things, however similar their vectors are.
    """
    small = _NO_UNITS.split()
    return tuple(
        "not" if negation else f"{number.strip()} {unit * (unit not in small)}{symbol}"
        for number, unit, negation, symbol in _DETAIL.findall(equal_key(text))
    )
