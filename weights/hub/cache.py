"""Reading the hub cache, which all programs on a machine share, without importing huggingface_hub.

Importing it takes half as long as a whole `mlxbert fill-mask`, and a cached model does not need it. The layout:
`models--ORG--NAME/refs/REVISION` holds a commit hash, `snapshots/COMMIT` the files of the commit, and
`trees/COMMIT.json` the list of all its files on the hub (huggingface_hub 2 and newer write it, too, when they download
a whole snapshot).
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, ConfigError, HubError
from mlxbert.files import atomic_write
from mlxbert.weights.config_json import google_config
from mlxbert.weights.hub import files
from mlxbert.weights.hub.guard import is_commit

_NAME = re.compile(r"(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", re.ASCII)  # as in huggingface_hub's validate_repo_id
_TREE_FORMAT = 1
_PREFIX = "models--"
_DEFAULT_REVISION = "main"
_TRUE = ("1", "on", "yes", "true")


def is_hub_name(source: str) -> bool:
    """Whether a string is a valid model name on the hub, `NAME` or `ORG/NAME`, by the rules of huggingface_hub."""
    return (
        _NAME.fullmatch(source) is not None
        and "--" not in source
        and ".." not in source
        and not source.endswith(".git")
    )


def is_offline() -> bool:
    """Whether the environment forbids requests to the hub, by the rules of huggingface_hub."""
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").lower() in _TRUE


def cache_folder() -> Path:
    """The folder of the cache, by the environment variables and rules of huggingface_hub."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    hub = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub"))
    return Path(os.path.expandvars(os.path.expanduser(os.environ.get("HF_HUB_CACHE", hub))))


def repository_folder(name: str) -> Path:
    """The cache folder of a model, whether it exists or not."""
    return cache_folder() / (_PREFIX + name.replace("/", "--"))


def check_revision(revision: str | None) -> None:
    """Refuses a string that cannot be a branch, tag or commit and could point outside the folder of refs.

    Raises:
        ArgumentError: The revision is invalid.
    """
    if revision is None:
        return
    if not isinstance(revision, str):
        raise ArgumentError(f"revision is {revision!r:.60}, expected a branch, a tag or a commit")
    parts = revision.split("/")
    if files.leaves_folder(revision) or not all(parts) or "." in parts or not revision.isprintable():
        raise ArgumentError(f"revision is {revision!r}, expected a branch, a tag or a commit")


@dataclass(frozen=True)
class Snapshot:
    """A commit of a model in the cache.

    Attributes:
        name: The name of the model.
        commit: The commit hash.
        folder: The folder with its files.
    """

    name: str
    commit: str
    folder: Path

    def listing(self) -> list[str] | None:
        """All files of the commit on the hub; `None` if the cache has no list of them."""
        path = self.folder.parents[1] / "trees" / f"{self.commit}.json"
        try:
            tree = json.loads(path.read_bytes())
            known = tree["format_version"] == _TREE_FORMAT and isinstance(tree["files"], dict)
            return list(tree["files"]) if known else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # like huggingface_hub, ignore a list that cannot be read

    def missing_files(self) -> list[str] | None:
        """The files that the model needs and the cache lacks; `None` if the cache has no list of the model's files.

        Raises:
            HubError: The commit has no model that mlxbert reads, or a file that determines what is needed is damaged.
        """
        listed = self.listing()
        if listed is None:
            return None
        try:
            needed = files.needed_files(self.name, listed, self._read, self._has)
        except FileNotFoundError as problem:
            return [Path(problem.filename).name]
        return [file for file in needed if not self._has(file)]

    def is_complete(self) -> bool | None:
        """Whether the cache has every file that the model needs; `None` if that is possible but not certain."""
        try:
            missing_files = self.missing_files()
        except HubError:
            return False
        if missing_files is None:
            return None if self.is_usable() else False
        return not missing_files

    def is_usable(self) -> bool:
        """Whether configuration and weights are there, judging by the files alone."""
        names = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()]
        try:
            return bool(files.needed_files(self.name, names, self._read))
        except (HubError, OSError):
            return False

    def sizes(self) -> dict[Path, int]:
        """The size of each file in bytes, by resolved path: commits share identical files."""
        found = (path.resolve() for path in self.folder.rglob("*") if path.is_file())
        return {path: path.stat().st_size for path in found}

    def model_type(self) -> str | None:
        """The `model_type` in the configuration; `None` if there is no readable configuration."""
        for path in (self.folder / files.CONFIG, *sorted(self.folder.glob(f"*_Transformer/{files.CONFIG}"))):
            try:
                family = files.parse_json(self.name, path)["model_type"]
            except (HubError, OSError, KeyError, TypeError):
                continue
            return str(family)
        try:
            named = google_config(self.folder)
        except ConfigError:  # several
            return None
        return named[1] if named else None

    def _has(self, file: str) -> bool:
        return (self.folder / file).is_file()

    def _read(self, file: str) -> Any:
        return files.parse_json(self.name, self.folder / file)


def _read_ref(path: Path) -> str | None:
    try:
        commit = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return commit if is_commit(commit) else None


def find_snapshot(name: str, revision: str | None) -> Snapshot | None:
    """The commit that a revision referred to when it was last fetched, if its folder is in the cache.

    Raises:
        ArgumentError: The revision is invalid.
    """
    check_revision(revision)
    repository = repository_folder(name)
    revision = _DEFAULT_REVISION if revision is None else revision
    commit = revision if is_commit(revision) else _read_ref(repository / "refs" / revision)
    folder = repository / "snapshots" / (commit or "")
    return Snapshot(name, commit, folder) if commit and folder.is_dir() else None


def record(name: str, revision: str | None, commit: str, sizes: Mapping[str, int]) -> None:
    """Records a commit whose needed files are all in the cache: what refers to it, and all its files on the hub.

    Args:
        name: The name of the model.
        revision: The branch, tag or commit that was asked for; the main branch if `None`.
        commit: The commit hash.
        sizes: The size of every file of the commit, in bytes.
    """
    repository = repository_folder(name)
    revision = _DEFAULT_REVISION if revision is None else revision
    if Snapshot(name, commit, repository / "snapshots" / commit).listing() is None:
        listed = {file: {"size": size, "blob_id": ""} for file, size in sorted(sizes.items())}
        _write(repository / "trees" / f"{commit}.json", json.dumps({"format_version": _TREE_FORMAT, "files": listed}))
    reference = repository / "refs" / revision
    if not is_commit(revision) and _read_ref(reference) != commit:
        _write(reference, commit)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError), atomic_write(path) as file:  # another process has just written the same
        file.write(text.encode())


def references(name: str) -> dict[str, str]:
    """The commit of every branch and tag in the cache."""
    folder = repository_folder(name) / "refs"
    found = {path.relative_to(folder).as_posix(): _read_ref(path) for path in sorted(folder.rglob("*"))}
    return {revision: commit for revision, commit in found.items() if commit}


def snapshots(name: str) -> Iterator[Snapshot]:
    """All commits of a model that are in the cache."""
    for folder in sorted((repository_folder(name) / "snapshots").glob("*")):
        if is_commit(folder.name) and folder.is_dir():
            yield Snapshot(name, folder.name, folder)


def cached_names() -> list[str]:
    """The names of all models that have a folder in the cache."""
    folders = sorted(cache_folder().glob(f"{_PREFIX}*"))
    names = (folder.name.removeprefix(_PREFIX).replace("--", "/", 1) for folder in folders if folder.is_dir())
    return [name for name in names if is_hub_name(name)]
