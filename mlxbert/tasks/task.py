"""The base of all tasks, and of their public functions: `Task` is what a new task subclasses."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast

from mlxbert.counterparts import not_one_of
from mlxbert.errors import InputError, MlxbertError, TooLargeError
from mlxbert.machine.cores import inference
from mlxbert.machine.device import nn
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.results.result import Failure
from mlxbert.tasks.argument_checks import check_inputs, check_model
from mlxbert.tasks.keywords import CallOptions
from mlxbert.tasks.options import OptionsWithOverflow
from mlxbert.tasks.runner import run, run_batches
from mlxbert.text.batch import WINDOW, window_size
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage

Item = TypeVar("Item")
Output = TypeVar("Output")
Result = TypeVar("Result")
AnyJob = TypeVar("AnyJob", bound="PreparedItem[Any]")
Numbers = TypeVar("Numbers")
CHARACTERS = 6  # of a token, at most: of a long text that has not been split, fewer tokens are never expected
RESULT_BYTES = 600  # of a result that holds a few values, besides the texts that were given
MOST_BYTES = 2**30  # of a result
_TOKEN_BYTES = 260  # of a token of an `Encoding`
_SPECIAL = 4  # special tokens of an input, at most


@dataclass(frozen=True)
class PreparedItem(Generic[Item]):
    """An item, ready for the model.

    Attributes:
        item: The item as it was given.
        encodings: The inputs of the model: one, or the windows that cover the item.
        truncated: Whether the encodings leave out a part of the item.
        unknown: How many tokens of the text are not in the vocabulary, where the task counts them.
        only_unknown: Whether there is no other token.
    """

    item: Item
    encodings: Sequence[Encoding]
    truncated: bool
    unknown: int = field(default=0, kw_only=True)
    only_unknown: bool = field(default=False, kw_only=True)

    @property
    def tokens(self) -> int:
        """How many tokens there are to compute; of those that are not known yet, an estimate."""
        return sum(map(len, self.encodings))


class Task(ABC, Generic[Item, AnyJob, Output, Result]):
    """A model and checked options; `prepare` and `compute` turn items into results.

    A subclass sets `name` and the type of `options`, and implements `prepare`, `forward`, `read` and `result`.

    Attributes:
        name: The task's name in `mlxbert.nn.heads.TASKS`.
        smaller: What makes results smaller that are too large.
        model: The model that computes.
        tokenizer: Splits the texts.
        options: The options, which have checked themselves.
        batch_tokens: Tokens per batch, padding included, `None` for the default; an engine changes it as it computes.
        usage: Counts what is computed.
        inputs: How many inputs of the model an item becomes, where each becomes many.
        by_row: See `run_batches`.
    """

    name: ClassVar[str]
    smaller: ClassVar[str] = "split the text"
    by_row: ClassVar[bool] = True
    inputs = 1
    options: OptionsWithOverflow

    def __init__(
        self,
        model: Model,
        options: OptionsWithOverflow,
        *,
        usage: Usage | None = None,
    ) -> None:
        check_model(model)
        model.require(self.name)
        self.model, self.options, self.usage = model, options, usage
        self.tokenizer, self.batch_tokens = model.tokenizer, options.batch_tokens

    @property
    def window(self) -> int:
        """How many items are prepared and computed together."""
        return max(window_size(self.output_bytes) // self.inputs, 1)

    @property
    def output_bytes(self) -> int:
        """About how much memory the outputs of an input take, where it may be much; see `window_size`."""
        return 0

    def size(self, item: Item, units: int) -> int:
        """About how much memory the result of an item takes, in bytes, the item itself left out.

        Args:
            item: The item.
            units: How many parts the result has: words, spans; see `units`.
        """
        return RESULT_BYTES

    def units(self, job: AnyJob) -> int:
        """How many parts the result of a job has, at most."""
        return job.tokens

    def most_units(self, item: Item) -> int:
        """How many parts the result of an item has that is not split into tokens yet, at most."""
        return characters_of(item) + _SPECIAL

    def most_bytes(self, item: Item) -> int:
        """How much memory an item may take that is not split into tokens yet, with its tokens and its result."""
        tokens = characters_of(item) // 2 + _SPECIAL  # few texts have more
        if self.options.overflow != "window":
            tokens = min(tokens, self.tokenizer.max_length)
        return tokens * self.inputs * _TOKEN_BYTES + self.size(item, self.most_units(item))

    def job(self, item: Item) -> AnyJob:
        """What `prepare` makes of an item, if the result will not be too large."""
        job = self.prepare(item)
        if self.size(item, self.most_units(item)) <= MOST_BYTES:  # known at once
            return job
        size = self.size(item, self.units(job))
        if size > MOST_BYTES:
            message = f"the result would take {size / 1e6:,.0f} MB, expected at most {MOST_BYTES / 1e6:,.0f}"
            raise TooLargeError(message, hint=self.smaller)
        return job

    def is_item(self, given: object) -> bool:
        """Whether `given` is one item and not an iterable of items."""
        return isinstance(given, str)

    def is_mine(self) -> bool:
        """Whether this process computes the next batch; asked once for each."""
        return True

    @abstractmethod
    def prepare(self, item: Item) -> AnyJob:
        """Tokenizes an item; runs on any thread."""

    def texts(self, item: Item) -> Sequence[str]:
        """The texts that `prepare` splits into tokens, so that those of many items are split at once."""
        return item if isinstance(item, tuple | list) else [cast(str, item)]

    @contextmanager
    def together(self, items: Sequence[Item]) -> Iterator[None]:
        """Within it, the texts of these items are split already."""
        found: list[str] = []
        for item in items:
            with suppress(InputError):  # `prepare` raises it, too
                found += self.texts(item)
        with self.tokenizer.together(found):
            yield

    @abstractmethod
    def forward(self, batch: Batch, parts: Sequence[tuple[AnyJob, int]]) -> Any:
        """Runs the network on a batch; reads nothing, as a GPU gets the next batch before the values are needed.

        Args:
            batch: The encodings of `parts`, padded.
            parts: For each row its job and the number of the encoding within the job.

        Returns:
            A lazy MLX array, or several.
        """

    @abstractmethod
    def read(self, found: Any, parts: Sequence[tuple[AnyJob, int]]) -> Sequence[Output]:
        """The outputs of a batch.

        Args:
            found: What `forward` returned, evaluated.
            parts: As there.

        Returns:
            One output per row, as Python or NumPy values.
        """

    @abstractmethod
    def result(self, job: AnyJob, outputs: Sequence[Output]) -> Result:
        """Makes the result of a job from the outputs of its encodings."""

    def compute(self, jobs: Sequence[AnyJob]) -> list[Result]:
        """Computes the results of jobs, in their order and with the network in evaluation mode."""
        return list(self.results(jobs))

    def results(self, jobs: Sequence[AnyJob]) -> Iterator[Result]:
        """Those of `compute`, each as soon as it is known; a GPU gets the first batch at the call."""
        return self._results(jobs, self.outputs(jobs))

    def _results(self, jobs: Sequence[AnyJob], outputs: Iterator[Sequence[Output]]) -> Iterator[Result]:
        for job, found in zip(jobs, outputs, strict=True):
            if self.usage is not None:
                self.usage.texts += 1
                self.usage.truncated += job.truncated
                self.usage.only_unknown += job.only_unknown
            yield self.result(job, found)

    def outputs(self, jobs: Sequence[AnyJob]) -> Iterator[Sequence[Output]]:
        """The outputs of the encodings of each job, in their order, each as soon as it is known."""
        parts = [(job, number) for job in jobs for number in range(len(job.encodings))]
        encodings = [job.encodings[number] for job, number in parts]

        def forward(batch: Batch, group: list[int]) -> Any:
            self.model.require(self.name)  # again: an iterator can move to another thread
            with evaluation_mode(self.model.network):
                return self.forward(batch, [parts[number] for number in group])

        def read(found: Any, group: list[int]) -> Sequence[Output]:
            return self.read(found, [parts[number] for number in group])

        found = run_batches(
            encodings, forward, read, self.model.config, self.batch_tokens, self.usage, mine=self.is_mine,
            by_row=self.by_row,
        )  # fmt: skip
        return ([next(found) for _ in job.encodings] for job in jobs)

    def run(
        self, items: Iterable[Item | InputError], on_error: str = "raise", *, early: bool = True
    ) -> Iterator[Result | Failure]:
        """Prepares and computes any number of items; see `run`."""
        usual = max(WINDOW // self.inputs, 1)
        return run(
            items, self.job, self.results, on_error, self.window, self.together, usual=usual, early=early
        )  # fmt: skip


def one_or_many(
    make: Callable[..., Task[Any, Any, Any, Any]],
    model: Model,
    items: Any,
    options: Any,
    call: CallOptions,
    *,
    name: str = "texts",
    **internal: Any,
) -> Any:
    """What the public function of a task returns: the result of one item, or an iterator of the results of several.

    Args:
        make: The class of the task, or a function that makes the task.
        model: The model that the function was given.
        items: One item, which raises whatever `on_error` says, or an iterable of items.
        options: The options of the task.
        call: What the caller wants besides the results.
        name: What the function calls its items.
        internal: More arguments of `make`.
    """
    check_model(model, items)
    task = make(model, options, usage=call.usage, **internal)
    if task.is_item(items):
        return task.compute([task.job(items)])[0]
    return task.run(check_inputs(items, name, "one or an iterable of them"), call.on_error)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Inference with a network in evaluation mode; afterwards every module is back in its own mode."""
    modes = [(module, module.training) for module in _modules(network)]
    if any(training for _, training in modes):
        network.eval()
    try:
        with inference():
            yield
    finally:
        for module, training in modes:  # outer modules come first: `train` also sets those within
            if module.training != training:
                module.train(training)


