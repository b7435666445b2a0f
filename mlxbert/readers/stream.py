"""Streams of records with their places, from files and other sources, and windows of items to compute together."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from mlxbert.errors import InputError, MlxbertError
from mlxbert.readers.parsing import Item, ReadOptions, json_type, placed
from mlxbert.readers.pipes import Opened
from mlxbert.results.result import Failure

# Characters of a window per usual item: of a usual window, whose work an interruption costs, and of a larger one, whose
# memory is bounded: a character is at most one token, and a token takes about 200 bytes, so 512 * 4,096 characters take
# up to 450 MB, or 100 MB of English.
_USUAL_CHARACTERS, _MOST_CHARACTERS = 2**10, 2**12

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Record:
    """A record and its place in its source."""

    values: Mapping[str, Any]  # the values by name: all values, or those to be kept for the result
    place: str  # where the record begins: `line 17`, `row 3`; empty for an argument
    file: str = ""  # the name of the file; empty if errors need not name it
    text: str = ""  # the text, if texts are read
    pair: str | None = None  # the second text, if pairs are read
    problem: InputError | None = None  # why the record is unusable; `None` if it is usable

    @property
    def where(self) -> str:
        """The record's place and file, for errors: `train.csv, line 17`."""
        return f"{self.file}, {self.place}" if self.file else self.place

    @property
    def item(self) -> str | tuple[str, str] | InputError:
        """The input of a task: the text, the pair of texts, or the problem if the record is unusable."""
        return self.problem or (self.text if self.pair is None else (self.text, self.pair))

    def located(self, error: MlxbertError) -> MlxbertError:
        """Adds the record's place and file to an error; if the record has no place, returns the error unchanged."""
        return placed(error, self.place, self.file or None) if self.place else error

    def as_json(self) -> dict[str, Any]:
        """Returns the values; those that JSON cannot hold, such as times and infinity, become strings."""
        return {name: _as_json(value) for name, value in self.values.items()}


def _as_json(value: Any) -> Any:
    if value is not None and not isinstance(value, str | int):
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return str(value)
    return value


class Hashed(Protocol):
    """A source that has a hash, and that another process can read again."""

    def sha256(self) -> str:
        """The SHA-256 of the content, in hexadecimal digits."""


@dataclass(frozen=True)
class RecordSource:
    """An open file, or another source of records."""

    name: str  # the name of the source in errors
    items: Iterator[Item]  # the items that the format's reader yields
    read_as: tuple[str, ...] = ()  # the name of the format, and the names of the fields or columns with texts
    # The open source, which counts the bytes read and knows whether the next record has arrived.
    opened: Opened = field(default_factory=Opened)
    wanted: ReadOptions = field(default_factory=ReadOptions)  # the values to read from each record
    value: str = "field"  # what a value of a record is called in errors: `field` or `column`
    file: Hashed | None = None  # the file if it can be read again; otherwise, as for a pipe, `None`
    size: int | None = None  # the size of the file in bytes; `None` if unknown
    is_file: bool = False  # whether the source is a file, so that errors name it

    def record(self, place: str, values: Mapping[str, Any] | InputError, pair: str | None = None) -> Record:
        """Makes a record from an item; if the record has only one text, `pair` becomes its second text."""
        file = self.name if self.is_file else ""
        if isinstance(values, InputError):
            return Record({}, place, file, problem=values)
        kept = values
        if self.wanted.keep is not None:
            kept = {name: values.get(name) for name in self.wanted.kept([*values])}
        for name in self.wanted.texts:
            if not isinstance(values.get(name), str):
                return Record(kept, place, file, problem=self._problem(name, values))
        texts: Any = self.wanted.texts and [values[name] for name in self.wanted.texts]
        return Record(kept, place, file, *texts, *[pair] * (len(texts) == 1))

    def _problem(self, name: str, values: Mapping[str, Any]) -> InputError:
        if name in values:
            return InputError(f"{self.value} {name!r} is {json_type(values[name])}, expected a string")
        names = ", ".join(values) or "none"
        return InputError(
            f"the record has no {self.value} {name!r} ({self.value}s: {names})",
            hint=self.wanted.missing(self.value, name, values),
        )


