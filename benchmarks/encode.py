"""Tokens per second of the encoder beside torch, and what the BLAS under MLX is worth.

`python benchmarks/encode.py [--rounds 5]` needs torch and transformers (requirements-parity.txt). Random weights in the
shapes of bert-base and MiniLM, three batch shapes, float32 by default. Every contestant is a process of its own that is
asked for one forward pass at a time, in turn, so that all of them meet the same noise; medians are printed, and the
ratio to torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MODELS = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
SHAPES = ((32, 32), (16, 128), (8, 512))
VOCABULARY = 30522
SLOW_ROUNDS = 1  # the reference BLAS takes minutes a round and hardly varies


def mlx_worker(dtype: str) -> Callable[[str, int, int], float]:
    """A function that runs one forward pass of mlxbert and gives its seconds."""
    from mlxbert import device
    from mlxbert.config import Absolute, EncoderConfig
    from mlxbert.device import mx, nn
    from mlxbert.encoder import Encoder

    device.use()
    chosen = device.choose_dtype(dtype)
    encoders = {}

    def run(model: str, batch: int, length: int) -> float:
        if model not in encoders:
            facts = MODELS[model]
            encoder = Encoder(
                EncoderConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=facts["hidden_size"],
                    embedding_size=facts["hidden_size"],
                    layer_schedule=tuple(range(facts["num_hidden_layers"])),
                    num_attention_heads=facts["num_attention_heads"],
                    intermediate_size=facts["intermediate_size"],
                    hidden_act="gelu",
                    layer_norm_eps=1e-12,
                    type_vocab_size=2,
                    pad_token_id=0,
                    positions=Absolute(512),
                )
            )
            encoder.eval()
            encoder.update(nn.utils.tree_map(lambda array: array.astype(chosen), encoder.parameters()))
            mx.eval(encoder.parameters())
            encoders[model] = encoder
        ids = mx.random.randint(0, VOCABULARY, (batch, length))
        mx.eval(ids)
        start = time.perf_counter()
        mx.eval(encoders[model](ids).last_hidden_state)
        return time.perf_counter() - start

    return run


def torch_worker(dtype: str) -> Callable[[str, int, int], float]:
    """The same with transformers on torch."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    models: dict[str, Any] = {}

    def run(model: str, batch: int, length: int) -> float:
        if model not in models:
            config = transformers.BertConfig(vocab_size=VOCABULARY, **MODELS[model])
            models[model] = transformers.BertModel(config).to(device, getattr(torch, dtype)).eval()
        ids = torch.randint(0, VOCABULARY, (batch, length), device=device)
        with torch.inference_mode():
            start = time.perf_counter()
            models[model](ids).last_hidden_state.sum().item()
            return time.perf_counter() - start

    return run


WORKERS = {"mlxbert": mlx_worker, "mlxbert, wheel's BLAS": mlx_worker, "torch": torch_worker}


def serve(kind: str, dtype: str) -> None:
    """Answers requests on stdin, one forward pass each."""
    run = WORKERS[kind](dtype)
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)


class Contestant:
    """A process that runs forward passes on demand."""

    def __init__(self, kind: str, dtype: str) -> None:
        environment = dict(os.environ)
        if kind.endswith("BLAS"):
            environment["MLXBERT_BLAS"] = "off"
        command = [sys.executable, __file__, "--serve", kind, "--dtype", dtype]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.rounds = SLOW_ROUNDS if kind.endswith("BLAS") else None

    def seconds(self, model: str, batch: int, length: int) -> float:
        """How long one forward pass takes."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([model, batch, length]), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def main() -> None:
    """Prints a row per model, shape and contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--without", action="append", default=[], choices=list(WORKERS), help="leave one out")
    parser.add_argument("--serve", choices=list(WORKERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.dtype)
    contestants = {kind: Contestant(kind, arguments.dtype) for kind in WORKERS if kind not in arguments.without}
    print(f"{'model':10} {'shape':>9} {'tokens/s, median':>24} {'min to max':>19} {'ratio to torch':>15}")
    for model in MODELS:
        for batch, length in SHAPES:
            times: dict[str, list[float]] = {kind: [] for kind in contestants}
            for number in range(-1, arguments.rounds):  # the first is a warm-up
                for kind, contestant in contestants.items():
                    if contestant.rounds is None or 0 <= number < contestant.rounds:
                        seconds = contestant.seconds(model, batch, length)
                        times[kind] += [seconds] if number >= 0 else []
            speeds = {kind: sorted(batch * length / second for second in found) for kind, found in times.items()}
            for kind, found in speeds.items():
                median = statistics.median(found)
                ratio = f"{median / statistics.median(speeds['torch']):.2f}" if "torch" in speeds else ""
                speed = f"{median:>8.0f} {found[0]:>8.0f} to {found[-1]:>6.0f}"
                print(f"{model:10} {batch:>4} x{length:>4} {kind:>22}: {speed} {ratio:>10}", flush=True)
    return None


if __name__ == "__main__":
    main()
