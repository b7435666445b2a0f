"""`mlxbert.bench.measure`: how fast this machine runs or trains a model, alone or in turn with another library.

Every worker is a process of its own that is asked for one forward pass or step at a time, in turn, so that all of them
meet the same noise; medians are reported. `mlxbert.bench.worker` is such a process.
"""

import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlxbert.bench import worker
from mlxbert.bench.worker import OURS, PEER
from mlxbert.bounds import check_whole
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.folders.save import save
from mlxbert.labels.labels import Labels
from mlxbert.machine import device as devices
from mlxbert.model import load
from mlxbert.weights.source import ModelRef

PEERS = (PEER,)
SHAPES = ((32, 32), (16, 128), (8, 512))
_MIXED = "mixed"
_TEXTS, _BATCH = 256, 32  # of `mixed`, and in a step of training
_PAUSE = 0.05  # seconds before each pass, in which the threads of the one before stop waiting for work
_LABELS = Labels(("0", "1"), "single_label_classification")
_SENTENCE, _ARTICLE = (2.9, 0.5), (5.0, 0.6)  # mean and deviation of the logarithm of their lengths in tokens


def lengths(most: int) -> list[int]:
    """Lengths in tokens as texts have them, always the same: half are sentences, half articles."""
    rng = random.Random(0)
    drawn = [rng.lognormvariate(*(_SENTENCE if number % 2 else _ARTICLE)) for number in range(_TEXTS)]
    return [min(max(round(length), 4), most) for length in drawn]


def bench(
    model: str | Path = "builtin",
    *,
    against: str | None = None,
    train: bool = False,
    rounds: int = 5,
    revision: str | None = None,
    adapter: str | Path | None = None,
    offline: bool = False,
    dtype: str = "auto",
    device: str = "auto",
) -> dict[str, Any]:
    """Measures an encoder on this machine, or its training.

    Args:
        model: Hub name, folder or `builtin`.
        against: `torch`, which is measured in turn: transformers' model on torch, with the same dtype.
        train: Measure steps that train it with a new classifier: forward and backward pass with dropout, clipping and
            AdamW (torch's fused one), with float32 weights.
        rounds: How often everything is measured; medians are reported.
        revision: See `mlxbert.load`.
        adapter: See `mlxbert.load`.
        offline: See `mlxbert.load`.
        dtype: See `mlxbert.load`.
        device: See `mlxbert.load`.

    Returns:
        `machine`: what was measured on; `limit`: GFLOP/s of a product of square matrices in that dtype; `speeds`, a
        list of `shape`, and for mlxbert and the peer tokens per second, GFLOP/s, the share of the limit, and the ratio
        to the peer; `start`: seconds from the start of a process to its first result; `memory`: peak bytes; on a GPU
        `thresholds`, see `mlxbert.bench.thresholds`. With `train` on a CPU `speeds` also has, for each side, the
        `seconds` of a step, those of `network` (forward and backward passes) and of `update` (sums over the parts of
        the batch, norm, clipping, AdamW), the `cpu` seconds of all cores, and `busy`, the share of their time.

    Raises:
        ArgumentError: `against` or `rounds` is invalid.
        MlxbertError: The model cannot be loaded, or the peer is not installed or fails.
    """
    check_whole("rounds", rounds)
    if against is not None:
        _check_peer(against)
    ref = ModelRef(model, adapter, revision, offline, dtype, device)
    heads = {"sequence_classifier": _LABELS} if train else None
    loaded = load(replace(ref, dtype="float32"), new_heads=heads, quantized=False)
    # Both sides have the same: left to itself, another library might choose another one.
    device = "gpu" if devices.on_gpu() else "cpu"
    dtype = devices.dtype_name(devices.choose_dtype(ref.dtype, training=train))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(loaded, folder)  # a form that the peer reads, too
        with ExitStack() as stack:
            found = _measured(
                {
                    side: stack.enter_context(_Worker(folder, side, dtype, device, train))
                    for side in (OURS, *([against] if against else []))
                },
                rounds,
                train,
            )
    return {
        "model": str(model),
        "train": train,
        "layers": len(loaded.config.layer_schedule),
        "width": loaded.config.hidden_size,
        **found,
    }


