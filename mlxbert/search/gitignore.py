"""The .gitignore files of a folder: which patterns apply, and how git compares them with file names."""

import functools
import os
import re
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from mlxbert.paths import open_regular, open_unlinked
from mlxbert.search.file_systems import ON_MAC, composed, is_in_the_cloud

_MAX_RULES = 2**20  # maximum bytes of a .gitignore
_MAX_RULE = 2**12  # maximum characters of a pattern, as of a path: longer ones take minutes to compile
_GROUP = 64  # patterns per expression: every match stores all groups of its expression
# How pathspec ends a pattern: in this form it also matches everything inside a folder that the pattern names.
_NAMED, _FOLDER = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"
_EVERY_FOLDER = re.compile(r"((?:^!?|/)\*\*|^!?\*)/ *\Z")  # patterns that pathspec misreads
# _STAR: a star and a part of fixed length before the next star. _DEEP: folders at any depth and a part before the next
# such folders. The first match of the part is as good as any other; backtracking to try others could take hours.
_SEVERAL = re.compile(r"(?:\[\^/\]\*){2,}")
_STAR = re.compile(r"\[\^/\]\*((?:\\.|\[\^?\]?[^\]]*\](?!\*)|[^\\\[\](){}|?*+$^.])+)(?=\[\^/\]\*)", re.DOTALL)
_DEEP = re.compile(r"\(\?:/\.\+\)\?((?:(?!\(\?:/\.\+\)\?).)+)(?=\(\?:/\.\+\)\?)", re.DOTALL)
_MAX_CONFIG = 2**20  # maximum bytes of a configuration
_COMMENT = re.compile("[#;]")


@dataclass(frozen=True, slots=True)
class Naming:
    """How file names are compared with patterns.

    Attributes:
        ignore_case: Whether the case of ASCII letters is ignored (git's `core.ignorecase`).
        compose: Whether composed and decomposed characters are equal (git's `core.precomposeunicode`).
    """

    ignore_case: bool = False
    compose: bool = False


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
    """Compiled patterns of a .gitignore or an option.

    Attributes:
        patterns: Regular expressions, each with a tuple of flags. A regular expression combines several patterns as
            groups, the last pattern first. The flag of a group says whether the paths that match it are ignored (or,
            for an option, selected).
        naming: How names are compared.
    """

    patterns: tuple[tuple[re.Pattern[str], tuple[bool, ...]], ...]
    naming: Naming

    def of(self, path: str, start: int) -> bool | None:
        """Returns whether the last pattern that matches `path[start:]` ignores it; `None` if no pattern matches.

        The path of a folder must end with a slash.
        """
        if self.naming.compose and not path.isascii():
            path, start = composed(path), len(composed(path[:start]))
        for pattern, flags in self.patterns:
            if (match := pattern.match(path, start)) is not None:
                return flags[(match.lastindex or 1) - 1]
        return None


@dataclass(frozen=True, slots=True)
class FolderIgnores:
    """The .gitignore rules that apply to a folder.

    Attributes:
        naming: How the repository compares names.
        rules: For each .gitignore, innermost first, an offset and its rules. The rules are matched against a path from
            this offset, which makes the path relative to the folder of the .gitignore.
    """

    naming: Naming
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

    Patterns that git cannot read are skipped, and so are patterns longer than any path.

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
    return Rules(patterns, naming) if patterns else None


def _compiled(pattern: str, naming: Naming) -> re.Pattern[str]:
    flags = re.DOTALL | (re.IGNORECASE | re.ASCII if naming.ignore_case else re.NOFLAG)  # as in git, for ASCII only
    with warnings.catch_warnings(action="ignore"):  # FutureWarnings about possible set operations
        return re.compile(pattern, flags)
