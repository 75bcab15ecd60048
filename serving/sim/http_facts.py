"""The series of the instrumentation in front of vLLM's routes, and of its process."""

from __future__ import annotations

import gc
import platform
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from serving.sim.exchange import Exchange
from serving.sim.exposition import Samples, lines
from serving.sim.facts import Histogram

_FEW = (0.1, 0.5, 1.0)
_MANY = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5),
    *(10.0, 30.0, 60.0),
)
UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
_ABOUT_SIZE = "Only value of header is respected. Otherwise ignored. No percentile calculated. "


class HttpFacts:
    """Requests of one engine by handler; a path that no route has is the handler `none`."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._sizes: dict[str, list[int]] = {}
        """By handler: requests, their bytes, the answers' bytes."""
        self._few: dict[tuple[str, str], Histogram] = {}
        self._many = Histogram(_MANY)

    def count(self, exchange: Exchange, seconds: float, *, has_route: bool) -> None:
        if exchange.path in UNCOUNTED:
            return
        handler = exchange.path if has_route else "none"
        self._requests[handler, exchange.method, f"{(exchange.status or 500) // 100}xx"] += 1
        sizes = self._sizes.setdefault(handler, [0, 0, 0])
        for place, value in enumerate((1, exchange.request_bytes, 0 if exchange.events else exchange.sent_bytes)):
            sizes[place] += value
        self._few.setdefault((handler, exchange.method), Histogram(_FEW)).observe(seconds)
        self._many.observe(seconds)

    def lines(self, created_seconds: float) -> Iterator[str]:
        requests: Samples = [
            ({"handler": handler, "method": method, "status": status}, count)
            for (handler, method, status), count in self._requests.items()
        ]
        yield from lines(
            "http_requests_total", "counter", "Total number of requests by method, status and handler.", requests, created_seconds
        )
        for place, name, which in ((1, "request", "incoming requests"), (2, "response", "outgoing responses")):
            about = f"Content length of {which} by handler. {_ABOUT_SIZE}"
            yield from self._size_lines(f"http_{name}_size_bytes", about, place, created_seconds)
        about = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
        yield from lines("http_request_duration_highr_seconds", "histogram", about, [({}, self._many)], created_seconds)
        about = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
        few: Samples = [({"handler": handler, "method": method}, found) for (handler, method), found in self._few.items()]
        yield from lines("http_request_duration_seconds", "histogram", about, few, created_seconds)

    def _size_lines(self, name: str, about: str, place: int, created_seconds: float) -> Iterator[str]:
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} summary"
        for handler, sizes in self._sizes.items():
            yield f'{name}_count{{handler="{handler}"}} {float(sizes[0])}'
            yield f'{name}_sum{{handler="{handler}"}} {float(sizes[place])}'
        created: Samples = [({"handler": handler}, created_seconds) for handler in self._sizes]
        if created:
            yield from lines(f"{name}_created", "gauge", about, created, None)


def process_lines(started_seconds: float) -> Iterator[str]:
    """What prometheus_client tells of a Python process; it is the simulator's own, shared by all its engines."""
    stats = gc.get_stats()
    for name, about, key in (
        ("objects_collected", "Objects collected during gc", "collected"),
        ("objects_uncollectable", "Uncollectable objects found during GC", "uncollectable"),
        ("collections", "Number of times this generation was collected", "collections"),
    ):
        samples: Samples = [({"generation": str(number)}, found[key]) for number, found in enumerate(stats)]
        yield from lines(f"python_gc_{name}_total", "counter", about, samples, None)
    major, minor, patch = platform.python_version_tuple()
    info = {
        "implementation": platform.python_implementation(),
        "major": major,
        "minor": minor,
        "patchlevel": patch,
        "version": platform.python_version(),
    }
    yield from lines("python_info", "gauge", "Python platform information", [(info, 1)], None)
    pages = [int(number) for number in Path("/proc/self/statm").read_text().split()[:2]]
    page_bytes = resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    for name, kind, about, value in (
        ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", pages[0] * page_bytes),
        ("resident_memory_bytes", "gauge", "Resident memory size in bytes.", pages[1] * page_bytes),
        ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started_seconds),
        ("cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", used.ru_utime + used.ru_stime),
        ("open_fds", "gauge", "Number of open file descriptors.", sum(1 for _ in Path("/proc/self/fd").iterdir())),
        ("max_fds", "gauge", "Maximum number of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        yield from lines(f"process_{name}", kind, about, [({}, value)], None)
