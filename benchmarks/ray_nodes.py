"""Measures jobs of `mlxbert ray` on two nodes of this machine: rows after a node was killed, rate, memory.

Usage: python benchmarks/ray_nodes.py [--rows 20000] [--times 10] [--model M] [--only kill,rate,memory]

The texts are lines of --texts; a row of the table is printed as soon as it is measured. Everything computes on two
cores: the single process on both, the nodes on one each, or for kills, with two processes each. `M` may be `tiny`, a
network of one layer with random weights, with which most of the time is not spent in the network.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from in_turn import drop_unusual_settings

import mlxbert
from tests.helpers.ray_nodes import Nodes, two_nodes

FILES = 4  # of the input
_SIZES = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 64, "num_hidden_layers": 1}
_SIZES |= {"num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 512}


def write_texts(texts: Sequence[str], folder: Path) -> Path:
    """Writes the input: the columns `id` and `text`, in several files with small row groups."""
    import pyarrow as pa

    folder.mkdir()
    size = -(-len(texts) // FILES)
    for number in range(FILES):
        rows = range(number * size, min((number + 1) * size, len(texts)))
        table = pa.table({"id": [*rows], "text": [texts[row] for row in rows]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=10_000)
    return folder


def command(model: str, source: Path, output: Path, *options: str) -> list[str]:
    """Returns the command that computes vectors."""
    many = "--cluster" in options
    named = [word for file in ([source] if many else sorted(source.iterdir())) for word in ("--input", str(file))]
    words = ["ray"] * many + ["embed", "-q", "-m", model, *named, "--output", str(output), *options]
    return [sys.executable, "-m", "mlxbert", *words]


def rate(seconds: float, rows: int) -> str:
    """Formats seconds and rows per second."""
    return f"{seconds:.1f} s, {rows / seconds:,.0f} rows/s"


def read(output: Path) -> tuple[list[int], Any]:
    """Returns the ids and the vectors (N, D) of a job's output, in the order of the names of its files."""
    table = pq.read_table(output, columns=["id", "embedding", "error"])
    assert table["error"].null_count == len(table)
    vectors = np.concatenate([chunk.flatten().to_numpy() for chunk in table["embedding"].chunks])
    return table["id"].to_pylist(), vectors.reshape(len(table), -1)


def kill_at_random(nodes: Nodes, output: Path, parts: int, job: "subprocess.Popen[str]") -> int:
    """Kills a node when a random number of parts is there; returns that number."""
    moment = random.randrange(1, parts)
    while len([*output.glob("part-*.parquet")]) < moment and job.poll() is None:
        time.sleep(0.02)
    nodes.kill()
    return moment


