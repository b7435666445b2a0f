"""Readers in a process of their own: a file that crashes or hangs a parser costs that file only.

The process starts when the first such file is read, and reads the following ones; each thread has one. It has no
terminal, may not write files, and ends with its parent.
"""

import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from mlxbert.readers.documents.document import Document, Heading, UnreadableError

_WORKER = "mlxbert.readers.documents.parser_process"
_SIZE = 8  # bytes of the size before each answer
_POLL, _LATEST = 0.5, 5.0  # seconds between two looks at memory, and for one


@dataclass(frozen=True)
class ParserLimits:
    """What reading a file may use.

    Attributes:
        seconds: Time.
        memory: Bytes of the whole process; on macOS, which has no such limit, bytes that it has in memory when it is
            looked at, twice a second.
        text: Bytes of text.
    """

    seconds: float = 60.0
    memory: int = 2**31
    text: int = 2**30


class _CrashedError(UnreadableError):
    """The parser has crashed, or has no memory; perhaps because of the files before."""


class _RefusedError(UnreadableError):
    """The reader says why it does not read the file; the process is as good as before."""


class _Watch(threading.Thread):
    """Kills a process that takes more time than it may, or on macOS more memory: there a process cannot be limited.

    Args:
        process: The process.
        limits: What it may use.

    Attributes:
        exceeded: The limit for which it was killed.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", limits: ParserLimits) -> None:
        super().__init__(daemon=True)
        self._process, self._limits, self._ended = process, limits, threading.Event()
        self.exceeded: Literal["seconds", "memory"] | None = None

    def run(self) -> None:
        """Watches until the file is read, or a limit exceeded."""
        until, polls = time.monotonic() + self._limits.seconds, sys.platform == "darwin"
        while (left := until - time.monotonic()) > 0:
            if self._ended.wait(min(left, _POLL) if polls else left):
                return
            if polls and _resident(self._process.pid) > self._limits.memory:
                self._kill("memory")
                return
        self._kill("seconds")

    def _kill(self, exceeded: Literal["seconds", "memory"]) -> None:
        if not self._ended.is_set():
            self.exceeded = exceeded
            self._process.kill()

    def end(self) -> None:
        """Ends watching."""
        self._ended.set()
        self.join()


def _resident(process: int) -> int:
    """Bytes that a process has in memory; 0 if that cannot be found out."""
    command = ["/bin/ps", "-o", "rss=", "-p", str(process)]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LATEST, check=True)
        return int(said.stdout) * 1024
    return 0


def _needs_memory(limits: ParserLimits) -> _CrashedError:
    return _CrashedError(f"needs more than {limits.memory:,} bytes of memory to read")


class _ParserProcess:
    """The process; its pipes carry what is read and what is found."""

    def __init__(self) -> None:
        # -P: nothing is imported from the current folder, which may be anybody's.
        command = [sys.executable, "-P", "-m", _WORKER]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.end = weakref.finalize(self, _end, self.process)
        self.used = False

    def ask(self, request: bytes, data: bytes, limits: ParserLimits) -> list[Document]:
        """The documents of a file. After other errors than `_RefusedError` the process is ended."""
        watch = _Watch(self.process, limits)
        watch.start()
        try:
            found = self._answers(request, data, limits)
        except (OSError, EOFError):
            self.end()
            if watch.exceeded == "seconds":
                raise UnreadableError(f"took more than {limits.seconds:g} seconds to read") from None
            if watch.exceeded == "memory":
                raise _needs_memory(limits) from None
            raise _CrashedError(f"its parser crashed (status {self.process.returncode})") from None
        except _RefusedError:
            self.used = True
            raise
        except BaseException:  # Ctrl-C, too
            self.end()
            raise
        finally:
            watch.end()
        self.used = True
        return found

    def _answers(self, request: bytes, data: bytes, limits: ParserLimits) -> list[Document]:
        assert self.process.stdin is not None
        self.process.stdin.write(request)
        self.process.stdin.write(data)
        self.process.stdin.flush()
        found, left = [], limits.text
        while True:
            size = int.from_bytes(self._take(_SIZE), "big")
            if (left := left - size) < 0:
                raise UnreadableError(f"has more than {limits.text:,} bytes of text")
            answer = json.loads(self._take(size).decode("utf-8", "surrogatepass"))
            if "text" in answer:
                headings = tuple(Heading(**heading) for heading in answer.pop("headings"))
                pages = tuple(answer.pop("pages"))
                found.append(Document(**answer, headings=headings, pages=pages))
            elif "memory" in answer:
                raise _needs_memory(limits)
            elif "problem" in answer:
                raise _RefusedError(answer["problem"], hint=answer["hint"])
            else:
                return found

    def _take(self, size: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(size)
        if len(data) < size:
            raise EOFError
        return data


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
    process.wait()


_OWN = threading.local()  # Linux ends a child with the thread that has started it


def read_apart(
    read: Callable[[bytes, str], Iterator[Document]], data: bytes, name: str, limits: ParserLimits
) -> Iterator[Document]:
    """The documents of a file, read in another process.

    Args:
        read: A function of a module, which is imported there.
        data: The bytes of the file.
        name: Its name.
        limits: What this may use.
    """
    what = {"module": read.__module__, "function": read.__qualname__, "name": name, "size": len(data)}
    request = json.dumps(what | {"seconds": limits.seconds, "memory": limits.memory}).encode() + b"\n"
    worker = _worker()
    again = worker.used
    try:
        found = worker.ask(request, data, limits)
    except _CrashedError:
        if not again:
            raise
        found = _worker().ask(request, data, limits)  # another file may have damaged the process
    yield from found


def _worker() -> _ParserProcess:
    """The process of this thread, started if there is none."""
    worker: _ParserProcess | None = getattr(_OWN, "worker", None)
    if worker is None or not worker.end.alive or worker.process.poll() is not None:
        worker = _OWN.worker = _ParserProcess()
    return worker
