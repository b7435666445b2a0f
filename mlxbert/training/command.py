"""The command line that repeats a call of `finetune`."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxbert.readers.lines import UTF8
from mlxbert.training.options.tasks import TASKS

_NOT_SHOWN = {"on_progress", "on_phase", "dry_run", "overwrite", "check", "options"}


def command_line(task: str, given: Mapping[str, Any]) -> str | None:
    """The command that does the same as a call of `finetune`; `None` where the data are not files.

    Args:
        task: The name of the task.
        given: The arguments of the call.
    """
    words = ["mlxbert", "finetune", task]
    own = TASKS[task].defaults if task in TASKS else {}
    defaults = {"dtype": "auto", "device": "auto", "seeds": 1, "encoding": UTF8, **own}
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
