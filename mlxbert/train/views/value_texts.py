"""Formats times, metrics and values of options for the views of training."""

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console, rich
from mlxbert.train.options.training_tasks import TASKS

if TYPE_CHECKING:
    from mlxbert.cli.views.table import Cell
    from mlxbert.train.options.training_tasks import TaskSpec

_LONG = 300  # seconds; during a longer run a Mac may go to sleep


def duration(seconds: float) -> str:
    """Formats a duration like a clock: `42 s`, `3:12`, `1:02:03`."""
    if not math.isfinite(seconds):
        return "-"
    rounded = max(round(seconds), 0)
    if rounded < 60:
        return f"{rounded} s"
    hours, rest = divmod(rounded, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def about(seconds: float) -> str:
    """Formats a duration in words: `about 4 minutes`."""
    for name, scale in (("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= 1.5 * scale:
            return f"about {seconds / scale:.0f} {name}s"
    return "about a second"


def sleeping(seconds: float) -> str:
    """Returns advice on how to keep a Mac awake during a long run; empty for a short run, and on other systems."""
    if sys.platform != "darwin" or seconds < _LONG:
        return ""
    return "an idle Mac goes to sleep, which pauses training, unless the command begins with caffeinate -i"


def figure(number: float) -> str:
    """Formats a number with up to three significant digits: `0.0312`, `14.2`; formats a small one as `3.1e-05`."""
    if not math.isfinite(number):
        return "nan" if math.isnan(number) else "infinite"
    if number and abs(number) < 1e-3:
        return f"{number:.1e}"
    digits = 3 - math.ceil(math.log10(abs(number))) if number else 2
    return f"{number:.{min(max(digits, 0), 4)}f}"


def score(number: float) -> str:
    """Formats the value of a metric."""
    return f"{number:.3f}" if abs(number) < 100 else figure(number)


def lessens(metric: str) -> bool:
    """Whether smaller values of a metric are better. Such metrics have no bars: a longer one would look better."""
    return metric.endswith(("loss", "error", "perplexity")) or any(metric in task.minimized for task in TASKS.values())


def bar(metric: str, share: float, style: str) -> "Cell":
    """Makes a bar for the value of a metric; empty if the metric has no bar."""
    return rich.Text() if lessens(metric) else console.bar_of(share if math.isfinite(share) else 0.0, style)


def method(metric: str, task: "TaskSpec") -> str:
    """Returns the name of the method that computes the interval of a metric."""
    return "Wilson's" if metric in task.shares else "bootstrap"


def value(option: object) -> str:
    """Formats the value of an option as a user types it: `3e-5`, `0.01`, `16`."""
    if isinstance(option, float) and 0 < abs(option) < 1e-3:
        digits, _, power = f"{option:e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{option:g}" if isinstance(option, float) else str(option)


def varied(values: Mapping[str, Any]) -> str:
    """Formats the options in which a run differs from others: `seed 1, lr 2e-5`."""
    return ", ".join(f"{name.replace('_', ' ')} {value(option)}" for name, option in values.items())
