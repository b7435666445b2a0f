"""Finds the folder of a model by the name or path that a user gives."""

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert import rooms
from mlxbert.errors import ArgumentError, CheckpointError, HubError
from mlxbert.option_declarations import Device, DType, check_choice
from mlxbert.progress import OnProgress, progress
from mlxbert.weights.formats.file_names import TF_INDEX, TF_READER, TF_STATE
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.cache import AnnouncedFile, Snapshot, is_commit, mismatch

if TYPE_CHECKING:
    from mlxbert.weights.formats.headers import Header

_Fetch = Callable[[str, str | None], Path]  # (name, revision) → folder with the files from the hub
BUILTIN = "builtin"
_MAIN = "main"
BUILTIN_QUALITY = {  # by task; its README has more
    "fill-mask": "its first guess is right for 39 % of the masked words of Wikipedia",
    "embed": "the rank correlation of its similarities with human ratings is 0.82 (STS-B)",
    "next-sentence": "right for 96 % of the pairs of Wikipedia articles, less often on other texts",
}
_FOLDER = Path(__file__).parent / "builtin"
_LOG = logging.getLogger("mlxbert")
# The address of a model's page or file on the hub, as copied from a browser; the groups are name and revision.
_ADDRESS = re.compile(
    r"(?:https?://[^/]+/|hf://|(?:www\.)?(?:huggingface|hf)\.co/)(?!(?:datasets|spaces|docs|papers|blog)/)"
    r"([\w.-]+(?:/(?!(?:tree|blob|resolve)/)[\w.-]+)?)"
    r"(?:/(?:tree|blob|resolve)/([^/?#]+))?(?:[/?#].*)?"
)
_ORGANIZATIONS = {  # of well-known models, by the prefix of their names
    **dict.fromkeys(("all-", "multi-qa-", "paraphrase-", "msmarco-"), "sentence-transformers"),
    **dict.fromkeys(("deberta-", "mdeberta-", "mpnet-"), "microsoft"),
    "ms-marco-": "cross-encoder", "bge-": "BAAI", "e5-": "intfloat", "multilingual-e5-": "intfloat",
    "nomic-embed-": "nomic-ai", "snowflake-arctic-embed-": "Snowflake", "gte-modernbert-": "Alibaba-NLP",
    "gte-": "thenlper", "bert-": "google-bert", "roberta-": "FacebookAI", "xlm-roberta-": "FacebookAI",
    "distilbert-": "distilbert", "albert-": "albert", "electra-": "google", "modernbert-": "answerdotai",
}  # fmt: skip


def builtin_folder() -> Path:
    """Returns the folder of the model that ships with the package."""
    return _FOLDER


@dataclass(frozen=True)
class ModelRef:
    """A model, and how to compute with it: the arguments of `mlxbert.load` as one object, which can be pickled.

    Example:
        >>> ref = mlxbert.ModelRef("BAAI/bge-small-en-v1.5", dtype="float16")
        >>> model = mlxbert.load(ref, task="embed")
    """

    source: str | Path = BUILTIN
    adapter: str | Path | None = None
    revision: str | None = None
    offline: bool = False
    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_source(self.source)
        if self.adapter is not None:
            check_source(self.adapter, "adapter")
        cache.check_revision(self.revision)
        if not isinstance(self.offline, bool):
            raise ArgumentError(f"`offline` is {self.offline!r:.60}, expected True or False")
        check_choice("device", self.device, Device)
        check_choice("dtype", self.dtype, DType)


def find_folder(ref: ModelRef, on_progress: OnProgress | None = None) -> Path:
    """Finds the folder of a model, without its adapter. The source is `builtin`, a folder, or a name on the hub.

    A local folder takes precedence over a hub model of the same name. A hub model in the shared cache is used without
    checking for a newer version; `mlxbert models download NAME` checks. If the cache does not list which files the
    model has on the hub, the hub is asked once: the program that filled the cache may have skipped a file that changes
    the model's results, such as `modules.json`.

    Args:
        ref: The model. HF_HUB_OFFLINE=1 or TRANSFORMERS_OFFLINE=1 in the environment have the effect of `ref.offline`.
        on_progress: Called with the downloaded and the total bytes during a download. If it is `None`, notebooks show a
            progress bar.
    """

    def fetch(name: str, revision: str | None) -> Path:
        from mlxbert.weights.hub.download import download

        with progress(on_progress, "B") as update:
            return download(name, revision, update)

    return _find(ref, fetch)


