"""Fetches the headers of weights on the hub, so that a model can be inspected without downloading its weights.

huggingface_hub has a function for this, `parse_safetensors_file_metadata`. It is not used because it fetches 100 kB of
every file, including weights, and the whole file from a server that cannot send a part; and it does not return the
length of the header, which is needed to check that the file is complete.
"""

from pathlib import Path
from typing import Any

from mlxbert.errors import HubError
from mlxbert.progress import OnProgress
from mlxbert.weights.formats.file_names import holds_weights
from mlxbert.weights.formats.headers import Header
from mlxbert.weights.formats.safetensors import parse_header
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.download import Commit
from mlxbert.weights.hub.errors import library, page_error

_PARTIAL = 206  # the status of a response with the requested range


def fetch_headers(
    name: str, revision: str | None = None, on_progress: OnProgress | None = None
) -> tuple[Path, dict[Path, Header]]:
    """Downloads the small files of a model into the cache, and fetches the headers of weights that are not cached.

    The revision is not recorded in the cache, because the model would then appear to be complete.

    Returns:
        The folder of the snapshot, and the headers by the path that each file would have in the cache.
    """
    cache.check_revision(revision)
    with library(name, revision) as hub:
        commit = Commit(hub, name, revision)
        absent = [file for file in commit.needed if holds_weights(file) and not commit.has(file)]
        for file in absent:
            if not file.endswith(".safetensors"):
                raise HubError(
                    f"{name}: {file} is not in the cache, but only safetensors can be inspected without a download",
                    hint=f"run `{cache.loading(name, revision)}`, then inspect the model",
                )
        commit.fetch((file for file in commit.needed if not holds_weights(file)), on_progress)
        return commit.folder, {commit.folder / file: _read_header(hub, name, commit, file) for file in absent}


def _read_header(hub: Any, name: str, commit: Commit, file: str) -> Header:
    position = 0

    def read(count: int) -> bytes:
        nonlocal position
        first, position = position, position + count
        return _read_bytes(hub, name, commit.hash, file, first, count)

    return parse_header(Path(name) / file, commit.listed[file].size or 0, read)


def _read_bytes(hub: Any, name: str, commit: str, file: str, first: int, count: int) -> bytes:
    """Reads a part of a file; streamed, so that not more arrives if a server sends more."""
    url = hub.hf_hub_url(name, file, revision=commit)
    part = {"Range": f"bytes={first}-{first + count - 1}", "Accept-Encoding": "identity"}
    options = {"headers": hub.utils.build_hf_headers(headers=part), "timeout": hub.constants.HF_HUB_DOWNLOAD_TIMEOUT}
    data = bytearray()
    with hub.get_session().stream("GET", url, **options) as answer:
        hub.utils.hf_raise_for_status(answer)
        if answer.status_code != _PARTIAL:
            raise page_error(name, answer) or HubError(
                f"{name}: the hub sends the whole file {file} (status {answer.status_code}), expected {count} bytes",
                hint=f"run `mlxbert models download {name}`, then inspect the model",
            )
        for piece in answer.iter_raw():
            data += piece
            if len(data) > count:
                break
    if len(data) != count:
        raise HubError(f"{name}: the hub sent {len(data)} bytes of {file}, expected {count}", hint="try again")
    return bytes(data)
