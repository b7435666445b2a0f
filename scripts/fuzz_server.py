"""Sends damaged requests to a server: `python scripts/fuzz_server.py [--requests N] [--seed N] [--only NUMBER]`.

The server is a separate process with a tiny model. Each mutant is sent over its own connection, in one or several
packets, by 32 clients; some of them disconnect before the answer. Findings are: more answers than requests in the
mutant, as counted by h11; an answer that is not HTTP; a 5xx other than 501; a traceback in the log; an undamaged
request without an answer; and a server that exits, or takes longer than half a second to answer `/health` in the
meantime. The exit status is the number of findings, at most 125. A mutant depends only on seed and number.
"""

import argparse
import json
import random
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import h11

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.server_process import started_server
from tests.helpers.tiny import save

CLIENTS = 32
HEALTH_SECONDS = 0.5  # within which `/health` must answer
PATIENCE = 60  # seconds for an answer
STRANGE = (
    b"\0", b"\r\n", b"\n", b"\r", b"[", b"{", b'"', b"\xff", b"-1", b"1e999", b"NaN", b"\\ud800", b"%00", b"..", b":",
    b" ", b"\t", b"0\r\n\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Upgrade: h2c\r\n",
    b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"9" * 20, b"HTTP/1.0",
)  # fmt: skip
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"


def request(method: bytes, path: bytes, body: bytes | None = None, headers: bytes = b"", *, chunks: int = 0) -> bytes:
    """A request. With `chunks`, the body is sent in chunks of this number of bytes, followed by trailers."""
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\n%s" % (method, path, headers)
    if body is None:
        return head + b"\r\n"
    head += b"Content-Type: application/json\r\n"
    if not chunks:
        return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    parts = (body[start : start + chunks] for start in range(0, len(body), chunks))
    sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\nX-Sum: 1\r\n\r\n"


def seeds() -> list[bytes]:
    """Valid requests."""
    openai = json.dumps({"input": ["the cat", "a\0b"], "model": "tiny", "dimensions": 3}).encode()
    texts = json.dumps({"texts": ["the cat sat on the mat"] * 40}).encode()
    single = [
        request(b"POST", b"/v1/embeddings", openai),
        request(b"POST", b"/v1/embeddings", openai, OFFER),
        request(b"POST", b"/v1/embeddings", openai, OFFER, chunks=20),
        request(b"POST", b"/api/embed", texts, chunks=300),
        request(b"POST", b"/api/embed", texts, b"Expect: 100-continue\r\n"),
        request(b"POST", b"/embed", b'{"inputs": ["the cat"]}', b"Connection: close\r\n"),
        request(b"POST", b"/v2/rerank", b'{"query": "a", "documents": ["the cat"]}'),
        request(b"POST", b"/", b'{"inputs": "the [MASK] sat"}', b"Origin: http://localhost\r\n"),
        request(b"GET", b"/health", headers=OFFER),
        request(b"GET", b"/v1/models/tiny?a=%20b", headers=b"If-None-Match: *\r\n"),
        request(b"HEAD", b"/metrics"),
        request(b"OPTIONS", b"/embed", headers=b"Access-Control-Request-Method: POST\r\n"),
    ]
    return [*single, single[0] + single[8], single[2] + single[1] + single[9], single[8] * 20]


SEEDS = seeds()


@dataclass(frozen=True)
class Mutant:
    """The bytes that a client sends.

    Attributes:
        packets: The packets, sent one after the other.
        leaves: Whether the client closes the connection without reading.
        damaged: Whether the bytes differ from all seeds.
    """

    packets: Sequence[bytes]
    leaves: bool
    damaged: bool


def mutant(seed: int, number: int) -> Mutant:
    """A damaged request."""
    draws = random.Random(f"{seed} {number}")
    data = bytearray(draws.choice(SEEDS))
    for _ in range(draws.choice((0, 1, 1, 1, 2, 5))):
        place = draws.randrange(len(data))
        insert = draws.choice((*STRANGE, draws.randbytes(3)))
        data[place : place + draws.choice((0, 0, 1, 4, 40))] = insert
    if draws.random() < 0.1:
        del data[draws.randrange(1, len(data)) :]
    sent = bytes(data)
    cuts = sorted(draws.randrange(len(sent)) for _ in range(draws.choice((0, 0, 1, 3))))
    packets = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    return Mutant([packet for packet in packets if packet], draws.random() < 0.1, sent not in SEEDS)


