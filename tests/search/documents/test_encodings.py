"""Texts in any encoding: labels as in browsers, damaged bytes, and what is guessed."""

import tracemalloc

import pytest

from mlxbert.errors import ArgumentError
from mlxbert.search.documents.document_kinds import read_documents
from mlxbert.search.documents.encodings import check_chosen_encoding, decode, find_codec
from tests.helpers.cases import together
from tests.search.documents.test_documents import read

pytestmark = pytest.mark.usefixtures("here")
TEXTS = {
    "cp1252": "Les élèves ont été invités à la fête de l'école. Où est passé le garçon ? Ça coûte dix francs.",
    "cp1250": "Wczoraj byliśmy w Łodzi, gdzie świeciło słońce. Książka leży na stole. Proszę przesłać fakturę.",
    "cp1251": "Возврат товара возможен в течение тридцати дней. Позвоните нам, если посылка не пришла.",
    "cp1253": "Αυτή είναι επιστροφή των χρημάτων γίνεται μέσα σε τριάντα ημέρες. Πού βρίσκεται η βιβλιοθήκη;",
    "koi8-r": "Возврат товара возможен в течение тридцати дней. Позвоните нам, если посылка не пришла.",
    "cp932": "返品は購入後三十日以内に可能です。①図書館はどこにありますか。東京は日本の首都です。",
    "euc_jis_2004": "返品は購入後三十日以内に可能です。図書館はどこにありますか。東京は日本の首都です。",
    "gb18030": "购买后三十天内可以申请退款。图书馆在哪里。北京是中国的首都。商品将于明天发货。",
    "big5hkscs": "購買後三十天內可以申請退款。圖書館在哪裡。臺北是臺灣的首都。商品將於明天出貨。",
    "cp949": "구매 후 삼십 일 이내에 환불을 신청할 수 있습니다. 도서관은 어디에 있습니까? 똠방각하.",
}


@together("encoding", TEXTS)
def test_an_encoding_without_a_label_is_guessed_and_named(encoding: str) -> None:
    (found,) = read("a.txt", f"Title\r\n{TEXTS[encoding]}\r\n".encode(encoding))
    assert (found.text, found.first_line) == (f"Title\n{TEXTS[encoding]}\n", 1)
    (problem,) = found.problems
    assert problem.kind == "guessed" and encoding in problem.reason


@together(
    ("encoding", "text"),
    [
        ("cp1252", "Déjà vu à Noël, où êtes-vous ?"), ("cp1252", "La città è più bella di così."),
        ("cp1252", "café “crème”, naïve"), ("cp1252", "Não há devolução após trinta dias."),
        ("cp1254", "Ampul bozuldu, yenisini gönderin."), ("cp1250", "Přijďte v úterý"),
        ("cp1255", "המנורה הגיעה שבורה."),
        ("koi8-r", "Ключ висит за зелёной дверью."), ("gb18030", "客户可以申请退款。"), ("big5", "燈泡壞了,請換一個。"),
        ("euc-jp", "電球が壊れています。"), ("cp874", "หลอดไฟเสีย"),
    ],
)  # fmt: skip
def test_a_sentence_is_mostly_enough(encoding: str, text: str) -> None:
    assert decode(text.encode(encoding)).text == text


@together("text", ["10 °C\n20 °C", "£ 12", "¿Qué?", "“it”", "5 µm", "Malmö"])
def test_a_few_letters_are_western(text: str) -> None:
    decoded, (problem,) = decode(text.encode("cp1252"))
    assert decoded == text and problem.kind == "guessed" and "cp1252" in problem.reason


@together(
    ("label", "encoding", "text"),
    [
        ("gb2312", "gb18030", "朱镕基总理 價格€40"), ("GBK", "gb18030", "㐀"), ("Shift_JIS", "cp932", "①㈱髙"),
        ("x-sjis", "cp932", "①"), ("windows-31j", "cp932", "①"), ("euc-kr", "cp949", "똠방각하"),
        ("ks_c_5601-1987", "cp949", "펲"), ("iso-8859-1", "cp1252", "“€”"), ("us-ascii", "cp1252", "“€”"),
        ("latin1", "cp1252", "“€”"), ("latin-1", "cp1252", "“€”"), ("tis-620", "cp874", "ก"),
        ("iso-8859-9", "cp1254", "ışğ"),
        ("big5", "big5hkscs", "碁"), ("euc-jp", "euc_jis_2004", "①"), ("x-cp1251", "cp1251", "ё"),
        ("cp850", "cp850", "é"),
        ("utf-16", "utf-16-le", "é"), ("utf-16be", "utf-16-be", "é"), ("iso-2022-kr", "iso2022_kr", "한국어"),
    ],
)  # fmt: skip
def test_labels_mean_what_they_mean_to_browsers(label: str, encoding: str, text: str) -> None:
    assert decode(f"a {text} b".encode(encoding), label) == (f"a {text} b", ())


