"""The stores of indexes: a SQLite file or, at `lance:DIR` and `s3://BUCKET/PATH`, a Lance table; and where they are.

Without a path of its own, an index lies in the user's data folder, and is found by the paths that it covers.
"""

import hashlib
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from mlxbert import rooms
from mlxbert.durable_files import to_path
from mlxbert.errors import ArgumentError, StoreError
from mlxbert.mac_files import is_system_file
from mlxbert.machine.user_folders import data_folder
from mlxbert.search import schema
from mlxbert.search.file_systems import canonical_path, composed
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import (
    LANCE,
    S3,
    IndexProblem,
    IndexSettings,
    IndexStore,
    StoredDocument,
    StoredFile,
    StoredVector,
)

_GROUP = 2_000  # chunks that are copied in one transaction
_UNFINISHED = ""  # the hash of the model of a copy, until the copy is complete


def is_lance(location: str | Path) -> bool:
    """Whether a location is that of a Lance table."""
    return str(location).startswith((LANCE, S3))


def to_location(location: str | Path) -> str | Path:
    """Returns a checked location. Raises ArgumentError if it is a folder or no valid path."""
    if is_lance(location):
        if not str(location).removeprefix(LANCE).removeprefix(S3).strip("/"):
            raise ArgumentError(f"`path` is {str(location)!r}, expected lance:FOLDER or s3://BUCKET/PATH")
        return str(location)
    path = to_path(location, "path")
    if os.path.isdir(path):
        hint = f"give the folder among the paths: `mlxbert search QUERY {shlex.quote(str(location))}`"
        if os.path.isdir(path / "_versions"):
            hint = f"give its Lance table as lance:{path}"
        raise ArgumentError(f"{path}: is a folder, expected the file of an index", hint=hint)
    return path


def exists(location: str | Path) -> bool:
    """Whether there is an index, or another file that is not empty, at a location."""
    if is_lance(location):
        return bool(rooms.part("Lance tables").exists(location))
    return schema.exists(os.fspath(location))


def open_store(location: str | Path, about: IndexSettings | None = None) -> IndexStore:
    """Opens a store; creates it if it is missing and `about` is given. Refuses an unfinished copy."""
    store = _open(location, about)
    if about is None and store.about.hash == _UNFINISHED:  # another process makes it, or was killed while it did
        store.close()
        raise StoreError(f"{store.path}: the copy is not finished", hint="`mlxbert indexes copy` makes it anew")
    return store


def about_of(location: str | Path) -> IndexSettings | None:
    """Returns the settings of an index; `None` if it cannot be read."""
    try:
        store = _open(location)
    except StoreError:
        return None  # `mlxbert indexes list` shows it, and opening it reports the error
    store.close()
    return store.about


def _open(location: str | Path, about: IndexSettings | None = None) -> IndexStore:
    if is_lance(location):
        if about is not None and about.is_sparse:
            raise ArgumentError(
                f"{location}: a Lance table cannot hold the sparse vectors of {about.model}",
                hint="give the path of a file, which becomes an index with sparse vectors",
            )
        if about is not None and about.token_size:
            raise ArgumentError(
                f"{location}: a Lance table cannot hold the token vectors of {about.model}",
                hint="give the path of a file, which becomes an index with token vectors",
            )
        return rooms.part("Lance tables").LanceStore(location, about)
    return SqliteStore(location, about)


def locked(location: str | Path) -> AbstractContextManager[None]:
    """Within this context, no other process updates an index, unless several may do so at once."""
    return nullcontext() if is_lance(location) else schema.locked(os.fspath(location))


def remove_store(location: str | Path) -> None:
    """Removes an index with all of its files."""
    if is_lance(location):
        rooms.part("Lance tables").remove(location)
    else:
        schema.remove(os.fspath(location))


def copy_store(source: IndexStore, target: str | Path) -> IndexStore:
    """Copies an index with its vectors to a new store, and returns the store.

    Args:
        target: The location of the copy; nothing may be there but an unfinished copy. If copying fails, it is
            removed.
    """
    if not is_lance(target) and os.path.isdir(target):
        hint = "choose a new file, or lance:FOLDER for a Lance table"
        raise ArgumentError(f"{target}: is a folder, expected a new file", hint=hint)
    target = to_location(target)
    if exists(target):
        before = about_of(target)
        if before is None or before.hash != _UNFINISHED:
            raise ArgumentError(f"{target}: exists already", hint="choose another place")
        with locked(target):
            remove_store(target)
    copy = open_store(target, replace(source.about, hash=_UNFINISHED, roots=()))
    try:
        with locked(copy.path), source.reading():
            problems: dict[str, list[IndexProblem]] = {}
            for problem in source.problems():
                problems.setdefault(problem.path or "", []).append(problem)
            for group in _groups(source):
                with copy.writing():
                    for file, documents in group:
                        _copy_file(source, copy, file, documents, problems.get(file.path, ()))
            _copy_records(source, copy, problems.get("", ()))
            with copy.writing():
                copy.prune()
                copy.set_about(source.about)
    except BaseException:
        copy.close()
        remove_store(copy.path)
        raise
    return copy


