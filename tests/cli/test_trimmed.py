"""Lines of tables in a pipe or a file do not end with spaces."""

import io

from rich.table import Table
from rich.text import Text

from mlxbert.cli.views.rich_console import Console, Trim
from tests.helpers.cases import together
from tests.helpers.program import call


@together("colours", [{}, {"FORCE_COLOR": "1"}])
@together("arguments", [("tokenize", "hello world", "--no-json"), ("help", "embed")])
def test_no_line_ends_with_spaces(arguments: tuple[str, ...], colours: dict[str, str]) -> None:
    outcome = call(*arguments, **colours)  # type: ignore[arg-type]
    lines = Text.from_ansi(outcome.out).plain.split("\n")
    assert outcome.status == 0 and len(lines) > 2
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