def test_japanese_mail_has_characters_that_its_label_does_not() -> None:
    data = b"a \x1b$B-!F|K\\\x1b(J \x1b(I1\x1b(B b"  # ①日本 and a kana of half width
    assert decode(data, "iso-2022-jp") == ("a ①日本 ｱ b", ())
    text, (problem,) = decode(data)
    assert text == "a ①日本 ｱ b" and problem.kind == "guessed" and "iso2022_jp" in problem.reason
    assert decode(b"\x1b[31mred\x1b[0m").problems == ()


@together(
    "label",
    ["", "no-such", "idna", "punycode", "unicode_escape", "base64", "rot13", "x-user-defined", "\ud800", "\0", "é"],
)
def test_other_labels_are_unknown(label: str) -> None:
    assert find_codec(label) is None
    assert decode("né".encode(), label).text == "né"


def test_one_damaged_byte_costs_one_character() -> None:
    text, (problem,) = decode("café\nnaïve ".encode() + b"\xff\xe9.\n" + "Füße".encode())
    assert text == "café\nnaïve ��.\nFüße"
    assert problem.kind == "cut" and problem.reason.startswith("2 ") and "line 2" in problem.reason
    assert decode("café".encode() + b" \xff").text == "café �"
    assert decode("�é\n�".encode()).problems == ()  # it stands in the file
    for encoding in ("gb18030", "cp932", "cp949", "utf-8", "iso2022_jp"):
        damaged = "天地天地".encode(encoding) + b"\x85\n\x9f\nend"
        text, problems = decode(damaged, encoding)
        assert text.startswith("天地天地") and text.endswith("\nend") and text.count("\n") == 2
        assert [problem.kind for problem in problems] == ["cut"]


def test_a_label_that_most_of_the_text_refutes_does_not_count() -> None:
    text, (problem,) = decode("Größe, Straße, für".encode("cp1252"), "utf-8")
    assert text == "Größe, Straße, für" and problem.kind == "guessed" and "'utf-8'" in problem.reason
    text, (problem,) = decode("Größe".encode(), "iso-8859-1")
    assert text == "Größe" and "'iso-8859-1'" in problem.reason


def test_an_encoding_that_the_user_chose_replaces_the_guess() -> None:
    word = "прокат"
    (found,) = read_documents("a.txt", word.encode("cp866"), "text", encoding="cp866")
    assert (found.text, found.problems) == (word, ())
    for kind, data in [
        ("text", b"\xef\xbb\xbf" + word.encode()), ("text", word.encode()),
        ("html", b"<meta charset=koi8-r>" + word.encode("koi8-r")),
        ("mail", b"Subject: s\nContent-Type: text/plain; charset=koi8-r\n\n" + word.encode("koi8-r")),
        ("mail", b"Subject: s\n\n" + word.encode("cp866")), ("html", word.encode("cp866")),
        ("code", b"# coding: koi8-r\n" + word.encode("koi8-r")),
    ]:  # fmt: skip
        (found,) = read_documents("a", data, kind, encoding="cp866")
        assert found.text.endswith(word) and not found.problems
    (found,) = read_documents("a.txt", b"a\x1b$B-!\x1b(B", "text", encoding="iso2022_jp")
    assert (found.text, found.problems) == ("a①", ())


@together("label", ["no-such", "", "utf-16", "utf-32-le", "idna"])
def test_an_encoding_that_cannot_be_chosen_is_refused(label: str) -> None:
    with pytest.raises(ArgumentError, match="encoding") as problem:
        check_chosen_encoding(label)
    assert problem.value.hint
    assert check_chosen_encoding("GB2312") == "gb18030" and check_chosen_encoding(None) is None


def test_detection_examines_a_part_of_a_large_file() -> None:
    data = b"plain words\n" * 500_000 + TEXTS["cp1251"].encode("cp1251") * 20_000
    tracemalloc.start()
    text, _ = decode(data)
    assert TEXTS["cp1251"] in text and tracemalloc.get_traced_memory()[1] < 8 * len(data)
    tracemalloc.stop()
