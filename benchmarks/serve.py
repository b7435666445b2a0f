"""Compares the server under load with other embedding servers: requests per second and latencies.

Run: python benchmarks/serve.py MODEL [--rounds 3] [--seconds 5] [--fastapi PYTHON] [--infinity PROGRAM] [--threads 2]
[--device cpu] [--dtype float32]

Each server is a separate process that answers `POST /v1/embeddings`: `mlxbert serve`; with --fastapi, an interpreter
with fastapi, uvicorn and sentence-transformers, a typical handwritten wrapper (below, in this file); with --infinity,
the program `infinity_emb` of infinity-emb. While one server is measured, the others are stopped. Every round runs every
load on every server, and every other round in reverse order. A load consists of clients that wait for an answer before
they send the next request, over persistent connections: 1, 8, 64 and 256 clients with one short text each, 8 clients
with lists of 32 short texts, and 64 clients of which every eighth sends about 240 tokens. No text is sent twice. The
clients run in a separate asyncio process with plain sockets, on the same cores.

Then the forward pass of one text at a time, and `mlxbert.embed` of the texts of 64 clients, are measured in a separate
process each. Prints lines of JSON: medians over the rounds.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from in_turn import drop_unusual_settings, running

SENTENCE = "how do i get my money back for an order that never came or was broken when it arrived at home today"
SECONDS_TO_START = 120
MODEL = "benchmark"


@dataclass(frozen=True)
class Load:
    """Clients and their requests.

    Attributes:
        name: The name in the output.
        clients: The number of clients.
        texts: The number of texts in a request.
        long: Every client with a multiple of this number sends a text of about 240 tokens; 0 for none.
    """

    name: str
    clients: int
    texts: int = 1
    long: int = 0


LOADS = (
    *(Load(f"{clients} clients", clients) for clients in (1, 8, 64, 256)),
    Load("8 clients, lists of 32", 8, texts=32),
    Load("64 clients, every eighth with 240 tokens", 64, long=8),
)
FASTAPI = """
import os, sys
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
import uvicorn

torch.set_num_threads(int(sys.argv[3]))
torch.backends.cuda.matmul.allow_tf32 = False
model = SentenceTransformer(sys.argv[1], device=sys.argv[4], model_kwargs={"torch_dtype": getattr(torch, sys.argv[5])})
app = FastAPI()

class Body(BaseModel):
    input: list[str]
    model: str

@app.post("/v1/embeddings")
def embeddings(body: Body):
    vectors = model.encode(body.input, show_progress_bar=False)
    data = [{"object": "embedding", "index": number, "embedding": row.tolist()} for number, row in enumerate(vectors)]
    return {"object": "list", "data": data, "model": body.model}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


