"""Compares embedding with sentence-transformers and mlx-embeddings: texts per second, batches, padding, peak memory.

`python benchmarks/embed.py MODEL TEXTS [--device gpu] [--dtype float16] [--rounds 3] [--few 200] [--single 0]
[--mlx-embeddings PYTHON]` needs sentence-transformers (requirements-parity.txt). MODEL is the folder of a
sentence-transformers model, TEXTS a .jsonl with the field text; PYTHON is the interpreter of an environment with
mlx-embeddings. Every contestant is a separate process that embeds all texts at once, in turn, so that all are exposed
to the same noise. Slow contestants (with the BLAS of MLX's wheel) get the first `--few` texts, as do all others in a
second table. Prints medians and ratios to sentence-transformers, and compares all vectors with those of
sentence-transformers. The first pass, in which a GPU compiles kernels for new batch shapes, has a separate column. With
`--single N`, N texts are also embedded one at a time, one right after the other and after pauses of 50 ms. While
a contestant runs, the others are stopped.
"""

import argparse
import atexit
import ctypes
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from in_turn import drop_unusual_settings, running
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Shapes = list[tuple[int, ...]]  # rows and length of each batch
Embed = Callable[[list[str]], tuple[Vectors, int, Shapes]]  # from texts to vectors, their tokens, and the batches
BATCH = 32  # sentence-transformers' default
LIMIT = 256  # tokens; the limit of all-MiniLM
REFERENCE = "sentence-transformers"
_PAUSE = 0.05  # seconds before a text, as between the queries of a user
_TOGETHER = 25  # texts that a contestant embeds one at a time before the next one's turn


def mlxbert(folder: str, dtype: str, device: str) -> Embed:
    """Embeds with this project."""
    import mlxbert
    from mlxbert.tasks import runner
    from mlxbert.text.batch import make_batch
    from mlxbert.text.usage import Usage

    model, shapes = mlxbert.load(folder, task="embed", dtype=dtype, device=device), Shapes()

    def counted(*inputs: Any) -> Any:
        batch = make_batch(*inputs)
        shapes.append(batch.input_ids.shape)
        return batch

    vars(runner)["make_batch"] = counted

    def embed(texts: list[str]) -> tuple[Vectors, int, Shapes]:
        shapes.clear()
        usage = Usage()
        return mlxbert.embed(model, texts, usage=usage), usage.tokens, [*shapes]

    return embed


def sentence_transformers(folder: str, dtype: str, device: str) -> Embed:
    """Embeds with the reference, on torch."""
    import torch
    from sentence_transformers import SentenceTransformer

    gpu = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = "cpu" if device == "cpu" else gpu
    name = "float32" if dtype == "auto" and device == "cpu" else "bfloat16" if dtype == "auto" else dtype
    model = SentenceTransformer(folder, device=device, model_kwargs={"dtype": getattr(torch, name)})
    tokens, shapes = list[Any](), Shapes()

    def count(module: Any, inputs: Any) -> None:
        mask = inputs[0]["attention_mask"]
        tokens.append(mask.sum())  # read after the run, so as not to wait for a GPU
        shapes.append(tuple(mask.shape))

    model[0].register_forward_pre_hook(count)

    def embed(texts: list[str]) -> tuple[Vectors, int, Shapes]:
        tokens.clear()
        shapes.clear()
        vectors = model.encode(texts, batch_size=BATCH, show_progress_bar=False)
        return vectors, int(sum(tokens)), [*shapes]

    return embed


def mlx_embeddings(folder: str, dtype: str, device: str) -> Embed:
    """Embeds with the other MLX library, in batches of the same size in the order of the texts, as for `generate`."""
    from mlx_embeddings import generate, load

    model, tokenizer = load(folder)

    def embed(texts: list[str]) -> tuple[Vectors, int, Shapes]:
        vectors, tokens, shapes = [], 0, Shapes()
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            vectors.append(np.array(generate(model, tokenizer, batch, max_length=LIMIT).text_embeds))
            lengths = [len(ids) for ids in tokenizer._tokenizer(batch, max_length=LIMIT, truncation=True)["input_ids"]]
            tokens += sum(lengths)
            shapes.append((len(lengths), max(lengths)))
        return np.concatenate(vectors), tokens, shapes

    return embed


# Name: the function, whether MLX has a fast BLAS, and whether the contestant is so slow that it gets few texts.
CONTESTANTS: dict[str, tuple[Callable[[str, str, str], Embed], bool, bool]] = {
    "mlxbert": (mlxbert, True, False),
    REFERENCE: (sentence_transformers, True, False),
    "mlxbert, wheel's BLAS": (mlxbert, False, True),
    "mlx-embeddings, fast BLAS": (mlx_embeddings, True, True),
    "mlx-embeddings": (mlx_embeddings, False, True),
}


def serve(name: str, args: argparse.Namespace) -> None:
    """Answers requests on stdin: the number of the first text, the number of texts, and the file for the vectors.

    Without a file, the texts are embedded one at a time; there is a pause in its place.
    """
    make, fast, _ = CONTESTANTS[name]
    if make is mlx_embeddings and fast:
        ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
    texts = read(args.texts)
    embed = make(args.model, args.dtype, args.device)
    embed(texts[:64])
    print("ready", flush=True)
    for line in sys.stdin:
        first, count, path = json.loads(line)
        if not isinstance(path, str):
            print(json.dumps(one_by_one(embed, texts[first : first + count], path)), flush=True)
            continue
        start = time.perf_counter()
        vectors, tokens, shapes = embed(texts[first : first + count])
        seconds = time.perf_counter() - start
        np.save(path, vectors)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        slots = sum(rows * length for rows, length in shapes)
        print(json.dumps([seconds, tokens, slots, peak, len(shapes), len(set(shapes))]), flush=True)


