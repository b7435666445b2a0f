"""Tokens per second of the encoders next to torch, and what the BLAS under MLX is worth.

`python benchmarks/encode.py [--rounds 5] [--model bert-base …]` needs torch and transformers (requirements-parity.txt).
Random weights in the shapes of published models of each family, three batch shapes, float32 by default; transformers
makes the models, and its files are read. Every contestant is a process of its own that is asked for one forward pass at
a time, in turn, so that all of them meet the same noise; medians are printed, and the ratios to torch. Next to other
work the ratio of CPU time says more, on one core (`taskset -c 0`): torch's threads spin where they wait.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

_SHORT = {"num_hidden_layers": 6}  # the families are compared on half the layers: a layer costs what it costs
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
# The prefix of transformers' classes, and what is far from their defaults.
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
    "nomic": ("NomicBert", _SHORT | {"max_position_embeddings": 512}),
    "gte": ("Gte", _SHORT | {"vocab_size": 30522, "max_position_embeddings": 512}),
    "deberta-v3": ("DebertaV2", _SHORT | _BASE | _DEBERTA),
    "deberta-v2": ("DebertaV2", _SHORT | _BASE | _DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "eurobert": ("EuroBert", _LLAMA | {"num_attention_heads": 12, "num_key_value_heads": 12, "mask_token_id": 3}),
    "eurobert-610m": (
        "EuroBert",
        _LLAMA | {"hidden_size": 1152, "intermediate_size": 4096, "num_attention_heads": 18, "num_key_value_heads": 6}
        | {"mask_token_id": 3},
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
}  # fmt: skip
SHAPES = ((32, 32), (16, 128), (8, 512))
VOCABULARY = 30000  # ids that are drawn
WARM_UPS = 3  # of torch the first passes of a process are slow
PAUSE = 0.05  # seconds before each pass, in which the threads of the one before stop waiting for work
SLOW_ROUNDS = 1  # the reference BLAS takes minutes a round and hardly varies


def make_model(name: str) -> Any:
    """A random model of transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    prefix, facts = MODELS[name]
    return getattr(transformers, f"{prefix}Model")(getattr(transformers, f"{prefix}Config")(**facts)).eval()


def mlx_worker(
    dtype: str, mode: Callable[[], AbstractContextManager[None]] | None = None
) -> Callable[[str, int, int], float]:
    """A function that runs one forward pass of mlxbert and gives its seconds."""
    from mlxbert.machine import device
    from mlxbert.machine.cores import inference
    from mlxbert.machine.device import mx
    from mlxbert.weights.build import build_network
    from mlxbert.weights.checkpoint import open_checkpoint

    device.use()
    chosen = device.choose_dtype(dtype)
    encoders: dict[str, Any] = {}

    def run(model: str, batch: int, length: int) -> float:
        if model not in encoders:
            encoders.clear()
            checkpoint = open_checkpoint(Path(os.environ["MLXBERT_BENCHMARK_MODELS"]) / model)
            encoders[model] = build_network(checkpoint, (), chosen).encoder
        ids = mx.random.randint(4, VOCABULARY, (batch, length))
        mx.eval(ids)
        start = time.perf_counter()
        with (mode or inference)():
            mx.eval(encoders[model](ids).last_hidden_state)
        return time.perf_counter() - start

    return run


def torch_worker(dtype: str) -> Callable[[str, int, int], float]:
    """The same with transformers on torch."""
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

    return run


WORKERS: dict[str, Callable[[str], Callable[[str, int, int], float]]] = {
    "mlxbert": mlx_worker,
    "mlxbert, as a graph": partial(mlx_worker, mode=nullcontext),
    "mlxbert, wheel's BLAS": mlx_worker,
    "mlxbert, other BLAS": mlx_worker,
    "torch": torch_worker,
}


def serve(kind: str, dtype: str) -> None:
    """Answers requests on stdin, one forward pass each."""
    run = WORKERS[kind](dtype)
    for line in sys.stdin:
        before = time.process_time()
        seconds = run(*json.loads(line))
        print(json.dumps([seconds, time.process_time() - before]), flush=True)


class Contestant:
    """A process that runs forward passes on demand."""

    def __init__(self, kind: str, dtype: str, models: str, blas: str | None) -> None:
        environment = os.environ | {"MLXBERT_BENCHMARK_MODELS": models}
        slow = kind.endswith("wheel's BLAS")
        if kind.endswith("BLAS"):
            environment["MLXBERT_BLAS"] = "off" if slow else blas or ""
        command = [sys.executable, __file__, "--serve", kind, "--dtype", dtype]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.rounds = SLOW_ROUNDS if slow else None

    def seconds(self, model: str, batch: int, length: int) -> tuple[float, float]:
        """How long one forward pass takes, and the CPU seconds of all its threads."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([model, batch, length]), file=self.process.stdin, flush=True)
        wall, processor = json.loads(self.process.stdout.readline())
        return wall, processor


def _shape(text: str) -> tuple[int, int]:
    batch, length = map(int, text.split("x"))
    return batch, length


def compare(contestants: dict[str, Contestant], model: str, shapes: Sequence[tuple[int, int]], rounds: int) -> None:
    """Prints a row for each shape and contestant."""
    for batch, length in shapes:
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in contestants}
        for number in range(-WARM_UPS, rounds):
            for kind, contestant in contestants.items():
                if contestant.rounds is None or 0 <= number < contestant.rounds:
                    time.sleep(PAUSE)
                    seconds = contestant.seconds(model, batch, length)
                    times[kind] += [seconds] if number >= 0 else []
        speeds = {kind: sorted(batch * length / wall for wall, _ in found) for kind, found in times.items()}
        processor = {kind: statistics.median(used for _, used in found) for kind, found in times.items()}
        for kind, found in speeds.items():
            median = statistics.median(found)
            ratio = f"{median / statistics.median(speeds['torch']):.2f}" if "torch" in speeds else ""
            shorter = f"{processor['torch'] / processor[kind]:.2f}" if "torch" in speeds else ""
            speed = f"{median:>8.0f} {found[0]:>8.0f} to {found[-1]:>6.0f}"
            print(f"{model:10} {batch:>4} x{length:>4} {kind:>22}: {speed} {ratio:>10} {shorter:>12}", flush=True)


def main() -> None:
    """Prints a row per model, shape and contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--model", action="append", choices=list(MODELS), help="only this one; may stand several times")
    parser.add_argument("--without", action="append", default=[], choices=list(WORKERS), help="leave one out")
    parser.add_argument("--shape", action="append", type=_shape, metavar="TEXTSxTOKENS", help="instead of the three")
    parser.add_argument("--blas", metavar="PATH", help="one more contestant: mlxbert with this BLAS")
    parser.add_argument("--serve", choices=list(WORKERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.dtype)
    with tempfile.TemporaryDirectory() as folder:
        left_out = {*arguments.without, *([] if arguments.blas else ["mlxbert, other BLAS"])}
        kinds = [kind for kind in WORKERS if kind not in left_out]
        contestants = {kind: Contestant(kind, arguments.dtype, folder, arguments.blas) for kind in kinds}
        ratios = f"{'ratio to torch':>15} {'in CPU time':>12}"
        print(f"{'model':10} {'shape':>9} {'tokens/s, median':>24} {'min to max':>19} {ratios}")
        for model in arguments.model or MODELS:
            make_model(model).save_pretrained(Path(folder) / model)
            compare(contestants, model, arguments.shape or SHAPES, arguments.rounds)
    return None


if __name__ == "__main__":
    main()