def _check_peer(name: str) -> None:
    """Refuses a library that is not measured here."""
    if name not in PEERS:
        raise ArgumentError(f"against is {name!r:.60}, expected {' or '.join(PEERS)}")
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MlxbertError(
                f"against is 'torch', but {package} is not installed", hint="pip install torch transformers"
            )


def _measured(workers: dict[str, "_Worker"], rounds: int, train: bool = False) -> dict[str, Any]:
    ours = workers[OURS]
    shapes: dict[str, list[int]] = {f"{batch} x {length}": [length] * batch for batch, length in SHAPES}
    shapes |= {_MIXED: lengths(ours.facts["most"])[: _BATCH if train else _TEXTS]}
    usable = {name: shape for name, shape in shapes.items() if max(shape) <= ours.facts["most"]}
    speeds = [_speeds(name, shape, workers, rounds) for name, shape in usable.items()]
    return {
        "machine": ours.facts["machine"], "dtype": ours.facts["dtype"], "limit": round(ours.facts["limit"], 1),
        "shapes": [*shapes], "speeds": speeds, "start": {name: one.start for name, one in workers.items()},
        "memory": {name: one.ask([])["memory"] for name, one in workers.items()},
        **({"thresholds": ours.facts["thresholds"]} if ours.facts["thresholds"] else {}),
    }  # fmt: skip


def _speeds(name: str, shape: Sequence[int], workers: dict[str, "_Worker"], rounds: int) -> dict[str, Any]:
    """Tokens per second of all workers in turn, after a round that warms up."""
    answers: dict[str, list[dict[str, float]]] = {side: [] for side in workers}
    for number in range(rounds + 1):
        for side, process in workers.items():
            time.sleep(_PAUSE)
            spent = process.ask(shape)
            answers[side] += [spent] if number else []
    facts = workers[OURS].facts
    operations = sum(
        facts["per_token"] * length + facts["per_score"] * length * min(length, span or length)
        for length in shape
        for span in facts["spans"]
    )
    found: dict[str, Any] = {"shape": name, "tokens": sum(shape)}
    for side, given in answers.items():
        values = [one["seconds"] for one in given]
        median = statistics.median(values)
        gflops = operations / median / 1e9
        found[side] = {
            "tokens_per_second": round(sum(shape) / median),
            "slowest": round(sum(shape) / max(values)),
            "fastest": round(sum(shape) / min(values)),
            "gflops": round(gflops, 1),
            "share": round(gflops / facts["limit"], 3),
            **_where(given),
        }
    for side in answers.keys() - {OURS}:
        theirs, ours = (statistics.median(one["seconds"] for one in answers[name]) for name in (side, OURS))
        found["ratio"] = round(theirs / ours, 2)
    return found


def _where(answers: Sequence[dict[str, float]]) -> dict[str, float]:
    """Where the time of steps of training goes, see `mlxbert.bench.steps`; of other answers nothing."""
    names = ("seconds", "network", "update", "cpu", "busy") if "network" in answers[0] else ()
    return {name: round(statistics.median(one[name] for one in answers), 4) for name in names}


class _Worker:
    """A process that computes forward passes, or steps of training, on demand.

    Attributes:
        process: The process.
        start: Seconds until it had computed the first one.
        facts: What it said of itself.
    """

    def __init__(self, folder: Path, side: str, dtype: str, device: str, train: bool) -> None:
        begun = time.perf_counter()
        command = [sys.executable, "-m", worker.__name__, str(folder), side, dtype, device]
        command += ["train"] if train else []
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, text=True)
        self._side = side
        try:
            self._read()
            self.start = round(time.perf_counter() - begun, 3)
            self.facts = self._read()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with contextlib.suppress(OSError):  # a request that it did not live to read
            self.process.communicate()  # which closes its pipes
        self._said.close()

    def ask(self, shape: Sequence[int]) -> dict[str, Any]:
        """Has it compute inputs of these lengths."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: reading says why
            self.process.stdin.write(json.dumps([*shape]) + "\n")
            self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._said.seek(0)
            raise MlxbertError(f"{self._side} failed: {self._said.read().strip().rpartition(chr(10))[2]:.300}")
        found: dict[str, Any] = json.loads(line)
        return found
