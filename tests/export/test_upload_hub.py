"""Uploads to a hub on this machine: what arrives, what the user reads of each failure, and that no secret is shown."""

import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import HubError
from tests.helpers.fake_hub import call_with_hub, client_settings, files_of, terminal_with_hub
from tests.helpers.hub_machine import Machine
from tests.helpers.lying_hub import PAGE, send
from tests.helpers.program import Outcome, command, environment, tiny_model, unprivileged
from tests.helpers.screen import Screen
from tests.helpers.upload_hub import READ_TOKEN, TOKEN, Fault, UploadHub, serve_uploads

pytestmark = pytest.mark.slow

NAME = "maria/tiny"
CARD = "---\nlicense: mit\n---\n# Tiny\n"
SENT = {"README.md", "LICENSE", "config.json", "vocab.txt", "model.safetensors"}
PRIVATE = {
    ".env": "KEY=1", "optimizer.pt": "x", "training.json": "{}", "id_rsa": "x", "runs/000/state.npz": "x",
    "logs/events.jsonl": "{}", ".cache/x": "x", "checkpoint-10/model.safetensors": "x",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model, with files that must stay on the machine."""
    folder = tiny_model(tmp_path / "tiny")
    for name, text in (PRIVATE | {"README.md": CARD, "LICENSE": "MIT"}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def hub() -> Iterator[UploadHub]:
    with serve_uploads() as hub:
        yield hub


@pytest.fixture
def variables(hub: UploadHub, tmp_path: Path) -> dict[str, str]:
    return Machine(hub, tmp_path / "home").variables | {"HF_TOKEN": TOKEN}


@pytest.fixture
def quick() -> Iterator[None]:
    """Repeated requests without waits."""
    clock = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    with mock.patch("huggingface_hub.utils._http.time", clock):
        yield


Sent = Callable[..., Outcome]


@pytest.fixture
def upload(variables: dict[str, str], model: Path) -> Sent:
    """Uploads the model with the command; nobody ever reads a token."""

    def run(*words: str, **more: str) -> Outcome:
        outcome = call_with_hub("models", "upload", str(model), *words, **variables | more)
        assert not any(secret in outcome.out + outcome.err for secret in (TOKEN, READ_TOKEN, "Signature"))
        return outcome

    return run


def facts(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome
    (found,) = outcome.lines
    assert isinstance(found, dict)
    return found


def local(model: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(model).items() if name in SENT}


def arrived(hub: UploadHub, revision: str = "main") -> dict[str, bytes]:
    return {file: data for file, data in hub.content(NAME, revision).items() if file != ".gitattributes"}


@pytest.mark.parametrize("chunk", [None, 7_000])
def test_a_model_arrives_unchanged_and_opens(
    hub: UploadHub, upload: Sent, variables: dict[str, str], model: Path, chunk: int | None
) -> None:
    hub.chunk = chunk
    outcome = upload("tiny", "--message", "A first try")
    found, files, repository = facts(outcome), local(model), hub.repositories[NAME]
    assert arrived(hub) == files and repository.private
    assert (found["name"], found["url"], found["public"], found["created"]) == (NAME, f"{hub.url}/{NAME}", False, True)
    assert (found["commit"], found["bytes"]) == (repository.references["main"], sum(map(len, files.values())))
    sent = {file["path"]: (file["bytes"], file["change"]) for file in found["files"]}
    assert sent == {name: (len(data), "new") for name, data in files.items()}
    assert {name.split("/")[0] for name in PRIVATE} == {name.rstrip("/") for name in found["left_out"]}
    assert all(name in outcome.err for name in (*SENT, ".env", "optimizer.pt"))
    assert hub.messages == ["A first try"] and len(hub.chunks_sent()) == (1 if chunk is None else 5)
    text = ["fill-mask", "the [MASK] sat", "--model"]
    assert call_with_hub(*text, NAME, **variables).out == call_with_hub(*text, str(model), **variables).out


def test_a_second_upload_sends_what_changed(hub: UploadHub, upload: Sent, model: Path) -> None:
    first = facts(upload(NAME))
    hub.repositories[NAME].commit(hub.content(NAME) | {"notes.txt": b"kept"})
    (model / "README.md").write_text(CARD + "More.\n", encoding="utf-8")
    hub.forget()
    second = facts(upload(NAME))
    changes = {file["path"]: file["change"] for file in second["files"]}
    assert changes == dict.fromkeys(SENT, "same") | {"README.md": "changed"}
    assert (second["created"], second["kept"]) == (False, [".gitattributes", "notes.txt"])
    assert second["bytes"] == len(CARD + "More.\n") and second["commit"] != first["commit"]
    assert arrived(hub) == local(model) | {"notes.txt": b"kept"}
    assert not [request for request in hub.requests if "storage" in request or "create" in request]
    hub.forget()
    third = facts(upload(NAME))
    assert third["commit"] == second["commit"] and third["bytes"] == 0 and hub.changes() == []


def test_a_branch_is_created_from_the_commit_that_was_planned(hub: UploadHub, upload: Sent, model: Path) -> None:
    facts(upload(NAME))
    planned = hub.content(NAME) | {"notes.txt": b"kept"}
    main = hub.repositories[NAME].commit(planned)
    (model / "README.md").write_text(CARD + "More.\n", encoding="utf-8")

    def meanwhile(handler: BaseHTTPRequestHandler, body: bytes) -> bool:
        hub.repositories[NAME].commit(planned | {"later.txt": b"theirs"})
        return False

    hub.faults["branch"] = meanwhile
    for extra in (["--dry-run"], []):
        found = facts(upload(NAME, "--revision", "v2", *extra))
        changes = {file["path"]: file["change"] for file in found["files"]}
        assert changes == dict.fromkeys(SENT, "same") | {"README.md": "changed"}
        assert found["kept"] == [".gitattributes", "notes.txt"] and found["bytes"] == len(CARD + "More.\n")
        assert ("v2" in hub.repositories[NAME].references) == (not extra)
    assert arrived(hub, revision="v2") == local(model) | {"notes.txt": b"kept"}
    assert found["commit"] == hub.repositories[NAME].references["v2"] and "later.txt" in arrived(hub)
    hub.forget()
    assert facts(upload(NAME, "--revision", "v2"))["commit"] == found["commit"]
    assert hub.changes() == []
    hub.faults.clear()
    hub.repositories[NAME].references["main"] = main
    (model / "README.md").write_text(CARD, encoding="utf-8")
    same = facts(upload(NAME, "--revision", "v3"))
    assert same["bytes"] == 0 and same["commit"] == hub.repositories[NAME].references["v3"] == main


def test_public_needs_a_yes(hub: UploadHub, upload: Sent) -> None:
    upload(NAME, "--public").fails(2, "confirmation", "hint: --yes")
    assert facts(upload(NAME, "--public", "--dry-run"))["commit"] is None
    assert hub.changes() == []
    assert facts(upload(NAME, "--public", "--yes"))["public"] is True
    assert not hub.repositories[NAME].private
    upload(NAME).fails(2, "everybody can read", "hint: --public")
    upload(NAME, "--public").fails(2, "confirmation")
    facts(upload("maria/closed"))
    upload("maria/closed", "--public", "--yes").fails(2, "is private")


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_asks_before_it_is_public(
    hub: UploadHub, variables: dict[str, str], model: Path, answer: str
) -> None:
    with Screen() as screen:
        running = subprocess.Popen(
            command("models", "upload", str(model), NAME, "--public"),
            env=environment(**variables, TERM="xterm", NO_COLOR="1", COLUMNS="200"),
            stdin=screen.inner, stderr=screen.inner, stdout=subprocess.PIPE,
        )  # fmt: skip
        screen.wait_for(b"[y/N]: ")
        assert hub.changes() == []
        screen.type(answer.encode() + b"\n")
        out, _ = running.communicate(timeout=60)
        shown = screen.shown()
    assert running.returncode == 0 and b"30.9 kB" in shown and b"optimizer.pt" in shown and TOKEN.encode() not in shown
    assert bool(out) == (NAME in hub.repositories) == (answer == "y")


def test_a_terminal_shows_the_files_and_a_bar(hub: UploadHub, variables: dict[str, str], model: Path) -> None:
    outcome, shown = terminal_with_hub("models", "upload", str(model), NAME, on=["stderr"], **variables)
    assert facts(outcome)["commit"] and all(name in shown for name in SENT) and "30.9k/30.9k" in shown
    outcome, shown = terminal_with_hub("models", "upload", str(model), NAME, **variables)
    assert hub.repositories[NAME].references["main"] in shown and hub.url in shown


def status(number: int, **headers: str) -> Fault:
    """Answers with a status, with the hub's way to give a reason."""
    reason = json.dumps({"error": f"Reason {number} {TOKEN}"}).encode()
    return lambda handler, sent: send(handler, reason, number, None, Content_Type="application/json", **headers)


def page(handler: BaseHTTPRequestHandler, sent: bytes) -> bool:
    return send(handler, PAGE, Content_Type="text/html")


def broken(handler: BaseHTTPRequestHandler, sent: bytes) -> bool:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True
    return True


KINDS = ("create", "whoami", "branch", "preupload", "batch", "put", "complete", "verify", "validate", "commit")
FAULTS: dict[str, tuple[Fault, str]] = {
    "401": (status(401), "the token"), "403": (status(403), "may not write"),
    "404": (status(404), "no such namespace or repository"), "409": (status(409), "was changed during the upload"),
    "412": (status(412), "was changed during the upload"), "413": (status(413), "too large"),
    "422": (status(422), "refuses the upload"), "429": (status(429, Retry_After="3600"), "Retry-After: 3600"),
    "500": (status(500), "status 500"), "broken": (broken, "broke"), "page": (page, "not how a hub answers"),
}  # fmt: skip


CASES = [(fault, "create") for fault in FAULTS] + [(fault, kind) for fault in ("403", "broken") for kind in KINDS[1:]]


@pytest.mark.sampled
@pytest.mark.parametrize(("fault", "kind"), CASES)
def test_every_failure_is_an_error_and_shows_nothing_half(
    hub: UploadHub, upload: Sent, model: Path, kind: str, fault: str, quick: None
) -> None:
    hub.faults[kind], said = FAULTS[fault]
    hub.chunk = 7_000 if kind == "complete" else None  # a request after the parts of a file
    branch = "v2" if kind == "branch" else "main"
    outcome = upload(NAME, "--revision", branch)
    outcome.fails(1, NAME, said)
    assert len([line for line in outcome.err.splitlines() if line.startswith("error: ")]) == 1
    assert NAME not in hub.repositories or arrived(hub) == {}
    assert hub.messages == []
    hub.faults.clear()
    found = facts(upload(NAME, "--revision", branch))
    assert found["commit"] and arrived(hub, revision=branch) == local(model)


def test_a_transfer_that_breaks_once_goes_on(hub: UploadHub, upload: Sent, model: Path, quick: None) -> None:
    broken_once = [broken, status(503)]
    hub.faults["put"] = lambda handler, body: bool(broken_once) and broken_once.pop()(handler, body)
    assert facts(upload(NAME))["commit"] and arrived(hub) == local(model)
    assert len(hub.chunks_sent()) == 3


def test_what_the_hub_has_is_compared(hub: UploadHub, upload: Sent, model: Path) -> None:
    (model / "LICENSE").write_text("MIT, for the second commit", encoding="utf-8")

    def other(handler: Any, body: bytes) -> bool:
        lines = [json.loads(line) for line in body.splitlines()]
        lines = [line for line in lines if line["value"].get("path") != "LICENSE"]
        repository = hub.repositories[NAME]
        handler._commit(NAME, repository, "main", b"\n".join(json.dumps(line).encode() for line in lines))
        return True

    hub.faults["commit"] = other
    upload(NAME).fails(1, "LICENSE is missing on the hub")
    hub.faults.clear()
    facts(upload(NAME))
    assert arrived(hub) == local(model)


def test_a_commit_in_between_is_not_overwritten(hub: UploadHub, upload: Sent, model: Path) -> None:
    facts(upload(NAME))
    (model / "README.md").write_text(CARD + "Mine.\n", encoding="utf-8")

    def meanwhile(handler: BaseHTTPRequestHandler, body: bytes) -> bool:
        hub.repositories[NAME].commit(hub.content(NAME) | {"README.md": b"theirs"})
        return False

    hub.faults["commit"] = meanwhile
    upload(NAME).fails(1, "was changed during the upload")
    assert hub.content(NAME)["README.md"] == b"theirs"


@pytest.mark.parametrize("problem", [ValueError("mine"), OSError(5, "mine"), HubError("mine"), StopIteration()])
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_an_exception_of_on_progress_reaches_the_caller(
    hub: UploadHub, variables: dict[str, str], model: Path, problem: Exception, calls: int
) -> None:
    seen: list[int] = []
    problem.__cause__ = KeyError("the cause")

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) > calls:
            raise problem

    with mock.patch.dict(os.environ, variables), client_settings(variables["HF_HOME"], hub.url, ""):
        with pytest.raises(type(problem)) as raised:
            mlxbert.upload(model, NAME, on_progress=stop)
        assert raised.value is problem and isinstance(problem.__cause__, KeyError)
        assert len(seen) == calls + 1 and hub.messages == []
        assert mlxbert.upload(model, NAME).commit and arrived(hub) == local(model)


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.chmod(0)], ids=["disappears", "is locked"])
@pytest.mark.parametrize("name", ["vocab.txt", "model.safetensors"])
@pytest.mark.parametrize("kind", ["create", "preupload"])
def test_a_file_that_cannot_be_read_after_the_plan_is_named(
    hub: UploadHub, upload: Sent, model: Path, name: str, kind: str, change: Callable[[Path], None]
) -> None:
    def once(handler: BaseHTTPRequestHandler, body: bytes) -> bool:
        hub.faults.clear()
        change(model / name)
        return False

    hub.faults[kind] = once
    with unprivileged():
        outcome = upload(NAME)
    outcome.fails(1, f"{model / name}: cannot be read")
    assert "HF_HOME" not in outcome.err and hub.messages == []


