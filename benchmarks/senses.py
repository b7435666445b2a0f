"""Measures how well `senses` tells the senses of a word apart, next to bags of words, and its time.

Run: python benchmarks/senses.py CORPUS MODEL [--lines 100] [--time 10000]

CORPUS is a text with a paragraph per line, such as Wikipedia. Pseudo-words: in lines that hold one of two words but not
the other, this word is replaced by an invented one; twice as many lines hold the first word. "bank": lines in which
words of money or of rivers stand near it are labelled by these words, which are then removed. Purity is the share of
places whose label is the most frequent one of their group. Bags of words are tf-idf vectors of the same lines, grouped
by the same k-means; "chance" is the share of the most frequent label, and "the word itself" uses the vectors of the
word in place of those of a mask.
"""

import argparse
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cores import keep_to_cores
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import normalized_mutual_info_score

import mlxbert
from mlxbert.explore.senses import kmeans_groups

PAIRS = (("river", "money"), ("doctor", "guitar"), ("church", "engine"), ("soccer", "bridge"), ("violin", "violence"))
PSEUDO_WORD = "wug"
MONEY = "account accounts loan loans money credit financial finance deposit deposits investment currency debt banking"
WATER = "river stream creek lake shore canal water upstream downstream"
NEAR, LONGEST = 60, 400  # characters on each side of the word that are judged; of the longest line
Labelled = tuple[list[str], list[int]]


def pattern(words: str) -> "re.Pattern[str]":
    """Finds any of some words."""
    return re.compile(rf"\b(?:{'|'.join(words.split())})\b", re.IGNORECASE)


def pseudo(lines: Sequence[str], pair: tuple[str, str], count: int) -> Labelled:
    """Lines with an invented word, and which of the two words it replaces."""
    texts, labels, finds = list[str](), list[int](), [pattern(word) for word in pair]
    for label, (own, other) in enumerate((finds, finds[::-1])):
        found = (line for line in lines if own.search(line) and not other.search(line))
        chosen = [own.sub(PSEUDO_WORD, line) for line, _ in zip(found, range(count // (1 + label)), strict=False)]
        texts += chosen
        labels += [label] * len(chosen)
    return texts, labels


def banks(lines: Sequence[str], count: int) -> Labelled:
    """Lines with "bank" once, and whether words of money (0) or of water (1) stand near it; without these words."""
    texts, labels, finds = list[str](), list[int](), [pattern(MONEY), pattern(WATER)]
    for line in lines:
        places = [*re.finditer(r"\bbank\b", line)]
        if len(places) != 1:
            continue
        near = line[max(places[0].start() - NEAR, 0) : places[0].end() + NEAR]
        found = [bool(find.search(near)) for find in finds]
        if sum(found) == 1 and labels.count(found.index(True)) < count:
            texts.append(finds[1].sub("", finds[0].sub("", line)))
            labels.append(found.index(True))
    return texts, labels


def purity(labels: Any, groups: Any) -> float:
    """The share of places whose label is the most frequent one of their group."""
    return sum(np.bincount(labels[groups == group]).max() for group in np.unique(groups)) / len(labels)


def of_words(texts: Sequence[str], word: str) -> Any:
    """The groups of texts by their other words."""
    rows = TfidfVectorizer(sublinear_tf=True, stop_words=["the", "of", "and", "in", "a", word]).fit_transform(texts)
    return kmeans_groups(rows.toarray().astype(np.float32), 2)


def compared(model: mlxbert.Model, name: str, word: str, found: Labelled) -> str:
    """A row of the table: two groups by each way, and the number of senses that is found."""
    texts, labels = found[0], np.array(found[1])
    cells = [name, str(len(texts)), f"{np.bincount(labels).max() / len(labels):.3f}"]
    groups = of_words(texts, word)
    cells.append(f"{purity(labels, groups):.3f}")
    for number, mask in ((2, False), (2, None), (None, None)):
        result = mlxbert.senses(model, word, texts, senses=number, mask=mask)
        truth = labels[[place.index for place in result.occurrences]]
        groups = np.array([place.sense for place in result.occurrences])
        more = "" if number else f", {len(result.senses)} senses, silhouette {result.silhouette:.2f}"
        nmi = normalized_mutual_info_score(truth, groups)
        cells.append(f"{purity(truth, groups):.3f} (NMI {nmi:.2f}{more})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table, and the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("model")
    parser.add_argument("--lines", type=int, default=100, help="lines of the first word of a pair")
    parser.add_argument("--time", type=int, default=10_000, help="lines of the measurement of time; 0 for none")
    args = parser.parse_args()
    keep_to_cores(1)
    lines = [line for line in args.corpus.read_text(encoding="utf-8").split("\n") if 40 < len(line) < LONGEST]
    random.Random(0).shuffle(lines)
    model = mlxbert.load(args.model, dtype="float32")
    print("| word | lines | chance | bags of words | the word itself | senses | senses, K found |")
    print("|---|---|---|---|---|---|---|")
    for pair in PAIRS:
        print(compared(model, " + ".join(pair), PSEUDO_WORD, pseudo(lines, pair, args.lines)), flush=True)
    print(compared(model, "bank", "bank", banks(lines, args.lines)), flush=True)
    for word in ("guitar", "violin"):
        alone = mlxbert.senses(model, word, [line for line in lines if re.search(rf"\b{word}\b", line)][: args.lines])
        print(f"{word}, which has one sense: {len(alone.senses)} found, silhouette {alone.silhouette:.2f}", flush=True)
    if args.time:
        begun = time.process_time()
        result = mlxbert.senses(model, "bank", lines[: args.time])
        rare = time.process_time() - begun
        begun = time.process_time()
        often = mlxbert.senses(model, "was", [line for line in lines if " was " in line][: args.time])
        print(f"{args.time:,} lines: {rare:.1f} CPU s with {len(result.occurrences):,} places of bank", flush=True)
        spent, places = time.process_time() - begun, len(often.occurrences)
        print(f"{often.texts:,} lines: {spent:.1f} CPU s with {places:,} places of was", flush=True)


if __name__ == "__main__":
    main()
