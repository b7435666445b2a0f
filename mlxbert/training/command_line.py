"""The arguments of a call to `finetune`, and the command line that repeats the call."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from mlxbert.data.validation_split import check_fraction
from mlxbert.errors import ArgumentError
from mlxbert.readers.text_lines import UTF8, check_encoding
from mlxbert.training.options.loop_options import check_sweep
from mlxbert.training.options.training_tasks import TASKS
from mlxbert.weights.model_source import ModelRef, check_source

Data = str | Path | Iterable[Any]


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments:
    """The arguments of `finetune` that determine its result, in the order in which `command_line` writes them."""

    train: Data
    output: str | Path
    valid: Data | None = None
    model: str | Path
    adapter: str | Path | None = None
    teacher: str | Path | None = None
    revision: str | None = None
    offline: bool = False
    dtype: str = "auto"
    device: str = "auto"
    format: str | None = None
    no_header: bool = False
    encoding: str = UTF8
    validation_fraction: float | None = None
    seeds: int = 1
    sweep: Mapping[str, Any] | None = None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        check_fraction(self.valid, self.validation_fraction)
        if not isinstance(self.sweep, Mapping | None):
            raise ArgumentError(
                f"sweep is {self.sweep!r:.60}, expected lists of values by option: {{'lr': [1e-5, 2e-5]}}"
            )

    def ref(self) -> ModelRef:
        """Returns where to find the model that training starts from, with the dtype and the device."""
        check_source(self.model, "model")
        return ModelRef(self.model, self.adapter, self.revision, self.offline, self.dtype, self.device)

    def variants(self, seed: int) -> tuple[Mapping[str, Any], ...]:
        """Returns the varied options of each run: every combination of the sweep, once for each seed."""
        return tuple(
            {**combination, "seed": combination.get("seed", seed) + number}
            for combination in check_sweep(self.sweep, self.seeds)
            for number in range(self.seeds)
        )

    def command_line(self, task: str) -> str | None:
        """Returns the equivalent command; `None` if the data are not files."""
        if not all(_is_files(data) for data in (self.train, self.valid)):
            return None
        named = {field.name: field for field in fields(self) if field.name != "options"}
        defaults = {name: field.default for name, field in named.items() if field.default is not MISSING}
        defaults |= TASKS[task].defaults if task in TASKS else {}
        words = ["mlxbert", "finetune", task]
        for name, value in {**{name: getattr(self, name) for name in named}, **self.options}.items():
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
    """Yields the words of an option for the command line; the option is repeated for each value."""
    return (word for value in values for word in (_flag(name), str(value)))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
