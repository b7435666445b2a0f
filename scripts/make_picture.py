"""Draws `docs/terminal.svg`, the picture in the README: the output of some commands in a terminal.

`python scripts/make_picture.py` runs the commands in a pseudo-terminal, in an empty folder, with the built-in model.
"""

import os
import pty
import re
import shlex
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 92
PICTURE = Path(__file__).parents[1] / "docs" / "terminal.svg"
NOTES = """\
You can return any item within 30 days for a full refund.
Our office is closed on public holidays.
To reset your password, follow the link in the e-mail.
"""
COMMANDS = (
    'mlxbert fill-mask "Tokyo is the largest city in [MASK]." -q --top-k 4',
    'mlxbert similarity "How do I get my money back?" --input notes.txt -q',
    "mlxbert inspect builtin -q",
)


def printed(command: str) -> str:
    """The output of a command in a terminal of `WIDTH` columns."""
    parts: list[bytes] = []

    def keep(descriptor: int) -> bytes:
        parts.append(os.read(descriptor, 65536))
        return parts[-1]  # also printed here; an empty result would end the command

    os.environ |= {"COLUMNS": str(WIDTH), "LINES": "40", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    words = shlex.split(command)
    status = pty.spawn([sys.executable, "-m", *words], keep)
    if status:
        raise SystemExit(f"{command}: exit status {os.waitstatus_to_exitcode(status)}")
    return b"".join(parts).decode().replace("\r\n", "\n").rstrip("\n")


def main() -> None:
    """Runs the commands and writes the picture."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, tempfile.TemporaryDirectory() as folder:
        console = Console(width=WIDTH, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        Path(folder, "notes.txt").write_text(NOTES, encoding="utf-8")
        os.chdir(folder)
        for number, command in enumerate(COMMANDS):
            console.print(Text.assemble("\n" * (number > 0), ("$ ", "dim"), (command, "bold")))
            console.print(Text.from_ansi(printed(command)))
        drawn = console.export_svg(title="mlxbert")
        drawn = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)  # use a local font, and fetch nothing
        PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
