"""Where indexes lie: in the user's data folder, each with the paths that it covers in it."""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlxbert.errors import StoreError
from mlxbert.files import is_system_file
from mlxbert.machine.user_folders import data_folder
from mlxbert.search.file_systems import canonical_path, composed, named_path, real_path
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexSettings


def index_file(paths: Sequence[str | Path]) -> Path:
    """Where a new index of some files and folders goes; its name says what it covers, with a hash of all its paths."""
    roots = sorted(roots_of(paths))
    name = re.sub(r"[^\w.-]+", "-", composed(os.path.basename(roots[0]))).strip("-.")[:40] or "index"
    digest = hashlib.sha256(b"\0".join(map(os.fsencode, roots))).hexdigest()[:12]
    names = (f"{name}-{digest}{f'-{number}' * bool(number)}.db" for number in itertools.count())
    files = (data_folder() / "indexes" / name for name in names)
    return next(file for file in files if not _is_of_others(file, roots))


def roots_of(paths: Iterable[str | Path]) -> list[str]:
    """What an index of some paths covers: each path as it is named, and one of those that lead to the same place."""
    found = dict[str, str]()
    for path in paths:
        found.setdefault(canonical_path(path), named_path(path))
    return [*found.values()]


def list_indexes() -> list[Path]:
    """The indexes in the user's data folder, in the order of their names."""
    files = (data_folder() / "indexes").glob("*.db")
    return sorted(file for file in files if not is_system_file(file.name))


def is_under(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of some others, or lies in one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def covers(about: IndexSettings, paths: Sequence[str | Path], *, near: bool = False) -> int | None:
    """How far below the roots of an index some paths lie, in folders; `None` if it does not cover all of them.

    Args:
        about: Of the index.
        paths: Any paths.
        near: See `_below`.
    """
    depths = []
    for path in paths:
        found = _below(path, about.roots, near=near)
        if found is None:
            return None
        depths.append(min(found[len(root) :].count("/") for root in about.roots if is_under(found, [root])))
    return max(depths, default=0)


def spelled(paths: Iterable[str | Path], roots: Sequence[str]) -> list[str]:
    """Paths as an index spells them: below its roots as these are written; elsewhere with the links that they name.

    Args:
        paths: Any paths.
        roots: What the index covers.
    """
    return [_below(path, roots) or _beyond(path, roots) for path in paths]


def _below(path: str | Path, roots: Sequence[str], *, near: bool = False) -> str | None:
    """A path below the root of an index that leads to the nearest folder above it; `None` if none does.

    Args:
        path: Any path.
        roots: What the index covers.
        near: Whether to look only where the roots that are spelled as the path lead. A root may be on a volume whose
            server is gone, where every question waits: the others are asked last.
    """
    if (absolute := os.path.abspath(path)) in roots:
        return absolute
    found = canonical_path(path)
    first = [root for root in roots if is_under(absolute, [root]) or is_under(found, [root])]
    for some in (first,) if near else (first, [root for root in roots if root not in first]):
        real = {root: _led_to(root) for root in some}
        over = [root for root in some if is_under(found, [real[root]])]
        if over:
            root = max(over, key=lambda one: len(real[one]))
            return root.rstrip("/") + found[len(real[root].rstrip("/")) :] or root
    return None


def leads_below(path: str | Path, roots: Sequence[str]) -> bool:
    """Whether a path leads to what lies below one of some others."""
    return _below(path, roots) is not None


def _beyond(path: str | Path, roots: Sequence[str]) -> str:
    """A path that no root leads to: without links, where it would seem to lie below a root with them."""
    named = named_path(path)
    return canonical_path(path) if is_under(named, roots) else named


def _led_to(root: str) -> str:
    """Where a root leads; on a Mac nothing is opened unless there is a link, which may be written in another case."""
    real = real_path(root)
    return real if real == root else canonical_path(real)


def _is_of_others(file: Path, roots: Sequence[str]) -> bool:
    """Whether a file is an index of other paths: one that was moved keeps its name."""
    about = about_of(file) if file.exists() else None
    return about is not None and sorted(about.roots) != roots


def about_of(file: Path) -> IndexSettings | None:
    """What an index was made with; `None` if it cannot be read."""
    try:
        store = SqliteStore(file)
    except StoreError:
        return None  # `mlxbert indexes list` shows it, and whoever opens it hears why
    store.close()
    return store.about


def find_index(paths: Sequence[str | Path]) -> Path | None:
    """The index that covers all of some paths; of several the one whose roots are nearest above them.

    One whose roots the paths are, as both are written, comes first, and then those that need no look at other roots.
    """
    abouts = [(about, file) for file in list_indexes() if (about := about_of(file)) is not None]
    wanted = {os.path.abspath(path) for path in paths}
    if same := [(len(about.roots), file) for about, file in abouts if wanted.issubset(about.roots)]:
        return min(same)[1]
    for near in (True, False):
        found = [
            (depth, len(about.roots), file)
            for about, file in abouts
            if (depth := covers(about, paths, near=near)) is not None
        ]
        if found:
            return min(found)[2]
    return None
