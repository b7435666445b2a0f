"""Compares training steps with torch: steps per second, memory, and the parts of their time.

`python benchmarks/train.py [--rounds 5] [--shape minilm:32x64 …]` needs torch and transformers, for `-lora` also peft
(requirements-parity.txt). A shape is MODEL:TEXTSxTOKENS, the model one of benchmarks/encode.py; `base` is bert-base.
After the model, `-lora` trains adapters of rank 8 in the query and value of all layers, with the classifier and the
pooler (torch: peft), and `-mlm` pre-trains: 15 % of the tokens are masked, and the decoder is tied to the word
embeddings. For `-mlm`, mlxbert computes the scores of the vocabulary at the masked places only, transformers
everywhere. DeBERTa-v3 has a vocabulary of 30,522 here, while the published model has 128,100.

`--where` prints the parts of the time of mlxbert's steps: forward and backward passes of all parts of a batch; the
update of the weights (the rest of the sum of the gradients after the last part, norm, clipping, AdamW); and idle cores,
which include waiting for other programs.
`--optimizer` compares a single update of the 110 million weights of bert-base: sum of two parts, norm, clipping, AdamW
on one core, with torch's `clip_grad_norm_` and fused AdamW, whose sum is part of the backward pass.
`--memory` prints the peak memory of a process that makes two steps, with and without gradient checkpointing.

A step is a step of fine-tuning: forward, backward, clipping, AdamW (fused in torch, as in transformers), with dropout,
in float32, on a sequence classifier with random weights. Token ids are drawn from a Zipf distribution, so that an epoch
of 20 batches uses about as many different words as real text. Every contestant is a separate process that makes one
step at a time, in turn; medians are printed, and ratios to the faster torch.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cores import keep_to_cores
from encode import MODELS

from mlxbert.doctor import training_steps
from mlxbert.doctor.training_steps import Clock, Ids, Step
from mlxbert.doctor.worker import peak_memory
from mlxbert.doctor.worker_job import Spent

SHAPES = (
    "minilm:32x64", "minilm:8x512", "base:16x128", "distilbert:16x128", "modernbert:16x128", "deberta-v3:16x128",
    "base-lora:16x128", "minilm-mlm:32x64",
)  # fmt: skip
OPTIMIZER = "base-optimizer"
CONTESTANTS = ("ours 1", "ours 2", "torch 1", "torch 2")
RANK, ADAPTED = 8, ("query", "value")
MASKED, MASK_ID = 0.15, 103
DTYPE = "float32"


@dataclass(frozen=True)
class Case:
    """The work of a contestant.

    Attributes:
        config: The content of a `config.json`.
        kind: One of `KINDS`.
        batch: The number of texts in a batch.
        length: The number of tokens in each text.
        checkpointing: Whether activations are recomputed in the backward pass.
    """

    config: dict[str, Any]
    kind: str
    batch: int = 0
    length: int = 0
    checkpointing: bool = False

    def ids(self) -> list[Ids]:
        """The batches of an epoch."""
        return training_steps.token_ids(
            [self.length] * self.batch, self.config["vocab_size"], self.config["pad_token_id"]
        )

    def masked(self) -> Iterator[list[tuple[list[int], list[int], list[int]]]]:
        """The batches of an epoch; for each text the ids with masks, the masked places, and the original ids."""
        rng, count = random.Random(1), max(round(MASKED * self.length), 1)
        for rows in self.ids():
            places = [sorted(rng.sample(range(self.length), count)) for _ in rows]
            yield [
                ([MASK_ID if place in hidden else word for place, word in enumerate(row)], hidden, row)
                for row, hidden in zip(rows, places, strict=True)
            ]


def read_case(text: str, checkpointing: bool = False) -> Case:
    """The case of a shape, such as `base-lora:16x128`."""
    import transformers

    name, _, sides = text.partition(":")
    size, _, kind = name.rpartition("-")
    size, kind = (size, kind) if kind in KINDS else (name, "classify")
    prefix, facts = MODELS["bert-base" if size == "base" else size]
    config = getattr(transformers, f"{prefix}Config")(
        **facts, pad_token_id=0
    ).to_dict()  # the padding id of the vocabulary
    batch, length = map(int, sides.split("x")) if sides else (0, 0)
    return Case(config, kind, batch, length, checkpointing)


# --- mlxbert ---


def our_model(case: Case, head: str = "sequence_classifier") -> Any:
    """A model with random weights."""
    import mlxbert

    labels = mlxbert.Labels(("a", "b"), "single_label_classification") if head == "sequence_classifier" else None
    return mlxbert.new_model(case.config, "builtin", heads={head: labels}, dtype=DTYPE, device="cpu")


def our_classifier(case: Case) -> Step:
    """Trains all weights of a classifier."""
    model = our_model(case)
    return training_steps.our_step(
        model, *training_steps.our_classifier(model, case.ids()), DTYPE, checkpointing=case.checkpointing
    )


def our_adapters(case: Case) -> Step:
    """Trains adapters and the classifier."""
    from mlxbert.train.lora_adapters import adapt_model
    from mlxbert.train.options.loop_options import TrainingOptions

    model = our_model(case)
    adapters = adapt_model(model, TrainingOptions(lora=RANK, lora_layers=",".join(ADAPTED)))
    assert adapters is not None
    return training_steps.our_step(
        model, *training_steps.our_classifier(model, case.ids()), DTYPE,
        trained=adapters.trained, checkpointing=case.checkpointing,
    )  # fmt: skip


def our_masked(case: Case) -> Step:
    """Masked language modeling."""
    import numpy as np

    from mlxbert.train.pretraining.examples import PretrainingExample
    from mlxbert.train.pretraining.loss_terms import MaskedWords
    from mlxbert.train.pretraining.objective import Pretraining

    model, objective = our_model(case, "masked_lm"), Pretraining({MaskedWords(): 1.0})
    objective.use(model.config)
    segments = np.zeros(case.length, np.int32)

    def array(values: list[int]) -> Any:
        return np.array(values, np.int32)

    batches = [
        [PretrainingExample(array(ids), segments, array(places), array(clean)) for ids, places, clean in rows]
        for rows in case.masked()
    ]
    return training_steps.our_step(model, objective, batches, DTYPE, checkpointing=case.checkpointing)


def our_update(case: Case) -> Step:
    """Makes only the update, from the gradients of two parts."""
    from mlxbert.machine.device import mx
    from mlxbert.train.loop.adamw import AdamW
    from mlxbert.train.loop.gradients import Gradients, added
    from mlxbert.train.loop.optimizer_steps import optimizer_step
    from mlxbert.train.loop.saved_run import Progress
    from mlxbert.weights.build import parameters

    weights = parameters(our_model(case).network)
    unit = mx.array(1.0)
    parts = [
        Gradients(unit, unit, {name: 1e-3 * mx.random.normal(array.shape) for name, array in weights.items()})
        for _ in range(2)
    ]
    mx.eval([part.arrays for part in parts])
    decays = {name: training_steps.WEIGHT_DECAY if array.ndim > 1 else 0.0 for name, array in weights.items()}
    state = AdamW.new(weights)
    change = optimizer_step(dict.fromkeys(weights, 1.0), decays, training_steps.CLIP, scaled=False)
    counters = change.counters(Progress())

    def step() -> Spent:
        nonlocal counters, state, weights
        clock, begun = Clock(), time.perf_counter()
        _, weights, state, counters = change(weights, state, added(*parts), counters, training_steps.LR)
        mx.eval(weights, state.means, state.squares)
        return clock.spent(begun)

    return step


# --- torch ---


def their_model(case: Case, kind: str = "SequenceClassification") -> Any:
    """The same model in transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**case.config)
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config).train()
    if case.checkpointing:
        model.gradient_checkpointing_enable()
    return model


