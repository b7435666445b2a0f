"""The routes for monitoring: `/health`, and `/metrics` in the text format of Prometheus."""

import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from mlxbert.machine.device import mx
from mlxbert.serve.access_log import SECONDS
from mlxbert.serve.protocol import Protocol, Reply, RequestError, Route, plain_shape
from mlxbert.serve.service import Service

SIZES = tuple(2**power for power in range(11))  # texts per batch
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(service: Service, path: Mapping[str, str]) -> Reply:
    """Reports that the server is ready."""
    if service.engine.closed:
        raise RequestError("unavailable", "the engine has stopped")
    return Reply({"status": "ready"})


async def metrics(service: Service, path: Mapping[str, str]) -> Reply:
    """Returns all metrics."""
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
    yield from _family("batch_texts", "histogram", "Texts per batch.", sizes)
    single_values: Mapping[str, tuple[str, float]] = {
        "texts_total": ("Computed texts.", counts.texts),
        "tokens_total": ("Computed tokens.", counts.tokens),
        "truncated_total": ("Truncated texts.", counts.truncated),
        "busy_seconds_total": ("Seconds of computing.", counts.busy),
        "refused_total": ("Requests refused because the queue was full.", counts.refused),
        "abandoned_total": ("Requests cancelled by their clients.", counts.abandoned),
        "failed_total": ("Requests that failed with an error of the engine.", counts.failed),
        "queue_texts": ("Waiting texts.", service.engine.waiting),
        "models_loaded": ("Models in memory.", len(service.engine.loaded)),
        "process_resident_bytes": ("Memory of the process.", resident()),
        "mlx_active_bytes": ("Memory of MLX arrays.", mx.get_active_memory()),
        "mlx_cache_bytes": ("Memory cached by MLX.", mx.get_cache_memory()),
    }
    for name, (about, value) in single_values.items():
        yield from _family(name, "counter" if name.endswith("_total") else "gauge", about, {"": value})


def _family(name: str, kind: str, about: str, values: Mapping[str, float]) -> Iterator[str]:
    """Yields the lines of a metric. The keys of `values` are suffixes, with labels, of the metric's name."""
    yield f"# HELP mlxbert_{name} {about}"
    yield f"# TYPE mlxbert_{name} {kind}"
    yield from (f"mlxbert_{name}{suffix} {value}" for suffix, value in values.items())


def _histogram(bounds: Sequence[float], numbers: Sequence[int], total: float, **labels: object) -> dict[str, float]:
    """Returns the `values` for `_family`; `numbers` has a count per interval that ends at a bound, and one more."""
    counts = [*accumulate(numbers)]
    buckets = {
        f"_bucket{_labels(**labels, le=bound)}": count for bound, count in zip([*bounds, "+Inf"], counts, strict=True)
    }
    return {**buckets, f"_sum{_labels(**labels)}": total, f"_count{_labels(**labels)}": counts[-1]}


def _labels(**labels: object) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def resident() -> int:
    """Returns the resident memory of this process in bytes; on a Mac, the maximum so far."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PROTOCOL = Protocol(
    "operations",
    (
        Route("GET", "/health", health, "Whether the server is ready"),
        Route("GET", "/metrics", metrics, "Metrics for Prometheus"),
    ),
    plain_shape,
)
