"""Metrics of a daemon in the format of Prometheus.

Counters follow `runtime.events`; gauges are read on request. Labels take values from fixed lists only (slugs, kinds,
outcomes). A host or a path, which a program inside a sandbox can choose, never becomes a label."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sandboxd.policy.violation import Violation
from sandboxd.runtime.events import (
    CommandDecided,
    Connected,
    Disconnected,
    Event,
    Fallback,
    RunEnded,
    RunPrepared,
    RunRefused,
    RunStarted,
)
from sandboxd.runtime.prompts.prompt_records import Asked, ResolvedQuestion
from sandboxd_client.records import dataclass

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
_PEOPLE = (1, 2.5, 5, 10, 30, 60, 120, 300)
_OPEN_AT_MOST = 1024
"""Number of open questions whose start is remembered."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Value that is read on request with `read`."""

    name: str
    help: str
    read: Callable[[], float]


class Metrics:
    """The counters and histograms of one daemon."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry(auto_describe=False)  # a description would read the gauges
        self._questions: dict[str, float] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sandboxd_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"sandboxd_{name}", text, buckets=buckets, registry=registry)

        self._prepared = counter("wraps", "Sandboxes prepared for a command")
        self._refused = counter("wrap_failures", "Commands for which no sandbox was prepared", "slug")
        self._started = counter("runs", "Commands that were started")
        self._ended = counter("runs_ended", "Commands that have ended", "outcome")
        self._decided = counter("decisions", "Answers to should_sandbox", "behavior", "sandboxed")
        self._blocked = counter("violations", "What was blocked", "kind", "source", "outcome")
        self._asked = counter("questions", "Questions put to people", "kind")
        self._answered = counter("answers", "What became of questions", "outcome", "allowed")
        self._connected = counter("connections", "Connections to the outside", "operation")
        self._bytes = counter("tunnel_bytes", "Bytes through tunnels", "direction")
        self._fallbacks = counter("fallbacks", "Something weaker than asked for, with permission", "what")
        self._wrap_seconds = histogram("wrap_seconds", "How long preparing a sandbox took", _FAST)
        self._gate_seconds = histogram("gate_seconds", "How long a decision on a host took, people not counted", _FAST)
        self._answer_seconds = histogram("answer_seconds", "How long people took to answer", _PEOPLE)

    def add_gauges(self, gauges: tuple[Gauge, ...]) -> None:
        """Report these and those of the process from now on."""
        self._registry.register(_Looked((*gauges, *_PROCESS)))

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry).decode("utf-8")

    def gate(self, seconds: float) -> None:
        """Count a decision on a host."""
        self._gate_seconds.observe(seconds)

    def listen(self, event: Event) -> None:
        match event:
            case RunPrepared():
                self._prepared.inc()
                self._wrap_seconds.observe(event.seconds)
            case RunRefused():
                self._refused.labels(event.slug).inc()
            case RunStarted():
                self._started.inc()
            case RunEnded():
                self._ended.labels(_outcome(event)).inc()
            case Connected():
                self._connected.labels(event.operation if event.operation in _OPERATIONS else "other").inc()
            case Disconnected():
                self._bytes.labels("sent").inc(event.sent)
                self._bytes.labels("received").inc(event.received)
            case CommandDecided():
                self._decided.labels(event.decision.behavior.value, str(event.sandboxed).lower()).inc()
            case Violation():
                self._blocked.labels(event.kind.value, event.source.value, event.outcome).inc(event.count)
            case Fallback():
                self._fallbacks.labels(event.what).inc()
            case Asked():
                self._asked.labels(event.question.kind.value).inc()
                if len(self._questions) < _OPEN_AT_MOST:
                    self._questions[event.request_id] = time.monotonic()
            case ResolvedQuestion():
                self._answered.labels(event.outcome.value, str(event.allowed).lower()).inc()
                begun = self._questions.pop(event.request_id or "", None)
                if begun is not None:
                    self._answer_seconds.observe(time.monotonic() - begun)


_OPERATIONS = frozenset({"CONNECT", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "SOCKS5", "connect"})


def _outcome(event: RunEnded) -> str:
    if not event.started:
        return "not_started"
    if event.status is None:
        return "unknown"
    if event.status == 0:
        return "success"
    return "signal" if event.status > 128 else "failure"


class _Looked(Collector):
    def __init__(self, gauges: tuple[Gauge, ...]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for gauge in self._gauges:
            yield GaugeMetricFamily(f"sandboxd_{gauge.name}", gauge.help, value=gauge.read())


def _open_descriptors() -> float:
    return float(len(os.listdir("/dev/fd")) - 1)  # one of them is the listing's own


def _resident_bytes() -> float:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not on macOS
        return 0.0


_PROCESS = (
    Gauge("open_descriptors", "Open file descriptors", _open_descriptors),
    Gauge("resident_bytes", "Memory in use", _resident_bytes),
)
