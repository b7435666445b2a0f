"""Times, shares and values of options, as the views of training write them."""

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console, rich
from mlxbert.training.options.training_tasks import TASKS

if TYPE_CHECKING:
    from mlxbert.cli.views.table import Cell
    from mlxbert.training.options.training_tasks import TaskSpec

_LONG = 300  # seconds of a run during which a Mac may fall asleep


def duration(seconds: float) -> str:
    """A time as a clock shows it: `42 s`, `3:12`, `1:02:03`."""
    if not math.isfinite(seconds):
        return "-"
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def about(seconds: float) -> str:
    """A time as a person says it: `about 4 minutes`."""
    for name, scale in (("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= 1.5 * scale:
            return f"about {seconds / scale:.0f} {name}s"
    return "about a second"


def sleeping(seconds: float) -> str:
    """What keeps a Mac awake during a run of this many seconds; empty for a short one, and elsewhere."""
    if sys.platform != "darwin" or seconds < _LONG:
        return ""
    return "a Mac that nobody uses goes to sleep, and training with it, unless the command begins with caffeinate -i"


def figure(number: float) -> str:
    """A number with three significant digits, `0.0312` or `14.2`; a rate as `3.1e-05`."""
    if not math.isfinite(number):
        return "nan" if math.isnan(number) else "infinite"
    if number and abs(number) < 1e-3:
        return f"{number:.1e}"
    digits = 3 - math.ceil(math.log10(abs(number))) if number else 2
    return f"{number:.{min(max(digits, 0), 4)}f}"


def score(number: float) -> str:
    """The value of a metric."""
    return f"{number:.3f}" if abs(number) < 100 else figure(number)


def lessens(metric: str) -> bool:
    """Whether less of a metric is better: then it has no bar, since a longer one looks better."""
    return metric.endswith(("loss", "error", "perplexity")) or any(metric in task.minimized for task in TASKS.values())


def bar(metric: str, share: float, style: str) -> "Cell":
    """A bar for the value of a metric, if there is one."""
    return rich.Text() if lessens(metric) else console.bar_of(share if math.isfinite(share) else 0.0, style)


def method(metric: str, task: "TaskSpec") -> str:
    """How the interval of a metric is found."""
    return "Wilson's" if metric in task.shares else "bootstrap"


def value(given: object) -> str:
    """A value of an option, as one types it: `3e-5`, `0.01`, `16`."""
    if isinstance(given, float) and 0 < abs(given) < 1e-3:
        digits, _, power = f"{given:e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{given:g}" if isinstance(given, float) else str(given)


def varied(values: Mapping[str, Any]) -> str:
    """The options in which a run differs: `seed 1, lr 2e-5`."""
    return ", ".join(f"{name.replace('_', ' ')} {value(given)}" for name, given in values.items())
