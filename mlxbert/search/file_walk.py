"""Finds the files in folders, except hidden files and files that git ignores.

Patterns of .gitignore files are compared with file names as git does it.
"""

import functools
import logging
import os
import re
import stat
import string
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from mlxbert.durable_files import to_path
from mlxbert.errors import ArgumentError, InputError
from mlxbert.mac_files import is_forbidden, is_system_file
from mlxbert.paths import open_regular, open_unlinked
from mlxbert.search.file_systems import (
    FORBIDDEN,
    IN_THE_CLOUD,
    ON_MAC,
    composed,
    is_hidden,
    is_in_the_cloud,
    is_package,
)

_MAX_RULES = 2**20  # maximum bytes of a .gitignore
_MAX_RULE = 2**12  # maximum characters of a pattern, as of a path: longer ones take minutes to compile
# What a pattern costs by the result of `_stars`: two cost up to .3 milliseconds for a name of 255 characters, three 60
# times as much, and four would cost a second. All patterns of a .gitignore together may cost about a second for a name.
_COSTS, _MAX_COST = {1: 0, 2: 1, 3: 60}, 3000
# Patterns that pathspec reads differently, and what git takes them for: the library compares a pattern that matches any
# name with the beginning of a path only, and takes a folder to be inside itself.
_EQUAL_PATTERNS = (
    (re.compile(r"^(!?)(?:/?\*\*(?:/\*\*)*(?:/\*)?|\*)(/?) *$"), r"\1?*\2"),
    (re.compile(r"/\*\*(/?) *$"), r"/**/*\1"),
)
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_LOG = logging.getLogger("mlxbert")
_MAX_CONFIG = 2**20  # maximum bytes of a configuration
_COMMENT = re.compile("[#;]")


@dataclass(frozen=True, slots=True)
class Naming:
    """How file names are compared with patterns."""

    ignore_case: bool = False  # whether the case of ASCII letters is ignored (git's `core.ignorecase`)
    compose: bool = False  # whether composed and decomposed characters are equal (git's `core.precomposeunicode`)


def usual_naming() -> Naming:
    """Returns how git compares names in a new repository on this system."""
    return Naming(ON_MAC, ON_MAC)


def naming_of(folder: str) -> Naming:
    """Returns how the repository in a folder compares names; `usual_naming()` if its `.git` cannot be read."""
    try:
        settings = _core(_text(os.path.join(_git_folder(os.path.join(folder, ".git")), "config")))
    except (OSError, ValueError):
        return usual_naming()
    return Naming(settings.get("ignorecase", False), settings.get("precomposeunicode", False))


def _git_folder(path: str) -> str:
    """Returns the folder that holds git's configuration; in a worktree or submodule, the file `.git` names it."""
    if os.path.isdir(path):
        return path
    folder = os.path.join(os.path.dirname(path), _text(path).removeprefix("gitdir:").strip())
    try:
        return os.path.join(folder, _text(os.path.join(folder, "commondir")).strip())
    except FileNotFoundError:
        return folder


def _text(path: str) -> str:
    """Returns the text of a regular file; raises OSError for anything else, and for a file in the cloud."""
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode) or is_in_the_cloud(state):
        raise OSError
    with open(path, "rb", opener=open_regular) as file:
        return os.fsdecode(file.read(_MAX_CONFIG))


def _core(text: str) -> dict[str, bool]:
    """Returns the boolean settings of the section `core`, with lowercase names."""
    flags, section = dict[str, bool](), ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):  # all steps take linear time: a line may be a megabyte long
            header, _, line = line[1:].partition("]")
            section = header.strip().lower()
        if section == "core":
            name, equals, value = (part.strip() for part in _COMMENT.split(line, maxsplit=1)[0].partition("="))
            value = value.strip('"').lower() if equals else "true"
            flags[name.lower()] = value in ("true", "yes", "on") or (value.lstrip("-").isdecimal() and int(value) != 0)
    return flags


