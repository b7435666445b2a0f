"""The server over the network: attacks, its addresses, clients that do not read, and how it ends."""

import errno
import functools
import importlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.serve.engine.serving_options import ServeOptions
from mlxbert.serve.http.app import PROTOCOLS
from mlxbert.serve.http.server import _for_others, address, listen
from tests.helpers.cases import ALL
from tests.helpers.program import command, environment, process
from tests.helpers.server_process import PATIENCE, Running, serving, waited
from tests.helpers.serving import answering

pytestmark = pytest.mark.slow

EMBED = "/v1/embeddings"
READ = 2.0  # seconds that the server gives its clients


@pytest.fixture(scope="module")
def server(tiny_folder: Path) -> Iterator[Running]:
    with serving(f"tiny={tiny_folder}", "--read-seconds", str(READ)) as server:
        yield server


def read_all(connection: socket.socket) -> bytes:
    parts = []
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def head(length: str, path: str = EMBED) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}\r\n\r\n".encode()


def check_served(server: Running, *, within: float = 1.0) -> None:
    """Others are served meanwhile, about as fast as usual; a busy machine takes longer for one or the other."""
    times = []
    for _ in range(10):
        begun = time.monotonic()
        assert server.ask("POST", EMBED, {"input": "the cat"})[0] == 200
        times.append(time.monotonic() - begun)
    assert sorted(times)[5] < within


@pytest.mark.parametrize("length", ["Content-Length: 100000000", "Transfer-Encoding: chunked"])
def test_a_body_of_100_mb_is_answered_while_it_is_sent_and_not_kept(server: Running, length: str) -> None:
    before = server.metric("process_resident_bytes")
    piece = b"x" * 100_000
    with server.connect() as connection:
        connection.sendall(head(length))
        with suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(piece if "Length" in length else b"186a0\r\n" + piece + b"\r\n")
        assert b" 413 " in read_all(connection)[:20]
    assert server.metric("process_resident_bytes") < before + 60e6


def test_chunks_without_end_and_silent_connections_end(server: Running) -> None:
    begun = time.monotonic()
    with server.connect() as connection, pytest.raises(ConnectionError):
        connection.sendall(head("Transfer-Encoding: chunked"))
        while time.monotonic() < begun + PATIENCE:
            connection.sendall(b"1\r\nx\r\n" * 1000)
    check_served(server)
    with server.connect() as connection:
        begun = time.monotonic()
        read_all(connection)
        assert READ * 0.9 < time.monotonic() - begun < 60
        assert b" 200 " in talk(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"\r\n")


@pytest.mark.parametrize(("sent", "status"), [
    (b"localhost\r\nX: " + b"a" * 1_000_000, b"431"), (b"localhost\r\n" + b"X: a\r\n" * 200_000 + b"\r\n", b"431"),
    (b"localhost\r\nX : a\r\n\r\n", b"400"), (b"evil.example\r\nConnection: close\r\n\r\n", b"421"),
])  # fmt: skip
def test_what_is_not_a_request_is_refused(server: Running, sent: bytes, status: bytes) -> None:
    with server.connect() as connection:
        with suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: " + sent)
        found = read_all(connection)
    assert found.split(b" ", 2)[1] == status and b"Traceback" not in found


