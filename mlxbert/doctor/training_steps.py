"""Runs and times steps of training in mlxbert's loop and in torch, for `mlxbert bench` and `benchmarks/train.py`.

Importing this module loads neither MLX nor torch (see `mlxbert.doctor.worker` for the reason).
"""

import functools
import itertools
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxbert.doctor.worker_job import Spent

if TYPE_CHECKING:
    from mlxbert.model import Model
    from mlxbert.train.loop.data_order import Epochs
    from mlxbert.train.loop.training_run import Run
    from mlxbert.train.options.loop_options import TrainingOptions

BATCHES = 20  # different batches: together they have about as many different tokens as real text
_EPOCHS = 10**5
LR, WEIGHT_DECAY, CLIP = 5e-5, 0.01, 1.0
_CLASSES = 2
Step = Callable[[], Spent]
Ids = list[list[int]]


def token_ids(lengths: Sequence[int], vocab_size: int, pad_id: int) -> list[Ids]:
    """Returns `BATCHES` batches of token ids, the same in each call and with a Zipf distribution."""
    rng = random.Random(0)
    words, weights = _vocabulary(vocab_size, pad_id)
    return [[rng.choices(words, cum_weights=weights, k=length) for length in lengths] for _ in range(BATCHES)]


@functools.cache
def _vocabulary(size: int, pad_id: int) -> tuple[list[int], list[float]]:
    words = [word for word in range(size) if word != pad_id]
    return words, [*itertools.accumulate(1 / (rank + 3) for rank in range(len(words)))]


def measured(make: Callable[[Sequence[int]], Step]) -> Callable[[Sequence[int]], Spent]:
    """Returns a function that takes the lengths of the texts in a batch, runs a step on them, and returns its times.

    The first call with these lengths makes the step with `make`. Before that, it frees the step for other lengths.
    """
    steps: dict[tuple[int, ...], Step] = {}

    def measure(lengths: Sequence[int]) -> Spent:
        if (shape := tuple(lengths)) not in steps:
            steps.clear()
            steps[shape] = make(lengths)
        return steps[shape]()

    return measure


