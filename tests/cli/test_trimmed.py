"""Lines of tables in a pipe or a file do not end with spaces."""

import io

import pytest
from rich.table import Table
from rich.text import Text

from mlxbert.cli.views.rich_console import Console, Trim
from tests.helpers.program import call
from tests.helpers.rooms import needs


@pytest.mark.parametrize("colours", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("tokenize", "hello world", "--no-json"), ("models", "list", "--no-json"), ("help", "embed"),
        ("inspect", "builtin", "--no-json"), pytest.param(("attention", "a b", "--no-json"), marks=needs("explore")),
    ],
)  # fmt: skip
def test_no_line_ends_with_spaces(arguments: tuple[str, ...], colours: str) -> None:
    variables = {"FORCE_COLOR": colours} if colours else {}
    outcome = call(*arguments, **variables)  # type: ignore[arg-type]
    lines = Text.from_ansi(outcome.out).plain.split("\n")
    assert outcome.status == 0 and len(lines) > 2
    if arguments[0] != "attention" or not colours:  # whose squares are spaces with a background
        assert not [line for line in lines if line.endswith(" ")]


def printed(*shown: object, **how: object) -> str:
    file = io.StringIO()
    screen = Console(file=file, width=12, **how)  # type: ignore[arg-type]
    screen.push_render_hook(Trim())
    for one in shown:
        screen.print(one)
    return file.getvalue()


def test_what_is_seen_is_kept() -> None:
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column()
    table.add_row("a", "b")
    table.add_row("", "")
    table.add_row("  c", "")
    assert printed(table) == " a    b\n\n   c\n"
    assert printed("a  ", Text("b c  \n\n d "), Text("e ", end="")) == "a\nb c\n\n d\ne\n"
    assert printed(Text("  ", "on red"), color_system="256", force_terminal=True).count("  ") == 1
    assert printed(Text("  ", "on red"), color_system=None) == "\n"
