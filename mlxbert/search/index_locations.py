"""Finds the index, in the user's data folder, that covers some paths."""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlxbert.durable_files import is_system_file
from mlxbert.machine.user_folders import data_folder
from mlxbert.search.file_systems import canonical_path, composed
from mlxbert.search.index_stores import about_of
from mlxbert.search.store import IndexSettings


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
