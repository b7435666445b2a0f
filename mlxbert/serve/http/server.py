"""The server as a process: it listens, loads its models, answers, and ends when it is told to."""

import asyncio
import dataclasses
import errno
import functools
import itertools
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.types import ASGIApp

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.model import Model
from mlxbert.serve.access_log import Access, Log, LogHandler, open_log
from mlxbert.serve.engine.engine import Engine
from mlxbert.serve.engine.serving_options import EngineOptions, ServeOptions
from mlxbert.serve.engine.shared_state import EngineCounts
from mlxbert.serve.http.app import make_app
from mlxbert.serve.http.connection import Connection
from mlxbert.serve.http.request_guards import AccessPolicy, Guard, is_loopback, read_key
from mlxbert.serve.service import ModelFacts, Service, read_facts
from mlxbert.tasks.catalogue import TaskEntry, find_task
from mlxbert.tasks.options import EmbedWordsOptions, FillMaskOptions
from mlxbert.weights.model_source import ModelRef

# Whose lines go into the log, from which level on; not those of "mlxbert", which may quote texts.
_LOGGERS = {"mlxbert.serve": logging.INFO, "asyncio": logging.ERROR}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BACKLOG = 2048  # the system takes as many of it as it allows: kern.ipc.somaxconn, 128 on a Mac
_NO_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # without IPv6, ::1 may still be in /etc/hosts
_TRIES = 5  # to find one free port for several addresses
_GRACE = 0.2  # seconds in which a connection that the system has accepted is taken; then its request arrives
_POLL = 0.05  # seconds after which it looks again whether all connections are closed
_FILES = 200  # that are open besides connections
_WARM = (4, 30, 120)  # words of texts


