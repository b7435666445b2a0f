"""The base class of all tasks, and of their public functions: a new task subclasses `Task`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast

from mlxbert.errors import InputError, TooLargeError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import nn
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.ops import inference
from mlxbert.other_libraries import not_one_of
from mlxbert.readers.stream import characters_of
from mlxbert.results.result import Failure
from mlxbert.tasks.argument_checks import check_inputs, check_model
from mlxbert.tasks.keywords import CallOptions
from mlxbert.tasks.options import OptionsWithOverflow
from mlxbert.tasks.runner import Pause, no_pause, run, run_batches
from mlxbert.text.batch import WINDOW, window_size
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage

Item = TypeVar("Item")
Output = TypeVar("Output")
Result = TypeVar("Result")
AnyJob = TypeVar("AnyJob", bound="PreparedItem[Any]")
Numbers = TypeVar("Numbers")
CHARACTERS = 6  # maximum characters per token, to estimate how many tokens a long text has
RESULT_BYTES = 600  # the memory of a result with a few values, without its input texts
MOST_BYTES = 2**30  # the maximum memory of a result
_TOKEN_BYTES = 260  # the memory of a token in an `Encoding`
_SPECIAL = 4  # maximum number of special tokens of an input


@dataclass(frozen=True)
class PreparedItem(Generic[Item]):
    """An item, ready for the model."""

    item: Item  # the original item
    encodings: Sequence[Encoding]  # the inputs of the model: one, or the windows that cover the item
    truncated: bool  # whether the encodings leave out a part of the item
    # The number of tokens of the text that are not in the vocabulary, if the task counts them.
    unknown: int = field(default=0, kw_only=True)
    only_unknown: bool = field(default=False, kw_only=True)  # whether all tokens are unknown

    @property
    def tokens(self) -> int:
        """The number of tokens to compute; an estimate until the text is completely tokenized."""
        return sum(map(len, self.encodings))


class Task(ABC, Generic[Item, AnyJob, Output, Result]):
    """A model and its checked options; `prepare` and `compute` turn items into results.

    A subclass sets `name` and the type of `options`, and implements `prepare`, `forward`, `read` and `result`.

    Attributes:
        name: The task's name in `mlxbert.nn.heads.TASKS`.
        smaller: The hint for a result that is too large.
        part_bytes: The memory of a part of the result (see `units`), in bytes.
        model: The model that computes.
        tokenizer: The tokenizer of the texts.
        options: The options, already checked.
        batch_tokens: The number of tokens per batch, padding included; `None` for the default. An engine changes it
            while it computes.
        usage: Counts the computed texts and tokens.
        pause: See `compute`.
        inputs: The number of model inputs per item, for tasks that turn an item into many inputs.
        by_row: See `run_batches`.
    """

    name: ClassVar[str]
    smaller: ClassVar[str] = "split the text"
    part_bytes = 0
    by_row: ClassVar[bool] = True
    inputs = 1
    pause: Pause = staticmethod(no_pause)
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
        """The number of items that are prepared and computed together."""
        return max(window_size(self.output_bytes) // self.inputs, 1)

    @property
    def windowed(self) -> bool:
        """Whether texts that are too long for the model are split into windows."""
        return self.options.overflow == "window"

    def encode(self, text: str, pair: str | None = None) -> Encoding:
        """Tokenizes a text, or a pair of texts, into one input; raises InputError or truncates if it is too long."""
        return self.tokenizer.encode(text, pair, overflow=self.options.overflow)

    @property
    def output_bytes(self) -> int:
        """The approximate memory of the outputs of one model input, in bytes; 0 if it is small. See `window_size`."""
        return 0

    def size(self, item: Item, units: int) -> int:
        """Returns the approximate memory of the result of an item, in bytes, without the item itself.

        Args:
            units: The number of parts in the result, such as words or spans (see `units`).
        """
        return RESULT_BYTES + self.part_bytes * units

    def units(self, job: AnyJob) -> int:
        """Returns the maximum number of parts in the result of a job."""
        return job.tokens

    def most_units(self, item: Item) -> int:
        """Returns the maximum number of parts in the result of an item that is not tokenized yet."""
        return characters_of(item) + _SPECIAL

    def most_bytes(self, item: Item) -> int:
        """Returns the maximum memory of an item that is not tokenized yet: of its tokens and its result, in bytes."""
        tokens = characters_of(item) // 2 + _SPECIAL  # few texts have more
        if not self.windowed:
            tokens = min(tokens, self.tokenizer.max_length)
        return tokens * self.inputs * _TOKEN_BYTES + self.size(item, self.most_units(item))

    def job(self, item: Item) -> AnyJob:
        """Prepares an item; raises TooLargeError if its result would be too large."""
        job = self.prepare(item)
        if self.size(item, self.most_units(item)) <= MOST_BYTES:  # certain without tokenizing
            return job
        size = self.size(item, self.units(job))
        if size > MOST_BYTES:
            message = f"the result would take {size / 1e6:,.0f} MB, expected at most {MOST_BYTES / 1e6:,.0f}"
            raise TooLargeError(message, hint=self.smaller)
        return job

    def is_item(self, value: object) -> bool:
        """Whether `value` is a single item and not an iterable of items."""
        return isinstance(value, str)

    @abstractmethod
    def prepare(self, item: Item) -> AnyJob:
        """Tokenizes an item; runs on any thread."""

    def texts(self, item: Item) -> Sequence[str]:
        """Returns the texts that `prepare` tokenizes, so that the texts of many items can be tokenized at once."""
        return item if isinstance(item, tuple | list) else [cast(str, item)]

    @contextmanager
    def together(self, items: Sequence[Item]) -> Iterator[None]:
        """Tokenizes the texts of these items at once; within this context, `prepare` finds them tokenized."""
        texts: list[str] = []
        for item in items:
            with suppress(InputError):  # `prepare` raises it, too
                texts += self.texts(item)
        with self.tokenizer.together(texts):
            yield

    @abstractmethod
    def forward(self, batch: Batch, parts: Sequence[tuple[AnyJob, int]]) -> Any:
        """Runs the network on a batch without evaluating the result, so that a GPU gets the next batch early.

        Args:
            batch: The encodings of `parts`, padded.
            parts: For each row, its job and the index of the encoding within the job.

        Returns:
            One or more lazy MLX arrays.
        """

    @abstractmethod
    def read(self, arrays: Any, parts: Sequence[tuple[AnyJob, int]]) -> Sequence[Output]:
        """Converts the arrays of a batch to outputs.

        Args:
            arrays: The evaluated result of `forward`.

        Returns:
            One output per row, as Python or NumPy values.
        """

    @abstractmethod
    def result(self, job: AnyJob, outputs: Sequence[Output]) -> Result:
        """Makes the result of a job from the outputs of its encodings."""

    def compute(self, jobs: Sequence[AnyJob], pause: Pause = no_pause) -> list[Result]:
        """Computes the results of jobs, in order, with the network in evaluation mode.

        Args:
            pause: See `Pause`; it may compute other jobs with this task.
        """
        outer, self.pause = self.pause, pause
        try:
            return [usable(result) for result in self.results(jobs)]
        finally:
            self.pause = outer

    def results(self, jobs: Sequence[AnyJob]) -> Iterator[Result | InputError]:
        """Yields the results of jobs, each as soon as it is known; on a GPU, the call itself starts the first batch.

        An item for which the model computes no numbers has an error in place of its result.
        """
        return self._results(jobs, self.outputs(jobs))

    def _results(self, jobs: Sequence[AnyJob], outputs: Iterator[Sequence[Output]]) -> Iterator[Result | InputError]:
        for job, job_outputs in zip(jobs, outputs, strict=True):
            if self.usage is not None:
                self.usage.texts += 1
                self.usage.truncated += job.truncated
                self.usage.only_unknown += job.only_unknown
            try:
                result: Result | InputError = self.result(job, job_outputs)
            except InputError as problem:
                result = problem
            yield result

    def outputs(self, jobs: Sequence[AnyJob]) -> Iterator[Sequence[Output]]:
        """Yields the outputs of the encodings of each job, in order, each as soon as it is known."""
        parts = [(job, number) for job in jobs for number in range(len(job.encodings))]
        encodings = [job.encodings[number] for job, number in parts]

        def forward(batch: Batch, group: list[int]) -> Any:
            self.model.require(self.name)  # checked again, since an iterator can move to another thread
            with evaluation_mode(self.model.network):
                return self.forward(batch, [parts[number] for number in group])

        def read(arrays: Any, group: list[int]) -> Sequence[Output]:
            return self.read(arrays, [parts[number] for number in group])

        outputs = run_batches(
            encodings, forward, read, self.model.config, self.batch_tokens, self.usage, by_row=self.by_row,
            pause=self.pause,
        )  # fmt: skip
        return ([next(outputs) for _ in job.encodings] for job in jobs)

    def run(
        self, items: Iterable[Item | InputError], on_error: str = "raise", *, early: bool = True
    ) -> Iterator[Result | Failure]:
        """Prepares and computes any number of items (see `mlxbert.tasks.runner.run`)."""
        usual = max(WINDOW // self.inputs, 1)
        return run(
            items, self.job, self.results, on_error, self.window, self.together, usual=usual, early=early
        )  # fmt: skip


def usable(result: Result | InputError) -> Result:
    """Returns a result; raises the error in place of a result."""
    if isinstance(result, InputError):
        raise result
    return result


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
    """Implements the public function of a task: returns the result of one item, or an iterator of results.

    Args:
        make: The class of the task, or a function that makes the task.
        items: One item, or an iterable of items. If it is a single item, its error is raised whatever
            `on_error` says.
        call: The options of the call: `on_error` and `usage`.
        name: The name of the argument with the items.
        internal: Further arguments of `make`.
    """
    check_model(model, items)
    task = make(model, options, usage=call.usage, **internal)
    if task.is_item(items):
        return task.compute([task.job(items)])[0]
    return task.run(check_inputs(items, name, f"one {name[:-1]} or an iterable of {name}"), call.on_error)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Puts a network into evaluation mode for inference; afterwards every module returns to its previous mode."""
    modes = [(module, module.training) for module in _modules(network)]
    if any(training for _, training in modes):
        network.eval()
    try:
        with inference():
            yield
    finally:
        for module, training in modes:  # outer modules come first: `train` also sets their submodules
            if module.training != training:
                module.train(training)


