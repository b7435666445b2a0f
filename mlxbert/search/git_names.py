"""How git compares file names in a repository, from the configuration that `git init` writes."""

import os
import re
import stat
from dataclasses import dataclass

from mlxbert.paths import open_regular
from mlxbert.search.file_systems import ON_MAC, is_in_the_cloud

_MAX_BYTES = 2**20  # of a configuration
_COMMENT = re.compile("[#;]")


@dataclass(frozen=True, slots=True)
class Naming:
    """How file names are compared with patterns.

    Attributes:
        ignore_case: Whether the case of ASCII letters is ignored: `core.ignorecase`.
        compose: Whether composed and decomposed characters are equal: `core.precomposeunicode`.
    """

    ignore_case: bool = False
    compose: bool = False


def usual_naming() -> Naming:
    """Returns the naming of a new repository on this system."""
    return Naming(ON_MAC, ON_MAC)


def naming_of(folder: str) -> Naming:
    """Returns the naming of the repository in a folder; `usual_naming` if its `.git` cannot be read."""
    try:
        settings = _core(_text(os.path.join(_git_folder(os.path.join(folder, ".git")), "config")))
    except (OSError, ValueError):
        return usual_naming()
    return Naming(settings.get("ignorecase", False), settings.get("precomposeunicode", False))


def _git_folder(path: str) -> str:
    """Returns the folder with the configuration; in a worktree or submodule, `.git` is a file that names it."""
    if os.path.isdir(path):
        return path
    folder = os.path.join(os.path.dirname(path), _text(path).removeprefix("gitdir:").strip())
    try:
        return os.path.join(folder, _text(os.path.join(folder, "commondir")).strip())
    except FileNotFoundError:
        return folder


def _text(path: str) -> str:
    """Reads a regular file."""
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode) or is_in_the_cloud(state):
        raise OSError
    with open(path, "rb", opener=open_regular) as file:
        return os.fsdecode(file.read(_MAX_BYTES))


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
