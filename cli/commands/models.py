"""`mlxbert models …`: the built-in model, the models in the hub's shared cache, and the models that mlxbert wrote."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import OutputOptions, Revision, TalkOptions
from mlxbert.cli.views import console, json_lines, models as view, progress
from mlxbert.errors import ArgumentError, HubError
from mlxbert.option_declarations import Option

if TYPE_CHECKING:
    from mlxbert.weights.hub.cache import Snapshot

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name on the Hugging Face hub: ORG/NAME.", show_default=False)
]


def models_list(out: OutputOptions) -> None:
    """List the models on this machine: the built-in model, the models in the hub's cache, and your own.

    Your own models are the folders that finetune, pretrain, distill and convert have written and that still exist.

    Example: mlxbert models list
    """
    from mlxbert.folders.written_models import written_models
    from mlxbert.weights.hub import cache

    cached = (_cached(name) for name in cache.cached_names())
    listing = {
        "cache": str(cache.cache_folder()),
        "models": [_builtin(), *(model for model in cached if model)],
        "written": [{**vars(model_folder), "folder": str(model_folder.folder)} for model_folder in written_models()],
    }
    session.show_object(listing, lambda: view.draw_list(listing), out)


def models_download(talk: TalkOptions, name: Name, revision: Revision = None) -> None:
    """Download the newest version of a model, and print its folder.

    Only files that mlxbert needs are downloaded. Files in the cache are compared with their hashes, and replaced if
    they differ.

    Example: mlxbert models download google-bert/bert-base-uncased
    """
    from mlxbert.weights.hub.download import download
    from mlxbert.weights.hub.errors import check_online
    from mlxbert.weights.model_source import whole_name

    _check_name(name)
    check_online(name)
    with whole_name(name, revision, folders=False), progress.download(name) as update:
        folder = download(name, revision, update, check=True)
    _put_path(folder)


def models_verify(
    out: OutputOptions,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name on the hub; by default, all models.", show_default=False)
    ] = None,
    revision: Revision = None,
) -> None:
    """Compare the files of models in the cache with their hashes; nothing is downloaded.

    Exit status: 0 if all match, 1 if files are damaged or missing. `mlxbert models download NAME` replaces them.

    Example: mlxbert models verify google-bert/bert-base-uncased
    """
    from mlxbert.weights.hub import cache

    models = [_verified(snapshot) for snapshot in _snapshots(name, revision)]
    report = {"cache": str(cache.cache_folder()), "models": models}
    session.show_object(report, lambda: view.draw_verified(report), out)
    wrong = [model for model in models if model["damaged"] or model["missing"]]
    for model in wrong:
        at = "" if model["names"] == ["main"] else f" --revision {(model['names'] or [model['commit']])[0]}"
        console.say("hint", "to replace damaged files, run", f"mlxbert models download {model['name']}{at}")
    raise typer.Exit(1 if wrong else 0)


def models_path(talk: TalkOptions, name: Name, revision: Revision = None) -> None:
    """Print the folder of a model in the cache; nothing is downloaded.

    Example: mlxbert models path google-bert/bert-base-uncased
    """
    from mlxbert.weights.model_source import find_cached, whole_name

    _check_name(name)
    with whole_name(name, revision, folders=False):
        _put_path(find_cached(name, revision))


def models_remove(
    out: OutputOptions,
    name: Name,
    revision: Revision = None,
    yes: Annotated[bool, Option("Remove without asking.", short="-y")] = False,
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


def _snapshots(name: str | None, revision: str | None) -> "list[Snapshot]":
    """Returns the snapshots to verify: one revision of a model, all revisions of a model, or all in the cache."""
    from mlxbert.weights.hub import cache

    if name is None and revision is not None:
        raise ArgumentError(f"--revision is {revision!r}, but no model is named")
    if name is not None:
        _check_name(name)
    if name is not None and revision is not None:
        snapshot = cache.find_snapshot(name, revision)
        snapshots = [] if snapshot is None else [snapshot]
    else:
        names = cache.cached_names() if name is None else [name]
        snapshots = [snapshot for cached_name in names for snapshot in cache.snapshots(cached_name)]
    if name is not None and not snapshots:
        what = "the model" if revision is None else f"revision {revision!r} of the model"
        raise HubError(f"{name}: {what} is not in the cache", hint="`mlxbert models list` shows the cached models")
    return snapshots


def _verified(snapshot: "Snapshot") -> dict[str, Any]:
    from mlxbert.weights.hub import cache

    names = [name for name, commit in cache.references(snapshot.name).items() if commit == snapshot.commit]
    return {"name": snapshot.name, "commit": snapshot.commit, "names": names, **snapshot.check()}


def _check_name(name: str) -> None:
    """Rejects models that the cache cannot hold: the built-in model, and folders."""
    from mlxbert.weights.model_source import BUILTIN, local_folder

    if name == BUILTIN:
        raise ArgumentError("the built-in model is part of the package, not of the cache")
    if local_folder(name) is not None:
        raise ArgumentError(
            f"{name} is a folder, expected the name of a model on the hub",
            hint="only models of the hub are in the cache",
        )


def _agreed(facts: dict[str, Any]) -> bool:
    if not console.can_ask():
        raise ArgumentError(
            f"{facts['name']}: removing {facts['folder']} ({console.size(facts['bytes'])}) needs a confirmation "
            "in a terminal",
            hint="--yes removes the model without asking",
        )
    screen = console.stderr()
    for part in view.draw_facts(f"{facts['name']}, in the cache that other programs share", facts):
        screen.print(part)
    return console.ask("remove it?")


def _put_path(folder: Path) -> None:
    json_lines.put_line(console.visible(str(folder)))


def _builtin() -> dict[str, Any]:
    from mlxbert.folders.inspect import inspect
    from mlxbert.weights.model_source import BUILTIN, BUILTIN_QUALITY, builtin_folder

    inspected = inspect(BUILTIN)
    return {
        "name": BUILTIN,
        "family": inspected.family,
        "parameters": inspected.parameters["total"],
        "max_length": inspected.max_length,
        "tasks": list(inspected.tasks),
        "bytes": sum(path.stat().st_size for path in builtin_folder().rglob("*") if path.is_file()),
        "folder": str(inspected.folder),
        "quality": BUILTIN_QUALITY,
    }


def _cached(name: str) -> dict[str, Any] | None:
    """Returns the facts of a cached model; `None` if no revision has a readable configuration."""
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


ABOUT = "Models on this machine and on the Hugging Face hub."
COMMANDS = {
    "list": models_list, "download": models_download, "verify": models_verify, "path": models_path,
    "remove": models_remove,
}  # fmt: skip
