"""A sink that plots the curves of training; needs the package `matplotlib`."""

from pathlib import Path
from typing import Any

from mlxbert.cli.events.sink import require
from mlxbert.cli.output.resumable_file import check_path
from mlxbert.durable_files import atomic_write
from mlxbert.errors import ArgumentError
from mlxbert.training.loop.events import Evaluated, Event, Started, Step

ENDINGS = (".png", ".svg", ".pdf")
_INCHES, _DOTS_PER_INCH = (10, 4.5), 150


class Plot:
    """Plots the loss and the metric over the steps, with a colour per run, when training ends or is interrupted.

    The extension of the file determines the format. An existing file is replaced.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in ENDINGS:
            raise ArgumentError(f"--plot {path} does not end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
        check_path(path, overwrite=True, option="plot")
        require("matplotlib", "--plot", "plot")
        self._path = path
        self._losses: dict[int, list[tuple[int, float]]] = {}
        self._scores: dict[int, list[Evaluated]] = {}
        self._names: dict[int, str] = {}
        self._title = ""

    def write(self, event: Event) -> None:
        """Records the numbers of an event."""
        match event:
            case Started():
                self._losses.setdefault(event.run, []).extend(event.losses)
                self._scores.setdefault(event.run, []).extend(event.evaluations)
                varied = ", ".join(f"{name} {value}" for name, value in event.varied.items())
                self._title = f"{event.task}: {event.model} → {event.output}"
                self._names[event.run] = varied or f"run {event.run + 1}"
            case Step():
                self._losses[event.run].append((event.step, event.loss))
            case Evaluated():
                self._scores[event.run].append(event)

    def close(self) -> None:
        """Writes the plot if there is anything to draw."""
        if any(self._losses.values()):
            with atomic_write(self._path, locked=False) as file:
                self._figure().savefig(file, format=self._path.suffix[1:].lower(), dpi=_DOTS_PER_INCH)

    def _figure(self) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=_INCHES, layout="constrained")
        figure.suptitle(self._title, parse_math=False)
        loss, score = figure.subplots(1, 2)
        metric = "metric"
        for run, evaluations in self._scores.items():
            loss.plot(*zip(*self._losses[run], strict=True), linewidth=0.8, color=f"C{run}")
            metric = evaluations[-1].metric if evaluations else metric
            values = [event.metrics[event.metric] for event in evaluations]
            steps = [event.step for event in evaluations]
            score.plot(steps, values, marker="o", color=f"C{run}", label=self._names.get(run))
        for axes, name in ((loss, "training loss"), (score, f"validation {metric}")):
            axes.set_title(name, parse_math=False)
            axes.set_xlabel("step")
            axes.grid(alpha=0.3)
        if len(self._scores) > 1:
            score.legend()
        return figure