class Clock:
    """Measures the time of a step, from the creation of the clock on."""

    def __init__(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def spent(self, computed: float | None) -> Spent:
        """Returns the times of the step, which ends now.

        Args:
            computed: The `time.perf_counter` at the end of the forward and backward pass; `None` on a GPU, where
                measuring it would need a synchronization.

        Returns:
            `seconds`, the duration of the step. On a CPU also `network` and `update`, the seconds before and after
            `computed`; `cpu`, the seconds that all cores computed; and `busy`, their share of the available core time.
        """
        ended, cpu = time.perf_counter(), time.process_time() - self._cpu
        seconds = ended - self._started
        if computed is None:
            return {"seconds": seconds}
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        parts = {"network": computed - self._started, "update": ended - computed}
        return {"seconds": seconds, **parts, "cpu": cpu, "busy": cpu / seconds / cores}


def our_step(
    model: "Model",
    objective: Any,
    batches: Sequence[Sequence[Any]],
    dtype: str,
    *,
    trained: frozenset[str] | None = None,
    checkpointing: bool = False,
) -> Step:
    """Returns a function that computes and times the next update of mlxbert's training loop.

    On a GPU, the loop starts an update before the previous one is finished. The first call times a single update; each
    later call times the update that it starts.

    Args:
        batches: Batches with the same number of examples; after the last batch, the first follows again.
    """
    from mlxbert.machine.device import mx, on_gpu

    run = _run(model, objective, batches, dtype, trained, checkpointing=checkpointing)
    events, all_steps = run.events(), run.steps
    if ahead := on_gpu():
        run.order.end_after(1)  # the first update is measured alone

    def update() -> None:
        next(events)
        mx.synchronize()  # a GPU still computes the update

    def step() -> Spent:
        clock = Clock()
        update()
        spent = clock.spent(None if on_gpu() else run.computed)
        if ahead and run.steps == 1:
            run.order.end_after(all_steps)
            update()  # fills the pipeline, so that each later call waits for one update
        return spent

    return step


def _run(
    model: "Model",
    objective: Any,
    batches: Sequence[Sequence[Any]],
    dtype: str,
    trained: frozenset[str] | None,
    *,
    checkpointing: bool,
) -> "Run":
    """Makes a training run that is long enough for any number of steps, without evaluations and saved states."""
    from mlxbert.machine.device import mx
    from mlxbert.nn.ops import backend
    from mlxbert.train.loop.data_order import Training
    from mlxbert.train.loop.training_run import Run
    from mlxbert.train.options.loop_options import TrainingOptions

    options = TrainingOptions(
        batch_size=len(batches[0]), epochs=_EPOCHS, lr=LR, weight_decay=WEIGHT_DECAY, max_grad_norm=CLIP, warmup=0.0,
        checkpointing=checkpointing,
    )  # fmt: skip
    examples = [example for batch in batches for example in batch]
    return Run(
        Training(
            network=model.network, objective=objective, examples=examples, place=str, options=options,
            order=_unshuffled(examples, options), dtype=getattr(mx, dtype), evaluate=None, trained=trained,
            streams=max(backend().workers(), 1),
        ),
        None,
    )  # fmt: skip


def _unshuffled(examples: Sequence[Any], options: "TrainingOptions") -> "Epochs":
    """Returns a data order that does not shuffle the examples."""
    from mlxbert.train.loop.data_order import Epochs

    size = options.batch_size

    class InTurn(Epochs):
        def batches(self, step: int) -> list[list[int]]:
            first = step * size % len(examples)
            return [[*range(first, first + size)]]

    return InTurn(examples, options)


def our_classifier(model: "Model", ids: Sequence[Ids]) -> tuple[Any, list[list[Any]]]:
    """Returns the objective of a classifier with two classes, and batches of examples with these token ids."""
    from mlxbert.text.encoding import Encoding
    from mlxbert.train.objectives.classify import Classify
    from mlxbert.train.objectives.objective import Example

    none: list[int | None] = []
    objective = Classify()
    objective.bind(model)

    def example(row: list[int], number: int) -> Example:
        length = len(row)
        encoding = Encoding(row, [0] * length, [(0, 0)] * length, none, none, [*range(length)], False)
        return Example(encoding, number % _CLASSES)

    return objective, [[example(row, number) for number, row in enumerate(batch)] for batch in ids]


def their_step(model: Any, batches: Sequence[Mapping[str, Any]], dtype: str) -> Step:
    """Returns a function that computes and times the next update in torch, as transformers' Trainer would.

    The time includes waiting until the device has finished.

    Args:
        batches: The keyword arguments of the model for each batch; after the last batch, the first follows again.
    """
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    device, waiting = trained[0].device.type, itertools.cycle(batches)
    scaler = torch.amp.GradScaler(device, enabled=dtype == "float16")

    def step() -> Spent:
        wait_for(device)
        clock, batch = Clock(), next(waiting)
        with torch.autocast(device, getattr(torch, dtype), enabled=dtype != "float32"):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        computed = time.perf_counter()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        wait_for(device)  # a GPU still computes the update
        return clock.spent(computed if device == "cpu" else None)

    return step


def checked(step: Step, checks: list[Callable[[], None]]) -> Step:
    """Returns a function that calls `step` and, after the first call, also calls the checks without timing them.

    If the checks were called first, they would do part of the work of the first step. They are also called if the
    first step fails, because the error of a check may tell the reason.
    """

    def call() -> Spent:
        try:
            return step()
        finally:
            while checks:
                checks.pop()()

    return call


def wait_for(device: str) -> None:
    """Waits until torch has finished all work on a device; does nothing for a CPU."""
    import torch

    if device == "mps":
        torch.mps.synchronize()
    elif device == "cuda":
        torch.cuda.synchronize()


def their_classifier(ids: Sequence[Ids], pad_id: int, device: str = "cpu") -> list[dict[str, Any]]:
    """Returns the batches of `our_classifier` as keyword arguments for a transformers model, padded on the right."""
    import torch

    def batch(rows: Ids) -> dict[str, Any]:
        lengths = torch.tensor([*map(len, rows)])
        longest = max(map(len, rows))
        mask = torch.arange(longest) < lengths[:, None]
        arguments = {
            "input_ids": torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows]),
            "labels": torch.arange(len(rows)) % _CLASSES,
            **({} if mask.all() else {"attention_mask": mask.long()}),
        }
        return {name: array.to(device) for name, array in arguments.items()}

    return [batch(rows) for rows in ids]