def their_classifier(case: Case, adapt: Callable[[Any], Any] = lambda model: model) -> Step:
    """Trains all weights of a classifier, or the weights that `adapt` leaves trainable."""
    batches = training_steps.their_classifier(case.ids(), case.config["pad_token_id"])
    return training_steps.their_step(adapt(their_model(case)), batches, DTYPE)


def their_adapters(case: Case) -> Step:
    """Trains adapters of peft and the classifier."""
    from peft import LoraConfig, TaskType, get_peft_model

    settings = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=RANK, lora_alpha=2 * RANK, target_modules=list(ADAPTED),
        modules_to_save=["classifier", "pooler"],
    )  # fmt: skip
    return their_classifier(case, lambda model: get_peft_model(model, settings))


def their_masked(case: Case) -> Step:
    """Masked language modeling."""
    import torch

    batches = []
    for rows in case.masked():
        labels = [[word if place in places else -100 for place, word in enumerate(clean)] for _, places, clean in rows]
        batches.append({"input_ids": torch.tensor([ids for ids, _, _ in rows]), "labels": torch.tensor(labels)})
    return training_steps.their_step(their_model(case, "MaskedLM"), batches, DTYPE)


def their_update(case: Case) -> Step:
    """Makes only the update."""
    import torch

    weights = list(their_model(case).parameters())
    for weight in weights:
        weight.grad = 1e-3 * torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, lr=training_steps.LR, weight_decay=training_steps.WEIGHT_DECAY, fused=True)

    def step() -> Spent:
        clock, begun = Clock(), time.perf_counter()
        torch.nn.utils.clip_grad_norm_(weights, training_steps.CLIP)
        optimizer.step()
        return clock.spent(begun)

    return step


