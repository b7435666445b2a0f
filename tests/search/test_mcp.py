"""An index as an assistant sees it: in this process, and with the SDK's own client over the pipes of a real one."""

import asyncio
import dataclasses
import functools
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError

import mlxbert.search.mcp as module
from mlxbert.errors import ArgumentError, BusyError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.search.index import Index, open_index
from mlxbert.search.mcp import Answer, IndexTools, Work, make_server, serve
from tests.helpers.cases import together
from tests.helpers.program import PROGRAM, TIMEOUT, call, command, environment, process, tiny_model

NOTEBOOK: dict[str, Any] = {
    "cells": [{"cell_type": "markdown", "metadata": {}, "source": ["# Heating\n", "Radiators are warm in winter."]}],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}
ODD = "odd\udcff.txt" if sys.platform == "linux" else "odd.txt"  # a Mac refuses it
SHOWN = ODD.replace("\udcff", "\ufffd")
NOTES = {
    "refunds.md": "# Refunds\n\nCustomers get their money back within 30 days.\n\n" + "We are open.\n\n" * 60,
    "house/boiler.txt": "\n\nThe boiler is behind the green door.\n",
    "house/empty.txt": "",
    "house/page.ipynb": json.dumps(NOTEBOOK),
    ODD: "The gate has a code.\n",
}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def lines(*messages: dict[str, Any]) -> bytes:
    numbered = [{"jsonrpc": "2.0", "id": number} | message for number, message in enumerate(messages, 1)]
    return b"".join(json.dumps(message).encode() + b"\n" for message in numbered)


INITIALIZE = {"method": "initialize", "params": HELLO}


def write_notes(folder: Path) -> Path:
    """Notes, and what lies next to them: a secret, to which a link among the notes leads."""
    for name, text in NOTES.items():
        path = folder / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "private").mkdir()
    (folder / "private" / "secret.txt").write_text("The code of the gate is 4711.\n")
    (folder / "notes" / "link.txt").symlink_to(folder / "private" / "secret.txt")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_notes(tmp_path_factory.mktemp("mcp"))


@pytest.fixture(scope="module")
def index(folder: Path) -> Iterator[Index]:
    """Of both folders, and of a record that is in no file."""
    model = str(tiny_model(folder / "tiny"))
    with open_index(folder / "index.db", model=model, paths=[folder / "notes", folder / "private"]) as index:
        assert [*index.update()]
        assert index.add([{"id": "record", "text": "The gate is painted blue."}]) == 1
        yield index


@pytest.fixture(scope="module")
def served(index: Index, folder: Path) -> IndexTools:
    return IndexTools(index, [str(folder / "notes")])


def texts(found: module.FoundPassages) -> list[str]:
    return [one.text for one in found.passages]


def test_a_search_gives_passages_of_some_folders_that_say_where_they_are(served: IndexTools, folder: Path) -> None:
    first = served.search('"green door"').passages[0]
    assert (first.path, first.first_line) == (str(folder / "notes/house/boiler.txt"), 3)
    assert first.score is not None
    assert str(first).startswith(f"{first.path}:3 | chunk {first.chunk}\n{first.text}")
    assert served.search("money back", mode="words").passages[0].title == "Refunds"
    assert str(served.search("zebra", mode="words")) == "nothing was found"
    assert len(served.search("the", top_k=2).passages) == 2
    assert all(str(one.path).endswith(".txt") for one in served.search("open", where=["path=*.txt"]).passages)
    for path in ("house", "house/", "./house", "notes/house", str(folder / "notes/house"), "notes/../notes/house"):
        found = served.search("the door", paths=[path]).passages
        assert found and all(str(one.path).startswith(str(folder / "notes/house")) for one in found)


def test_only_what_is_shown_is_found(served: IndexTools, index: Index, folder: Path) -> None:
    for mode in ("hybrid", "words", "vectors"):
        assert not any("4711" in text or "blue" in text for text in texts(served.search("code of the gate", 100, mode)))
    everything = IndexTools(index)
    assert {"The code of the gate is 4711.", "The gate is painted blue."} <= {*texts(everything.search("gate", 100))}
    for found in everything.search("gate", 100).passages:
        if found.path is None or "private" in found.path:
            with pytest.raises(ArgumentError, match=rf"`chunk` is {found.chunk}, expected"):
                served.read(found.chunk)
            assert found.text in everything.read(found.chunk).passages[0].text
    assert everything.read(path="secret.txt").passages[0].text == "The code of the gate is 4711."
    assert served.list().total == len(NOTES)


