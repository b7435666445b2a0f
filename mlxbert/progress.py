"""Progress of long work: told to a function, drawn in a notebook, and silent in a script."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OnProgress = Callable[[int, int], None]  # takes what is done and what there is in all
_DELAY = 1.0  # seconds: shorter work needs no bar


def in_notebook() -> bool:
    """Whether this Python runs the cells of a notebook; a terminal with IPython is not one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


@contextmanager
def progress(on_progress: OnProgress | None, unit: str) -> Iterator[OnProgress | None]:
    """What long work calls as it proceeds: `on_progress`; without one a bar in a notebook, and nothing in a script.

    Args:
        on_progress: The function that the user gave; it takes the place of the bar.
        unit: What is counted: `B` for bytes, or the plural of anything else.
    """
    if on_progress is not None:
        yield on_progress
        return
    with notebook_bar(unit, delay=_DELAY) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield None if bar is None else update


@contextmanager
def notebook_bar(unit: str, delay: float = 0.0) -> Iterator[Any]:
    """A bar of tqdm in a notebook, `None` elsewhere."""
    if not in_notebook():
        yield None
        return
    with warnings.catch_warnings(action="ignore"):  # without ipywidgets, tqdm warns and draws its bar as text
        from tqdm.auto import tqdm

    with tqdm(unit=unit if unit == "B" else f" {unit}", unit_scale=unit == "B", delay=delay) as bar:
        yield bar
