"""One file of the hub into the cache: what other processes, and earlier runs, left of it."""

import fcntl
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from mlxbert.weights.hub.transfer import fetch_file

DATA = bytes(range(256)) * 40
COMMIT = "0" * 40


def hub(etag: str) -> Any:
    """A hub with one file, whose transfers append what is missing as huggingface_hub does: their sum is the size."""

    def http_get(url: str, out: BinaryIO, *, resume_size: int, **options: Any) -> None:
        out.write(DATA[resume_size:])

    metadata = SimpleNamespace(commit_hash=COMMIT, etag=etag, size=len(DATA))
    return SimpleNamespace(
        hf_hub_url=lambda name, file, revision: file,
        get_hf_file_metadata=lambda url, **options: metadata,
        utils=SimpleNamespace(build_hf_headers=dict),
        file_download=SimpleNamespace(http_get=http_get),
    )


@pytest.fixture
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--tiny" / "blobs"
    folder.mkdir(parents=True)
    return folder


SHA256 = hashlib.sha256(DATA).hexdigest()


def test_what_another_process_left_while_this_one_waited_is_not_fetched_again(
    blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(file: BinaryIO, operation: int) -> None:
        (blobs / "abc.incomplete").write_bytes(DATA[:500])  # of a process that was killed

    monkeypatch.setattr(fcntl, "flock", waits)
    assert fetch_file(hub("abc"), "org/tiny", COMMIT, "x").read_bytes() == DATA


def test_a_file_that_goes_on_from_other_bytes_is_dropped(blobs: Path) -> None:
    """As huggingface_hub before its version 2 leaves them when several blocks arrive at once."""
    (blobs / f"{SHA256}.incomplete").write_bytes(b"\0" * 500)
    with pytest.raises(OSError, match="another hash"):
        fetch_file(hub(SHA256), "org/tiny", COMMIT, "x")
    assert fetch_file(hub(SHA256), "org/tiny", COMMIT, "x").read_bytes() == DATA


def test_a_file_of_another_size_is_dropped(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub counts the bytes that it receives, not those of a process beside it without locks."""
    other = hub("abc")
    whole = other.file_download.http_get
    other.file_download.http_get = lambda url, out, **options: (out.write(b"more"), whole(url, out, **options))
    with pytest.raises(OSError, match=f"received {len(DATA) + 4} bytes, expected {len(DATA)}"):
        fetch_file(other, "org/tiny", COMMIT, "x")
    assert fetch_file(hub("abc"), "org/tiny", COMMIT, "x").read_bytes() == DATA


def test_a_link_to_a_file_that_is_gone_is_made_anew(blobs: Path) -> None:
    path = blobs.parent / "snapshots" / COMMIT / "x"
    path.parent.mkdir(parents=True)
    path.symlink_to("../../blobs/gone")
    assert fetch_file(hub("abc"), "org/tiny", COMMIT, "x").read_bytes() == DATA
