"""Checks of what a hub answers: huggingface_hub names files of the cache after its headers and does not check them.

An ETag `/…/site-packages/evil.pth` made it write that file, which Python runs when it starts.
"""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9A-Za-z+=_-]{1,128}")  # hexadecimal digits or like base64, with nothing that separates folders
_GUARDED = "guarded_by_mlxbert"  # an attribute of a function
_LARGEST = 2**63 - 1  # bytes; what a file system can hold


def is_commit(commit: object) -> bool:
    """Whether a value is a full commit hash, which always refers to the same commit."""
    return isinstance(commit, str) and _COMMIT.fullmatch(commit) is not None


def is_size(size: object) -> bool:
    """Whether a value is a number of bytes that a file can have."""
    return type(size) is int and 0 <= size <= _LARGEST


def problem_of(found: Any) -> str | None:
    """What is wrong with the metadata of a file, an `HfFileMetadata`; `None` if all of it can be used in paths."""
    if not is_commit(found.commit_hash):
        return f"the hub returned the commit {found.commit_hash!r:.60}, expected 40 hexadecimal digits"
    if not isinstance(found.etag, str) or not _ETAG.fullmatch(found.etag):
        return f"the hub returned the ETag {found.etag!r:.60}, expected a hash without separators"
    if found.size is not None and not is_size(found.size):
        return f"the hub returned the size {found.size!r:.60}, expected a number of bytes"
    return None


def guard_library() -> None:
    """Makes huggingface_hub check what it uses in paths, for other packages that download with it in this process.

    Its own error for useless metadata is raised: it falls back to its cache, as it does for a network without a hub.
    """
    from huggingface_hub import HfApi, errors, file_download

    def refuse(why: str | None) -> None:
        if why is not None:
            raise errors.FileMetadataError(why)

    def checked(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def metadata(*args: Any, **options: Any) -> Any:
            try:
                found = real(*args, **options)
            except errors.RemoteEntryNotFoundError as problem:  # remembered in a folder named by the commit
                commit = problem.response.headers.get("X-Repo-Commit")
                refuse(None if commit is None or is_commit(commit) else f"the hub returned the commit {commit!r:.60}")
                raise
            refuse(problem_of(found))
            return found

        return metadata

    def with_commit(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def info(*args: Any, **options: Any) -> Any:
            found = real(*args, **options)
            refuse(None if is_commit(found.sha) else f"the hub returned the commit {found.sha!r:.60}")
            return found

        return info

    if not hasattr(file_download.get_hf_file_metadata, _GUARDED):
        guarded = checked(file_download.get_hf_file_metadata)
        setattr(guarded, _GUARDED, True)
        file_download.get_hf_file_metadata = guarded
        HfApi.dataset_info = with_commit(HfApi.dataset_info)  # type: ignore[method-assign]
