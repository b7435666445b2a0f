"""Files with which a system keeps the server running: launchd's of a Mac, systemd's of Linux."""

import os
import plistlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_LABEL = "mlxbert.serve"
_SECONDS = 120  # for answering what was taken
# What a shell may have set and a service does not inherit; names of files and folders become absolute.
PATHS = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "MLXBERT_DATA", "SSL_CERT_FILE", "SSL_CERT_DIR")
_ADDRESSES = (
    "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
)  # fmt: skip
_VALUES = (
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_XET", "HF_HUB_DOWNLOAD_TIMEOUT", "NO_PROXY", "no_proxy",
    "XDG_CACHE_HOME", "XDG_DATA_HOME", "MLXBERT_DEVICE", "MLXBERT_BLAS", "MLX_ENABLE_TF32", "MLX_SDPA_VJP_FALLBACK",
)  # fmt: skip
_OURS = {"MLX_ENABLE_TF32": "0", "MLX_SDPA_VJP_FALLBACK": "1"}  # mlxbert sets these itself, in a service, too
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# An address without a password (http://name:password@proxy:3128) or a token (?token=…): `@` only after scheme and host.
_OPEN = re.compile(r"[^@?#]*|[\w+.-]+://(\[[^]/@?#]*\]|[^][/:@?#]*)(:\d*)?/[^?#]*")
# Folders of a Mac that its privacy settings keep services out of.
_CLOSED = ("Documents", "Desktop", "Downloads", "Library/Mobile Documents")


def environment(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment of a service.

    Args:
        variables: That of the shell.

    Returns:
        The variables that mlxbert or the hub's client reads, and the names of those that are left out because they hold
        a secret.
    """
    names = [name for name in (*PATHS, *_ADDRESSES, *_VALUES) if variables.get(name) not in (None, "", _OURS.get(name))]
    found = {name: variables[name] for name in names}
    found |= {name: os.path.abspath(os.path.expanduser(found[name])) for name in PATHS if name in found}
    secret = [name for name in _ADDRESSES if name in found and not _OPEN.fullmatch(found[name])]
    secret += [name for name in _SECRETS if variables.get(name)]
    return {name: value for name, value in found.items() if name not in secret}, secret


def closed(paths: Iterable[str | Path], home: Path) -> dict[str, str]:
    """Which files and folders a service of a Mac cannot read, each with the folder of the home that is closed.

    Args:
        paths: What the service reads.
        home: The user's home folder.
    """
    found: dict[str, str] = {}
    for path in map(str, paths):
        # Both: a link in such a folder cannot be followed, and what a link leads to may be in one.
        places = {f"{one}/".casefold() for one in (os.path.abspath(path), os.path.realpath(path))}
        for folder in _CLOSED:
            beginnings = {f"{one}/{folder}/".casefold() for one in (home, os.path.realpath(home))}
            if any(place.startswith(beginning) for place in places for beginning in beginnings):
                found[path] = folder
    return found


def launchd(command: Sequence[str], log: str, variables: Mapping[str, str]) -> str:
    """A file for `~/Library/LaunchAgents`.

    Args:
        command: The command with absolute paths.
        log: Where its notes go.
        variables: The environment of the service.
    """
    values = {
        "Label": _LABEL,
        "ProgramArguments": [*command],
        **({"EnvironmentVariables": {**variables}} if variables else {}),
        "ProcessType": "Interactive",  # by default launchd throttles a job's CPU and disk
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": _SECONDS,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(values, sort_keys=False).decode()


def systemd(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """A file for `~/.config/systemd/user`.

    Args:
        command: The command with absolute paths.
        variables: The environment of the service.
    """
    lines = "".join(f"Environment={_escaped(f'{name}={value}')}\n" for name, value in variables.items())
    return f"""[Unit]
Description=mlxbert serve
After=network.target

[Service]
ExecStart={" ".join(_escaped(word.replace("$", "$$")) for word in command)}
{lines}Restart=on-failure
RestartSec=2
TimeoutStopSec={_SECONDS}
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _escaped(word: str) -> str:
    """A word as systemd reads it; `%` has a meaning everywhere, and `$` in commands."""
    word = word.replace("%", "%%")
    return word if re.fullmatch(r"[\w@:,./+=%-]+", word) else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'
