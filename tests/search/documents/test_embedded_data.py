"""Pasted pictures, keys and other data in texts: they are taken out, and words stay."""

import base64
import json
import re
from pathlib import Path
from random import Random

import pytest

from mlxbert.search.documents.document_kinds import read_documents
from mlxbert.search.documents.embedded_data import without_embedded_data
from tests.helpers.cases import together
from tests.search.documents.test_documents import headings, only

pytestmark = pytest.mark.usefixtures("here")


def picture(size: int) -> str:
    return base64.b64encode(Random(1).randbytes(size)).decode()


def lines(text: str, width: int = 76) -> list[str]:
    return re.findall(f".{{1,{width}}}", text)


def test_a_pasted_picture_is_not_text() -> None:
    found = only("a.md", f"# One\n\n![a plan](data:image/png;base64,{picture(600_000)}) below\n\n## Two\nlast words\n")
    assert found.text == "# One\n\n![a plan]() below\n\n## Two\nlast words\n"
    assert headings(found) == [(1, "One"), (2, "Two")] and found.first_line == 1
    assert [(problem.kind, "800 kB" in problem.reason) for problem in found.problems] == [("left out", True)]


KINDS = {
    "text": "one {} two",
    "code": 'x = "one {} two"',
    "rst": "one {} two",
    "html": "<p>one<pre>{}</pre>two",
    "mail": "Subject: s\n\none {} two",
    "notebook": json.dumps({"cells": [{"source": "one {} two"}]}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_is_left_out_of_every_kind(kind: str) -> None:
    for data in (f"data:image/gif;base64,{picture(60)}", picture(200), Random(1).randbytes(150).hex()):
        source = KINDS[kind].replace("{} two", f"{data} two").replace("{}<", f"{data}<")
        (found,) = read_documents("a", source.encode(), kind)
        assert data[-30:] not in found.text and "one" in found.text and "two" in found.text
        assert [problem.kind for problem in found.problems] == ["left out"]


def test_data_is_left_out_of_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": f"one two {picture(300)}", "id": 1}) + "\n")
    (found,) = read_documents(path, b"", "records")
    assert found.text == "one two \n\nid: 1" and found.problems


@together(
    "block",
    [
        ["-----BEGIN CERTIFICATE-----", *lines(picture(700), 64), "-----END CERTIFICATE-----"],
        ["KEY = (", *(f'    b"{line}"' for line in lines(picture(400))), ")"],
        [f"![](data:image/png;base64,{picture(57)}", *lines(picture(500)), ")"],
    ],
)  # fmt: skip
def test_lines_of_data_leave_their_line_ends(block: list[str]) -> None:
    found = only("a.md", "\n".join(["# One", *block, "# Two", "words"]))
    assert found.text.split("\n")[len(block) + 1 :] == ["# Two", "words"]
    assert headings(found) == [(1, "One"), (1, "Two")]
    assert len(found.text.replace("\n", "")) < 80


@together(
    "text",
    [
        "中文" * 500, "Donaudampfschifffahrt" * 20, "-" * 500, "_" * 300 + "=" * 300, "1234567890" * 40, "ACGT" * 100,
        "a" * 400, "https://example.org/" + "a-long-title-of-2024/" * 20, "/opt/some_long_folder1/" * 20,
        "https://click.example.org/f/" + picture(300) + "?q=1", "sha512: " + Random(1).randbytes(64).hex(),
        "ThisIsACamelCaseName2" * 20, "data:text/plain,hello", "data: none; data:,", "中文1a" * 200,
    ],
)  # fmt: skip
def test_long_words_addresses_and_hashes_stay(text: str) -> None:
    found = only("a.txt", f"one {text} two")
    assert (found.text, found.problems) == (f"one {text} two", ())


def test_a_heading_keeps_its_words_and_its_place() -> None:
    data = f"data:image/png;base64,{picture(500)}"
    found = only("a.md", f"{picture(500)}\n# Plan ![p]({data}) of it\nwords\n# {picture(400)}\n## Last\n{data}")
    assert headings(found)[0][1].startswith("Plan") and headings(found)[-1] == (2, "Last")
    assert all(len(text) < 30 for _, text in headings(found))
    page = only("a.html", f"<h1>{data}</h1><p>one</p><h2>Two</h2><p>two {data}</p><h2>{picture(500)}</h2>")
    assert headings(page) == [(2, "Two")]
    assert without_embedded_data(page) is page
