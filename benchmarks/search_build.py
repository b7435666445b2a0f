"""Making an index and keeping it up to date: next to embedding alone, and to txtai.

Run: python benchmarks/search_build.py FOLDER… [--model builtin] [--rounds 3] [--files 10000] [--threads 2]
     [--txtai PYTHON]

In each round an index of the folders is made, and the texts of its chunks are embedded by `mlxbert.embed_stream`, each
in a process of its own, in turn; in every other round the other way round. The model is loaded before the time begins.
Medians are printed, of the clock and of the processor (that of the process for parsers is not in it), and the ratio of
embedding alone to the index. With --txtai PYTHON, an interpreter that has it, txtai gets the same texts and the same
model, with its database and its own hybrid index, and 200 queries (the first eight words of random chunks) are searched
for in both, in a new process each; the peak memory is of these processes.

Then N small files are made, of parts of the same texts, and indexed. An unchanged index is brought up to date in a new
process, and in the same one again; then one file changes, whose text is embedded alone, too: `more_s` is the rest. If
there is `mlxbert index`, that is measured as well, from the start of the process to its end. Prints lines of JSON.
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
    from mlxbert.readers.documents.document import Document
    from mlxbert.search.chunks import Chunk
    from mlxbert.search.index_writer import Splits

WORDS, HOUR = 30, 3_600  # words of a small file; how old it is, in seconds
AGAIN = 5  # unchanged updates in one process


class Recorder:
    """A splitter that keeps the texts that are embedded, each once."""

    def __init__(self, splitter: "Splits") -> None:
        self.splitter = splitter
        self.texts: dict[str, None] = {}

    def __call__(self, document: "Document") -> "Sequence[Chunk]":
        """The chunks of a document."""
        return self.splitter(document)

    def embedded(self, document: "Document", chunk: "Chunk") -> str:
        """The text of a chunk that is embedded."""
        text = self.splitter.embedded(document, chunk)
        self.texts[text] = None
        return text


def spent(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of the clock and of the processor."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - used}


def make(given: argparse.Namespace) -> dict[str, Any]:
    """Makes an index, and writes the texts of its chunks."""
    import mlxbert

    model = mlxbert.load(given.model, task="embed")
    for file in given.work.glob("index.db*"):
        file.unlink()
    with mlxbert.open_index(given.work / "index.db", model=model) as index:
        index.splitter = recorder = Recorder(index.splitter)
        result = spent(lambda: [*index.update(given.folders)])
        stats = index.stats()
    (given.work / "texts.json").write_text(json.dumps([*recorder.texts]))
    return {**result, "files": stats.files, "chunks": stats.chunks, "embedded": stats.vectors,
            "disk_megabytes": stats.size / 1e6}  # fmt: skip


def embed(given: argparse.Namespace) -> dict[str, Any]:
    """Embeds these texts."""
    import mlxbert

    model, texts = mlxbert.load(given.model, task="embed"), json.loads((given.work / "texts.json").read_text())
    return spent(lambda: [*mlxbert.embed_stream(model, texts, kind="document")])


def search(given: argparse.Namespace) -> dict[str, Any]:
    """Searches the index."""
    import mlxbert

    queries = asked(given)
    with mlxbert.open_index(given.work / "index.db") as index:
        _ = index.model
        return timed(lambda number: index.search(queries[number]))


def txtai_make(given: argparse.Namespace) -> dict[str, Any]:
    """Makes an index of txtai of these texts."""
    from txtai import Embeddings

    index = Embeddings(path=given.model, content=True, hybrid=True)
    texts = json.loads((given.work / "texts.json").read_text())
    result = spent(lambda: index.index((number, text, None) for number, text in enumerate(texts)))
    index.save(os.fspath(given.work / "txtai"))
    return {**result, "disk_megabytes": sum(file.stat().st_size for file in (given.work / "txtai").rglob("*")) / 1e6}


def txtai_search(given: argparse.Namespace) -> dict[str, Any]:
    """Searches it."""
    from txtai import Embeddings

    queries, index = asked(given), Embeddings()
    index.load(os.fspath(given.work / "txtai"))
    return timed(lambda number: index.search(queries[number], 10))


def asked(given: argparse.Namespace) -> list[str]:
    """Queries: words of random chunks."""
    texts = json.loads((given.work / "texts.json").read_text())
    return [" ".join(text.split()[:8]) for text in random.Random(0).choices(texts, k=QUERIES)]


def small(given: argparse.Namespace) -> dict[str, Any]:
    """Makes many small files, and their index."""
    import mlxbert

    words = " ".join(json.loads((given.work / "texts.json").read_text())).split()
    draws, old = random.Random(0), time.time() - HOUR
    for number in range(given.files):
        file = given.work / "small" / f"{number % 100:02}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        start = draws.randrange(max(len(words) - WORDS, 1))
        file.write_text(" ".join([*words[start : start + WORDS], str(number)]))
        os.utime(file, (old, old))
    model = mlxbert.load(given.model, task="embed")
    with mlxbert.open_index(given.work / "small.db", model=model, paths=[given.work / "small"]) as index:
        result = spent(lambda: [*index.update()])
        return {**result, "files": index.stats().files, "chunks": index.stats().chunks}


def again(given: argparse.Namespace) -> dict[str, Any]:
    """Brings it up to date: as it is, and with a file that has changed."""
    import mlxbert

    with mlxbert.open_index(given.work / "small.db") as index:
        first, *others = [spent(lambda: [*index.update()])["seconds"] for _ in range(AGAIN)]
        changed, alone = [], []
        for _ in range(AGAIN):
            text = change(given)
            changed.append(spent(lambda: [*index.update()])["seconds"])
            alone.append(spent(lambda text=text: mlxbert.embed(index.model, [text]))["seconds"])  # type: ignore[misc]
    more = statistics.median(a - b for a, b in zip(changed, alone, strict=True))
    return {"first_s": first, "again_s": statistics.median(others), "changed_s": statistics.median(changed),
            "embedding_s": statistics.median(alone), "more_s": more}  # fmt: skip


def change(given: argparse.Namespace) -> str:
    """Changes one of the small files; returns its new text."""
    file = given.work / "small" / "00" / "0.txt"
    words = file.read_text().split()
    text = " ".join([*words[1:], str(time.time_ns())])
    file.write_text(text)
    return text


STEPS = {one.__name__: one for one in (make, embed, search, txtai_make, txtai_search, small, again)}


def run(given: argparse.Namespace, step: str) -> dict[str, Any]:
    """A step in a process of its own; it prints what it took."""
    python = given.txtai if step.startswith("txtai") else sys.executable
    options = ["--model", given.model, "--files", str(given.files), "--work", str(given.work), "--step", step]
    done = process([python, __file__, *map(str, given.folders), *options])
    return {**json.loads(done["out"].splitlines()[-1]), "megabytes": done["megabytes"]}


def compare(given: argparse.Namespace) -> None:
    """Times of making, in turn, and then of searching."""
    names = ["make", "embed", *(["txtai_make"] if given.txtai else [])]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(given.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            runs[name].append(run(given, name))
            say(what=f"{name}, round {number + 1}", **runs[name][-1])
    medians = {name: statistics.median(one["seconds"] for one in found) for name, found in runs.items()}
    used = {name: statistics.median(one["cpu_s"] for one in found) for name, found in runs.items()}
    for name in names:
        say(what=name, seconds=medians[name], cpu_s=used[name], ratio=medians["embed"] / medians[name],
            cpu_ratio=used["embed"] / used[name], rounds=given.rounds)  # fmt: skip
    for name in ("search", *(["txtai_search"] if given.txtai else [])):
        say(what=name, **run(given, name))


def keep(given: argparse.Namespace) -> None:
    """Times of keeping up to date."""
    for name in ("small", "again"):
        say(what=name, **run(given, name))
    command = [sys.executable, "-m", "mlxbert", "index"]
    if subprocess.run([*command, "--help"], capture_output=True).returncode:
        return
    command += [os.fspath(given.work / "small"), "--index", os.fspath(given.work / "small.db"), "--json", "--quiet"]
    for what, before in (("unchanged", None), ("one file changed", change)):
        seconds = []
        for _ in range(AGAIN):
            if before:
                before(given)
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
    parser.add_argument("--txtai", metavar="PYTHON", help="an interpreter that has it; MODEL must be a folder")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        return print(json.dumps(STEPS[given.step](given)))
    keep_to_cores(given.threads)
    with tempfile.TemporaryDirectory() as work:
        given.work = Path(work)
        compare(given)
        keep(given)
    return None


if __name__ == "__main__":
    main()
