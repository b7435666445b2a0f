"""What a model on the hub is made of, told without fetching its weights: of them only the headers are read.

huggingface_hub has a function for that, `parse_safetensors_file_metadata`. It fetches 100 kB of every file, weights
among them, and keeps to itself how long the header was, without which nobody can tell whether the file is whole.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxbert.errors import HubError
from mlxbert.weights.formats.headers import Header
from mlxbert.weights.formats.names import holds_weights
from mlxbert.weights.formats.safetensors import parse_header
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.download import TIMEOUT, Commit, OnProgress, library

_PARTIAL = 206  # the status of an answer with the part that was asked for


def look(
    name: str, revision: str | None = None, on_progress: OnProgress | None = None
) -> tuple[Path, dict[Path, Header]]:
    """Brings the small files of a model into the cache, and reads the headers of the weights that are not in it.

    What the revision means is not written down in the cache: nothing there says that the model is whole.

    Args:
        name: `ORG/NAME`.
        revision: Branch, tag or commit; the main branch if `None`.
        on_progress: Called with bytes done and bytes in all as small files arrive.

    Returns:
        The folder of the snapshot, and the headers by where the cache would keep the files.

    Raises:
        HubError: The model cannot be had; see `explain` for the kinds. Or weights that are not in the cache are no
            safetensors.
        CheckpointError: Weights are damaged.
        ArgumentError: The revision is none.
    """
    cache.check_revision(revision)
    with library(name, revision) as hub:
        commit = Commit(hub, name, revision)
        absent = [file for file in commit.needed if holds_weights(file) and not commit.has(file)]
        _check_format(name, revision, absent)
        commit.fetch((file for file in commit.needed if not holds_weights(file)), on_progress)
        return commit.folder, {commit.folder / file: _read_header(hub, name, commit, file) for file in absent}


def _check_format(name: str, revision: str | None, absent: Iterable[str]) -> None:
    """Refuses weights that say only as a whole what they are."""
    other = next((file for file in absent if not file.endswith(".safetensors")), None)
    if other is not None:
        download = f"mlxbert models download {name}" + (f" --revision {revision}" if revision else "")
        raise HubError(
            f"{name}: {other} is not in the cache, and only of safetensors the hub sends what they hold without the "
            "weights",
            hint=f"`{download}` brings it; then it can be inspected",
        )


def _read_header(hub: Any, name: str, commit: Commit, file: str) -> Header:
    place = 0

    def read(count: int) -> bytes:
        nonlocal place
        first, place = place, place + count
        return _read_bytes(hub, name, commit, file, first, count)

    return parse_header(Path(name) / file, commit.sizes[file], read)


def _read_bytes(hub: Any, name: str, commit: Commit, file: str, first: int, count: int) -> bytes:
    url = hub.hf_hub_url(name, file, revision=commit.hash)
    headers = hub.utils.build_hf_headers() | {
        "Range": f"bytes={first}-{first + count - 1}",
        "Accept-Encoding": "identity",  # places in the file itself, not in something made of it
    }
    # As a stream: what answers with the whole file instead is left before gigabytes have come.
    with hub.utils.get_session().stream(
        "GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True
    ) as response:
        hub.utils.hf_raise_for_status(response)
        if response.status_code != _PARTIAL:
            raise HubError(
                f"{name}: asked for {count} bytes of {file}, the hub sends all of it (status {response.status_code})",
                hint=f"`mlxbert models download {name}` brings the whole model, which can be inspected then",
            )
        data: bytes = response.read()
    if len(data) != count:
        raise HubError(f"{name}: asked for {count} bytes of {file}, {len(data)} came", hint="try again")
    return data
