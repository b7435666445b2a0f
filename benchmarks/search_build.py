"""Compares building and updating an index with embedding alone, and with txtai.

Run: python benchmarks/search_build.py FOLDER… [--model builtin] [--rounds 3] [--files 10000] [--threads 2]
     [--txtai PYTHON]

In each round an index of the folders is built, and the texts of its chunks are embedded by `mlxbert.embed_stream`, in
separate processes; every other round runs them in reverse order. The model is loaded before the clock starts. Prints
medians of wall and CPU time (without the process for parsers), and the ratio of embedding alone to the index. With
--txtai PYTHON, an interpreter with txtai, txtai gets the same texts and the same model, with its database and its own
hybrid index, and 200 queries (the first eight words of random chunks) are run on both, in a new process each; the peak
memory is that of these processes.

Then N small files are made from parts of the same texts, and indexed. The unchanged index is updated in a new process,
and again in the same process; then one file is changed, whose text is also embedded alone: `more_s` is the difference.
If `mlxbert index` exists, it is also measured, from the start to the end of the process. Prints lines of JSON.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cores import keep_to_cores
from search import QUERIES, process, say, timed

if TYPE_CHECKING:
    from mlxbert.search.chunks import Chunk
    from mlxbert.search.documents.document import Document
    from mlxbert.search.index_writer import Splits

WORDS, HOUR = 30, 3_600  # words of a small file; its age in seconds
AGAIN = 5  # unchanged updates in one process


class Recorder:
    """A splitter that records the distinct texts to embed."""

    def __init__(self, splitter: "Splits") -> None:
        self.splitter = splitter
        self.texts: dict[str, None] = {}

    def __call__(self, document: "Document") -> "Sequence[Chunk]":
        """The chunks of a document."""
        return self.splitter(document)

    def embedded(self, document: "Document", chunk: "Chunk") -> "Sequence[str]":
        """The texts to embed for a chunk."""
        texts = self.splitter.embedded(document, chunk)
        self.texts |= dict.fromkeys(texts)
        return texts


def spent(work: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU seconds of a function."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - used}


def make(args: argparse.Namespace) -> dict[str, Any]:
    """Builds an index, and writes the texts of its chunks."""
    import mlxbert

    model = mlxbert.load(args.model, task="embed")
    for file in args.work.glob("index.db*"):
        file.unlink()
    with mlxbert.open_index(args.work / "index.db", model=model) as index:
        index.splitter = recorder = Recorder(index.splitter)
        result = spent(lambda: [*index.update(args.folders)])
        stats = index.stats()
    (args.work / "texts.json").write_text(json.dumps([*recorder.texts]))
    return {**result, "files": stats.files, "chunks": stats.chunks, "embedded": stats.vectors,
            "disk_megabytes": stats.size / 1e6}  # fmt: skip


def embed(args: argparse.Namespace) -> dict[str, Any]:
    """Embeds the texts of the chunks."""
    import mlxbert

    model, texts = mlxbert.load(args.model, task="embed"), json.loads((args.work / "texts.json").read_text())
    return spent(lambda: [*mlxbert.embed_stream(model, texts, kind="document")])


def search(args: argparse.Namespace) -> dict[str, Any]:
    """Searches the index."""
    import mlxbert

    queries = asked(args)
    with mlxbert.open_index(args.work / "index.db") as index:
        _ = index.model
        return timed(lambda number: index.search(queries[number]))


def txtai_make(args: argparse.Namespace) -> dict[str, Any]:
    """Builds a txtai index of the texts of the chunks."""
    from txtai import Embeddings

    index = Embeddings(path=args.model, content=True, hybrid=True)
    texts = json.loads((args.work / "texts.json").read_text())
    result = spent(lambda: index.index((number, text, None) for number, text in enumerate(texts)))
    index.save(os.fspath(args.work / "txtai"))
    return {**result, "disk_megabytes": sum(file.stat().st_size for file in (args.work / "txtai").rglob("*")) / 1e6}


def txtai_search(args: argparse.Namespace) -> dict[str, Any]:
    """Searches the txtai index."""
    from txtai import Embeddings

    queries, index = asked(args), Embeddings()
    index.load(os.fspath(args.work / "txtai"))
    return timed(lambda number: index.search(queries[number], 10))


def asked(args: argparse.Namespace) -> list[str]:
    """The queries: the first words of random chunks."""
    texts = json.loads((args.work / "texts.json").read_text())
    return [" ".join(text.split()[:8]) for text in random.Random(0).choices(texts, k=QUERIES)]


def small(args: argparse.Namespace) -> dict[str, Any]:
    """Makes many small files, and indexes them."""
    import mlxbert

    words = " ".join(json.loads((args.work / "texts.json").read_text())).split()
    draws, old = random.Random(0), time.time() - HOUR
    for number in range(args.files):
        file = args.work / "small" / f"{number % 100:02}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        start = draws.randrange(max(len(words) - WORDS, 1))
        file.write_text(" ".join([*words[start : start + WORDS], str(number)]))
        os.utime(file, (old, old))
    model = mlxbert.load(args.model, task="embed")
    with mlxbert.open_index(args.work / "small.db", model=model, paths=[args.work / "small"]) as index:
        result = spent(lambda: [*index.update()])
        return {**result, "files": index.stats().files, "chunks": index.stats().chunks}


def again(args: argparse.Namespace) -> dict[str, Any]:
    """Updates the index of small files: unchanged, and after changing a file."""
    import mlxbert

    with mlxbert.open_index(args.work / "small.db") as index:
        first, *later = [spent(lambda: [*index.update()])["seconds"] for _ in range(AGAIN)]
        changed, alone = [], []
        for _ in range(AGAIN):
            text = change(args)
            changed.append(spent(lambda: [*index.update()])["seconds"])
            alone.append(spent(lambda text=text: mlxbert.embed(index.model, [text]))["seconds"])  # type: ignore[misc]
    extra = statistics.median(a - b for a, b in zip(changed, alone, strict=True))
    return {"first_s": first, "again_s": statistics.median(later), "changed_s": statistics.median(changed),
            "embedding_s": statistics.median(alone), "more_s": extra}  # fmt: skip


def change(args: argparse.Namespace) -> str:
    """Changes one of the small files; returns its new text."""
    file = args.work / "small" / "00" / "0.txt"
    words = file.read_text().split()
    text = " ".join([*words[1:], str(time.time_ns())])
    file.write_text(text)
    return text


STEPS = {step.__name__: step for step in (make, embed, search, txtai_make, txtai_search, small, again)}


def run(args: argparse.Namespace, step: str) -> dict[str, Any]:
    """Runs a step in a separate process, and returns its measurements."""
    python = args.txtai if step.startswith("txtai") else sys.executable
    options = ["--model", args.model, "--files", str(args.files), "--work", str(args.work), "--step", step]
    done = process([python, __file__, *map(str, args.folders), *options])
    return {**json.loads(done["out"].splitlines()[-1]), "megabytes": done["megabytes"]}


def compare(args: argparse.Namespace) -> None:
    """Prints the times of building, in turn, and then of searching."""
    names = ["make", "embed", *(["txtai_make"] if args.txtai else [])]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            runs[name].append(run(args, name))
            say(what=f"{name}, round {number + 1}", **runs[name][-1])
    medians = {name: statistics.median(each["seconds"] for each in results) for name, results in runs.items()}
    cpu = {name: statistics.median(each["cpu_s"] for each in results) for name, results in runs.items()}
    for name in names:
        say(what=name, seconds=medians[name], cpu_s=cpu[name], ratio=medians["embed"] / medians[name],
            cpu_ratio=cpu["embed"] / cpu[name], rounds=args.rounds)  # fmt: skip
    for name in ("search", *(["txtai_search"] if args.txtai else [])):
        say(what=name, **run(args, name))


def keep(args: argparse.Namespace) -> None:
    """Prints the times of updates."""
    for name in ("small", "again"):
        say(what=name, **run(args, name))
    command = [sys.executable, "-m", "mlxbert", "index"]
    if subprocess.run([*command, "--help"], capture_output=True).returncode:
        return
    command += [os.fspath(args.work / "small"), "--index", os.fspath(args.work / "small.db"), "--json", "--quiet"]
    for what, before in (("unchanged", None), ("one file changed", change)):
        seconds = []
        for _ in range(AGAIN):
            if before:
                before(args)
            seconds.append(spent(lambda: subprocess.run(command, check=True, capture_output=True))["seconds"])
        say(what=f"mlxbert index, {what}", seconds=statistics.median(seconds), slowest_s=max(seconds))


def main() -> None:
    """Runs every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=10_000, help="small files")
    parser.add_argument("--threads", type=int, default=2, help="cores to run on")
    parser.add_argument("--txtai", metavar="PYTHON", help="an interpreter with txtai; MODEL must be a folder")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        return print(json.dumps(STEPS[args.step](args)))
    keep_to_cores(args.threads)
    with tempfile.TemporaryDirectory() as work:
        args.work = Path(work)
        compare(args)
        keep(args)
    return None


if __name__ == "__main__":
    main()
