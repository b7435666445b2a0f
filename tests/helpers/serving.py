"""A service of tiny models, and a server of it within the process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from mlxbert.serve.app import make_app
from mlxbert.serve.engine import Engine, EngineOptions
from mlxbert.serve.service import ServeOptions, Service, read_facts
from mlxbert.weights.source import ModelRef


@contextmanager
def service_of(
    folders: dict[str, Path], options: ServeOptions | None = None, engine: EngineOptions | None = None
) -> Iterator[Service]:
    """A service that is ready, with models by their names."""
    refs = {name: ModelRef(str(folder), dtype="float32") for name, folder in folders.items()}
    with Engine(refs, engine or EngineOptions()) as running:
        service = Service(running, options or ServeOptions())
        for name in refs:
            service.facts[name] = running.call(name, lambda model, name=name: read_facts(name, model)).result()
        service.ready = True
        yield service


@contextmanager
def address_of(service: Service) -> Iterator[str]:
    """The address of a server of a service; it ends with the block."""
    server = uvicorn.Server(uvicorn.Config(make_app(service), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        server.should_exit = True
        thread.join()
