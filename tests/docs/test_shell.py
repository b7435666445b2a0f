"""Commands that readers copy do the same in zsh, the shell of a Mac, as in other shells.

An interactive zsh takes `#` for a word, fails at a pattern that matches no file, and removes the `!` of `!"`, after
which the quotes do not match.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.snippets import PAGES, PROGRAMS, blocks, is_shell, of_help, of_hints, of_page, without_here_documents
from tests.helpers.cases import together

SOURCES = [*PAGES, "help", "hints"]
# Notes its arguments and, of `cat`, the lines of a here-document. Folders are made, as later lines need them.
STUB = r"""#!/bin/sh
exec > "$NOTES/$$"
printf '%s\0' "${0##*/}" "$@"
case "${0##*/} $#" in
  "cat 0") /bin/cat ;;
  mkdir*) /bin/mkdir "$@" ;;
esac
"""
BUILTINS = "kill printf wait"  # of the shells, replaced as well
ZSH = f"unsetopt PROMPT_SP MONITOR; setopt BANG_HIST; PS1= PS2=; disable {BUILTINS}; exec 2> errors\n"
BASH = f"enable -n {BUILTINS}\n"
WRONG = {
    "a comment": "mlxbert search question notes  # the first time",
    "a comment with a command": "mlxbert index notes  # reads; later only changes",
    "an exclamation mark before a quote": 'mlxbert tokenize "Hello!" --pair "Bye."',
    "a pattern": "pip install .[test]",
    "a pattern in a variable": "mlxbert fill-mask [MASK]",
    "the name of a program": "mlxbert classify =mlxbert",
}


def snippets(source: str) -> Iterator[str]:
    return of_page(source) if source in PAGES else of_help() if source == "help" else of_hints()


def test_blocks_without_a_language_that_hold_no_commands_are_known() -> None:
    """So that none is left out because it begins with a program that is not listed."""
    first = [text.split()[0] for page in PAGES for language, text in blocks(page) if not is_shell(language, text)]
    printed = ["0.30", "200", "2000", "400", "model", "ten", "text", "…"]
    installed = ["CONDA_SUBDIR=osx-arm64", "llama-server", "ollama", "pdftotext", "ray"]
    not_run = [*installed, "CREATE", "FROM", "rows"]  # SQL and a Modelfile
    assert {*first} == {*printed, *not_run}


@together("source", SOURCES)
def test_commands_need_nothing_that_zsh_reads_differently(source: str) -> None:
    for snippet in snippets(source):
        assert not problems(snippet), snippet


def problems(snippet: str) -> list[str]:
    """What an interactive zsh reads differently from a POSIX shell."""
    lexer = shlex.shlex(without_here_documents(snippet), punctuation_chars=True)  # keeps the quotes of words
    lexer.commenters = ""
    lexer.wordchars += "$%{}[]#!^@+:,…"
    words = list(lexer)
    bare = [re.sub(r"'[^']*'|\"[^\"]*\"", "", word) for word in words]
    found = ["a comment"] * any(word.startswith("#") for word in bare)
    found += ["a pattern"] * any(set("*?[]") & set(word) for word in bare)
    found += ["a name after ="] * any(word.startswith("=") for word in words)
    return found + ["history"] * any('!"' in word or re.search("![^ =]", word.strip("'")) for word in words)


@together("wrong", WRONG)
def test_what_zsh_reads_differently_is_noticed(wrong: str) -> None:
    assert problems(WRONG[wrong])


needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A home with a virtual environment, and a stub for each program."""
    for name in (".bin", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    for name in PROGRAMS:
        stub = tmp_path / ".bin" / name
        stub.write_text(STUB)
        stub.chmod(0o755)
    return tmp_path


def arguments(folder: Path, *shell: str, script: str) -> tuple[list[bytes], str]:
    """The arguments of all programs that a shell starts for a script on its stdin, and what it prints."""
    notes = folder / ".notes"
    notes.mkdir()
    environment = {"PATH": str(folder / ".bin"), "HOME": str(folder), "NOTES": str(notes), "TERM": "dumb"}
    where = shutil.which(shell[0])
    assert where is not None
    done = subprocess.run(
        [where, *shell[1:]], input=f"{script}enable wait\nwait\n".encode(),  # for the commands in the background
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30,
    )  # fmt: skip
    found = sorted(path.read_bytes() for path in notes.iterdir())
    shutil.rmtree(notes)
    return found, done.stdout.decode(errors="replace")


def in_zsh(folder: Path, snippet: str) -> tuple[list[bytes], str]:
    """What an interactive zsh starts when the lines of a snippet are typed, and what it complains about."""
    found, printed = arguments(folder, "zsh", "-fi", script=f"{ZSH}{snippet}\n")
    errors = folder / "errors"
    said = errors.read_text(errors="replace")
    errors.unlink()
    return found, "".join(re.findall("zsh: .*", printed + said))


@needs_zsh
@pytest.mark.slow
@pytest.mark.sampled("README.md")
@pytest.mark.parametrize("source", SOURCES)
def test_commands_get_the_same_arguments_in_an_interactive_zsh(source: str, folder: Path) -> None:
    for snippet in dict.fromkeys(snippets(source)):
        expected, said = arguments(folder, "bash", "-s", script=f"{BASH}{snippet}\n")
        assert expected and not said, f"{snippet}\n{said}"
        assert in_zsh(folder, snippet) == (expected, ""), snippet


@needs_zsh
@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_zsh_reads_them_differently(wrong: str, folder: Path) -> None:
    expected, _ = arguments(folder, "bash", "-s", script=f"{BASH}{WRONG[wrong]}\n")
    assert in_zsh(folder, WRONG[wrong]) != (expected, "")
