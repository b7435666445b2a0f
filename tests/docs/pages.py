"""The pages of the documentation, and what is on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
README = DOCS["README.md"]
_INSTALLS = re.compile(r"\b(pip|uv)\b")


def blocks(page: str) -> list[tuple[str, str]]:
    """The code blocks of a page: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", DOCS[page], flags=re.DOTALL | re.MULTILINE)


def installs(block: str) -> bool:
    """Whether a block installs packages, which tests do not do."""
    return _INSTALLS.search(block) is not None


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of a table of a page, which has `first` as its first heading."""
    _, found, rest = (ROOT / page).read_text(encoding="utf-8").partition(f"| {first} | ")
    assert found, f"{page} has no table {first!r}"
    lines = rest.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
