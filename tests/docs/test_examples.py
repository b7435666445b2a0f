"""The examples of the documentation, run: commands print what is shown, Python prints what is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks, installs
from tests.helpers.papers import pdf
from tests.helpers.screen import Screen

pytestmark = pytest.mark.slow

ELLIPSIS = "…"  # on a line of its own: lines left out
MEMORY = re.compile(r"(?<=to train, of )[\d.]+ [GT]B")  # of the machine
# Pages of about the size of a chunk.
ASSEMBLY = """
Thank you for buying the L3 lamp. Unpack all of its parts and lay them on a soft cloth. There are a foot, a pole in two
pieces, a shade and a bag of screws. Join both pieces of the pole: the arrows on them must meet. Screw the foot to the
pole with the four long screws, and do not tighten them yet. Lead the cable through the hole in the foot. Stand the lamp
up and see whether it is straight. Now tighten the screws, each a little at a time. Set the shade on the ring at the top
and turn it to the left until it clicks. Keep the bag with the spare screws, as they fit no other lamp of ours.
"""
LIGHT = """
The lamp is sold without a light source. Use an E14 bulb of at most 40 watts. A stronger one would damage the shade. We
recommend LEDs of a warm white, which last for years and stay cool. Before you change the bulb, pull the plug and wait
for ten minutes. Hold the shade with one hand and turn the bulb to the left with the other. The dimmer in the cable has
three steps: press it once for each of them, and hold it down to switch the lamp off. If the light flickers, the bulb is
not made for dimmers. Wipe the shade with a dry brush from time to time, since dust takes away a lot of the light.
"""
MANUAL = pdf(*(" ".join(page.split()) for page in (ASSEMBLY, LIGHT)), title="Manual of the L3 lamp")
FILES = {"docs/search.md": {"manual.pdf": MANUAL}}  # of the reader's own
RUN = ("console", "sh", "python")
PAGES = [page for page in DOCS if any(language in RUN and not installs(text) for language, text in blocks(page))]


def test_pages_have_examples() -> None:
    assert {"README.md", "docs/command-line.md", "docs/embeddings.md", "docs/python.md"} <= set(PAGES)
    assert sum(language == "console" for page in PAGES for language, _ in blocks(page)) >= 6


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_work_one_after_the_other(page: str, tmp_path: Path) -> None:
    for name, content in FILES.get(page, {}).items():
        (tmp_path / name).write_bytes(content)
    printed = None
    for language, text in blocks(page):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                check(shown, at_terminal(command, tmp_path))
        elif language == "sh" and not installs(text):
            run("bash", "-ec", text, folder=tmp_path)
        elif language == "python":
            printed = run(sys.executable, "-c", text, folder=tmp_path)
        elif language == "text":
            assert printed is not None
            check(text, printed)
            printed = None
    assert not printed, f"{page} does not show what its Python prints: {printed}"


def environment(folder: Path) -> dict[str, str]:
    """One in which `mlxbert` is the program under test, in a terminal of 100 columns without colours."""
    program = folder / ".bin" / "mlxbert"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlxbert "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "MLXBERT_DATA": str(folder / ".data")}
    return {**os.environ, **own, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_terminal(command: str, folder: Path) -> str:
    """What a command prints in a terminal."""
    with Screen() as screen:
        command_line = ["bash", "-c", command]
        done = subprocess.run(
            command_line, cwd=folder, env=environment(folder), stdin=screen.inner, stdout=screen.inner, check=False
        )
        found = screen.shown()
    assert done.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m|\x1b\]8;.*?\x1b\\", "", found.decode("utf-8"))


def check(shown: str, printed: str) -> None:
    """Compares line by line: words are equal, numbers close."""
    shown, printed = (MEMORY.sub("…", text) for text in (shown, printed))
    wanted, found = ([line for line in text.splitlines() if line.strip()] for text in (shown, printed))
    assert agree(wanted, found), f"shown:\n{shown}\nprinted:\n{printed}"


def agree(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == ELLIPSIS:
        return any(agree(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and alike(words(shown[0]), words(printed[0])) and agree(shown[1:], printed[1:])


def words(line: str) -> list[str]:
    """Words and numbers, without the marks of JSON and without bars."""
    return [word for word in re.split(r"[\s,{}\[\]()]+", line) if word and not set(word) <= set("█▉▊▋▌▍▎▏")]


def alike(shown: list[str], printed: list[str]) -> bool:
    return len(shown) == len(printed) and all(map(close, shown, printed))


def close(shown: str, printed: str) -> bool:
    """Equal, or numbers as near as other hardware brings them: 0.3 percentage points, or a unit of the last digit."""
    number = re.fullmatch(r"-?\d+\.(\d+)(%?)", shown)
    other = re.fullmatch(r"-?\d+\.\d+(?:e-\d+)?(%?)", printed)
    if number is None or other is None or number[2] != other[1]:
        return shown == printed
    allowed = 0.3 if number[2] else max(0.001, 1.1 * 10 ** -len(number[1]))
    return abs(float(shown.rstrip("%")) - float(printed.rstrip("%"))) < allowed


def test_what_differs_is_noticed() -> None:
    check("a 0.585  ██\n…\nc 1.0%", "a 0.5853 █\nb\nb\nc 1.2%\n")
    check("a 2.0 GB to train, of 25.3 GB: both fit", "a 2.0 GB to train, of 8.6 GB: both fit")
    for shown, printed in (("a", "b"), ("a 0.585", "a 0.590"), ("a", "a\nb"), ("…\nc", "a\nb"), ("1.0%", "1.5%")):
        with pytest.raises(AssertionError):
            check(shown, printed)
