"""Access to the server: who may ask, how much, what is known of it afterwards, and the files of the page."""

import asyncio
import errno
import io
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, strategies as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

import mlxbert
from mlxbert.errors import ArgumentError, OutOfMemoryError
from mlxbert.serve.access_log import Access, Log, LogHandler
from mlxbert.serve.engine.engine import Engine
from mlxbert.serve.engine.engine_state import EngineCounts
from mlxbert.serve.engine.serving_options import EngineOptions, ServeOptions
from mlxbert.serve.http.pages import FILES, page_routes
from mlxbert.serve.http.request_guards import AccessPolicy, compile_origins, read_key
from mlxbert.serve.http.server import _for_others, _prepare, address, logged, make_guarded
from mlxbert.serve.service import Service, read_facts
from tests.helpers.asking import Answer, ask
from tests.helpers.cases import together

KEY = "a-key-of-some-length"
JSON = ("content-type", "application/json")
EMBED = "/v1/embeddings"
ONE = {"input": "the cat sat"}


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with Engine({"tiny": str(tiny_folder)}) as engine:
        yield engine


@pytest.fixture(scope="module")
def facts(engine: Engine) -> Any:
    return engine.call("tiny", lambda model: read_facts("tiny", model)).result()


class Server:
    """A server without a network."""

    def __init__(self, engine: Engine, facts: Any, key: str | None = None, **options: Any) -> None:
        self.options = ServeOptions(**options)
        self.service = Service(engine, self.options, facts={"tiny": facts}, ready=True)
        self.stream = io.StringIO()
        policy = AccessPolicy(self.options, self.options.port, key)
        log = Log(self.stream, texts=self.options.log_texts)
        self.app: Access = make_guarded(self.service, policy, log)

    def get(self, path: str = "/v1/models", **headers: str) -> Answer:
        pairs = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return ask(self.app, "GET", path, headers=[*pairs.items()])

    def post(self, body: Any = None, path: str = EMBED, **more: Any) -> Answer:
        return ask(self.app, "POST", path, ONE if body is None else body, **more)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def server(engine: Engine, facts: Any) -> Server:
    return Server(engine, facts)


OURS = ("localhost", "localhost:8484", "LocalHost", "127.0.0.1:8484", "127.9.9.9", "[::1]:8484", "[::1]")
OTHERS = (
    *("evil.example", "evil.example:8484", "localhost:80", "localhost.evil.example", "127.0.0.1.evil.example", ""),
    *("10.0.0.1", "[::2]", "0.0.0.0", "localhost:8484:8484", "[::1", "::1", "2130706433", "0x7f.1", "localhost@x"),
    *("localhost ", "\xe9", "127.0.0.1\x00"),
)