@dataclass(frozen=True, slots=True)
class Rules:
    """Compiled patterns of a .gitignore or an option."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...]  # the last one first; whether paths that match are ignored
    naming: Naming
    inside: bool  # whether a pattern that names a folder also matches everything in it

    def of(self, path: str, start: int) -> bool | None:
        """Returns whether the last pattern that matches `path[start:]` ignores it; `None` if no pattern matches.

        The path of a folder must end with a slash.
        """
        path = _spelled(path[start:], self.naming).replace("\n", "\0")  # a name is one line of an expression
        for pattern, ignores in self.patterns:
            if (match := pattern.match(path)) is not None and (self.inside or match.end() == len(path)):
                return ignores
        return None


@dataclass(frozen=True, slots=True)
class FolderIgnores:
    """The .gitignore rules that apply to a folder."""

    naming: Naming  # how the repository compares names
    # For each .gitignore, innermost first, an offset and its rules. The rules are matched against a path from this
    # offset, which makes the path relative to the folder of the .gitignore.
    rules: tuple[tuple[int, Rules], ...] = ()


def rules_above(folder: str) -> FolderIgnores:
    """Returns the rules of the folders above a folder, up to the folder with `.git`; no rules outside a repository."""
    folders = [folder, *map(str, Path(folder).parents)]
    top = next((place for place, path in enumerate(folders) if os.path.lexists(os.path.join(path, ".git"))), None)
    if top is None:
        return FolderIgnores(usual_naming())
    ignores = FolderIgnores(naming_of(folders[top]))
    for path in reversed(folders[1 : top + 1]):
        ignores = add_rules(path, ignores)
    return ignores


def add_rules(folder: str, ignores: FolderIgnores) -> FolderIgnores:
    """Returns the rules with the .gitignore of a folder added."""
    path = os.path.join(folder, ".gitignore")
    try:
        state = os.lstat(path)
        if not stat.S_ISREG(state.st_mode) or is_in_the_cloud(state):  # git follows no link either; a pipe would block
            return ignores
        with open(path, "rb", opener=open_unlinked) as file:
            text = os.fsdecode(file.read(_MAX_RULES).removeprefix(b"\xef\xbb\xbf"))
    except OSError:
        return ignores
    rules = compile_rules(text, ignores.naming)
    if rules is None:
        return ignores
    return FolderIgnores(ignores.naming, ((len(folder.rstrip("/")) + 1, rules), *ignores.rules))


@functools.lru_cache(64)  # many folders have the same rules
def compile_rules(text: str, naming: Naming, *, inside: bool = False) -> Rules | None:
    """Compiles the patterns of a .gitignore; returns `None` if there are none.

    Patterns that git cannot read are skipped, and so are patterns that are longer than any path, or have many stars.
    """
    patterns, unused, cost = [], list[str](), 0
    lines = reversed(_spelled(text, naming).split("\n"))
    for line in dict.fromkeys(line.removesuffix("\r") for line in lines):
        if len(line) > _MAX_RULE or (pattern := _compiled(line)) is None:
            continue
        total = cost + _COSTS.get(_stars(line), _MAX_COST + 1)
        if total > _MAX_COST:
            unused.append(line)
        else:
            patterns.append(pattern)
            cost = total
    if unused:
        _LOG.warning("%d ignore patterns with many stars are not used, such as %.60r", len(unused), unused[-1])
    return Rules(tuple(patterns), naming, inside) if patterns else None


def _compiled(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Compiles a line; returns its expression, and whether it ignores paths, or `None` if the line has no pattern."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    for pattern, equal in _EQUAL_PATTERNS:
        line = pattern.sub(equal, line)
    try:
        with warnings.catch_warnings(action="ignore"):  # FutureWarnings about possible set operations
            compiled = GitIgnoreSpecPattern(line)
    except (ValueError, re.error):
        return None
    return (compiled.regex, compiled.include) if compiled.regex and compiled.include is not None else None


def _stars(line: str) -> int:
    """Returns to which power the time of a pattern grows with the length of a path.

    These are the stars of the name with most of them, and each `**` but those at the start.
    """
    names = re.sub(r"^!?/?(?:\*\*/)*", "", line).rstrip("/ ").split("/")
    return max([1, *(name.count("*") for name in names if name != "**")]) + names.count("**")


def _spelled(text: str, naming: Naming) -> str:
    """Spells a path or patterns so that equal names are equal texts."""
    text = composed(text) if naming.compose else text
    return text.translate(_LOWER) if naming.ignore_case else text  # as in git, for ASCII only


_OPTIONS = Naming(compose=True)  # for `include` and `exclude`
_MAX_DEPTH = 128  # maximum depth of a folder: the time of a pattern with `**` grows with a power of the depth
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """A file that was found."""

    path: str  # the absolute path; bytes that are not UTF-8 become lone surrogates, as in Python's `os`
    size: int  # the size in bytes
    changed: int  # the time of the last change, in nanoseconds (see `change_time`)
    # The walked folder that contains the file; below this folder, the path has no links. If the file itself was given,
    # its own path.
    root: str

    def open(self) -> BufferedReader:
        """Opens the file; raises an error if a FIFO or a link has replaced it."""
        return open(self.path, "rb", opener=lambda path, _: open_below(self.root, path))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is left out, or a folder that is left out with everything in it."""

    path: str  # the absolute path
    # "hidden", "ignored" (by a .gitignore), "excluded" or "not included" (by options), "too large", "too deep", "link"
    # (to a folder, or to a file outside), "broken link", "not a file", "no permission", "vanished", "cannot be read";
    # on a Mac also "in the cloud" (reading would download it), "package" and "forbidden by macOS" (by its privacy
    # settings).
    reason: str


