"""Servers that answer in place of a hub and misbehave, for `Repository.answer` of the fake hub."""

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

Lie = Callable[[BaseHTTPRequestHandler, str, bytes], bool]
PAGE = b"<!doctype html><title>Log in</title>" * 40
STALL = 60.0  # seconds


def send(
    handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, length: int | None = None, **headers: str
) -> bool:
    """Sends a whole response; its header states `length` bytes."""
    handler.send_response(status)
    for key, value in headers.items():
        handler.send_header(key.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
        handler.close_connection = length is not None
    return True


def only_get(lie: Lie) -> Lie:
    """Applies a lie to the content of a file only; requests for headers get true answers."""
    return lambda handler, file, data: handler.command == "GET" and lie(handler, file, data)


def status(number: int, **headers: str) -> Lie:
    return lambda handler, file, data: send(handler, b"", number, None, **headers)


def page(number: int) -> Lie:
    return lambda handler, file, data: send(handler, PAGE, number, Content_Type="text/html; charset=utf-8")


@only_get
def longer(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
    return send(handler, data + b"x" * 10)


@only_get
def endless(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    while True:
        handler.wfile.write(data or b" " * 2**16)


@only_get
def shorter(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
    """Sends fewer bytes than the file has, as if they were the whole file."""
    return send(handler, data[:-10])


@only_get
def cut(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
    """Always starts at the first byte, and closes the connection in the middle."""
    return send(handler, data[: len(data) // 2], length=max(10, len(data)))


@only_get
def other_bytes(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
    """Sends other bytes than the file has, but the right number."""
    return send(handler, bytes(byte ^ 1 for byte in data) or b"?")


def redirect(address: str) -> Lie:
    return only_get(lambda handler, file, data: send(handler, b"", 302, Location=address))


@only_get
def stall(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
    """Sends half of the file, then nothing, but keeps the connection open."""
    send(handler, data[: len(data) // 2], length=max(10, len(data)))
    time.sleep(STALL)
    return True


def silence(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
    time.sleep(STALL)
    return True
