"""`mlxbert.doctor`: measures how fast mlxbert runs and trains a model on this machine, optionally next to torch.

Each library has a worker process, `mlxbert.doctor.worker`, which computes forward passes or steps of training on
request. The workers take turns, so that other load on the machine affects them equally. Medians are reported.
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

from mlxbert.config import EncoderConfig
from mlxbert.doctor import mac_state, worker
from mlxbert.doctor.worker_job import OURS, PASSES, PEER, UPDATE, WorkerJob
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.folders.save import save
from mlxbert.labels.labels import Labels
from mlxbert.loading import load
from mlxbert.machine import device as devices
from mlxbert.machine.device_errors import free_memory
from mlxbert.option_declarations import ROUNDS
from mlxbert.other_libraries import pip_install
from mlxbert.version import __version__
from mlxbert.weights.model_source import ModelRef

PEERS = (PEER,)
_LONGEST = 512  # tokens of a text
_TEXTS = {"cpu": 100, "gpu": 1000}  # of different lengths; a CPU would take a minute for a thousand
_PAUSE = 0.05  # seconds before each measurement, until the threads of the previous one stop waiting for work
_MIN_SECONDS = 0.25  # of a measurement: a GPU needs time to reach its clock rate, and a pass may take only 2 ms
_LABELS = Labels(("0", "1"), "single_label_classification")
Shapes = dict[str, list[int]]  # name → lengths of the texts in tokens


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
    """Measures the speed of an encoder and of its fine-tuning on this machine.

    Args:
        model: The model to measure: hub name, folder or `builtin`.
        against: `torch` to compare with the same model in transformers on torch. Both use the same dtype, and
            torch computes on the GPU (MPS or CUDA) if mlxbert does, otherwise on the CPU.
        rounds: The number of times that everything is measured; medians are reported.

    Returns:
        A dict with `model`, its `layers` and `width`, `mlxbert` (the version), `machine`, `peer` (the versions and the
        device of the other library, or `None`), and `power` (at the `start` and at the `end`, on a Mac its
        `power_source`, `energy_mode` and `thermal_pressure`); and with the measurements `encoding` and `training`.

        `encoding` measures forward passes of one batch, from token ids to hidden states. `training` measures updates
        of a new classifier with two classes and float32 weights: forward and backward pass with dropout, clipping, and
        AdamW (fused in torch). Both have

        - `dtype`, and `limit_gflops`, the speed of multiplying large square matrices in this dtype;
        - `speeds`, by shape: `texts`, `tokens_per_text` (`None` for mixed lengths), `tokens`; for each library the
          median `seconds`, the `slowest_seconds` and the `fastest_seconds` of a batch, `texts_per_second` or
          `updates_per_second`, `tokens_per_second`, `gflops` and their `share` of the limit; `ratio`, how many times
          faster mlxbert is than the other library;
        - `peak_memory_bytes` by library, and `peak_memory_of`, the kind of memory that was measured: `process` on a
          CPU, `arrays` on a GPU, or `arrays and cache` for torch on MPS;
        - `process_memory_bytes` by library, the memory of the process after that: `resident`, and on a Mac `footprint`,
          which includes the memory of the GPU.

        `encoding` also has `start_seconds`, the time from the start of a process to its first result, and
        `many_lengths`: `process_memory_bytes` after 1,000 more `texts` (100 on a CPU), one at a time, of as many
        `lengths` as the model takes up to 512 tokens. `training` also
        has `first_update_seconds`, the time of the first step in a new process that has only loaded the model, and
        `kernels_kept`, whether mlxbert's process found CUDA kernels that an earlier process had compiled (`None`
        without CUDA). If training fails, for instance because it needs several times the memory, `training` has only a
        `problem`.
    """
    rounds = ROUNDS.check_whole("rounds", rounds)
    if against is not None:
        _check_peer(against)
    ref, sides = ModelRef(model, adapter, revision, offline, dtype, device), (OURS, *([against] if against else []))
    parts: dict[str, dict[str, Any]] = {}
    power = {"start": mac_state.power_state()}
    with tempfile.TemporaryDirectory() as folder:
        # Training comes first, so that the files of all libraries are in the page cache when the start is measured.
        try:
            job, config = _prepare(ref, Path(folder) / "trained", train=True)
            parts["training"] = _training(job, sides, _shapes([UPDATE], config), rounds)
        except MlxbertError as problem:
            parts["training"] = {"problem": problem.message}
        job, config = _prepare(ref, Path(folder) / "encoded", train=False)
        parts["encoding"] = _encoding(job, sides, _shapes(PASSES, config), rounds, min(config.max_length, _LONGEST))
    about = {"machine": None, "peer": None}
    for part in parts.values():
        about |= {name: part.pop(name) for name in about if name in part}
    return {
        "model": str(model), "layers": len(config.layer_schedule), "width": config.hidden_size, "mlxbert": __version__,
        **about, "power": {**power, "end": mac_state.power_state()}, "encoding": parts["encoding"],
        "training": parts["training"],
    }  # fmt: skip


def _check_peer(name: str) -> None:
    if name not in PEERS:
        raise ArgumentError(f"`against` is {name!r:.60}, expected {' or '.join(PEERS)}")
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MlxbertError(
                f"`against` is 'torch', but {package} is not installed", hint=pip_install("torch transformers")
            )


def _prepare(ref: ModelRef, folder: Path, *, train: bool) -> tuple[WorkerJob, EncoderConfig]:
    """Saves the model in a form that both libraries can read; returns mlxbert's job and the encoder's configuration.

    The job sets device, dtype and TF32 for both libraries, because their defaults differ.
    """
    heads = {"sequence_classifier": _LABELS} if train else None
    loaded = load(replace(ref, dtype="float32"), new_heads=heads, quantized=False)
    if loaded.config.is_static:
        raise ArgumentError(f"{ref.source} is a static model, which has no layers to measure")
    save(loaded, folder)
    free_memory()  # a worker may need the memory that this process has cached
    dtype = devices.choose_dtype(ref.dtype, training=train, wide_range=loaded.config.wide_range)
    device = "gpu" if devices.on_gpu() else "cpu"
    return WorkerJob(str(folder), OURS, devices.dtype_name(dtype), device, train, devices.tf32()), loaded.config


def _shapes(shapes: Sequence[tuple[int, int]], config: EncoderConfig) -> Shapes:
    """Returns the shapes of batches that the model's length limit allows.

    Maps the name of each shape to the lengths of its texts in tokens.
    """
    limit = min(config.max_length, _LONGEST)
    return {f"{texts} x {tokens}": [tokens] * texts for texts, tokens in shapes if tokens <= limit}


def _encoding(job: WorkerJob, sides: Sequence[str], shapes: Shapes, rounds: int, longest: int) -> dict[str, Any]:
    """Measures the forward passes of each library, how long their processes take to start, and what they keep."""
    with _workers(job, sides) as workers:
        return {
            **_measure(workers, shapes, rounds, "texts"),
            "start_seconds": {side: process.start for side, process in workers.items()},
            "many_lengths": _many_lengths(workers, _TEXTS[job.device], longest),
        }


def _many_lengths(workers: "Workers", texts: int, longest: int) -> dict[str, Any]:
    """Measures the memory after single texts of many lengths: a library may keep memory for each length."""
    lengths = [1 + number * longest // texts for number in range(texts)]
    for length in lengths:
        for process in workers.values():
            process.ask([length])
    memory = {side: process.memory for side, process in workers.items()}
    return {"texts": texts, "lengths": len({*lengths}), "process_memory_bytes": memory}


def _training(job: WorkerJob, sides: Sequence[str], shapes: Shapes, rounds: int) -> dict[str, Any]:
    """Measures the updates of each library, and how long the first update takes."""
    if not shapes:
        raise MlxbertError(f"the benchmark needs inputs of {UPDATE[1]} tokens, but the model takes only shorter inputs")
    with _workers(job, sides) as workers:
        first = next(iter(shapes.values()))
        seconds = {side: round(process.ask(first)["seconds"], 4) for side, process in workers.items()}
        start = {"first_update_seconds": seconds, "kernels_kept": workers[OURS].facts["kernels_kept"]}
        return {**start, **_measure(workers, shapes, rounds, "updates")}


def _measure(workers: "Workers", shapes: Shapes, rounds: int, what: str) -> dict[str, Any]:
    """Measures how many texts or updates the workers compute per second.

    `what` is `texts` or `updates`. The result also has the peak memory and the facts that the workers reported.
    """
    facts = workers[OURS].facts
    speeds = [_speeds(name, shape, workers, rounds, what) for name, shape in shapes.items()]
    return {
        "machine": facts["machine"], "dtype": facts["dtype"], "limit_gflops": round(facts["limit"], 1),
        "peer": next((process.facts["peer"] for process in workers.values() if "peer" in process.facts), None),
        "speeds": speeds, "peak_memory_bytes": {side: process.peak for side, process in workers.items()},
        "peak_memory_of": {side: process.facts["memory_of"] for side, process in workers.items()},
        "process_memory_bytes": {side: process.memory for side, process in workers.items()},
    }  # fmt: skip


def _speeds(name: str, shape: Sequence[int], workers: "Workers", rounds: int, what: str) -> dict[str, Any]:
    """Measures the speed of each worker for a shape; the workers take turns, after a warm-up round."""
    answers: dict[str, list[dict[str, float]]] = {side: [] for side in workers}
    for number in range(rounds + 1):
        for side, process in workers.items():
            time.sleep(_PAUSE)
            spent = process.ask(shape, _MIN_SECONDS)
            answers[side] += [spent] if number else []
    facts = workers[OURS].facts
    operations = sum(
        facts["per_token"] * length + facts["per_score"] * length * min(length, span or length)
        for length in shape
        for span in facts["spans"]
    )
    even = len({*shape}) == 1
    speeds: dict[str, Any] = {
        "shape": name, "texts": len(shape), "tokens_per_text": shape[0] if even else None, "tokens": sum(shape),
    }  # fmt: skip
    units = {what: len(shape) if what == "texts" else 1, "tokens": sum(shape)}
    times = {side: [answer["seconds"] for answer in answers[side]] for side in answers}
    for side, durations in times.items():
        seconds = statistics.median(durations)
        gflops = operations / seconds / 1e9
        speeds[side] = {
            "seconds": round(seconds, 6),
            "slowest_seconds": round(max(durations), 6),
            "fastest_seconds": round(min(durations), 6),
            **{f"{unit}_per_second": round(count / seconds, 3) for unit, count in units.items()},
            "gflops": round(gflops, 1),
            "share": round(gflops / facts["limit"], 3),
        }
    for side in answers.keys() - {OURS}:
        theirs, ours = (statistics.median(times[name]) for name in (side, OURS))
        speeds["ratio"] = round(theirs / ours, 2)
    return speeds


@contextlib.contextmanager
def _workers(job: WorkerJob, sides: Sequence[str]) -> Iterator["Workers"]:
    with ExitStack() as stack:
        yield {side: stack.enter_context(_BenchWorker(replace(job, side=side))) for side in sides}


class _BenchWorker:
    """A process that computes forward passes or steps of training on request."""

    def __init__(self, job: WorkerJob) -> None:
        started = time.perf_counter()
        command = [sys.executable, "-m", worker.__name__, job.to_json()]
        pipe, self._stderr = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._stderr, text=True)
        self._side = job.side
        self.peak, self.memory = 0, dict[str, int]()  # as last reported: peak in bytes, see `worker.process_memory`
        try:
            self._read()
            self.start = round(time.perf_counter() - started, 3)  # until the first pass or, for training, the model
            self.facts: dict[str, Any] = {} if job.train else self._read()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "_BenchWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with contextlib.suppress(OSError):  # the process never read a request
            self.process.communicate()  # closes the pipes
        self._stderr.close()

    def ask(self, lengths: Sequence[int], least: float = 0.0) -> dict[str, Any]:
        """Asks the process to compute on texts of these lengths, repeatedly for at least `least` seconds.

        Returns the times of a single computation by name, averaged over the repetitions.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended; `_read` raises the reason
            self.process.stdin.write(json.dumps({"lengths": [*lengths], "least": least}) + "\n")
            self.process.stdin.flush()
        answer = self._read()
        self.peak, self.memory = answer.pop("memory"), answer.pop("process_memory")
        self.facts = self.facts or self._read()
        return answer

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._stderr.seek(0)
            reason = self._stderr.read().strip().rpartition(chr(10))[2]
            raise MlxbertError(f"the benchmark process of {self._side} failed ({reason:.300})")
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            raise MlxbertError(answer["problem"], hint=answer["hint"])
        return answer


Workers = dict[str, _BenchWorker]
