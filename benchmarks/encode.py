"""Compares the speed and memory of the encoders with torch, and of mlxbert with different BLAS libraries.

`python benchmarks/encode.py [--rounds 5] [--model bert-base …]` needs torch and transformers (requirements-parity.txt).
The models have random weights in the shapes of published models of each family; there are three batch shapes, and
float32 is the default. The models are made and saved by transformers, or by tests/helpers/authors if it lacks them.
Every contestant is a separate process that runs one forward pass at a time, in turn, so that all are exposed to the
same noise; the processes of the others are stopped meanwhile, because torch's threads spin after their work. Prints the
median tokens per second and the ratio to torch. On a busy machine the ratio of CPU time is more reliable, on one core
(`taskset -c 0`): waiting threads of torch spin.

`--memory` prints the peak memory of a process per side that makes two passes; torch creates its weights in memory,
mlxbert reads them from a file. `--record` measures both, also on a text of 8,192 tokens if the model supports it, and
writes them to results/encode.jsonl; `python scripts/models_table.py` then writes the table in docs/models.md.
"""

import argparse
import atexit
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from in_turn import drop_unusual_settings, running

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.doctor.worker import peak_memory

_SHORT = {"num_hidden_layers": 6}  # families are compared with half the layers, as all layers cost the same
_DEBERTA = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "max_relative_positions": -1,
    "vocab_size": 30522,
}
_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522}
_LLAMA = _SHORT | {
    "hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 8192,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_JINA_V2 = _SHORT | {"vocab_size": 30528, "max_position_embeddings": 8192, "feed_forward_type": "geglu"}
# The configuration of this model has no defaults.
_NOMIC_MOE = _SHORT | _BASE | {
    "type_vocab_size": 1, "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "pad_token_id": 1, "theta": 10000.0,
    "initializer_range": 0.02, "hidden_act": "gelu", "num_experts": 8, "moe_top_k": 2, "moe_every_n_layers": 2,
}  # fmt: skip
# The prefix of the classes, and the settings that differ from their defaults.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("Bert", {}),
    "minilm": ("Bert", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}),
    "bert": ("Bert", _SHORT),
    "roberta": ("Roberta", _SHORT | _BASE | {"max_position_embeddings": 514}),
    "distilbert": ("DistilBert", {}),
    "albert": ("Albert", _SHORT | _BASE),
    "electra": ("Electra", _SHORT | _BASE | {"embedding_size": 768}),
    "mpnet": ("MPNet", _SHORT | _BASE | {"max_position_embeddings": 514}),
    "modernbert": ("ModernBert", _SHORT | {"max_position_embeddings": 8192}),
    "nomic": ("NomicBert", _SHORT | {"max_position_embeddings": 2048}),
    "nomic-moe": ("NomicMoe", _NOMIC_MOE),
    "gte": ("Gte", _SHORT | {"vocab_size": 30522, "max_position_embeddings": 8192}),
    "deberta-v3": ("DebertaV2", _SHORT | _BASE | _DEBERTA),
    "deberta-v2": ("DebertaV2", _SHORT | _BASE | _DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "eurobert": ("EuroBert", _LLAMA | {"num_attention_heads": 12, "num_key_value_heads": 12, "mask_token_id": 3}),
    "eurobert-610m": (
        "EuroBert",
        _LLAMA | {"hidden_size": 1152, "intermediate_size": 4096, "num_attention_heads": 18, "num_key_value_heads": 6}
        | {"mask_token_id": 3},
    ),
    "qwen2": (
        "Qwen2",
        _LLAMA | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
        | {"is_causal": False},
    ),
    "qwen3": (
        "Qwen3",
        _LLAMA | {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    ),
    "jina-v3": ("JinaEmbeddingsV3", _SHORT | {"vocab_size": 30522}),
    "gemma3": (
        "Gemma3Text",
        _LLAMA | {"intermediate_size": 1152, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256}
        | {"use_bidirectional_attention": True, "sliding_window": 512},
    ),
    "neobert": ("NeoBERT", _SHORT | {"max_length": 4096}),
    "jina-v2": ("JinaBert", _JINA_V2),
    "jina-v2-normed": ("NormedJinaBert", _JINA_V2),
}  # fmt: skip
SHAPES, LONG = ((32, 32), (16, 128), (8, 512)), (1, 8192)
VOCABULARY = 30000  # the upper bound of random ids
WARM_UPS, LARGE = 3, 1024  # the first passes of torch are slow; one warm-up suffices from this number of tokens on
Worker = tuple[Callable[[str, int, int], float], Callable[[], int]]  # seconds of a forward pass, peak bytes
OURS, PEER = "mlxbert", "torch"
WARM_UP = 0.05  # seconds of passes before the measured one: the caches of a process that was stopped are cold
SLOW_ROUNDS = 1  # the reference BLAS takes minutes per round and hardly varies


def make_model(name: str) -> Any:
    """A random model."""
    import torch

    from tests.helpers.authors import class_of

    torch.manual_seed(0)
    prefix, facts = MODELS[name]
    return class_of(f"{prefix}Model")(class_of(f"{prefix}Config")(**facts)).eval()


def mlx_worker(dtype: str, mode: Callable[[], AbstractContextManager[None]] | None = None) -> Worker:
    """Forward passes of mlxbert."""
    from mlxbert.machine import device
    from mlxbert.machine.device import mx
    from mlxbert.nn.ops import inference
    from mlxbert.weights.build import build_network
    from mlxbert.weights.checkpoint import open_checkpoint

    device.use()
    mlx_dtype = device.choose_dtype(dtype)
    encoders: dict[str, Any] = {}

    def run(model: str, batch: int, length: int) -> float:
        if model not in encoders:
            encoders.clear()
            checkpoint = open_checkpoint(Path(os.environ["MLXBERT_BENCHMARK_MODELS"]) / model)
            encoders[model] = build_network(checkpoint, (), mlx_dtype).encoder
        ids = mx.random.randint(4, VOCABULARY, (batch, length))
        mx.eval(ids)
        start = time.perf_counter()
        with (mode or inference)():
            mx.eval(encoders[model](ids).last_hidden_state)
        return time.perf_counter() - start

    return run, lambda: mx.get_peak_memory() if device.on_gpu() else peak_memory()


def torch_worker(dtype: str) -> Worker:
    """Forward passes of transformers on torch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    models: dict[str, Any] = {}

    def run(model: str, batch: int, length: int) -> float:
        if model not in models:
            models.clear()
            models[model] = make_model(model).to(device, getattr(torch, dtype))
        ids = torch.randint(4, VOCABULARY, (batch, length), device=device)
        with torch.inference_mode():
            start = time.perf_counter()
            models[model](ids).last_hidden_state.sum().item()
            return time.perf_counter() - start

    return run, torch.cuda.max_memory_allocated if device == "cuda" else peak_memory


WORKERS: dict[str, Callable[[str], Worker]] = {
    OURS: mlx_worker,
    "mlxbert, as a graph": partial(mlx_worker, mode=nullcontext),
    "mlxbert, wheel's BLAS": mlx_worker,
    "mlxbert, other BLAS": mlx_worker,
    PEER: torch_worker,
}


def serve(kind: str, dtype: str) -> None:
    """Answers requests on stdin with one forward pass each, after short passes that are not counted."""
    run, peak = WORKERS[kind](dtype)
    last = ""
    for line in sys.stdin:
        begun = time.perf_counter()
        while line == last and time.perf_counter() - begun < WARM_UP:
            run(*json.loads(line))
        last = line
        before = time.process_time()
        seconds = run(*json.loads(line))
        print(json.dumps([seconds, time.process_time() - before, peak()]), flush=True)


class Contestant:
    """A process that runs forward passes on demand."""

    def __init__(self, kind: str, dtype: str, models: str, blas: str | None = None) -> None:
        variables = os.environ | {"MLXBERT_BENCHMARK_MODELS": models}
        slow = kind.endswith("wheel's BLAS")
        if kind.endswith("BLAS"):
            variables["MLXBERT_BLAS"] = "off" if slow else blas or ""
        command = [sys.executable, __file__, "--serve", kind, "--dtype", dtype]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables)
        atexit.register(self.process.kill)  # a stopped process does not end by itself
        self.process.send_signal(signal.SIGSTOP)
        self.rounds = SLOW_ROUNDS if slow else None

    def ask(self, model: str, batch: int, length: int) -> tuple[float, float, int]:
        """Runs a forward pass; returns its seconds, the CPU seconds of all threads, and the peak memory in bytes."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with running(self.process):
            print(json.dumps([model, batch, length]), file=self.process.stdin, flush=True)
            wall, processor, peak = json.loads(self.process.stdout.readline())
        return wall, processor, peak


def _shape(text: str) -> tuple[int, int]:
    batch, length = map(int, text.split("x"))
    return batch, length


def compare(contestants: dict[str, Contestant], model: str, batch: int, length: int, rounds: int) -> dict[str, float]:
    """Prints a row for each contestant; returns the median tokens per second."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in contestants}
    for number in range(-(1 if batch * length > LARGE else WARM_UPS), rounds):
        for kind, contestant in contestants.items():
            if contestant.rounds is None or 0 <= number < contestant.rounds:
                wall, used, _ = contestant.ask(model, batch, length)
                times[kind] += [(wall, used)] if number >= 0 else []
    speeds = {kind: sorted(batch * length / wall for wall, _ in pairs) for kind, pairs in times.items()}
    processor = {kind: statistics.median(used for _, used in pairs) for kind, pairs in times.items()}
    medians = {kind: statistics.median(values) for kind, values in speeds.items()}
    for kind, values in speeds.items():
        ratio = f"{medians[kind] / medians[PEER]:.2f}" if PEER in speeds else ""
        cpu_ratio = f"{processor[PEER] / processor[kind]:.2f}" if PEER in speeds else ""
        speed = f"{medians[kind]:>8.0f} {values[0]:>8.0f} to {values[-1]:>6.0f}"
        print(f"{model:14} {batch:>4} x{length:>4} {kind:>22}: {speed} {ratio:>10} {cpu_ratio:>12}", flush=True)
    return medians


def measure_memory(model: str, batch: int, length: int, dtype: str, folder: str) -> dict[str, int]:
    """Prints and returns the peak bytes of a process of each side."""
    peaks = {}
    for kind in (OURS, PEER):
        contestant = Contestant(kind, dtype, folder)
        peaks[kind] = max(contestant.ask(model, batch, length)[2] for _ in range(2))
        contestant.process.kill()
        contestant.process.wait()
    for kind, peak in peaks.items():
        ratio = f"{peak / peaks[PEER]:.2f}"
        print(f"{model:14} {batch:>4} x{length:>4} {kind:>22}: {peak / 2**30:6.2f} GiB {ratio:>10}", flush=True)
    return peaks


def measure(args: argparse.Namespace, contestants: dict[str, Contestant], folder: str) -> None:
    """Measures all selected models and shapes."""
    from mlxbert.weights.checkpoint import open_checkpoint
    from tests.helpers.recorded import record

    for model in args.model or MODELS:
        path = Path(folder) / model
        make_model(model).save_pretrained(path)
        checkpoint = open_checkpoint(path)
        for batch, length in args.shape or (*SHAPES, *([LONG] if args.record else [])):
            if length > checkpoint.config.max_length:
                continue
            medians = {} if args.memory else compare(contestants, model, batch, length, args.rounds)
            if not (args.memory or args.record):
                continue
            peaks = measure_memory(model, batch, length, args.dtype, folder)
            if args.record:
                key = {"model": model, "batch": batch, "length": length, "dtype": args.dtype}
                results = {"tokens_per_second": medians, "peak_bytes": peaks, "rounds": args.rounds}
                record("encode", key, {"family": checkpoint.family.title} | results)
        shutil.rmtree(path)


def main() -> None:
    """Prints a row per model, shape and contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--model", action="append", choices=list(MODELS), help="only this model; repeatable")
    parser.add_argument(
        "--without", action="append", default=[], choices=list(WORKERS), help="leave this contestant out; repeatable"
    )
    parser.add_argument(
        "--shape", action="append", type=_shape, metavar="TEXTSxTOKENS", help="instead of the default shapes"
    )
    parser.add_argument("--blas", metavar="PATH", help="add a contestant: mlxbert with this BLAS")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of speed")
    parser.add_argument("--record", action="store_true", help="write mlxbert and torch only to results/encode.jsonl")
    parser.add_argument("--serve", choices=list(WORKERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.dtype)
    drop_unusual_settings()
    if args.memory and args.record:
        parser.error("--record measures memory, too")
    with tempfile.TemporaryDirectory() as folder:
        left_out = {*args.without, *([] if args.blas else ["mlxbert, other BLAS"])}
        kinds = [OURS, PEER] if args.record else [kind for kind in WORKERS if kind not in left_out]
        contestants = {kind: Contestant(kind, args.dtype, folder, args.blas) for kind in kinds if not args.memory}
        if contestants:
            ratios = f"{'ratio to torch':>15} {'in CPU time':>12}"
            print(f"{'model':14} {'shape':>9} {'tokens/s, median':>24} {'min to max':>19} {ratios}")
        measure(args, contestants, folder)
    return None


if __name__ == "__main__":
    main()
