"""The files of folders: what git ignores is left out, and so is what is hidden."""

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

_MOST_RULES = 2**20  # bytes of a .gitignore
_LONGEST_RULE = 2**12  # characters, as of a path: a longer pattern takes minutes to compile
_TOGETHER = 64  # patterns in one expression: with each, all of its groups are saved
_OPTIONS = Naming(compose=True)  # of `include` and `exclude`
# What pathspec ends a pattern with: it also finds what lies in a folder that the pattern names.
_NAMED, _FOLDER = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"
_EVERY_FOLDER = re.compile(r"((?:^!?|/)\*\*|^!?\*)/ *\Z")  # which pathspec takes for something else
# A star and what has a fixed length before the next one; folders at any depth and what is in them before the next such.
# The first place where that fits is as good as any other, so that no other is tried: it could take hours.
_SEVERAL = re.compile(r"(?:\[\^/\]\*){2,}")
_STAR = re.compile(r"\[\^/\]\*((?:\\.|\[\^?\]?[^\]]*\](?!\*)|[^\\\[\](){}|?*+$^.])+)(?=\[\^/\]\*)", re.DOTALL)
_DEEP = re.compile(r"\(\?:/\.\+\)\?((?:(?!\(\?:/\.\+\)\?).)+)(?=\(\?:/\.\+\)\?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """A file.

    Attributes:
        path: Absolute; bytes that are not UTF-8 are halves of surrogate pairs, as Python's `os` has them.
        size: In bytes.
        mtime: When it was changed, in nanoseconds.
        root: The folder that was walked, below which the path has no links, or the file itself.
    """

    path: str
    size: int
    mtime: int
    root: str

    def open(self) -> BufferedReader:
        """Opens the file, unless something else has come in its place: a FIFO, or a link."""
        return open(self.path, "rb", opener=lambda path, _: open_below(self.root, path))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file, or a folder with all that is in it, that is left out.

    Attributes:
        path: Absolute.
        reason: "hidden", "ignored" (by a .gitignore), "excluded" or "not included" (by options), "too large", "link"
            (to a folder, or to a file outside), "broken link", "not a file", "no permission", "vanished", "cannot be
            read"; on a Mac also "in the cloud" (to read it would download it), "package" and "forbidden by macOS" (by
            its privacy settings).
    """

    path: str
    reason: str


@dataclass(frozen=True)
class WalkOptions:
    """What is left out.

    Attributes:
        include: Patterns, as in a .gitignore, of the files to take, from the folder on that is walked; none: all.
        exclude: Patterns of files and folders to leave out.
        max_bytes: The largest file.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class _Rules:
    """Patterns of files: regular expressions of several, the last pattern first, and how names are compared.

    Attributes:
        patterns: The expressions, each with what its groups say.
        naming: How names are compared.
    """

    patterns: tuple[tuple[re.Pattern[str], tuple[bool, ...]], ...]
    naming: Naming

    def of(self, path: str, start: int) -> bool | None:
        """What the last pattern says that fits a path from a character on; a folder ends with a slash."""
        if self.naming.compose and not path.isascii():
            path, start = composed(path), len(composed(path[:start]))
        for pattern, says in self.patterns:
            if (found := pattern.match(path, start)) is not None:
                return says[(found.lastindex or 1) - 1]
        return None


@dataclass(frozen=True, slots=True)
class _FolderIgnores:
    """What is known of a folder from .gitignore files.

    Attributes:
        naming: How the repository compares names.
        rules: Rules, and where the paths begin that they see: the innermost first.
    """

    naming: Naming
    rules: tuple[tuple[int, _Rules], ...] = ()


def walk(paths: Sequence[str | Path], options: WalkOptions = WalkOptions()) -> Iterator[WalkedFile | LeftOut]:
    """The files of folders, each once, sorted by name; and what is left out.

    Left out is what is hidden, and what a `.gitignore` names: those in the folder, and those above it up to the folder
    with `.git`. A path that is given is walked in any case. Links to folders are not followed. Of a Mac's files in the
    cloud none is opened, not even one that is given.

    Args:
        paths: Folders and files.
        options: What else is left out.
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
        options: What is left out.
    """

    def __init__(self, options: WalkOptions) -> None:
        self._include, self._exclude = _option("include", options.include), _option("exclude", options.exclude)
        self._most, self._root = options.max_bytes, ""
        self._files, self._folders = set[str](), set[tuple[int, int]]()

    def files(self, roots: Sequence[str]) -> Iterator[WalkedFile | LeftOut]:
        """All that is found."""
        for root in roots:
            self._root = root
            if os.path.isdir(root):
                yield from self._folder(root)
            elif (found := self._file(root, len(os.path.dirname(root).rstrip("/")) + 1, given=True)) is not None:
                yield found

    def _folder(self, root: str) -> Iterator[WalkedFile | LeftOut]:
        start, real = len(root.rstrip("/")) + 1, os.path.realpath(root)
        waiting: list[tuple[_FolderIgnores, Iterator[os.DirEntry[str]]]] = []
        found: WalkedFile | LeftOut | tuple[str, _FolderIgnores] | None = root, _above(root)
        while True:
            if isinstance(found, tuple):
                opened = self._opened(*found, given=found[0] == root)
                if isinstance(opened, LeftOut):
                    yield opened
                else:
                    waiting.append(opened)
            elif found is not None:
                yield found
            entry = None
            while waiting and (entry := next(waiting[-1][1], None)) is None:
                waiting.pop()
            if entry is None:
                return
            known = waiting[-1][0]
            if entry.is_symlink():
                found = self._link(entry.path, root, real, start)
            elif (reason := self._left_out(entry, known, start)) is not None:
                found = LeftOut(entry.path, reason)
            else:
                found = (entry.path, known) if entry.is_dir(follow_symlinks=False) else self._file(entry.path, start)

    def _opened(
        self, path: str, known: _FolderIgnores, *, given: bool
    ) -> tuple[_FolderIgnores, Iterator[os.DirEntry[str]]] | LeftOut:
        """What is in a folder, and the rules for it; nothing if it was walked."""
        try:
            state = os.stat(path)
            if not given and (reason := reason_to_skip(path, state)) is not None:
                return LeftOut(path, reason)
            if (state.st_dev, state.st_ino) in self._folders:
                return known, iter(())
            self._folders.add((state.st_dev, state.st_ino))
            with os.scandir(path) as entries:
                inside = {entry.name: entry for entry in entries}
        except OSError as problem:
            return LeftOut(path, _reason(problem))
        if ".git" in inside:
            known = _FolderIgnores(naming_of(path))
        if ".gitignore" in inside:
            known = _with_rules(path, known)
        return known, iter([inside[name] for name in sorted(inside)])

    def _left_out(self, entry: os.DirEntry[str], known: _FolderIgnores, start: int) -> str | None:
        """Why an entry of a folder is left out by its name."""
        if entry.name.startswith(".") or is_system_file(entry.name):
            return "hidden"
        if not known.rules and self._exclude is None:
            return None
        path = f"{entry.path}/" if entry.is_dir(follow_symlinks=False) else entry.path
        for begin, rules in known.rules:
            if (ignored := rules.of(path, begin)) is not None:
                if ignored:
                    return "ignored"
                break
        return "excluded" if self._exclude is not None and self._exclude.of(path, start) else None

    def _link(self, path: str, root: str, real: str, start: int) -> WalkedFile | LeftOut | None:
        """What a link in a folder leads to: a file of the folder counts as itself."""
        if os.path.basename(path).startswith("."):
            return LeftOut(path, "hidden")
        try:
            target = os.path.realpath(path, strict=True)
        except OSError:
            return LeftOut(path, "broken link")
        inside = target.startswith(f"{real.rstrip('/')}/") and not os.path.isdir(target)
        return self._file(os.path.join(root, os.path.relpath(target, real)), start) if inside else LeftOut(path, "link")

    def _file(self, path: str, start: int, *, given: bool = False) -> WalkedFile | LeftOut | None:
        """A file, unless it was found before; its name for options begins at a character of its path."""
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
        if is_hidden(state) and not given:
            return LeftOut(path, "hidden")
        if is_in_the_cloud(state):
            return LeftOut(path, IN_THE_CLOUD)
        if state.st_size > self._most:
            return LeftOut(path, "too large")
        self._files.add(path)
        return WalkedFile(path, state.st_size, state.st_mtime_ns, self._root)


def reason_to_skip(path: str, state: os.stat_result) -> str | None:
    """Why a folder below the one that is given is left out by what a Mac says of it."""
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
    """The rules of the folders above a folder, if there is one with `.git` among them."""
    above = [folder, *map(str, Path(folder).parents)]
    last = next((place for place, path in enumerate(above) if os.path.lexists(os.path.join(path, ".git"))), None)
    if last is None:
        return _FolderIgnores(usual_naming())
    known = _FolderIgnores(naming_of(above[last]))
    for path in reversed(above[1 : last + 1]):
        known = _with_rules(path, known)
    return known


def _with_rules(folder: str, known: _FolderIgnores) -> _FolderIgnores:
    """The rules that are known, and those of a folder."""
    path = os.path.join(folder, ".gitignore")
    try:
        state = os.lstat(path)
        if not stat.S_ISREG(state.st_mode) or is_in_the_cloud(state):  # git follows no link either; a pipe would wait
            return known
        with open(path, "rb", opener=open_unlinked) as file:
            text = os.fsdecode(file.read(_MOST_RULES).removeprefix(b"\xef\xbb\xbf"))
    except OSError:
        return known
    rules = _rules(text, known.naming)
    if rules is None:
        return known
    return _FolderIgnores(known.naming, ((len(folder.rstrip("/")) + 1, rules), *known.rules))


@functools.lru_cache(64)  # the same in many folders
def _rules(text: str, naming: Naming, *, inside: bool = False) -> _Rules | None:
    """The patterns of a .gitignore; `None` if there are none.

    What git cannot read either is left out, and a pattern that is longer than any path.

    Args:
        text: Its lines.
        naming: How names are compared with them.
        inside: Whether a pattern that names a folder also names all that is in it.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    parts, says = list[str](), list[bool]()
    lines = reversed((composed(text) if naming.compose else text).split("\n"))
    for line in dict.fromkeys(line.removesuffix("\r") for line in lines):
        if len(line) > _LONGEST_RULE:
            continue
        every = _EVERY_FOLDER.search(line)
        try:
            part, include = GitIgnoreSpecPattern.pattern_to_regex(line[: every.end(1)] if every else line)
            if part is None or include is None:
                continue
            part = _STAR.sub(r"(?>[^/]*?\1)", _SEVERAL.sub("[^/]*", part.removeprefix("^")))
            part = _DEEP.sub(r"(?>(?:/.+?)??\1(?=/))", part)
            if inside:
                part = part.replace(_NAMED, r"(?:/|\Z)").replace(_FOLDER, "/")
            else:
                part = part.replace(_NAMED, r"/?\Z").replace(_FOLDER, r"/\Z")
                part += r".*/\Z" if every else "[^/]" if part.endswith("/") else ""
            _compiled(part, naming)
        except (ValueError, re.error):
            continue
        parts.append(f"({part})")
        says.append(include)
    some = [slice(at, at + _TOGETHER) for at in range(0, len(parts), _TOGETHER)]
    patterns = tuple((_compiled("|".join(parts[one]), naming), tuple(says[one])) for one in some)
    return _Rules(patterns, naming) if patterns else None


def _compiled(pattern: str, naming: Naming) -> re.Pattern[str]:
    flags = re.DOTALL | (re.IGNORECASE | re.ASCII if naming.ignore_case else re.NOFLAG)  # as git: of ASCII alone
    with warnings.catch_warnings(action="ignore"):  # of what may mean something else one day
        return re.compile(pattern, flags)
