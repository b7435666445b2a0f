"""`mlxbert indexes …`: the indexes of files on this machine."""

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.options import OutputOptions
from mlxbert.cli.views import console, search as view
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.files import identity
from mlxbert.options import Option
from mlxbert.paths import open_regular

_START = b"SQLite format 3\0"  # of the file of an index


def _covered() -> list[str]:
    """The folders that have an index, for completion."""
    return [str(folder) for one in _indexes() for folder in one.get("covers", ())]


_HELP: dict[str, Any] = {
    "help": "A folder that has an index, or a file of one.",
    "autocompletion": _covered,
    "show_default": False,
}
Name = Annotated[str, typer.Argument(metavar="INDEX", **_HELP)]
Names = Annotated[list[str], typer.Argument(metavar="INDEX…", **_HELP)]


def indexes_list(out: OutputOptions) -> None:
    """List the indexes in your data folder.

    Example: mlxbert indexes list
    """
    from mlxbert.machine.user_folders import data_folder

    found: dict[str, Any] = {"folder": str(data_folder() / "indexes"), "indexes": _indexes()}
    session.show_object(found, lambda: view.draw_indexes(found), out)
    for one in found["indexes"]:
        if "problem" in one:
            console.say("note", one["problem"])


def indexes_show(out: OutputOptions, index: Name = ".") -> None:
    """Show an index: what it covers, its model, its size, and the files that could not be read.

    Example: mlxbert indexes show docs/
    """
    facts = _facts(_file(index))
    session.show_object(facts, lambda: view.draw_index(facts), out)


def indexes_remove(
    out: OutputOptions, indexes: Names, yes: Annotated[bool, Option("Remove without asking.", short="-y")] = False
) -> None:
    """Remove indexes: all of those that you name, or none. The files that they cover stay.

    Example: mlxbert indexes remove docs/ --yes
    """
    from mlxbert.search import index_locations, schema

    known = [_known(Path(name)) if _is_ours(name) else _facts(_own(name)) for name in indexes]
    for name, facts in zip(indexes, known, strict=True):
        named = index_locations.spelled(indexes, covers := facts.get("covers", ()))
        if _is_root(name, covers) and not {*named}.issuperset(covers):
            problem = _not_own(name, covers)
            problem.hint = f"mlxbert indexes remove {shlex.quote(_names(covers)[1])}"
            raise problem
    found = list({os.path.realpath(facts["index"]): facts for facts in known}.values())
    if not yes and not _agreed(found):
        console.say("note", "nothing was removed")
        return
    with ExitStack() as locks:
        for facts in found:
            locks.enter_context(schema.locked(facts["index"]))
        for facts in found:
            schema.remove(facts["index"])
    console.say("note", f"{console.size(sum(facts['bytes'] for facts in found))} freed")
    for facts in found:
        session.show_object(facts, partial(view.draw_index, facts), out)


def indexes_move(
    out: OutputOptions,
    old: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="What the folder is called now.", show_default=False)],
) -> None:
    """Tell an index that its folder was renamed or moved. Nothing is embedded again.

    Example: mlxbert indexes move notes/ archive/notes/
    """
    from mlxbert.search.index import open_index

    if not os.path.exists(new):
        raise InputError(f"{new}: no such file or folder", hint="first rename the folder, then its index")
    file = _own(old)
    with open_index(file) as found:
        found.move(old, new)
    facts = _facts(_own(new))
    session.show_object(facts, lambda: view.draw_index(facts), out)


def _file(name: str) -> Path:
    """The file of an index: the one that is named, or that of the index which covers a path."""
    from mlxbert.search import index_locations

    found = Path(name) if _is_index(name) else index_locations.find_index([name]) or _listed(name)
    if found is None:
        raise InputError(f"{name}: no index covers it", hint="`mlxbert indexes list` shows the indexes")
    return found


def _listed(name: str) -> Path | None:
    """The file of the index of several paths that `indexes list` shows so."""
    return next((Path(one["index"]) for one in _indexes() if name in _names(one.get("covers", ()))), None)


def _names(covers: Sequence[str]) -> tuple[str, ...]:
    """What an index of some paths is called in texts: by these paths, as they are, or as they are shown."""
    return ", ".join(covers), ", ".join(map(view.near, covers))


def _is_index(name: str) -> bool:
    with suppress(OSError), open(name, "rb", opener=open_regular) as file:
        return file.read(len(_START)) == _START
    return False


def _is_ours(name: str) -> bool:
    """Whether a file is an index, perhaps a damaged one, and not a database of another program."""
    from mlxbert.search import index_locations, schema

    if Path(name).absolute() in index_locations.list_indexes():
        return True
    with suppress(OSError), open(name, "rb", opener=open_regular) as file:
        return _is_index(name) and file.read(72)[68:] == schema.APPLICATION.to_bytes(4, "big")
    return False


def _own(name: str) -> Path:
    """The file of an index that is named, or that was made of a path and not of a folder above it."""
    file = _file(name)
    covers = _facts(file)["covers"]
    if not _is_root(name, covers) and identity(name) != identity(file) and name not in _names(covers):
        raise _not_own(name, covers)
    return file


def _is_root(name: str, covers: Sequence[str]) -> bool:
    """Whether an index was made of a path, however that is spelled."""
    from mlxbert.search import index_locations

    return index_locations.spelled([name], covers)[0] in covers


def _not_own(name: str, covers: Sequence[str]) -> ArgumentError:
    return ArgumentError(f"{name} has no index of its own: {', '.join(covers)} has one that covers it")


def _facts(file: Path) -> dict[str, Any]:
    """What `indexes show` prints."""
    from mlxbert.search.index import open_index

    with open_index(file) as found:
        stats, about = found.stats(), found.about
    return {
        "index": found.path,
        "covers": list(about.roots),
        "model": about.model,
        "files": stats.files,
        "documents": stats.documents,
        "chunks": stats.chunks,
        "tokens_per_chunk": about.tokens,
        "bytes": stats.size,
        "created": about.created,
        "updated": about.updated,
        "failed": [{"path": path, "reason": reason} for path, reason in stats.failed],
    }


def _indexes() -> list[dict[str, Any]]:
    """The facts of all indexes in the data folder."""
    from mlxbert.search import index_locations

    return [_known(file) for file in index_locations.list_indexes()]


def _known(file: Path) -> dict[str, Any]:
    """The facts of an index; of one that cannot be read, why."""
    try:
        return _facts(file)
    except MlxbertError as problem:
        return {"index": str(file), "bytes": file.stat().st_size, "problem": problem.message}


def _agreed(found: Sequence[dict[str, Any]]) -> bool:
    """Shows what would be removed, and asks at a terminal."""
    if not console.can_ask():
        named = ", ".join(f"{facts['index']} ({console.size(facts['bytes'])})" for facts in found)
        raise ArgumentError(
            f"would remove {named}, but cannot ask without a terminal", hint="--yes removes without asking"
        )
    screen = console.stderr()
    for part in (part for facts in found for part in view.draw_index(facts)):
        screen.print(part)
    return console.ask(f"remove {'it' if len(found) == 1 else 'them'}?")


COMMANDS = {"list": indexes_list, "show": indexes_show, "remove": indexes_remove, "move": indexes_move}
