"""The server process: listens, loads the models, answers requests, and shuts down on a signal."""

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
from mlxbert.serve.engine.engine_state import EngineCounts
from mlxbert.serve.engine.serving_options import EngineOptions, ServeOptions
from mlxbert.serve.http.app import make_app
from mlxbert.serve.http.connection import Connection
from mlxbert.serve.http.request_guards import AccessPolicy, Guard, is_loopback, read_key
from mlxbert.serve.service import ModelFacts, Service, read_facts
from mlxbert.tasks.catalogue import TaskEntry, find_task
from mlxbert.tasks.options import EmbedWordsOptions, FillMaskOptions
from mlxbert.weights.model_source import ModelRef

# The loggers whose records go to the log, with minimum levels; not "mlxbert", whose records may quote texts.
_LOGGERS = {"mlxbert.serve": logging.INFO, "asyncio": logging.ERROR}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BACKLOG = 2048  # limited by the system: kern.ipc.somaxconn, 128 on a Mac
_NO_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # without IPv6, ::1 may still be in /etc/hosts
_MAX_TRIES = 5  # to find one free port for several addresses
_GRACE = 0.2  # seconds to take connections that the system has accepted, and again to receive their requests
_POLL = 0.05  # seconds between checks whether all connections are closed
_FILES = 200  # open files besides connections
_WARM_UP_WORDS = (4, 30, 120)  # lengths of the texts that warm up a model


def serve(
    models: Mapping[str, ModelRef],
    options: ServeOptions,
    *,
    engine_options: EngineOptions,
    indexes: Mapping[str, str | Path],
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serves models, by the names that clients use, until a signal arrives.

    Accepted requests are still answered. A second signal ends the process at once. `quiet` leaves out requests if the
    log is on stderr; `say` receives a line when the server listens, when it is ready, and when it ends.
    """
    key = read_key(options)
    try:
        log = open_log(options.log_file, quiet=quiet, texts=options.log_texts)
    except OSError as problem:
        raise ArgumentError(f"`log_file` is {options.log_file}, which cannot be written ({problem.strerror})") from None
    policy = AccessPolicy(options, options.port, key)
    with listen(options) as listeners, Engine(models, engine_options) as engine, logged(log):
        service = Service(engine, options, indexes=indexes)
        policy = dataclasses.replace(policy, port=listeners[0].getsockname()[1])
        asyncio.run(_serve(service, policy, listeners, log, say))


def make_guarded(service: Service, policy: AccessPolicy, log: Log) -> Access:
    """Makes the application with access control, metrics and logging."""
    return Access(Guard(make_app(service), policy), service.metrics, log)


@contextmanager
def listen(options: ServeOptions) -> Iterator[list[socket.socket]]:
    """Opens the same port on all addresses of a host: clients of `localhost` may try either 127.0.0.1 or ::1."""
    host, port = options.host, options.port
    for left in reversed(range(_MAX_TRIES)):
        with ExitStack() as stack:
            try:
                listeners = [stack.enter_context(listener) for listener in _open(host, port)]
            except (socket.gaierror, UnicodeError):
                raise ArgumentError(f"`host` is {host!r:.100}, expected a name or an address of this machine") from None
            except OSError as problem:
                used = problem.errno == errno.EADDRINUSE
                if used and left and not port:  # the free port of one address is taken at another
                    continue
                raise MlxbertError(
                    f"port {port} of {host} {'is in use' if used else f'cannot be opened ({problem.strerror})'}",
                    hint="choose another `port=`, or `port=0` for a free one" if used else None,
                ) from None
            yield listeners
            return


def _open(host: str, port: int) -> Iterator[socket.socket]:
    """Opens sockets for the addresses of a host, except for address families that this machine does not support.

    For `localhost`, only loopback addresses are opened: no key is needed there, so only this machine may reach it.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    missing, count = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL)), 0
    for family, name in dict.fromkeys((family, str(place[0])) for family, *_, place in addresses):
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
        port, count = listener.getsockname()[1], count + 1  # with port 0, all sockets use the first one's port
        yield listener
    if not count:
        raise missing


