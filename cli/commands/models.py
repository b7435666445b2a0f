"""`mlxbert models …`: the built-in model, and those of the hub in the cache that all programs of a machine share."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.options import OutputOptions, Revision, TalkOptions
from mlxbert.cli.views import progress, render
from mlxbert.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.weights.hub.cache import Snapshot

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name on the Hugging Face hub: ORG/NAME.", show_default=False)
]


def models_list(out: OutputOptions) -> None:
    """List the models that are on this machine: the built-in one and those of the hub's cache.

    Example: mlxbert models list
    """
    from mlxbert.weights.hub import cache

    cached = (_cached(name) for name in cache.cached_names())
    found = {"cache": str(cache.cache_folder()), "models": [_builtin(), *(model for model in cached if model)]}
    session.show_object(found, lambda: _draw(found), out)


def models_download(talk: TalkOptions, name: Name, revision: Revision = None) -> None:
    """Bring a model of the hub into the cache, in its newest version, and print its folder.

    Only what a model needs is fetched; what is there already is not fetched again.

    Example: mlxbert models download google-bert/bert-base-uncased
    """
    from mlxbert.errors import HubError
    from mlxbert.weights.hub import cache
    from mlxbert.weights.hub.download import download

    _check_name(name)
    if cache.is_offline():
        raise HubError(f"{name}: the hub may not be asked", hint="unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE")
    with progress.download(name) as update:
        folder = download(name, revision, update)
    _put_path(folder)


def models_path(talk: TalkOptions, name: Name, revision: Revision = None) -> None:
    """Print the folder of a model that is in the cache; nothing is downloaded.

    Example: mlxbert models path google-bert/bert-base-uncased
    """
    from mlxbert.weights.source import find_cached

    _check_name(name)
    _put_path(find_cached(name, revision))


def models_remove(
    out: OutputOptions,
    name: Name,
    revision: Revision = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a model from the cache. Other programs that use the same cache lose it, too.

    Example: mlxbert models remove google-bert/bert-base-uncased --yes
    """
    from mlxbert.weights.hub.download import Removal

    _check_name(name)
    removal = Removal(name, revision)
    facts = {"name": name, "revisions": removal.commits, "folder": str(removal.folder), "bytes": removal.size}
    if not yes and not _agreed(facts):
        render.say("note", "nothing was removed")
        return
    removal.execute()
    render.say("note", f"{render.size(removal.size)} freed")
    session.show_object(facts, lambda: render.facts(f"removed {name}", _rows(facts)), out)


def _check_name(name: str) -> None:
    """Refuses what is no model of the hub: its files are not the cache's."""
    from mlxbert.weights.source import BUILTIN, local_folder

    if name == BUILTIN:
        raise ArgumentError("the built-in model comes with the program and is not in the cache")
    if local_folder(name) is not None:
        raise ArgumentError(f"{name} is a folder, expected a name of the hub", hint="folders are used where they are")


def _agreed(facts: dict[str, Any]) -> bool:
    """Shows what would go and asks at a terminal."""
    if sys.stdin is None or sys.stderr is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ArgumentError(
            f"{facts['name']}: would remove {facts['folder']} ({render.size(facts['bytes'])}), and nobody is there to "
            "be asked",
            hint="--yes removes it without asking",
        )
    console = render.console(stderr=True)
    for part in render.facts(f"{facts['name']}, in the cache that other programs share", _rows(facts)):
        console.print(part)
    # typer's own question would write to stdout, which is data only, when that is no terminal.
    print("remove it? [y/N]: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _put_path(folder: Path) -> None:
    render.put_line(render.visible(str(folder)))


def _builtin() -> dict[str, Any]:
    from mlxbert.folders.inspect import inspect
    from mlxbert.weights.source import BUILTIN, builtin_folder

    found = inspect(BUILTIN)
    return {
        "name": BUILTIN,
        "family": found.family,
        "parameters": found.parameters["total"],
        "max_length": found.max_length,
        "tasks": list(found.tasks),
        "bytes": sum(path.stat().st_size for path in builtin_folder().rglob("*") if path.is_file()),
        "folder": str(found.folder),
        "quality": session.BUILTIN_QUALITY,
    }


def _cached(name: str) -> dict[str, Any] | None:
    """What the cache holds of a model; `None` where that is no model: nothing in it has a readable configuration."""
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


def _draw(found: dict[str, Any]) -> Iterator["RenderableType"]:
    builtin, *cached = found["models"]
    yield from render.facts(builtin["name"], _rows(builtin))
    yield from render.facts("hub cache", [("folder", found["cache"])])
    if cached:
        yield render.listing(
            ("name", "family", "size", "revision", "complete"),
            (
                (
                    model["name"],
                    model["family"],
                    render.size(revision["bytes"]),
                    ", ".join(revision["names"]) or revision["commit"][:12],
                    {True: "yes", False: "no", None: "not known"}[revision["complete"]],
                )
                for model in cached
                for revision in model["revisions"]
            ),
        )


def _rows(facts: dict[str, Any]) -> Iterable[tuple[str, object]]:
    for key, value in facts.items():
        if key == "bytes":
            yield "size", render.size(value)
        elif key != "name":
            yield key, _shown(value)


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return "; ".join(f"{task}: {quality}" for task, quality in value.items())
    return f"{value:,}" if isinstance(value, int) else value