class RecordStream(Iterable[Record]):
    """The records of one or more sources, read lazily.

    A command takes `items`, computes their results, and passes them to `with_results`, which adds the record to each.

    Args:
        read_as: Settings that affect reading, in addition to each source's own `read_as`.
        pair: The second text for all records that have only one text.
        on_error: What to do with an unusable record: `return` a failure in its place, or `raise` the error.
        strict: Whether the first failure ends the run.

    Attributes:
        name: The name of the sources in errors.
        files: The files if all sources can be read again; otherwise empty.
        size: The total size of the files in bytes; `None` if unknown.
        piped: Whether any source is a pipe or a terminal, so that somebody may be waiting for the results.
        finished: The number of bytes up to the end of the last record that has a result.
        window_ends: Whether that record is the last of a window, so that an interrupted run can resume after it.
        waited_for: Whether somebody may wait for the first results; nobody does if they go to a file.
    """

    def __init__(
        self,
        sources: Sequence[RecordSource],
        *,
        read_as: Sequence[str] = (),
        pair: str | None = None,
        on_error: str = "return",
        strict: bool = False,
    ) -> None:
        self.sources, self.on_error, self.strict = sources, on_error, strict
        self.name = ", ".join(source.name for source in sources)
        self.read_as = (*chain.from_iterable(source.read_as for source in sources), *read_as)
        files = tuple(source.file for source in sources if source.file is not None)
        self.files = files if len(files) == len(sources) else ()
        sizes = [source.size for source in sources if source.size is not None]
        self.size = sum(sizes) if len(sizes) == len(sources) else None
        self.piped = any(source.opened.piped for source in sources)
        self.finished, self.window_ends, self.waited_for = 0, False, True
        self._pair, self._current = pair, sources[0]
        self._records = self._read()
        # Records are read ahead of the model. These have no result yet; each with the number of bytes up to its end,
        # and whether it ends a window.
        self._waiting: deque[tuple[Record, int, bool]] = deque()

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def _read(self) -> Iterator[Record]:
        for source in self.sources:
            self._current = source
            for place, values in source.items:
                yield source.record(place, values, self._pair)

    @property
    def done(self) -> int:
        """The number of bytes read so far."""
        return sum(source.opened.done for source in self.sources)

    def ready(self) -> bool:
        """Whether the next record, or the end, can be read without waiting; waits up to `PAUSE` to find out."""
        return self._current.opened.ready()

    def skip(self, count: int) -> int:
        """Skips the next `count` records, whose results are already stored; returns how many there were."""
        skipped = sum(1 for _ in islice(self, count))
        self.finished = self.done
        return skipped

    def items(self) -> Iterator[Any]:
        """Yields the item of each record; keeps the records until `with_results` has their results."""
        for record in self:
            self._waiting.append((record, self.done, False))
            yield record.item

    def end_window(self) -> None:
        """Notes that the last record of `items` ends a window."""
        self._waiting.append((*self._waiting.pop()[:2], True))

    def with_results(self, results: Iterable[Result]) -> Iterator[tuple[Record, Result]]:
        """Yields each result of `items` together with its record."""
        for result in results:
            record, self.finished, self.window_ends = self._waiting.popleft()
            yield record, result

    def checked(self, record: Record, result: Any, before: int = 0) -> Any:
        """Returns the result of a record. If it is a failure, adds the record's place and, in a strict run, raises it.

        `before` records were skipped before the first result; their number is added to the index of a failure.
        """
        if not isinstance(result, Failure):
            return result
        failure = Failure(before + result.index, record.located(result.error))
        if self.strict:
            raise InputError(f"input {failure.index}: {failure.error.message}", hint=failure.error.hint)
        return failure


def windows(
    items: Iterable[Any], size: int, usual: int | None = None, *, early: bool = False
) -> Iterator[tuple[list[Any], bool]]:
    """Yields windows of at most `size` items, each with a flag.

    The flag says whether the caller should read the next window before it computes this one.

    A window ends early if its texts are long in total, if the next record has not arrived yet, or if the source fails.
    Where an interrupted run resumes, at the end of a window of a file, the other windows are the same.

    Args:
        items: A stream of records, or the items themselves: texts, tuples or lists of texts, or other objects.
        size: The maximum number of items in a window.
        usual: The number of items in a window on a CPU, by default `size`; a window has more only if its texts are
            short.
        early: Whether somebody may wait for results. If so, the first window, or every window of a pipe, has `usual`
            items.
    """
    usual = min(usual or size, size)
    most = (_USUAL_CHARACTERS if size == usual else _MOST_CHARACTERS) * usual
    stream = items if isinstance(items, RecordStream) else None
    if early and stream is not None and stream.piped:
        size = usual
    window: list[Any] = []
    count = total = 0  # items and characters since the last full window
    try:
        for number, item in enumerate(items if stream is None else stream.items(), 1):
            window.append(item)
            count, total = count + 1, total + characters_of(item)
            more = stream is None or stream.ready()
            if full := count == size or total >= most:
                count = total = 0
                if stream is not None:
                    stream.end_window()
            if full or (early and number == usual) or not more:
                yield window, more
                window = []
    except Exception:
        yield window, False
        raise
    if window:
        yield window, False


def characters_of(item: object) -> int:
    """Returns the number of characters in the texts of an item; 0 for anything else."""
    texts = item if isinstance(item, tuple | list) else (item,)
    return sum(len(text) for text in texts if isinstance(text, str))
