"""Removes private data from texts: paths, and the names of the user and the machine."""

import getpass
import os
import platform
import re
from collections.abc import Iterator

_REMOVED = "…"
# A path starts with `/`, `~/`, `C:\` or `\\`, but not within a word, as in `GFLOP/s`. Folder names may have any
# characters, including spaces and quotes: so a match extends to the last separator in the text, and from there to where
# a path usually ends: at a quote, a bracket, a punctuation mark before a space, or a known suffix.
_PATH = re.compile(
    r"""
    (?: (?<![\w.]) (?: ~[\w.-]* )? / (?=\S) | (?<!\w) [A-Za-z]: [/\\] | \\\\ (?=\w) )
    (?: .* [/\\] )?
    .*? (?:
        (?= ['"`\u2019\u201d»] (?!\w) | [:;,.] (?:\s|$) | [)\]>|] | $ )
        | \. (?: metallib | metal | so (?:\.\d+)* | dylib | safetensors | json | py | npz | cu | ptx | bin | txt ) \b
        | $
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_MIN_LENGTH = 2  # characters of a name to remove


def without_paths(text: str) -> str:
    """Replaces each path by `…`, and also any text between two paths."""
    return _PATH.sub(_REMOVED, text)


def anonymous(text: str) -> str:
    """Removes paths from a text, and the names of the user, of the user's home and of the machine."""
    for home in sorted(_homes(), key=len, reverse=True):
        text = text.replace(home, f"{_REMOVED}/home")
    text = without_paths(text).replace(_REMOVED * 2, _REMOVED)
    for name in sorted(_names(), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _REMOVED, text, flags=re.IGNORECASE)
    return text


def _homes() -> frozenset[str]:
    """Returns the path of the user's home, also with links resolved; leaves out `/`, with which any path begins."""
    home = os.path.expanduser("~")
    return frozenset(path for path in (home, os.path.realpath(home)) if len(path) > 1 and os.path.isabs(path))


def _names() -> frozenset[str]:
    return frozenset(name.strip() for name in _all_names() if len(name.strip()) >= _MIN_LENGTH)


def _all_names() -> Iterator[str]:
    """Yields the names of the user, and the name of the machine with and without its domain."""
    yield from (os.path.basename(home) for home in _homes())
    yield from (os.environ.get(variable, "") for variable in ("USER", "LOGNAME"))
    try:
        import pwd

        account = pwd.getpwuid(os.getuid())
        yield from (getpass.getuser(), account.pw_name, account.pw_gecos.partition(",")[0])
    except (ImportError, KeyError, OSError):  # a container whose user has no name
        pass
    yield from (platform.node(), platform.node().partition(".")[0])
