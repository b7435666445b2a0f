"""`--server` over a socket: real connections, and no model in the process that asks."""

import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxbert.errors import MlxbertError
from mlxbert.serve.http_client import _trusted
from mlxbert.serve.server_models import Server
from tests.helpers.certificate import save_certificate
from tests.helpers.fake_hub import QuietServer
from tests.helpers.program import call, command, environment, process
from tests.helpers.serving import listening, serving
from tests.serve.test_own import assert_same

pytestmark = pytest.mark.slow
_ASK = """
import sys
from mlxbert.cli.app import run
status = run(sys.argv[1:])
print(status, sorted({"mlx", "tokenizers", "starlette", "httptools", "asyncio"} & {*sys.modules}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Iterator[str]:
    with serving(folders) as service, listening(service) as address:
        yield address


@pytest.mark.parametrize("arguments", [
    ["embed", "the cat", "été ☃", "--kind", "query"], ["similarity", "the cat", "a dog"],
    ["classify", "the cat", "--labels", "cat,dog", "--model", "nli"], ["rerank", "the cat", "a dog"],
    ["tag", "the cat"], ["answer", "the cat ?", "--context", "the cat sat"], ["fill-mask", "the [MASK]"],
])  # fmt: skip
def test_no_model_is_loaded(url: str, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASK, *arguments, "--server", url], capture_output=True, env=environment(), check=True
    )
    assert done.stdout and done.stderr.decode().splitlines()[-1] == "0 []", done.stderr


def test_a_file_over_a_socket_and_the_program_itself(url: str, folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"the cat number {number} sat\n" for number in range(1500)))
    there = process("embed", "-i", str(file), "--server", url)
    here = process("embed", "-i", str(file), "--model", str(folders["embed"]))
    assert there.status == here.status == 0
    assert_same(*([json.loads(line) for line in one.out.splitlines()] for one in (there, here)))


def test_results_come_while_texts_are_written(url: str) -> None:
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
    assert server._client._connection.sock is not None
    server._client._connection.sock.shutdown(socket.SHUT_RDWR)
    time.sleep(0.05)
    assert server.ask("/api/status")["ready"]


def test_nobody_listens_or_the_other_side_does_not_speak_http(url: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    call("embed", "cat", "--server", f"http://127.0.0.1:{port}").fails(1, "cannot be reached", "hint: ")
    call("embed", "cat", "--server", "http://no-such-host.invalid").fails(1, "cannot be reached", "hint: ")
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


READY = {"ready": True, "protocol": "http/1.1"}


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server behind a proxy with a certificate that it has made itself: its address, and the certificate."""
    certificate, key = save_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2", "http/1.1"])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            connection: Any = self.connection
            body = json.dumps({"ready": True, "protocol": connection.selected_alpn_protocol()}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            pass

    class Proxy(QuietServer):
        def get_request(self) -> tuple[socket.socket, Any]:
            client, place = super().get_request()
            return context.wrap_socket(client, server_side=True), place

    with Proxy(("127.0.0.1", 0), Handler) as proxy:
        serving = threading.Thread(target=proxy.serve_forever)
        serving.start()
        yield f"https://127.0.0.1:{proxy.server_port}", certificate
        proxy.shutdown()
        serving.join()


def test_a_certificate_that_is_not_trusted_is_no_other_fault(secure: tuple[str, Path]) -> None:
    failed = call("embed", "cat", "--server", secure[0])
    failed.fails(1, "certificate is not trusted (self-signed certificate)", "SSL_CERT_FILE=FILE")


def test_a_certificate_is_trusted_for_its_own_name_alone(
    secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert Server(url).ask("/api/status") == READY
    with pytest.raises(MlxbertError, match=r"certificate is not valid \(Hostname mismatch") as failed:
        Server(url.replace("127.0.0.1", "localhost")).ask("/api/status")
    assert "address" in str(failed.value.hint) and "SSL_CERT_FILE" not in str(failed.value.hint)
    assert _trusted().post_handshake_auth is True  # as in the contexts of http.client


@pytest.mark.parametrize("folder", ["missing", "empty", "some", "forbidden"])
def test_where_python_has_no_certificates_those_of_certifi_are_trusted_and_are_not_added_to_others(
    folder: str, secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has none as python.org's Python for a Mac is installed."""

    def refuse(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    url, certificate = secure
    for name in ("empty", "some", "forbidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "some/0.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "no-file"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / folder))
    monkeypatch.setitem(sys.modules, "certifi", SimpleNamespace(where=lambda: str(certificate)))
    if folder == "forbidden":
        monkeypatch.setattr(os, "listdir", refuse)
    if folder in ("missing", "empty"):
        assert Server(url).ask("/api/status") == READY
        monkeypatch.setitem(sys.modules, "certifi", None)
    with pytest.raises(MlxbertError, match="not trusted"):
        Server(url).ask("/api/status")
