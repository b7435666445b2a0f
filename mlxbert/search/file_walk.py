"""Walks folders for files; leaves out hidden files and files that git ignores."""

import functools
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from mlxbert.errors import ArgumentError, InputError
from mlxbert.files import is_forbidden, is_system_file, to_path
from mlxbert.paths import open_below, open_unlinked
from mlxbert.search.file_systems import FORBIDDEN, IN_THE_CLOUD, composed, is_hidden, is_in_the_cloud, is_package
from mlxbert.search.git_names import Naming, naming_of, usual_naming

_MAX_RULES = 2**20  # bytes of a .gitignore
_MAX_RULE = 2**12  # characters, as of a path: a longer pattern takes minutes to compile
_GROUP = 64  # patterns in one expression: every match saves all groups of its expression
_OPTIONS = Naming(compose=True)  # for `include` and `exclude`
# How pathspec ends a pattern: in this form it also matches everything inside a folder that the pattern names.
_NAMED, _FOLDER = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"
_EVERY_FOLDER = re.compile(r"((?:^!?|/)\*\*|^!?\*)/ *\Z")  # patterns that pathspec misreads
# _STAR: a star and a part of fixed length before the next star. _DEEP: folders at any depth and a part before the next
# such folders. The first match of the part is as good as any other; backtracking to try others could take hours.
_SEVERAL = re.compile(r"(?:\[\^/\]\*){2,}")
_STAR = re.compile(r"\[\^/\]\*((?:\\.|\[\^?\]?[^\]]*\](?!\*)|[^\\\[\](){}|?*+$^.])+)(?=\[\^/\]\*)", re.DOTALL)
_DEEP = re.compile(r"\(\?:/\.\+\)\?((?:(?!\(\?:/\.\+\)\?).)+)(?=\(\?:/\.\+\)\?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """A file that was found.

    Attributes:
        path: The absolute path; bytes that are not UTF-8 are lone surrogates, as in Python's `os`.
        size: The size in bytes.
        mtime: The time of the last change, in nanoseconds.
        root: The folder that was walked, below which the path has no links, or the file itself.
    """

    path: str
    size: int
    mtime: int
    root: str

    def open(self) -> BufferedReader:
        """Opens the file; refuses a FIFO or a link that has replaced it."""
        return open(self.path, "rb", opener=lambda path, _: open_below(self.root, path))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that is left out; a folder with everything in it.

    Attributes:
        path: The absolute path.
        reason: "hidden", "ignored" (by a .gitignore), "excluded" or "not included" (by options), "too large", "link"
            (to a folder, or to a file outside), "broken link", "not a file", "no permission", "vanished", "cannot be
            read"; on a Mac also "in the cloud" (reading would download it), "package" and "forbidden by macOS" (by
            its privacy settings).
    """

    path: str
    reason: str


@dataclass(frozen=True)
class WalkOptions:
    """Which files to walk.

    Attributes:
        include: Patterns, as in a .gitignore, of the files to take, relative to the walked folder; empty for all.
        exclude: Patterns of files and folders to leave out.
        max_bytes: The maximum size of a file.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class _Rules:
    """Compiled patterns of a .gitignore or an option.

    Attributes:
        patterns: Regular expressions, the last pattern first, with a flag per group: ignored (selected, for options).
        naming: How names are compared.
    """

    patterns: tuple[tuple[re.Pattern[str], tuple[bool, ...]], ...]
    naming: Naming

    def of(self, path: str, start: int) -> bool | None:
        """Returns the flag of the last pattern that matches `path[start:]`; the path of a folder ends with a slash."""
        if self.naming.compose and not path.isascii():
            path, start = composed(path), len(composed(path[:start]))
        for pattern, flags in self.patterns:
            if (match := pattern.match(path, start)) is not None:
                return flags[(match.lastindex or 1) - 1]
        return None


@dataclass(frozen=True, slots=True)
class _FolderIgnores:
    """The .gitignore rules that apply to a folder.

    Attributes:
        naming: How the repository compares names.
        rules: The rules of each .gitignore, innermost first, with the offset of the paths relative to its folder.
    """

    naming: Naming
    rules: tuple[tuple[int, _Rules], ...] = ()


def walk(paths: Sequence[str | Path], options: WalkOptions = WalkOptions()) -> Iterator[WalkedFile | LeftOut]:
    """Yields the files of folders, each once, sorted by name; and the files and folders that are left out.

    Hidden files are left out, and files that a `.gitignore` names: in the folder itself, or above it up to the folder
    with `.git`. The given paths are always walked. Links to folders are not followed. On a Mac, files in the cloud are
    never opened, even if they are given.

    Args:
        paths: Folders and files.
        options: Which files to walk.
    """
    roots = [os.path.abspath(to_path(os.fsdecode(path), "path")) for path in paths]
    for root, path in zip(roots, paths, strict=True):
        try:
            os.stat(root)
        except OSError as problem:
            raise InputError(
                f"{os.fsdecode(path)}: cannot be read ({problem.strerror})", hint="check the spelling of the path"
            ) from None
    return _Walk(options).files(roots)


class _Walk:
    """A walk over several paths.

    Args:
        options: Which files to walk.
    """

    def __init__(self, options: WalkOptions) -> None:
        self._include, self._exclude = _option("include", options.include), _option("exclude", options.exclude)
        self._max_bytes, self._root = options.max_bytes, ""
        self._files, self._folders = set[str](), set[tuple[int, int]]()

    def files(self, roots: Sequence[str]) -> Iterator[WalkedFile | LeftOut]:
        """Yields the files under the roots, and what is left out."""
        for root in roots:
            self._root = root
            if os.path.isdir(root):
                yield from self._folder(root)
            elif (file := self._file(root, len(os.path.dirname(root).rstrip("/")) + 1, is_root=True)) is not None:
                yield file

    def _folder(self, root: str) -> Iterator[WalkedFile | LeftOut]:
        start, real = len(root.rstrip("/")) + 1, os.path.realpath(root)
        waiting: list[tuple[_FolderIgnores, Iterator[os.DirEntry[str]]]] = []
        item: WalkedFile | LeftOut | tuple[str, _FolderIgnores] | None = root, _above(root)
        while True:
            if isinstance(item, tuple):
                folder = self._read_folder(*item, is_root=item[0] == root)
                if isinstance(folder, LeftOut):
                    yield folder
                else:
                    waiting.append(folder)
            elif item is not None:
                yield item
            entry = None
            while waiting and (entry := next(waiting[-1][1], None)) is None:
                waiting.pop()
            if entry is None:
                return
            ignores = waiting[-1][0]
            if entry.is_symlink():
                item = self._link(entry.path, root, real, start)
            elif (reason := self._left_out(entry, ignores, start)) is not None:
                item = LeftOut(entry.path, reason)
            else:
                item = (entry.path, ignores) if entry.is_dir(follow_symlinks=False) else self._file(entry.path, start)

    def _read_folder(
        self, path: str, ignores: _FolderIgnores, *, is_root: bool
    ) -> tuple[_FolderIgnores, Iterator[os.DirEntry[str]]] | LeftOut:
        """Returns the rules and the entries of a folder; no entries if the folder was walked before."""
        try:
            state = os.stat(path)
            if not is_root and (reason := reason_to_skip(path, state)) is not None:
                return LeftOut(path, reason)
            if (state.st_dev, state.st_ino) in self._folders:
                return ignores, iter(())
            self._folders.add((state.st_dev, state.st_ino))
            with os.scandir(path) as entries:
                inside = {entry.name: entry for entry in entries}
        except OSError as problem:
            return LeftOut(path, _reason(problem))
        if ".git" in inside:
            ignores = _FolderIgnores(naming_of(path))
        if ".gitignore" in inside:
            ignores = _with_rules(path, ignores)
        return ignores, iter([inside[name] for name in sorted(inside)])

    def _left_out(self, entry: os.DirEntry[str], ignores: _FolderIgnores, start: int) -> str | None:
        """Returns the reason to leave out an entry because of its name; `None` if there is no reason."""
        if entry.name.startswith(".") or is_system_file(entry.name):
            return "hidden"
        if not ignores.rules and self._exclude is None:
            return None
        path = f"{entry.path}/" if entry.is_dir(follow_symlinks=False) else entry.path
        for offset, rules in ignores.rules:
            if (ignored := rules.of(path, offset)) is not None:
                if ignored:
                    return "ignored"
                break
        return "excluded" if self._exclude is not None and self._exclude.of(path, start) else None

    def _link(self, path: str, root: str, real: str, start: int) -> WalkedFile | LeftOut | None:
        """Resolves a link; a target inside the walked folder counts as that file."""
        if os.path.basename(path).startswith("."):
            return LeftOut(path, "hidden")
        try:
            target = os.path.realpath(path, strict=True)
        except OSError:
            return LeftOut(path, "broken link")
        inside = target.startswith(f"{real.rstrip('/')}/") and not os.path.isdir(target)
        return self._file(os.path.join(root, os.path.relpath(target, real)), start) if inside else LeftOut(path, "link")

    def _file(self, path: str, start: int, *, is_root: bool = False) -> WalkedFile | LeftOut | None:
        """Returns a file, unless it was found before; options are matched with `path[start:]`."""
        if path in self._files:
            return None
        if self._exclude is not None and self._exclude.of(path, start):
            return LeftOut(path, "excluded")
        if self._include is not None and not self._include.of(path, start):
            return LeftOut(path, "not included")
        try:
            state = os.stat(path)
        except OSError as problem:
            return LeftOut(path, _reason(problem))
        if not stat.S_ISREG(state.st_mode):
            return LeftOut(path, "not a file")
        if is_hidden(state) and not is_root:
            return LeftOut(path, "hidden")
        if is_in_the_cloud(state):
            return LeftOut(path, IN_THE_CLOUD)
        if state.st_size > self._max_bytes:
            return LeftOut(path, "too large")
        self._files.add(path)
        return WalkedFile(path, state.st_size, state.st_mtime_ns, self._root)


def reason_to_skip(path: str, state: os.stat_result) -> str | None:
    """Returns the reason to leave out a folder below a given one because of macOS metadata; `None` if there is none."""
    if is_hidden(state):
        return "hidden"
    if is_package(os.path.basename(path)):
        return "package"
    return IN_THE_CLOUD if is_in_the_cloud(state) else None


def _reason(problem: OSError) -> str:
    if isinstance(problem, PermissionError):
        return FORBIDDEN if is_forbidden(problem) else "no permission"
    return "vanished" if isinstance(problem, FileNotFoundError | NotADirectoryError) else "cannot be read"


def _option(name: str, patterns: Sequence[str]) -> _Rules | None:
    for pattern in patterns:
        if _rules(pattern, _OPTIONS, inside=True) is None:
            raise ArgumentError(f"{name} has {pattern!r:.60}, expected a pattern as in a .gitignore: 'drafts/', '*.md'")
    return _rules("\n".join(patterns), _OPTIONS, inside=True)


def _above(folder: str) -> _FolderIgnores:
    """Returns the rules of the folders above a folder, up to the one with `.git`; no rules without a repository."""
    folders = [folder, *map(str, Path(folder).parents)]
    top = next((place for place, path in enumerate(folders) if os.path.lexists(os.path.join(path, ".git"))), None)
    if top is None:
        return _FolderIgnores(usual_naming())
    ignores = _FolderIgnores(naming_of(folders[top]))
    for path in reversed(folders[1 : top + 1]):
        ignores = _with_rules(path, ignores)
    return ignores


def _with_rules(folder: str, ignores: _FolderIgnores) -> _FolderIgnores:
    """Adds the .gitignore of a folder to the rules."""
    path = os.path.join(folder, ".gitignore")
    try:
        state = os.lstat(path)
        if not stat.S_ISREG(state.st_mode) or is_in_the_cloud(state):  # git follows no link either; a pipe would block
            return ignores
        with open(path, "rb", opener=open_unlinked) as file:
            text = os.fsdecode(file.read(_MAX_RULES).removeprefix(b"\xef\xbb\xbf"))
    except OSError:
        return ignores
    rules = _rules(text, ignores.naming)
    if rules is None:
        return ignores
    return _FolderIgnores(ignores.naming, ((len(folder.rstrip("/")) + 1, rules), *ignores.rules))


@functools.lru_cache(64)  # many folders have the same rules
def _rules(text: str, naming: Naming, *, inside: bool = False) -> _Rules | None:
    """Compiles the patterns of a .gitignore; `None` if there are none.

    Skips patterns that git cannot read either, and patterns longer than any path.

    Args:
        text: The lines of the file.
        naming: How names are compared.
        inside: Whether a pattern that names a folder also matches everything in it.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    parts, flags = list[str](), list[bool]()
    lines = reversed((composed(text) if naming.compose else text).split("\n"))
    for line in dict.fromkeys(line.removesuffix("\r") for line in lines):
        if len(line) > _MAX_RULE:
            continue
        every_folder = _EVERY_FOLDER.search(line)
        try:
            part, include = GitIgnoreSpecPattern.pattern_to_regex(line[: every_folder.end(1)] if every_folder else line)
            if part is None or include is None:
                continue
            part = _STAR.sub(r"(?>[^/]*?\1)", _SEVERAL.sub("[^/]*", part.removeprefix("^")))
            part = _DEEP.sub(r"(?>(?:/.+?)??\1(?=/))", part)
            if inside:
                part = part.replace(_NAMED, r"(?:/|\Z)").replace(_FOLDER, "/")
            else:
                part = part.replace(_NAMED, r"/?\Z").replace(_FOLDER, r"/\Z")
                part += r".*/\Z" if every_folder else "[^/]" if part.endswith("/") else ""
            _compiled(part, naming)
        except (ValueError, re.error):
            continue
        parts.append(f"({part})")
        flags.append(include)
    slices = [slice(start, start + _GROUP) for start in range(0, len(parts), _GROUP)]
    patterns = tuple((_compiled("|".join(parts[group]), naming), tuple(flags[group])) for group in slices)
    return _Rules(patterns, naming) if patterns else None


def _compiled(pattern: str, naming: Naming) -> re.Pattern[str]:
    flags = re.DOTALL | (re.IGNORECASE | re.ASCII if naming.ignore_case else re.NOFLAG)  # as in git: ASCII only
    with warnings.catch_warnings(action="ignore"):  # FutureWarnings about possible set operations
        return re.compile(pattern, flags)
