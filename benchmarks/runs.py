"""Training that is compared: hyper-parameters, the same for both sides, and which runs are still missing."""

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
    """A set and its hyper-parameters.

    Attributes:
        task: A task of `mlxbert finetune`.
        epochs: Passes over the training data.
        metric: The score that is compared.
        first: Only that many training examples, from the start of the file; `None` for all.
        tested: Only that many test ones.
        max_length: Tokens of an input.
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
    """That many records, always the same ones, in their order; `None` for all."""
    if count is None:
        return [*records]
    return [records[number] for number in sorted(random.Random(0).sample(range(len(records)), count))]


def train_ours(model: Any, objective: Any, examples: Sequence[Any], setting: Setting, seed: int) -> dict[str, Any]:
    """Trains a model of mlxbert without validation; it has the weights after the last update. Returns what it took."""
    from mlxbert.machine.cores import training_workers
    from mlxbert.machine.device import mx
    from mlxbert.training.loop.data_order import Epochs
    from mlxbert.training.loop.gradients import install
    from mlxbert.training.loop.training_inputs import Training
    from mlxbert.training.loop.training_run import Run
    from mlxbert.training.options.loop_options import TrainingOptions

    options = TrainingOptions(
        epochs=setting.epochs, lr=setting.lr, batch_size=setting.batch_size, warmup=WARMUP, weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP, seed=seed,
    )  # fmt: skip
    training = Run(
        Training(
            network=model.network, objective=objective, examples=examples, place=str,
            order=Epochs(examples, options), options=options,
            dtype=mx.float32, evaluate=None, streams=max(len(training_workers()), 1),
        ),
        None,
    )  # fmt: skip
    spent = timed(lambda: list(training.events()))
    install(model.network, training.best())
    return {**spent, "steps": training.steps}


def train_theirs(
    model: Any, collator: Any, train: Any, setting: Setting, seed: int, gpu: bool
) -> tuple[Any, dict[str, Any]]:
    """Trains a model of transformers without validation. Returns the trainer, and what it took.

    The examples come in the order in which `train_ours` takes them. transformers loads a checkpoint in the dtype of its
    configuration and would train a float16 one in float16, its optimizer too: both sides train in float32.
    """
    from transformers import Trainer, TrainingArguments

    from mlxbert.training.loop.data_order import batches

    epochs = itertools.count()

    class SameOrder:
        """The examples of the next epoch."""

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
    """The seconds that training takes: of a clock, and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    train()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def use_cores(given: argparse.Namespace, count: int = 1) -> None:
    """Keeps this process to that many cores, unless it computes on a GPU."""
    if not given.gpu:
        keep_to_cores(count)


def run_missing(parser: argparse.ArgumentParser, names: Collection[str], run: Run, kinds: Collection[str] = ()) -> None:
    """Runs every set with every seed that the file of results does not hold, and adds a line of JSON for each.

    Args:
        parser: Has the options of these runs; what all runs need is added: SETS MODEL RESULTS `--only` `--seeds`
            `--first` `--gpu`.
        names: The sets.
        run: Trains once: the name of a set, a seed, and the arguments, to what is written.
        kinds: Options that make a run another one, next to its set and its seed.
    """
    parser.add_argument("sets", type=Path)
    parser.add_argument("model")
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", choices=list(names), action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, help="only that many training examples, drawn at random")
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU; otherwise on the CPU")
    given = parser.parse_args()
    os.environ["MLXBERT_DEVICE"] = "gpu" if given.gpu else "cpu"
    known = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    for seed in range(given.seeds):
        for name in given.only or names:
            one = {"set": name, "seed": seed, **{kind: getattr(given, kind) for kind in (*kinds, "first", "gpu")}}
            if not any(one.items() <= {"gpu": False, **line}.items() for line in known):
                result = {**one, **run(name, seed, given)}
                with given.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print(result, flush=True)