@dataclass(frozen=True)
class WalkOptions:
    """The options that select the files to walk."""

    # Patterns of the files to take, as in a .gitignore in the walked folder; empty for all files.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()  # patterns of the files and folders to leave out
    max_bytes: int = 2**30  # the maximum size of a file


def walk(paths: Sequence[str | Path], options: WalkOptions = WalkOptions()) -> Iterator[WalkedFile | LeftOut]:
    """Yields each file in the folders once, sorted by name, and also what is left out.

    Hidden files are left out, and so are files that match a `.gitignore` in their folder or in a folder above it, up to
    the folder with `.git`. The given paths are always walked. Links to folders are not followed. On a Mac, files in the
    cloud are never opened, even if they are given.
    """
    roots = [os.path.abspath(to_path(os.fsdecode(path), "paths")) for path in paths]
    for root, path in zip(roots, paths, strict=True):
        try:
            os.stat(root)
        except OSError as problem:
            raise InputError(
                f"{os.fsdecode(path)}: cannot be read ({problem.strerror})", hint="check the spelling of the path"
            ) from None
    return _Walk(options).files(roots)


class _Walk:
    def __init__(self, options: WalkOptions) -> None:
        self._include, self._exclude = _option("include", options.include), _option("exclude", options.exclude)
        self._max_bytes, self._root = options.max_bytes, ""
        self._files, self._folders = set[str](), set[tuple[int, int]]()

    def files(self, roots: Sequence[str]) -> Iterator[WalkedFile | LeftOut]:
        """Yields the given files and the files in the given folders, and also what is left out."""
        for root in roots:
            self._root = root
            if os.path.isdir(root):
                yield from self._folder(root)
            elif (file := self._file(root, len(os.path.dirname(root).rstrip("/")) + 1, is_root=True)) is not None:
                yield file

    def _folder(self, root: str) -> Iterator[WalkedFile | LeftOut]:
        start, real = len(root.rstrip("/")) + 1, os.path.realpath(root)
        waiting: list[tuple[FolderIgnores, Iterator[os.DirEntry[str]]]] = []
        item: WalkedFile | LeftOut | tuple[str, FolderIgnores] | None = root, rules_above(root)
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
        self, path: str, ignores: FolderIgnores, *, is_root: bool
    ) -> tuple[FolderIgnores, Iterator[os.DirEntry[str]]] | LeftOut:
        """Returns the .gitignore rules that apply in a folder and the folder's entries, or why it is left out.

        A folder that was walked before is returned without entries.
        """
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
            ignores = FolderIgnores(naming_of(path))
        if ".gitignore" in inside:
            ignores = add_rules(path, ignores)
        return ignores, iter([inside[name] for name in sorted(inside)])

    def _left_out(self, entry: os.DirEntry[str], ignores: FolderIgnores, start: int) -> str | None:
        """Returns the reason why an entry is left out because of its name; `None` if it is not left out."""
        if entry.name.startswith(".") or is_system_file(entry.name):
            return "hidden"
        path = f"{entry.path}/" if entry.is_dir(follow_symlinks=False) else entry.path
        if path.count("/", start) > _MAX_DEPTH:
            return "too deep"
        for offset, rules in ignores.rules:
            if (ignored := rules.of(path, offset)) is not None:
                if ignored:
                    return "ignored"
                break
        return "excluded" if self._exclude is not None and self._exclude.of(path, start) else None

    def _link(self, path: str, root: str, real: str, start: int) -> WalkedFile | LeftOut | None:
        """Resolves a link. A link to a file in the walked folder counts as that file; any other link is left out."""
        if os.path.basename(path).startswith("."):
            return LeftOut(path, "hidden")
        try:
            target = os.path.realpath(path, strict=True)
        except OSError:
            return LeftOut(path, "broken link")
        inside = target.startswith(f"{real.rstrip('/')}/") and not os.path.isdir(target)
        return self._file(os.path.join(root, os.path.relpath(target, real)), start) if inside else LeftOut(path, "link")

    def _file(self, path: str, start: int, *, is_root: bool = False) -> WalkedFile | LeftOut | None:
        """Returns a file, or why it is left out; `None` if it was found before.

        The patterns of the options are matched against `path[start:]`.
        """
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
        return WalkedFile(path, state.st_size, change_time(state), self._root)


