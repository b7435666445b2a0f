"""Where indexes lie: in the user's data folder, each with the paths that it covers in it."""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mlxbert.errors import StoreError
from mlxbert.files import is_system_file
from mlxbert.search.disks import canonical_path, composed, real_path
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import About

VARIABLE = "MLXBERT_DATA"


def data_folder() -> Path:
    """The user's data folder: that which the environment variable `MLXBERT_DATA` names, or the system's usual one."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("mlxbert"))


def index_file(paths: Sequence[str | Path]) -> Path:
    """Where a new index of some files and folders goes; its name says what it covers, with a hash of all its paths."""
    roots = sorted({canonical_path(path) for path in paths})
    name = re.sub(r"[^\w.-]+", "-", composed(os.path.basename(roots[0]))).strip("-.")[:40] or "index"
    digest = hashlib.sha256(b"\0".join(map(os.fsencode, roots))).hexdigest()[:12]
    names = (f"{name}-{digest}{f'-{number}' * bool(number)}.db" for number in itertools.count())
    files = (data_folder() / "indexes" / name for name in names)
    return next(file for file in files if not _is_of_others(file, roots))


def list_indexes() -> list[Path]:
    """The indexes in the user's data folder, in the order of their names."""
    files = (data_folder() / "indexes").glob("*.db")
    return sorted(file for file in files if not is_system_file(file.name))


def is_under(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of some others, or lies in one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def covers(about: About, paths: Sequence[str | Path]) -> int | None:
    """How far below the roots of an index some paths lie, in folders; `None` if it does not cover all of them."""
    depths = []
    for path in spelled(paths, about.roots):
        over = [root for root in about.roots if is_under(path, [root])]
        if not over:
            return None
        depths.append(min(path[len(root) :].count("/") for root in over))
    return max(depths, default=0)


def spelled(paths: Iterable[str | Path], roots: Sequence[str]) -> list[str]:
    """Paths as an index spells them: below its roots as these are written, in their one spelling elsewhere.

    Roots are written in their one spelling since that is known; older indexes have the names of links among theirs.

    Args:
        paths: Any paths.
        roots: What the index covers.
    """
    real = {root: real_path(root) for root in roots}  # which opens nothing, as `canonical_path` does on a Mac
    return [_spelled(path, real) for path in paths]


def _spelled(path: str | Path, roots: Mapping[str, str]) -> str:
    """A path as an index spells it that has some roots, each with its real path."""
    if (absolute := os.path.abspath(path)) in roots:
        return absolute
    found = canonical_path(path)
    over = [root for root, real in roots.items() if is_under(found, [real])]
    if not over:
        return found
    root = max(over, key=lambda one: len(roots[one]))
    rest = found[len(roots[root].rstrip("/")) :]
    return root.rstrip("/") + rest or root


def _is_of_others(file: Path, roots: Sequence[str]) -> bool:
    """Whether a file is an index of other paths: one that was moved keeps its name."""
    about = about_of(file) if file.exists() else None
    return about is not None and sorted(map(real_path, about.roots)) != roots


def about_of(file: Path) -> About | None:
    """What an index was made with; `None` if it cannot be read."""
    try:
        store = SqliteStore(file)
    except StoreError:
        return None  # `mlxbert indexes list` shows it, and whoever opens it hears why
    store.close()
    return store.about


def find_index(paths: Sequence[str | Path]) -> Path | None:
    """The index that covers all of some paths; of several the one whose roots are nearest above them."""
    found = []
    for file in list_indexes():
        about = about_of(file)
        depth = None if about is None else covers(about, paths)
        if about is not None and depth is not None:
            found.append((depth, len(about.roots), file))
    return min(found)[2] if found else None
