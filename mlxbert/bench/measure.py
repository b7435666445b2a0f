"""`mlxbert.bench.measure`: how fast this machine runs and trains a model, alone or in turn with another library.

Every worker is a process of its own that is asked for forward passes or steps of training, in turn, so that all of them
meet the same noise; medians are reported. `mlxbert.bench.worker` is such a process.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlxbert.bench import worker
from mlxbert.bench.worker_job import OURS, PASSES, PEER, UPDATE, WorkerJob
from mlxbert.config import EncoderConfig
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.folders.save import save
from mlxbert.labels.labels import Labels
from mlxbert.loading import load
from mlxbert.machine import device as devices
from mlxbert.machine.device_errors import free_memory
from mlxbert.options import ROUNDS
from mlxbert.version import __version__
from mlxbert.weights.model_source import ModelRef

PEERS = (PEER,)
_LONGEST = 512  # tokens of a text
_PAUSE = 0.05  # seconds before each measurement, in which the threads of the one before stop waiting for work
_LEAST = 0.25  # seconds of a measurement: a GPU takes some to reach its clock rate, and a pass may take 2 ms
_LABELS = Labels(("0", "1"), "single_label_classification")
Shapes = dict[str, list[int]]  # by their names the lengths of texts in tokens


def bench(
    model: str | Path = "builtin",
    *,
    against: str | None = None,
    rounds: int = 5,
    revision: str | None = None,
    adapter: str | Path | None = None,
    offline: bool = False,
    dtype: str = "auto",
    device: str = "auto",
) -> dict[str, Any]:
    """Measures an encoder and its fine-tuning on this machine.

    Args:
        model: Hub name, folder or `builtin`.
        against: `torch`, which is measured in turn: transformers' model on torch, with the same dtype, on the GPU (MPS
            or CUDA) if mlxbert computes on one and on the CPU otherwise.
        rounds: How often everything is measured; medians are reported.
        revision: See `mlxbert.load`.
        adapter: See `mlxbert.load`.
        offline: See `mlxbert.load`.
        dtype: See `mlxbert.load`.
        device: See `mlxbert.load`.

    Returns:
        `model`, its `layers` and `width`, `mlxbert` (the version), `machine`, and `peer` (versions and device, `None`
        without one); then `encoding` and `training`.

        `encoding` are forward passes of one batch, from the ids of tokens to hidden states. `training` are updates with
        a new classifier of two classes: forward and backward pass with dropout, clipping and AdamW (torch's fused one),
        with float32 weights. Both have

        - `dtype`, and `limit_gflops`, the speed of a product of large square matrices in it;
        - `speeds`, by shape: `texts`, `tokens_per_text` (`None` for mixed lengths), `tokens`; for each library the
          median `seconds`, the `slowest_seconds` and the `fastest_seconds` of a batch, `texts_per_second` or
          `updates_per_second`, `tokens_per_second`, `gflops` and their `share` of the limit; `ratio`, how many times as
          fast as the peer mlxbert is;
        - `peak_memory_bytes` by library, and `peak_memory_of`, what is counted: the `process`, or on a GPU the
          `arrays`, with torch on MPS the `arrays and cache`.

        `encoding` also has `start_seconds`, from the start of a process to its first result; `training` has
        `first_update_seconds`, of the first step in a new process that has loaded the model and computed nothing with
        it, and `kernels_kept`, whether mlxbert's process found kernels on CUDA that an earlier one had compiled, `None`
        elsewhere. If training fails (it takes several times the memory), `training` has only a `problem`.
    """
    ROUNDS.check_whole("rounds", rounds)
    if against is not None:
        _check_peer(against)
    ref, sides = ModelRef(model, adapter, revision, offline, dtype, device), (OURS, *([against] if against else []))
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        # Training comes first: the files of all libraries are in the page cache when the start is measured.
        job, config = _prepared(ref, Path(place) / "trained", train=True)
        try:
            found["training"] = _training(job, sides, _shapes([UPDATE], config), rounds)
        except MlxbertError as problem:
            found["training"] = {"problem": problem.message}
        job, _ = _prepared(ref, Path(place) / "encoded", train=False)
        found["encoding"] = _encoding(job, sides, _shapes(PASSES, config), rounds)
    about = {"machine": None, "peer": None}
    for part in found.values():
        about |= {name: part.pop(name) for name in about if name in part}
    return {
        "model": str(model), "layers": len(config.layer_schedule), "width": config.hidden_size, "mlxbert": __version__,
        **about, "encoding": found["encoding"], "training": found["training"],
    }  # fmt: skip


def _check_peer(name: str) -> None:
    """Refuses a library that is not measured here."""
    if name not in PEERS:
        raise ArgumentError(f"against is {name!r:.60}, expected {' or '.join(PEERS)}")
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MlxbertError(
                f"against is 'torch', but {package} is not installed", hint="pip install torch transformers"
            )


def _prepared(ref: ModelRef, folder: Path, *, train: bool) -> tuple[WorkerJob, EncoderConfig]:
    """Saves the model in a form that the peer reads, too; mlxbert's job with it, and the facts of its encoder.

    Device, dtype and TF32 are the same for both sides: left to itself, another library might choose others.
    """
    heads = {"sequence_classifier": _LABELS} if train else None
    loaded = load(replace(ref, dtype="float32"), new_heads=heads, quantized=False)
    save(loaded, folder)
    free_memory()  # a worker may need what the cache of this process keeps
    dtype = devices.choose_dtype(ref.dtype, training=train, wide_range=loaded.config.wide_range)
    device = "gpu" if devices.on_gpu() else "cpu"
    return WorkerJob(str(folder), OURS, devices.dtype_name(dtype), device, train, devices.tf32()), loaded.config


def _shapes(shapes: Sequence[tuple[int, int]], config: EncoderConfig) -> Shapes:
    """The shapes that the model takes."""
    most = min(config.max_length, _LONGEST)
    return {f"{texts} x {tokens}": [tokens] * texts for texts, tokens in shapes if tokens <= most}


def _encoding(job: WorkerJob, sides: Sequence[str], shapes: Shapes, rounds: int) -> dict[str, Any]:
    """Forward passes of all sides, and how long their processes took to start."""
    with _workers(job, sides) as workers:
        return {
            **_measured(workers, shapes, rounds, "texts"),
            "start_seconds": {side: one.start for side, one in workers.items()},
        }


def _training(job: WorkerJob, sides: Sequence[str], shapes: Shapes, rounds: int) -> dict[str, Any]:
    """Updates of all sides, and how long the first one takes."""
    if not shapes:
        raise MlxbertError(f"the model takes fewer than {UPDATE[1]} tokens")
    with _workers(job, sides) as workers:
        first = next(iter(shapes.values()))
        seconds = {side: round(one.ask(first)["seconds"], 4) for side, one in workers.items()}
        found = {"first_update_seconds": seconds, "kernels_kept": workers[OURS].facts["kernels_kept"]}
        return {**found, **_measured(workers, shapes, rounds, "updates")}


def _measured(workers: "Workers", shapes: Shapes, rounds: int, what: str) -> dict[str, Any]:
    """Speeds in `what` per second (texts or updates), memory, and what the workers report."""
    facts = workers[OURS].facts
    speeds = [_speeds(name, shape, workers, rounds, what) for name, shape in shapes.items()]
    return {
        "machine": facts["machine"], "dtype": facts["dtype"], "limit_gflops": round(facts["limit"], 1),
        "peer": next((one.facts["peer"] for one in workers.values() if "peer" in one.facts), None),
        "speeds": speeds, "peak_memory_bytes": {side: one.peak for side, one in workers.items()},
        "peak_memory_of": {side: one.facts["memory_of"] for side, one in workers.items()},
    }  # fmt: skip


def _speeds(name: str, shape: Sequence[int], workers: "Workers", rounds: int, what: str) -> dict[str, Any]:
    """The speeds of all workers in turn, after a round that warms up."""
    answers: dict[str, list[dict[str, float]]] = {side: [] for side in workers}
    for number in range(rounds + 1):
        for side, process in workers.items():
            time.sleep(_PAUSE)
            spent = process.ask(shape, _LEAST)
            answers[side] += [spent] if number else []
    facts = workers[OURS].facts
    operations = sum(
        facts["per_token"] * length + facts["per_score"] * length * min(length, span or length)
        for length in shape
        for span in facts["spans"]
    )
    even = len({*shape}) == 1
    found: dict[str, Any] = {
        "shape": name, "texts": len(shape), "tokens_per_text": shape[0] if even else None, "tokens": sum(shape),
    }  # fmt: skip
    units = {what: len(shape) if what == "texts" else 1, "tokens": sum(shape)}
    for side, given in answers.items():
        seconds = statistics.median(one["seconds"] for one in given)
        gflops = operations / seconds / 1e9
        found[side] = {
            "seconds": round(seconds, 6),
            "slowest_seconds": round(max(one["seconds"] for one in given), 6),
            "fastest_seconds": round(min(one["seconds"] for one in given), 6),
            **{f"{unit}_per_second": round(count / seconds, 3) for unit, count in units.items()},
            "gflops": round(gflops, 1),
            "share": round(gflops / facts["limit"], 3),
        }
    for side in answers.keys() - {OURS}:
        theirs, ours = (statistics.median(one["seconds"] for one in answers[name]) for name in (side, OURS))
        found["ratio"] = round(theirs / ours, 2)
    return found


@contextlib.contextmanager
def _workers(job: WorkerJob, sides: Sequence[str]) -> Iterator["Workers"]:
    """A running worker for each side, with the same job."""
    with ExitStack() as stack:
        yield {side: stack.enter_context(_BenchWorker(replace(job, side=side))) for side in sides}


class _BenchWorker:
    """A process that computes forward passes, or steps of training, on demand.

    Attributes:
        process: The process.
        start: Seconds until it had computed the first pass; for training, until it had loaded the model.
        facts: What it reports of itself; in training empty before the first step.
        peak: The most memory that it has reported, in bytes.
    """

    def __init__(self, job: WorkerJob) -> None:
        begun = time.perf_counter()
        command = [sys.executable, "-m", worker.__name__, job.to_json()]
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, text=True)
        self._side, self.peak = job.side, 0
        try:
            self._read()
            self.start = round(time.perf_counter() - begun, 3)
            self.facts: dict[str, Any] = {} if job.train else self._read()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "_BenchWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with contextlib.suppress(OSError):  # a request that it did not live to read
            self.process.communicate()  # which closes its pipes
        self._said.close()

    def ask(self, lengths: Sequence[int], least: float = 0.0) -> dict[str, Any]:
        """The means of computations on texts of these lengths: one, or as many as take `least` seconds."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: reading says why
            self.process.stdin.write(json.dumps({"lengths": [*lengths], "least": least}) + "\n")
            self.process.stdin.flush()
        found = self._read()
        self.peak = found.pop("memory")
        self.facts = self.facts or self._read()
        return found

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._said.seek(0)
            raise MlxbertError(f"{self._side} failed: {self._said.read().strip().rpartition(chr(10))[2]:.300}")
        found: dict[str, Any] = json.loads(line)
        if "problem" in found:
            raise MlxbertError(found["problem"], hint=found["hint"])
        return found


Workers = dict[str, _BenchWorker]