def one_by_one(embed: Embed, texts: list[str], pause: float) -> list[float]:
    """Returns the seconds of each text; the first one is embedded twice, to warm up."""
    seconds = []
    for text in (texts[0], *texts):
        time.sleep(pause)
        start = time.perf_counter()
        embed([text])
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def read(path: str) -> list[str]:
    """Reads the texts of a .jsonl."""
    return [json.loads(line)["text"] for line in Path(path).read_text(encoding="utf-8").split("\n") if line]


class Contestant:
    """A process that embeds on demand."""

    def __init__(self, name: str, args: argparse.Namespace, folder: Path) -> None:
        make, fast, self.slow = CONTESTANTS[name]
        python = args.mlx_embeddings if make is mlx_embeddings else sys.executable
        settings = "--dtype", args.dtype, "--device", args.device
        command = [python, __file__, args.model, args.texts, "--serve", name, *settings]
        variables = os.environ | ({} if fast else {"MLXBERT_BLAS": "off"})
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=variables
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.path = folder / f"{len(list(folder.iterdir()))}.npy"
        self.path.touch()
        while (line := self.process.stdout.readline()) != "ready\n":
            assert line, f"{name} did not start"
        self.process.send_signal(signal.SIGSTOP)

    def run(self, count: int) -> list[float]:
        """Embeds texts; returns seconds, tokens, slots, peak bytes, batches, and distinct shapes of batches."""
        return self._ask(0, count, str(self.path))

    def one_by_one(self, first: int, count: int, pause: float) -> list[float]:
        """Embeds texts one at a time; returns their seconds."""
        return self._ask(first, count, pause)

    def _ask(self, *question: object) -> list[float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        with running(self.process):
            print(json.dumps(question), file=self.process.stdin, flush=True)
            numbers: list[float] = json.loads(self.process.stdout.readline())
        return numbers


def compare(contestants: dict[str, Contestant], count: int, rounds: int) -> None:
    """Prints a row for each contestant."""
    runs: dict[str, list[list[float]]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, contestant in contestants.items():
            if number == 0 or not contestant.slow:
                runs[name].append(contestant.run(count))
    reference = np.load(contestants[REFERENCE].path).astype(np.float32)
    print(f"\n{count} texts{'texts/s':>27}{'min to max':>17}{'ratio':>7}{'tokens/s':>10}{'padding':>9}"
          f"{'batches':>9}{'shapes':>8}{'peak MB':>9}{'first pass':>12}{'cosine, lowest':>16}")  # fmt: skip
    base = statistics.median(row[0] for row in runs[REFERENCE])
    for name, rows in runs.items():
        seconds = sorted(row[0] for row in rows)
        median, (_, tokens, slots, peak, batches, shapes) = statistics.median(seconds), rows[-1]
        vectors = np.load(contestants[name].path).astype(np.float32)
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
        cosine = ((vectors * reference).sum(axis=1) / norms).min()
        spread = f"{count / seconds[-1]:.1f} to {count / seconds[0]:.1f}"
        print(f"{name:26}{count / median:9.1f}{spread:>17}{base / median:7.2f}{tokens / median:10.0f}"
              f"{1 - tokens / slots:9.1%}{batches:9.0f}{shapes:8.0f}{peak / 1e6:9.0f}{count / rows[0][0]:12.1f}"
              f"{cosine:16.6f}", flush=True)  # fmt: skip


def latency(contestants: dict[str, Contestant], count: int) -> None:
    """Prints the time of each contestant for a single text, over `count` texts."""
    for pause, how in ((0.0, "one right after the other"), (_PAUSE, f"after {_PAUSE * 1000:.0f} ms")):
        times_of: dict[str, list[float]] = {name: [] for name in contestants}
        for first in range(0, count, _TOGETHER):
            together = min(_TOGETHER, count - first)
            for name, contestant in contestants.items():
                times_of[name] += [1000 * each for each in contestant.one_by_one(first, together, pause)]
        print(f"\none text, {how}{'median ms':>13}{'95th percentile':>17}{'ratio':>7}")
        for name, times in times_of.items():
            median = statistics.median(times)
            ratio = statistics.median(times_of[REFERENCE]) / median
            print(f"{name:26}{median:9.2f}{np.percentile(times, 95):17.2f}{ratio:7.2f}", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--few", type=int, default=200, help="texts for slow contestants")
    parser.add_argument("--single", type=int, default=0, help="texts that are also embedded one at a time")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "float16", "bfloat16"))
    parser.add_argument(
        "--device", default="auto", choices=("auto", "gpu", "cpu"), help="has no effect on mlx-embeddings"
    )
    parser.add_argument("--mlx-embeddings", metavar="PYTHON", help="an interpreter with mlx-embeddings")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=list(CONTESTANTS),
        help="leave this contestant out; repeatable",
    )
    parser.add_argument("--serve", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args)
    drop_unusual_settings()
    names = [name for name in CONTESTANTS if name not in args.without]
    names = [name for name in names if args.mlx_embeddings or CONTESTANTS[name][0] is not mlx_embeddings]
    with tempfile.TemporaryDirectory() as folder:
        contestants = {name: Contestant(name, args, Path(folder)) for name in names}
        for contestant in contestants.values():  # a stopped process does not end by itself
            atexit.register(contestant.process.kill)
        fast = {name: contestant for name, contestant in contestants.items() if not contestant.slow}
        compare(fast, len(read(args.texts)), args.rounds)
        if len(fast) < len(contestants):
            compare(contestants, args.few, args.rounds)
        if args.single:
            latency(fast, args.single)
    return None


if __name__ == "__main__":
    main()
