"""A checked call of `finetune`: what decides its result, and the command line that repeats it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine import device as devices
from mlxbert.machine.cores import training_workers
from mlxbert.machine.device import BLAS, dtype_name, mx
from mlxbert.machine.distributed import Group
from mlxbert.training.objectives.teacher import Teacher
from mlxbert.training.options import TrainingOptions
from mlxbert.training.plan import Plan, Source
from mlxbert.training.task_options import TASKS, defaults_of
from mlxbert.version import __version__

LORA_RATE = 10  # adapters begin at 0 and are small: they need larger steps than the weights beside them
_FEW_UPDATES, _MOST_EPOCHS = 300, 20  # of the default number of epochs
_NOT_SHOWN = {"on_progress", "dry_run", "overwrite", "check", "options"}


@dataclass(frozen=True, kw_only=True)
class Command:
    """A call of `finetune`, checked.

    Attributes:
        source: The model that training starts from.
        target: The folder to write.
        dtype: The dtype of computation.
        options: How it is trained.
        variants: The options in which the runs differ.
        overwrite: Whether existing results and unfinished work are replaced.
        dry_run: Whether to stop before training.
        check: Whether the finished folder is compared with transformers.
        group: The processes.
        line: The command line of this call; `None` where the data are not files.
        teacher: The model that is learned from, if there is one.
    """

    source: Source
    target: Path
    dtype: mx.Dtype
    options: TrainingOptions
    variants: tuple[Mapping[str, Any], ...]
    overwrite: bool
    dry_run: bool
    check: bool
    group: Group
    line: str | None
    teacher: Teacher | None = None


def with_defaults(options: TrainingOptions, given: Mapping[str, Any], plan: Plan) -> TrainingOptions:
    """The options with epochs and learning rate that suit data and model, where they are not given."""
    updates = -(-len(plan.train.examples) // (options.batch_size * options.accumulate))
    # Few examples need more epochs: below some hundred updates even the head is not trained.
    epochs = min(max(TrainingOptions.epochs, -(-_FEW_UPDATES // updates)), _MOST_EPOCHS)
    lr = usual_rate(plan.objective.config.hidden_size)
    lr *= plan.objective.lr_factor * (1 if options.lora is None else LORA_RATE)
    usual = {"epochs": epochs, "lr": lr}
    chosen = usual | {name: given[name] for name in usual if name in given}
    return replace(options, **chosen)


def usual_rate(width: int) -> float:
    """The learning rate for a model of some width; those of models 768 and 1,024 wide are BERT's."""
    return 1e-4 if width < 512 else 5e-5 if width < 1000 else 2e-5  # narrower ones need larger steps


def compute_dtype(name: str) -> mx.Dtype:
    """The dtype to compute in; `auto` is bfloat16 on CUDA and float32 elsewhere."""
    chosen = devices.choose_dtype(name)
    cuda = devices.on_gpu() and not mx.metal.is_available()
    return mx.float32 if name == "auto" and not cuda else chosen


def manifest(command: Command, plan: Plan) -> dict[str, Any]:
    """What decides every bit of the result: only with the same manifest does a run resume."""
    return {
        **computed_with(command.dtype, command.group),
        "task": plan.objective.name,
        "model": hash_model(command.source.files),
        **({} if command.teacher is None else command.teacher.manifest()),
        "heads": {head: labels and list(labels.names) for head, labels in plan.heads.items()},
        "options": {**command.options.to_dict(), **plan.objective.settings()},
        "variants": [dict(variant) for variant in command.variants],
        "sha256": dict(plan.sha256),
        "training_examples": len(plan.train.examples),
        "validation_examples": len(plan.valid.examples),
    }


def computed_with(dtype: mx.Dtype, group: Group) -> dict[str, Any]:
    """What decides the bits of a result besides what is trained: versions, device, processes."""
    return {
        "mlxbert": __version__,
        "mlx": metadata.version("mlx"),
        "dtype": dtype_name(dtype),
        "device": "gpu" if devices.on_gpu() else "cpu",
        "blas": BLAS.name,
        "streams": len(training_workers()),
        "processes": group.size,
    }


def command_line(task: str, given: Mapping[str, Any]) -> str | None:
    """The command that does the same as a call of `finetune`; `None` where the data are not files.

    Args:
        task: The name of the task.
        given: The arguments of the call.
    """
    words = ["mlxbert", "finetune", task]
    defaults = {"dtype": "auto", "device": "auto", "seeds": 1, **(defaults_of(task) if task in TASKS else {})}
    for name, value in {**given, **given.get("options", {})}.items():
        if name in _NOT_SHOWN or name == "task" or value is None or (value is False and name != "normalize"):
            continue
        option = f"--{name.replace('_', '-')}"
        if name in ("train", "valid"):
            files = [value] if isinstance(value, str | Path) else value  # or a table, which compares to no default
            if not isinstance(files, list | tuple) or not all(isinstance(file, str | Path) for file in files):
                return None
            words += [word for file in files for word in (option, str(file))]
        elif value == defaults.get(name):
            continue
        elif name == "sweep":
            words += [word for key, found in value.items() for word in (option, f"{key}={','.join(map(str, found))}")]
        elif isinstance(value, bool):
            words.append(option if value else f"--no-{name}")
        else:
            words += [option, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    return shlex.join(words)
