"""The common part of commands that rank texts for a query: reads query and texts, and writes the ranking."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.cli import session
from mlxbert.cli.inputs import ARGUMENTS, open_input
from mlxbert.cli.shared_options import FileOptions, InputOptions
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.stream import Record, RecordStream
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    from mlxbert.tasks.query_ranking import RankedText, Ranking, Scored
    from mlxbert.text.usage import Usage

SHOWN = 20  # texts of a file that a terminal shows by default
_BLANK = InputError("empty")  # replaces an empty text, so that the other texts keep their numbers
# Scores texts for a query, in the order of the texts; the last argument counts texts and tokens.
Score = Callable[[str, Iterator[str | InputError], "Usage"], Iterator["Scored | Failure"]]


def open_ranking(texts: Sequence[str], source: InputOptions, vectors: Path | None = None) -> RecordStream:
    """Opens the texts to rank. A single argument is the query; the texts then come from the input in `source`."""
    alone = len(texts) == 1
    try:
        return open_input(() if alone else texts, source, "text")
    except ArgumentError as problem:
        if alone and source.input is None and vectors is not None:
            raise ArgumentError(
                f"{vectors} holds vectors without their texts", hint="add the file that was embedded: --input FILE"
            ) from None
        if alone and source.input is None:
            raise ArgumentError(
                "only one text is given, expected a query and one or more other texts", hint=problem.hint
            ) from None
        raise


def write_ranking(
    texts: Sequence[str],
    records: RecordStream,
    out: FileOptions,
    draw: session.Draw,
    top_k: int | None,
    task: session.OutputManifest,
    score: Score,
    result: Callable[[str, "RankedText"], Any],
) -> None:
    """Ranks the texts that `open_ranking` opened; writes the ranking, and then the failures.

    A single argument is the query; otherwise, the query is the first record. Empty texts are left out. A result from a
    file has the name of the file and the line of the text, besides the kept fields of its record. Without `top_k`, all
    texts are kept, or the best `SHOWN` if a terminal shows the texts of a file. Reading a file shows a progress bar.
    """
    from mlxbert.tasks.query_ranking import Ranking, check_query
    from mlxbert.text.usage import Usage

    query = texts[0] if len(texts) == 1 else _query(records)
    check_query(query, ())
    from_file = records.name != ARGUMENTS
    screen = session.ResultWriter(draw, out, gap=False, left_out=["query"] if from_file else ())
    limit = SHOWN if top_k is None and from_file and out.output is None and screen.drawn else top_k
    usage, ranking = Usage(), Ranking(limit)
    with session.sink(records, screen, out, task) as (sink, done):
        candidates = (_BLANK if isinstance(item, str) and not item.strip() else item for item in records.items())
        count, blank, failures = _rank(ranking, records, score(query, candidates, usage), has_bar=from_file)
        if not count and not failures:
            hint = "give texts after the query, name a file with --input, or pipe texts in"
            where = f"{records.name}: " if from_file else ""
            raise InputError(f"{where}there is no text to rank for the query", hint=hint)
        ranked = [(result(query, text), text.kept) for text in ranking.sorted()]
        for outcome, kept in [*ranked, *failures][done:]:
            sink.write(outcome, kept)
    if blank:
        console.say("note", f"{console.counted(blank, 'empty text is', 'empty texts are')} left out")
    if limit != top_k and count > SHOWN:
        console.say("note", f"only the {SHOWN} best of {count:,} texts are shown; --top-k N shows more")
    where = "their errors follow the results"
    inputs = count + blank + len(failures) if failures else usage.texts  # `usage` also counts a query that is embedded
    session.report(inputs, usage.truncated, usage.only_unknown, sink.failed, where, sink.hint)


def _rank(
    ranking: "Ranking", records: RecordStream, outcomes: "Iterator[Scored | Failure]", *, has_bar: bool
) -> tuple[int, int, list[tuple[Failure, Any]]]:
    """Adds the scored texts to a ranking; returns their number, that of empty texts, and failures with kept fields."""
    count, blank, failures = 0, 0, list[tuple[Failure, Any]]()
    with progress.records(records.size, shown=has_bar) as update:
        for number, (record, outcome) in enumerate(records.with_results(outcomes)):
            update(records.finished, number + 1)
            if isinstance(outcome, Failure) and outcome.error is _BLANK:
                blank += 1
            elif isinstance(outcome, Failure):
                failures.append((records.checked(record, outcome), record.as_json()))
            else:
                count += 1
                ranking.add(number, outcome, _kept(record))
    return count, blank, failures


def _kept(record: Record) -> Mapping[str, Any]:
    """Returns the kept fields of a record, and fields for its file and line unless kept fields have their names."""
    kind, _, number = record.place.partition(" ")
    where = {"path": record.file, kind: int(number)} if record.file else {}
    kept = record.as_json()
    taken = {name.lower() for name in kept}  # names in tables may be case-insensitive
    return {**kept, **{name: value for name, value in where.items() if name not in taken}}


def _query(source: RecordStream) -> str:
    for record in source:
        empty = InputError(f"the text is {record.text!r:.60}, expected one that is not empty")
        if problem := record.problem or (None if record.text.strip() else empty):
            located = record.located(problem)
            raise InputError(f"{located.message} (this record is the query)", hint=located.hint)
        return record.text
    raise InputError(f"{source.name}: the input has no text")
