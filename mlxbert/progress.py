"""Progress of long work: reported to a function, drawn as a bar in a notebook, and not shown in a script."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OnProgress = Callable[[int, int], None]  # takes the completed and the total count
_DELAY = 1.0  # seconds: shorter work needs no bar


def in_notebook() -> bool:
    """Whether this Python runs the cells of a notebook; IPython in a terminal does not count."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


@contextmanager
def progress(on_progress: OnProgress | None, unit: str) -> Iterator[OnProgress | None]:
    """Yields the function to report progress with: `on_progress`, else a notebook's bar, else `None`.

    Args:
        on_progress: The user's function; it replaces the bar.
        unit: The unit of the counts: `B` for bytes, or a plural noun.
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
    """A tqdm bar in a notebook; `None` elsewhere."""
    if not in_notebook():
        yield None
        return
    with warnings.catch_warnings(action="ignore"):  # without ipywidgets, tqdm warns and draws its bar as text
        from tqdm.auto import tqdm

    with tqdm(unit=unit if unit == "B" else f" {unit}", unit_scale=unit == "B", delay=delay) as bar:
        yield bar