def test_tokens_are_checked_first_and_remarks_on_the_card_are_shown(hub: UploadHub, upload: Sent) -> None:
    for token, said in (("", "needs a token"), (READ_TOKEN, "can only read"), ("hf_wrong", "refuses the token")):
        outcome = upload(NAME, HF_TOKEN=token)
        outcome.fails(1, said, "HF_TOKEN", "hf auth login")
        assert hub.changes() == []
    upload("other/tiny").fails(1, "may not write")
    upload(NAME, HF_HUB_OFFLINE="1").fails(1, "offline", "HF_HUB_OFFLINE")
    hub.remarks = ["empty or missing yaml metadata in repo card"]
    assert hub.remarks[0] in upload(NAME).err


def test_an_interrupt_leaves_nothing_visible(hub: UploadHub, variables: dict[str, str], model: Path) -> None:
    def interrupt(handler: BaseHTTPRequestHandler, body: bytes) -> bool:
        os.kill(running.pid, 2)
        time.sleep(20)  # the client must not wait for the answer
        return True

    hub.faults["put"] = interrupt
    running = subprocess.Popen(
        command("models", "upload", str(model), NAME), env=environment(**variables),
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    _, err = running.communicate(timeout=15)
    assert running.returncode == 130 and b"the same command" in err
    assert arrived(hub) == {} and hub.messages == []


def test_python(hub: UploadHub, variables: dict[str, str], model: Path) -> None:
    seen: list[tuple[int, int]] = []
    with mock.patch.dict(os.environ, variables), client_settings(variables["HF_HOME"], hub.url, ""):
        planned = mlxbert.upload(model, "tiny", dry_run=True, public=True)
        assert planned.commit is None and hub.repositories == {} and hub.changes() == []
        done = mlxbert.upload(model, "tiny", on_progress=lambda *both: seen.append(both))
        theirs = mlxbert.load(done.name, revision=done.commit)
    total = planned.bytes
    assert seen[0] == (0, total) and seen[-1] == (total, total) and seen == sorted(seen) and len(seen) == len(SENT) + 1
    text = "the cat sat"
    assert np.array_equal(mlxbert.embed(theirs, text), mlxbert.embed(mlxbert.load(model), text))
