"""Compared training runs: hyper-parameters for both sides, training functions, and a loop over missing runs."""

import argparse
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cores import keep_to_cores

WARMUP, WEIGHT_DECAY, CLIP = 0.1, 0.01, 1.0
Record = TypeVar("Record")
Run = Callable[[str, int, argparse.Namespace], dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    """The task and the hyper-parameters of a data set.

    Attributes:
        task: A task of `mlxbert finetune`.
        epochs: Passes over the training data.
        metric: The score that is compared.
        first: The number of training examples, from the start of the file; `None` for all.
        tested: The number of test examples; `None` for all.
        max_length: The maximum number of tokens in an input.
        lr: Peak learning rate.
        batch_size: Examples per step.
    """

    task: str
    epochs: int
    metric: str
    first: int | None = None
    tested: int | None = None
    max_length: int = 128
    lr: float = 5e-5
    batch_size: int = 32


def sampled(records: Sequence[Record], count: int | None) -> list[Record]:
    """Draws `count` records with a fixed seed, in their original order; `None` for all."""
    if count is None:
        return [*records]
    return [records[number] for number in sorted(random.Random(0).sample(range(len(records)), count))]


def train_ours(model: Any, objective: Any, examples: Sequence[Any], setting: Setting, seed: int) -> dict[str, Any]:
    """Trains a model of mlxbert without validation, to the last update. Returns the times and the number of steps."""
    from mlxbert.machine.device import mx
    from mlxbert.nn.ops import backend
    from mlxbert.train.loop.data_order import Epochs, Training
    from mlxbert.train.loop.gradients import install
    from mlxbert.train.loop.training_run import Run
    from mlxbert.train.options.loop_options import TrainingOptions

    options = TrainingOptions(
        epochs=setting.epochs, lr=setting.lr, batch_size=setting.batch_size, warmup=WARMUP, weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP, seed=seed,
    )  # fmt: skip
    training = Run(
        Training(
            network=model.network, objective=objective, examples=examples, place=str,
            order=Epochs(examples, options), options=options,
            dtype=mx.float32, evaluate=None, streams=max(backend().workers(), 1),
        ),
        None,
    )  # fmt: skip
    spent = timed(lambda: list(training.events()))
    install(model.network, training.best())
    return {**spent, "steps": training.steps}


def train_theirs(
    model: Any, collator: Any, train: Any, setting: Setting, seed: int, gpu: bool
) -> tuple[Any, dict[str, Any]]:
    """Trains a model of transformers without validation. Returns the trainer, the times, and the number of steps.

    The order of the examples is the same as in `train_ours`. transformers loads a checkpoint in the dtype of its
    configuration, and would train a float16 checkpoint and its optimizer in float16: both sides train in float32.
    """
    from transformers import Trainer, TrainingArguments

    from mlxbert.train.loop.data_order import batches

    epochs = itertools.count()

    class SameOrder:
        """Yields the numbers of the examples of the next epoch."""

        def __len__(self) -> int:
            return len(train)

        def __iter__(self) -> Iterator[int]:
            return itertools.chain(*batches(len(train), setting.batch_size, seed, next(epochs)))

    class Ordered(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: object) -> Any:
            return SameOrder()

    model.float()
    steps = -(-len(train) // setting.batch_size) * setting.epochs
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, num_train_epochs=setting.epochs, learning_rate=setting.lr, warmup_steps=round(WARMUP * steps),
            weight_decay=WEIGHT_DECAY, max_grad_norm=CLIP, per_device_train_batch_size=setting.batch_size,
            per_device_eval_batch_size=32, save_strategy="no", report_to=[], seed=seed, use_cpu=not gpu,
            logging_steps=50, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Ordered(model, options, train_dataset=train, data_collator=collator)
        return trainer, {**timed(trainer.train), "steps": steps}


def timed(train: Callable[[], object]) -> dict[str, float]:
    """The wall and CPU seconds of training."""
    wall, cpu = time.perf_counter(), time.process_time()
    train()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def use_cores(args: argparse.Namespace, count: int = 1) -> None:
    """Restricts this process to `count` cores, unless it computes on a GPU."""
    if not args.gpu:
        keep_to_cores(count)


def run_missing(parser: argparse.ArgumentParser, names: Collection[str], run: Run, kinds: Collection[str] = ()) -> None:
    """Runs each set and seed that is missing from the file of results, and appends a line of JSON for each.

    Args:
        parser: A parser with the options of these runs; the common arguments are added: SETS MODEL RESULTS `--only`
            `--seeds` `--first` `--gpu`.
        names: The sets.
        run: Trains once; takes the name of a set, a seed and the arguments, and returns the values to write.
        kinds: Options that identify a run, in addition to its set and its seed.
    """
    parser.add_argument("sets", type=Path)
    parser.add_argument("model")
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", choices=list(names), action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, help="the number of training examples, drawn at random")
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU; otherwise on the CPU")
    args = parser.parse_args()
    os.environ["MLXBERT_DEVICE"] = "gpu" if args.gpu else "cpu"
    earlier = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    for seed in range(args.seeds):
        for name in args.only or names:
            key = {"set": name, "seed": seed, **{kind: getattr(args, kind) for kind in (*kinds, "first", "gpu")}}
            if not any(key.items() <= {"gpu": False, **line}.items() for line in earlier):
                result = {**key, **run(name, seed, args)}
                with args.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print(result, flush=True)
