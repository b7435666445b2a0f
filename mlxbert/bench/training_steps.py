"""Steps of training to measure, of mlxbert's loop and of torch: for `mlxbert bench` and `benchmarks/train.py`.

Importing it loads neither MLX nor torch, see `mlxbert.bench.worker`.

Shapes: B texts of a batch, L length.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxbert.bench.worker_job import Spent

if TYPE_CHECKING:
    from mlxbert.model import Model
    from mlxbert.training.loop.data_order import Epochs
    from mlxbert.training.loop.training_run import Run
    from mlxbert.training.options.loop_options import TrainingOptions

BATCHES = 20  # that are different: an epoch of them uses about as many different words as text does
_EPOCHS = 10**5
LR, WEIGHT_DECAY, CLIP = 5e-5, 0.01, 1.0
_CLASSES = 2
Step = Callable[[], Spent]
Ids = list[list[int]]


def token_ids(lengths: Sequence[int], vocab_size: int, pad_id: int) -> list[Ids]:
    """The ids of `BATCHES` batches with texts of these lengths, always the same ones, in a Zipf distribution."""
    rng = random.Random(0)
    words = [word for word in range(vocab_size) if word != pad_id]
    weights = [*itertools.accumulate(1 / (rank + 3) for rank in range(len(words)))]
    return [[rng.choices(words, cum_weights=weights, k=length) for length in lengths] for _ in range(BATCHES)]


def measured(make: Callable[[Sequence[int]], Step]) -> Callable[[Sequence[int]], Spent]:
    """Measures a step on texts of given lengths; what the steps of other lengths needed is freed before."""
    made: dict[tuple[int, ...], Step] = {}

    def measure(lengths: Sequence[int]) -> Spent:
        if (shape := tuple(lengths)) not in made:
            made.clear()
            made[shape] = make(lengths)
        return made[shape]()

    return measure


class Clock:
    """Measures what a step takes; begins when it is made."""

    def __init__(self) -> None:
        self._begun, self._cpu = time.perf_counter(), time.process_time()

    def spent(self, computed: float | None) -> Spent:
        """What the step took, which ends now.

        Args:
            computed: When its forward and backward passes were done, by `time.perf_counter`; `None` for a GPU, which
                would have to be waited for to know.

        Returns:
            `seconds`; on a CPU also `network` and `update`, the seconds before and after `computed`, `cpu`, the seconds
            of all cores, and `busy`, their share of what the cores of this process had.
        """
        ended, cpu = time.perf_counter(), time.process_time() - self._cpu
        seconds = ended - self._begun
        if computed is None:
            return {"seconds": seconds}
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        parts = {"network": computed - self._begun, "update": ended - computed}
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
    """The next update of mlxbert's loop, with each call.

    On a GPU the loop starts an update before the one before it is finished. The first call measures an update that none
    follows; each later one measures one update, too, that which it starts.

    Args:
        model: A model with float32 weights.
        objective: What is trained.
        batches: Batches of examples of the same number, which come again and again.
        dtype: The dtype to compute in.
        trained: The names of the parameters that are trained; `None` for all.
        checkpointing: Whether activations are computed again in the backward pass.
    """
    from mlxbert.machine.device import mx, on_gpu

    run = _run(model, objective, batches, dtype, trained, checkpointing=checkpointing)
    events, all_steps = run.events(), run.steps
    if ahead := on_gpu():
        run.order.end_after(1)  # nothing follows the first update, and it is measured alone

    def update() -> None:
        next(events)
        mx.synchronize()  # a GPU still computes the update

    def step() -> Spent:
        clock = Clock()
        update()
        spent = clock.spent(None if on_gpu() else run.computed)
        if ahead and run.steps == 1:
            run.order.end_after(all_steps)
            update()  # and the one that the loop starts before it ends, so that each later call waits for one
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
    """A run that no step of `our_step` brings to an end; nothing is evaluated or saved."""
    from mlxbert.machine.cores import training_workers
    from mlxbert.machine.device import mx
    from mlxbert.training.loop.training_inputs import Training
    from mlxbert.training.loop.training_run import Run
    from mlxbert.training.options.loop_options import TrainingOptions

    options = TrainingOptions(
        batch_size=len(batches[0]), epochs=_EPOCHS, lr=LR, weight_decay=WEIGHT_DECAY, max_grad_norm=CLIP, warmup=0.0,
        checkpointing=checkpointing,
    )  # fmt: skip
    examples = [example for batch in batches for example in batch]
    return Run(
        Training(
            network=model.network, objective=objective, examples=examples, place=str, order=_in_turn(examples, options),
            options=options, dtype=getattr(mx, dtype), evaluate=None, trained=trained,
            streams=max(len(training_workers()), 1),
        ),
        None,
    )  # fmt: skip


def _in_turn(examples: Sequence[Any], options: "TrainingOptions") -> "Epochs":
    """The order in which batches are as they are given, not shuffled."""
    from mlxbert.training.loop.data_order import Epochs

    size = options.batch_size

    class InTurn(Epochs):
        def batches(self, step: int) -> list[list[int]]:
            first = step * size % len(examples)
            return [[*range(first, first + size)]]

    return InTurn(examples, options)


def our_classifier(model: "Model", ids: Sequence[Ids]) -> tuple[Any, list[list[Any]]]:
    """What trains a classifier of two classes, and its batches of examples with these ids."""
    from mlxbert.text.encoding import Encoding
    from mlxbert.training.objectives.classify import Classify
    from mlxbert.training.objectives.objective import Example

    none: list[int | None] = []
    objective = Classify()
    objective.bind(model)

    def example(row: list[int], number: int) -> Example:
        length = len(row)
        encoding = Encoding(row, [0] * length, [(0, 0)] * length, none, none, [*range(length)], False)
        return Example(encoding, number % _CLASSES)

    return objective, [[example(row, number) for number, row in enumerate(batch)] for batch in ids]


def their_step(model: Any, batches: Sequence[Mapping[str, Any]], dtype: str) -> Step:
    """The next update in torch, as the Trainer of transformers makes it, with each call.

    The clock is read when the device has nothing left to compute.

    Args:
        model: A model of transformers with float32 weights, in training mode.
        batches: Arguments of the model, which come again and again.
        dtype: The dtype to compute in.
    """
    import torch

    trained = [one for one in model.parameters() if one.requires_grad]
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
    """A step that is followed by the checks that are left, which are not measured and then removed.

    Before the first step they would do some of what it has to do. Where the step fails, a check may say why.
    """

    def call() -> Spent:
        try:
            return step()
        finally:
            while checks:
                checks.pop()()

    return call


def wait_for(device: str) -> None:
    """Waits until torch has computed all that a device was given; a CPU has when a call returns.

    Args:
        device: Torch's type of the device: `mps`, `cuda` or `cpu`.
    """
    import torch

    if device == "mps":
        torch.mps.synchronize()
    elif device == "cuda":
        torch.cuda.synchronize()


def their_classifier(ids: Sequence[Ids], pad_id: int, device: str = "cpu") -> list[dict[str, Any]]:
    """The same batches as those of `our_classifier` as arguments of a model of transformers, padded on the right."""
    import torch

    def batch(rows: Ids) -> dict[str, Any]:
        lengths = torch.tensor([*map(len, rows)])
        longest = max(map(len, rows))
        mask = torch.arange(longest) < lengths[:, None]
        found = {
            "input_ids": torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows]),
            "labels": torch.arange(len(rows)) % _CLASSES,
            **({} if mask.all() else {"attention_mask": mask.long()}),
        }
        return {name: one.to(device) for name, one in found.items()}

    return [batch(rows) for rows in ids]
