"""A client for JSON over HTTP that has one connection to a server; its errors say what to do."""

import http.client
import json
import os
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from mlxbert.errors import ArgumentError, MlxbertError

KEY = "MLXBERT_API_KEY"
KEY_HINT = f"set {KEY} to the server's key"
SURROGATE = "contains half of a surrogate pair, which is not a character"
_MAX_TRIES, _MAX_WAIT = 5, 30.0  # requests to a busy server; seconds between two of them
_TIMEOUT = 600.0  # seconds
_MOST = 2**30  # bytes of an answer
_UNTRUSTED = (18, 19, 20, 21)  # OpenSSL's X509_V_ERR_…: self-signed, or signed by an unknown authority
_CERTIFICATES: Mapping[int, str] = {  # hints
    **dict.fromkeys(_UNTRUSTED, "set SSL_CERT_FILE=FILE to trust the certificates in a file"),
    **dict.fromkeys((9, 10), "check this machine's clock; if the time is right, the server needs a new certificate"),
    **dict.fromkeys((62, 64), "use an address that the certificate is valid for"),  # another name, another IP address
}


class HttpClient:
    """A client that has one connection to a server.

    The address may have a path, which is put before the paths of the routes. If it is wrong, the error calls it `name`
    and says with `hint` what to do.
    """

    def __init__(self, url: str, *, hint: str, name: str = "server") -> None:
        if "@" in url:
            raise ArgumentError(f"`{name}` contains a user name or a password, expected only an address", hint=KEY_HINT)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            shown = url.partition("?")[0]  # what follows may be a key
            raise ArgumentError(
                f"`{name}` is {shown!r:.100}, expected an address such as http://127.0.0.1:8484", hint=hint
            )
        self.url, self._path, self._hint = url.rstrip("/"), parts.path.rstrip("/"), hint
        self._connection = (
            http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=_trusted())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
        )
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := os.environ.get(KEY, "").strip():
            if not key.isascii() or not key.isprintable():
                raise ArgumentError(f"{KEY} contains characters that are not allowed in a key")
            self._headers["Authorization"] = f"Bearer {key}"

    def send(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Sends a POST, or a GET if there is no body; returns the status and the body of the answer.

        Retries while the server is busy.
        """
        try:
            data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"an option {SURROGATE}") from None
        for attempt in range(1, _MAX_TRIES + 1):
            status, wait, content = self._exchange(path, data)
            if status not in (429, 503) or attempt == _MAX_TRIES:
                break
            time.sleep(min(float(wait) if wait.isdecimal() else attempt, _MAX_WAIT))
        return status, content

    def close(self) -> None:
        self._connection.close()

    def _exchange(self, path: str, data: bytes | None) -> tuple[int, str, bytes]:
        """Sends a request; returns the status of the answer, its `Retry-After` header, and its body."""
        method = "GET" if data is None else "POST"
        for reused in (self._connection.sock is not None, False):
            try:
                self._connection.request(method, self._path + path, data, self._headers)
                answer = self._connection.getresponse()
                content = answer.read(_MOST + 1)
            except (OSError, http.client.HTTPException, UnicodeError) as problem:
                self._connection.close()
                if reused and isinstance(problem, ConnectionError):  # closed while it was idle
                    continue
                if isinstance(problem, ssl.SSLCertVerificationError):
                    raise self._distrust(problem) from None
                reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
                raise MlxbertError(
                    f"{self.url}{path}: the server cannot be reached ({reason})", hint=self._hint
                ) from None
            if len(content) > _MOST:
                self._connection.close()
                raise MlxbertError(f"{self.url}: the server's answer has more than {_MOST:,} bytes", hint=self._hint)
            return answer.status, answer.headers.get("Retry-After", ""), content
        raise AssertionError

    def _distrust(self, problem: ssl.SSLCertVerificationError) -> MlxbertError:
        reason, hint = problem.verify_message.rstrip("."), _CERTIFICATES.get(problem.verify_code)
        kind = "not trusted" if problem.verify_code in _UNTRUSTED else "not valid"
        return MlxbertError(f"{self.url}: the server's certificate is {kind} ({reason})", hint=hint)


def _trusted() -> ssl.SSLContext:
    """Returns a TLS context that trusts the certificates that Python finds.

    If it finds none, as in python.org's Python for Mac, the context trusts the certificates of certifi.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])  # this and the next setting are those of http.client's own contexts
    if context.post_handshake_auth is not None:
        context.post_handshake_auth = True
    if not _has_certificates(ssl.get_default_verify_paths()):
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context


def _has_certificates(paths: ssl.DefaultVerifyPaths) -> bool:
    if paths.cafile is not None:
        return True
    with suppress(OSError):
        return bool(paths.capath and os.listdir(paths.capath))
    return True  # OpenSSL can open files even in a folder that cannot be listed
