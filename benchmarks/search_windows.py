"""Compares what can be embedded of a passage: the whole of it, or windows of some sizes; and how scores are fused.

Run: python benchmarks/search_windows.py MODEL [--squad dev-v1.1.json] [--cranfield FOLDER] [--xquad xquad.de.json …]
     [--tokens 254] [--windows 0 48 64 96]

Each set has documents and queries with the documents that answer them:

- `needles`: 240 files of four paragraphs of SQuAD each, a question about one of them;
- `long`: 80 files of 24 paragraphs each, three questions;
- `cranfield`: the collection, from a folder written by `cranfield.py`;
- `xquad`: the paragraphs of a file of XQuAD, a question each.

A document has the score of its best passage, and a passage that of its best window (size 0: the passage is embedded as
a whole). `words` are BM25 scores of passages. `ranks` fuses the ranks of both (reciprocal rank fusion), `weighted` is
what `mlxbert search` does. Prints lines of JSON: for each set, size and way the mean reciprocal rank and nDCG of the
first ten documents with 95 % intervals; and for each set and size the number of windows and tokens, and the seconds to
embed them.
"""

import argparse
import json
import random
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mlxbert
from mlxbert.search import chunks
from mlxbert.search.documents.document import Document
from mlxbert.search.folding import folded
from mlxbert.search.index import unrelated_scores
from mlxbert.search.rank_fusion import Unrelated, fuse, weigh
from mlxbert.search.text_vectors import text_vectors
from mlxbert.search.word_search import WordMatch, WordMatcher, any_word, match_of, phrases, word_weights
from mlxbert.train.data.retrieval import read_retrieval
from mlxbert.train.scores.metrics import retrieval_scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

DEPTH, K = 50, 60


@dataclass(frozen=True)
class Collection:
    """Documents by name, and the queries with their judgements, in the form of `mlxbert.train.data.retrieval`."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, float]]


def collection(documents: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> Collection:
    """Makes a collection of pairs of a question and the name of the document that answers it."""
    queries = {str(number): question for number, (question, _) in enumerate(asked)}
    return Collection(documents, queries, {str(number): {name: 1.0} for number, (_, name) in enumerate(asked)})


def paragraphs(file: Path) -> list[tuple[str, list[str]]]:
    """Returns the paragraphs of a file in SQuAD's format, each with its questions."""
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    every = (paragraph for article in articles for paragraph in article["paragraphs"])
    return [(each["context"], [asked["question"] for asked in each["qas"]]) for each in every if each["qas"]]


def joined(file: Path, files: int, together: int, questions: int) -> Collection:
    """Joins paragraphs about different things to files, and draws questions about some of them."""
    draws, documents, asked = random.Random(11), dict[str, str](), list[tuple[str, str]]()
    drawn = [each for each in paragraphs(file) if 300 < len(each[0]) < 1500 or together > 4]
    draws.shuffle(drawn)
    for number in range(files):
        part = drawn[number * together : (number + 1) * together]
        documents[f"{number}"] = "\n\n".join(text for text, _ in part)
        asked += [(draws.choice(about), f"{number}") for _, about in draws.sample(part, questions)]
    return collection(documents, asked)


def collections(args: argparse.Namespace) -> Iterator[tuple[str, Collection]]:
    """Yields the sets that the arguments name."""
    if args.squad:
        yield "needles", joined(args.squad, 240, 4, 1)
        yield "long", joined(args.squad, 80, 24, 3)
    if args.cranfield:
        data = read_retrieval(args.cranfield)
        yield "cranfield", Collection(data.documents, data.queries, data.judgements)
    for file in args.xquad:
        every = paragraphs(file)
        documents = {str(number): text for number, (text, _) in enumerate(every)}
        yield file.stem, collection(documents, [(asked[0], str(number)) for number, (_, asked) in enumerate(every)])