@together("options,let_in,refused", [
    ({}, OURS, OTHERS),
    ({"allow_host": ["proxy.lan", "other:99"]}, ("proxy.lan", "PROXY.lan:1", "other:99"), ("other:98",)),
    ({"host": "0.0.0.0"}, ("192.168.1.7:8484", "[fe80::1]:8484", "localhost"),  # any address, and no other name
     ("192.168.1.7:80", "evil.example:8484")),
])  # fmt: skip
def test_hosts_of_this_server_are_let_in_and_others_refused(
    engine: Engine, facts: Any, options: dict[str, Any], let_in: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    server = Server(engine, facts, **options)
    assert {server.get(host=host).status for host in let_in} == {200}
    for host in refused:
        found = server.get(host=host)
        assert found.status == 421 and found.json["error"]["code"] == "misdirected", host


@given(st.text(st.characters(max_codepoint=255), max_size=30))
def test_a_host_is_ours_only_if_it_is_written_like_ours(host: str) -> None:
    policy = AccessPolicy(ServeOptions(), 8484)
    try:
        policy.check_host(host)
    except Exception as problem:
        assert getattr(problem, "kind", None) == "misdirected"
    else:
        assert re.fullmatch(r"(localhost|127\.\d+\.\d+\.\d+|\[[:0]*:0*1\])\.?(:(8484)?)?", host.lower())


def test_two_hosts_and_a_missing_one_are_refused(server: Server) -> None:
    twice = ask(server.app, "GET", "/v1/models", headers=[("host", "localhost"), ("host", "evil.example")])
    assert (twice.status, ask(server.app, "GET", "/v1/models", headers=[]).status) == (400, 421)


def test_what_is_computed_before_the_server_is_ready_is_not_counted(engine: Engine) -> None:
    service = Service(engine)

    async def prepared() -> None:
        ready = asyncio.Event()
        preparing = asyncio.create_task(_prepare(service, lambda *_: ready.set()))
        await ready.wait()
        preparing.cancel()

    asyncio.run(prepared())
    assert service.ready and service.facts and engine.counts == EngineCounts()


@together("origin", ["http://evil.example", "null", "http://localhost:80", "http://localhost.evil.example", ""])
def test_pages_from_elsewhere_are_refused_and_no_header_lets_them_in(server: Server, origin: str) -> None:
    found = server.get(origin=origin)
    assert found.status == 403 and not [name for name in found.headers if name.startswith("access-control")]
    asked = [("host", "localhost"), ("origin", origin), ("access-control-request-method", "POST")]
    assert ask(server.app, "OPTIONS", EMBED, headers=asked).status == 403
    own = server.get(host="localhost:8484", origin="http://localhost:8484")
    assert own.status == 200 and "access-control-allow-origin" not in own.headers


def test_pages_of_allowed_origins_may_ask(engine: Engine, facts: Any) -> None:
    server = Server(engine, facts, key=KEY, allow_origin=["http://localhost:3000"])
    names = [("host", "localhost"), ("origin", "http://localhost:3000"), ("access-control-request-method", "POST")]
    asked = ask(server.app, "OPTIONS", EMBED, headers=[*names, ("access-control-request-headers", "content-type, x-a")])
    assert asked.status == 204 and asked.headers["access-control-allow-headers"] == "content-type, x-a"
    odd = ask(server.app, "OPTIONS", EMBED, headers=[*names, ("access-control-request-headers", "a\r\nset-cookie: b")])
    assert "set-cookie" not in odd.headers["access-control-allow-headers"]
    found = server.get(origin="http://localhost:3000", authorization=f"Bearer {KEY}")
    assert found.status == 200 and found.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert server.get(origin="http://localhost:3000").status == 401
    server = Server(engine, facts, allow_origin=["http://localhost:*", "vscode-webview://*", "null"])
    for origin in ("http://localhost:5173", "vscode-webview://0jd1lpqmnv", "null"):
        found = server.get(origin=origin)
        assert (found.status, found.headers["vary"]) == (200, "Origin")
        assert found.headers["access-control-allow-origin"] == origin
    assert server.get(origin="http://localhost.evil.example").status == 403


@together("headers,status", [
    ({}, 401), ({"authorization": f"Bearer {KEY}"}, 200), ({"authorization": f"bearer  {KEY}"}, 200),
    ({"x_api_key": KEY}, 200), ({"api_key": KEY}, 200), ({"authorization": KEY}, 401),
    ({"authorization": f"Basic {KEY}"}, 401), ({"authorization": f"Bearer {KEY}x"}, 401),
    ({"authorization": "Bearer "}, 401), ({"x_api_key": "\xe9"}, 401),
])  # fmt: skip
def test_a_key_is_needed_where_there_is_one(engine: Engine, facts: Any, headers: dict[str, str], status: int) -> None:
    server = Server(engine, facts, key=KEY)
    found = server.get(**headers)
    assert found.status == status
    assert KEY not in server.stream.getvalue() + found.body.decode() + repr(AccessPolicy(ServeOptions(), 1, KEY))
    assert status == 200 or found.headers["www-authenticate"] == "Bearer"
    assert server.get("/health", **headers).status == 200


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLXBERT_API_KEY", raising=False)
    assert read_key(ServeOptions()) is None
    with pytest.raises(ArgumentError, match=r"`host` is '0\.0\.0\.0'"):
        read_key(ServeOptions(host="0.0.0.0"))
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    monkeypatch.setenv("MLXBERT_API_KEY", f"{KEY}2")
    assert read_key(ServeOptions(host="0.0.0.0")) == f"{KEY}2"
    assert read_key(ServeOptions(api_key_file=file)) == KEY
    for bad in ("", "short", "with a space in it", "ключ-который"):
        file.write_text(bad)
        with pytest.raises(ArgumentError, match="expected 8 or more") as caught:
            read_key(ServeOptions(api_key_file=file))
        assert not bad or bad not in caught.value.message
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_key(ServeOptions(api_key_file=tmp_path / "nothing"))


def test_the_address_of_a_server_for_all_can_be_opened_here_and_elsewhere() -> None:
    assert _for_others(ServeOptions(), 8484) == ""
    options = ServeOptions(host="0.0.0.0")
    assert address(options, 8484) == "http://127.0.0.1:8484" and address(options, 1) == "http://127.0.0.1:1"
    assert re.fullmatch(
        r"|, for other machines http://(?!127\.|0\.)\d+\.\d+\.\d+\.\d+:8484", _for_others(options, 8484)
    )


def test_bodies_are_limited_each_all_together_and_in_time(engine: Engine, facts: Any) -> None:
    server = Server(engine, facts, max_body=0.01)
    said = [("host", "localhost"), JSON, ("content-length", "10001")]
    assert server.post(headers=said, parts=[], forever=True).status == 413  # nothing is read
    assert server.post(parts=[b"x" * 4000] * 9, forever=True).json["error"]["code"] == "too_large"
    assert server.post(headers=[("host", "localhost"), JSON, ("content-length", "9" * 50)]).status == 413
    assert server.post({"input": "x" * 9000}).status != 413
    server = Server(engine, facts, max_body=0.001)
    guard: Any = server.app._app
    guard.hold(15_990)
    assert server.post(parts=[b"x" * 500], forever=True).status == 429
    assert guard._held == 15_990
    guard.hold(-15_990)
    assert server.post().status == 200 and guard._held == 0
    server = Server(engine, facts, read_seconds=0.05)
    found = server.post(parts=[b'{"input": '], forever=True)
    assert found.status == 408 and found.json["error"]["code"] == "timeout"


HOSTILE = {
    "deep": (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "many": (b'{"input": [' + b'"",' * 999_999 + b'""]}', 413), "surrogate": (b'{"input": "\\ud800"}', 400),
    "ignored surrogate": (b'{"input": "a", "user": "\\ud800"}', 200),
    "raw surrogate": (b'{"input": "\xed\xa0\x80"}', 400), "latin": (b'{"input": "\xe9"}', 400),
    "nan": (b'{"input": "a", "dimensions": NaN}', 400),
    "huge": (b'{"input": "a", "dimensions": 1' + b"0" * 500 + b"}", 400),
    "infinite": (b'{"input": "a", "dimensions": 1e999}', 400), "empty": (b"", 400), "null": (b"null", 400),
    "text": (b'"a"', 400), "cut": (b'{"input": "a', 400), "trailing": (b'{"input": "a"} {}', 400),
    "utf-16": ('{"input": "a"}'.encode("utf-16"), 400),
    "path as model": (b'{"input": "a", "model": "../../etc/passwd"}', 404), "nul": (b'{"input": "a\\u0000b"}', 200),
    "no texts": (b'{"input": []}', 400),
}  # fmt: skip


@together("name", HOSTILE)
def test_hostile_bodies_are_answered(server: Server, name: str) -> None:
    body, status = HOSTILE[name]
    found = server.post(body)
    assert found.status == status, found.body[:500]
    assert found.json
    assert b"Traceback" not in found.body and b".py" not in found.body and len(found.body) < 20_000
    assert not [line for line in server.lines if "trace" in line]


def test_errors_have_the_shape_of_their_path_name_its_methods_and_make_browsers_careful(server: Server) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        refused = server.post(headers=[("host", "localhost"), ("content-type", kind)])
        assert refused.status == 415 and b"application/json" in refused.body
    assert server.get(EMBED).json["error"]["code"] == "method" and server.get(EMBED).headers["allow"] == "POST"
    for path in ("/nothing", "/v1/models/../../etc/passwd", "/%2e%2e", "/" + "a" * 10_000, "/\x00", "//evil.example/"):
        found = server.get(path)
        assert found.status == 404 and "location" not in found.headers
    assert server.get("/nothing").json == {"error": "no route has this path", "hint": None, "kind": "not_found"}
    assert server.get("/v1/nothing").json["error"]["code"] == "not_found"
    assert "detail" in server.get("/v2/nothing").json and "detail" in server.get("/v1/rerank").json
    expected = {"/": "GET, HEAD, POST", EMBED: "POST", "/v1/models": "GET, HEAD", "/page.js": "GET, HEAD"}
    for path, methods in expected.items():
        found = ask(server.app, "DELETE", path)
        assert (found.status, found.headers["allow"]) == (405, methods)
    for found in (server.get(), server.get("/nothing"), server.get(host="x"), server.post(), server.post(b"{")):
        assert found.headers["x-content-type-options"] == "nosniff" and found.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in found.headers["content-security-policy"] and "server" not in found.headers


def test_a_request_that_fails_costs_only_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise KeyError("/secret/path")

    handler, log = LogHandler(Log(server.stream)), logging.getLogger("mlxbert.serve")
    monkeypatch.setattr(log, "handlers", [handler])
    with monkeypatch.context() as patch:
        patch.setattr(server.service, "run", fails)
        found = server.post()
    assert found.status == 500 and b"secret" not in found.body
    (trace,) = [line["trace"] for line in server.lines if "trace" in line]
    assert "/secret/path" in trace
    assert server.post().status == 200


@together("path", [EMBED, "/embed", "/"])
def test_only_what_passes_is_to_be_asked_again(tmp_path: Path, facts: Any, path: str) -> None:
    name, lasting = "input" if path == EMBED else "inputs", 424 if path == "/embed" else 500  # as the protocol has it
    with Engine({"tiny": str(tmp_path / "gone")}) as engine:
        server = Server(engine, facts)
        found = server.post({name: ["the cat"]}, path)
        assert found.status == lasting and "retry-after" not in found.headers
        assert str(tmp_path) not in found.body.decode()

        def fails(*_: object) -> None:
            raise OutOfMemoryError("planted")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mlxbert.serve.engine.model_thread.load", fails)
            found = server.post({name: ["the cat"]}, path)
        assert found.status == 503 and found.headers["retry-after"] == "1"


def test_what_the_engine_does_is_logged_like_requests(tiny_folder: Path) -> None:
    stream = io.StringIO()
    with logged(Log(stream)):
        with Engine([str(tiny_folder)], EngineOptions(idle_minutes=0.001)) as engine:
            engine.submit(str(tiny_folder), "embed", ["the cat"]).result()
            until = time.monotonic() + 10
            while engine.loaded and time.monotonic() < until:
                time.sleep(0.01)
        logging.getLogger("mlxbert").warning("the cat")  # a note of the library may quote a text
    logging.getLogger("mlxbert.serve").error("afterwards")
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["level"] == "info" and "unloaded" in line["message"]


def test_the_log_has_a_line_for_each_request_and_no_texts(server: Server) -> None:
    server.post({"input": ["the cat", "a dog"]})
    server.get("/v1/models/tiny\u2028\x1b[31m")
    server.get(host="evil.example")
    first, second, third = server.lines
    assert first.keys() == {
        *("time", "id", "method", "route", "status", "seconds", "tokens", "texts", "truncated", "client")
    }
    assert (first["method"], first["route"], first["status"], first["texts"]) == ("POST", EMBED, 200, 2)
    assert first["tokens"] == 8 and 0 < first["seconds"] < 60 and first["client"] == "127.0.0.1"
    assert (second["route"], second["status"], third["route"], third["status"]) == (
        "/v1/models/{name:path}", 404, "-", 421,
    )  # fmt: skip
    assert "the cat" not in server.stream.getvalue() and "\x1b" not in server.stream.getvalue()


def test_texts_are_logged_if_wanted_and_a_log_that_fails_costs_no_request(engine: Engine, facts: Any) -> None:
    server = Server(engine, facts, log_texts=True)
    server.post({"input": "the\n\x1b[31mcat\u202e"})
    (line,) = server.stream.getvalue().splitlines()
    assert json.loads(line)["items"] == [["the\n\x1b[31mcat\u202e"]] and line.isascii() and "\x1b" not in line
    full, quiet = Server(engine, facts), Server(engine, facts)
    full.app._log._stream = file = mock.Mock(isatty=lambda: False)
    file.write.side_effect = OSError(errno.ENOSPC, "No space left on device")
    assert (full.post().status, full.post().status) == (200, 200) and file.write.call_count >= 2
    quiet.app._log.requests = False
    assert quiet.post().status == 200 and quiet.lines == []


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_lines_to_read(engine: Engine, facts: Any) -> None:
    server = Server(engine, facts, log_texts=True)
    server.app._log._stream = server.stream = Terminal()
    found = server.post({"input": ["the cat\x1b[31m", "a dog"]})
    server.get("/nothing")
    handler = LogHandler(Log(server.stream))
    try:
        raise KeyError("planted")
    except KeyError:
        handler.emit(logging.LogRecord("x", logging.ERROR, "", 1, "a\x1b[2J", (), sys.exc_info()))
    first, second, third, *trace = server.stream.getvalue().splitlines()
    name = found.headers["x-request-id"]
    assert re.fullmatch(
        rf"\d\d:\d\d:\d\d POST {EMBED} 200 in [\d.]+ ms: 2 texts, \d+ tokens, 127\.0\.0\.1, {name}, \[\[.*\]\]", first
    )
    assert "the cat\\u001b[31m" in first and " GET - 404 in " in second
    assert third.endswith("error: a\\u001b[2J") and "KeyError: 'planted'" in trace[-1]
    assert "\x1b" not in server.stream.getvalue()


def test_metrics_count_what_was_asked_for_and_batches_above_all_bounds(server: Server) -> None:
    server.post({"input": ["the cat", "a dog"]})
    server.post(b"{")
    server.get("/nothing")
    found = server.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = found.body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values[f'mlxbert_http_requests_total{{method="POST",route="{EMBED}",status="200"}}'] == "1"
    assert values[f'mlxbert_http_requests_total{{method="POST",route="{EMBED}",status="400"}}'] == "1"
    assert values['mlxbert_http_requests_total{method="GET",route="-",status="404"}'] == "1"
    assert values[f'mlxbert_http_request_seconds_bucket{{route="{EMBED}",le="+Inf"}}'] == "2"
    assert values[f'mlxbert_http_request_seconds_count{{route="{EMBED}"}}'] == "2"
    assert float(values["mlxbert_batch_texts_sum"]) == float(values["mlxbert_texts_total"]) >= 2
    assert float(values["mlxbert_process_resident_bytes"]) > 1e6 and values["mlxbert_models_loaded"] == "1"
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert all(re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0]) in kinds for name in values)
    assert all(re.fullmatch(r"[-+0-9.e]+|inf", value) for value in values.values())

    def buckets() -> dict[str, int]:
        found = re.findall(r'^mlxbert_batch_texts_bucket{le="(.*)"} (\d+)$', server.get("/metrics").body.decode(), re.M)
        return {bound: int(number) for bound, number in found}

    before, sizes = buckets(), server.service.engine.counts.sizes
    for size in (1024, 1025, 2048, 2049, 100_000):
        sizes[(size - 1).bit_length()] += 1
    after = buckets()
    assert [after[bound] - before[bound] for bound in ("512", "1024", "+Inf")] == [0, 1, 5]


