"""`mlxbert mcp`: the search for assistants."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlxbert.cli.options import TalkOptions
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError, BusyError
from mlxbert.options import Option, Written
from mlxbert.weights.model_source import BUILTIN

if TYPE_CHECKING:
    from mlxbert.search.index import Index


def mcp(
    talk: TalkOptions,
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH…", help="Files and folders to be seen.")] = None,
    index: Annotated[
        Path | None, Option("File of the index. By default it lies in your data folder.", "FILE"), Written("file")
    ] = None,
    model: Annotated[
        str | None, Option("Model of a new index: hub name, folder or 'builtin'.", short="-m", usual="the index's")
    ] = None,
    no_update: Annotated[bool, Option("Serve the index as it is.")] = False,
) -> None:
    """Let an assistant search your files, over MCP.

    Assistants start it themselves, and talk to it on stdin and stdout. It shows them what the index has of the paths,
    by default of the current folder, or all of an index that is named.

    Example: mlxbert mcp ~/notes
    """
    from mlxbert.search.index import open_index
    from mlxbert.search.index_locations import find_index, index_file
    from mlxbert.search.mcp import Served, serve

    seen = paths or (["."] if index is None else [])
    file = index or find_index(seen) or index_file(seen)
    if missing := [path for path in seen if not os.path.exists(path)]:
        raise ArgumentError(f"{missing[0]}: no such file or folder, expected one to search")
    new = not file.exists()
    if new and (no_update or not paths):
        where = " and ".join(paths or ()) or os.getcwd()
        what = f"{file}: no such index" if index is not None else f"no index covers {where}"
        raise ArgumentError(what, hint="`mlxbert mcp PATH` makes one, of PATH")

    def prepare() -> Served:
        named = model or (os.environ.get("MLXBERT_MODEL") or BUILTIN if new else None)
        opened = held.enter_context(open_index(file, model=named, paths=seen))
        if not no_update:
            _update(opened, seen or None)
        return Served(opened, seen)

    with ExitStack() as held:
        serve(prepare)


def _update(index: "Index", paths: Sequence[str] | None) -> None:
    """Brings the index up to date; where another process is doing this, it is served as it is."""
    from mlxbert.search.update_events import IndexUpdated

    try:
        *_, done = index.update(paths)
    except BusyError:
        console.say("note", "another process is updating this index: it is served as it is now")
        return
    assert isinstance(done, IndexUpdated)
    console.say("note", f"{console.counted(done.files, 'file')} in the index, {done.failed:,} could not be read")
