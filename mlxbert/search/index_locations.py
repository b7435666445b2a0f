"""Finds the index, in the user's data folder, that covers some paths."""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlxbert.durable_files import is_system_file
from mlxbert.machine.user_folders import data_folder
from mlxbert.search.file_systems import canonical_path, composed, named_path, real_path
from mlxbert.search.index_stores import about_of
from mlxbert.search.store import IndexSettings


def index_file(paths: Sequence[str | Path]) -> Path:
    """Returns an unused path for a new index of these paths.

    The file name contains the name of one of the index's roots (see `roots_of`) and a hash of all roots.
    """
    roots = sorted(roots_of(paths))
    name = re.sub(r"[^\w.-]+", "-", composed(os.path.basename(roots[0]))).strip("-.")[:40] or "index"
    digest = hashlib.sha256(b"\0".join(map(os.fsencode, roots))).hexdigest()[:12]
    names = (f"{name}-{digest}{f'-{number}' * bool(number)}.db" for number in itertools.count())
    files = (data_folder() / "indexes" / name for name in names)
    return next(file for file in files if not _is_of_others(file, roots))


def roots_of(paths: Iterable[str | Path]) -> list[str]:
    """Returns the roots of an index of these paths: the absolute paths that the index covers, with links kept.

    Of several paths to the same file or folder, only the first becomes a root.
    """
    paths_by_target = dict[str, str]()
    for path in paths:
        paths_by_target.setdefault(canonical_path(path), named_path(path))
    return [*paths_by_target.values()]


def list_indexes() -> list[Path]:
    """Returns the indexes in the user's data folder, sorted by name."""
    files = (data_folder() / "indexes").glob("*.db")
    return sorted(file for file in files if not is_system_file(file.name))


def is_under(path: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of the roots or lies below one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def covers(about: IndexSettings, paths: Sequence[str | Path], *, near: bool = False) -> int | None:
    """Returns the depth of the deepest path below the root that contains it.

    Returns `None` if the index does not cover every path.

    Args:
        about: The settings of the index.
        paths: Any paths.
        near: See `_below`.
    """
    depths = []
    for path in paths:
        inside = _below(path, about.roots, near=near)
        if inside is None:
            return None
        depths.append(min(inside[len(root) :].count("/") for root in about.roots if is_under(inside, [root])))
    return max(depths, default=0)


def spelled(paths: Iterable[str | Path], roots: Sequence[str]) -> list[str]:
    """Spells paths as an index does: a path below a root begins with that root, and any other path keeps its links.

    Args:
        paths: Any paths.
        roots: The roots of the index.
    """
    return [_below(path, roots) or _outside(path, roots) for path in paths]


def _below(path: str | Path, roots: Sequence[str], *, near: bool = False) -> str | None:
    """Spells a path so that it begins with the nearest root that contains it; `None` if no root contains it.

    Args:
        path: Any path.
        roots: The roots of the index.
        near: Whether to resolve the links of only those roots that the path begins with. If false, those of the other
            roots are resolved, too, but last: a root may be on a volume whose server is gone, where every system call
            blocks.
    """
    if (absolute := os.path.abspath(path)) in roots:
        return absolute
    target = canonical_path(path)
    likely = [root for root in roots if is_under(absolute, [root]) or is_under(target, [root])]
    for candidates in (likely,) if near else (likely, [root for root in roots if root not in likely]):
        real = {root: _resolve_root(root) for root in candidates}
        above = [root for root in candidates if is_under(target, [real[root]])]
        if above:
            root = max(above, key=lambda candidate: len(real[candidate]))
            return root.rstrip("/") + target[len(real[root].rstrip("/")) :] or root
    return None


def leads_below(path: str | Path, roots: Sequence[str]) -> bool:
    """Whether a path, after all links are resolved, is one of the roots or lies below one."""
    return _below(path, roots) is not None


def _outside(path: str | Path, roots: Sequence[str]) -> str:
    """Spells a path outside all roots. Its links are kept, unless the path would then seem to lie below a root."""
    named = named_path(path)
    return canonical_path(path) if is_under(named, roots) else named


def _resolve_root(root: str) -> str:
    """Resolves the links of a root. Opens folders only if there are links, to spell the targets as on a Mac's disk."""
    real = real_path(root)
    return real if real == root else canonical_path(real)


def _is_of_others(file: Path, roots: Sequence[str]) -> bool:
    """Whether a file is an index with roots other than `roots`.

    Its name may have been made from `roots`, since an index keeps its file name when its roots change.
    """
    about = about_of(file) if file.exists() else None
    return about is not None and sorted(about.roots) != roots


def find_index(paths: Sequence[str | Path]) -> Path | None:
    """Returns the index that covers all paths. If several do, returns the one with the nearest roots above the paths.

    An index that has all the paths as roots, spelled in the same way, is preferred. The second choice is an index that
    is found by resolving the links of only those roots that the paths begin with.
    """
    abouts = [(about, file) for file in list_indexes() if (about := about_of(file)) is not None]
    absolute_paths = {os.path.abspath(path) for path in paths}
    if exact := [(len(about.roots), file) for about, file in abouts if absolute_paths.issubset(about.roots)]:
        return min(exact)[1]
    for near in (True, False):
        covering = [
            (depth, len(about.roots), file)
            for about, file in abouts
            if (depth := covers(about, paths, near=near)) is not None
        ]
        if covering:
            return min(covering)[2]
    return None