def check_source(source: object, name: str = "source") -> None:
    """Raises `ArgumentError` if a model source has the wrong type.

    Args:
        source: The value that the user gave.
        name: The name of the argument, for messages.
    """
    if not isinstance(source, str | Path):
        raise ArgumentError(
            f"`{name}` is of type {type(source).__name__}, expected a hub name, the path of a folder, or 'builtin'"
        )


def find_headers(ref: ModelRef, on_progress: OnProgress | None = None) -> tuple[Path, dict[Path, "Header"]]:
    """Finds the folder of a model like `find_folder`, but fetches only the headers of weights that the cache lacks.

    Returns:
        The folder, and the headers of the weights that it lacks, by the path that each file would have.
    """
    from mlxbert.weights.hub.download import fetch_headers

    headers: dict[Path, Header] = {}

    def fetch(name: str, revision: str | None) -> Path:
        with progress(on_progress, "B") as update:
            folder, fetched = fetch_headers(name, revision, update)
        headers.update(fetched)
        return folder

    return _find(ref, fetch), headers


def find_cached(name: str, revision: str | None = None) -> Path:
    """Returns the folder of a hub model in the cache, without any request to the hub."""
    return _from_cache(name, revision, cache.find_snapshot(name, revision), "")


def _find(ref: ModelRef, fetch: _Fetch) -> Path:
    source = str(ref.source)
    folder = local_folder(source)
    if folder is None:
        with whole_name(source, ref.revision):
            return _hub_folder(source, ref.revision, ref.offline, fetch)
    if ref.revision is not None:
        raise ArgumentError(
            f"`revision` is {ref.revision!r}, but {source} is a local model, which has no revisions",
            hint="omit the revision",
        )
    return folder


@contextmanager
def whole_name(source: str, revision: str | None, *, folders: bool = True) -> Iterator[None]:
    """Improves errors of the hub about a name without an organization: suggests the full name or a folder."""
    try:
        yield
    except HubError as problem:
        error = _no_folder(source, problem, folders=folders) if "/" not in source and revision is None else problem
        error.hint = _unfinished_hint(source) or error.hint
        raise error from None


def _unfinished_hint(source: str) -> str | None:
    """Returns a hint if the user named the folder of a training that has not finished."""
    partial = f"{source.rstrip('/')}.partial"
    exists = os.path.isdir(os.path.expanduser(f"{partial}/runs"))
    return f"run the training command again to resume {partial}, an unfinished training" if exists else None


def _no_folder(source: str, problem: HubError, *, folders: bool) -> HubError:
    """Adds to a hub error that there is no such folder either, and suggests a similar name."""
    nearby = _nearby(Path(source)) if folders else []
    similar = difflib.get_close_matches(source, [BUILTIN, *nearby], n=1)
    full_name = _full_name(source)
    hint = problem.hint
    if similar == [BUILTIN]:
        hint = f"did you mean {BUILTIN}, the built-in model?"
    elif similar:
        hint = f"there is a folder {similar[0]}"
    elif full_name is not None:
        hint = f"names on the hub begin with an organization: {full_name}"
    reason = problem.message.removeprefix(f"{source}: ")
    message = (
        f"{source}: there is no such folder, and loading the hub model failed ({reason})"
        if folders
        else problem.message
    )
    return type(problem)(message, hint=hint)


def _nearby(path: Path) -> list[str]:
    """Returns the folders with a configuration that are in the same folder as a path."""
    with suppress(OSError):
        return [str(found.parent) for found in path.parent.glob("*/*config*.json")]
    return []


def _full_name(name: str) -> str | None:
    """Returns the name with its organization, if it is in the cache or well known; or else a similar cached name."""
    cached = {full_name.partition("/")[2].lower(): full_name for full_name in cache.cached_names()}
    owners = (f"{owner}/{name}" for prefix, owner in _ORGANIZATIONS.items() if name.lower().startswith(prefix))
    similar = (cached[near] for near in difflib.get_close_matches(name.lower(), cached, n=1))
    return cached.get(name.lower()) or next(owners, None) or next(similar, None)


