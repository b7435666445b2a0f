"""The documentation site and the manual pages: nothing is left out, links lead somewhere, nothing is loaded."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.docs.pages import ROOT
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS, PROGRAM

sys.path.insert(0, str(ROOT / "scripts"))
from website.checks import problems
from website.commands import GUIDES, file_name, guides, write_commands
from website.markup import to_rst
from website.pages import NAVIGATION, Site, navigation, render, site_name

PAGE = """\
# Page

[a](other.md#part) [b](../README.md) [c](#here) [d](https://example.org/x.md) [e](../tool.py) ![f](f.svg)

## Here
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository with two pages, a README, a program and a picture."""
    root = tmp_path / "checkout"
    (root / "docs").mkdir(parents=True)
    files = {
        "docs/index.md": PAGE + "```text\n[not a link](nowhere.md)\n```\n",
        "docs/other.md": "# Other\n\n## Part\n",
        "docs/f.svg": "<svg/>",
        "README.md": "# Read me\n\n[other](docs/other.md)\n",
        "tool.py": "print()\n",
        NAVIGATION: '[Start]\npages = ["docs/other.md"]\n[Project]\npages = ["README.md"]\n',
    }
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for pages in navigation().values() for page in pages]
    assert len(set(listed)) == len(listed)
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")} - {"docs/index.md"}
    assert pages <= set(listed), f"add {pages - set(listed)} to {NAVIGATION}"
    names = [site_name(page) for page in listed]
    assert len(set(names)) == len(names) and not {"search", "genindex", "index"} & set(names)


def test_links_lead_to_the_pages_of_the_site(checkout: Path, pages: Path) -> None:
    Site(checkout, pages).write()
    written = (pages / "index.md").read_text(encoding="utf-8")
    first = written.splitlines()[2]
    assert first == (
        "[a](other.md#part) [b](readme.md) [c](#here) [d](https://example.org/x.md) [e](tool.md) ![f](f.svg)"
    )
    assert "[not a link](nowhere.md)" in written
    assert "[other](other.md)" in (pages / "readme.md").read_text(encoding="utf-8")
    assert "print()" in (pages / "tool.md").read_text(encoding="utf-8") and (pages / "f.svg").exists()


@together("link", ["missing.md", "../../outside.md", "../notes.json"])
def test_a_link_that_the_site_cannot_follow_is_an_error(checkout: Path, pages: Path, link: str) -> None:
    (checkout / "notes.json").write_text("{}")
    (checkout / "docs" / "other.md").write_text(f"[x]({link})")
    with pytest.raises(ValueError, match=re.escape(link)):
        Site(checkout, pages).write()


def test_every_command_has_a_page_with_its_options_its_example_and_the_pages_that_explain_it(pages: Path) -> None:
    write_commands(ROOT, pages)
    overview = (pages / "commands.rst").read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        page = (pages / "commands" / f"{file_name(name)}.rst").read_text(encoding="utf-8")
        described = " ".join(re.findall(r"^\.\. option:: (.*)$", page, re.MULTILINE)).replace("[no-]", "")
        options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
        assert {one.opts[0] for one in options} <= set(re.split(r"[ ,]+", described)), name
        assert command.help.partition("Example: ")[2].strip() in page
        assert f"<commands/{file_name(name)}>" in overview and guides(name)
        for guide in guides(name):
            assert (ROOT / "docs" / f"{guide}.md").is_file() and f":doc:`/{site_name(f'docs/{guide}.md')}`" in page
    assert "default: 10" in (pages / "commands" / "search.rst").read_text(encoding="utf-8")
    groups = {name.split()[0] for name in COMMANDS}
    assert GUIDES.keys() <= COMMANDS.keys() | groups, "a guide of a command that does not exist"
    serve = (pages / "commands" / "serve.rst").read_text(encoding="utf-8")
    assert "docs/serve.md" in COMMANDS["serve"].help and "docs/serve.md" not in serve


def test_programs_of_a_folder_stand_below_its_page(checkout: Path, pages: Path) -> None:
    (checkout / "examples").mkdir()
    (checkout / "examples" / "README.md").write_text("# Examples\n\n[a](a_b.py)\n")
    for name in ("a_b.py", "unlinked.py"):
        (checkout / "examples" / name).write_text("print()\n")
    (checkout / NAVIGATION).write_text('[Start]\npages = ["docs/other.md", "examples/README.md", "README.md"]\n')
    Site(checkout, pages).write()
    text = (pages / "examples.md").read_text(encoding="utf-8")
    assert text.endswith("```{toctree}\n:hidden:\n\nexamples-a_b\n```\n")
    assert "toctree" not in (pages / "other.md").read_text(encoding="utf-8")


def test_special_characters_stay_as_they_are() -> None:
    assert to_rst("a *b* c_ |d|") == r"a \*b\* c\_ \|d\|"
    assert to_rst("`x*`s") == r"\ ``x*``\ s"
    assert to_rst("`Model` `embed`", {"Model", "embed"}) == r"\ :py:obj:`Model <mlxbert.Model>`\  \ ``embed``\ "


@together("name,text,problem", [
    ("a.html", '<a href="b.html">', "leads nowhere"),
    ("a.html", '<a href="#b">', "leads nowhere"),
    ("a.html", '<script src="https://example.org/a.js">', "loads"),
    ("a.html", '<link rel="stylesheet" href="//example.org/a.css">', "loads"),
    ("a.html", '<img srcset="a.png 1x, https://example.org/a.png 2x">', "loads"),
    ("a.html", '<p style="background: url(https://example.org/a.png)">', "loads"),
    ("a.html", "<style>@import 'https://example.org/a.css';</style>", "loads"),
    ("a.css", "@font-face { src: url('https://example.org/a.woff2') }", "loads"),
    ("a.svg", "<svg><style>p { src: url(https://example.org/a.woff) }</style></svg>", "loads"),
    ("a.js", 'fetch("https://example.org/a.json")', "loads"),
])  # fmt: skip
def test_a_built_site_with_a_fault_is_refused(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / "index.html").write_text('<a href="#x" id="x"><a href="https://example.org"><img src="data:,">')
    assert not [*problems(tmp_path, [], {})]
    (tmp_path / name).write_text(text)
    assert any(problem in found for found in problems(tmp_path, [], {}))
    (tmp_path / name).unlink()


def test_a_name_or_an_option_without_an_entry_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "models-list.html").write_text('<p id="cmdoption-mlxbert-models-list-json">')
    (tmp_path / "api.html").write_text('<p id="mlxbert.load">')
    assert not [*problems(tmp_path, ["load"], {"models list": ["--json"]})]
    found = [*problems(tmp_path, ["load", "save"], {"models list": ["--json", "--all"], "embed": ["--input"]})]
    assert re.findall(r"mlxbert\.save|--all|--input", " ".join(found)) == ["mlxbert.save", "--all", "--input"]


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.parametrize(("page", "text"), [
    (None, ""),
    ("other.md", "# Other\n\n## Part\n\n[x](index.md#nowhere)\n"),
    ("other.md", "# Other\n\n## Renamed\n"),
    ("third.md", "# Third\n"),
])  # fmt: skip
def test_a_broken_anchor_or_a_page_outside_of_the_navigation_ends_the_build(
    checkout: Path, pages: Path, tmp_path: Path, page: str | None, text: str
) -> None:
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module, reason="needs the extra docs")
    if page is not None:
        (checkout / "docs" / page).write_text(text)
    Site(checkout, pages).write()
    if page is None:
        render(pages, tmp_path / "site")
        assert not [*problems(tmp_path / "site", [], {})]
    else:
        with pytest.raises(SystemExit):
            render(pages, tmp_path / "site")


@pytest.mark.slow
def test_the_api_has_every_public_name_and_the_overloads_of_a_function(pages: Path) -> None:
    pytest.importorskip("griffe", reason="needs the extra docs")
    from website.api import Api

    Api(ROOT).write(pages)
    text = "".join(path.read_text(encoding="utf-8") for path in (pages / "api").glob("*.rst"))
    found = re.findall(r"^\.\. py:(?:function|class|exception|data):: (\w+)", text, re.MULTILINE)
    assert sorted(found) == sorted(mlxbert.__all__)  # type: ignore[attr-defined]
    (line,) = re.findall(r"^\.\. py:function:: fill_mask\(.*$", text, re.MULTILINE)
    assert "Iterable[" in line and line.endswith("-> FillMask | Iterator[FillMask] | Iterator[FillMask | Failure]")


MANUAL: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "man_pages.py"))
GROUPS = [name for name, command in PROGRAM.commands.items() if hasattr(command, "commands")]


@pytest.fixture(scope="module")
def manual() -> dict[str, str]:
    return MANUAL["pages"]()


def test_each_command_and_group_has_a_page_with_all_of_its_options(manual: dict[str, str]) -> None:
    names = [*COMMANDS, *GROUPS]
    assert {*manual} == {"mlxbert.1"} | {f"mlxbert-{name.replace(' ', '-')}.1" for name in names}
    for name, command in COMMANDS.items():
        text = manual[f"mlxbert-{name.replace(' ', '-')}.1"].replace("\\-", "-").replace("...", "…")
        for option in (option for option in command.params if not option.hidden):
            name = option.opts[0].removeprefix("--") if option.param_type_name == "option" else option.metavar
            assert name in text and " ".join((option.help or "").split(".")[0].split()[:2]) in text, (name, option.help)


def test_the_first_page_names_all_commands_and_pages_refer_to_pages(manual: dict[str, str]) -> None:
    for name in PROGRAM.commands:
        assert f"\\fB{name}\\fP".replace("-", "\\-") in manual["mlxbert.1"]
    for text in manual.values():
        also = text.replace("\\-", "-").partition(".SH SEE ALSO\n")[2].replace("\\fB", "").replace("\\fP", "")
        assert {f"{name}.1" for name in also.replace("(1)", "").replace(",", "").split()} <= {*manual}


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
    assert MANUAL["paragraph"](text) == roff


@pytest.mark.slow
@pytest.mark.weekly
def test_man_shows_the_pages_without_a_warning(manual: dict[str, str], tmp_path: Path) -> None:
    man, groff = shutil.which("man"), shutil.which("groff")
    if man is None or groff is None or b"--warnings" not in subprocess.run([man, "--help"], capture_output=True).stdout:
        pytest.skip("needs man-db and groff")
    for name, text in manual.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "MANWIDTH": "80", "MANPAGER": "cat", "MAN_KEEP_FORMATTING": ""}
    files = [str(tmp_path / name) for name in sorted(manual)]
    shown = subprocess.run([man, "--warnings", "-l", *files], env=environment, capture_output=True, check=True)
    assert shown.stderr == b""
    assert shown.stdout.count(b"SYNOPSIS") == len(manual)
    assert b"mlxbert-embed - Turn texts into vectors" in shown.stdout