def _modules(network: nn.Module) -> list[nn.Module]:
    """Returns a module and its submodules, outer ones first.

    `nn.Module.modules` is too slow: it takes a tenth of the time needed to compute a sentence.
    """
    modules, values = list[nn.Module](), list[object]([network])
    while values:
        value = values.pop()
        if isinstance(value, dict):  # a module is a dictionary of its parts
            modules += [value] if isinstance(value, nn.Module) else []
            values += value.values()
        elif isinstance(value, list):
            values += value
    return modules


def check_no_window(options: OptionsWithOverflow) -> None:
    """Raises ArgumentError if a task that can use only one input of the model is asked for windows."""
    if options.overflow not in ("truncate", "error"):
        raise not_one_of("overflow", options.overflow, ("truncate", "error"))


def is_pair(value: object) -> bool:
    """Whether a value is a pair of texts in a tuple; a list may hold any number of items."""
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)


def checked_pair(item: object, expected: str, hint: str = "a pair is a tuple: (a, b)") -> tuple[str, str]:
    """Returns the two texts of an item; raises InputError for anything but a tuple or list of two texts."""
    if not isinstance(item, tuple | list) or not is_pair((*item,)):
        raise InputError(f"expected {expected}, found {item!r:.60}", hint=hint)
    return item[0], item[1]


class NotFiniteError(InputError):
    """A model computes NaN or infinite numbers for an item."""


def check_finite(values: Numbers, what: str = "scores") -> Numbers:
    """Returns the numbers (a list or a NumPy array) that a model computed; raises an error unless all are finite."""
    finite = all(map(math.isfinite, values)) if isinstance(values, list) else np.isfinite(cast(Any, values)).all()
    if not finite:
        raise NotFiniteError(
            f"the model computed {what} that are not finite (NaN or infinite)",
            hint="if it was loaded in float16, load it with `dtype='bfloat16'`, which takes as little memory and holds "
            "numbers as large as float32 does; otherwise check whether its weights are finite",
        )
    return values
