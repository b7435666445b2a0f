"""Public tagging and question-answering data as files for both sides, with shared hyper-parameters and scores.

python benchmarks/spans_sets.py DATA OUT
"""

import importlib
import json
import lzma
import re
import string
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runs import Setting

Sentence = list[tuple[str, str]]  # words with tags


_SHARED: dict[str, Any] = {"max_length": 256, "lr": 1e-4, "batch_size": 16}
SETTINGS = {
    "wnut17": Setting("tag", 3, "f1", **_SHARED),
    "conll2003": Setting("tag", 3, "f1", first=4000, **_SHARED),
    "ud-ewt": Setting("tag", 3, "accuracy", first=4000, **_SHARED),
    "squad": Setting("answer", 1, "f1", first=4000, tested=1000, **_SHARED | {"max_length": 384, "lr": 2e-4}),
}
STRIDE, MAX_WORDS = 128, 30


def read_sentences(path: Path) -> list[Sentence]:
    """The sentences of a file with a word and a tag per line."""
    blocks = path.read_text(encoding="utf-8").strip("\n").split("\n\n")
    return [[(word, tag) for word, _, tag in (line.partition("\t") for line in block.split("\n"))] for block in blocks]


def read_questions(path: Path) -> Iterator[dict[str, Any]]:
    """The questions of a file in SQuAD's format, with their contexts."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield {"context": paragraph["context"], **question}


def entity_f1(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """The micro F1 of seqeval."""
    f1_score = importlib.import_module("seqeval.metrics").f1_score
    return float(f1_score([*map(list, expected)], [*map(list, predicted)]))


def accuracy(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """The share of words with the right tag."""
    sentences = zip(expected, predicted, strict=True)
    pairs = [pair for gold, tags in sentences for pair in zip(gold, tags, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def answer_scores(golds: Sequence[Sequence[str]], answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 by SQuAD's rules, 0 to 1: the best over the gold answers of a question, then the mean."""
    pairs = list(zip(golds, answers, strict=True))
    exact = [max(_normal(gold) == _normal(answer) for gold in texts) for texts, answer in pairs]
    f1 = [max(_overlap(gold, answer) for gold in texts) for texts, answer in pairs]
    return sum(exact) / len(exact), sum(f1) / len(f1)


def _normal(text: str) -> str:
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _overlap(gold: str, answer: str) -> float:
    ours, theirs = _normal(answer).split(), _normal(gold).split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else float(ours == theirs)


def _text(path: Path) -> str:
    return (lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()).decode()


def _blocks(path: Path, word: int, tag: int, separator: str | None) -> Iterator[Sentence]:
    for block in re.split(r"\n\s*\n", _text(path).replace("\r", "").strip("\n")):
        lines = [line.split(separator) for line in block.split("\n") if line and not (word and line[0] == "#")]
        words = [line for line in lines if word == 0 or line[0].isdecimal()]  # skips ranges of CoNLL-U such as 1-2
        sentence = [(line[word], line[tag].strip()) for line in words if line[0] != "-DOCSTART-"]
        if sentence:
            yield sentence


def _iob2(sentence: Sentence) -> Sentence:
    """Converts IOB1 to IOB2: an entity also begins where the type changes."""
    converted: Sentence = []
    before = "O"
    for word, tag in sentence:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        converted.append((word, f"B-{tag[2:]}" if begins else tag))
        before = tag
    return converted


def _write(path: Path, sentences: Sequence[Sentence]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join("".join(f"{w}\t{t}\n" for w, t in sentence) for sentence in sentences), encoding="utf-8")
    print(f"{path}: {len(sentences):,} sentences")


def write(data: Path, out: Path) -> None:
    """Writes `NAME/train.conll` and `test.conll`, or `.json`, of every set."""
    sources = {
        "wnut17": ("wnut17/wnut17train.conll", "wnut17/emerging.test.annotated", 0, 1, "\t"),
        "conll2003": ("conll2003/eng.train", "conll2003/eng.testb", 0, 3, None),
        "ud-ewt": ("ud-ewt/en_ewt-ud-train.conllu.xz", "ud-ewt/en_ewt-ud-test.conllu", 1, 3, "\t"),
    }
    for name, (train, test, word, tag, separator) in sources.items():
        for split, source in (("train", train), ("test", test)):
            sentences = [*_blocks(data / source, word, tag, separator)]
            sentences = [_iob2(sentence) for sentence in sentences] if name == "conll2003" else sentences
            setting = SETTINGS[name]
            _write(out / name / f"{split}.conll", sentences[: setting.first if split == "train" else setting.tested])
    setting = SETTINGS["squad"]
    for split, source, limit in (
        ("train", "train-v1.1.json.xz", setting.first),
        ("test", "dev-v1.1.json", setting.tested),
    ):
        path = data / "squad" / source
        content = json.loads(_text(path))
        _write_questions(out / "squad" / f"{split}.json", content, limit or 0)


def _write_questions(path: Path, content: dict[str, Any], limit: int) -> None:
    remaining, articles = limit, []
    for article in content["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            kept = paragraph["qas"][:remaining]
            remaining -= len(kept)
            paragraphs += [{**paragraph, "qas": kept}] if kept else []
        articles += [{**article, "paragraphs": paragraphs}] if paragraphs else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    print(f"{path}: {limit - remaining:,} questions")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
