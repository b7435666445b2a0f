"""Which texts are copies: those that differ in case, white space, and forms of dashes and quotes; nothing else is."""

import unicodedata
from pathlib import Path

import mlxbert
from mlxbert.text.equal_texts import equal_key, nearly_equal_key
from tests.helpers.rooms import needs

LONG = "the cat sat on the mat in the hall of the old house and the dog was asleep at the door all day long"
APART = [
    # symbols and signs
    ("Written in C.", "Written in C++."), ("Written in C++.", "Written in C#."),
    ("It is -5 degrees", "It is 5 degrees"),
    ("It is \u22125 \u00b0C", "It is 5 \u00b0C"), ("more > 7", "more < 7"), ("It costs $5", "It costs \u20ac5"),
    ("It costs \u00a35", "It costs 5"), ("a = b", "a != b"), ("a \u2264 b", "a \u2265 b"), ("x^2", "x2"),
    ("@ada", "#ada"), ("5 %", "5 \u2030"), ("5\u2032", "5\u2033"), ("5'", '5"'), ("it works \u2705", "it works \u274c"),
    ("R&D", "R+D"), ("either/or", "either or"), ("~5", "5"), ("5!", "5"), ("You are here?", "You are here!"),
    # marks
    ("Trink in Maßen.", "Trink in Massen."), ("Die Buße ist hoch", "Die Busse ist hoch"), ("schon", "schön"),
    ("tiene 8 años", "tiene 8 anos"), ("ma", "má"), ("má", "mà"), ("s\u0131k", "sik"),
    ("The \ufb01le", "The file"), ("\u0149 is n", "\u02bcn is n"), ("pêche", "péché"),
    # numbers and units
    ("5\u00b2", "52"), ("1.5 litres", "15 litres"), ("1. Preis", "1 Preis"), ("Order 17", "Order 18"), ("5 mg", "5 kg"),
    # negations and other words, in short texts and long ones
    (LONG, LONG.replace("was asleep", "was not asleep")),
    (LONG, LONG.replace("cat", "dog").replace("the dog", "the cat")),
    ("Der Server ist erreichbar", "Der Server ist nicht erreichbar"), ("C'est bon", "Ce n'est pas bon"),
    ("申请退款", "不申请退款"),
]  # fmt: skip
VARIANTS = (
    lambda text: text.replace("ß", "\u1e9e").upper(),
    lambda text: f" {text} ".replace(" ", " \u00a0\n\t"),
    lambda text: text.replace("-", "\u2013"),
    lambda text: text.replace("'", "\u2019").replace('"', "\u201c"),
    lambda text: unicodedata.normalize("NFD", text),
)
TOGETHER = [
    (text, variant(text))
    for text in (
        "The café's \"quick\" test - 5", "Die Straßenbahn fährt um \"5\" - geht's?", "L'été \"froid\": -5 \u00b0C",
        "Пойдём \"в 5\" - 'да'", "申请 \"退款\" - café 'A'",
        "\u0397 οδός \"A\" - 'b'", "El año \"8\" - d'A", "We re-read \"Émile\" - Rousseau's",
    )
    for variant in VARIANTS
]  # fmt: skip


def test_only_what_differs_in_case_space_dashes_and_quotes_is_a_copy() -> None:
    assert [pair for pair in APART if nearly_equal_key(pair[0]) == nearly_equal_key(pair[1])] == []
    assert [pair for pair in TOGETHER if equal_key(pair[0]) != equal_key(pair[1]) or pair[0] == pair[1]] == []
    assert nearly_equal_key("It rains.") == nearly_equal_key("it  rains")
    assert equal_key("It rains.") != equal_key("It rains")
    assert equal_key("...") == equal_key(" ...") != equal_key("")
    assert equal_key("ΟΔΟΣ") == equal_key("οδος")


@needs("search", "explore")
def test_dedupe_and_search_agree_with_it(tmp_path: Path, tiny: mlxbert.Model) -> None:
    from mlxbert.search.index import open_index

    for number, (one, other) in enumerate(APART + TOGETHER):
        duplicates = mlxbert.dedupe(None, [one, other], exact=True)
        assert len(duplicates.kept) == (2 if number < len(APART) else 1), (one, other)
    texts = dict.fromkeys(text for pair in APART + TOGETHER for text in pair)
    keys = {nearly_equal_key(text) for text in texts}
    with open_index(tmp_path / "index.db", model=tiny) as index:
        index.add({"id": str(number), "text": text} for number, text in enumerate(texts))
        for query in ("the cat", "der Server", "退款"):
            hits = index.search(query, top_k=200)
            assert len(hits) == len({nearly_equal_key(hit.text) for hit in hits}) == len(keys)
            shown = [text for hit in hits for text in [hit.text, *(other.text for other in hit.duplicates)]]
            assert sorted(shown) == sorted(map(str.strip, texts))  # nothing is lost
