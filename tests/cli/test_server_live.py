"""`--server` over a socket: real connections, and no model in the process that asks."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxbert.cli.remote import Server
from tests.helpers.program import call, environment, process
from tests.helpers.serving import listening, serving
from tests.serve.test_own import assert_same

pytestmark = pytest.mark.slow
_ASK = """
import sys
from mlxbert.cli.app import run
status = run(sys.argv[1:])
print(status, sorted({"mlx", "tokenizers", "starlette", "uvicorn", "asyncio"} & {*sys.modules}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Iterator[str]:
    with serving(folders) as service, listening(service) as address:
        yield address


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", "the cat", "été ☃", "--kind", "query"],
        ["similarity", "the cat", "a dog"],
        ["classify", "the cat", "--labels", "cat,dog", "--model", "nli"],
        ["rerank", "the cat", "a dog"],
        ["tag", "the cat"],
        ["answer", "the cat ?", "--context", "the cat sat"],
        ["fill-mask", "the [MASK]"],
    ],
)
def test_no_model_is_loaded(url: str, arguments: list[str]) -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", _ASK, *arguments, "--server", url], capture_output=True, env=environment(), check=True
    )
    assert done.stderr.decode().splitlines()[-1] == "0 []", done.stderr
    assert done.stdout


def test_a_file_over_a_socket_and_the_program_itself(url: str, folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"the cat number {number} sat\n" for number in range(1500)))
    there = process("embed", "-i", str(file), "--server", url)
    here = process("embed", "-i", str(file), "--model", str(folders["embed"]))
    assert there.status == here.status == 0
    assert_same(*([json.loads(line) for line in one.out.splitlines()] for one in (there, here)))


def test_results_come_while_texts_are_written(url: str) -> None:
    import subprocess

    from tests.helpers.program import command

    with subprocess.Popen(
        command("embed", "--server", url), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as running:
        assert running.stdin is not None and running.stdout is not None
        for text in ("the cat", "a dog"):
            running.stdin.write(f"{text}\n".encode())
            running.stdin.flush()
            assert json.loads(running.stdout.readline())["text"] == text
        running.stdin.close()


def test_a_connection_that_was_closed_while_idle_is_opened_again(url: str) -> None:
    server = Server(url)
    server.ask("/api/status")
    assert server._connection.sock is not None
    server._connection.sock.shutdown(socket.SHUT_RDWR)
    time.sleep(0.05)
    assert server.ask("/api/status")["ready"]


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call("embed", "cat", "--server", f"http://127.0.0.1:{port}").fails(1, "cannot be reached", "hint: ")
    call("embed", "cat", "--server", "http://no-such-host.invalid").fails(1, "cannot be reached", "hint: ")


def test_the_other_side_does_not_speak_http(url: str) -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(100)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        call("embed", "cat", "--server", f"http://127.0.0.1:{port}").fails(1, "cannot be reached", "hint: ")
    call("embed", "cat", "--server", url.replace("http:", "https:")).fails(1, "cannot be reached", "hint: ")
