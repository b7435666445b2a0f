"""The texts of `duplicates.py`: first sentences of a corpus, of which some are repeated with a change.

    python benchmarks/duplicates_data.py corpus.txt texts.jsonl

Each line has `text`, and for a planted text `original`, the number of the line that it repeats, and `kind`:

- `swap`: two words that stand next to each other change places;
- `case`: all letters are upper case;
- `punctuation`: all punctuation is removed, and an exclamation mark is added;
- `cut`: the last quarter of the words is missing.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

TEXTS, PLANTED = 200_000, 10_000
_WORDS = range(12, 25)  # of a text: some 16 to 32 tokens
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def sentences(corpus: Path) -> Iterator[str]:
    """Yields the first sentence of each line that has 12 to 24 words; texts that differ only in case once."""
    seen = set[str]()
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            sentence = _SENTENCE_END.split(line.strip(), 1)[0]
            key = " ".join(sentence.casefold().split())
            if len(sentence.split()) in _WORDS and key not in seen:
                seen.add(key)
                yield sentence


def changed(text: str, kind: str, random: random.Random) -> str:
    """Returns a text with a change of a kind."""
    words = text.split()
    match kind:
        case "swap":
            place = random.choice([i for i in range(len(words) - 1) if words[i] != words[i + 1]])
            words[place : place + 2] = words[place + 1], words[place]
            return " ".join(words)
        case "case":
            return text.upper()
        case "punctuation":
            return re.sub(r"[^\w\s]", "", text) + "!"
        case _:
            return " ".join(words[: len(words) * 3 // 4])


def main() -> None:
    """Writes the texts."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("corpus", type=Path)
    arguments.add_argument("output", type=Path)
    arguments.add_argument("--texts", type=int, default=TEXTS)
    arguments.add_argument("--planted", type=int, default=PLANTED)
    options = arguments.parse_args()
    chance, kinds = random.Random(0), ("swap", "case", "punctuation", "cut")
    texts = [*islice(sentences(options.corpus), options.texts - options.planted)]
    rows: list[dict[str, object]] = [{"text": text, "source": number} for number, text in enumerate(texts)]
    for number, source in enumerate(chance.sample(range(len(texts)), options.planted)):
        kind = kinds[number % len(kinds)]
        rows.append({"text": changed(texts[source], kind, chance), "source": source, "kind": kind})
    chance.shuffle(rows)
    places = {row["source"]: place for place, row in enumerate(rows) if "kind" not in row}
    with options.output.open("w", encoding="utf-8") as file:
        for row in rows:
            source = places[row.pop("source")]
            file.write(json.dumps({**row, "original": source if "kind" in row else None}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