def _groups(source: IndexStore) -> Iterator[list[tuple[StoredFile, list[StoredDocument]]]]:
    """Groups the files of an index with their documents, so that each group has some thousand chunks."""
    group, count = list[tuple[StoredFile, list[StoredDocument]]](), 0
    for path, file in source.files().items():
        documents = [*source.documents(path)]
        group.append((file, documents))
        count += sum(len(document.chunks) for document in documents) + 1
        if count >= _GROUP:
            yield group
            group, count = [], 0
    yield group


def _copy_file(
    source: IndexStore, copy: IndexStore, file: StoredFile, documents: list[StoredDocument],
    problems: Iterable[IndexProblem],
) -> None:  # fmt: skip
    hashes = {hash for document in documents for chunk in document.chunks for hash in chunk.hashes}
    copy.put(file, documents, _copied_vectors(source, copy, hashes), problems if file.problem is None else ())


def _copied_vectors(source: IndexStore, copy: IndexStore, hashes: set[bytes]) -> Mapping[bytes, StoredVector]:
    """Returns the vectors of some texts; if they have token vectors, which are large, puts them into the copy."""
    if not source.about.token_size:
        return source.vectors(hashes)
    listed = [*hashes]
    for start in range(0, len(listed), _GROUP):
        copy.put_vectors(source.vectors_with_tokens(listed[start : start + _GROUP]))
    return {}


def _copy_records(source: IndexStore, copy: IndexStore, problems: Iterable[IndexProblem]) -> None:
    documents, problems = source.documents(""), [*problems]
    while part := [*itertools.islice(documents, _GROUP)]:
        hashes = {hash for document in part for chunk in document.chunks for hash in chunk.hashes}
        places = {document.place for document in part}
        with copy.writing():
            vectors = _copied_vectors(source, copy, hashes)
            copy.put_documents(part, vectors, [one for one in problems if one.place in places])


def index_file(paths: Sequence[str | Path]) -> Path:
    """Returns an unused path for a new index of these paths.

    The file name contains the name of one of the index's roots and a hash of all roots.
    """
    roots = sorted(canonical_paths(paths))
    name = re.sub(r"[^\w.-]+", "-", composed(os.path.basename(roots[0]))).strip("-.")[:40] or "index"
    digest = hashlib.sha256(b"\0".join(map(os.fsencode, roots))).hexdigest()[:12]
    names = (f"{name}-{digest}{f'-{number}' * bool(number)}.db" for number in itertools.count())
    files = (data_folder() / "indexes" / name for name in names)
    return next(file for file in files if not _is_of_others(file, roots))


def canonical_paths(paths: Iterable[str | Path]) -> list[str]:
    """Returns the canonical spellings of paths, each once: an index stores its roots and its files in these only."""
    return [*dict.fromkeys(map(canonical_path, paths))]


def list_indexes() -> list[Path]:
    """Returns the indexes in the user's data folder, sorted by name."""
    files = (data_folder() / "indexes").glob("*.db")
    return sorted(file for file in files if not is_system_file(file.name))


def is_under(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of the roots or lies below one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def covers(about: IndexSettings, paths: Sequence[str]) -> int | None:
    """Returns the depth of the deepest path below the root that contains it; `None` if no root contains one.

    The paths must be canonical.
    """
    depths = []
    for path in paths:
        above = [path[len(root) :].count("/") for root in about.roots if is_under(path, [root])]
        if not above:
            return None
        depths.append(min(above))
    return max(depths, default=0)


def _is_of_others(file: Path, roots: Sequence[str]) -> bool:
    """Whether a file is an index with roots other than `roots`.

    Its name may have been made from `roots`, since an index keeps its file name when its roots change.
    """
    about = about_of(file) if file.exists() else None
    return about is not None and sorted(about.roots) != roots


def find_index(paths: Sequence[str | Path]) -> Path | None:
    """Returns the index that covers all paths; if several do, the one with the nearest roots above the paths."""
    names = canonical_paths(paths)
    abouts = [(about, file) for file in list_indexes() if (about := about_of(file)) is not None]
    covering = [
        (depth, len(about.roots), file) for about, file in abouts if (depth := covers(about, names)) is not None
    ]
    return min(covering)[2] if covering else None
