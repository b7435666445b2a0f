"""The .gitignore files of a folder: which patterns apply, and how git compares them with file names."""

import functools
import logging
import os
import re
import stat
import string
import warnings
from dataclasses import dataclass
from pathlib import Path

from mlxbert.paths import open_regular, open_unlinked
from mlxbert.search.file_systems import ON_MAC, composed, is_in_the_cloud

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
    from pathspec import GitIgnoreSpec

    for pattern, equal in _EQUAL_PATTERNS:
        line = pattern.sub(equal, line)
    try:
        with warnings.catch_warnings(action="ignore"):  # FutureWarnings about possible set operations
            patterns = GitIgnoreSpec.from_lines([line], backend="simple").patterns
    except (ValueError, re.error):
        return None
    compiled = [
        (pattern.regex, pattern.include) for pattern in patterns if pattern.regex and pattern.include is not None
    ]
    return compiled[0] if compiled else None


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