def test_health_says_whether_requests_are_answered(server: Server, tiny_folder: Path) -> None:
    assert server.get("/health").status == 200
    server.service.ready = False
    found = server.get("/health")
    assert (found.status, found.headers["retry-after"]) == (503, "1")
    assert [server.get("/v1/models").status, server.post().status] == [503, 503]
    server.service.ready = True
    assert [(line["route"], line["status"]) for line in server.lines] == [("/health", 200), (EMBED, 503)]
    with Engine([str(tiny_folder)]) as ended:
        pass
    server.service.engine = ended
    assert server.get("/health").status == 503 == server.lines[-1]["status"] and len(server.lines) == 3


WEB = ("http://localhost", "http://localhost:3000", "http://localhost:65535", "https://localhost:3000")
ELSEWHERE = (
    "http://localhost.evil.example", "http://localhost:3000.evil", "http://xlocalhost:3000", "null", "", "http://",
)  # fmt: skip
OF_MANY = ["vscode-webview://*", "https://*.example.org", "http://[::1]:*", "tauri://localhost"]
MEANT: tuple[str, ...] = (
    "vscode-webview://0jd1lpqmnv", "https://a.example.org", "https://a.b.example.org", "http://[::1]:80",
)  # fmt: skip
MEANT += ("tauri://localhost", "http://[::1]")
NOT_MEANT: tuple[str, ...] = (
    "vscode-webview://", "vscode-webviewx://a", "https://example.org", "https://a.example.org.evil",
)  # fmt: skip
NOT_MEANT += (
    "http://a.example.org",
    "https://a.example.org:8080",
    "https://evil/.example.org",
    "https://a.exampleXorg",
)
NOT_MEANT += ("tauri://localhost:1", "vscode-webview://a/b")


