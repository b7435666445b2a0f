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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError, ConfigError, HubError
from mlxbert.files import atomic_write, is_system_file
from mlxbert.weights.formats.config_json import google_config
from mlxbert.weights.hub import needed_files
from mlxbert.weights.hub.file_hashes import AnnouncedFile, is_commit, is_hash, is_sha256, is_size, mismatch

_NAME = re.compile(r"(\b[\w\-.]{1,96}\b/)?\b[\w\-.]{1,96}\b", re.ASCII)  # as in huggingface_hub's validate_repo_id
_COPIED = re.compile(r"[\w\-][\w\-.]{0,95}", re.ASCII)  # the name of a snapshot that huggingface_hub has not made
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
    """Refuses a string that cannot be a branch, tag or commit and could point outside the folder of refs."""
    if revision is None:
        return
    if not isinstance(revision, str):
        raise ArgumentError(f"revision is {revision!r:.60}, expected a branch, a tag or a commit")
    parts = revision.split("/")
    if needed_files.leaves_folder(revision) or not all(parts) or "." in parts or not revision.isprintable():
        raise ArgumentError(f"revision is {revision!r}, expected a branch, a tag or a commit")


@dataclass(frozen=True)
class Snapshot:
    """A commit of a model in the cache, and the folder with its files."""

    name: str
    commit: str
    folder: Path

    @property
    def listing_file(self) -> Path:
        """The list of all files of the commit on the hub, whether it is in the cache or not."""
        return self.folder.parents[1] / "trees" / f"{self.commit}.json"

    def listing(self) -> dict[str, AnnouncedFile] | None:
        """All files of the commit on the hub; `None` if the cache has no list of them."""
        try:
            tree = json.loads(self.listing_file.read_bytes())
            known = tree["format_version"] == _TREE_FORMAT and isinstance(tree["files"], dict)
            return {file: _known(entry) for file, entry in tree["files"].items()} if known else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # like huggingface_hub, ignore a list that cannot be read

    def missing_files(self) -> list[str] | None:
        """The files that the model needs and that are missing or have another size than on the hub.

        `None` if the cache has no list of the model's files.
        """
        listed = self.listing()
        if listed is None:
            return None
        try:
            needed = needed_files.needed_files(self.name, listed, self._read, self._has)
        except FileNotFoundError as problem:
            return [Path(problem.filename).name]
        return [file for file in needed if mismatch(self.folder / file, listed[file], content=False)]

    def known(self, file: str, listed: Mapping[str, AnnouncedFile]) -> AnnouncedFile:
        """What is known of a file: its hash by the name of its blob, the rest by the hub's listing."""
        path = self.folder / file
        blob = Path(os.readlink(path)).name if path.is_symlink() else ""
        known = listed.get(file, AnnouncedFile())
        return known._replace(hash=blob) if is_hash(blob) else known

    def check(self) -> "Check":
        """Reads all files of the commit in the cache, and compares them with what is known of them."""
        listed = self.listing() or {}
        files = sorted(self._files())
        known = {file: self.known(file, listed) for file in files}
        wrong = {file: mismatch(self.folder / file, known[file]) for file in files}
        try:
            missing = [file for file in self.missing_files() or () if file not in wrong]
        except HubError as problem:  # no model; or a file that says what is needed is damaged
            missing = [] if any(wrong.values()) else [problem.message]
        return Check(
            checked=[file for file in files if known[file].hash is not None],
            unknown=[file for file in files if known[file].hash is None],
            damaged={file: why for file, why in wrong.items() if why is not None},
            missing=missing,
        )

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
        try:
            return bool(needed_files.needed_files(self.name, [*self._files()], self._read))
        except (HubError, OSError):
            return False

    def sizes(self) -> dict[Path, int]:
        """The size of each file in bytes, by resolved path: commits share identical files."""
        found = (path.resolve() for path in self.folder.rglob("*") if path.is_file())
        return {path: path.stat().st_size for path in found}

    def model_type(self) -> str | None:
        """The `model_type` in the configuration; `None` if there is no readable configuration."""
        for path in (
            self.folder / needed_files.CONFIG,
            *sorted(self.folder.glob(f"*_Transformer/{needed_files.CONFIG}")),
        ):
            try:
                family = needed_files.parse_json(self.name, path)["model_type"]
            except (HubError, OSError, KeyError, TypeError):
                continue
            return str(family)
        try:
            named = google_config(self.folder)
        except ConfigError:  # several
            return None
        return named[1] if named else None

    def _files(self) -> Iterator[str]:
        """The names of the files in the folder, those of subfolders with the path to them."""
        for path in self.folder.rglob("*"):
            if path.is_file() and not is_system_file(path.name):
                yield path.relative_to(self.folder).as_posix()

    def _has(self, file: str) -> bool:
        return (self.folder / file).is_file()

    def _read(self, file: str) -> Any:
        return needed_files.parse_json(self.name, self.folder / file)