class Words:
    """The BM25 scores of passages.

    Args:
        texts: The passages.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._passages = [folded(text) for text in texts]
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE VIRTUAL TABLE words USING fts5(text, tokenize='ascii')")
        self._database.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(self._passages))

    def frequency(self, words: Sequence[str]) -> dict[str, int]:
        """Returns the number of passages that contain each word."""
        query = "SELECT count(*) FROM words WHERE words MATCH ?"
        return {word: self._database.execute(query, (match_of([word]),)).fetchone()[0] for word in words}

    def scores(self, query: str) -> list[tuple[int, float]]:
        """Returns the best passages and their scores."""
        match = any_word(query, self.frequency)
        command = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
        return self._database.execute(command, (match, DEPTH)).fetchall() if match else []

    def matches(self, query: str, passages: Iterable[int]) -> dict[int, WordMatch]:
        """Returns how well passages have the words of a query."""
        compared = WordMatcher(word_weights(query, self.frequency, len(self._passages)), phrases(query))
        return {passage: compared.match(self._passages[passage].split()) for passage in passages}


def by_ranks(lists: Mapping[str, Sequence[tuple[int, float]]], owners: Sequence[int]) -> list[int]:
    """Fuses rankings by reciprocal ranks; returns the numbers of documents, best first."""
    totals: dict[int, float] = {}
    for scores in lists.values():
        for rank, owner in enumerate(dict.fromkeys(owners[passage] for passage, _ in scores), 1):
            totals[owner] = totals.get(owner, 0.0) + 1 / (K + rank)
    return sorted(totals, key=lambda owner: -totals[owner])


def embed(model: mlxbert.Model, texts: Sequence[str], prompt: str) -> "Vectors":
    """Returns vectors of length 1."""
    return np.asarray(mlxbert.embed(model, list(texts), prompt=prompt, normalize=True), np.float32)


def measure(name: str, data: Collection, model: mlxbert.Model, size: int, tokens: int) -> None:
    """Prints the scores of a set with windows of a size."""
    chunks._WINDOW = size or chunks._WINDOW
    splitter = chunks.Splitter(model.embed_tokenizer, tokens=tokens)
    documents = [Document(text) for text in data.documents.values()]
    passages = [(owner, chunk) for owner, document in enumerate(documents) for chunk in splitter(document)]
    owners = [owner for owner, _ in passages]
    windows = [splitter.embedded(documents[owner], chunk) for owner, chunk in passages]
    if not size:
        windows = [[documents[owner].text[chunk.start : chunk.end]] for owner, chunk in passages]
    texts = [text for each in windows for text in each]
    started = time.perf_counter()
    vectors = embed(model, texts, "")
    count = sum(len(model.embed_tokenizer.pieces(text)) for text in texts)
    print(json.dumps({"set": name, "window": size, "windows": len(texts), "tokens": count,
                      "embed_s": round(time.perf_counter() - started, 1)}), flush=True)  # fmt: skip
    words = Words([documents[owner].text[chunk.start : chunk.end] for owner, chunk in passages])
    unrelated = Unrelated(*unrelated_scores(text_vectors(model), ("", ""))[0])
    starts = np.cumsum([0, *map(len, windows)][:-1])
    scores = np.maximum.reduceat(embed(model, [*data.queries.values()], "") @ vectors.T, starts, axis=1)
    names, ways = [*data.documents], dict[str, dict[str, list[str]]]()
    for row, (query, text) in enumerate(data.queries.items()):
        best = np.argsort(-scores[row], kind="stable")[:DEPTH]
        lists = {"vectors": [(int(each), float(scores[row, each])) for each in best], "words": words.scores(text)}
        places = dict(enumerate(owners))
        matches = words.matches(text, {passage for ranking in lists.values() for passage, _ in ranking})
        hybrid_scores = {
            passage: weigh(float(scores[row, passage]), unrelated, match) for passage, match in matches.items()
        }
        ranked = {way: [owners[each.chunk] for each in fuse({way: lists[way]}, places)] for way in lists}
        ranked |= {
            "ranks": by_ranks(lists, owners),
            "weighted": [owners[each.chunk] for each in fuse(lists, places, hybrid_scores)],
        }
        for way, order in ranked.items():
            ways.setdefault(way, {})[query] = [names[owner] for owner in order]
    for way, found in ways.items():
        judged = retrieval_scores(found, data.judgements)
        means: dict[str, Any] = judged.means()
        shown = {metric: round(means[metric], 4) for metric in ("mrr@10", "ndcg@10")}
        interval = {metric: [round(end, 4) for end in judged.interval(metric)] for metric in shown}
        print(json.dumps({"set": name, "window": size, "way": way, **shown, "interval": interval}), flush=True)


def main() -> None:
    """Measures all sets and sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--squad", type=Path)
    parser.add_argument("--cranfield", type=Path)
    parser.add_argument("--xquad", type=Path, nargs="*", default=[])
    parser.add_argument("--tokens", type=int, default=254)
    parser.add_argument("--windows", type=int, nargs="*", default=[0, 48, 64, 96])
    args = parser.parse_args()
    model = mlxbert.load(args.model, task="embed")
    for name, data in collections(args):
        for size in args.windows:
            measure(name, data, model, size, args.tokens)


if __name__ == "__main__":
    main()