@together("given,sent", [
    ([], ()), (["http://localhost:3000"], WEB[1:2]), (["http://localhost:*"], WEB[:3]), (["http://localhost"], WEB[:1]),
    (["null"], ["null"]), (["https://*.localhost"], ()), (OF_MANY, MEANT),
])  # fmt: skip
def test_a_star_in_an_origin_stands_for_ports_hosts_and_names_below_a_domain(
    given: list[str], sent: tuple[str, ...]
) -> None:
    pattern = compile_origins(given)
    assert {one for one in (*WEB, *ELSEWHERE, *MEANT, *NOT_MEANT) if pattern.fullmatch(one)} == {*sent}


@together("given,hint", [
    ("*", "every website"), ("http://*", "every website"), ("https://*:*", "every website"),
    ("https://*:8443", "every website"), ("http://a.example/", "use http://a.example"),
    ("https://A.example", "use https://a.example"), ("https://a.example:443", "use https://a.example"),
    ("http://a.example:80/x?y", "use http://a.example"), ("http://me@a.example:81", "use http://a.example:81"),
    ("https://b\u00fccher.example", "use https://xn--bcher-kva.example"), ("file:///srv/page.html", "null"),
    ("localhost:3000", None), ("http://", None), ("http://local*", None), ("http://a b", None),
    ("http://localhost:30*", None), ("http://localhost:123456", None), ("http://localhost:65536", None),
    ("http://localhost:03000", None), ("http*://localhost", None), ("Null", None), ("", None),
])  # fmt: skip
def test_what_no_browser_sends_or_every_website_would_is_refused(given: str, hint: str | None) -> None:
    with pytest.raises(ArgumentError) as refused:
        compile_origins(["http://localhost:3000", given])
    assert repr(given) in refused.value.message and "expected" in refused.value.message
    assert hint in refused.value.hint if hint and refused.value.hint else hint is refused.value.hint