def killed(model: str, source: Path, alone: Any, part_rows: int, work: Path) -> tuple[float, str]:
    """Runs a job in which a node dies; returns the largest difference from a single process, and a description."""
    output, rows = work / "killed", len(alone)
    parts = sum(-(-pq.read_metadata(file).num_rows // part_rows) for file in source.iterdir())
    with two_nodes(2) as nodes:
        line = command(model, source, output, "--cluster", nodes.address, "--part-rows", str(part_rows), "--overwrite")
        start = time.perf_counter()
        job = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        moment = kill_at_random(nodes, output, parts, job)
        summary = json.loads(job.communicate()[0])
        seconds = time.perf_counter() - start
    assert job.returncode == 0, job.returncode
    ids, vectors = read(output)
    assert ids == [*range(rows)], "a row is missing, twice, or out of place"
    difference = float(np.abs(vectors - alone).max())
    after = f"killed after {moment} of {parts} parts; nodes that computed: {summary['nodes']}"
    return difference, f"{rows:,} rows, each once; {after}; {seconds:.0f} s; largest difference {difference:.1e}"


class Used(NamedTuple):
    """What a process has used: its largest resident memory in bytes, and seconds of CPU."""

    memory: int
    seconds: float


def is_ours(folder: Path) -> bool:
    """Whether a process, by its folder in `/proc`, descends from this one; others may run jobs, too."""
    while (parent := (folder / "stat").read_text().rpartition(")")[2].split()[1]) not in ("0", "1"):
        if parent == str(os.getpid()):
            return True
        folder = folder.parent / parent
    return False


@contextmanager
def watched(name: bytes = b"compute_part") -> Iterator[dict[int, Used]]:
    """Yields what each process that computes parts has used, by its id."""
    used: dict[int, Used] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if name in (folder / "cmdline").read_bytes() and is_ours(folder):
                        size = int((folder / "statm").read_text().split()[1]) * 4096
                        ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                        before = used.get(int(folder.name), Used(0, 0)).memory
                        used[int(folder.name)] = Used(max(before, size), sum(map(int, ticks)) / 100)
                except (OSError, IndexError):
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield used
    finally:
        ended.set()
        thread.join()


def timed(line: Sequence[str]) -> tuple[float, float]:
    """Runs a command; returns its seconds, and its seconds of CPU."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(line, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compare_rates(model: str, source: Path, rows: int, times: int, work: Path) -> Iterator[str]:
    """Times a single process and two nodes of one CPU each, in turn."""
    ratios, cpu_ratios = [], []
    for _ in range(times):
        alone, cpu = timed(command(model, source, work / "rate.npy", "--overwrite"))
        with two_nodes(1) as nodes, watched() as used:
            many, _ = timed(command(model, source, work / "rate", "--cluster", nodes.address, "--overwrite"))
        computing = sum(process.seconds for process in used.values())
        ratios.append(alone / many)
        cpu_ratios.append(cpu / computing)
        cpus = f"CPU seconds {cpu:.0f} and {computing:.0f}, ratio {cpu_ratios[-1]:.2f}"
        yield f"one process {rate(alone, rows)}; two nodes {rate(many, rows)}; ratio {ratios[-1]:.2f}; {cpus}"
    yield f"medians of the ratios {statistics.median(ratios):.2f}, of CPU seconds {statistics.median(cpu_ratios):.2f}"


def measure(arguments: argparse.Namespace, work: Path) -> Iterator[tuple[str, str]]:
    """Yields the rows of the table: what was measured, and the result."""
    with open(arguments.texts, encoding="utf-8") as file:
        texts = [line.rstrip("\n") for _, line in zip(range(arguments.rows), file, strict=False)]
    source, model, part_rows = write_texts(texts, work / "input"), arguments.model, arguments.part_rows
    if model == "tiny":
        model = str(work / "tiny")
        mlxbert.save(mlxbert.new_model(_SIZES, "builtin"), model)
    if "kill" in arguments.only:
        subprocess.run(command(model, source, work / "alone.npy"), check=True)
        alone, differences = np.load(work / "alone.npy"), []
        for _ in range(arguments.times):
            difference, described = killed(model, source, alone, part_rows, work)
            differences.append(difference)
            yield "one of two nodes killed", described
        yield "all kills", f"largest difference from one process {max(differences):.1e}"
    if "rate" in arguments.only:
        for line in compare_rates(model, source, len(texts), arguments.times, work):
            yield "rate", line
    if "memory" in arguments.only:
        for count in (len(texts) // 10, len(texts)):
            few = write_texts(texts[:count], work / f"memory-{count}")
            with two_nodes(1) as nodes, watched() as used:
                output = work / f"out-{count}"
                timed(command(model, few, output, "--cluster", nodes.address, "--part-rows", str(part_rows)))
            sizes = [f"{process.memory / 1e6:,.0f} MB" for process in sorted(used.values())[-2:]]
            yield "memory of the processes", f"{count:,} rows: {' and '.join(sizes)}"


def main() -> None:
    """Prints the rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", required=True, help="a file with a text per line")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--part-rows", type=int, default=1024)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--only", default="kill,rate,memory")
    arguments = parser.parse_args()
    drop_unusual_settings()
    with tempfile.TemporaryDirectory() as work:
        for name, result in measure(arguments, Path(work)):
            print(f"| {name} | {result} |", flush=True)


if __name__ == "__main__":
    main()
