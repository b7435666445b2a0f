"""Servers for tiny models: in this process, or on a port."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.serve.access_log import Log
from mlxbert.serve.engine.engine import Engine
from mlxbert.serve.engine.serving_options import EngineOptions, ServeOptions
from mlxbert.serve.http.request_guards import AccessPolicy
from mlxbert.serve.http.server import HttpServer, address, listen, make_guarded
from mlxbert.serve.service import Service, read_facts


@contextmanager
def serving(
    models: Mapping[str, Path | str],
    indexes: Mapping[str, Path] | None = None,
    options: ServeOptions | None = None,
    max_queue: int = 1000,
) -> Iterator[Service]:
    limits = EngineOptions(max_models=len(models), max_queue=max_queue)
    with Engine({name: str(model) for name, model in models.items()}, limits) as engine:
        service = Service(engine, options or ServeOptions(), indexes=indexes or {})
        for name in models:
            service.facts[name] = engine.call(name, lambda model, name=name: read_facts(name, model)).result()
        service.ready = True
        yield service


@contextmanager
def answering(app: Any, host: str = "127.0.0.1", **options: Any) -> Iterator[tuple[int, HttpServer]]:
    limits = ServeOptions(**{"host": host, "port": 0, **options})
    with listen(limits) as listeners:
        server = HttpServer(app, limits)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_until_complete, args=(server.run(listeners),), daemon=True)
        thread.start()
        try:
            yield listeners[0].getsockname()[1], server
        finally:
            loop.call_soon_threadsafe(server.end)
            thread.join()
            loop.close()


@contextmanager
def listening(service: Service, key: str | None = None) -> Iterator[str]:
    """Runs a service as a complete server on a free port; yields its address."""

    async def app(*message: Any) -> None:
        await guarded(*message)

    with answering(app, **vars(service.options) | {"port": 0}) as (port, _):
        options = replace(service.options, port=port)
        guarded = make_guarded(service, AccessPolicy(options, port, key), Log(None))
        yield address(options, port)
