"""The manual pages: what the help says, as roff that `man` shows without a warning."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS, PROGRAM

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "man_pages.py"))
GROUPS = [name for name, command in PROGRAM.commands.items() if hasattr(command, "commands")]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return SCRIPT["pages"]()


def test_each_command_and_group_has_a_page_with_all_of_its_options(pages: dict[str, str]) -> None:
    names = [*COMMANDS, *GROUPS]
    assert {*pages} == {"mlxbert.1"} | {f"mlxbert-{name.replace(' ', '-')}.1" for name in names}
    for name, command in COMMANDS.items():
        text = pages[f"mlxbert-{name.replace(' ', '-')}.1"].replace("\\-", "-").replace("...", "…")
        for option in (option for option in command.params if not option.hidden):
            name = option.opts[0].removeprefix("--") if option.param_type_name == "option" else option.metavar
            assert name in text and " ".join((option.help or "").split(".")[0].split()[:2]) in text, (name, option.help)


def test_the_first_page_names_all_commands_and_pages_refer_to_pages(pages: dict[str, str]) -> None:
    for name in PROGRAM.commands:
        assert f"\\fB{name}\\fP".replace("-", "\\-") in pages["mlxbert.1"]
    for text in pages.values():
        also = text.replace("\\-", "-").partition(".SH SEE ALSO\n")[2].replace("\\fB", "").replace("\\fP", "")
        assert {f"{name}.1" for name in also.replace("(1)", "").replace(",", "").split()} <= {*pages}


@together(
    "text,roff",
    [
        ("`--x` of C:\\y", "\\fB\\-\\-x\\fP of C:\\ey"),
        (".npy files", "\\&.npy files"),
        ("it's\n 1", "it\\(aqs 1"),
        ("'a' ~ ^ …", "\\(aqa\\(aq \\(ti \\(ha ..."),
        ("… more", "\\&... more"),
    ],
)
def test_every_character_stands_for_itself(text: str, roff: str) -> None:
    assert SCRIPT["paragraph"](text) == roff


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_man_shows_the_pages_without_a_warning(pages: dict[str, str], tmp_path: Path, locale: str) -> None:
    man, groff = shutil.which("man"), shutil.which("groff")
    if man is None or groff is None or b"--warnings" not in subprocess.run([man, "--help"], capture_output=True).stdout:
        pytest.skip("needs man-db and groff")
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {**os.environ, "LC_ALL": locale, "MANWIDTH": "80", "MANPAGER": "cat", "MAN_KEEP_FORMATTING": ""}
    files = [str(tmp_path / name) for name in sorted(pages)]
    shown = subprocess.run([man, "--warnings", "-l", *files], env=environment, capture_output=True, check=True)
    assert shown.stderr == b""
    assert shown.stdout.count(b"SYNOPSIS") == len(pages)
    assert b"mlxbert-embed - Turn texts into vectors" in shown.stdout
