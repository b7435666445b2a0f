"""Compares updates of fine-tuning on a GPU with torch: the first one with new and with cached kernels, and later ones.

    python benchmarks/gpu_updates.py [--shape base:16x128 …] [--dtype bfloat16 …] [--updates 30] [--device gpu]

A shape is MODEL:TEXTSxTOKENS, the model `base` (bert-base) or `minilm`, with random weights. Each side is a separate
process that has the GPU to itself. `mlxbert` runs twice: first with an empty cache of kernels (on CUDA; macOS has its
own cache), then with the cache that the first run has filled. `not compiled` is mlxbert without `mx.compile` for the
gradients, to show the gain of fusing them. torch, if installed, trains with autocast in half precision and with fused
AdamW. The first update is timed separately, in a process that has computed nothing but the weights. Prints medians and
ratios to torch.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

from mlxbert.doctor import torch_peer, training_steps
from mlxbert.machine.kernel_cache import VARIABLE

SHAPES, DTYPES = ("minilm:32x64", "base:16x128"), ("float32", "bfloat16")
SIDES = ("mlxbert, no kernels yet", "mlxbert", "not compiled", "torch")
_WARM = 3  # updates that are not counted
_BASE = {
    "model_type": "bert", "vocab_size": 30_522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2,
    "pad_token_id": 0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "base": _BASE, "minilm": _BASE | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
}  # fmt: skip


def main() -> None:
    """Prints a line for each shape, dtype and side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", action="append", help=f"repeatable; by default {' '.join(SHAPES)}")
    parser.add_argument("--dtype", action="append", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--device", default="gpu", choices=("gpu", "cpu"))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes, dtypes = args.shape or SHAPES, args.dtype or DTYPES
    if args.side is not None:
        print(json.dumps(_measured(args.side, shapes[0], dtypes[0], args.updates, args.device)))
        return
    sides = [side for side in SIDES if side != "torch" or importlib.util.find_spec("torch") is not None]
    for shape in shapes:
        for dtype in dtypes:
            with tempfile.TemporaryDirectory() as kernels:
                measured = {side: _in_process(side, shape, dtype, args.updates, args.device, kernels) for side in sides}
            for side, (first, median) in measured.items():
                ratio = f", {measured['torch'][1] / median:.2f} of torch's speed" if "torch" in measured else ""
                rates = f"first update {first:7.3f} s, then {1 / median:7.2f} a second{ratio}"
                print(f"{shape} {dtype:8} {side:24} {rates}", flush=True)


def _in_process(side: str, shape: str, dtype: str, updates: int, device: str, kernels: str) -> tuple[float, float]:
    """Measures the seconds of the first update and the median of the others, in a separate process."""
    options = ["--side", side, "--shape", shape, "--dtype", dtype, "--updates", str(updates), "--device", device]
    environment = {**os.environ, VARIABLE: kernels}
    done = subprocess.run(
        [sys.executable, __file__, *options], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    first, median = json.loads(done.stdout.splitlines()[-1])
    return first, median


def _measured(side: str, shape: str, dtype: str, updates: int, device: str) -> tuple[float, float]:
    name, _, sides = shape.partition(":")
    rows, length = map(int, sides.split("x"))
    ids = training_steps.token_ids([length] * rows, MODELS[name]["vocab_size"], MODELS[name]["pad_token_id"])
    make = _theirs if side == "torch" else partial(_ours, compiled=side != "not compiled")
    step, spent = make(MODELS[name], ids, dtype, device), []
    for _ in range(_WARM + updates):
        spent.append(step()["seconds"])
    return spent[0], statistics.median(spent[_WARM:])


def _ours(
    config: dict[str, Any], ids: list[training_steps.Ids], dtype: str, device: str, *, compiled: bool
) -> training_steps.Step:
    import mlxbert
    from mlxbert.train.loop import compiled_functions as compiling

    if not compiled:
        vars(compiling)["MAX_SHAPES"] = 0  # every batch exceeds the limit
    labels = mlxbert.Labels(("a", "b"), "single_label_classification")
    heads = {"sequence_classifier": labels}
    model = mlxbert.new_model(config, "builtin", heads=heads, dtype="float32", device=device)
    return training_steps.our_step(model, *training_steps.our_classifier(model, ids), dtype)


def _theirs(config: dict[str, Any], ids: list[training_steps.Ids], dtype: str, device: str) -> training_steps.Step:
    import torch
    import transformers

    where = torch_peer.device_name(torch, device)
    torch_peer.match_precision(torch, tf32=False)
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(transformers.AutoConfig.for_model(**config))
    step = training_steps.their_step(model.to(where).train(), training_steps.their_classifier(ids, 0, where), dtype)
    return training_steps.checked(step, [partial(torch_peer.check_training, torch, where, dtype)])


if __name__ == "__main__":
    main()
