"""Reads the hub's cache without importing huggingface_hub; all programs on a machine share the cache.

The import takes half as long as a whole `mlxbert fill-mask`, and a cached model does not need it. The layout:
`models--ORG--NAME/refs/REVISION` holds the hash of a commit, `snapshots/COMMIT` holds the files of a commit, and
`trees/COMMIT.json` lists all files that the commit has on the hub. (huggingface_hub 2 and newer also write this list
when they download a whole snapshot.)
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mlxbert.durable_files import atomic_write, sha256
from mlxbert.errors import ArgumentError, ConfigError, HubError
from mlxbert.mac_files import is_system_file
from mlxbert.weights.formats.config_json import GLINER_CONFIG, google_config
from mlxbert.weights.hub import needed_files

_NAME = re.compile(r"(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", re.ASCII)  # as in huggingface_hub's validate_repo_id
_CUSTOM_SNAPSHOT = re.compile(r"[\w\-][\w\-.]{0,95}", re.ASCII)  # a name that huggingface_hub did not choose
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = 64  # digits
_TREE_FORMAT = 1
_PREFIX = "models--"
_DEFAULT_REVISION = "main"
_TRUE = ("1", "on", "yes", "true")


class AnnouncedFile(NamedTuple):
    """What a hub announces for a file."""

    size: int | None = None  # in bytes
    hash: str | None = None  # SHA-256 of a large file, and git's blob hash of a small file


def is_commit(commit: object) -> bool:
    """Whether a value is a full commit hash; such a hash always refers to the same commit."""
    return isinstance(commit, str) and _COMMIT.fullmatch(commit) is not None


def is_size(size: object) -> bool:
    """Whether a value can be the size of a file in bytes."""
    return type(size) is int and 0 <= size < 2**63


def is_hash(value: object) -> bool:
    """Whether a value, such as an ETag, is a hash that can be computed from the file."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def git_hash(path: Path) -> str:
    """Returns the hash that git gives to the content of a file, in hexadecimal digits."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def mismatch(path: Path, known: AnnouncedFile, *, content: bool = True) -> str | None:
    """Returns how a file differs from its expected size or, if `content` is set, its expected hash; else `None`."""
    if not path.is_file():
        return "is not in the cache"
    size = path.stat().st_size
    if known.size is not None and size != known.size:
        return f"has {size:,} bytes, expected {known.size:,}"
    if content and known.hash is not None:
        actual = (sha256 if len(known.hash) == _SHA256 else git_hash)(path)
        if actual != known.hash:
            return f"has the hash {actual}, expected {known.hash}"
    return None


def is_hub_name(source: str) -> bool:
    """Whether a string can be the name of a model on the hub, `NAME` or `ORG/NAME`, by the rules of huggingface_hub."""
    return (
        _NAME.fullmatch(source) is not None
        and "--" not in source
        and ".." not in source
        and not source.endswith(".git")
    )


def is_offline() -> bool:
    """Whether environment variables forbid requests to the hub, by the rules of huggingface_hub."""
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").lower() in _TRUE


def cache_folder() -> Path:
    """Returns the folder of the cache, by the environment variables and the rules of huggingface_hub."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    hub = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub"))
    return Path(os.path.expandvars(os.path.expanduser(os.environ.get("HF_HUB_CACHE", hub))))


def repository_folder(name: str) -> Path:
    """Returns the folder of a model in the cache; it need not exist."""
    return cache_folder() / (_PREFIX + name.replace("/", "--"))


def check_revision(revision: str | None) -> None:
    """Raises `ArgumentError` if a revision cannot be a branch, tag or commit, or would leave the folder of refs."""
    if revision is None:
        return
    parts = revision.split("/") if isinstance(revision, str) else [""]
    if not all(parts) or "." in parts or needed_files.leaves_folder(revision) or not revision.isprintable():
        raise ArgumentError(f"`revision` is {revision!r:.60}, expected a branch, a tag or a commit")