@together(
    "path",
    ["../private/secret.txt", "private/secret.txt", "link.txt", "secret.txt", "house/../../private/secret.txt",
     "/etc/passwd",
     "/", "..", ".", "", "house", "nothing.txt", "boiler.txt\0", "~/notes", "x" * 10**5],
)  # fmt: skip
def test_what_is_no_file_of_the_index_is_neither_read_nor_searched(served: IndexTools, folder: Path, path: str) -> None:
    for one in (path, str(folder / "notes" / path)):
        with pytest.raises(ArgumentError, match=r"^`path` is "):
            served.read(path=one)
    for outside in ("/", "..", "../private", "/etc", "house/../../private"):
        with pytest.raises(ArgumentError, match=r"^`path` is .*, expected a path under"):
            served.search("gate", paths=["house", outside])


def test_a_passage_is_read_with_what_stands_around_it(served: IndexTools, folder: Path) -> None:
    path = "refunds.md"
    alone: Any = served.read(path=path, line=60, around=0).passages[0]
    assert alone.first_line <= 60 <= alone.last_line
    assert texts(served.read(chunk=alone.chunk, around=0)) == [alone.text]
    around: Any = served.read(chunk=alone.chunk, around=1).passages[0]
    assert around.first_line < alone.first_line < alone.last_line < around.last_line
    text = (folder / "notes" / path).read_text().split("\n")
    assert around.text.split("\n") == text[around.first_line - 1 : around.last_line]
    assert served.read(path=path, line=10**12).passages[0].last_line == 123  # the last line with a text
    assert served.read(path="house/boiler.txt").passages[0].first_line == 3
    assert served.read(path="house/page.ipynb", line=7).passages[0].title == "Heating"


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Callable[..., IndexTools]]:
    """Opens an index of notes, which are then changed."""
    folder = write_notes(tmp_path)
    with open_index(tmp_path / "i.db", model=str(tiny_model(tmp_path / "tiny")), paths=[folder / "notes"]) as index:
        assert [*index.update()]
        for number in range(30):  # close behind the best passage
            (folder / f"notes/gone{number}.txt").write_text(f"The boiler is behind the green door. {number}\n")
        assert [*index.update()]
        yield lambda update=index.update: IndexTools(index, [str(folder / "notes")], update)


def test_what_is_gone_is_neither_found_nor_read_nor_listed(changing: Callable[..., IndexTools], tmp_path: Path) -> None:
    served, notes = changing(), tmp_path / "notes"
    chunk = served.search("gone0 0", paths=["gone0.txt"]).passages[0].chunk
    for file in notes.glob("gone*.txt"):
        file.unlink()
    found = served.search("behind the green door", top_k=4, mode="words").passages
    assert found[0].path == str(notes / "house/boiler.txt") and not any(
        Path(one.path or "").name.startswith("gone") for one in found
    )
    assert {one.path for one in served.search("gate", top_k=4).passages} == {
        one.path for one in served.search("gate", 100).passages
    }
    assert served.list().total == len(NOTES)
    for arguments in ({"chunk": chunk}, {"path": "gone0.txt"}):
        with pytest.raises(ArgumentError):
            served.read(**arguments)
    assert "gone0.txt" in str(changing(None).read(chunk=chunk))  # served as it is