def count_requests(sent: bytes) -> int:
    """The number of requests, as h11 parses them; invalid bytes count as a request, and end the parsing."""
    connection, count = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20), 0
    connection.receive_data(sent)
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as problem:
            # h11 refuses requests without a host or with two hosts, empty lines, and several spaces in a request line;
            # the server continues.
            stricter = re.search("Host|request line", str(problem))
            return count + (sent.count(b" HTTP/1.") + 1 if stricter else 1)
        if event is h11.NEED_DATA:
            return count + bool(connection.trailing_data[0])
        if isinstance(event, h11.Request):
            count += 1
        if isinstance(event, h11.EndOfMessage):
            with suppress(h11.LocalProtocolError):
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return count
            connection.start_next_cycle()


def statuses(answer: bytes, sent: bytes) -> list[int]:
    """The statuses of the answers, without 1xx.

    Raises:
        ValueError: The bytes are not a sequence of complete answers.
    """
    codes, rest = list[int](), answer
    while rest:
        head, end, rest = rest.partition(b"\r\n\r\n")
        line = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        if not line or not end:
            raise ValueError(f"no answer: {answer!r:.300}")
        status = int(line[1])
        if status < 200:
            continue
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        size = int(length[1]) if length and status not in (204, 304) else 0
        if not sent.lstrip().startswith(b"HEAD") or not (rest == b"" or rest.startswith(b"HTTP/1.1")):
            if len(rest) < size:
                raise ValueError(f"an incomplete answer: {answer!r:.300}")
            rest = rest[size:]
        codes.append(status)
    return codes


class Health:
    """Polls `/health` continuously, and records the longest time that an answer takes."""

    def __init__(self, port: int) -> None:
        self._port, self._ended, self.slowest = port, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Health":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ended.wait(0.02):
            begun = time.monotonic()
            answer = exchange(
                self._port, Mutant([request(b"GET", b"/health", headers=b"Connection: close\r\n")], False, False)
            )
            if not answer.startswith(b"HTTP/1.1 200 "):
                self.slowest = float("inf")
            self.slowest = max(self.slowest, time.monotonic() - begun)


def exchange(port: int, mutant: Mutant) -> bytes:
    """Sends a mutant, and returns the answer of the server."""
    parts = []
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in mutant.packets:
            client.sendall(packet)
            if len(mutant.packets) > 1:
                time.sleep(0.001)
        if mutant.leaves:
            return b""
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def check(port: int, mutant: Mutant) -> tuple[str, str | None]:
    """The outcome of a mutant, and the finding if any."""
    sent = b"".join(mutant.packets)
    answer = exchange(port, mutant)
    if mutant.leaves:
        return "left", None
    try:
        codes = statuses(answer, sent)
    except ValueError as problem:
        return "broken", str(problem)
    outcome = "none" if not codes else str(codes[-1]) if len(codes) == 1 else "several"
    requests = count_requests(sent)
    if len(codes) > requests:
        return outcome, f"{len(codes)} answers to {requests} requests: {codes}"
    if any(status >= 500 and status != 501 for status in codes):  # 501: a transfer coding other than chunked
        return outcome, f"{codes}: {answer!r:.500}"
    if not mutant.damaged and len(codes) != requests:
        return outcome, f"{len(codes)} answers to {requests} valid requests: {codes}"
    return outcome, None


def fuzz(count: int, seed: int, only: int | None = None) -> tuple[Counter[str], list[str], float]:
    """Sends mutants; returns the outcomes, the findings, and the longest time of `/health`."""
    outcomes, findings = Counter[str](), []
    numbers = range(count) if only is None else [only]
    with (
        tempfile.TemporaryDirectory() as folder,
        started_server(f"tiny={save(Path(folder) / 'tiny')}", "--read-seconds", "1") as server,
    ):
        with ThreadPoolExecutor(CLIENTS) as pool, Health(server.port) as health:
            for number, (outcome, finding) in zip(
                numbers, pool.map(lambda number: check(server.port, mutant(seed, number)), numbers), strict=True
            ):
                outcomes[outcome] += 1
                if finding:
                    findings.append(f"{number}: {finding}")
        if server.process.poll() is not None:
            findings.append(f"the server ended with {server.process.returncode}")
        findings += [f"a traceback: {line:.2000}" for line in server.lines if "Traceback" in line or '"trace"' in line]
    if health.slowest > HEALTH_SECONDS:
        findings.append(f"/health took {health.slowest:.2f} s")
    return outcomes, findings, health.slowest


def main() -> int:
    """Prints the outcomes and the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    args = parser.parse_args()
    outcomes, findings, slowest = fuzz(args.requests, args.seed, args.only)
    print(f"{sum(outcomes.values()):,} mutants: {dict(outcomes.most_common())}")
    print(f"/health took {1000 * slowest:.0f} ms at most")
    for finding in findings:
        print(finding)
    return min(len(findings), 125)


if __name__ == "__main__":
    sys.exit(main())
