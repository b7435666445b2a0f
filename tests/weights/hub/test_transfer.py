"""One file of the hub into the cache: what other processes, and earlier runs, left of it."""

import fcntl
import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import huggingface_hub.errors
import pytest

from mlxbert.errors import HubError, MlxbertError
from mlxbert.weights.hub import wire
from mlxbert.weights.hub.hashes import Known
from mlxbert.weights.hub.transfer import fetch_file

DATA = bytes(range(256)) * 40
COMMIT = "0" * 40


def hub(etag: str, data: bytes = DATA) -> Any:
    """A hub with one file, which says that it is `DATA`, and sends other bytes if it is told so."""

    @contextmanager
    def stream(method: str, url: str, *, headers: dict[str, str], **options: Any) -> Iterator[SimpleNamespace]:
        start = int(headers.get("Range", "bytes=0-")[6:-1])
        yield SimpleNamespace(
            is_error=False, status_code=206 if start else 200, headers={}, iter_bytes=lambda: iter([data[start:]])
        )

    metadata = SimpleNamespace(commit_hash=COMMIT, etag=etag, size=len(DATA))
    return SimpleNamespace(
        hf_hub_url=lambda name, file, revision: file,
        get_hf_file_metadata=lambda url, **options: metadata,
        utils=SimpleNamespace(build_hf_headers=dict, get_session=lambda: SimpleNamespace(stream=stream)),
        constants=SimpleNamespace(HF_HUB_DOWNLOAD_TIMEOUT=1),
        errors=huggingface_hub.errors,
    )


@pytest.fixture
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--tiny" / "blobs"
    folder.mkdir(parents=True)
    return folder


SHA256 = hashlib.sha256(DATA).hexdigest()
GIT = hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest()
OTHER = DATA[:-1] + b"?"


def test_what_another_process_left_while_this_one_waited_is_not_fetched_again(
    blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(file: BinaryIO, operation: int) -> None:
        (blobs / f"{GIT}.incomplete").write_bytes(DATA[:500])  # of a process that was killed

    monkeypatch.setattr(fcntl, "flock", waits)
    received: list[int] = []
    assert fetch_file(hub(GIT), "org/tiny", COMMIT, "x", received.append).read_bytes() == DATA
    assert received == [500, len(DATA) - 500]


def test_a_file_that_goes_on_from_other_bytes_is_fetched_anew(blobs: Path) -> None:
    """As huggingface_hub before its version 2 leaves them when several blocks arrive at once."""
    (blobs / f"{SHA256}.incomplete").write_bytes(b"\0" * 500)
    assert fetch_file(hub(SHA256), "org/tiny", COMMIT, "x").read_bytes() == DATA


@pytest.mark.parametrize("etag", [SHA256, GIT])
@pytest.mark.parametrize("data", [OTHER, DATA + b"more"])
def test_a_file_that_is_not_what_was_announced_is_dropped(blobs: Path, etag: str, data: bytes) -> None:
    digest = hashlib.sha256(OTHER) if etag is SHA256 else hashlib.sha1(b"blob %d\0" % len(OTHER) + OTHER)
    said = digest.hexdigest() + f", expected {etag}" if data is OTHER else f"more bytes than the {len(DATA):,}"
    with pytest.raises(HubError, match=said):
        fetch_file(hub(etag, data), "org/tiny", COMMIT, "x")
    assert not list(blobs.iterdir()) and not list(blobs.parent.glob("snapshots/*/*"))
    assert fetch_file(hub(etag), "org/tiny", COMMIT, "x").read_bytes() == DATA


def test_a_file_without_a_hash_is_checked_against_the_listing(blobs: Path) -> None:
    with pytest.raises(HubError, match=SHA256):
        fetch_file(hub("abc", OTHER), "org/tiny", COMMIT, "x", listed=Known(len(DATA), SHA256))
    assert fetch_file(hub("abc"), "org/tiny", COMMIT, "x", listed=Known(None, SHA256)).read_bytes() == DATA


@pytest.mark.parametrize("linked", [True, False])
def test_what_is_in_the_cache_is_compared_with_its_hash(blobs: Path, linked: bool) -> None:
    path = fetch_file(hub(SHA256), "org/tiny", COMMIT, "x")
    if not linked:  # as on file systems without links
        (blobs / SHA256).replace(path)
    path.write_bytes(OTHER)
    assert fetch_file(hub(SHA256), "org/tiny", COMMIT, "x").read_bytes() == DATA


def test_a_link_to_a_file_that_is_gone_is_made_anew(blobs: Path) -> None:
    path = blobs.parent / "snapshots" / COMMIT / "x"
    path.parent.mkdir(parents=True)
    path.symlink_to("../../blobs/gone")
    assert fetch_file(hub("abc"), "org/tiny", COMMIT, "x").read_bytes() == DATA


def test_a_full_disk_is_told_before_anything_is_written(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(blobs)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=len(DATA) - 501))
    with pytest.raises(MlxbertError, match=f"needs {len(DATA):,} bytes, {len(DATA) - 501:,} are free"):
        fetch_file(hub(GIT), "org/tiny", COMMIT, "x")
    assert not list(blobs.iterdir())
    (blobs / f"{GIT}.incomplete").write_bytes(DATA[:501])
    assert fetch_file(hub(GIT), "org/tiny", COMMIT, "x").read_bytes() == DATA


def test_a_second_transfer_may_break_as_often_as_the_first(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is thrown away does not count as bytes that are there: each new piece is one more reason to try again."""
    monkeypatch.setattr(wire, "ENOUGH", 1000)
    monkeypatch.setattr(wire, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic))
    broken = hub(SHA256, OTHER)
    good = hub(SHA256).utils.get_session().stream
    other, requests = broken.utils.get_session().stream, list[int]()

    @contextmanager
    def stream(method: str, url: str, *, headers: dict[str, str], **options: Any) -> Iterator[SimpleNamespace]:
        requests.append(1)
        with (other if len(requests) == 1 else good)(method, url, headers=headers) as answer:
            pieces = [next(answer.iter_bytes())]
            if len(requests) > 1:
                pieces = [pieces[0][:1000]]  # then the connection ends
            yield SimpleNamespace(**{**vars(answer), "iter_bytes": lambda: iter(pieces)})

    broken.utils.get_session = lambda: SimpleNamespace(stream=stream)
    assert fetch_file(broken, "org/tiny", COMMIT, "x").read_bytes() == DATA
    assert len(requests) == 2 + len(DATA) // 1000