def test_slow_clients_are_cut_and_others_are_served_meanwhile(server: Running) -> None:
    begun = time.monotonic()
    slow = [server.connect() for _ in range(200)]
    for number, one in enumerate(slow):
        one.sendall(b"POST /v1/embeddings HTT" if number % 2 else head("Content-Length: 100") + b'{"input": ')
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.2):
            for number, one in enumerate(slow):
                with suppress(OSError):
                    one.sendall(b"\r\n" if number % 4 == 1 else b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    check_served(server)
    answers = [read_all(one) for one in slow]
    ended.set()
    dripping.join()
    assert READ <= time.monotonic() - begun < 60
    assert sum(b" 408 " in answer[:20] for answer in answers[::2]) == 100
    assert all(answer.split(b" ", 2)[1] in (b"408", b"400") for answer in answers[1::2])


def talk(server: Running, sent: bytes) -> bytes:
    with server.connect() as connection:
        connection.sendall(sent)
        return read_all(connection)


def test_clients_that_do_not_read_are_cut(server: Running) -> None:
    body = json.dumps({"input": ["the cat"] * 4096, "encoding_format": "float"}).encode()
    slow = []
    for _ in range(3):  # as many texts as may wait, and some that check
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(head(f"Content-Length: {len(body)}") + body)
        slow.append(connection)
    check_served(server, within=5)
    cut = time.monotonic() + PATIENCE
    for connection in slow:
        connection.settimeout(PATIENCE)
        while connection.recv(1, socket.MSG_PEEK) != b"" and not is_cut(server, connection):
            assert time.monotonic() < cut
            time.sleep(0.1)
        connection.close()


def is_cut(server: Running, connection: socket.socket) -> bool:
    outer = connection.getsockname()[1]
    table = Path("/proc/net/tcp")
    if table.exists():
        ends, ours = (f"{server.port:04X}", f"{outer:04X}"), "01"
        rows = [line.split()[1:4] for line in table.read_text(encoding="ascii").splitlines()[1:]]
        return not any((local[-4:], remote[-4:], state) == (*ends, ours) for local, remote, state in rows)
    command = ["lsof", "-nP", "-a", "-p", str(server.process.pid), f"-iTCP:{server.port}", "-sTCP:ESTABLISHED"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # status 1 if there is none
    return not re.search(rf"->\S+:{outer}\s", shown)


def test_500_clients_leave_and_others_are_served_meanwhile(server: Running) -> None:
    body = json.dumps({"texts": ["the cat sat on the mat " * 1000], "overflow": "window"}).encode()
    before, failed = server.metric("abandoned_total"), server.metric("failed_total")
    leaving = [server.connect() for _ in range(500)]
    for number, connection in enumerate(leaving):
        part = body if number % 10 else body[:-1]  # some leave before all is sent
        connection.sendall(head(f"Content-Length: {len(body)}", "/api/embed") + part)
    waited(lambda: server.metric("queue_texts") > 100 or None)
    for connection in leaving:
        connection.close()
    check_served(server)
    waited(lambda: server.metric("queue_texts") == 0 or None)
    assert server.metric("abandoned_total") - before > 300
    assert server.metric("failed_total") == failed
    server.wait_for('"status": 499')
    check_served(server)


TEXTS = ["the cat sat on the mat " * 3] * 1000
LIST = ("texts", "inputs", "input")
BODIES: dict[str, Any] = {
    "fill-mask": {"texts": ["the [MASK] sat"] * 1000}, "answer": {"pairs": [["the cat", "the cat sat " * 500]] * 20},
    "next-sentence": {"pairs": [["the cat", "a dog"]] * 1000}, "search": {"query": "the cat"},
    "rerank": {"query": "the cat", "texts": TEXTS, "documents": TEXTS}, "decode": {"ids": [[1, 2, 3]] * 1000},
}  # fmt: skip


def bodies() -> Iterator[tuple[str, bytes]]:
    """A request that takes a while for each route."""
    for protocol in PROTOCOLS:
        for route in protocol.routes:
            path, fields = re.sub(r"\{\w+:path\}", "tiny", route.path), getattr(route.body, "__struct_fields__", LIST)
            usual = {"query": "the cat", **{name: TEXTS for name in LIST}}
            chosen = BODIES.get(path.rpartition("/")[2], usual)
            body = {name: value for name, value in chosen.items() if name in fields}
            sent = json.dumps(body).encode() if route.body is not None else b""
            yield path, head(f"Content-Length: {len(sent)}", path).replace(b"POST", route.method.encode()) + sent


def test_clients_leave_during_each_route_and_others_are_served(server: Running) -> None:
    times = {}
    for path, sent in bodies():
        for part, seconds in ((1, 0.0), (1, 0.1), (2, 0.02)):
            leaving = [server.connect() for _ in range(8)]
            for connection in leaving:
                with suppress(OSError):  # the request may be refused before all of it is sent
                    connection.sendall(sent[: len(sent) // part])
            time.sleep(seconds)
            for connection in leaving:
                connection.close()
            begun = time.monotonic()
            assert server.ask("POST", EMBED, {"input": "the cat"})[0] == 200
            times[path, part, seconds] = time.monotonic() - begun
    assert sorted(times.values())[len(times) * 9 // 10] < 1, times
    waited(lambda: server.metric("queue_texts") == 0 or None)
    assert server.metric("failed_total") == 0


def test_damaged_requests_are_answered_once_and_others_are_served_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python scripts/fuzz_server.py` sends many more."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    fuzz_server = importlib.import_module("fuzz_server")
    outcomes, findings, _ = fuzz_server.fuzz(1000 if ALL else 250, seed=7)
    assert len(outcomes) > 5 and outcomes["200"]
    assert not [finding for finding in findings if "/health" not in finding], findings  # others may use the machine


def test_no_more_connections_than_allowed(tiny_folder: Path) -> None:
    with serving(f"tiny={tiny_folder}", "--max-connections", "20") as server:
        held = [server.connect() for _ in range(20)]
        waited(lambda: b" 503 " in talk(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")[:20] or None)
        for connection in held:
            connection.close()
        waited(lambda: healthy(server) or None)


def healthy(server: Running) -> bool:
    with suppress(OSError):
        return server.ask("GET", "/health")[0] == 200
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_lets_every_request_that_was_taken_be_answered(tiny_folder: Path, number: int) -> None:
    body = json.dumps({"input": ["the cat sat on the mat " * 3] * 200, "encoding_format": "float"}).encode()
    with serving(f"tiny={tiny_folder}") as server, ThreadPoolExecutor(64) as pool:
        asking = [server.connect() for _ in range(64)]
        for one in asking:
            one.sendall(head(f"Content-Length: {len(body)}") + body)
        server.process.send_signal(number)
        answers = [*pool.map(read_all, asking)]
        assert server.process.wait(PATIENCE) == 0
        with pytest.raises(OSError):
            server.connect()
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert all(len(json.loads(answer.partition(b"\r\n\r\n")[2])["data"]) == 200 for answer in answers)


def test_a_second_signal_ends_it_at_once(tiny_folder: Path) -> None:
    limits = ("--max-texts", "100000", "--max-queue", "100000", "--max-characters", "4000000")
    with serving(f"tiny={tiny_folder}", *limits) as server:
        body = json.dumps({"input": ["the cat sat on the mat"] * 90_000}).encode()
        with server.connect() as connection:
            connection.sendall(head(f"Content-Length: {len(body)}") + body)
            waited(lambda: server.metric("queue_texts") or None)
            server.process.send_signal(signal.SIGTERM)
            assert " 1 " in server.wait_for("note: ends")
            time.sleep(0.5)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 128 + signal.SIGTERM


def test_a_port_in_use_is_told_and_a_model_that_cannot_be_loaded_ends_it(tiny_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process("serve", str(tiny_folder), "--port", port).fails(1, f"port {port} of 127.0.0.1 is in use", "--port")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    done = subprocess.run(
        command("serve", str(tmp_path), "--port", "0"), capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 1 and "error: " in done.stderr and "Traceback" not in done.stderr
    assert "note: ends" not in done.stderr  # as it does when it is told to


def test_a_signal_while_it_loads_ends_it_and_after_a_kill_it_starts_at_the_same_port(tiny_folder: Path) -> None:
    words = command("serve", str(tiny_folder), "--port", "0")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment()) as started:
        assert started.stderr is not None
        assert "loading" in started.stderr.readline()
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE) in (0, 143)
        assert "Traceback" not in started.stderr.read()
    with serving(str(tiny_folder)) as server:
        port = server.port
        with server.connect() as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.recv(10)
            server.process.kill()
            server.process.wait()
    with serving(str(tiny_folder), port=port) as server:
        assert server.ask("GET", "/health")[0] == 200


def test_the_key_is_in_no_process_list_and_no_log(tiny_folder: Path, tmp_path: Path) -> None:
    key, file, log = "a-key-of-some-length", tmp_path / "key", tmp_path / "log"
    file.write_text(key)
    with serving(str(tiny_folder), "--api-key-file", str(file), "--log-file", str(log)) as server:
        assert server.ask("POST", EMBED, {"input": "the cat"})[0] == 401
        sent = head(f"Authorization: Bearer {key}\r\nContent-Length: 20\r\nConnection: close") + b'{"input": "the cat"}'
        assert b" 200 " in talk(server, sent)[:20]
        listed = ["ps", "-ww", "-o", "command=", "-p", str(server.process.pid)]
        shown = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        assert "--api-key-file" in shown
        assert key not in shown + log.read_text() + "".join(server.lines)
        assert len(log.read_text().splitlines()) == 2 and os.stat(log).st_size


# Requests whose results are many times as large as they are.

MASKS, CHARACTERS, WORDS = "[MASK] " * 280, "a b c d e f " * 60, "the cat sat on the mat in paris , a city . " * 80
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/api/fill-mask", {"texts": [MASKS], "top_k": 30_000}),
    ("/api/fill-mask", {"texts": ["the [MASK] [MASK] [MASK] sat"], "top_k": 30_000}),
    ("/api/fill-mask", {"texts": ["[MASK] " * 100]}),
    ("/api/fill-mask", {"texts": ["[MASK] " * 40] * 9, "top_k": 30_000, "text": False}),
    ("/embed_all", {"inputs": [CHARACTERS] * 900, "truncate": True}),
    ("/embed_all", {"inputs": [CHARACTERS] * 4, "truncate": True}), ("/api/embed-words", {"texts": [WORDS]}),
    ("/api/embed", {"texts": ["the cat"] * 300}), (EMBED, {"input": ["the cat"] * 300}),
    ("/api/embed", {"texts": [WORDS], "overflow": "window"}),
    ("/similarity", {"inputs": {"source_sentence": "the cat", "sentences": ["a dog"] * 200}}),
    ("/tokenize", {"inputs": [WORDS] * 200}),
]  # fmt: skip
MOST, SLOW = 1e9, 0.5  # bytes; seconds
LOAD = max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)  # of a machine that does other work, too


@pytest.fixture(scope="module")
def builtin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("server") / "requests.log"
    with serving("builtin", "--read-seconds", "600", "--log-file", str(log)) as server:
        yield server


def test_memory_is_bounded_and_others_are_answered_meanwhile(builtin: Running) -> None:
    asked, ended, memory, waits = (REQUESTS * 4)[:40], threading.Event(), list[float](), list[float]()

    def watch() -> None:
        while not ended.wait(0.05):
            begun = time.monotonic()
            assert builtin.ask("GET", "/health")[0] == 200
            waits.append(time.monotonic() - begun)
            memory.append(builtin.metric("process_resident_bytes"))

    watching = threading.Thread(target=watch)
    watching.start()
    with ThreadPoolExecutor(40) as pool:
        statuses = [*pool.map(lambda one: builtin.ask("POST", *one)[0], asked)]
    ended.set()
    watching.join()
    assert {*statuses} == {200, 413} and statuses.count(413) >= 6
    print(f"{max(memory) / 1e6:.0f} MB, /health within {max(waits):.3f} s, load {LOAD:.1f}")  # noqa: T201
    assert max(memory) < MOST
    assert sorted(waits)[int(0.99 * len(waits))] < SLOW * LOAD


def test_the_next_small_request_is_answered_soon_after_a_client_has_left(builtin: Running) -> None:
    waits = []
    for path, body in REQUESTS[::2]:
        sent = json.dumps(body).encode()
        with builtin.connect() as connection:
            connection.sendall(head(f"Content-Length: {len(sent)}", path) + sent)
            time.sleep(0.3)
        begun = time.monotonic()
        assert builtin.ask("POST", EMBED, {"input": "the cat"})[0] == 200
        waits.append(time.monotonic() - begun)
    print(f"within {max(waits):.3f} s, half of them within {sorted(waits)[3]:.3f} s, load {LOAD:.1f}")  # noqa: T201
    assert max(waits) < LOAD


async def answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    at_once = [0]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        at_once.append(at_once[-1] + 1)
        await receive()
        await answer(send, scope["path"].encode())
        at_once.append(at_once[-1] - 1)

    count = 5000
    asked = [f"POST /{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx" for number in range(count)]
    expected = b"/%d" % (count - 1)
    with answering(app) as (port, _), socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        sending = threading.Thread(target=client.sendall, args=("".join(asked).encode(),))
        sending.start()
        found = b""
        while not found.endswith(expected):
            part = client.recv(1 << 20)
            assert part
            found += part
        sending.join()
    assert [line.partition(b"HTTP")[0] for line in found.split(b"\r\n\r\n")[1:]] == [
        b"/%d" % number for number in range(count)
    ]
    assert max(at_once) == 1


@pytest.mark.parametrize("size", [1, 262_144])
def test_a_client_that_reads_a_little_now_and_then_is_cut(size: int) -> None:
    piece = bytes(500_000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-length", b"%d" % (1000 * len(piece)))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for number in range(1000):
            await send({"type": "http.response.body", "body": piece, "more_body": number < 999})

    with answering(app, read_seconds=0.5) as (port, server), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        rest, begun = 1000 * len(piece), time.monotonic()
        while rest == 1000 * len(piece) or server.connections:
            rest -= len(client.recv(size))
            time.sleep(0.005)
            assert rest > 0 and time.monotonic() < begun + 20


def test_a_client_that_reads_in_time_is_not_cut() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(10_000_000))

    with answering(app, read_seconds=0.5) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(4):
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            rest = 10_000_000
            while rest > 0:
                part = client.recv(1 << 20)
                assert part
                rest -= len(part.rpartition(b"\r\n\r\n")[2])
            time.sleep(0.2)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, b"hello")


def get(place: str, port: int) -> bytes:
    with socket.create_connection((place, port), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(functools.partial(client.recv, 1 << 16), b""))


def test_empty_lines_after_an_answer_hold_no_connection() -> None:
    with answering(hello, read_seconds=0.5) as (port, server), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in client.recv(20)
        begun = time.monotonic()
        while server.connections:
            with suppress(OSError):
                client.sendall(b"\r\n")
            time.sleep(0.05)
            assert time.monotonic() < begun + 20


def test_a_client_gone_before_it_begins_or_after_a_refusal_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Options of a connection that has been reset cannot be set on macOS."""
    real, tried = socket.socket.setsockopt, list[int]()

    def setsockopt(self: socket.socket, level: int, option: int, *value: Any) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_NODELAY):
            tried.append(option)
            raise OSError(errno.EINVAL, "Invalid argument")
        real(self, level, option, *value)

    def shutdown(self: socket.socket, how: int) -> None:
        tried.append(-1)
        raise OSError(errno.ENOTCONN, "Socket is not connected")

    monkeypatch.setattr(socket.socket, "setsockopt", setsockopt)
    monkeypatch.setattr(socket.socket, "shutdown", shutdown)
    with caplog.at_level(logging.ERROR), answering(hello, read_seconds=1.0) as (port, server):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            assert b"408 Request Timeout" in client.recv(1000)  # its time has begun to run
        assert b"hello" in get("127.0.0.1", port)
        waited(lambda: not server.connections or None)
    assert tried.count(socket.TCP_NODELAY) >= 2 and -1 in tried and not caplog.records


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_are_those_of_both_families() -> None:
    with answering(hello, "::") as (port, _):
        assert all(b"hello" in get(place, port) for place in ("127.0.0.1", "::1"))
        options = ServeOptions(host="::")
        assert address(options, port) == f"http://[::1]:{port}"
        for others in filter(None, [_for_others(options, port)]):  # there is none without a network
            assert b"hello" in get(others.rpartition("//")[2].partition(":")[0], port)


def names(monkeypatch: pytest.MonkeyPatch, *places: str) -> None:
    families = [socket.AF_INET6 if ":" in place else socket.AF_INET for place in places]
    found = [(family, socket.SOCK_STREAM, 6, "", (place, 0)) for family, place in zip(families, places, strict=True)]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *given, **more: found if host in ("both", "localhost") else real(host, *given, **more),
    )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_name_is_listened_to_at_all_its_addresses_unless_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, "::1", "127.0.0.1")  # in this order on a Mac
    with answering(hello, "both") as (port, _):
        assert all(b"hello" in get(place, port) for place in ("127.0.0.1", "::1"))
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        names(monkeypatch, "127.0.0.1", "::1")
        with pytest.raises(MlxbertError, match="in use"), listen(ServeOptions(host="both", port=port)):
            pass
        socket.create_server(("127.0.0.1", port)).close()  # what was opened is closed


def test_addresses_that_this_machine_does_not_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, "2001:db8::1", "127.0.0.1")
    with answering(hello, "both") as (port, _):
        assert b"hello" in get("127.0.0.1", port)
    names(monkeypatch, "2001:db8::1")
    with pytest.raises(MlxbertError, match="cannot be opened"), listen(ServeOptions(host="both", port=0)):
        pass
    with pytest.raises(ArgumentError, match="expected a name or an address"), listen(ServeOptions(host="a..b", port=0)):
        pass
    names(monkeypatch, "0.0.0.0", "127.0.0.1")
    with listen(ServeOptions(host="localhost", port=0)) as listeners:
        assert [one.getsockname()[0] for one in listeners] == ["127.0.0.1"]
    names(monkeypatch, "0.0.0.0")
    with pytest.raises(MlxbertError, match="cannot be opened"), listen(ServeOptions(host="localhost", port=0)):
        pass
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert _for_others(ServeOptions(host="::"), 8484) == ""


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_free_port_is_free_at_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port that the system gives the first address is taken at the second, twice."""
    names(monkeypatch, "127.0.0.1", "::1")
    real, ports = socket.create_server, []
    taken: list[socket.socket] = []

    def create(place: Any, **named: Any) -> socket.socket:
        opened = real(place, **named)
        if place == ("127.0.0.1", 0):
            ports.append(opened.getsockname()[1])
            if len(taken) < 2 and ports[-1] not in ports[:-1]:  # the system may give a port again
                taken.append(real(("::1", ports[-1]), family=socket.AF_INET6))
        return opened

    monkeypatch.setattr(socket, "create_server", create)
    with listen(ServeOptions(host="both", port=0)) as listeners:
        assert {one.getsockname()[1] for one in listeners} == {ports[-1]} and len(listeners) == 2
    assert len({*ports}) == 3
    for one in taken:
        real(("127.0.0.1", one.getsockname()[1])).close()  # what was opened is closed
        one.close()


def test_a_port_that_is_never_free_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(place: Any, **named: Any) -> socket.socket:
        tried.append(place)
        raise OSError(errno.EADDRINUSE, "Address already in use")

    tried: list[Any] = []
    monkeypatch.setattr(socket, "create_server", create)
    with pytest.raises(MlxbertError, match="in use"), listen(ServeOptions(port=0)):
        pass
    assert 1 < len(tried) < 10
