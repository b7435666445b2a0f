"""Patterns for the origins of web pages that may send requests."""

import re
from collections.abc import Iterable

from mlxbert.errors import ArgumentError

_DEFAULT_PORTS = {"http": "80", "https": "443"}
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://([^/?#@:\s*\[\]]+|\[[0-9a-f:.]+\]|\*|\*\.[^/?#@:\s*\[\]]+)(?::([1-9]\d{0,4}|\*))?", re.A
)
_EXPECTED = (
    "an origin such as http://localhost:3000, http://localhost:*, https://*.example.org, vscode-webview://* or null"
)


def compile_origins(origins: Iterable[str]) -> re.Pattern[str]:
    """Compiles origins to a pattern that matches them as browsers send them.

    `*` stands for any port or all subdomains; in schemes other than http and https, it can also stand for any host.
    `null` is the origin of files, and of frames without an origin.
    """
    return re.compile("|".join(f"(?:{_pattern(origin)})" for origin in origins) or r"(?!)")


def _pattern(origin: str) -> str:
    if origin == "null":
        return origin
    match = _ORIGIN.fullmatch(origin)
    scheme, host, port = match.groups() if match else ("", "", None)
    invalid = port not in (None, "*") and int(port) > 65_535
    if scheme in _DEFAULT_PORTS:
        invalid |= host == "*" or host != _browser_form(host) or port == _DEFAULT_PORTS[scheme]
    if not match or invalid:
        raise ArgumentError(f"allow_origin is {origin!r:.100}, expected {_EXPECTED}", hint=_hint(origin))
    names = {"*": r"[^/:\s]+"}.get(host, re.escape(host).replace(r"\*", r"[^/:\s]+"))
    ports = {None: "", "*": r"(?::\d+)?"}.get(port, f":{port}")
    return f"{re.escape(scheme)}://{names}{ports}"


def _browser_form(host: str) -> str:
    """Returns a host as a browser sends it."""
    try:
        return host.lower().encode("ascii" if host.isascii() else "idna").decode()
    except UnicodeError:
        return host


def _hint(origin: str) -> str | None:
    """Suggests a valid origin if it is clear which one was meant."""
    scheme, _, rest = origin.lower().partition("://")
    place = re.split(r"[/?#]", rest)[0].rpartition("@")[2]
    if origin == "*" or (scheme in _DEFAULT_PORTS and re.fullmatch(r"\*(:.*)?", place)):
        return "list the allowed origins instead of allowing every website"
    if scheme == "file":
        return "use null, which is the origin of pages in local files"
    host, colon, port = place.partition(":") if not place.startswith("[") else (place, "", "")
    port = "" if port == _DEFAULT_PORTS.get(scheme) else port
    better = f"{scheme}://{_browser_form(host)}{colon if port else ''}{port}"
    return f"use {better}, which is what browsers send" if better != origin and _ORIGIN.fullmatch(better) else None
