"""What training came to: the score beside simple methods, the runs, and how to use the model."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console
from mlxbert.cli.views.training import words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from mlxbert.training.events import Finished
    from mlxbert.training.scores.summary import Summary

_LABEL = 24
_LONGEST_BAR = 48


def finished(event: "Finished", width: int) -> Iterator["RenderableType"]:
    """The score and its error bar beside the baselines, every run, the command that uses the model, its check."""
    from rich.text import Text

    yield Text.assemble(
        (f"{console.visible(event.metric)} {words.score(event.score)}", "bold green"),
        *([f" ± {words.score(deviation)}"] if (deviation := _deviation(event)) is not None else []),
        f"  after step {event.step:,}, {words.duration(event.seconds)} in all",
    )
    if event.summary is not None:
        yield from _compared(event.summary, width)
    if len(event.runs) > 1:
        yield from _runs(event, width)
    if event.summary is not None:
        yield from _advice(event.summary, event.output)
    if event.check is not None:
        told = f"transformers gives the same logits, to {event.check:.1e}"
        yield Text.assemble(("check    ", "bold"), told)


def _deviation(event: "Finished") -> float | None:
    return event.summary.deviation if event.summary is not None else None


def _compared(summary: "Summary", width: int) -> Iterator["RenderableType"]:
    """A bar for the model, with its interval, and for each baseline."""
    values = [summary.score, *summary.interval, *summary.baselines.values()]
    low, high = min(0.0, *values), max(values)
    high = 1.0 if 0 <= high <= 1 else high
    names = ["this model", *summary.baselines]
    room = min(max(map(len, names)), _LABEL, max(width // 3, 8))
    bars = max(min(width - room - 29, _LONGEST_BAR), 8)

    def row(name: str, score: float, bar: "Text", style: str, after: str = "") -> "Text":
        from rich.text import Text

        shown = words.line(name, room)
        line = Text.assemble("  ", (f"{shown:<{room}}", style), (f"  {words.score(score):>6}  ", style), bar)
        line.append(f"  {after}" if after else "", "dim")
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
        return line

    interval = f"{words.score(summary.interval[0])} to {words.score(summary.interval[1])}"
    yield row("this model", summary.score, error_bar(summary, (low, high), bars), "bold green", interval)
    for name, score in sorted(summary.baselines.items(), key=lambda entry: -entry[1]):
        yield row(name, score, _plain_bar(score, (low, high), bars), "")
    yield _note("┣━┫ 95 % interval, by a bootstrap over the validation examples")


def _note(text: str) -> "RenderableType":
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, "dim"), (0, 0, 0, 2))


def error_bar(summary: "Summary", scale: tuple[float, float], width: int) -> "Text":
    """A bar up to the score, with a line from one end of the interval to the other."""
    from rich.text import Text

    def place(value: float) -> int:
        share = (value - scale[0]) / (scale[1] - scale[0] or 1)
        return min(max(round(share * width), 1), width) - 1 if math.isfinite(share) else 0

    start, score, end = (place(value) for value in (summary.interval[0], summary.score, summary.interval[1]))
    cells = ["█" if column < score else " " for column in range(width)]
    for column in range(start, end + 1):
        cells[column] = "━"
    cells[start], cells[end] = ("┣", "┫") if end > start else ("█", "█")
    cells[score] = "╋" if start < score < end else cells[score]
    line = "".join(cells)
    return Text.assemble((line[:start], "green"), (line[start:], "bold green"))


def _plain_bar(score: float, scale: tuple[float, float], width: int) -> "Text":
    from rich.text import Text

    share = (score - scale[0]) / (scale[1] - scale[0] or 1)
    return Text(console.bar(min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0, width), "dim")


def _runs(event: "Finished", width: int) -> Iterator["RenderableType"]:
    """Every run with what it differs in; the best is marked, the mean is that over all of them."""
    from rich.table import Table
    from rich.text import Text

    yield from (Text(), Text(words.count(len(event.runs), "run"), "bold"))
    names = list(dict.fromkeys(name for run in event.runs for name in run if name != "score"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(f"  {console.visible(name.replace('_', ' '))}", justify="right", no_wrap=True)
    table.add_column(console.visible(event.metric), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="crop")
    scores = [float(run["score"]) for run in event.runs]
    best = _best(scores, event.score)
    low, high = min(scores), max(scores)
    bars = min(20, max(width - 16 * (len(names) + 1), 6))
    for place, (run, score) in enumerate(zip(event.runs, scores, strict=True)):
        style = "bold green" if place == best else ""
        told = [Text(console.visible(str(run.get(name, "-"))), style) for name in names]
        share = 1.0 if high == low else 0.1 + 0.9 * (score - low) / (high - low)
        bar = Text.assemble((console.bar(share, bars), style or "cyan"), ("  ★ kept" if place == best else "", style))
        table.add_row(*told, Text(words.score(score), style), bar)
    yield table
    yield from _means(event.runs, names)


def _best(scores: Sequence[float], kept: float) -> int:
    """The run whose score is that of the model which was kept."""
    return min(range(len(scores)), key=lambda place: abs(scores[place] - kept))


def _means(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator["RenderableType"]:
    """Mean and standard deviation over the seeds, for each combination of the other options."""
    from rich.text import Text

    groups: dict[str, list[float]] = {}
    for run in runs:
        other = words.varied({name: run[name] for name in names if name in run and name != "seed"})
        groups.setdefault(other, []).append(float(run["score"]))
    for other, scores in groups.items():
        if len(scores) > 1:
            mean, deviation = statistics.fmean(scores), statistics.stdev(scores)
            told = f"  mean {words.score(mean)} ± {words.score(deviation)} over {words.count(len(scores), 'seed')}"
            yield Text(f"{told}{f', {console.visible(other)}' if other else ''}", "bold")


def _advice(summary: "Summary", output: str) -> Iterator["RenderableType"]:
    from rich.text import Text

    yield Text("")
    if summary.weakest is not None:
        yield Text.assemble(("weakest  ", "bold yellow"), console.visible(summary.weakest))
    yield Text.assemble(("model    ", "bold"), console.visible(output))
    yield Text.assemble(("use it   ", "bold"), (console.visible(summary.command), "cyan"))
