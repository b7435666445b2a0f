"""Files on a disk or in an object store, by addresses such as `texts/*.parquet` and `s3://bucket/folder`."""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from mlxbert.durable_files import atomic_write, writing
from mlxbert.errors import InputError, MlxbertError

_WILDCARD = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"(\w+)://", re.ASCII)
PARQUET = ".parquet"


class Location(NamedTuple):
    """A path on a file system of pyarrow; `scheme` is its prefix in addresses, such as `s3://`, or empty."""

    filesystem: Any
    path: str
    scheme: str

    @property
    def address(self) -> str:
        return f"{self.scheme}{self.path}"

    def at(self, path: str) -> "Location":
        return self._replace(path=path)

    def __truediv__(self, name: str) -> "Location":
        return self.at(f"{self.path}/{name}")

    def names(self) -> dict[str, Any]:
        """Returns pyarrow's descriptions of the files in a folder by name; empty if the folder does not exist."""
        from pyarrow.fs import FileSelector

        with storage_errors(self.address):
            infos = self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True))
        return {info.base_name: info for info in infos if info.is_file}

    def open(self) -> Any:
        with storage_errors(self.address):
            return self.filesystem.open_input_file(self.path)

    def read(self) -> bytes | None:
        """Returns the content of the file; `None` if it does not exist."""
        with storage_errors(self.address):
            if not self.filesystem.get_file_info(self.path).is_file:
                return None
            with self.filesystem.open_input_file(self.path) as file:
                content: bytes = file.read()
            return content

    def write(self, content: Any) -> None:
        """Writes the whole file: under its name, there is never a part of it on a disk, nor in an object store."""
        if self.scheme:
            with storage_errors(self.address), self.filesystem.open_output_stream(self.path) as file:
                file.write(content)
            return
        path = Path(self.path)
        with writing(path, kept="; finished parts are kept"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path, locked=False) as file:
                file.write(content)

    def remove(self) -> None:
        with storage_errors(self.address):
            self.filesystem.delete_file(self.path)


@contextmanager
def storage_errors(address: str) -> Iterator[None]:
    """Converts errors of a file system in the block to an `MlxbertError` that names the address."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        reason = str(problem).partition("\n")[0].partition(" (Request ID")[0]
        network = "NETWORK_CONNECTION" in reason
        raise MlxbertError(
            f"{address}: {reason}",
            hint="AWS_ENDPOINT_URL names a server other than that of AWS" if network else None,
        ) from None


@functools.cache
def locate(address: str) -> Location:
    """Returns the location of an address. `s3://` needs credentials as environment variables, or as files of AWS."""
    match = _SCHEME.match(address)
    if match is None:
        from pyarrow.fs import LocalFileSystem

        return Location(LocalFileSystem(), os.path.realpath(os.path.expanduser(address)), "")
    from pyarrow.fs import FileSystem

    with storage_errors(address):
        wild = _WILDCARD.search(address)  # `?` would begin a query
        folder = address if wild is None else address[: address.rindex("/", 0, wild.start()) + 1]
        filesystem, path = FileSystem.from_uri(folder)
    if match[1] == "file":
        return locate(f"{path.rstrip('/')}/{address[len(folder) :]}")
    return Location(filesystem, address[match.end() :].rstrip("/"), match[0])


def matches(source: str, file: Location) -> bool:
    """Whether `source`, a file, a folder or a pattern, includes a file; a folder includes its own `.parquet` files."""
    here = locate(source)
    if here.path == file.path:
        return here.scheme == file.scheme
    pattern = here.path if _WILDCARD.search(source) else f"{here.path}/*{PARQUET}"
    parts, wanted = file.path.split("/"), pattern.split("/")
    same_depth = here.scheme == file.scheme and len(parts) == len(wanted)
    return same_depth and all(map(fnmatchcase, parts, wanted)) and not parts[-1].startswith(("_", "."))


def find(sources: Sequence[str]) -> list[tuple[Location, Any]]:
    """Returns the `.parquet` files that the sources name, each with pyarrow's description of it.

    Args:
        sources: Files, folders and patterns such as `s3://bucket/2024-*/*.parquet`. The files of a folder or a pattern
            are sorted by path.
    """
    found: dict[str, tuple[Location, Any]] = {}
    for source in sources:
        files = sorted(_files(source), key=lambda entry: entry[0].path)
        if not files:
            raise InputError(f"{source}: there is no {PARQUET} file", hint=f"name a {PARQUET} file, folder or pattern")
        for file, info in files:
            if file.address in found:
                raise InputError(f"{source}: {file.address} is already an input, but each row is computed once")
            found[file.address] = file, info
    return [*found.values()]


def _files(source: str) -> list[tuple[Location, Any]]:
    from pyarrow.fs import FileSelector

    here = locate(source)
    wild = _WILDCARD.search(here.path)
    base = here.path if wild is None else here.path[: wild.start()].rpartition("/")[0]
    with storage_errors(source):
        info = here.filesystem.get_file_info(here.path) if wild is None else None
        if info is not None and info.is_file:
            return [(here, info)]
        selector = FileSelector(base or "/", allow_not_found=True, recursive=wild is not None)
        infos = here.filesystem.get_file_info(selector)
    files = [(here.at(info.path), info) for info in infos if info.is_file]
    return [(file, info) for file, info in files if matches(source, file)]