@dataclass(frozen=True)
class Snapshot:
    """A commit of a model in the cache, and the folder that holds its files."""

    name: str
    commit: str
    folder: Path

    @property
    def listing_file(self) -> Path:
        """The path of the list of all files that the commit has on the hub; the list need not exist."""
        return self.folder.parents[1] / "trees" / f"{self.commit}.json"

    def listing(self) -> dict[str, AnnouncedFile] | None:
        """Reads the list of all files that the commit has on the hub; returns `None` if the cache has no list."""
        try:
            tree = json.loads(self.listing_file.read_bytes())
            valid = tree["format_version"] == _TREE_FORMAT and isinstance(tree["files"], dict)
            return {file: _from_entry(entry) for file, entry in tree["files"].items()} if valid else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # like huggingface_hub, ignore a list that cannot be read

    def missing_files(self) -> list[str] | None:
        """Returns the needed files that are missing or have another size than on the hub.

        Returns `None` if the cache has no list of the commit's files.
        """
        if (listed := self.listing()) is None:
            return None
        try:
            needed = needed_files.needed_files(
                self.name, listed, self._read, lambda file: (self.folder / file).is_file()
            )
        except FileNotFoundError as problem:
            return [Path(problem.filename).name]
        return [file for file in needed if mismatch(self.folder / file, listed[file], content=False)]

    def expected(self, file: str, listed: Mapping[str, AnnouncedFile]) -> AnnouncedFile:
        """Returns the expected size and hash of a file: those in `listed`, but the hash that its blob has as its name.

        A file in the cache is usually a link to a blob.
        """
        path = self.folder / file
        blob = Path(os.readlink(path)).name if path.is_symlink() else ""
        expected = listed.get(file, AnnouncedFile())
        return expected._replace(hash=blob) if is_hash(blob) else expected

    def check(self) -> dict[str, Any]:
        """Reads all files of the commit in the cache, and compares them with their expected sizes and hashes.

        Returns:
            The files whose hash was compared (`checked`) or is `unknown`, how each `damaged` file differs, and the
            `missing` files.
        """
        listed, files = self.listing() or {}, sorted(self._files())
        expected = {file: self.expected(file, listed) for file in files}
        problems = {file: mismatch(self.folder / file, expected[file]) for file in files}
        try:
            missing = [file for file in self.missing_files() or () if file not in problems]
        except HubError as problem:  # no model, or the files that determine the needed files are damaged
            missing = [] if any(problems.values()) else [problem.message]
        return {
            "checked": [file for file in files if expected[file].hash is not None],
            "unknown": [file for file in files if expected[file].hash is None],
            "damaged": {file: why for file, why in problems.items() if why is not None},
            "missing": missing,
        }

    def is_complete(self) -> bool | None:
        """Whether the cache has every file that the model needs; `None` if this is unknown."""
        try:
            missing = self.missing_files()
        except HubError:
            return False
        if missing is None:
            return None if self.is_usable() else False
        return not missing

    def is_usable(self) -> bool:
        """Whether the folder has a configuration and weights; the list of files is not consulted."""
        try:
            return bool(needed_files.needed_files(self.name, [*self._files()], self._read))
        except (HubError, OSError):
            return False

    def sizes(self) -> dict[Path, int]:
        """Returns the size of each file in bytes; the keys are resolved paths because commits share identical files."""
        paths = (path.resolve() for path in self.folder.rglob("*") if path.is_file())
        return {path: path.stat().st_size for path in paths}

    def model_type(self) -> str | None:
        """Returns the `model_type` in the configuration; `None` if no configuration can be read."""
        modules = sorted(self.folder.glob(f"*_Transformer/{needed_files.CONFIG}"))
        for path in (self.folder / needed_files.CONFIG, self.folder / GLINER_CONFIG, *modules):
            with suppress(HubError, OSError, KeyError, TypeError):
                return str(needed_files.parse_json(self.name, path)["model_type"])
        with suppress(ConfigError):  # several configurations
            return google[1] if (google := google_config(self.folder)) else None
        return None

    def _files(self) -> Iterator[str]:
        for path in self.folder.rglob("*"):
            if path.is_file() and not is_system_file(path.name):
                yield path.relative_to(self.folder).as_posix()

    def _read(self, file: str) -> Any:
        return needed_files.parse_json(self.name, self.folder / file)


def _from_entry(entry: Any) -> AnnouncedFile:
    """Parses the entry of a file in huggingface_hub's list, where size 0 without a hash means that both are unknown."""
    entry = entry if isinstance(entry, dict) else {}
    size, hash = entry.get("size"), entry.get("lfs_sha256") or entry.get("blob_id")
    if hash and not is_hash(hash):
        raise ValueError(hash)
    return AnnouncedFile(size if is_size(size) and (size or hash) else None, hash or None)


