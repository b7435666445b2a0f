"""A Hugging Face hub on this machine. It answers the requests of huggingface_hub and can be made to fail."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from socketserver import TCPServer
from typing import Any, TypeVar
from unittest import mock
from urllib.parse import unquote, urlsplit

from tests.helpers.program import Outcome, call, terminal

Files = dict[str, bytes]
Result = TypeVar("Result")


def hashes_of(file: str, data: bytes) -> dict[str, str]:
    """Returns the headers with a file's hashes, as on the hub: git's blob hash, and SHA-256 for a large file."""
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    large = file.endswith((".safetensors", ".bin", ".onnx", ".model"))
    return {"ETag": f'"{git}"'} | ({"X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"'} if large else {})


def files_of(folder: Path) -> Files:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass
class Repository:
    """A model on the fake hub."""

    commits: dict[str, Files] = field(default_factory=dict)  # by their hashes
    references: dict[str, str] = field(default_factory=dict)  # the commits of branches and tags
    listed: tuple[str, ...] = ()  # names that the hub lists in addition to the files
    token: str | None = None  # without which the repository is hidden
    gated: bool = False  # whether requests for files are rejected
    dropped: dict[str, int] = field(default_factory=dict)  # after how many bytes of a file the connection breaks, once
    status: int | None = None  # of every response, if it is not 200
    redirected: str = ""  # the hub to which requests for files are redirected, as the real hub does for large files
    whole: bool = False  # whether a request for a part of a file returns the whole file
    lies: dict[str, Any] = field(default_factory=dict)  # headers of a file, by name, or `sha` and `size` in the listing
    # May answer in place of the hub, and returns whether it has, for a file (or "", the listing) and its bytes.
    answer: Callable[[BaseHTTPRequestHandler, str, bytes], bool] | None = None
    private: bool = False

    def commit(self, files: Mapping[str, bytes], *references: str) -> str:
        """Adds a commit to which the references then refer; returns its hash."""
        listing = "".join(f"{name}\0{hashlib.sha1(data).hexdigest()}" for name, data in sorted(files.items()))
        commit = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.references |= dict.fromkeys(references or ("main",), commit)
        return commit


@dataclass
class FakeHub:
    """The fake hub: its models, and the requests that it received."""

    url: str = ""  # for HF_ENDPOINT
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)  # `METHOD path` of each, in order
    headers: list[dict[str, str]] = field(default_factory=list)  # of each request
    served: list[tuple[str, int, int]] = field(default_factory=list)  # a file, and the first and the end of its bytes
    left: SimpleQueue[str] = field(default_factory=SimpleQueue)  # files that a client did not read to their end
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, files: Mapping[str, bytes]) -> Repository:
        repository = self.repositories[name] = Repository()
        repository.commit(files)
        return repository

    def fetched(self) -> set[str]:
        paths = [request.removeprefix("GET ") for request in self.requests if request.startswith("GET /")]
        return {"/".join(path.split("/")[5:]) for path in paths if "/resolve/" in path}

    def forget(self) -> None:
        self.requests.clear()
        self.headers.clear()
        self.served.clear()


class HubHandler(BaseHTTPRequestHandler):
    """Answers the requests of downloads."""

    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(self.record())

    do_HEAD = do_GET

    def record(self) -> str:
        """Adds the request to the hub's lists; returns its path."""
        path = unquote(urlsplit(self.path).path)
        with self.hub.lock:
            self.hub.requests.append(f"{self.command} {path}")
            self.hub.headers.append({key.lower(): value for key, value in self.headers.items()})
        return path

    def answer(self, path: str) -> None:
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, kind, rest = "/".join(parts[2:4]), (parts[4:5] or ["revision"])[0], parts[5:] or ["main"]
        else:
            name, kind, rest = "/".join(parts[:2]), "resolve", parts[3:]
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.token and self.headers["authorization"] != f"Bearer {repository.token}"):
            return self.refuse(401 if repository else 404, "RepoNotFound")
        if repository.status is not None:
            return self.refuse(repository.status, None)
        revision = rest[0] if kind == "resolve" else "/".join(rest)
        commit = repository.references.get(revision, revision)
        if commit not in repository.commits:
            return self.refuse(404, "RevisionNotFound")
        file = "/".join(rest[1:]) if kind == "resolve" else ""
        if repository.answer is not None and repository.answer(self, file, repository.commits[commit].get(file, b"")):
            return None
        if kind == "resolve":
            return self._file(repository, commit, file)
        self._list(name, kind, repository, commit)

    def _list(self, name: str, kind: str, repository: Repository, commit: str) -> None:
        files = repository.commits[commit] | dict.fromkeys(repository.listed, b"7 bytes")
        if kind == "tree":
            self.json([_in_tree(file, data) for file, data in files.items()])
        else:
            size = repository.lies.get("size")
            listed = [_listed(file, data) | ({"size": size} if size else {}) for file, data in files.items()]
            sha = repository.lies.get("sha", commit)
            self.json({"id": name, "sha": sha, "siblings": listed, "private": repository.private})

    def _file(self, repository: Repository, commit: str, file: str) -> None:
        if repository.gated:
            return self.refuse(403, "GatedRepo")
        data = repository.commits[commit].get(file)
        if data is None:
            return self.refuse(404, "EntryNotFound", {"X-Repo-Commit": commit} | repository.lies)
        if repository.redirected and self.command == "GET" and "?" not in self.path:
            return self.refuse(302, None, {"Location": f"{repository.redirected}{self.path}?elsewhere"})
        byte_range = None if repository.whole else self.headers["range"]
        first, _, last = (byte_range or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)) + bool(last), len(data))
        broken = repository.dropped.pop(file, None) if self.command == "GET" else None  # before the client continues
        self.send_response(206 if byte_range else 200)
        truth = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data))} | hashes_of(file, data)
        for header, value in (truth | repository.lies).items():
            self.send_header(header, str(value))
        self.send_header("Accept-Ranges", "bytes")
        if byte_range:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "GET":
            sent = end if broken is None else min(broken, end)
            with self.hub.lock:
                self.hub.served.append((file, start, sent))
            try:
                self.wfile.write(data[start:sent])
            except OSError:
                self.hub.left.put(file)
                raise
            self.close_connection = broken is not None

    def json(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, code: str | None, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        named = ({"X-Error-Code": code} if code else {}) | dict(headers or {}) | {"Content-Length": "0"}
        for key, value in named.items():
            self.send_header(key, value)
        self.end_headers()


def _listed(file: str, data: bytes) -> dict[str, Any]:
    hashes = {header: value.strip('"') for header, value in hashes_of(file, data).items()}
    entry = {"rfilename": file, "size": len(data), "blobId": hashes["ETag"]}
    if "X-Linked-ETag" in hashes:
        entry["lfs"] = {"sha256": hashes["X-Linked-ETag"], "size": len(data), "pointerSize": 130}
    return entry


def _in_tree(file: str, data: bytes) -> dict[str, Any]:
    listed = _listed(file, data)
    large = {"lfs": listed["lfs"] | {"oid": listed["lfs"]["sha256"]}} if "lfs" in listed else {}
    return {"type": "file", "path": file, "size": len(data), "oid": listed["blobId"], **large}


class QuietServer(ThreadingHTTPServer):
    """An HTTP server that logs neither requests nor errors."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Binds the address without looking up the name of this machine, which takes seconds on some Macs."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts a client. The headers of an answer are sent at once: a client might wait 40 ms for the rest of it."""
        client, place = super().get_request()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client, place

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors: tests kill clients in the middle of a response."""


@contextmanager
def serve(hub: FakeHub | None = None, handler: type[HubHandler] = HubHandler) -> Iterator[FakeHub]:
    hub = FakeHub() if hub is None else hub
    server = QuietServer(("127.0.0.1", 0), type("Handler", (handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)  # ends soon after shutdown()
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def client_settings(home: str, endpoint: str, offline: str) -> Iterator[None]:
    """Makes huggingface_hub use another cache and hub; it reads the environment only when it is imported."""
    from huggingface_hub import close_session, constants

    settings: dict[str, Any] = {
        "HF_HOME": home, "HF_HUB_CACHE": f"{home}/hub", "HF_TOKEN_PATH": f"{home}/token", "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "AGENT_HARNESSES_PATH": f"{home}/agents.json", "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": offline.lower() in ("1", "yes", "true", "on"),
    }  # fmt: skip
    known: dict[str, Any] = {name: value for name, value in settings.items() if hasattr(constants, name)}
    with mock.patch.multiple(constants, **known):
        close_session()
        yield


def _with_hub(run: Callable[..., Result], *arguments: str, **variables: str) -> Result:
    offline = variables["HF_HUB_OFFLINE"] or variables["TRANSFORMERS_OFFLINE"]
    with client_settings(variables["HF_HOME"], variables["HF_ENDPOINT"], offline):
        return run(*arguments, **variables)


call_with_hub: Callable[..., Outcome] = partial(_with_hub, call)
terminal_with_hub: Callable[..., tuple[Outcome, str]] = partial(_with_hub, terminal)
