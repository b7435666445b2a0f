"""The command line that repeats a call to `finetune`."""

import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxbert.train.options.training_tasks import TASKS

Data = str | Path | Iterable[Any]
# Arguments on which the result does not depend.
_NO_RESULT = {"task", "overwrite", "dry_run", "check", "on_progress", "on_phase", "options"}


def command_line(call: Callable[..., Any], task: str, given: Mapping[str, Any]) -> str | None:
    """Returns the command that equals a call to `finetune`; `None` if the data are not files."""
    if not all(_is_files(given.get(name)) for name in ("train", "valid")):
        return None
    defaults = {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}
    words = ["mlxbert", "finetune", task]
    arguments = {name: given[name] for name in defaults if name in given and name not in _NO_RESULT}
    defaults |= TASKS[task].defaults if task in TASKS else {}
    for name, value in {**arguments, **given["options"]}.items():
        if name in ("train", "valid"):
            words += _option(name, *([value] if isinstance(value, str | Path) else value or ()))
        elif value is not None and value != defaults.get(name):
            words += _words(name, value)
    return shlex.join(words)


def _is_files(data: Data | None) -> bool:
    """Returns whether data are given as file names, rather than as records or a table."""
    if data is None or isinstance(data, str | Path):
        return True
    return isinstance(data, list | tuple) and all(isinstance(file, str | Path) for file in data)


def _words(name: str, value: Any) -> Iterator[str]:
    """Returns the words that set an option on the command line. The value must differ from the option's default."""
    if name == "sweep":
        return _option(name, *(f"{option}={','.join(map(str, values))}" for option, values in value.items()))
    if value is False:
        return iter([f"--no-{name.replace('_', '-')}"])
    if value is True:
        return iter([_flag(name)])
    return _option(name, ",".join(map(str, value)) if isinstance(value, list | tuple) else value)


def _option(name: str, *values: object) -> Iterator[str]:
    return (word for value in values for word in (_flag(name), str(value)))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
