"""`mlxbert models …`: the built-in model, and those in the cache of the hub, which all programs of a machine share."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.options import OutputOptions, Revision, TalkOptions
from mlxbert.cli.views import console, json_lines, models as view, progress
from mlxbert.errors import ArgumentError, HubError

if TYPE_CHECKING:
    from mlxbert.weights.hub.cache import Snapshot

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name on the Hugging Face hub: ORG/NAME.", show_default=False)
]


def models_list(out: OutputOptions) -> None:
    """List the models on this machine: the built-in one and those in the hub's cache.

    Example: mlxbert models list
    """
    from mlxbert.weights.hub import cache

    cached = (_cached(name) for name in cache.cached_names())
    found = {"cache": str(cache.cache_folder()), "models": [_builtin(), *(model for model in cached if model)]}
    session.show_object(found, lambda: view.draw_list(found), out)


def models_download(talk: TalkOptions, name: Name, revision: Revision = None) -> None:
    """Download the newest version of a model into the cache, and print its folder.

    Only files that mlxbert needs are downloaded, and only those that are not in the cache yet.

    Example: mlxbert models download google-bert/bert-base-uncased
    """
    from mlxbert.weights.hub import cache
    from mlxbert.weights.hub.download import download
    from mlxbert.weights.source import whole_name

    _check_name(name)
    if cache.is_offline():
        raise HubError(f"{name}: mlxbert is offline", hint="unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE")
    with whole_name(name, revision), progress.download(name) as update:
        folder = download(name, revision, update)
    _put_path(folder)


def models_path(talk: TalkOptions, name: Name, revision: Revision = None) -> None:
    """Print the folder of a model in the cache; nothing is downloaded.

    Example: mlxbert models path google-bert/bert-base-uncased
    """
    from mlxbert.weights.source import find_cached, whole_name

    _check_name(name)
    with whole_name(name, revision):
        _put_path(find_cached(name, revision))


def models_remove(
    out: OutputOptions,
    name: Name,
    revision: Revision = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
) -> None:
    """Remove a model from the cache, for all programs that share it.

    Example: mlxbert models remove google-bert/bert-base-uncased --yes
    """
    from mlxbert.weights.hub.download import Removal

    _check_name(name)
    removal = Removal(name, revision)
    facts = {"name": name, "revisions": removal.commits, "folder": str(removal.folder), "bytes": removal.size}
    if not yes and not _agreed(facts):
        console.say("note", "nothing was removed")
        return
    removal.execute()
    console.say("note", f"{console.size(removal.size)} freed")
    session.show_object(facts, lambda: view.draw_facts(f"removed {name}", facts), out)


def _check_name(name: str) -> None:
    """Refuses models that are not in the cache: the built-in one, and folders."""
    from mlxbert.weights.source import BUILTIN, local_folder

    if name == BUILTIN:
        raise ArgumentError("the built-in model is part of the package and not in the cache")
    if local_folder(name) is not None:
        raise ArgumentError(f"{name} is a folder, expected a name on the hub", hint="a folder needs no download")


def _agreed(facts: dict[str, Any]) -> bool:
    """Shows what would be removed, and asks at a terminal."""
    if sys.stdin is None or sys.stderr is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ArgumentError(
            f"{facts['name']}: would remove {facts['folder']} ({console.size(facts['bytes'])}), but cannot ask "
            "for confirmation without a terminal",
            hint="--yes removes it without asking",
        )
    screen = console.stderr()
    for part in view.draw_facts(f"{facts['name']}, in the cache that other programs share", facts):
        screen.print(part)
    # typer's own question goes to stdout, which is for data, when stdout is not a terminal.
    print("remove it? [y/N]: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _put_path(folder: Path) -> None:
    json_lines.put_line(console.visible(str(folder)))


def _builtin() -> dict[str, Any]:
    from mlxbert.folders.inspect import inspect
    from mlxbert.weights.source import BUILTIN, BUILTIN_QUALITY, builtin_folder

    found = inspect(BUILTIN)
    return {
        "name": BUILTIN,
        "family": found.family,
        "parameters": found.parameters["total"],
        "max_length": found.max_length,
        "tasks": list(found.tasks),
        "bytes": sum(path.stat().st_size for path in builtin_folder().rglob("*") if path.is_file()),
        "folder": str(found.folder),
        "quality": BUILTIN_QUALITY,
    }


def _cached(name: str) -> dict[str, Any] | None:
    """What the cache holds of a model; `None` if no revision has a readable configuration."""
    from mlxbert.weights.hub import cache

    snapshots = {snapshot.commit: snapshot for snapshot in cache.snapshots(name)}
    families = {commit: snapshot.model_type() for commit, snapshot in snapshots.items()}
    if not any(families.values()):
        return None
    references = cache.references(name)
    files: dict[Path, int] = {}
    for snapshot in snapshots.values():
        files |= snapshot.sizes()
    return {
        "name": name,
        "family": families.get(references.get("main", "")) or next(filter(None, families.values())),
        "bytes": sum(files.values()),
        "folder": str(cache.repository_folder(name)),
        "revisions": [_revision(snapshot, references) for snapshot in snapshots.values()],
    }


def _revision(snapshot: "Snapshot", references: dict[str, str]) -> dict[str, Any]:
    return {
        "commit": snapshot.commit,
        "names": [name for name, commit in references.items() if commit == snapshot.commit],
        "bytes": sum(snapshot.sizes().values()),
        "complete": snapshot.is_complete(),
        "folder": str(snapshot.folder),
    }
