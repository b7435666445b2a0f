"""`mlxbert.bench`: how fast this machine runs an encoder, alone or in turn with another library.

Every contestant is a process of its own that is asked for one forward pass at a time, in turn, so that all of them meet
the same noise; medians are reported. `python -m mlxbert.bench FOLDER SIDE DTYPE DEVICE` is such a process.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlxbert import device as devices
from mlxbert.errors import ArgumentError, MlxbertError, check_whole
from mlxbert.folders.save import save
from mlxbert.model import load

PEERS = ("torch",)
SHAPES = ((32, 32), (16, 128), (8, 512))
_OURS = "mlxbert"
_MIXED = "mixed"
_TEXTS = 256  # of `mixed`
_SENTENCE, _ARTICLE = (2.9, 0.5), (5.0, 0.6)  # mean and deviation of the logarithm of their lengths in tokens
_PEER_BATCH = 32  # the default of sentence-transformers
_LIMIT_SIZE = {"cpu": 1024, "gpu": 8192}  # of the square matrices whose product is the limit
Work = Callable[[Sequence[int]], float]


def lengths(most: int) -> list[int]:
    """Lengths in tokens as texts have them, always the same: half are sentences, half articles."""
    rng = random.Random(0)
    drawn = [rng.lognormvariate(*(_SENTENCE if number % 2 else _ARTICLE)) for number in range(_TEXTS)]
    return [min(max(round(length), 4), most) for length in drawn]


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
    """Measures an encoder on this machine.

    Args:
        model: Hub name, folder or `builtin`.
        against: `torch`, which is measured in turn: transformers' model on torch, with the same dtype.
        rounds: How often everything is measured; medians are reported.
        revision: See `mlxbert.load`.
        adapter: See `mlxbert.load`.
        offline: See `mlxbert.load`.
        dtype: See `mlxbert.load`.
        device: See `mlxbert.load`.

    Returns:
        `machine`: what was measured on; `limit`: GFLOP/s of a product of square matrices in that dtype; `speeds`, a
        list of `shape`, and for each contestant tokens per second, GFLOP/s, the share of the limit, and the ratio to
        the peer; `start`: seconds from the start of a process to its first result; `memory`: peak bytes.

    Raises:
        ArgumentError: `against` or `rounds` is invalid.
        MlxbertError: The model cannot be loaded, or the peer is not installed or fails.
    """
    check_whole("rounds", rounds, 1)
    if against is not None and against not in PEERS:
        raise ArgumentError(f"against is {against!r:.60}, expected {' or '.join(PEERS)}")
    for package in ("torch", "transformers") if against else ():
        if find_spec(package) is None:
            raise MlxbertError(
                f"against is 'torch', but {package} is not installed", hint="pip install torch transformers"
            )
    loaded = load(
        model, adapter=adapter, revision=revision, offline=offline, dtype="float32", device=device, quantized=False
    )
    # Both sides have the same: left to itself, another library might choose another one.
    device, dtype = "gpu" if devices.on_gpu() else "cpu", devices.dtype_name(devices.choose_dtype(dtype))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(loaded, folder)  # a form that the peer reads, too
        with ExitStack() as stack:
            found = _measured(
                {
                    side: stack.enter_context(_Contestant(folder, side, dtype, device))
                    for side in (_OURS, *([against] if against else []))
                },
                rounds,
            )
    return {
        "model": str(model),
        "layers": len(loaded.config.layer_schedule),
        "width": loaded.config.hidden_size,
        **found,
    }


def _measured(contestants: dict[str, "_Contestant"], rounds: int) -> dict[str, Any]:
    ours = contestants[_OURS]
    shapes: dict[str, list[int]] = {f"{batch} x {length}": [length] * batch for batch, length in SHAPES}
    shapes |= {_MIXED: lengths(ours.facts["most"])}
    usable = {name: shape for name, shape in shapes.items() if max(shape) <= ours.facts["most"]}
    speeds = [_speeds(name, shape, contestants, rounds) for name, shape in usable.items()]
    return {
        "machine": ours.facts["machine"], "dtype": ours.facts["dtype"], "limit": round(ours.facts["limit"], 1),
        "shapes": [*shapes], "speeds": speeds, "start": {name: one.start for name, one in contestants.items()},
        "memory": {name: one.ask([])["memory"] for name, one in contestants.items()},
    }  # fmt: skip


def _speeds(name: str, shape: Sequence[int], contestants: dict[str, "_Contestant"], rounds: int) -> dict[str, Any]:
    """Tokens per second of all contestants in turn, after a round that warms up."""
    seconds: dict[str, list[float]] = {side: [] for side in contestants}
    for number in range(rounds + 1):
        for side, contestant in contestants.items():
            spent = contestant.ask(shape)["seconds"]
            seconds[side] += [spent] if number else []
    facts = contestants[_OURS].facts
    operations = sum(
        facts["per_token"] * length + facts["per_score"] * length * min(length, span or length)
        for length in shape
        for span in facts["spans"]
    )
    found: dict[str, Any] = {"shape": name, "tokens": sum(shape)}
    for side, values in seconds.items():
        median = statistics.median(values)
        gflops = operations / median / 1e9
        found[side] = {
            "tokens_per_second": round(sum(shape) / median),
            "slowest": round(sum(shape) / max(values)),
            "fastest": round(sum(shape) / min(values)),
            "gflops": round(gflops, 1),
            "share": round(gflops / facts["limit"], 3),
        }
    for side in seconds.keys() - {_OURS}:
        found["ratio"] = round(statistics.median(seconds[side]) / statistics.median(seconds[_OURS]), 2)
    return found


class _Contestant:
    """A process that computes forward passes on demand.

    Attributes:
        process: The process.
        start: Seconds until it had computed the first pass.
        facts: What it said of itself.
    """

    def __init__(self, folder: Path, side: str, dtype: str, device: str) -> None:
        begun = time.perf_counter()
        command = [sys.executable, "-m", __spec__.name, str(folder), side, dtype, device]
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, text=True)
        self._side = side
        try:
            self._read()
            self.start = round(time.perf_counter() - begun, 3)
            self.facts = self._read()
        except MlxbertError:
            self.__exit__()
            raise

    def __enter__(self) -> "_Contestant":
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


def _serve(folder: str, side: str, dtype: str, device: str) -> None:
    """Answers on stdout: that it has started, what it is, and then each line of stdin, the lengths of inputs."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else a library prints

    def answer(found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    compute, facts, memory = (_ours if side == _OURS else _torch)(Path(folder), dtype, device)
    compute([8])
    answer({})
    answer(facts())
    for line in sys.stdin:
        shape = json.loads(line)
        answer({"seconds": compute(shape) if shape else None, "memory": memory()})


def _ours(folder: Path, dtype: str, device: str) -> tuple[Work, Callable[[], Any], Callable[[], int]]:
    from mlxbert.config import Rotary
    from mlxbert.cores import inference
    from mlxbert.device import mx
    from mlxbert.nn.encoder import Batch
    from mlxbert.tasks.runner import run_batches
    from mlxbert.text.encoding import Encoding

    model = load(folder, dtype=dtype, device=device)
    none: list[int | None] = []

    def compute(shape: Sequence[int]) -> float:
        rng = random.Random(1)
        inputs = []
        for length in shape:
            ids = [rng.randrange(model.config.vocab_size) for _ in range(length)]
            inputs.append(Encoding(ids, [0] * length, [(0, 0)] * length, none, none, [*range(length)], False))
        begun = time.perf_counter()
        even = len({*shape}) == 1  # one batch
        budget = sum(shape) if even else None

        def forward(batch: Batch, group: list[int]) -> list[int]:
            with inference():
                mx.eval(model.network(batch.input_ids, batch.attention_mask).last_hidden_state)
            return group

        for _ in run_batches(inputs, forward, model.config, budget):
            pass
        return time.perf_counter() - begun

    def facts() -> dict[str, Any]:
        config, encoder = model.config, model.network.encoder
        matrices = sum(array.size for array in _matrices(encoder)) / config.num_stored_layers
        rotations = config.positions.rotations if isinstance(config.positions, Rotary) else ()
        windows = [rotations[stored].window if rotations else None for stored in config.layer_schedule]
        machine = {key: value for key, value in devices.describe().items() if key not in ("blas_hint", "gpu_found")}
        chosen = devices.choose_dtype(dtype)
        return {
            "most": min(config.max_length, 512), "per_token": 2 * matrices, "per_score": 4 * config.hidden_size,
            "spans": [window and 2 * window + 1 for window in windows], "dtype": devices.dtype_name(chosen),
            "limit": devices.measure_gflops(_LIMIT_SIZE[str(machine["device"])], dtype=chosen),
            "machine": {**machine, "mlx": version("mlx")},
        }  # fmt: skip

    return compute, facts, lambda: mx.get_peak_memory() if devices.on_gpu() else _peak()


def _matrices(encoder: Any) -> list[Any]:
    from mlxbert.device import nn

    return [
        module.weight for name, module in encoder.named_modules()
        if name.startswith("layers.") and isinstance(module, nn.Linear)
    ]  # fmt: skip


def _torch(folder: Path, dtype: str, device: str) -> tuple[Work, Callable[[], Any], Callable[[], int]]:
    """Transformers' model, in batches of so many texts of similar length, as sentence-transformers makes them."""
    import torch
    from transformers import AutoModel

    name = "cpu" if device == "cpu" else _torch_gpu(torch)
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).to(name).eval()

    def compute(shape: Sequence[int]) -> float:
        ordered = sorted(shape)
        begun = time.perf_counter()
        with torch.inference_mode():
            for first in range(0, len(ordered), _PEER_BATCH):
                part = ordered[first : first + _PEER_BATCH]
                ids = torch.randint(0, model.config.vocab_size, (len(part), part[-1]), device=name)
                mask = torch.arange(part[-1], device=name) < torch.tensor(part, device=name)[:, None]
                given = {} if part[0] == part[-1] else {"attention_mask": mask.long()}
                model(ids, **given).last_hidden_state.sum().item()
        return time.perf_counter() - begun

    allocated = {"cuda": torch.cuda.max_memory_allocated, "mps": torch.mps.driver_allocated_memory, "cpu": _peak}
    return compute, dict, allocated[name]


def _torch_gpu(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    raise MlxbertError("torch finds no GPU here, but MLX does", hint="--device cpu compares both on the CPU")


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    if sys.platform == "linux":  # not `ru_maxrss`, which begins with that of the process that started this one
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    _serve(*sys.argv[1:])