class Server:
    """A server in a separate process, stopped while it is not measured."""

    def __init__(self, name: str, command: Callable[[int], list[str]]) -> None:
        self.name = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(command(self.port), stdout=subprocess.DEVNULL)
        self._wait()
        self.process.send_signal(signal.SIGSTOP)

    def _wait(self) -> None:
        body = json.dumps({"model": MODEL, "input": ["ready?"]}).encode()
        until = time.monotonic() + SECONDS_TO_START
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/v1/embeddings", body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                return
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{self.name} does not start") from None
                time.sleep(0.2)

    def memory(self) -> float:
        """The peak memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def texts(load: Load, seed: int) -> Iterator[list[str]]:
    """Yields the texts of one request after another."""
    draws, words = random.Random(seed), SENTENCE.split()
    for number in itertools.count():
        length = 230 if load.long and number % load.long == 0 else draws.randrange(6, 18)
        yield [" ".join([*draws.choices(words, k=length), str(draws.randrange(10**6))]) for _ in range(load.texts)]


def measure(port: int, load: Load, seconds: float, seed: int) -> dict[str, float]:
    """Runs a load for some seconds, after a second that is not counted."""
    return asyncio.run(_measure(port, load, seconds, seed))


async def _measure(port: int, load: Load, seconds: float, seed: int) -> dict[str, float]:
    sent, latencies, failed = texts(load, seed), list[float](), 0
    begun = time.perf_counter() + 1

    async def client() -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        while (start := time.perf_counter()) < begun + seconds:
            body = json.dumps({"model": MODEL, "input": next(sent)}).encode()
            head = f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            if b" 200 " not in answer.split(b"\r\n")[0]:
                failed += 1
            elif start > begun:
                latencies.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(client() for _ in range(load.clients)))
    latencies.sort()
    quantile = {
        name: 1e3 * latencies[min(int(len(latencies) * share), len(latencies) - 1)] for name, share in QUANTILES
    }
    return {"requests_per_s": len(latencies) / (time.perf_counter() - begun), "failed": failed, **quantile}


QUANTILES = (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99))


def forward(model: str, device: str, dtype: str, seconds: float) -> dict[str, float]:
    """Measures the forward pass of one text at a time."""
    import mlxbert
    from mlxbert.tasks.embed import EmbedTask
    from mlxbert.tasks.options import EmbedOptions

    task = EmbedTask(mlxbert.load(model, task="embed", device=device, dtype=dtype), EmbedOptions())
    seconds_of_each = list[float]()
    until = time.perf_counter() + seconds
    for (text,) in texts(LOADS[0], 0):
        job = task.prepare(text)
        start = time.perf_counter()
        task.compute([job])
        seconds_of_each.append(time.perf_counter() - start)
        if time.perf_counter() > until:
            return {"p50_ms": 1e3 * statistics.median(seconds_of_each)}
    raise AssertionError


def embed(model: str, device: str, dtype: str, seconds: float) -> dict[str, float]:
    """Measures `mlxbert.embed` of short texts."""
    import mlxbert

    loaded = mlxbert.load(model, task="embed", device=device, dtype=dtype)
    many = [text for (text,) in itertools.islice(texts(LOADS[2], 0), 2048)]
    mlxbert.embed(loaded, many[:64])
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        mlxbert.embed(loaded, many)
        count += len(many)
    return {"requests_per_s": count / (time.perf_counter() - begun)}


def alone(function: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """Calls a function in a new process."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    """Starts the servers, measures them in turn, and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--fastapi", metavar="PYTHON")
    parser.add_argument("--infinity", metavar="PROGRAM")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    drop_unusual_settings()
    threads = str(args.threads)
    os.environ.update(OMP_NUM_THREADS=threads, OPENBLAS_NUM_THREADS=threads)
    computed = (args.device, args.dtype)
    ours = [sys.executable, "-m", "mlxbert", "serve", f"{MODEL}={args.model}", "--quiet"]
    ours += ["--device", args.device, "--dtype", args.dtype, "--port"]
    theirs = [{"cpu": "cpu", "gpu": "cuda"}[args.device], args.dtype]
    servers = [Server("mlxbert", lambda port: [*ours, str(port)])]
    if args.fastapi:
        servers.append(
            Server("fastapi", lambda port: [args.fastapi, "-c", FASTAPI, args.model, str(port), threads, *theirs])
        )
    if args.infinity:
        command = [args.infinity, "v2", "--model-id", args.model, "--served-model-name", MODEL, "--url-prefix", "/v1"]
        plain = ["--engine", "torch", "--device", theirs[0], "--dtype", args.dtype]
        plain += ["--no-bettertransformer", "--no-model-warmup", "--log-level", "error", "--port"]
        servers.append(Server("infinity", lambda port: [*command, *plain, str(port)]))
    measured: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(args.rounds):
        for load in LOADS:
            for server in servers[:: -1 if number % 2 else 1]:
                with running(server.process):
                    result = alone(measure, server.port, load, args.seconds, number)
                measured.setdefault((server.name, load.name), []).append(result)
        measured.setdefault(("forward pass alone", "1 text"), []).append(
            alone(forward, args.model, *computed, args.seconds)
        )
        measured.setdefault(("mlxbert.embed", "2,048 texts"), []).append(
            alone(embed, args.model, *computed, args.seconds)
        )
    for (who, what), results in measured.items():
        medians = {name: round(statistics.median(result[name] for result in results), 2) for name in results[0]}
        print(json.dumps({"who": who, "load": what, **medians}), flush=True)
    for server in servers:
        print(json.dumps({"who": server.name, "peak_megabytes": round(server.memory(), 1)}), flush=True)
        server.process.kill()
        server.process.wait()


if __name__ == "__main__":
    main()
