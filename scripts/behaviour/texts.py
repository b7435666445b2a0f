"""Generates the texts for `scripts/behaviour`: valid and invalid records of every format, the same each time."""

import json
from pathlib import Path
from random import Random

from formats import WORDS

_MANY = 1100  # two full parts of 512, and a rest
_KNOWN = [word for word in WORDS.split() if word.isalpha()]
_OTHER = ["playing", "cats", "zebra", "Stra\u00dfe", "\u6771\u4eac", "caf\u00e9", "\U0001f44d", "B2b", ",", ".", "!"]
_SENTENCES = (
    "The station clock had stopped at ten past four, and nobody in the town could say when.",
    "You can return any item within 30 days for a full refund.",
    "Tokyo is the largest city in Japan; Paris is the capital of France.",
    "She plays the violin in an orchestra, and he paints.",
    "Cr\u00e8me br\u00fbl\u00e9e costs \u20ac7.50 (without milk)!",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002",
    "  two  spaces,\ttabs and a soft\u00adhyphen  ",
    "unbelievably antidisestablishmentarianism",
)


def _drawn(rng: Random, longest: int) -> str:
    """A text of words in the vocabulary of the tiny models, with a few unknown ones."""
    words = [rng.choice(_KNOWN if rng.random() < 0.9 else _OTHER) for _ in range(rng.randint(1, longest))]
    return " ".join(words)


def _masked(rng: Random) -> str:
    words = _drawn(rng, 40).split()
    for _ in range(rng.randint(1, 2)):
        words.insert(rng.randint(0, len(words)), "[MASK]")
    return " ".join(words)


def _lines(*records: object) -> str:
    """Writes each record as a line: strings as they are, anything else as JSON."""
    return "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)


def _json_files(rng: Random) -> dict[str, str | bytes]:
    many = [{"id": number, "text": _drawn(rng, 36)} for number in range(_MANY)]
    late: list[object] = [*many[:700], {"text": 7}, *many[701:]]
    bad = (
        *({"text": "the cat sat on the [MASK]"}, "{not JSON", ["the cat"], {"texts": "the dog"}, {"text": 5}),
        *(
            {"text": None},
            {"text": ""},
            "",
            '{"text": "half \\ud800 of a pair"}',
            "NaN",
            {"text": "[MASK] and a nul \0"},
        ),
        *('{"text": "a", "text": "the [MASK] twice"}', {"text": "the dog " * 30 + "[MASK]", "body": "x"}),
    )
    pairs = [{"a": _drawn(rng, 20), "b": _drawn(rng, 20)} for _ in range(60)]
    bad_pairs = ({"a": "the cat"}, {"a": "the cat", "b": 3}, {"a": "", "b": ""}, {"b": "sat.", "a": "he"}, "[]")
    titles = [{"title": sentence, "text": "not this"} for sentence in _SENTENCES]
    return {
        "many.jsonl": _lines(*many),
        "late.jsonl": _lines(*late),
        "masked.jsonl": _lines(*({"text": _masked(rng)} for _ in range(_MANY))),
        "bad.jsonl": _lines(*bad),
        "all-bad.jsonl": _lines({"text": 1}, "[", {"other": ""}),
        "pairs.jsonl": _lines(*pairs),
        "bad-pairs.jsonl": _lines(*bad_pairs),
        "titles.jsonl": _lines(*titles),
    }


def _tables() -> dict[str, str | bytes]:
    good = 'id,text,note\r\n1,"the cat, the dog",x\r\n2,"he said ""play""\nand went",y\r\n\r\n3,tokyo is [MASK],z\r\n'
    bad = 'text,note\nthe cat,x\nonly one\nthree,is,many\n"the ""dog""",y\n"open"quote,z\n'
    bad += ',empty\nthe man,\n"never closed,x\n'
    return {
        "good.csv": b"\xef\xbb\xbf" + good.encode(),
        "bad.csv": bad,
        "twice.csv": "text,text\na,b\n",
        "semicolons.csv": "id;text\n1;the cat\n",
        "good.tsv": 'id\ttext\n1\tthe "cat"\n2\tthe dog, he\n',
        "bad.tsv": "id\ttext\n1\tthe cat\n2\n3\ta\tb\n\n4\tthe dog\n",
        "pairs.csv": 'a,b\nthe cat sat,on the mat\n"he went, ","to the store"\nonly one\n',
    }


def make_texts() -> dict[str, str | bytes]:
    """The files, keyed by name."""
    rng = Random(11)
    plain = ["the cat sat on the mat.", "", "He Bought MILK!", *_SENTENCES, "the dog " * 40]
    prose = [" ".join(rng.choice(_SENTENCES) for _ in range(rng.randint(1, 4))) for _ in range(30)]
    long = " ".join(rng.choice(_SENTENCES) for _ in range(150))
    return {
        **_json_files(rng),
        **_tables(),
        "plain.txt": _lines(*plain),
        "prose.txt": _lines(*prose),
        "long.txt": _lines(f"{long} [MASK] {long}", "A short [MASK].", f"[MASK] {long}"),
        "many.txt": _lines(*(_drawn(rng, 36) for _ in range(_MANY))),
        "masked.txt": _lines(*(_masked(rng) for _ in range(12)), "no mask in here"),
        "plain.data": _lines("the cat", "the dog"),
        "empty.txt": "",
        "latin-1.txt": "the cat\ncaf\u00e9\nthe dog\n".encode("latin-1"),
        "utf-16.txt": "the cat\nthe dog\n".encode("utf-16"),
        "windows.txt": b"\xef\xbb\xbfthe cat\r\nthe dog\r\nno end",
    }


def write_texts(folder: Path) -> None:
    """Writes the files."""
    folder.mkdir(parents=True)
    for name, content in make_texts().items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
