"""From what a user calls a model to the folder that holds it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.errors import ArgumentError, CheckpointError, HubError
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.cache import Snapshot
from mlxbert.weights.hub.download import download
from mlxbert.weights.hub.errors import UnknownRevisionError, UnreachableError

if TYPE_CHECKING:
    from mlxbert.weights.formats.headers import Header

_Ask = Callable[[str, str | None], Path]  # (name, revision) → folder of what the hub has
BUILTIN = "builtin"
BUILTIN_QUALITY = {  # by task; its README has more
    "fill-mask": "its first word is right for 36 % of the masked words of Wikipedia paragraphs",
    "embed": "Spearman 81.9 on the test pairs of STS-B",
    "next-sentence": "right for 96 % of the pairs of Wikipedia articles, less often on other texts",
}
_FOLDER = Path(__file__).parent / "builtin"
_LOG = logging.getLogger("mlxbert")


def builtin_folder() -> Path:
    """The folder of the model that ships with the package."""
    return _FOLDER


def find_folder(
    source: str | Path,
    *,
    revision: str | None = None,
    offline: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The folder that `source` means: `builtin`, the path of a model folder, or a name that the hub knows.

    A folder goes before a model of the hub with the same name. A model of the hub that is in the shared cache is used
    as it is, without asking the hub for something newer; `mlxbert models download NAME` does that. Where the cache
    does not say which files the model has on the hub, the hub is asked, once: a file that another program did not
    need, `modules.json` say, would change what the model computes.

    Args:
        source: What the user calls the model.
        revision: Branch, tag or commit of a model of the hub; its main branch if `None`.
        offline: Never ask the hub. So do HF_HUB_OFFLINE=1 and TRANSFORMERS_OFFLINE=1 in the environment.
        on_progress: Called with bytes done and bytes in all while files are downloaded.

    Raises:
        CheckpointError: There is no such folder, and the hub cannot know such a name.
        HubError: The model of the hub cannot be had.
        ArgumentError: There is a revision, but the model is none of the hub; or the revision is none.
    """
    check_source(source)
    return _find(str(source), revision, offline, lambda name, revision: download(name, revision, on_progress))


def check_source(source: object, name: str = "source") -> None:
    """Refuses what is no way to call a model.

    Args:
        source: What the user gave.
        name: Of the argument.

    Raises:
        ArgumentError: It is neither a string nor a path.
    """
    if not isinstance(source, str | Path):
        raise ArgumentError(
            f"{name} is of type {type(source).__name__}, expected a name of the hub, the path of a folder, or 'builtin'"
        )


def find_headers(
    source: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[Path, dict[Path, "Header"]]:
    """Like `find_folder`, but of weights that are on the hub and not in the cache only the headers are fetched.

    Returns:
        The folder, and the headers of the weights that are not in it, by where they would lie.
    """
    from mlxbert.weights.hub.headers import look as look_on_hub

    headers: dict[Path, Header] = {}

    def look(name: str, revision: str | None) -> Path:
        folder, found = look_on_hub(name, revision, on_progress)
        headers.update(found)
        return folder

    return _find(source, revision, offline, look), headers


def find_cached(name: str, revision: str | None = None) -> Path:
    """The folder of a model of the hub that is in the cache; the hub is not asked.

    Raises:
        HubError: It is not there, or something of it is missing.
        ArgumentError: The revision is none.
    """
    return _from_cache(name, revision, cache.find_snapshot(name, revision), "")


def _find(source: str, revision: str | None, offline: bool, ask: _Ask) -> Path:
    folder = local_folder(source)
    if folder is None:
        return _hub_folder(source, revision, offline, ask)
    if revision is not None:
        raise ArgumentError(
            f"revision is {revision!r}, but {source} is no name of the hub: a revision goes with a hub name",
            hint="leave the revision out",
        )
    return folder


def local_folder(source: str) -> Path | None:
    """The folder that `source` means on this machine; `None` if it can be but a name of the hub.

    Raises:
        CheckpointError: There is no such folder, and the hub cannot know such a name.
    """
    if not source:
        raise CheckpointError("model is '', expected a name of the hub, a folder, or 'builtin'")
    if source == BUILTIN:
        return builtin_folder()
    try:
        folder = Path(source).expanduser()
        if folder.is_dir():
            return folder
        found = folder.exists()
    except OSError as problem:
        raise CheckpointError(f"{source}: cannot be read ({problem.strerror})") from None
    except RuntimeError as problem:  # ~ of a user that there is not
        raise CheckpointError(f"{source}: {problem}") from None
    if found:
        raise CheckpointError(f"{source}: is a file, expected a model folder", hint="give the folder that it lies in")
    if cache.is_hub_name(source):
        return None
    raise CheckpointError(
        f"{source}: no such folder",
        hint=f"give the folder of a checkpoint, a name of the Hugging Face hub (ORG/NAME), "
        f"or '{BUILTIN}' for the built-in model",
    )


def _hub_folder(name: str, revision: str | None, offline: bool, ask: _Ask) -> Path:
    snapshot = cache.find_snapshot(name, revision)
    if snapshot is not None and snapshot.is_complete():
        return snapshot.folder
    if offline or cache.is_offline():
        return _from_cache(name, revision, snapshot, ", and the hub may not be asked (offline)")
    if snapshot is None or not snapshot.is_usable() or snapshot.listing() is not None:
        return ask(name, revision)
    try:  # what is there may be all; the files of this commit that are not there, not those of a newer one
        return ask(name, snapshot.commit)
    except UnknownRevisionError:  # the history on the hub was rewritten
        return ask(name, revision)
    except UnreachableError as problem:
        _LOG.warning("%s; %s", problem.message, _in_doubt(snapshot))
        return snapshot.folder


def _from_cache(name: str, revision: str | None, snapshot: Snapshot | None, why: str) -> Path:
    """The folder in the cache, complete or not, as long as nothing is known to be missing; `why` nothing is fetched."""
    if snapshot is not None and snapshot.is_complete():
        return snapshot.folder
    download = f"mlxbert models download {name}" + (f" --revision {revision}" if revision else "")
    hint = f"`{download}` brings it, with a network"
    if snapshot is None:
        at = f" at revision {revision!r}" if revision else ""
        raise HubError(f"{name}: not in the cache{at}{why}", hint=hint)
    lacking = snapshot.lacking()
    if lacking:
        raise HubError(f"{name}: {lacking[0]} is not in the cache{why}", hint=hint)
    if not snapshot.is_usable():
        raise HubError(f"{name}: the cache holds no configuration with weights{why}", hint=hint)
    _LOG.warning("%s", _in_doubt(snapshot))
    return snapshot.folder


def _in_doubt(snapshot: Snapshot) -> str:
    return (
        f"{snapshot.name} is used as another program left it in the cache, which does not say whether all files are "
        "there: without its modules.json a model may pool differently"
    )