def test_a_copy_of_what_is_gone_is_shown_with_its_own_text(
    changing: Callable[..., IndexTools], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BETWEEN", 0.0)
    served, notes = changing(), tmp_path / "notes"
    (notes / "first.md").write_text("THE TANDEM IS HERE")
    (notes / "second.md").write_text("\n\nthe tandem is here.")
    served.refresh(30.0)
    (first,) = served.search("tandem", mode="words").passages
    (notes / Path(str(first.path)).name).unlink()
    later = IndexTools(served._index, [str(notes)], lambda: iter(()))  # the index still has the file
    (found,) = later.search("tandem", mode="words").passages
    text = Path(str(found.path)).read_text()
    assert found.path != first.path and found.text in text and found.text != first.text
    assert found.first_line is not None and text.split("\n")[found.first_line - 1] in found.text


def test_what_changes_is_shown_after_a_step_of_an_update(
    changing: Callable[..., IndexTools], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BETWEEN", 0.0)
    served, notes = changing(), tmp_path / "notes"
    (notes / "house/boiler.txt").write_text("The bicycle is in the cellar.\n")
    (notes / "gone0.txt").unlink()
    served.refresh(30.0)
    assert not served.updating and served.search("bicycle", mode="words").passages[0].path == str(
        notes / "house/boiler.txt"
    )
    assert changing(None).list().total == len(NOTES) + 29
    (notes / "gone1.txt").write_text("The tandem is in the cellar.\n")
    served.refresh(0.0)  # a single step; a search between two steps is answered
    steps = 1
    while served.updating:
        assert served.search("green door", mode="words").passages
        served.refresh(0.0)
        steps += 1
    assert steps > 3 and served.search("tandem", mode="words").passages[0].path == str(notes / "gone1.txt")


def test_updates_are_not_made_more_often_than_needed(changing: Callable[..., IndexTools]) -> None:
    count = 0

    def update() -> Iterator[Any]:
        nonlocal count
        count += 1
        if count == 1:
            raise BusyError("another process")
        raise MlxbertError("the folder is gone")
        yield

    served = changing(update)
    for _ in range(3):
        served.refresh(1.0)
    assert count == 0  # the index has just been opened
    for expected in (1, 2, 3):
        served._finished = 0.0
        served.refresh(1.0)
        served.refresh(1.0)
        assert count == expected and not served.updating
    changing(None).refresh(1.0)


def test_files_are_listed_by_pattern_and_may_have_names_that_are_not_utf_8(served: IndexTools, folder: Path) -> None:
    notes = folder / "notes"
    assert served.list("*.md").files == [str(notes / "refunds.md")]
    inside = [str(notes / name) for name in sorted(NOTES) if name.startswith("house/")]
    assert served.list("house/*").files == inside
    assert served.list(f"{notes}/h*").total == 3
    cut = served.list(limit=2)
    assert (len(cut.files), cut.total) == (2, len(NOTES))
    assert str(cut).endswith("\n2 of 5 files")
    assert served.list("[").total == 0
    (name,) = served.list("odd*").files
    assert name == f"{folder}/notes/{SHOWN}"
    assert texts(served.read(path=name)) == ["The gate has a code."]


# What is said of arguments of each tool; a search has a query.
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "search": [
        ({"top_k": 0}, "`top_k` is 0, expected"), ({"top_k": 10**9}, "`top_k` is 1000000000, expected"),
        ({"top_k": -(10**5000)}, "expected"), ({"top_k": "many"}, "many"), ({"top_k": None}, "valid integer"),
        ({"mode": "x"}, "'hybrid', 'vectors' or 'words'"), ({"where": ["garbage"]}, "`where` is 'garbage', expected"),
        ({"where": "path=*"}, "where"), ({"where": ["a=b"] * 101}, "expected at most 100"),
        ({"where": [7]}, "valid string"), ({"paths": ["a"] * 10**5}, "expected at most 100"),
        ({"query": "x" * 10**6}, "a length of 1,000,000, expected at most 10,000"),
        ({"query": "half \ud800"}, "`query` has half of a surrogate pair"),
        ({"query": "half \ud800", "mode": "words"}, "`query` has half of a surrogate pair"),
        ({"where": ["path=*", "lang=\udfff"]}, "`where` has half of a surrogate pair"),
        ({"where": ["a=" + "b" * 1000] * 11}, "a length of 11,022, expected at most 10,000"),
        ({"paths": ["\ud800"]}, "`paths` has half of a surrogate pair"), ({"query": " \n"}, "expected a text"),
        ({"where": ["x>=1e999"]}, "no document has the field 'x', expected one of"), ({"query": ["x"]}, "valid string"),
    ],
    "read": [
        ({}, "`chunk` is None and `path` is None, expected a chunk or a path"),
        ({"chunk": 1, "path": "a"}, "expected a chunk or a path"), ({"chunk": -1}, "`chunk` is -1"),
        ({"chunk": 10**40}, "the index has no chunk with this number"),
        ({"chunk": 1, "around": 10**6}, "`around` is 1000000, expected"),
        ({"chunk": 1, "around": -1}, "`around` is -1, expected"),
        ({"path": "refunds.md", "line": 0}, "`line` is 0, expected"),
        ({"path": "refunds.md", "line": 2**70}, "`line` is "),
        ({"path": "\udcff"}, "`path` has half of a surrogate pair"),
    ],
    "list": [
        ({"glob": "*\ud83d"}, "`glob` has half of a surrogate pair"),
        ({"glob": "[" * 15_000}, "a length of 15,000, expected at most 10,000"),
        ({"limit": 0}, "`limit` is 0, expected"), ({"limit": 10**9}, "`limit` is 1000000000, expected"),
        ({"glob": 7}, "glob"),
    ],
}  # fmt: skip


@together("tool", WRONG)
def test_bad_arguments_are_errors_of_the_tool(served: IndexTools, tool: str) -> None:
    for given, told in WRONG[tool]:
        failed, text, value = ask(served, tool, {"query": "x"} | given if tool == "search" else given)
        assert failed and told in text and len(text) < 1000 and value is None, (given, text)
    for name, said in (("search", "query"), ("nothing", "nothing")):
        assert said in ask(served, name, {})[1]


@together(
    "arguments",
    [
        {"query": 'NEAR(" - * ^ col:x) OR'}, {"query": "\0\x1b[31m"}, {"query": "x" * 10_000},
        {"query": "'; DROP TABLE chunks; --"},
        {"query": "gate", "where": ["path=['"] + ["path!=\0"] * 99},
        {"query": "gate", "where": ["path=" + "*a" * 2000, "title>=1e999"]},
        {"query": "gate", "paths": ["house\0", "x" * 10**5] + ["house"] * 98},
    ],
)  # fmt: skip
def test_odd_arguments_find_something_or_nothing(served: IndexTools, arguments: dict[str, Any]) -> None:
    failed, text, value = ask(served, "search", arguments)
    assert not failed and text and isinstance(value["passages"], list)


@functools.cache  # making it takes a tenth of a second
def server(served: IndexTools) -> Any:
    async def at_once(work: Work) -> Answer:
        return work(served)

    return make_server(at_once)


def ask(served: IndexTools, tool: str, arguments: dict[str, Any]) -> tuple[bool, str, Any]:
    """What a tool answers: whether it failed, its text, its structured content."""
    try:
        found = asyncio.run(server(served).call_tool(tool, arguments))
    except ToolError as problem:
        return True, str(problem), None
    return found.is_error, found.content[0].text, found.structured_content


def test_an_answer_is_a_text_and_its_structure(served: IndexTools, folder: Path) -> None:
    failed, text, value = ask(served, "search", {"query": "code of the gate", "top_k": 1, "mode": "words"})
    (found,) = value["passages"]
    assert not failed and text.split("\n")[0] == f"{folder}/notes/{SHOWN}:1 | chunk {found['chunk']}"
    assert found["text"] == "The gate has a code."
    assert {*found} == {one.name for one in dataclasses.fields(module.Excerpt)}
    assert ask(served, "list", {"glob": "*.md"})[2] == {"files": [f"{folder}/notes/refunds.md"], "total": 1}


def test_the_tools_say_what_they_take(served: IndexTools) -> None:
    tools = {tool.name: tool for tool in asyncio.run(server(served).list_tools())}
    assert {*tools} == {"search", "read", "list"}
    for tool in tools.values():
        assert tool.annotations.read_only_hint and tool.output_schema["type"] == "object"
        assert all(f"    {name}: " in tool.description for name in tool.input_schema["properties"])
        assert "self" not in tool.input_schema["properties"]


def test_the_command_refuses_what_cannot_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = functools.partial(call, "mcp", MLXBERT_DATA=str(tmp_path / "data"))
    run("nothing").fails(2, "nothing: no such file")
    run().fails(2, f"no index covers {tmp_path}", "hint: ")
    run(".", "--no-update").fails(2, "no index covers .")
    run("--index", "no.db").fails(2, "no.db: no such index")

    # With a process of its own
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(MlxbertError, match="mcp is not installed") as caught:
        serve(lambda: pytest.fail("an index is opened"))
    assert caught.value.hint == install_command("mcp")


def talk(arguments: list[str], data: Path, work: Callable[[ClientSession], Awaitable[None]]) -> str:
    """Has the SDK's client work with a server; returns what that wrote to stderr."""
    server = StdioServerParameters(
        command=sys.executable, args=["-c", PROGRAM, "mcp", *arguments], env=environment(MLXBERT_DATA=str(data))
    )

    async def run(log: Any) -> None:
        async with stdio_client(server, errlog=log) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            await work(session)

    with open(data.parent / "log", "w+", encoding="utf-8") as log:
        asyncio.run(asyncio.wait_for(run(log), TIMEOUT))
        log.seek(0)
        return log.read()


@pytest.mark.slow
def test_the_client_of_the_sdk_lists_the_tools_searches_reads_and_sees_changes(tmp_path: Path) -> None:
    folder = write_notes(tmp_path)

    async def work(session: ClientSession) -> None:
        assert {tool.name for tool in (await session.list_tools()).tools} == {"search", "read", "list"}

        async def ask(tool: str, **arguments: Any) -> Any:
            found = await session.call_tool(tool, arguments)
            return found.content[0].text if found.is_error else found.structured_content  # type: ignore[union-attr]

        found = (await ask("search", query="how do I get my money back"))["passages"]
        assert found[0]["path"] == str(folder / "notes/refunds.md")
        answer = await ask("read", chunk=found[0]["chunk"])
        assert "within 30 days" in answer["passages"][0]["text"]
        assert (await ask("list"))["total"] == len(NOTES)
        assert (await ask("read", path=str(folder / "private/secret.txt"))).startswith("`path` is ")
        assert "10,000" in await ask("search", query="x" * 10**6)
        (folder / "notes/house/boiler.txt").unlink()
        assert not (await ask("search", query="boiler", mode="words"))["passages"]
        (folder / "notes/new.txt").write_text("The tandem is in the cellar.\n")
        await asyncio.sleep(module._BETWEEN + 0.5)
        assert (await ask("search", query="tandem", mode="words"))["passages"][0]["path"].endswith("new.txt")

    log = talk([str(folder / "notes")], tmp_path / "data", work)
    assert log == "note: 5 files in the index, 1 problem\n"  # the empty file

    async def at_once(session: ClientSession) -> None:
        asked = [session.call_tool("search", {"query": f"door {number}"}) for number in range(20)]
        assert not any(found.is_error for found in await asyncio.gather(*asked))

    assert talk([str(folder / "notes"), "--no-update", "--quiet"], tmp_path / "data", at_once) == ""


@pytest.mark.slow
def test_the_end_of_input_a_signal_and_a_broken_pipe_end_it(tmp_path: Path) -> None:
    notes, data = str(write_notes(tmp_path) / "notes"), str(tmp_path / "data")
    done = process("mcp", notes, stdin=lines(INITIALIZE), MLXBERT_DATA=data)
    assert done.status == 0 and "Traceback" not in done.err
    assert [line["id"] for line in done.lines] == [1]
    for number in (signal.SIGINT, signal.SIGTERM):
        with start(notes, data) as running:
            running.stdin.write(lines(INITIALIZE))
            running.stdin.flush()
            assert json.loads(running.stdout.readline())["result"]
            running.send_signal(number)
            assert running.wait(TIMEOUT) == 128 + number
            assert b"Traceback" not in running.stderr.read()
    with start(notes, data) as running:
        running.stdout.close()
        running.stdin.write(lines(INITIALIZE, {"method": "tools/list"}))
        running.stdin.close()
        assert running.wait(TIMEOUT) == 0
        assert b"Traceback" not in running.stderr.read()
    (tmp_path / "bad.db").write_bytes(b"no index" * 1000)
    with start("--index", str(tmp_path / "bad.db"), data) as running:
        assert running.wait(TIMEOUT) == 1  # though stdin is open
        assert b"error: " in running.stderr.read()


@pytest.mark.slow
def test_every_text_with_half_of_a_surrogate_pair_gets_an_answer(tmp_path: Path) -> None:
    calls = [
        ("search", {"query": "half \ud800"}), ("search", {"query": "x", "where": ["lang=\udfff"]}),
        ("search", {"query": "x", "paths": ["\udfff"]}), ("search", {"query": "x", "mode": "\udfff"}),
        ("read", {"path": "\ud83d\ud83d"}), ("list", {"glob": "\udc80*"}), ("nothing \ud800", {}),
        ("search", {"query": "the door \U0001f642 \\ud800"}),  # a pair, and a backslash before letters
    ]  # fmt: skip
    sent = [{"method": "tools/call", "params": {"name": name, "arguments": given}} for name, given in calls]
    with start(str(write_notes(tmp_path) / "notes"), str(tmp_path / "data")) as running:
        garbage = b'garbage\n\xff\xfe\n[]\n{"\\ud800\n'  # lines that end nothing
        running.stdin.write(garbage + lines(INITIALIZE, *sent, {"method": "\ud800"}))
        running.stdin.flush()
        answers = {line["id"]: line for line in (json.loads(running.stdout.readline()) for _ in range(10))}
        running.stdin.close()
        assert running.wait(TIMEOUT) == 0
    assert answers.keys() == {*range(1, 11)} and answers[1]["result"]["serverInfo"]["name"] == "mlxbert"
    for number in (2, 3, 4, 6, 7):
        result = answers[number]["result"]
        assert result["isError"] and "has half of a surrogate pair" in result["content"][0]["text"]
    for number in (5, 8):
        assert "error" in answers[number] or answers[number]["result"]["isError"]
    assert answers[9]["result"]["structuredContent"]["passages"] and "error" in answers[10]


def start(*arguments: str) -> Any:
    """A server with pipes; the last argument is the data folder."""
    words, pipe = command("mcp", *arguments[:-1]), subprocess.PIPE
    return subprocess.Popen(words, env=environment(MLXBERT_DATA=arguments[-1]), stdin=pipe, stdout=pipe, stderr=pipe)
