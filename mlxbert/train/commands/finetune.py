"""`mlxbert finetune …`: one command per task."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mlxbert.cli import session
from mlxbert.cli.shared_options import ComputingOptions, with_options
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError
from mlxbert.readers.input_files import STDIN
from mlxbert.train import command_options
from mlxbert.train.event_outputs import naming, open_sinks, resumable, send
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.options.training_tasks import TASKS


def _command(task: str) -> Callable[..., None]:
    def command(out: command_options.EventOptions, **values: Any) -> None:
        _train(task, out, values)

    spec = TASKS[task]
    data = (
        command_options.TrainingData,
        command_options.DataFiles,
        command_options.SavingOptions,
        command_options.CheckOptions,
    )
    groups = (*data, ComputingOptions, TrainingOptions, command_options.RunOptions)
    return with_options(command, spec.finetune, command_options.task_options(spec, *groups, *spec.groups))


ABOUT = "Train a model on labelled texts."
COMMANDS = {task: _command(task) for task in TASKS}


def _train(task: str, out: command_options.EventOptions, values: dict[str, Any]) -> None:
    sources = [*values["train"], *(values["valid"] or ())]
    if sources.count(STDIN) > 1:
        raise ArgumentError("stdin is given twice, but can be read only once")
    values["sweep"] = command_options.parse_sweep(values["sweep"] or ()) or None
    session.note_builtin("finetune", values["model"])
    piped, dry = STDIN in sources, values["dry_run"]
    if piped:
        console.say("note", "the data come from stdin, so pipe the same data in again to resume an interrupted run")
    with ExitStack() as opened:
        sinks = open_sinks(out, sources, dry=dry, opened=opened)
        from mlxbert.train.finetune import finetune

        name = opened.enter_context(naming(sinks))
        update = opened.enter_context(progress.download(values["model"], before=lambda: name("")))
        events = finetune(task, **values, on_progress=update, on_phase=name)
        with resumable(None if dry else values["output"], opened, piped=piped):
            send(events, sinks, lambda: name(""), f"finetune {task}")