KINDS: dict[str, tuple[Callable[[Case], Step], Callable[[Case], Step]]] = {
    "classify": (our_classifier, their_classifier),
    "lora": (our_adapters, their_adapters),
    "mlm": (our_masked, their_masked),
    "optimizer": (our_update, their_update),
}


# --- processes ---


def contest(name: str, case: Case) -> None:
    """Makes a step for every line on stdin, and prints its measurements."""
    side, _, cores = name.partition(" ")
    keep_to_cores(int(cores))
    os.environ["OMP_NUM_THREADS"] = cores
    step = KINDS[case.kind][side == "torch"](case)
    for _ in sys.stdin:
        print(json.dumps({**step(), "memory": peak_memory()}), flush=True)


def start(name: str, case: Case) -> "subprocess.Popen[str]":
    """Starts the process of a contestant."""
    words = [sys.executable, __file__, "--contestant", name, "--case", json.dumps(vars(case))]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: "subprocess.Popen[str]") -> Spent:
    """Makes another step, and returns its measurements."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    spent: Spent = json.loads(process.stdout.readline())
    return spent


def measure(names: Sequence[str], case: Case, rounds: int) -> dict[str, Spent]:
    """The medians of the measurements of contestants, which make steps in turn."""
    processes = {name: start(name, case) for name in names}
    try:
        for process in processes.values():
            ask(process)  # the first step warms up
        steps = [{name: ask(process) for name, process in processes.items()} for _ in range(rounds)]
    finally:
        for process in processes.values():
            process.kill()
    return {
        name: {key: statistics.median(step[name][key] for step in steps) for key in steps[0][name]} for name in names
    }


# --- tables ---


def compare(shape: str, rounds: int) -> None:
    """Prints the steps of all contestants in one shape."""
    steps = measure(CONTESTANTS, read_case(shape), rounds)
    best, alone = min(steps[name]["seconds"] for name in ("torch 1", "torch 2")), steps["torch 1"]["cpu"]
    for name, step in steps.items():
        speed = f"{1 / step['seconds']:6.3f} steps/s, {best / step['seconds']:5.2f} x the better torch"
        cpu = f"{step['cpu']:6.2f} CPU s, {alone / step['cpu']:5.2f} x torch 1"
        print(f"{shape:<18} {name:<8} {speed}; {cpu}; {step['memory'] / 2**30:5.2f} GiB", flush=True)


def show_where(shape: str, rounds: int) -> None:
    """Prints the parts of the time of mlxbert's steps."""
    for name, step in measure(CONTESTANTS[:2], read_case(shape), rounds).items():
        parts = (f"{part} {step[part]:6.3f} s, {step[part] / step['seconds']:4.0%}" for part in ("network", "update"))
        busy = f"cores busy {step['busy']:4.0%}, waiting {1 - step['busy']:4.0%}"
        print(f"{shape:<18} {name:<8} {step['seconds']:6.3f} s: {'; '.join(parts)}; {busy}", flush=True)


def show_memory(shape: str) -> None:
    """Prints the peak memory of each side, with and without gradient checkpointing."""
    for name in ("ours 2", "torch 2"):
        for checkpointing in (False, True):
            step = measure([name], read_case(shape, checkpointing), 1)[name]
            kind, memory = "checkpointing" if checkpointing else "plain", step["memory"] / 2**30
            print(f"{shape:<18} {name:<8} {kind:<14} {memory:5.2f} GiB  {step['seconds']:6.2f} s a step", flush=True)


def compare_optimizers(rounds: int) -> None:
    """Prints the measurements of a single update on one core."""
    steps = measure(("ours 1", "torch 1"), read_case(OPTIMIZER), rounds)
    for name, step in steps.items():
        ratio = steps["torch 1"]["cpu"] / step["cpu"]
        cpu = f"{step['cpu']:6.3f} CPU s, {ratio:5.2f} x torch"
        print(f"{OPTIMIZER:<18} {name:<8} {cpu}; {step['memory'] / 2**30:5.2f} GiB", flush=True)


def main() -> None:
    """Prints one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", action="append", help="such as minilm:32x64; repeatable")
    for name in ("where", "optimizer", "memory"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--case", type=lambda text: Case(**json.loads(text)), help=argparse.SUPPRESS)
    args: Any = parser.parse_args()
    if args.contestant:
        return contest(args.contestant, args.case)
    if args.optimizer:
        return compare_optimizers(args.rounds)
    for shape in args.shape or SHAPES:
        if args.memory:
            show_memory(shape)
        else:
            (show_where if args.where else compare)(shape, args.rounds)
    return None


if __name__ == "__main__":
    main()
