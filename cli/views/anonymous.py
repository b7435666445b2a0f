"""Texts without what is private: paths, and the names of the user and of the machine."""

import getpass
import os
import platform
import re
from collections.abc import Iterator

_GONE = "…"
# A path starts with `/`, `~/`, `C:\` or `\\`, but not within a word, as in `GFLOP/s`. Names of folders may have any
# characters, spaces and quotes, too: so a match continues to the last separator in the text, and from there to where a
# path usually ends: a quote, a bracket, a punctuation mark before a space, or a known suffix.
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
_SHORTEST = 2  # characters of a name that is looked for


def without_paths(text: str) -> str:
    """The text with `…` in place of its paths, and of what is between two of them."""
    return _PATH.sub(_GONE, text)


def anonymous(text: str) -> str:
    """The text without paths, and without the names of the user, of the user's home and of the machine."""
    for home in sorted(_homes(), key=len, reverse=True):
        text = text.replace(home, f"{_GONE}/home")
    text = without_paths(text).replace(_GONE * 2, _GONE)
    for name in sorted(_names(), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _GONE, text, flags=re.IGNORECASE)
    return text


def _homes() -> frozenset[str]:
    """The user's home, as it is called and as it is; not `/`, which any path begins with."""
    home = os.path.expanduser("~")
    return frozenset(path for path in (home, os.path.realpath(home)) if len(path) > 1 and os.path.isabs(path))


def _names() -> frozenset[str]:
    return frozenset(name.strip() for name in _all_names() if len(name.strip()) >= _SHORTEST)


def _all_names() -> Iterator[str]:
    """Names of the user and of the machine, with and without its domain."""
    yield from (os.path.basename(home) for home in _homes())
    yield from (os.environ.get(variable, "") for variable in ("USER", "LOGNAME"))
    try:
        import pwd

        account = pwd.getpwuid(os.getuid())
        yield from (getpass.getuser(), account.pw_name, account.pw_gecos.partition(",")[0])
    except (ImportError, KeyError, OSError):  # a container whose user has no name
        pass
    yield from (platform.node(), platform.node().partition(".")[0])
