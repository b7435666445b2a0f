"""Measures the ranking of search: Cranfield, and sentences that are looked up verbatim.

Run: python benchmarks/search_quality.py CRANFIELD [--articles bbc-news.tar.xz] [--squad dev-v1.1.json]
     [--model builtin] [--rerank MODEL] [--folder FOLDER] [--sentences 200]

CRANFIELD is a folder written by `cranfield.py`. Its documents are added to an index as records; each query is run in
each mode, and with --rerank MODEL, a cross-encoder, also with the first 50 hits reranked. Scores are those of trec_eval
over 100 documents, with 95 % intervals from a bootstrap over the queries.

With --articles, text files in an archive are indexed as files. Sentences of 8 to 40 words are drawn with a fixed seed
from articles of at least 3,000 characters, one per article, and searched for verbatim. A sentence is found if the file
at rank 1 contains it (a few articles occur twice). The interval is Wilson's.

With --squad, the paragraphs of a SQuAD file are added to an index as records, and 400 of them are searched for by one
of their questions; the score is the mean reciprocal rank, up to rank 10.

Indexes are kept in FOLDER, so that a second run does not embed again; by default they are temporary. Prints lines of
JSON.
"""

import argparse
import json
import random
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import mlxbert
from mlxbert.search.chunks import sentences
from mlxbert.search.index import Index, Mode
from mlxbert.train.data.retrieval import read_retrieval
from mlxbert.train.scores.metrics import RETRIEVAL, retrieval_scores, wilson

DEPTH, CANDIDATES = 100, 50
QUESTIONS = 400
LONG, WORDS = 3_000, range(8, 41)  # characters of an article, words of a sentence


def ways(reranker: mlxbert.Model | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The compared ways to search: their names, and their options."""
    for mode in get_args(Mode):
        yield mode, {"mode": mode}
    if reranker is not None:
        yield f"hybrid, reranked by {reranker.source}", {"rerank": reranker, "candidates": CANDIDATES}


def say(**values: Any) -> None:
    """Prints a line of JSON."""
    print(json.dumps(values, ensure_ascii=False), flush=True)


def judged(index: Index, folder: Path, reranker: mlxbert.Model | None) -> None:
    """Prints the scores of queries with known relevant documents."""
    data = read_retrieval(folder)
    if not index.stats().documents:
        index.add({"id": name, "text": text} for name, text in data.documents.items())
    stats = index.stats()
    say(what="collection", documents=stats.documents, chunks=stats.chunks, queries=len(data.queries))
    for name, options in ways(reranker):
        started = time.perf_counter()
        ranked = {
            query: [hit.place for hit in index.search(text, top_k=DEPTH, **options)]
            for query, text in data.queries.items()
        }
        seconds = time.perf_counter() - started
        scores = retrieval_scores(ranked, data.judgements)
        low, high = scores.interval(RETRIEVAL[0])
        means = {metric: round(value, 4) for metric, value in scores.means().items()}
        say(what=name, **means, interval=[round(low, 4), round(high, 4)], queries=len(scores.queries),
            ms_per_query=round(1000 * seconds / len(data.queries), 1))  # fmt: skip


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks the text files of an archive, unless the folder exists."""
    if not folder.exists():
        with tarfile.open(archive) as files:
            files.extractall(folder, [member for member in files if member.name.endswith(".txt")], filter="data")


def known_items(index: Index, folder: Path, count: int) -> None:
    """Prints how often a sentence finds its article at rank 1."""
    started = time.perf_counter()
    for _ in index.update([folder]):
        pass
    stats = index.stats()
    say(what="articles", files=stats.files, chunks=stats.chunks, failed=len(stats.failed),
        update_s=round(time.perf_counter() - started, 1))  # fmt: skip
    texts = {path: " ".join(path.read_text("latin-1").split()) for path in sorted(folder.rglob("*.txt"))}
    draws, drawn = random.Random(0), list[str]()
    for path in draws.sample(sorted(texts), len(texts)):
        spans = sentences(texts[path]) if len(texts[path]) >= LONG else []
        fit = [text for start, end in spans if len((text := texts[path][start:end]).split()) in WORDS]
        drawn += [draws.choice(fit)] if fit and len(drawn) < count else []
    twice = sum(sum(sentence in text for text in texts.values()) > 1 for sentence in drawn)
    say(what="sentences", count=len(drawn), in_several_articles=twice)
    for mode in get_args(Mode):
        missed = []
        for sentence in drawn:
            hits = index.search(sentence, mode=mode)
            paths = [Path(hit.path or "") for hit in hits]
            if not paths or sentence not in texts[paths[0]]:
                rank = next((rank for rank, path in enumerate(paths, 1) if sentence in texts[path]), None)
                missed.append({"rank": rank, "sentence": sentence})
        right = (len(drawn) - len(missed)) / len(drawn)
        low, high = wilson(right, len(drawn))
        say(what=mode, at_rank_1=right, interval=[round(low, 4), round(high, 4)], missed=missed)


def questions(index: Index, file: Path) -> None:
    """Prints the ranks of the paragraphs of questions."""
    articles = json.loads(file.read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    if not index.stats().documents:
        index.add({"id": str(number), "text": each["context"]} for number, each in enumerate(paragraphs))
    draws, drawn = random.Random(0), list[tuple[str, str]]()
    for number in draws.sample(range(len(paragraphs)), QUESTIONS):
        drawn.append((draws.choice(paragraphs[number]["qas"])["question"], str(number)))
    for mode in get_args(Mode):
        ranks = []
        for text, place in drawn:
            places = [hit.place for hit in index.search(text, mode=mode)]
            ranks.append(places.index(place) + 1 if place in places else 0)
        score = sum(1 / rank for rank in ranks if rank) / len(ranks)
        say(what=f"questions, {mode}", mrr=round(score, 4), at_rank_1=ranks.count(1) / len(ranks), count=len(ranks))


def main() -> None:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--articles", type=Path, metavar="TAR")
    parser.add_argument("--squad", type=Path, metavar="JSON")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--rerank", metavar="MODEL")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    args = parser.parse_args()
    model = mlxbert.load(args.model, task="embed")
    reranker = mlxbert.load(args.rerank, task="classify") if args.rerank else None
    with nullcontext(args.folder) if args.folder else tempfile.TemporaryDirectory() as kept:
        folder = Path(kept).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with mlxbert.open_index(folder / "judged.db", model=model) as index:
            judged(index, args.data, reranker)
        if args.articles:
            unpack(args.articles, folder / "articles")
            with mlxbert.open_index(folder / "articles.db", model=model) as index:
                known_items(index, folder / "articles", args.sentences)
        if args.squad:
            with mlxbert.open_index(folder / "squad.db", model=model) as index:
                questions(index, args.squad)


if __name__ == "__main__":
    main()
