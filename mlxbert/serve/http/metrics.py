"""What can be watched from outside: `/health`, and `/metrics` in the text format of Prometheus."""

import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from mlxbert.machine.device import mx
from mlxbert.serve.access_log import SECONDS
from mlxbert.serve.protocol import Protocol, Reply, RequestError, Route, plain_shape
from mlxbert.serve.service import Service

SIZES = tuple(2**power for power in range(11))  # texts of a batch
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(service: Service, path: Mapping[str, str]) -> Reply:
    """Whether requests are answered."""
    if service.engine.closed:
        raise RequestError("unavailable", "the engine has ended")
    return Reply({"status": "ready"})


async def metrics(service: Service, path: Mapping[str, str]) -> Reply:
    """Everything that is counted."""
    return Reply("".join(f"{line}\n" for line in _lines(service)).encode(), media_type=_TYPE)


def _lines(service: Service) -> Iterator[str]:
    counts, seen = service.engine.counts, service.metrics
    requests = {
        _labels(method=method, route=route, status=status): number
        for (method, route, status), number in sorted(seen.requests.items())
    }
    yield from _family("http_requests_total", "counter", "Requests by route and status.", requests)
    seconds: dict[str, float] = {}
    for route, numbers in [*seen.latencies.items()]:
        seconds |= _histogram(SECONDS, numbers, seen.seconds[route], route=route)
    yield from _family("http_request_seconds", "histogram", "Seconds from headers to the end of the answer.", seconds)
    numbers = [0] * (len(SIZES) + 1)
    for place, number in [*counts.sizes.items()]:
        numbers[min(place, len(SIZES))] += number
    sizes = _histogram(SIZES, numbers, counts.texts)
    yield from _family("batch_texts", "histogram", "Texts of a batch.", sizes)
    told: Mapping[str, tuple[str, float]] = {
        "texts_total": ("Texts that were computed.", counts.texts),
        "tokens_total": ("Tokens that were computed.", counts.tokens),
        "truncated_total": ("Texts that were truncated.", counts.truncated),
        "busy_seconds_total": ("Seconds of computing.", counts.busy),
        "refused_total": ("Requests that found the queue full.", counts.refused),
        "abandoned_total": ("Requests that their clients gave up.", counts.abandoned),
        "failed_total": ("Requests that ended with an error of the engine.", counts.failed),
        "queue_texts": ("Texts that wait.", service.engine.waiting),
        "models_loaded": ("Models in memory.", len(service.engine.loaded)),
        "process_resident_bytes": ("Memory of the process.", resident()),
        "mlx_active_bytes": ("Memory of MLX's arrays.", mx.get_active_memory()),
        "mlx_cache_bytes": ("Memory that MLX keeps for later arrays.", mx.get_cache_memory()),
    }
    for name, (about, value) in told.items():
        yield from _family(name, "counter" if name.endswith("_total") else "gauge", about, {"": value})


def _family(name: str, kind: str, about: str, values: Mapping[str, float]) -> Iterator[str]:
    """The lines of a metric; its values by what follows its name."""
    yield f"# HELP mlxbert_{name} {about}"
    yield f"# TYPE mlxbert_{name} {kind}"
    yield from (f"mlxbert_{name}{after} {value}" for after, value in values.items())


def _histogram(bounds: Sequence[float], numbers: Sequence[int], total: float, **labels: object) -> dict[str, float]:
    """The values of a histogram; `numbers` has one more than `bounds`, of what is above them."""
    counts = [*accumulate(numbers)]
    found = {
        f"_bucket{_labels(**labels, le=bound)}": count for bound, count in zip([*bounds, "+Inf"], counts, strict=True)
    }
    return {**found, f"_sum{_labels(**labels)}": total, f"_count{_labels(**labels)}": counts[-1]}


def _labels(**labels: object) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def resident() -> int:
    """Bytes of memory of this process; on a Mac the most that it has had."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PROTOCOL = Protocol(
    "operations",
    (
        Route("GET", "/health", health, "Whether the server is ready"),
        Route("GET", "/metrics", metrics, "What is counted, for Prometheus"),
    ),
    plain_shape,
)
