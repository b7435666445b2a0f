"""Draws the pictures of a terminal in `docs/`, from what the commands print.

`python scripts/make_picture.py [NAME…]` runs the commands of all pictures, or of those that are named, in a
pseudo-terminal, in a new folder, with the built-in model. A picture with the name of a command's page is shown there.
"""

import os
import pty
import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 92
DOCS = Path(__file__).parents[1] / "docs"
NOTES = """\
You can return any item within 30 days for a full refund.
Our office is closed on public holidays.
To reset your password, follow the link in the e-mail.
"""
QUESTIONS = """\
text,label
Where is my parcel?,delivery
My package has not arrived yet.,delivery
The courier left it at the wrong house.,delivery
When will you ship my order?,delivery
The tracking number does not work.,delivery
Can I change the delivery address?,delivery
I was charged twice.,payment
Which credit cards do you accept?,payment
Please send me the invoice.,payment
My card was declined.,payment
Can I pay by bank transfer?,payment
I want my money back.,payment
"""


@dataclass(frozen=True)
class Picture:
    """A picture of a terminal.

    Attributes:
        commands: The commands.
        first: How the first line of the last command's output begins that is shown; empty to show all of them.
        last: How the first line after it begins that is not shown.
    """

    commands: tuple[str, ...]
    first: str = ""
    last: str = ""


PICTURES = {
    "terminal": Picture(
        (
            'mlxbert fill-mask "Tokyo is the largest city in [MASK]." -q --top-k 4',
            'mlxbert similarity "How do I get my money back?" --input notes.txt -q',
        )
    ),
    "search": Picture(('mlxbert search "can I resume an interrupted training" docs -q --top-k 3',)),
    "finetune-classify": Picture(
        ("mlxbert finetune classify --train questions.csv --output my-classifier --no-few-shot --epochs 8",),
        first="loss",
        last="confusion",
    ),
    "inspect": Picture(("mlxbert inspect builtin -q",)),
    "explain": Picture(
        ('mlxbert explain "How do I get my money back?" "You can return any item for a full refund." -q',)
    ),
    "dedupe": Picture(("mlxbert dedupe --input tickets.csv --threshold 0.85 -q",)),
    "cluster": Picture(("mlxbert cluster --input tickets.csv --clusters 4 --typical 2 --words 6 -q",)),
    "attention": Picture(('mlxbert attention "The river bank was muddy." -q',)),
}
_CONTROL = re.compile(r"(\r?\n|\r|\x1b\[1A|\x1b\[2K|\x1b\[\?25[lh])")  # what redraws lines, and the cursor


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
    return settled(b"".join(parts).decode())


def settled(output: str) -> str:
    """What is left on a terminal of an output that redraws some of its lines: it goes up, and clears each line."""
    rows, row = [""], 0
    for part in _CONTROL.split(output):
        if part.endswith("\n"):
            row += 1
            rows += [""] * (row == len(rows))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            rows[row] = ""
        elif not _CONTROL.fullmatch(part):
            rows[row] += part
    return "\n".join(rows).rstrip("\n")


def cut(output: Text, picture: Picture) -> Text:
    """The lines of an output that a picture shows."""
    lines = output.split(allow_blank=True)
    starts = [place for place, line in enumerate(lines) if line.plain.startswith(picture.first)]
    ends = [place for place, line in enumerate(lines) if picture.last and line.plain.startswith(picture.last)]
    shown = lines[starts[0] : ends[0] if ends else len(lines)]
    while not shown[-1].plain.strip():
        shown.pop()
    return Text("\n").join(shown)


def draw(name: str, picture: Picture) -> None:
    """Runs the commands of a picture in a new folder and writes `docs/NAME.svg`."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, tempfile.TemporaryDirectory() as folder:
        console = Console(width=WIDTH, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        Path(folder, "notes.txt").write_text(NOTES, encoding="utf-8")
        Path(folder, "questions.csv").write_text(QUESTIONS, encoding="utf-8")
        shutil.copy(DOCS.parent / "examples/data/tickets.csv", folder)
        shutil.copytree(DOCS, Path(folder, "docs"), ignore=shutil.ignore_patterns("*.svg"))
        os.environ["MLXBERT_DATA"] = str(Path(folder, "data"))
        os.chdir(folder)
        for number, command in enumerate(picture.commands):
            output = Text.from_ansi(printed(command))
            console.print(Text.assemble("\n" * (number > 0), ("$ ", "dim"), (command, "bold")))
            console.print(cut(output, picture) if command == picture.commands[-1] else output)
        drawn = console.export_svg(title="mlxbert", unique_id=f"mlxbert-{name}")
        drawn = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)  # use a local font, and fetch nothing
        (DOCS / f"{name}.svg").write_text(drawn, encoding="utf-8")
        os.chdir(DOCS)


def main() -> None:
    """Draws the pictures that are named, or all."""
    for name in sys.argv[1:] or PICTURES:
        draw(name, PICTURES[name])


if __name__ == "__main__":
    main()
