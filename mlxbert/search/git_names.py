"""How git compares names in a repository: `git init` writes it into the repository's configuration."""

import os
import re
import stat
from dataclasses import dataclass

from mlxbert.paths import open_regular
from mlxbert.search.file_systems import ON_MAC, is_in_the_cloud

_MOST_BYTES = 2**20  # of a configuration
_COMMENT = re.compile("[#;]")


@dataclass(frozen=True, slots=True)
class Naming:
    """How names of files are compared with patterns.

    Attributes:
        ignore_case: Whether upper and lower case of ASCII letters are the same: `core.ignorecase`.
        compose: Whether composed and decomposed characters are: `core.precomposeunicode`.
    """

    ignore_case: bool = False
    compose: bool = False


def usual_naming() -> Naming:
    """That of a new repository on this system."""
    return Naming(ON_MAC, ON_MAC)


def naming_of(folder: str) -> Naming:
    """That of the repository whose `.git` is in a folder; without one that can be read, the usual one."""
    try:
        settings = _core(_text(os.path.join(_git_folder(os.path.join(folder, ".git")), "config")))
    except (OSError, ValueError):
        return usual_naming()
    return Naming(settings.get("ignorecase", False), settings.get("precomposeunicode", False))


def _git_folder(path: str) -> str:
    """The folder with the configuration; `.git` of a worktree or submodule is a file that names another folder."""
    if os.path.isdir(path):
        return path
    folder = os.path.join(os.path.dirname(path), _text(path).removeprefix("gitdir:").strip())
    try:
        return os.path.join(folder, _text(os.path.join(folder, "commondir")).strip())
    except FileNotFoundError:
        return folder


def _text(path: str) -> str:
    """What a file says."""
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode) or is_in_the_cloud(state):
        raise OSError
    with open(path, "rb", opener=open_regular) as file:
        return os.fsdecode(file.read(_MOST_BYTES))


def _core(text: str) -> dict[str, bool]:
    """The settings of the section `core`, in lower case, that are on or off."""
    found, section = dict[str, bool](), ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):  # nothing here takes longer than a line is long, which may be a megabyte
            header, _, line = line[1:].partition("]")
            section = header.strip().lower()
        if section == "core":
            name, equals, value = (part.strip() for part in _COMMENT.split(line, maxsplit=1)[0].partition("="))
            value = value.strip('"').lower() if equals else "true"
            found[name.lower()] = value in ("true", "yes", "on") or (value.lstrip("-").isdecimal() and int(value) != 0)
    return found