def address(options: ServeOptions, port: int) -> str:
    """Returns the URL of the server for a browser on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _for_others(options: ServeOptions, port: int) -> str:
    """Returns the part of a message that gives the IPv4 URL of the server for other machines.

    Returns an empty string unless the server listens on all addresses.
    """
    if options.host != "0.0.0.0" and not (options.host == "::" and socket.has_dualstack_ipv6()):
        return ""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; selects the address for outgoing traffic
        return f", for other machines http://{probe.getsockname()[0]}:{port}"
    return ""


async def _serve(
    service: Service, policy: AccessPolicy, listeners: list[socket.socket], log: Log, say: Callable[[str], None]
) -> None:
    """Answers requests from the start; until the models are loaded, answers that the server is not ready."""
    _allow_files(service.options.max_connections + _FILES)
    app = make_guarded(service, policy, log)
    server, place = HttpServer(app, service.options, say), address(service.options, policy.port)
    say(f"{place}{_for_others(service.options, policy.port)}: loading {', '.join(service.engine.models)}")
    preparing = asyncio.create_task(_prepare(service, functools.partial(_say_ready, say, place)))
    preparing.add_done_callback(lambda done: server.end(quietly=True))  # its error gives the reason
    with _ended_by_signals(server):
        await server.run(listeners)
    preparing.cancel()
    with suppress(asyncio.CancelledError):
        await preparing


def _say_ready(say: Callable[[str], None], place: str, service: Service, seconds: float) -> None:
    models = ", ".join(f"{facts.name} ({', '.join(facts.tasks)})" for facts in service.facts.values())
    if service.options.truncate:
        say("texts that are too long are truncated; the log and /metrics count them")
    say(f"ready after {seconds:.1f} s: {models}; page at {place}, Ctrl-C ends")


async def _prepare(service: Service, done: Callable[[Service, float], None]) -> None:
    """Loads and warms up the models, marks the service as ready, and then waits to be cancelled."""
    begun = time.perf_counter()
    for name in service.engine.models:
        facts, mask = await asyncio.wrap_future(service.engine.call(name, functools.partial(_facts, name)))
        service.facts[name] = facts
        for entry, words in itertools.product(map(find_task, facts.tasks), _WARM_UP_WORDS):
            if entry.options is not EmbedWordsOptions:  # the other tasks warm up its encoder
                with suppress(MlxbertError):  # a task with other inputs
                    await service.engine.ask(name, entry.name, [_item(entry, words, mask)])
    vars(service.engine.counts).update(vars(EngineCounts()))  # without the warm-up
    service.ready = True
    done(service, time.perf_counter() - begun)
    await asyncio.Event().wait()  # the server ends when this task ends


def _facts(name: str, model: Model) -> tuple[ModelFacts, str]:
    return read_facts(name, model), model.tokenizer.mask_token or ""


def _item(entry: TaskEntry, words: int, mask: str) -> Any:
    text = " ".join(["the"] * words)
    if entry.options is FillMaskOptions:
        return f"{text} {mask}"
    return entry.items.example(text)


class HttpServer:
    """Accepts connections until `end` is called; `say` receives a line when the server ends."""

    def __init__(self, app: ASGIApp, options: ServeOptions, say: Callable[[str], None] = lambda text: None) -> None:
        self.connections: set[Connection] = set()  # the open connections
        self._connect = functools.partial(Connection, app, options, self.connections)
        self._say, self._quietly, self._ending = say, False, asyncio.Event()

    async def run(self, listeners: Iterable[socket.socket]) -> None:
        """Accepts connections until `end` is called; then closes each connection after its request is answered."""
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(self._connect, sock=place, backlog=_BACKLOG) for place in listeners]
        await self._ending.wait()
        if not self._quietly:
            count = sum(connection.busy for connection in self.connections)
            pending = f"{count} more {'request is' if count == 1 else 'requests are'} answered"
            self._say(f"ends after {pending}; a second Ctrl-C ends it at once" if count else "ends")
        await asyncio.sleep(_GRACE)
        for server in servers:
            server.close()
        await asyncio.sleep(_GRACE)
        for connection in self.connections:
            connection.finish()
        while self.connections:
            await asyncio.sleep(_POLL)

    def end(self, *, quietly: bool = False) -> None:
        """Tells the server to end; later calls have no effect."""
        if not self._ending.is_set():
            self._quietly = quietly
            self._ending.set()


@contextmanager
def _ended_by_signals(server: HttpServer) -> Iterator[None]:
    """Within this context, a signal ends the server; a second one does so immediately.

    Ignored signals stay ignored, as under `nohup`.
    """
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
    """Within this context, the records of Python's loggers are written to the log of requests."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger, level in zip(loggers, _LOGGERS.values(), strict=True):
        logger.handlers, logger.propagate = [LogHandler(log)], False
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def _allow_files(count: int) -> None:
    """Raises the limit on open files to `count`, or as far as possible; the default on a Mac is 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard)
    if soft < count:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