def change_time(state: os.stat_result) -> int:
    """Returns the time of the last change of a file, in nanoseconds.

    The time of the content can be set (`touch -r`, `cp -p`), and a file that replaces another one brings its own. The
    time of the inode cannot be set, but some network file systems never change it.
    """
    return max(state.st_mtime_ns, state.st_ctime_ns)


def reason_to_skip(path: str, state: os.stat_result) -> str | None:
    """Returns the reason why a Mac's folder is left out (hidden, a package, or in the cloud), or `None`."""
    if is_hidden(state):
        return "hidden"
    if is_package(os.path.basename(path)):
        return "package"
    return IN_THE_CLOUD if is_in_the_cloud(state) else None


def _reason(problem: OSError) -> str:
    if isinstance(problem, PermissionError):
        return FORBIDDEN if is_forbidden(problem) else "no permission"
    return "vanished" if isinstance(problem, FileNotFoundError | NotADirectoryError) else "cannot be read"


def _option(name: str, patterns: Sequence[str]) -> Rules | None:
    for pattern in patterns:
        if compile_rules(pattern, _OPTIONS, inside=True) is None:
            expected = "expected a .gitignore pattern such as 'drafts/' or '*.md', with at most three stars in a name"
            raise ArgumentError(f"`{name}` has {pattern!r:.60}, {expected}")
    return compile_rules("\n".join(patterns), _OPTIONS, inside=True)


def open_below(root: str | Path, path: str | Path) -> int:
    """Opens a regular file in a folder for reading, like `open_regular`, without following links below the folder.

    Args:
        root: The folder, or the file itself; links on the way to it are followed.
        path: The file, spelled with `root` as its prefix.

    Returns:
        The descriptor.
    """
    *folders, name = os.path.relpath(path, root).split(os.sep)
    if name == os.curdir:
        return open_regular(path, os.O_RDONLY)
    below = os.open(root, _FOLDER)
    try:
        for folder in folders:
            above, below = below, os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=below)
            os.close(above)
        return open_regular(name, os.O_RDONLY | os.O_NOFOLLOW, folder=below)
    finally:
        os.close(below)
