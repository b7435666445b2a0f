"""The names of rich that views use. They are imported at first use, so that JSON output does not wait for rich."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.cells import cell_len as cell_len, set_cell_size as set_cell_size
    from rich.console import (
        Console as Console,
        ConsoleOptions as ConsoleOptions,
        ConsoleRenderable as ConsoleRenderable,
        Group as Group,
        RenderableType as RenderableType,
        RenderHook as RenderHook,
    )
    from rich.live import Live as Live
    from rich.padding import Padding as Padding
    from rich.progress import (
        BarColumn as BarColumn,
        DownloadColumn as DownloadColumn,
        MofNCompleteColumn as MofNCompleteColumn,
        Progress as Progress,
        ProgressColumn as ProgressColumn,
        Task as Task,
        TextColumn as TextColumn,
        TransferSpeedColumn as TransferSpeedColumn,
    )
    from rich.segment import Segment as Segment
    from rich.spinner import Spinner as Spinner
    from rich.style import Style as Style
    from rich.table import Table as Table
    from rich.text import Text as Text
else:
    _MODULES = {  # names whose module has another name
        "cell_len": "cells", "set_cell_size": "cells", "Group": "console", "RenderHook": "console",
    }  # fmt: skip

    def __getattr__(name: str) -> Any:
        module = "progress" if name.endswith("Column") else _MODULES.get(name, name.lower())
        globals()[name] = value = getattr(importlib.import_module(f"rich.{module}"), name)
        return value