@dataclass(frozen=True)
class Check:
    """What `Snapshot.check` finds.

    Attributes:
        checked: The files that were compared with their hash.
        unknown: Those whose hash is not known.
        damaged: Those that differ, with how they differ.
        missing: Files that the model needs and that are not there.
    """

    checked: list[str]
    unknown: list[str]
    damaged: dict[str, str]
    missing: list[str]


def _known(entry: Any) -> AnnouncedFile:
    """What a list of huggingface_hub says of a file; a size of 0 without a hash stands for what the hub did not say."""
    entry = entry if isinstance(entry, dict) else {}
    size, hash = entry.get("size"), entry.get("lfs_sha256") or entry.get("blob_id")
    if hash and not is_hash(hash):
        raise ValueError(hash)
    return AnnouncedFile(size if is_size(size) and (size or hash) else None, hash or None)


def _is_snapshot(name: str) -> bool:
    """Whether a folder of snapshots can have a name: in caches that somebody has filled it need not be a hash."""
    return is_commit(name) or (_COPIED.fullmatch(name) is not None and not is_system_file(name))


def _read_ref(path: Path) -> str | None:
    try:
        commit = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return commit if _is_snapshot(commit) else None


def find_snapshot(name: str, revision: str | None) -> Snapshot | None:
    """The commit that a revision referred to when it was last fetched, if its folder is in the cache.

    As in huggingface_hub, what a revision refers to is the name of a folder, and a revision that refers to nothing is
    one itself.
    """
    check_revision(revision)
    repository = repository_folder(name)
    revision = _DEFAULT_REVISION if revision is None else revision
    commit = revision if is_commit(revision) else _read_ref(repository / "refs" / revision) or revision
    folder = repository / "snapshots" / commit
    return Snapshot(name, commit, folder) if _is_snapshot(commit) and folder.is_dir() else None


def only_snapshot(name: str) -> Snapshot | None:
    """The commit of a model in the cache, if it is the only one, nothing refers to any, and it may be complete."""
    found, referred = [*snapshots(name)], any(path.is_file() for path in (repository_folder(name) / "refs").rglob("*"))
    return found[0] if len(found) == 1 and not referred and found[0].is_complete() is not False else None


def record(name: str, revision: str | None, commit: str, listed: Mapping[str, AnnouncedFile]) -> None:
    """Records a commit whose needed files are all in the cache: what refers to it, and all its files on the hub.

    The sizes of files in the cache are recorded, which were compared with their hashes.
    """
    repository = repository_folder(name)
    revision = _DEFAULT_REVISION if revision is None else revision
    snapshot = Snapshot(name, commit, repository / "snapshots" / commit)
    here = {file: path.stat().st_size for file in listed if (path := snapshot.folder / file).is_file()}
    before = snapshot.listing()
    if before is None or any(before.get(file, AnnouncedFile()).size != size for file, size in here.items()):
        known = {file: told._replace(size=here.get(file, told.size)) for file, told in sorted(listed.items())}
        entries = {file: _entry(told) for file, told in known.items()}
        _write(snapshot.listing_file, json.dumps({"format_version": _TREE_FORMAT, "files": entries}))
    reference = repository / "refs" / revision
    if not is_commit(revision) and _read_ref(reference) != commit:
        _write(reference, commit)


def _entry(known: AnnouncedFile) -> dict[str, object]:
    """What huggingface_hub, too, keeps of a file in a list; see `_known`."""
    size, found = known.size or 0, known.hash or ""
    large = {"lfs_sha256": found, "lfs_size": size} if is_sha256(found) else {}
    return {"size": size, "blob_id": "" if large else found, **large}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, locked=False) as file:
        file.write(text.encode())


def references(name: str) -> dict[str, str]:
    """The commit of every branch and tag in the cache."""
    folder = repository_folder(name) / "refs"
    found = {path.relative_to(folder).as_posix(): _read_ref(path) for path in sorted(folder.rglob("*"))}
    return {revision: commit for revision, commit in found.items() if commit}


def snapshots(name: str) -> Iterator[Snapshot]:
    """All commits of a model that are in the cache."""
    for folder in sorted((repository_folder(name) / "snapshots").glob("*")):
        if _is_snapshot(folder.name) and folder.is_dir():
            yield Snapshot(name, folder.name, folder)


def cached_names() -> list[str]:
    """The names of all models that have a folder in the cache."""
    folders = sorted(cache_folder().glob(f"{_PREFIX}*"))
    names = (folder.name.removeprefix(_PREFIX).replace("--", "/", 1) for folder in folders if folder.is_dir())
    return [name for name in names if is_hub_name(name)]


def loading(name: str, revision: str | None) -> str:
    """The call that downloads a model, for hints."""
    return f"mlxbert.load({name!r}" + (f", revision={revision!r})" if revision else ")")
