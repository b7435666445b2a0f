"""Training steps per second next to torch, and the memory that they take.

`python benchmarks/train.py [--rounds 5] [--shape minilm:32x64 …]` needs torch and transformers
(requirements-parity.txt).
`python benchmarks/train.py --memory --shape base:32x128` prints the peak memory of a process that makes two steps.

A step is what fine-tuning does: forward, backward, clipping, AdamW (torch's fused one, which transformers uses), with
dropout, in float32, on a sequence classifier with random weights. Token ids are drawn from a Zipf distribution, so that
an epoch of 20 batches uses about as many different words as text does. Every contestant is a process of its own that is
asked for one step at a time, in turn; medians are printed, and ratios to the faster torch.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SIZES: dict[str, dict[str, int]] = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
COMMON = {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
SHAPES = ("minilm:32x64", "minilm:8x512", "base:16x128")
VOCABULARY, BATCHES = 30522, 20
CONTESTANTS = ("ours 1", "ours 2", "torch 1", "torch 2")


def token_ids(batch: int, length: int) -> list[list[list[int]]]:
    """The batches of an epoch."""
    rng = random.Random(0)
    words = range(1000, VOCABULARY)
    weights = [1 / (rank + 3) for rank in range(len(words))]
    drawn = rng.choices(words, weights, k=BATCHES * batch * (length - 2))
    rows = [[101, *drawn[start : start + length - 2], 102] for start in range(0, len(drawn), length - 2)]
    return [rows[start : start + batch] for start in range(0, len(rows), batch)]


def ours(size: str, batch: int, length: int, checkpointing: bool) -> Callable[[int], None]:
    """One update of mlxbert's loop."""
    import mlxbert
    from mlxbert.machine.cores import training_workers
    from mlxbert.machine.device import mx
    from mlxbert.text.encoding import Encoding
    from mlxbert.training.loop import Run, Training
    from mlxbert.training.objectives.classify import Classify
    from mlxbert.training.options import TrainingOptions
    from mlxbert.training.sampler import Epochs

    labels = mlxbert.Labels(("a", "b"), "single_label_classification")
    config = {"model_type": "bert", **COMMON, **SIZES[size]}
    model = mlxbert.new_model(config, "builtin", heads={"sequence_classifier": labels}, dtype="float32")
    objective = Classify()
    objective.bind(model)
    none: list[int | None] = [None] * length

    def example(ids: list[int], target: int) -> mlxbert.Example:
        zeros, places = [0] * length, list(range(length))
        return mlxbert.Example(Encoding(ids, zeros, [(0, 0)] * length, none, none, places, False), target)

    rows = [ids for batch_ids in token_ids(batch, length) for ids in batch_ids]
    examples = [example(ids, number % 2) for number, ids in enumerate(rows)]
    options = TrainingOptions(batch_size=batch, epochs=1, checkpointing=checkpointing)
    training = Training(
        network=model.network, objective=objective, examples=examples, place=str,
        order=Epochs(examples, options), options=options, dtype=mx.float32, evaluate=None,
        streams=max(len(training_workers()), 1),
    )  # fmt: skip
    events = Run(training, None).events()

    def step(number: int) -> None:
        next(events)

    return step


def theirs(size: str, batch: int, length: int, checkpointing: bool) -> Callable[[int], None]:
    """One step of torch, as transformers' Trainer makes it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**COMMON, **SIZES[size]))
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
    batches = [torch.tensor(rows) for rows in token_ids(batch, length)]
    targets = torch.tensor([number % 2 for number in range(batch)])

    def step(number: int) -> None:
        model(input_ids=batches[number % BATCHES], labels=targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def contestant(name: str, shape: str, checkpointing: bool) -> None:
    """Makes a step for every line on stdin, and prints its wall and CPU seconds."""
    side, _, cores = name.partition(" ")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    os.environ["OMP_NUM_THREADS"] = cores
    size, _, sides = shape.partition(":")
    batch, length = map(int, sides.split("x"))
    step = (ours if side == "ours" else theirs)(size, batch, length, checkpointing)
    for number, _ in enumerate(sys.stdin):
        wall, cpu = time.perf_counter(), time.process_time()
        step(number)
        spent = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps([*spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]), flush=True)


def start(name: str, shape: str, checkpointing: bool = False) -> "subprocess.Popen[str]":
    """The process of a contestant."""
    words = [sys.executable, __file__, "--contestant", name, "--shape", shape]
    words += ["--checkpointing"] if checkpointing else []
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: "subprocess.Popen[str]") -> list[float]:
    """Wall seconds, CPU seconds and peak bytes of one more step."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: list[float] = json.loads(process.stdout.readline())
    return found


def compare(shape: str, rounds: int) -> None:
    """Prints the steps of all contestants in one shape."""
    processes = {name: start(name, shape) for name in CONTESTANTS}
    for process in processes.values():
        ask(process)  # the first step warms up
    found: dict[str, list[list[float]]] = {name: [] for name in processes}
    for _ in range(rounds):
        for name, process in processes.items():
            found[name].append(ask(process))
    for process in processes.values():
        process.kill()
    wall, cpu = ({name: statistics.median(run[at] for run in runs) for name, runs in found.items()} for at in (0, 1))
    best, alone = min(wall["torch 1"], wall["torch 2"]), cpu["torch 1"]
    for name in CONTESTANTS:
        speed = f"{1 / wall[name]:6.3f} steps/s, {best / wall[name]:5.2f} x the better torch"
        print(f"{shape:<14} {name:<8} {speed}; {cpu[name]:6.2f} CPU s, {alone / cpu[name]:5.2f} x torch 1", flush=True)


def measure_memory(shape: str) -> None:
    """Prints the peak memory of each side, with and without gradient checkpointing."""
    for name in ("ours 2", "torch 2"):
        for checkpointing in (False, True):
            process = start(name, shape, checkpointing)
            seconds, _, peak = [ask(process), ask(process)][-1]
            process.kill()
            kind = "checkpointing" if checkpointing else "plain"
            print(f"{shape:<14} {name:<8} {kind:<14} {peak / 2**30:5.2f} GiB  {seconds:6.2f} s a step", flush=True)


def main() -> None:
    """Compares all shapes, or measures memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", action="append", help="such as minilm:32x64")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--checkpointing", action="store_true", help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.contestant:
        contestant(given.contestant, given.shape[0], given.checkpointing)
        return
    for shape in given.shape or SHAPES:
        if given.memory:
            measure_memory(shape)
        else:
            compare(shape, given.rounds)


if __name__ == "__main__":
    main()
