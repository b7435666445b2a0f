"""What commands share that rank texts for a query: where both come from, and how the ranking is printed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.cli import session
from mlxbert.cli.inputs import ARGUMENTS, open_input
from mlxbert.cli.options import FileOptions, InputOptions
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.stream import Record, RecordStream
from mlxbert.results.result import Failure

if TYPE_CHECKING:
    from mlxbert.tasks.query_ranking import RankedText, Scored
    from mlxbert.text.usage import Usage

MOST = 20  # texts of a file that a terminal shows where nothing else is asked for
_BLANK = InputError("empty")  # in place of an empty text, so that the others keep their numbers
# The scores of texts for a query, in the order of the texts; what counts them comes last.
Score = Callable[[str, Iterator[str | InputError], "Usage"], Iterator["Scored | Failure"]]


def open_ranking(texts: Sequence[str], source: InputOptions, vectors: Path | None = None) -> RecordStream:
    """The texts, without the query where it alone is on the command line; those of the file of vectors, if any."""
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
                "there is one text, expected two or more: the first one is the query", hint=problem.hint
            ) from None
        raise


def write_ranking(
    texts: Sequence[str],
    opened: RecordStream,
    out: FileOptions,
    draw: session.Draw,
    top_k: int | None,
    task: session.OutputManifest,
    score: Score,
    result: Callable[[str, "RankedText"], Any],
) -> None:
    """Ranks what `open_ranking` has opened, writes the ranking, then what failed; a bar is shown for a file.

    Empty texts are left out. Results from a file have its name and their line besides what is kept of their records.

    Args:
        texts: The arguments: the query, if it is the only one.
        opened: The texts, and before them the query, if it is not an argument.
        out: Where results go.
        draw: How a result looks in a terminal.
        top_k: How many texts are kept; `None` for all, or for `MOST` of a file in a terminal.
        task: For the manifest of an output file.
        score: Gives the texts their scores.
        result: Makes the result of a query and a ranked text.
    """
    from mlxbert.tasks.query_ranking import Ranking
    from mlxbert.text.usage import Usage

    query = texts[0] if len(texts) == 1 else _query(opened)
    from_file = opened.name != ARGUMENTS
    screen = session.ResultWriter(draw, out, gap=False, left_out=["query"] if from_file else ())
    most = MOST if top_k is None and from_file and out.output is None and screen.drawn else top_k
    usage, ranking, failures, blank, count = Usage(), Ranking(most), list[tuple[Failure, Any]](), 0, 0
    with session.sink(opened, screen, out, task) as (sink, done):
        with progress.records(opened.size, shown=from_file) as update:
            others = (_BLANK if isinstance(item, str) and not item.strip() else item for item in opened.items())
            for number, (record, found) in enumerate(opened.with_results(score(query, others, usage))):
                update(opened.finished, number + 1)
                if isinstance(found, Failure) and found.error is _BLANK:
                    blank += 1
                elif isinstance(found, Failure):
                    failures.append((opened.checked(record, found), record.as_json()))
                else:
                    count += 1
                    ranking.add(number, found, _kept(record))
        if not count and not failures:
            hint = "give texts after the query, name a file with --input, or pipe texts in"
            where = f"{opened.name}: " if from_file else ""
            raise InputError(f"{where}there is no text to rank for the query", hint=hint)
        ranked = [(result(query, one), one.kept) for one in ranking.sorted()]
        for one, kept in [*ranked, *failures][done:]:
            sink.write(one, kept)
    if blank:
        console.say("note", f"{console.counted(blank, 'empty text')} left out")
    if most != top_k and count > MOST:
        console.say("note", f"the {MOST} best of {count:,} texts; --top-k N shows more")
    why = "each says why after the others"
    inputs = count + len(failures) if failures else usage.texts  # a query that has a vector of its own is a text, too
    session.report(inputs, usage.truncated, usage.only_unknown, sink.failed, why, sink.hint)


def _kept(record: Record) -> Mapping[str, Any]:
    """What is kept of a record, with its file and line unless kept columns have these names."""
    kind, _, number = record.place.partition(" ")
    where = {"path": record.file, kind: int(number)} if record.file else {}
    kept = record.as_json()
    named = {name.lower() for name in kept}  # tables may not tell names apart by case
    return {**kept, **{name: value for name, value in where.items() if name not in named}}


def _query(source: RecordStream) -> str:
    """The first text that is not empty."""
    for record in source:
        if record.problem is not None:
            problem = record.located(record.problem)
            raise InputError(f"{problem.message} (this record is the query)", hint=problem.hint)
        if record.text.strip():
            return record.text
    raise InputError(f"{source.name}: there is no text")
