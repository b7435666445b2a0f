"""The interactive search: what is on its screen, what its keys do, and what it opens."""

import contextlib
import io
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.output.vt100 import Vt100_Output
from rich.cells import cell_len

from mlxbert.errors import InputError
from mlxbert.other_libraries import install_command
from mlxbert.search.commands import interactive_search as module
from mlxbert.search.commands.interactive_search import SearchScreen, SearchThread, editor_command, open_in_editor
from mlxbert.search.hit import Hit, SimilarPassage
from mlxbert.search.index import Index
from mlxbert.search.views import HitList
from tests.helpers.cases import together
from tests.helpers.program import call, command, environment, terminal
from tests.helpers.screen import Screen

WIDTHS = (50, 120)
ENTER, ESCAPE, INTERRUPT, UP, DOWN = "\r", "\x1b", "\x03", "\x1b[A", "\x1b[B"


def hit(number: int, text: str = "the cat sat on the mat", path: str | None = None, title: str = "Pets") -> Hit:
    path = f"/notes/{number}.md" if path is None else path
    return Hit("cat", number, 1.0, path or None, "" if path else f"r{number}", 10, 12, None, title, text, {})


HITS = [hit(number, f"Sentence {number} is not it.\nThe cat {number} sat.") for number in range(1, 9)]


class FakeIndex:
    """An index whose searches give the same hits."""

    model = None

    def close(self) -> None:
        pass


@pytest.fixture
def pipe() -> Iterator[PipeInput]:
    with create_pipe_input() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)


Find = Callable[[Index, str], list[Hit]]
Step = tuple[Callable[[SearchScreen], bool], str]


def show(
    pipe: PipeInput, steps: list[Step], find: Find = lambda index, query: HITS, width: int = 80
) -> tuple[Hit | None, SearchScreen, str]:
    """Shows the screen, and types each text as soon as its condition holds; returns the result and what was drawn."""
    drawn = io.StringIO()
    output = Vt100_Output(drawn, lambda: Size(rows=12, columns=width), term="xterm-256color", enable_cpr=False)
    thread = SearchThread(FakeIndex, find)  # type: ignore[arg-type]
    screen = SearchScreen(thread, input=pipe, output=output, refresh_interval=0.02)
    steps = [*steps]

    def rendered(_: object) -> None:
        if steps and steps[0][0](screen):
            pipe.send_text(steps.pop(0)[1])

    screen.app.after_render += rendered
    hanging = threading.Timer(20, lambda: pipe.send_text(INTERRUPT))
    hanging.start()
    try:
        return screen.run(), screen, drawn.getvalue()
    finally:
        hanging.cancel()
        thread.close()
        assert not steps


def always(screen: SearchScreen) -> bool:
    return True


def has_hits(screen: SearchScreen) -> bool:
    return bool(screen.list.hits)


def selects(number: int) -> Callable[[SearchScreen], bool]:
    return lambda screen: bool(screen.list.hits) and screen.list.selected == number


def text_of(lines: list[Any]) -> list[str]:
    return ["".join(text for _, text in line) for line in lines]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("height", [3, 10])
def test_the_selected_hit_is_on_the_screen_with_more_of_its_passage(width: int, height: int) -> None:
    listed = HitList()
    listed.show("cat", [hit(number, "One more sentence. " * 20 + "The cat is here. " * 20) for number in range(1, 6)])
    for number in [*range(5), *reversed(range(5))]:
        lines = text_of(listed.lines(width, height))
        assert len(lines) <= height and all(cell_len(line) <= width for line in lines[1:] if line[:1] != ">")
        (place,) = (place for place, line in enumerate(lines) if line.startswith("> "))
        assert lines[place] == f"> /notes/{listed.selected + 1}.md:10  Pets" and "cat" in "".join(lines[place:])
        shown = next((end for end, line in enumerate(lines[place + 1 :]) if "/notes/" in line), None)
        assert shown is None or shown > 1
        listed.move(1 if number < 4 else -1)
    listed.move(-100)
    assert listed.selected == 0
    listed.move(100)
    assert listed.selected == 4