def _modules(value: object) -> Iterator[nn.Module]:
    """A module and all within it, the outer ones first; `nn.Module.modules` takes a tenth of the time of a sentence."""
    if isinstance(value, nn.Module):
        yield value
    if isinstance(value, dict | list):  # a module is a dictionary of what it consists of
        for child in value.values() if isinstance(value, dict) else value:
            yield from _modules(child)


def characters_of(item: object) -> int:
    """How many characters the texts of an item have; of what is not an item, none."""
    texts = item if isinstance(item, tuple | list) else (item,)
    return sum(len(text) for text in texts if isinstance(text, str))


def check_no_window(options: OptionsWithOverflow) -> None:
    """Refuses windows, for a task that has a use for only one input of the model."""
    if options.overflow == "window":
        raise not_one_of("overflow", options.overflow, ("truncate", "error"))


def check_finite(values: Numbers, what: str = "scores") -> Numbers:
    """Returns numbers that a model has computed, a list or an array of NumPy, or refuses them if one is not finite."""
    if isinstance(values, list):
        finite = all(map(math.isfinite, values))
    else:
        import numpy as np

        finite = bool(np.isfinite(cast(Any, values)).all())
    if not finite:
        raise MlxbertError(
            f"the model computed {what} that are not finite (NaN or infinite)",
            hint="load it with dtype='float32'; weights that are not finite cause this, too",
        )
    return values
