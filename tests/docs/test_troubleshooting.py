"""The page on troubleshooting has a place for every hint of the source, and quotes what the program prints."""

import ast
import re
import runpy
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT

PAGE = DOCS["docs/troubleshooting.md"]
QUOTED = re.compile(r"^\*\*.+?\*\*", re.MULTILINE)  # what is explained, at the beginning of a paragraph

pytestmark = pytest.mark.slow  # reads all of the source


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/hints_table.py"))


def test_the_page_has_every_hint_of_the_source(script: dict[str, Any]) -> None:
    assert script["written"](PAGE) == PAGE, "python scripts/hints_table.py updates the page"
    listed = set(re.findall(r"<!-- hints: (\w+) -->", PAGE))
    assert {script["theme"](hint) for hint in script["hints"]()[0]} == listed


def test_hints_are_found_in_all_their_forms(script: dict[str, Any]) -> None:
    """One of each: a constant, a local name, a function, a default, a log, a pair, an option of pip."""
    texts = {hint.text for hint in script["hints"]()[0]}
    expected = {
        "download the model again",
        "--overwrite replaces it",
        "the folder … does not exist",
        "split the text into several records",
        "… in the middle of a word (the first in …), so check that offsets count code points",
        "use the original model, from which this file was converted",
        'pip install "pyarrow>=17"',
        "run `mlxbert models download … --revision …` while online",
    }
    assert expected <= texts


def test_nothing_else_holds_the_words_of_a_hint(script: dict[str, Any]) -> None:
    """Expressions without a row pass on a hint: they are names, attributes, items, or calls of what returns one."""
    allowed = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BoolOp, ast.IfExp)
    for expression in script["hints"]()[1]:
        words = [part.value for part in ast.walk(expression) if isinstance(part, ast.Constant)]
        assert isinstance(expression, allowed) and not [one for one in words if " " in str(one)], ast.unparse(
            expression
        )


def test_what_the_page_quotes_is_printed(script: dict[str, Any]) -> None:
    rows = "\n".join(f"{hint.message}\n{hint.text}" for hint in script["hints"]()[0])
    source = "\n".join(re.sub(r"{[^{}]*}", "…", path.read_text(encoding="utf-8")) for path in _files())
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # strings that continue on the next line
    explained = PAGE.partition("## All hints")[0]
    quoted = [text for start in QUOTED.findall(explained) for text in re.findall("`([^`]+)`", start)]
    assert len(quoted) > 40
    assert not [text for text in quoted if not (_pattern(text).search(rows) or _pattern(text).search(source))]


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern for a text, in which `…` stands for anything."""
    return re.compile(".*".join(re.escape(part.strip()) for part in text.split("…") if part.strip()))


def _files() -> list[Any]:
    return [path for folder in ("cli", "mlxbert", "weights") for path in (ROOT / folder).rglob("*.py")]