def _entry(announced: AnnouncedFile) -> dict[str, object]:
    """Returns the entry of a file in huggingface_hub's list. This is the inverse of `_from_entry`."""
    size, digest = announced.size or 0, announced.hash or ""
    large = {"lfs_sha256": digest, "lfs_size": size} if len(digest) == _SHA256 else {}
    return {"size": size, "blob_id": "" if large else digest, **large}


def _is_snapshot(name: str) -> bool:
    """Whether a name is valid for the folder of a snapshot. If the cache was filled by hand, it need not be a hash."""
    return is_commit(name) or (_CUSTOM_SNAPSHOT.fullmatch(name) is not None and not is_system_file(name))


def _read_ref(path: Path) -> str | None:
    try:
        commit = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return commit if _is_snapshot(commit) else None


def find_snapshot(name: str, revision: str | None) -> Snapshot | None:
    """Returns the commit that a revision referred to when it was last fetched, if its folder is in the cache.

    As in huggingface_hub, a ref holds the name of a snapshot's folder; a revision without a ref is itself such a name.
    """
    check_revision(revision)
    repository = repository_folder(name)
    revision = _DEFAULT_REVISION if revision is None else revision
    commit = revision if is_commit(revision) else _read_ref(repository / "refs" / revision) or revision
    folder = repository / "snapshots" / commit
    return Snapshot(name, commit, folder) if _is_snapshot(commit) and folder.is_dir() else None


def only_snapshot(name: str) -> Snapshot | None:
    """Returns the only commit of a model in the cache, if there are no refs and the commit may be complete.

    Otherwise returns `None`.
    """
    cached, has_refs = [*snapshots(name)], any(path.is_file() for path in (repository_folder(name) / "refs").rglob("*"))
    return cached[0] if len(cached) == 1 and not has_refs and cached[0].is_complete() is not False else None


def record(name: str, revision: str | None, commit: str, listed: Mapping[str, AnnouncedFile]) -> None:
    """Records a commit whose needed files are all in the cache: writes the ref of the revision and the list of files.

    The list states the actual sizes of the files in the cache, because their hashes have been compared.
    """
    repository = repository_folder(name)
    revision = _DEFAULT_REVISION if revision is None else revision
    snapshot = Snapshot(name, commit, repository / "snapshots" / commit)
    sizes = {file: path.stat().st_size for file in listed if (path := snapshot.folder / file).is_file()}
    before = snapshot.listing()
    if before is None or any(before.get(file, AnnouncedFile()).size != size for file, size in sizes.items()):
        actual = {file: item._replace(size=sizes.get(file, item.size)) for file, item in sorted(listed.items())}
        entries = {file: _entry(item) for file, item in actual.items()}
        _write(snapshot.listing_file, json.dumps({"format_version": _TREE_FORMAT, "files": entries}))
    reference = repository / "refs" / revision
    if not is_commit(revision) and _read_ref(reference) != commit:
        _write(reference, commit)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, locked=False) as file:
        file.write(text.encode())


def references(name: str) -> dict[str, str]:
    """Returns the commit that each branch and tag in the cache refers to."""
    folder = repository_folder(name) / "refs"
    commits = {path.relative_to(folder).as_posix(): _read_ref(path) for path in sorted(folder.rglob("*"))}
    return {revision: commit for revision, commit in commits.items() if commit}


def snapshots(name: str) -> Iterator[Snapshot]:
    """Yields all commits of a model that are in the cache."""
    for folder in sorted((repository_folder(name) / "snapshots").glob("*")):
        if _is_snapshot(folder.name) and folder.is_dir():
            yield Snapshot(name, folder.name, folder)


def cached_names() -> list[str]:
    """Returns the names of all models that have a folder in the cache."""
    folders = sorted(cache_folder().glob(f"{_PREFIX}*"))
    names = (folder.name.removeprefix(_PREFIX).replace("--", "/", 1) for folder in folders if folder.is_dir())
    return [name for name in names if is_hub_name(name)]


def loading(name: str, revision: str | None) -> str:
    """Returns the Python call that downloads a model, to show it in hints."""
    return f"mlxbert.load({name!r}" + (f", revision={revision!r})" if revision else ")")
