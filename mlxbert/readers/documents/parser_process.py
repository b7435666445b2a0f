"""`python -m mlxbert.readers.documents.parser_process`: the process that parses files; see `isolated_parser`."""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from mlxbert.readers.documents.document import unreadable

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_GRACE = 5  # seconds beyond the limit until the process ends itself: only Linux ends it with its parent


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
            answers.write(len(answer).to_bytes(8, "big") + answer)
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