def local_folder(source: str) -> Path | None:
    """Returns the folder that `source` names on this machine.

    Returns `None` if there is no such folder, but `source` is a valid name on the hub.
    """
    if not source:
        raise CheckpointError("`model` is '', expected a hub name, a folder, or 'builtin'")
    if source == BUILTIN:
        return builtin_folder()
    try:
        folder = Path(source).expanduser()
        if folder.is_dir():
            return folder
        if (checkpoint := _tensorflow_folder(folder)) is not None:
            return checkpoint
        exists = folder.exists()
    except OSError as problem:
        raise CheckpointError(f"{source}: cannot be read ({problem.strerror})") from None
    except RuntimeError as problem:  # ~user, and there is no such user
        raise CheckpointError(f"{source}: {problem}") from None
    if exists:
        raise CheckpointError(
            f"{source}: is a file, expected a model folder", hint="use the folder that contains the file"
        )
    if cache.is_hub_name(source):
        return None
    if (address := _ADDRESS.fullmatch(source)) is not None and cache.is_hub_name(address[1]):
        name, revision = address.groups()
        at = "" if revision in (None, _MAIN) else f" with `revision={revision!r}`"
        raise CheckpointError(f"{source}: is an address, expected a name", hint=f"use the name {name}{at}")
    near = difflib.get_close_matches(str(folder), _nearby(folder), n=1)
    raise CheckpointError(
        f"{source}: no such folder",
        hint=_unfinished_hint(source)
        or (f"there is a folder {near[0]}" if near else None)
        or f"use the folder of a checkpoint, a name on the Hugging Face hub (ORG/NAME), "
        f"or '{BUILTIN}' for the built-in model",
    )


def _tensorflow_folder(path: Path) -> Path | None:
    """Returns the folder of a TensorFlow checkpoint that is named as TensorFlow names it, `FOLDER/model.ckpt-7`."""
    index = path if path.suffix == TF_INDEX else path.with_name(path.name + TF_INDEX)
    if not index.is_file():
        return None
    chosen: Path | None = rooms.part(TF_READER).find_index(index.parent)
    if chosen is not None and chosen != index:
        stem = index.name.removesuffix(TF_INDEX)
        raise CheckpointError(
            f"{path}: {index.parent / TF_STATE} names another checkpoint, {chosen.name}",
            hint=f'write into this file which one to load: model_checkpoint_path: "{stem}"',
        )
    return None if chosen is None else index.parent


def _hub_folder(name: str, revision: str | None, offline: bool, fetch: _Fetch) -> Path:
    snapshot = cache.find_snapshot(name, revision)
    if snapshot is not None and snapshot.is_complete():
        return snapshot.folder
    if offline or cache.is_offline():
        return _from_cache(name, revision, snapshot, ", and downloads are disabled (offline)")
    from mlxbert.weights.hub.errors import UnknownRevisionError, UnreachableError

    if snapshot is None:
        try:
            return fetch(name, revision)
        except UnreachableError:
            if revision is not None or cache.only_snapshot(name) is None:
                raise
            return _from_cache(name, revision, None, "")
    if not snapshot.is_usable() or snapshot.listing() is not None:
        return fetch(name, revision)
    try:  # the cache may be complete; fetch missing files of the cached commit, not of a newer one
        return fetch(name, snapshot.commit if is_commit(snapshot.commit) else revision)
    except UnknownRevisionError:  # the history on the hub was rewritten
        return fetch(name, revision)
    except UnreachableError as problem:
        _LOG.warning("%s; %s", problem.message, _unverified_note(snapshot))
        return snapshot.folder


def _from_cache(name: str, revision: str | None, snapshot: Snapshot | None, why: str) -> Path:
    """Returns the folder in the cache; raises `HubError` if files are missing. `why` completes the error message."""
    if snapshot is None and revision is None and (snapshot := cache.only_snapshot(name)) is not None:
        _LOG.warning(
            "%s: the cache does not say which commit is main, so the only cached commit is used: %s",
            name,
            snapshot.commit,
        )
    if snapshot is not None and snapshot.is_complete():
        return snapshot.folder
    hint = f"run `{cache.loading(name, revision)}` while online"
    if snapshot is None:
        at = f" at revision {revision!r}" if revision else ""
        raise HubError(f"{name}: the model is not in the cache{at}{why}", hint=hint)
    missing_files = snapshot.missing_files()
    if missing_files:
        file, listed = missing_files[0], snapshot.listing() or {}
        flaw = mismatch(snapshot.folder / file, listed.get(file, AnnouncedFile()), content=False)
        raise HubError(f"{name}: {file} {flaw}{why}", hint=hint)
    if not snapshot.is_usable():
        raise HubError(f"{name}: the configuration or the weights are not in the cache{why}", hint=hint)
    _LOG.warning("%s", _unverified_note(snapshot))
    return snapshot.folder


def _unverified_note(snapshot: Snapshot) -> str:
    return (
        f"{snapshot.name}: using the files that another program cached, which may be incomplete; without its "
        "modules.json a model may pool differently"
    )