PAGE = Path(mlxbert.__file__).parent / "serve" / "http" / "page"


@pytest.fixture(scope="module")
def pages() -> TestClient:
    return TestClient(Starlette(routes=page_routes()))


@pytest.mark.parametrize("path", FILES)
def test_files_come_with_their_type_a_strict_policy_and_a_tag(pages: TestClient, path: str) -> None:
    name, media_type = FILES[path]
    reply = pages.get(path)
    assert reply.content == (PAGE / name).read_bytes()
    assert reply.headers["content-type"] == f"{media_type}; charset=utf-8"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    tag = reply.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = pages.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert pages.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert pages.head(path).headers["content-length"] == str(len(reply.content))
    assert pages.post(path).status_code == 405


@together("path", ["/index.html", "/page/page.js", "/../pages.py", "/%2e%2e/pages.py", "/page.js%00"])
def test_there_are_no_other_files(pages: TestClient, path: str) -> None:
    assert pages.get(path).status_code == 404


def test_files_have_nothing_that_the_policy_or_the_house_forbids() -> None:
    texts = {name: (PAGE / name).read_text(encoding="utf-8") for name, _ in FILES.values()}
    assert {*texts} == {path.name for path in PAGE.iterdir()}
    assert sum(text.count("\n") for text in texts.values()) <= 960
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", texts["index.html"])
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|[\s:]url\(", "".join(texts.values()))
    assert not re.search(r"(inner|outer|Adjacent)HTML|\beval\b|document\.write|Storage|cookie", texts["page.js"])
