"""The files of folders: what git ignores is left out, and so is what is hidden."""

import functools
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlxbert.errors import ArgumentError, InputError
from mlxbert.files import to_path

_MOST_RULES = 2**20  # bytes of a .gitignore
# What pathspec ends a pattern with: it also finds what lies in a folder that the pattern names.
_NAMED, _FOLDER = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"
_EVERY_FOLDER = re.compile(r"((?:^!?|/)\*\*|^!?\*)/ *\Z")  # which pathspec takes for something else
# A star and what has a fixed length before the next one; folders at any depth and what is in them before the next such.
# The first place where that fits is as good as any other, so that no other is tried: it could take hours.
_SEVERAL = re.compile(r"(?:\[\^/\]\*){2,}")
_STAR = re.compile(r"\[\^/\]\*((?:\\.|\[\^?\]?[^\]]*\](?!\*)|[^\\\[\](){}|?*+$^.])+)(?=\[\^/\]\*)", re.DOTALL)
_DEEP = re.compile(r"\(\?:/\.\+\)\?((?:(?!\(\?:/\.\+\)\?).)+)(?=\(\?:/\.\+\)\?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """A file.

    Attributes:
        path: Absolute; bytes that are not UTF-8 are halves of surrogate pairs, as Python's `os` has them.
        size: In bytes.
        mtime: When it was changed, in nanoseconds.
    """

    path: str
    size: int
    mtime: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file, or a folder with all that is in it, that is left out.

    Attributes:
        path: Absolute.
        reason: "hidden", "ignored" (by a .gitignore), "excluded" or "not included" (by options), "too large", "link"
            (to a folder, or to a file outside), "broken link", "not a file", "no permission", "vanished", "cannot be
            read".
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
    """Patterns of files: one regular expression, the last pattern first, and what each says."""

    pattern: re.Pattern[str]
    says: tuple[bool, ...]

    def of(self, path: str, start: int) -> bool | None:
        """What the last pattern says that fits a path from a character on; a folder ends with a slash."""
        found = self.pattern.match(path, start)
        return None if found is None else self.says[(found.lastindex or 1) - 1]


_Known = tuple[tuple[int, _Rules], ...]  # rules, and where the paths begin that they see: the innermost first


def walk(paths: Sequence[str | Path], options: WalkOptions = WalkOptions()) -> Iterator[Found | LeftOut]:
    """The files of folders, each once, sorted by name; and what is left out.

    Left out is what is hidden, and what a `.gitignore` names: those in the folder, and those above it up to the folder
    with `.git`. A path that is given is walked in any case. Links to folders are not followed.

    Args:
        paths: Folders and files.
        options: What else is left out.

    Raises:
        InputError: A path does not exist, or may not be looked at.
        ArgumentError: An option is not a pattern, or a path cannot be one.
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
        self._most = options.max_bytes
        self._files, self._folders = set[str](), set[tuple[int, int]]()

    def files(self, roots: Sequence[str]) -> Iterator[Found | LeftOut]:
        """All that is found."""
        for root in roots:
            if os.path.isdir(root):
                yield from self._folder(root)
            elif (found := self._file(root, len(os.path.dirname(root).rstrip("/")) + 1)) is not None:
                yield found

    def _folder(self, root: str) -> Iterator[Found | LeftOut]:
        start, real = len(root.rstrip("/")) + 1, os.path.realpath(root)
        waiting: list[tuple[_Known, Iterator[os.DirEntry[str]]]] = []
        found: Found | LeftOut | tuple[str, _Known] | None = root, _above(root)
        while True:
            if isinstance(found, tuple):
                try:
                    waiting.append(self._opened(*found))
                except OSError as problem:
                    yield LeftOut(found[0], _reason(problem))
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

    def _opened(self, path: str, known: _Known) -> tuple[_Known, Iterator[os.DirEntry[str]]]:
        """What is in a folder, and the rules for it; nothing if it was walked."""
        state = os.stat(path)
        if (state.st_dev, state.st_ino) in self._folders:
            return known, iter(())
        self._folders.add((state.st_dev, state.st_ino))
        with os.scandir(path) as entries:
            inside = {entry.name: entry for entry in entries}
        if ".git" in inside:
            known = ()
        if ".gitignore" in inside:
            known = _with_rules(path, known)
        return known, iter([inside[name] for name in sorted(inside)])

    def _left_out(self, entry: os.DirEntry[str], known: _Known, start: int) -> str | None:
        """Why an entry of a folder is left out by its name."""
        if entry.name.startswith("."):
            return "hidden"
        if not known and self._exclude is None:
            return None
        path = f"{entry.path}/" if entry.is_dir(follow_symlinks=False) else entry.path
        for begin, rules in known:
            if (ignored := rules.of(path, begin)) is not None:
                if ignored:
                    return "ignored"
                break
        return "excluded" if self._exclude is not None and self._exclude.of(path, start) else None

    def _link(self, path: str, root: str, real: str, start: int) -> Found | LeftOut | None:
        """What a link in a folder leads to: a file of the folder counts as itself."""
        if os.path.basename(path).startswith("."):
            return LeftOut(path, "hidden")
        try:
            target = os.path.realpath(path, strict=True)
        except OSError:
            return LeftOut(path, "broken link")
        inside = target.startswith(f"{real.rstrip('/')}/") and not os.path.isdir(target)
        return self._file(os.path.join(root, os.path.relpath(target, real)), start) if inside else LeftOut(path, "link")

    def _file(self, path: str, start: int) -> Found | LeftOut | None:
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
        if state.st_size > self._most:
            return LeftOut(path, "too large")
        self._files.add(path)
        return Found(path, state.st_size, state.st_mtime_ns)


def _reason(problem: OSError) -> str:
    if isinstance(problem, PermissionError):
        return "no permission"
    return "vanished" if isinstance(problem, FileNotFoundError | NotADirectoryError) else "cannot be read"


def _option(name: str, patterns: Sequence[str]) -> _Rules | None:
    for pattern in patterns:
        if _rules(pattern, inside=True) is None:
            raise ArgumentError(f"{name} has {pattern!r:.60}, expected a pattern as in a .gitignore: 'drafts/', '*.md'")
    return _rules("\n".join(patterns), inside=True)


def _above(folder: str) -> _Known:
    """The rules of the folders above a folder, if there is one with `.git` among them."""
    above = [folder, *map(str, Path(folder).parents)]
    last = next((place for place, path in enumerate(above) if os.path.lexists(os.path.join(path, ".git"))), 0)
    known: _Known = ()
    for path in reversed(above[1 : last + 1]):
        known = _with_rules(path, known)
    return known


def _with_rules(folder: str, known: _Known) -> _Known:
    """The rules that are known, and those of a folder."""
    path = os.path.join(folder, ".gitignore")
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):  # git follows no link either; a pipe would wait
            return known
        with open(path, "rb") as file:
            text = os.fsdecode(file.read(_MOST_RULES).removeprefix(b"\xef\xbb\xbf"))
    except OSError:
        return known
    rules = _rules(text)
    return known if rules is None else ((len(folder.rstrip("/")) + 1, rules), *known)


@functools.lru_cache(64)  # the same in many folders
def _rules(text: str, *, inside: bool = False) -> _Rules | None:
    """The patterns of a .gitignore; `None` if there are none. What git cannot read either is left out.

    Args:
        text: Its lines.
        inside: Whether a pattern that names a folder also names all that is in it.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    parts, says = list[str](), list[bool]()
    for line in reversed(text.split("\n")):
        line = line.removesuffix("\r")
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
            _compiled(part)
        except (ValueError, re.error):
            continue
        parts.append(f"({part})")
        says.append(include)
    return _Rules(_compiled("|".join(parts)), tuple(says)) if parts else None


def _compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings(action="ignore"):  # of what may mean something else one day
        return re.compile(pattern, re.DOTALL)