@pytest.mark.parametrize("width", WIDTHS)
def test_names_and_passages_do_not_steer_the_terminal(width: int) -> None:
    listed = HitList()
    odd = "\x1b[5A\u202e\n\r\x07\x9b"
    long = "/a folder with a long name" * 9
    listed.show(
        "cat \x1b[5A", [hit(1, f"{odd} cat {odd}", f"{long}/x{odd}.md", f"T{odd}"), hit(2, "猫" * 200, "", "猫")]
    )
    lines = text_of(listed.lines(width, 40))
    assert all(line.isprintable() for line in lines) and "␛[5A" in lines[0] and lines[0].startswith("> …")
    assert any(line.startswith("  r2:10  猫") for line in lines)
    assert cell_len(lines[0].split("  ")[0]) <= width
    listed.show("cat", [hit(1, title="a long title " * 20)])
    (head,) = [line for line in text_of(listed.lines(width, 9)) if line.startswith("> ")]
    assert head.startswith("> /notes/1.md:10  a long title") and head.endswith("…") and cell_len(head) == width
    assert HitList().lines(width, 5) == []


def test_equal_texts_and_that_nothing_is_close_are_said() -> None:
    listed = HitList()
    duplicates = (SimilarPassage(None, "r1", None, None, 7, "cat"),) * 9
    listed.show("cat", [replace(hit(1), is_close=True, duplicates=duplicates), replace(hit(2), is_close=False)])
    assert text_of(listed.lines(80, 20))[0] == "> /notes/1.md:10  +9 duplicates  Pets"
    assert listed.message == "2 passages"
    listed.show("cat", [replace(hit(2), is_close=False)])
    assert listed.message == "nothing close; the nearest"
    listed.show("cat", [])
    assert listed.message == "nothing was found"


def test_it_searches_as_one_types_and_enter_gives_the_place(pipe: PipeInput) -> None:
    queries: list[str] = []

    def find(_: Index, query: str) -> list[Hit]:
        queries.append(query)
        return HITS

    result, screen, drawn = show(pipe, [(always, "cat"), (has_hits, DOWN + DOWN + UP), (selects(1), ENTER)], find)
    assert result is HITS[1] and queries == ["cat"]  # not once for each letter
    assert screen.list.line_of(HITS[1]) == 11 and "8 passages" in drawn


@pytest.mark.parametrize("key", [ESCAPE, INTERRUPT, INTERRUPT + ENTER + INTERRUPT])
def test_keys_leave(pipe: PipeInput, key: str) -> None:
    assert show(pipe, [(always, ENTER + "cat"), (has_hits, key)])[0] is None


def test_the_end_of_the_input_leaves(pipe: PipeInput) -> None:
    thread = SearchThread(FakeIndex, lambda index, query: HITS)  # type: ignore[arg-type]
    screen = SearchScreen(thread, input=pipe, output=DummyOutput())
    pipe.close()
    assert screen.run() is None
    thread.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_screen_fits(pipe: PipeInput, width: int) -> None:
    odd = [hit(1, "the cat \x1b[5A", "/a\x1b[5A.md"), *HITS]
    _, _, drawn = show(pipe, [(always, "cat"), (has_hits, ESCAPE)], lambda index, query: odd, width)
    assert "\x1b[5A" not in drawn and "␛[5A.md" in drawn
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()>=][A-Z0-9]?", "", drawn)
    assert "search: " in plain and "Esc leaves" in plain and "9 passages" in plain


@pytest.mark.parametrize("width", [10, 30])
def test_the_way_out_is_always_said(pipe: PipeInput, width: int) -> None:
    far = [replace(one, is_close=False) for one in HITS]
    _, screen, _ = show(pipe, [(always, "cat"), (has_hits, ESCAPE)], lambda index, query: far, width)
    status = screen._status()[0][1]
    assert "Esc" in status and cell_len(status) <= width


def test_what_is_pasted_is_one_line(pipe: PipeInput) -> None:
    queries = list[str]()

    def find(index: Index, query: str) -> list[Hit]:
        queries.append(query)
        return HITS

    pasted = "\x1b[200~first\r\nsecond\tline\n\x1b[201~"
    show(pipe, [(always, pasted), (has_hits, ESCAPE)], find)
    assert queries == ["first second line"]


def test_typing_does_not_wait_for_a_search(pipe: PipeInput) -> None:
    typed, queries = threading.Event(), list[str]()

    def find(_: Index, query: str) -> list[Hit]:
        queries.append(query)
        assert query != "c" or typed.wait(10)
        return HITS if query == "cats" else []

    def took(text: str) -> Callable[[SearchScreen], bool]:
        return lambda screen: screen._buffer.text == text and bool(queries)

    def finish(screen: SearchScreen) -> bool:
        if screen._buffer.text == "cats":
            typed.set()
        return has_hits(screen)

    result, *_ = show(pipe, [(always, "c"), (took("c"), "at"), (took("cat"), "s"), (finish, ENTER)], find)
    assert result is HITS[0] and queries[0] == "c" and queries[-1] == "cats"


