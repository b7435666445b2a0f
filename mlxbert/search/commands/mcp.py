"""`mlxbert mcp`: search for AI assistants."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from mlxbert.cli.shared_options import INDEX_HELP, TalkOptions
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError, BusyError
from mlxbert.option_declarations import Option, OutputPath
from mlxbert.weights.model_source import BUILTIN

if TYPE_CHECKING:
    from mlxbert.search.index import Index


def mcp(
    talk: TalkOptions,
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH…", help="Files and folders to search.")] = None,
    index: Annotated[str | None, Option(INDEX_HELP, "FILE"), OutputPath("file")] = None,
    model: Annotated[str | None, Option("Hub name, folder or 'builtin'.", short="-m", usual="the index's")] = None,
    no_update: Annotated[bool, Option("Serve the index as it is.")] = False,
) -> None:
    """Let an assistant search your files, over MCP.

    Assistants start it themselves, and talk to it on stdin and stdout. It gives them the indexed files of the paths, by
    default of the current folder, or with --index all files of that index.

    Example: mlxbert mcp ~/notes
    """
    from mlxbert.search.commands.search import note_other_models
    from mlxbert.search.index import open_index
    from mlxbert.search.index_stores import exists, find_index, index_file
    from mlxbert.search.mcp import IndexTools, serve

    searched = paths or (["."] if index is None else [])
    file = index or find_index(searched) or index_file(searched)
    if missing := [path for path in searched if not os.path.exists(path)]:
        raise ArgumentError(f"{missing[0]}: no such file or folder")
    new = not exists(file)
    if new and (no_update or not paths):
        where = " and ".join(paths or ()) or os.getcwd()
        message = f"{file}: no such index" if index is not None else f"no index covers {where}"
        raise ArgumentError(message, hint="`mlxbert mcp PATH` makes an index of PATH")

    def prepare() -> IndexTools:
        model_name = model or (os.environ.get("MLXBERT_MODEL") or BUILTIN if new else None)
        if new and model is None:
            note_other_models(searched, model_name or BUILTIN)
        opened = resources.enter_context(open_index(file, model=model_name, paths=searched))
        if not no_update:
            _update(opened, searched or None)
        return IndexTools(opened, searched, None if no_update else lambda: opened.update(searched or None))

    with ExitStack() as resources:
        serve(prepare)


def _update(index: "Index", paths: Sequence[str] | None) -> None:
    """Updates the index. If another process is updating it at present, the index is served as it is."""
    from mlxbert.search.update_events import IndexUpdated

    try:
        *_, done = index.update(paths)
    except BusyError:
        console.say("note", "another process is updating this index, so the present state of the index is served")
        return
    assert isinstance(done, IndexUpdated)
    problems = console.counted(sum(done.problems.values()), "problem")
    console.say("note", f"{console.counted(done.files, 'file')} in the index, {problems}")
