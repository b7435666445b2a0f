"""Files with which a system keeps the server running: launchd's of a Mac, systemd's of Linux."""

import plistlib
import re
from collections.abc import Sequence

_LABEL = "mlxbert.serve"
_SECONDS = 120  # for answering what was taken


def launchd(command: Sequence[str], log: str) -> str:
    """A file for `~/Library/LaunchAgents`.

    Args:
        command: The command with absolute paths.
        log: Where its notes go.
    """
    values = {
        "Label": _LABEL,
        "ProgramArguments": [*command],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": _SECONDS,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(values, sort_keys=False).decode()


def systemd(command: Sequence[str]) -> str:
    """A file for `~/.config/systemd/user`.

    Args:
        command: The command with absolute paths.
    """
    return f"""[Unit]
Description=mlxbert serve
After=network.target

[Service]
ExecStart={" ".join(map(_quoted, command))}
Restart=on-failure
RestartSec=2
TimeoutStopSec={_SECONDS}
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """A word as systemd reads it: `%` and `$` have a meaning there."""
    word = word.replace("%", "%%").replace("$", "$$")
    return word if re.fullmatch(r"[\w@:,./+=%-]+", word) else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'