def test_what_is_wrong_with_a_search_is_shown(pipe: PipeInput) -> None:
    def find(_: Index, query: str) -> list[Hit]:
        raise InputError(f"no {query}")

    _, screen, drawn = show(pipe, [(always, "cat"), (lambda screen: "no " in screen.list.message, ESCAPE)], find)
    assert screen.list.message == "no cat" and "no cat" in drawn


def test_enter_opens_the_editor_and_comes_back(pipe: PipeInput, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, str, int | None]] = []
    monkeypatch.setenv("EDITOR", "vim -R")

    def open_fake(*given: Any) -> str:
        opened.append(given)
        return "done"

    monkeypatch.setattr(module, "open_in_editor", open_fake)
    result, screen, _ = show(pipe, [(always, "cat"), (has_hits, ENTER), (lambda _: bool(opened), ESCAPE)])
    assert result is None and opened == [("vim -R", "/notes/1.md", 11)] and screen.list.hits


@together(
    ("editor", "line", "expected"),
    [
        ("vim", 7, ["vim", "+7", "/a b.md"]),
        ("/usr/bin/nvim -R", 7, ["/usr/bin/nvim", "-R", "+7", "/a b.md"]),
        ("emacs -nw", 7, ["emacs", "-nw", "+7", "/a b.md"]),
        ("nano", None, ["nano", "/a b.md"]),
        ("code --wait", 7, ["code", "--wait", "--goto", "/a b.md:7"]),
        ("code", None, ["code", "/a b.md"]),
        ("'my editor'", 7, ["my editor", "/a b.md"]),
    ],
)
def test_editors_get_the_line_in_their_way(editor: str, line: int | None, expected: list[str]) -> None:
    assert editor_command(editor, "/a b.md", line) == expected


def test_what_keeps_an_editor_from_opening_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.md"
    file.write_text("x")
    assert "gone" in open_in_editor("vim", str(tmp_path / "none"), 1)
    assert "quotation" in open_in_editor("vim '", str(file), 1)
    for status, said in ((0, ""), (3, "vim ended with status 3")):
        monkeypatch.setattr(
            subprocess, "run", lambda words, status=status, **_: subprocess.CompletedProcess(words, status)
        )
        assert open_in_editor("vim", str(file), 1) == said

    def missing(words: list[str], **_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", words[0])

    monkeypatch.setattr(subprocess, "run", missing)
    assert open_in_editor("no-such -R", str(file), 1).startswith("EDITOR is 'no-such -R', ")


def test_without_a_query_only_a_terminal_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = ("stdin", "stdout", "stderr")
    call("search").fails(2, "QUERY is missing", "for example: mlxbert search ")
    call("search", "", str(tmp_path)).fails(2, "QUERY is missing")
    assert "QUERY is missing" in terminal("search", "--json", on=everywhere)[1]
    assert "--answer works only with a query" in terminal("search", "--answer", "x", on=everywhere)[1]
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    _, shown = terminal("search", on=everywhere)
    assert "prompt_toolkit is not installed" in shown and install_command("interactive") in shown


@pytest.mark.slow
def test_a_real_terminal_shows_and_opens_what_is_found(tmp_path: Path, small: str) -> None:
    (tmp_path / "notes").mkdir()
    for name, text in (("a.md", "the cat sat\n"), ("b.md", "w1 w2\n\nparis w3\n")):
        (tmp_path / "notes" / name).write_text(text)
    opened = tmp_path / "opened"
    editor = tmp_path / "vim"
    editor.write_text(f'#!/bin/sh\necho "$@" > {opened}\n')
    editor.chmod(0o755)
    variables = {"MLXBERT_DATA": str(tmp_path / "data"), "MLXBERT_MODEL": small, "TERM": "xterm", "EDITOR": str(editor)}
    with Screen() as screen:
        running = subprocess.Popen(
            command("search", "", str(tmp_path / "notes")), env=environment(**variables), stdin=screen.inner,
            stdout=screen.inner, stderr=screen.inner,
        )  # fmt: skip
        try:
            screen.wait_for(b"search:")
            screen.type(b"paris")
            screen.wait_for(b"b.md:")  # the number of the line may be drawn apart
            screen.type(b"\r")
            while not opened.exists() or not opened.read_text().endswith("\n"):
                assert running.poll() is None
                time.sleep(0.01)
            assert opened.read_text() == f"+3 {tmp_path}/notes/b.md\n"
            for _ in range(6):  # a key is lost while the terminal is handed back by the editor
                screen.type(b"\x03")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    assert running.wait(10) == 0
                    break
            assert running.poll() == 0
        finally:
            running.kill()
        assert b"Traceback" not in screen.shown()
