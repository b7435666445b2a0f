"""Runs readers in a separate process, so that a file that crashes or hangs its parser does not affect other files.

Each thread has one process, which starts when it is first needed and is reused for later files. The process has no
terminal, may not write files, and ends with its parent. It runs this module as a program.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mlxbert.search.documents.document import Document, Heading, ReadProblem, UnreadableError, unreadable

_SIZE = 8  # bytes of the size before each answer
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_GRACE = 5  # seconds beyond the limit until the process ends itself: only Linux ends it with its parent
_POLL, _POLL_TIMEOUT = 0.5, 5.0  # seconds between two checks of memory, and for one check


@dataclass(frozen=True)
class ParserLimits:
    """The resources that reading a file may use."""

    seconds: float = 60.0  # maximum time in seconds
    # Maximum memory of the whole process in bytes; on macOS, which cannot limit that, maximum resident memory, checked
    # twice a second.
    memory: int = 2**31
    text: int = 2**30  # maximum size of the text in bytes


class _CrashedError(UnreadableError):
    """The parser crashed or ran out of memory, perhaps because of earlier files."""


class _RefusedError(UnreadableError):
    """The reader rejected the file with an explanation; the process can be reused."""


class _Watch(threading.Thread):
    """Kills a process that exceeds its time limit or, on macOS, where the system has none, its memory limit."""

    def __init__(self, process: "subprocess.Popen[bytes]", limits: ParserLimits) -> None:
        super().__init__(daemon=True)
        self._process, self._limits, self._ended = process, limits, threading.Event()
        # The limit that the process exceeded; `None` if it was not killed.
        self.exceeded: Literal["seconds", "memory"] | None = None

    def run(self) -> None:
        until, polls = time.monotonic() + self._limits.seconds, sys.platform == "darwin"
        while (remaining := until - time.monotonic()) > 0:
            if self._ended.wait(min(remaining, _POLL) if polls else remaining):
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
        self._ended.set()
        self.join()


def _resident(process: int) -> int:
    """The resident memory of a process in bytes; 0 if unknown."""
    command = ["/bin/ps", "-o", "rss=", "-p", str(process)]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        ps = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_POLL_TIMEOUT, check=True)
        return int(ps.stdout) * 1024
    return 0


def _needs_memory(limits: ParserLimits) -> _CrashedError:
    return _CrashedError(f"reading this file needs more than {limits.memory:,} bytes of memory")


class _ParserProcess:
    """The process that parses files; it gets files and returns documents through pipes."""

    def __init__(self) -> None:
        # -P: imports nothing from the current folder, whose files are not trusted.
        command = [sys.executable, "-P", "-m", __name__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.end = weakref.finalize(self, _end, self.process)
        self.used = False

    def ask(self, request: bytes, data: bytes, limits: ParserLimits) -> list[Document]:
        """Reads the documents of a file. Any error except `_RefusedError` also ends the process."""
        watch = _Watch(self.process, limits)
        watch.start()
        try:
            documents = self._answers(request, data, limits)
        except (OSError, EOFError):
            self.end()
            if watch.exceeded == "seconds":
                raise UnreadableError(f"reading this file took more than {limits.seconds:g} seconds") from None
            if watch.exceeded == "memory":
                raise _needs_memory(limits) from None
            raise _CrashedError(f"the parser of this file crashed (status {self.process.returncode})") from None
        except _RefusedError:
            self.used = True
            raise
        except BaseException:  # Ctrl-C, too
            self.end()
            raise
        finally:
            watch.end()
        self.used = True
        return documents

    def _answers(self, request: bytes, data: bytes, limits: ParserLimits) -> list[Document]:
        assert self.process.stdin is not None
        self.process.stdin.write(request)
        self.process.stdin.write(data)
        self.process.stdin.flush()
        documents, remaining = [], limits.text
        while True:
            size = int.from_bytes(self._take(_SIZE), "big")
            if (remaining := remaining - size) < 0:
                raise UnreadableError(f"has more text than the maximum of {limits.text:,} bytes")
            answer = json.loads(self._take(size).decode("utf-8", "surrogatepass"))
            if "text" in answer:
                headings = tuple(Heading(**heading) for heading in answer.pop("headings"))
                pages, problems = tuple(answer.pop("pages")), (ReadProblem(**each) for each in answer.pop("problems"))
                documents.append(Document(**answer, headings=headings, pages=pages, problems=tuple(problems)))
            elif "memory" in answer:
                raise _needs_memory(limits)
            elif "problem" in answer:
                raise _RefusedError(answer["problem"], hint=answer["hint"])
            else:
                return documents

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


_THREAD = threading.local()  # one process per thread: Linux ends a child with the thread that started it


def read_apart(
    read: Callable[..., Iterator[Document]], data: bytes, arguments: Sequence[str | None], limits: ParserLimits
) -> Iterator[Document]:
    """Reads the documents of a file in a separate process.

    Args:
        read: A module-level function, which the process imports.
    """
    task = {"module": read.__module__, "function": read.__qualname__, "arguments": arguments, "size": len(data)}
    request = json.dumps(task | {"seconds": limits.seconds, "memory": limits.memory}).encode() + b"\n"
    worker = _worker()
    reused = worker.used
    try:
        documents = worker.ask(request, data, limits)
    except _CrashedError:
        if not reused:
            raise
        documents = _worker().ask(request, data, limits)  # an earlier file may have damaged the process
    yield from documents


def _worker() -> _ParserProcess:
    """Returns this thread's process; starts one if none is running."""
    worker: _ParserProcess | None = getattr(_THREAD, "worker", None)
    if worker is None or not worker.end.alive or worker.process.poll() is not None:
        worker = _THREAD.worker = _ParserProcess()
    return worker


def _serve() -> None:
    """Reads requests from stdin and answers on stdout; a request is a line of JSON, followed by the bytes of a file."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the prints of libraries out of the answers
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    sys.dont_write_bytecode = True
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + _GRACE)
        with suppress(ValueError, OSError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (request["memory"], resource.getrlimit(resource.RLIMIT_AS)[1]))
        for answer in _answers(request, requests):
            answers.write(len(answer).to_bytes(_SIZE, "big") + answer)
        answers.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answers(request: dict[str, Any], requests: Any) -> Iterator[bytes]:
    try:
        data = requests.read(request["size"])
        read = getattr(importlib.import_module(request["module"]), request["function"])
        for document in read(data, *request["arguments"]):
            yield _packed(asdict(document))
        last: dict[str, Any] = {}
    except MemoryError:
        last = {"memory": True}
    except Exception as problem:
        reason = unreadable(problem)
        last = {"problem": reason.message, "hint": reason.hint}
    yield _packed(last)


def _packed(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")


if __name__ == "__main__":
    _serve()
