"""Lance, its options for a place, and the conversion of its errors, which are known by their texts alone."""

import functools
import json
import os
import re
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from mlxbert.errors import MlxbertError, StoreError
from mlxbert.optional_packages import install_command
from mlxbert.search.schema import damaged
from mlxbert.search.store import S3

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
_SOURCE = re.compile(r",? /[\w/.-]+\.rs:\d+(:\d+)?.*", re.DOTALL)  # the place in the source of Lance
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL for a server other than Amazon's"
# What an error's text contains, what it says to the user, and the hint.
_OF_SERVERS = (
    ("NoSuchBucket", "there is no such bucket", "create the bucket, or check the spelling of its name"),
    ("resolve region", "the region of the bucket is unknown", f"set AWS_REGION; {_CREDENTIALS}"),
    ("AWS credentials", "there are no credentials for this server", _CREDENTIALS),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|403 Forbidden|401 Unauthorized|PermissionDenied",
        "the server denies access",
        _CREDENTIALS,
    ),
    ("error sending request|builder error|Connect|timed out", "the server cannot be reached", "check AWS_ENDPOINT_URL"),
)
_OF_FOLDERS = (
    ("Not a directory|os error 20", "is a file, expected a folder", "choose another place"),
    ("os error 28|No space left|StorageFull", "no space left on the disk", "the index still has its earlier content"),
    (
        "Permission denied|Read-only file system|os error 13|os error 30|PermissionDenied",
        "the index cannot be written",
        "mlxbert.open_index(path=FILE) opens an index at another place",
    ),
)
# A file that is there, but has another content than Lance has written. A missing file may be transient: another process
# removes the files of earlier versions.
_DAMAGE = re.compile(
    r"corrupt|failed to decode Protobuf|not appear to be a Lance file|file size is too small|outside metadata region"
    r"|Invalid UTF8|for object of size \d+ bytes|failed to fill whole buffer",
    re.IGNORECASE,
)


class ContradictoryRowsError(ValueError):
    """Rows of a table contradict each other, or have values that mlxbert does not write."""


def require_lance() -> None:
    """Raises MlxbertError if Lance is not installed."""
    os.environ.setdefault("LANCE_LOG", "error")  # its warnings are for programmers
    try:
        import lance
    except ImportError as problem:
        raise MlxbertError(
            f"an index in a Lance table needs the package pylance ({problem})", hint=install_command("lance")
        ) from None
    if not hasattr(lance, "LanceDataset"):  # another package has the same name
        raise MlxbertError("the package lance is not Lance's", hint=install_command("lance"))


def lance_options(uri: str) -> dict[str, str] | None:
    """Returns the options with which Lance opens a place. It reads most from the environment."""
    if uri.startswith(S3) and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        return {"allow_http": "true"}
    return None


def is_conflict(problem: BaseException) -> bool:
    """Whether a commit failed because of another one."""
    return "commit conflict" in str(problem).lower() or "concurrent" in str(problem).lower()


def lance_error(path: str, problem: BaseException) -> StoreError:
    """Converts an error of Lance to a StoreError."""
    text = str(problem)
    for pattern, reason, hint in _OF_SERVERS if path.startswith(S3) else _OF_FOLDERS:
        if re.search(pattern, text):
            return StoreError(f"{path}: {reason}", hint=hint)
    why = _SOURCE.sub("", text)
    if isinstance(problem, ContradictoryRowsError | json.JSONDecodeError) or _DAMAGE.search(why):
        return damaged(path, why)
    return StoreError(f"{path}: the index cannot be read or written ({why or type(problem).__name__:.300})")


def lance_guarded(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorates a method of a store, so that the errors of its table become StoreErrors."""

    @functools.wraps(method)
    def checked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except MlxbertError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, MemoryError) as problem:
            raise lance_error(str(getattr(self, "path", "")), problem) from problem
        except BaseException as problem:
            if type(problem).__name__ != "PanicException":  # of Rust: a BaseException that no module exports
                raise
            raise lance_error(str(getattr(self, "path", "")), problem) from None

    return checked
