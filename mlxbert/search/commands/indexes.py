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
from mlxbert.cli.shared_options import OutputOptions
from mlxbert.cli.views import console, json_lines
from mlxbert.durable_files import identity
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.option_declarations import Option
from mlxbert.paths import open_regular
from mlxbert.results.json import to_json
from mlxbert.search import views

_MAGIC = b"SQLite format 3\0"  # the first bytes of an index's file


def _covered() -> list[str]:
    """Returns the folders that have an index, for the shell's completion."""
    return [str(folder) for facts in _indexes() for folder in facts.get("covers", ())]


_HELP: dict[str, Any] = {
    "help": "An indexed folder, or the file of an index.",
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

    listing: dict[str, Any] = {"folder": str(data_folder() / "indexes"), "indexes": _indexes()}
    session.show_object(listing, lambda: views.draw_indexes(listing), out)
    for facts in listing["indexes"]:
        if "problem" in facts:
            console.say("note", facts["problem"])


def indexes_show(
    out: OutputOptions,
    index: Name = ".",
    problems: Annotated[bool, Option("List what was left out, cut or guessed, with its place and the reason.")] = False,
) -> None:
    """Show an index: what it covers, its model, its size, and its problems.

    With --problems, list what was left out, cut or guessed when the files were read: one problem per line in a pipe.

    Example: mlxbert indexes show docs/ --problems
    """
    if problems:
        _show_problems(find_file(index), out)
    else:
        facts = _facts(find_file(index))
        session.show_object(facts, lambda: views.draw_index(facts), out)


def _show_problems(file: str | Path, out: OutputOptions) -> None:
    from mlxbert.search.index import open_index

    with open_index(file) as opened:
        listed = opened.problems()
    if console.draws(out.json):
        console.require_stdout()
        for part in views.draw_problems(listed):
            console.stdout().print(part)
    else:
        for problem in listed:
            json_lines.put_line(to_json(vars(problem)))
    if not listed:
        console.say("note", "no problems")


def indexes_remove(
    out: OutputOptions, indexes: Names, yes: Annotated[bool, Option("Remove without asking.", short="-y")] = False
) -> None:
    """Remove indexes: all that you name, or none if there is an error. The files that the indexes cover are kept.

    Example: mlxbert indexes remove docs/ --yes
    """
    from mlxbert.search import index_stores

    listed = [_facts_or_problem(name) if _is_ours(name) else _facts(_file_of_root(name)) for name in indexes]
    for name, facts in zip(indexes, listed, strict=True):
        covers = facts.get("covers", ())
        if _is_root(name, covers) and not {*index_stores.canonical_paths(indexes)}.issuperset(covers):
            problem = _no_own_index(name, covers)
            problem.hint = f"mlxbert indexes remove {shlex.quote(_names(covers)[1])}"
            raise problem
    distinct = list({_identity(facts["index"]): facts for facts in listed}.values())
    if not yes and not _agreed(distinct):
        console.say("note", "nothing was removed")
        return
    with ExitStack() as locks:
        for facts in distinct:
            locks.enter_context(index_stores.locked(facts["index"]))
        for facts in distinct:
            index_stores.remove_store(facts["index"])
    console.say("note", f"{console.size(sum(facts['bytes'] for facts in distinct))} freed")
    for facts in distinct:
        session.show_object(facts, partial(views.draw_index, facts), out)


def indexes_move(
    out: OutputOptions,
    old: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new name of the folder.", show_default=False)],
    index: Annotated[str | None, Option("File of an index outside of your data folder.", "FILE")] = None,
) -> None:
    """Tell an index that its folder was renamed or moved. Nothing is embedded again.

    Give the former path of the folder or, if no other folder is missing, the file of the index.

    Example: mlxbert indexes move notes/ archive/notes/
    """
    from mlxbert.search.index import open_index

    if not os.path.exists(new):
        raise InputError(f"{new}: no such file or folder", hint="rename the folder first, then move the index")
    file = _file_of_root(old) if index is None else find_file(index)
    _check_single(file, new)
    with open_index(file) as opened:
        is_folder = index is not None or not _is_location(old, file)
        opened.move(old if is_folder else _moved_root(old, opened.about.roots), new)
    facts = _facts(file)
    session.show_object(facts, lambda: views.draw_index(facts), out)


def _check_single(file: str | Path, new: str) -> None:
    """Raises InputError if a folder would get a second index in the user's data folder."""
    from mlxbert.search import index_stores
    from mlxbert.search.index_stores import about_of

    other = index_stores.find_index([new])
    if other is None or Path(file) not in index_stores.list_indexes() or identity(other) == identity(file):
        return
    about = about_of(other)
    if about is not None and _is_root(new, about.roots):
        raise InputError(
            f"{new} has an index of its own", hint=f"remove it first: mlxbert indexes remove {shlex.quote(new)}"
        )


def _is_location(name: str, file: str | Path) -> bool:
    return name == file or identity(name) == identity(file)


def _moved_root(name: str, roots: Sequence[str]) -> str:
    """Returns the only folder of an index that is missing, and so has moved."""
    missing = [root for root in roots if not os.path.exists(root)]
    if len(missing) != 1:
        covered = ", ".join(map(views.near, missing or roots)) or "no folder"
        problem = f"of the folders that the index covers, {covered} are missing" if missing else ""
        raise ArgumentError(
            f"{name}: {problem or f'the index covers {covered}, and none of these has moved'}",
            hint=f"name the folder as it was before: mlxbert indexes move OLD NEW --index {shlex.quote(name)}",
        )
    return missing[0]


def indexes_copy(
    out: OutputOptions,
    index: Name,
    new: Annotated[
        str,
        typer.Argument(metavar="NEW", help="File, lance:DIR or s3://BUCKET/PATH.", show_default=False),
    ],
) -> None:
    """Copy an index to another file or to a Lance table, or back. Nothing is embedded again.

    The index stays where it is, and the copy gets the same texts, vectors, records and settings.

    Example: mlxbert indexes copy docs/ lance:shared/docs
    """
    from mlxbert.search.index import open_index

    with open_index(find_file(index)) as opened:
        opened.copy(new)
    facts = _facts(new)
    session.show_object(facts, lambda: views.draw_index(facts), out)


def _identity(location: str) -> str:
    """Returns a value that is equal for all paths to the same index."""
    from mlxbert.search.index_stores import is_lance

    return location if is_lance(location) else os.path.realpath(location)


def find_file(name: str) -> str | Path:
    """Finds the file of an index; `name` is either this file or a path that the index covers."""
    from mlxbert.search import index_stores
    from mlxbert.search.index_stores import exists, is_lance

    if is_lance(name):
        if not exists(name):
            raise InputError(f"{name}: no such index", hint="check the spelling of the path")
        return name
    file = Path(name) if _is_index(name) else index_stores.find_index([name]) or _listed(name)
    if file is None:
        raise InputError(f"{name}: no index covers this path", hint="`mlxbert indexes list` shows the indexes")
    return file


def _listed(name: str) -> Path | None:
    """Returns the file of the index that has this name in `indexes list`; the name may consist of several paths."""
    return next((Path(facts["index"]) for facts in _indexes() if name in _names(facts.get("covers", ()))), None)


def _names(covers: Sequence[str]) -> tuple[str, ...]:
    """Returns the two names of an index that covers these paths, which are joined by commas in both.

    In the first name, the paths are as stored; in the second, they are as `indexes list` shows them.
    """
    return ", ".join(covers), ", ".join(map(views.near, covers))


def _is_index(name: str) -> bool:
    with suppress(OSError), open(name, "rb", opener=open_regular) as file:
        return file.read(len(_MAGIC)) == _MAGIC
    return False


def _is_ours(name: str) -> bool:
    """Whether a file is an index, even a damaged one, rather than the database of another program."""
    from mlxbert.search import index_stores, schema
    from mlxbert.search.index_stores import exists, is_lance

    if (is_lance(name) and exists(name)) or Path(name).absolute() in index_stores.list_indexes():
        return True
    with suppress(OSError), open(name, "rb", opener=open_regular) as file:
        return _is_index(name) and file.read(72)[68:] == schema.APPLICATION.to_bytes(4, "big")
    return False


def _file_of_root(name: str) -> str | Path:
    """Finds the file of an index; `name` is either this file or a path for which the index was made."""
    file = find_file(name)
    covers = _facts(file)["covers"]
    if not _is_root(name, covers) and identity(name) != identity(file) and name not in _names(covers):
        raise _no_own_index(name, covers)
    return file


def _is_root(name: str, covers: Sequence[str]) -> bool:
    """Whether an index was made for a path, however the path is spelled."""
    from mlxbert.search.file_systems import canonical_path

    return canonical_path(name) in covers


def _no_own_index(name: str, covers: Sequence[str]) -> ArgumentError:
    return ArgumentError(f"{name} has no separate index, because the index of {', '.join(covers)} covers this path")


def _facts(file: str | Path) -> dict[str, Any]:
    from mlxbert.search.index import open_index

    with open_index(file) as opened:
        stats, about, problems = opened.stats(), opened.about, views.summarized(opened.problems())
    return {
        "index": opened.path,
        "covers": list(about.roots),
        "model": about.model,
        "vectors": about.kind,
        "files": stats.files,
        "documents": stats.documents,
        "chunks": stats.chunks,
        "tokens_per_chunk": about.tokens,
        "query_prompt": about.prompts[0] or None,
        "prompt": about.prompts[1] or None,
        "token_vectors": about.token_dtype or None,
        "bytes": stats.size,
        "created": about.created,
        "updated": about.updated,
        "problems": problems,
    }


def _indexes() -> list[dict[str, Any]]:
    from mlxbert.search import index_stores

    return [_facts_or_problem(file) for file in index_stores.list_indexes()]


def _facts_or_problem(file: str | Path) -> dict[str, Any]:
    """Returns the facts of an index; if it cannot be read, they include the reason as `problem`."""
    try:
        return _facts(file)
    except MlxbertError as problem:
        size = os.stat(file).st_size if os.path.exists(file) else 0
        return {"index": str(file), "bytes": size, "problem": problem.message}


def _agreed(indexes: Sequence[dict[str, Any]]) -> bool:
    """Shows the indexes to remove, and asks the user in a terminal whether to remove them; returns the answer."""
    if not console.can_ask():
        named = ", ".join(f"{facts['index']} ({console.size(facts['bytes'])})" for facts in indexes)
        raise ArgumentError(f"removing {named} needs a confirmation in a terminal", hint="--yes removes without asking")
    screen = console.stderr()
    for part in (part for facts in indexes for part in views.draw_index(facts)):
        screen.print(part)
    return console.ask(f"remove {'it' if len(indexes) == 1 else 'them'}?")


ABOUT = "Indexes of files on this machine."
COMMANDS = {
    "list": indexes_list,
    "show": indexes_show,
    "remove": indexes_remove,
    "move": indexes_move,
    "copy": indexes_copy,
}
