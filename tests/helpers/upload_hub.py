"""A fake hub that also takes uploads: accounts, new repositories, large files, and commits."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.helpers.fake_hub import FakeHub, HubHandler, Repository, hashes_of, serve

TOKEN, READ_TOKEN = "hf_" + "w" * 34, "hf_" + "r" * 34
USER = "maria"
Fault = Callable[[BaseHTTPRequestHandler, bytes], bool]


@dataclass
class UploadHub(FakeHub):
    """A fake hub with the account of one user."""

    stored: dict[str, bytes] = field(default_factory=dict)  # the large files that have arrived, by their SHA-256
    # May answer a request in place of the hub, and return whether they have: by its kind (`whoami`, `create`, `branch`,
    # `validate`, `preupload`, `batch`, `put`, `complete`, `verify`, `commit`), for the handler and the body.
    faults: dict[str, Fault] = field(default_factory=dict)
    chunk: int | None = None  # the size of the parts in which large files must be sent; `None` for whole files
    remarks: list[str] = field(default_factory=list)  # about the front matter of a card
    messages: list[str] = field(default_factory=list)  # of the commits, in order
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def changes(self) -> list[str]:
        return [request for request in self.requests if not request.startswith(("GET", "HEAD"))]

    def chunks_sent(self) -> list[str]:
        return [request for request in self.requests if request.startswith("PUT")]

    def content(self, name: str, revision: str = "main") -> dict[str, bytes]:
        repository = self.repositories[name]
        return repository.commits[repository.references[revision]]


class _UploadHandler(HubHandler):
    hub: UploadHub

    def do_GET(self) -> None:
        path = self.record()
        if path == "/api/whoami-v2":
            self._faulty("whoami", b"", self._whoami)
        else:
            self.answer(path)

    def do_PUT(self) -> None:
        path, body = self.record(), self._body()
        self._faulty("put", body, lambda body: self._store(path.removeprefix("/storage/"), body))

    def do_POST(self) -> None:
        path, body = self.record(), self._body()
        parts = path.strip("/").split("/")
        if parts[0] == "storage":
            return self._faulty("complete", body, self._complete)
        if (token := self.headers["authorization"]) != f"Bearer {TOKEN}":
            return self._error(403 if token else 401, "You don't have the rights to write here")
        usual = {
            "create": self._create, "validate-yaml": self._validate, "batch": self._batch, "verify": self._verify,
        }  # fmt: skip
        for name in {parts[0], parts[-1]} & {*usual}:
            return self._faulty(name.removesuffix("-yaml"), body, usual[name])
        return self._in_repository("/".join(parts[2:4]), parts[4], "/".join(parts[5:]), body)

    def _in_repository(self, name: str, kind: str, revision: str, body: bytes) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self.refuse(404, "RepoNotFound")
        if kind == "branch":
            return self._faulty("branch", body, lambda body: self._branch(repository, revision, body))
        if revision not in repository.references:
            return self.refuse(404, "RevisionNotFound")
        if kind == "preupload":
            return self._faulty("preupload", body, lambda body: self._preupload(repository, revision, body))
        return self._faulty("commit", body, lambda body: self._commit(name, repository, revision, body))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"] or 0))

    def _faulty(self, kind: str, body: bytes, usual: Callable[[bytes], None]) -> None:
        fault = self.hub.faults.get(kind)
        if fault is None or not fault(self, body):
            usual(body)

    def _error(self, status: int, message: str) -> None:
        self.json({"error": message}, status)

    def _whoami(self, body: bytes) -> None:
        token = (self.headers["authorization"] or "").removeprefix("Bearer ")
        if token not in (TOKEN, READ_TOKEN):
            return self._error(401, "Invalid username or password.")
        role = "write" if token == TOKEN else "read"
        return self.json(
            {"type": "user", "name": USER, "orgs": [], "auth": {"accessToken": {"displayName": "t", "role": role}}}
        )

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization'] or USER}/{asked['name']}"
        if asked["organization"] not in (USER, None):
            return self._error(403, f'You don\'t have the rights to create a model under the namespace "{name}"')
        if name in self.hub.repositories:
            return self._error(409, "You already created this model repo")
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.hub.repositories[name] = Repository(token=TOKEN if private else None, private=private)
        self.hub.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return self.json({"url": f"{self.hub.url}/{name}", "name": name})

    def _branch(self, repository: Repository, revision: str, body: bytes) -> None:
        if revision in repository.references:
            return self._error(409, "Reference already exists")
        start = json.loads(body).get("startingPoint", "main")
        repository.references[revision] = repository.references.get(start, start)
        return self.json({})

    def _validate(self, body: bytes) -> None:
        self.json({"warnings": [{"message": remark} for remark in self.hub.remarks], "errors": []})

    def _preupload(self, repository: Repository, revision: str, body: bytes) -> None:
        present = repository.commits[repository.references[revision]]
        answers = []
        for file in json.loads(body)["files"]:
            data = present.get(file["path"])
            mode = "lfs" if "X-Linked-ETag" in hashes_of(file["path"], b"") else "regular"
            oid = None if data is None else hashlib.sha256(data).hexdigest()
            if data is not None and mode == "regular":
                oid = hashes_of(file["path"], data)["ETag"].strip('"')
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.json({"files": answers})

    def _batch(self, body: bytes) -> None:
        objects = []
        for item in json.loads(body)["objects"]:
            oid, size = item["oid"], item["size"]
            entry: dict[str, Any] = {"oid": oid, "size": size}
            if oid not in self.hub.stored:
                entry["actions"] = {
                    "upload": self._place(oid, size),
                    "verify": {"href": f"{self.hub.url}/verify/{oid}"},
                }
            objects.append(entry)
        self.json({"transfer": "basic" if self.hub.chunk is None else "multipart", "objects": objects})

    def _place(self, oid: str, size: int) -> dict[str, Any]:
        url = f"{self.hub.url}/storage/{oid}"
        if self.hub.chunk is None:
            return {"href": f"{url}?Signature=hidden"}
        count = -(-size // self.hub.chunk)
        urls = {str(part): f"{url}/{part}?Signature=hidden" for part in range(1, count + 1)}
        return {"href": url, "header": {"chunk_size": str(self.hub.chunk), **urls}}

    def _store(self, place: str, body: bytes) -> None:
        oid, _, part = place.partition("/")
        if part:
            self.hub.parts.setdefault(oid, {})[int(part)] = body
        elif hashlib.sha256(body).hexdigest() != oid:
            return self.refuse(400, None)
        else:
            self.hub.stored[oid] = body
        return self.refuse(200, None, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def _complete(self, body: bytes) -> None:
        oid = json.loads(body)["oid"]
        self._store(oid, b"".join(data for _, data in sorted(self.hub.parts.pop(oid).items())))

    def _verify(self, body: bytes) -> None:
        asked = json.loads(body)
        data = self.hub.stored.get(asked["oid"])
        self.refuse(200 if data is not None and len(data) == asked["size"] else 404, None)

    def _commit(self, name: str, repository: Repository, revision: str, body: bytes) -> None:
        header, *operations = (json.loads(line) for line in body.splitlines())
        parent = repository.references[revision]
        if header["value"].get("parentCommit", parent) != parent:
            return self._error(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.commits[parent])
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "lfsFile" and value["oid"] not in self.hub.stored:
                return self._error(400, f"{value['path']} was not uploaded")
            large = operation["key"] == "lfsFile"
            files[value["path"]] = self.hub.stored[value["oid"]] if large else base64.b64decode(value["content"])
        self.hub.messages.append(header["value"]["summary"])
        commit = repository.commit(files, revision)
        return self.json({"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit, "success": True})


@contextmanager
def serve_uploads() -> Iterator[UploadHub]:
    hub = UploadHub()
    with serve(hub, _UploadHandler):
        yield hub
