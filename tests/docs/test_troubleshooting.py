"""The page on troubleshooting quotes what the program prints."""

import re

import pytest

from tests.docs.pages import DOCS, ROOT

PAGE = DOCS["docs/troubleshooting.md"]
QUOTED = re.compile(r"^\*\*.+?\*\*", re.MULTILINE)  # what is explained, at the beginning of a paragraph


@pytest.mark.slow  # reads all of the source
def test_what_the_page_quotes_is_printed() -> None:
    files = [path for folder in ("cli", "mlxbert", "weights") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(re.sub(r"{[^{}]*}", "…", path.read_text(encoding="utf-8")) for path in files)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # strings that continue on the next line
    quoted = [text for start in QUOTED.findall(PAGE) for text in re.findall("`([^`]+)`", start)]
    assert len(quoted) > 30
    assert not [text for text in quoted if not _pattern(text).search(source)]


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern for a text, in which `…` stands for anything."""
    return re.compile(".*".join(re.escape(part.strip()) for part in text.split("…") if part.strip()))