def serve(
    models: Mapping[str, ModelRef],
    options: ServeOptions,
    *,
    engine_options: EngineOptions,
    indexes: Mapping[str, Path],
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serves models until a signal comes: then what was taken is answered. A second signal ends the process at once.

    Args:
        models: The models by the names that clients give them.
        options: What the server allows.
        engine_options: How much is done at a time, and kept in memory.
        indexes: Files of indexes that can be searched, by their names.
        quiet: Whether requests are not logged on stderr.
        say: Gets a line when the server listens, when it is ready, and when it ends.
    """
    key = read_key(options)
    try:
        log = open_log(options.log_file, quiet=quiet, texts=options.log_texts)
    except OSError as problem:
        raise ArgumentError(f"log_file is {options.log_file}, which cannot be written: {problem.strerror}") from None
    policy = AccessPolicy(options, options.port, key)
    with listen(options) as listeners, Engine(models, engine_options) as engine, logged(log):
        service = Service(engine, options, indexes=indexes)
        policy = dataclasses.replace(policy, port=listeners[0].getsockname()[1])
        asyncio.run(_serve(service, policy, listeners, log, say))


def make_guarded(service: Service, policy: AccessPolicy, log: Log) -> Access:
    """The application with everything that stands before it."""
    return Access(Guard(make_app(service), policy), service.metrics, log)


@contextmanager
def listen(options: ServeOptions) -> Iterator[list[socket.socket]]:
    """Opens all addresses of the host, at one port: `localhost` is 127.0.0.1 and ::1, of which clients try either."""
    host, port = options.host, options.port
    with ExitStack() as opened:
        try:
            listeners = _open_all(host, port)
            for one in listeners:
                opened.enter_context(one)
        except (socket.gaierror, UnicodeError):
            raise ArgumentError(f"host is {host!r:.100}, expected a name or an address of this machine") from None
        except OSError as problem:
            used = problem.errno == errno.EADDRINUSE
            raise MlxbertError(
                f"port {port} of {host} {'is in use' if used else f'cannot be opened: {problem.strerror}'}",
                hint="port= names another one, and port=0 takes a free one" if used else None,
            ) from None
        yield listeners


def _open_all(host: str, port: int) -> list[socket.socket]:
    """Sockets for all addresses of a host; port 0 is tried again where one address has the port of another taken."""
    for tried in itertools.count(1):
        with ExitStack() as opened:
            try:
                listeners = [opened.enter_context(one) for one in _open(host, port)]
            except OSError as problem:
                if port or problem.errno != errno.EADDRINUSE or tried == _TRIES:
                    raise
            else:
                opened.pop_all()
                return listeners
    raise AssertionError


def _open(host: str, port: int) -> Iterator[socket.socket]:
    """Sockets for the addresses of a host; those of a family that this machine does not have are left out.

    Nothing but this machine is to reach `localhost`, which needs no key; other addresses that it has are left out.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    missing, count = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL)), 0
    for family, name in dict.fromkeys((family, str(place[0])) for family, *_, place in found):
        if is_loopback(host) and not is_loopback(name):
            continue
        both = name == "::" and socket.has_dualstack_ipv6()
        try:
            listener = socket.create_server((name, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        except OSError as problem:
            if problem.errno not in _NO_FAMILY:
                raise
            missing = problem
            continue
        port, count = listener.getsockname()[1], count + 1  # where any is taken, the others have that of the first
        yield listener
    if not count:
        raise missing


def address(options: ServeOptions, port: int) -> str:
    """The address of the server for a browser on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _for_others(options: ServeOptions, port: int) -> str:
    """The IPv4 address for other machines, where the server has all addresses of this one."""
    if options.host != "0.0.0.0" and not (options.host == "::" and socket.has_dualstack_ipv6()):
        return ""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, and finds out by which address others are reached
        return f", for other machines http://{probe.getsockname()[0]}:{port}"
    return ""


async def _serve(
    service: Service, policy: AccessPolicy, listeners: list[socket.socket], log: Log, say: Callable[[str], None]
) -> None:
    """Answers from the first moment on: that the server is not ready, until it is."""
    _allow_files(service.options.max_connections + _FILES)
    app = make_guarded(service, policy, log)
    server, place = HttpServer(app, service.options, say), address(service.options, policy.port)
    say(f"{place}{_for_others(service.options, policy.port)}: loading {', '.join(service.engine.models)}")
    preparing = asyncio.create_task(_prepare(service, functools.partial(_say_ready, say, place)))
    preparing.add_done_callback(lambda done: server.end(quietly=True))  # its error says why
    with _ended_by_signals(server):
        await server.run(listeners)
    preparing.cancel()
    with suppress(asyncio.CancelledError):
        await preparing


def _say_ready(say: Callable[[str], None], place: str, service: Service, seconds: float) -> None:
    models = ", ".join(f"{one.name} ({', '.join(one.tasks)})" for one in service.facts.values())
    if service.options.truncate:
        say("texts that are too long are truncated; the log and /metrics count them")
    say(f"ready after {seconds:.1f} s: {models}; page at {place}, Ctrl-C ends")


async def _prepare(service: Service, done: Callable[[Service, float], None]) -> None:
    """Loads the models, and computes a few texts with each, so that no request waits for it; then waits itself."""
    begun = time.perf_counter()
    for name in service.engine.models:
        facts, mask = await asyncio.wrap_future(service.engine.call(name, functools.partial(_facts, name)))
        service.facts[name] = facts
        for entry, words in itertools.product(map(find_task, facts.tasks), _WARM):
            if entry.options is not EmbedWordsOptions:  # its encoder is that of the other tasks
                with suppress(MlxbertError):  # a task that needs more than a text
                    await service.engine.ask(name, entry.name, [_item(entry, words, mask)])
    vars(service.engine.counts).update(vars(EngineCounts()))  # nobody has asked for these
    service.ready = True
    done(service, time.perf_counter() - begun)
    await asyncio.Event().wait()  # until the server ends, which it does when this does


def _facts(name: str, model: Model) -> tuple[ModelFacts, str]:
    return read_facts(name, model), model.tokenizer.mask_token or ""


def _item(entry: TaskEntry, words: int, mask: str) -> Any:
    """What a task is asked for, of some words."""
    text = " ".join(["the"] * words)
    if entry.options is FillMaskOptions:
        return f"{text} {mask}"
    return ("the", text) if entry.items in ("pair", "question", "query") else text


class HttpServer:
    """Answers requests until it is told to end.

    Args:
        app: The application.
        options: The limits of connections.
        say: Gets a line when the server ends.

    Attributes:
        connections: The open connections.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions, say: Callable[[str], None] = lambda text: None) -> None:
        self.connections: set[Connection] = set()
        self._connect = functools.partial(Connection, app, options, self.connections)
        self._say, self._quietly, self._told = say, False, asyncio.Event()

    async def run(self, listeners: Iterable[socket.socket]) -> None:
        """Accepts connections; when told to end, takes no more, and closes those there are once they are answered."""
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(self._connect, sock=place, backlog=_BACKLOG) for place in listeners]
        await self._told.wait()
        if not self._quietly:
            count = sum(connection.busy for connection in self.connections)
            left = f"{count} more {'request is' if count == 1 else 'requests are'} answered"
            self._say(f"ends once {left}; a second Ctrl-C ends it at once" if count else "ends")
        await asyncio.sleep(_GRACE)
        for server in servers:
            server.close()
        await asyncio.sleep(_GRACE)
        for connection in self.connections:
            connection.finish()
        while self.connections:
            await asyncio.sleep(_POLL)

    def end(self, *, quietly: bool = False) -> None:
        """Tells the server to end; a later call says no more than the first."""
        if not self._told.is_set():
            self._quietly = quietly
            self._told.set()


@contextmanager
def _ended_by_signals(server: HttpServer) -> Iterator[None]:
    """Ends a server at a signal, at once at a second one. Signals that are ignored, as under `nohup`, stay ignored."""
    loop, caught = asyncio.get_running_loop(), list[int]()

    def handle(number: int, frame: FrameType | None) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        loop.call_soon_threadsafe(server.end)

    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def logged(log: Log) -> Iterator[None]:
    """Writes what goes wrong, and what the engine does, into the log of requests."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    for one, level in zip(loggers, _LOGGERS.values(), strict=True):
        one.handlers, one.propagate = [LogHandler(log)], False
        one.setLevel(level)
    try:
        yield
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)


def _allow_files(count: int) -> None:
    """Raises the limit of open files as far as it goes: a Mac has 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard)
    if soft < count:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
