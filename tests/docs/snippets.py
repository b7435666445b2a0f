"""What a reader may copy into a shell: blocks and code of the pages, examples of the help, commands in hints."""

import ast
import re
import textwrap
from collections.abc import Iterator

from tests.docs.pages import DOCS, ROOT
from tests.helpers.commands import COMMANDS

# What the commands are, besides what the shell does itself: each is replaced by a program that notes its arguments.
_PROGRAMS = """
brew caffeinate cat cp curl git grep head jq kill launchctl mkdir mlx.launch mlxbert mv mypy paste pip podman
pre-commit printf pytest python python3 rm ruff sleep systemctl tail uv wait
"""
PROGRAMS = frozenset(_PROGRAMS.split())
PAGES = DOCS | {
    page: (ROOT / page).read_text(encoding="utf-8")
    for page in ("CONTRIBUTING.md", "benchmarks/README.md", "weights/builtin/README.md")
}
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`")
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'\n.*?^\1$", re.DOTALL | re.MULTILINE)
# Commands within a sentence end where it continues: before a comma, a semicolon, a colon or a parenthesis.
_SAID = re.compile(
    rf"(?:mlxbert (?:{'|'.join(sorted({name.split()[0] for name in COMMANDS}))})|(?:pip|brew|uv \w+) install)\b"
    r"[^`;\n]*?"
    r"(?=`|;|\n|\*\*|[,:)](?: |$)|$)"
)


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page that are for a shell, or may be: language (or nothing) and text."""
    found = [(language, textwrap.dedent(text)) for _, language, text in _BLOCK.findall(PAGES[page])]
    return [(language, text) for language, text in found if language in ("", "sh", "console")]


def is_shell(language: str, text: str) -> bool:
    """Whether a block holds commands: one without a language may be a drawing, or SQL."""
    return bool(language) or text.split()[0] in PROGRAMS


def of_page(page: str) -> Iterator[str]:
    """Blocks, lines after a prompt, commands and options in the text; those with `…` are not complete."""
    for language, text in blocks(page):
        if language == "console":
            yield from re.findall(r"^\$ (.*)$", text, re.MULTILINE)
        elif is_shell(language, text):
            yield text
    for code in _CODE.findall(_BLOCK.sub("", PAGES[page])):
        first, *rest = code.split()
        if "…" not in code and ((first in PROGRAMS and rest) or re.match("--?[a-z]", first)):
            yield code if first in PROGRAMS else f"mlxbert {code}"


def of_help() -> Iterator[str]:
    """The example of every command, and the commands that its help names."""
    for name, command in COMMANDS.items():
        assert "Example: " in command.help, name
        yield command.help.partition("Example: ")[2]
        yield from _commands(command.help)
        for parameter in command.params:
            yield from _commands(parameter.help or "")


def _commands(text: str) -> list[str]:
    return [code for code in _CODE.findall(text) if code.split()[0] in PROGRAMS]


def of_hints() -> Iterator[str]:
    """Commands in the strings of the source, such as hints; `VALUE` stands for what is filled in."""
    for folder in ("cli", "mlxbert", "weights"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            for text in _strings(ast.parse(source)) if re.search(r"(mlxbert|pip|brew|uv) ", source) else ():
                yield from (found.rstrip(" .") for found in _SAID.findall(text))


def _strings(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, without its docstrings and without the parts of f-strings."""
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            passed.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            passed |= set(node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in passed:
            yield node.value


def without_here_documents(text: str) -> str:
    """A snippet without the lines that are input of a command."""
    return _HERE_DOCUMENT.sub("", text)
