"""A server in its own process, as a user starts it."""

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

from tests.helpers.program import command, environment

PATIENCE = 240  # seconds for what takes a moment on a quiet machine


@dataclass
class Running:
    """A server in its own process."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)  # that it has written to stderr
    port: int = 0

    def follow(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def wait_for(self, text: str) -> str:
        return waited(lambda: next((line for line in self.lines if text in line), None), self.lines)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        asked = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        asked.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = asked.getresponse()
        response = answer.status, answer.read()
        asked.close()
        return response

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"^mlxbert_{name} (.*)$", self.ask("GET", "/metrics")[1].decode(), re.MULTILINE)
        return float(value)


def waited(find: Callable[[], Any], what: Any = None) -> Any:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if (value := find()) is not None:
            return value
        time.sleep(0.02)
    raise AssertionError(f"nothing has come: {what}")


@contextmanager
def started_server(*arguments: str, port: int = 0) -> Iterator[Running]:
    """Starts a server, waits until it is ready, and kills it when the context ends."""
    words = command("serve", *arguments, "--port", str(port))
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        server = Running(process)
        reader = threading.Thread(target=server.follow)
        reader.start()
        try:
            server.port = int(re.findall(r"http://[^/]*:(\d+)", server.wait_for("loading"))[0])
            server.wait_for("ready")
            yield server
        finally:
            process.kill()
            reader.join()


@contextmanager
def serving(*arguments: str, port: int = 0) -> Iterator[Running]:
    """Starts a server like `started_server`; when the context ends, checks that the server has written no traceback."""
    with started_server(*arguments, port=port) as server:
        yield server
    assert not [line for line in server.lines if "Traceback" in line]
