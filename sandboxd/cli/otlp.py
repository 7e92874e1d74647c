"""`sandboxd audit send`: lines of the audit log and metrics, for a collector of OpenTelemetry (OTLP over HTTP).

The log itself is the queue. A batch is kept until the collector has taken it, and the number of its last line is
written down, so that the next process goes on there. Memory is bounded by one batch; what a collector misses for longer
than the log keeps is counted."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final, Protocol

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics import export as metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.parser import text_string_to_metric_families

from sandboxd import __version__
from sandboxd_client import Client, SandboxdError
from sandboxd_client.records import dataclass

BATCH: Final = 500
LONGEST: Final = 1 << 20
TIMEOUT_S: Final = 10.0
LOOK_S: Final = 1.0
SLOWEST_S: Final = 60.0
"""The longest pause after failures."""
METRICS_S: Final = 60.0
SCOPE: Final = InstrumentationScope("sandboxd", __version__)
_WARNS: Final = frozenset({"violation", "run_refused", "fallback", "lost"})
_CUMULATIVE: Final = metrics.AggregationTemporality.CUMULATIVE


class Files(Protocol):
    """The lines of a log and of what it was renamed to, as records, oldest first."""

    def __call__(self) -> Iterator[dict[str, Any]]: ...


@dataclass(slots=True)
class Follower:
    """The lines of a log after number `sent`, also over its renaming. `skipped` were removed before they were sent."""

    path: str
    files: Files
    sent: int = 0
    skipped: int = 0
    _seen: tuple[int, int, int] = (-1, 0, 0)
    """Inode and size of the newest file at the last look, and the offset up to which its lines were read."""

    def next(self) -> list[dict[str, Any]]:
        """Return the next lines, at most a batch; they come again until `sent` is beyond them."""
        try:
            state = os.stat(self.path)
        except OSError:
            return []
        inode, size, offset = self._seen
        if (inode, size) == (state.st_ino, state.st_size):
            return []
        found = self._new_lines(offset) if inode == state.st_ino and size < state.st_size else self._all()
        batch = list(islice(found, BATCH))
        if len(batch) < BATCH:
            self._seen = state.st_ino, state.st_size, self._end_of_lines(state.st_size)
        return batch

    def _end_of_lines(self, size: int) -> int:
        """Return the offset behind the last whole line."""
        begin = max(0, size - LONGEST)
        with open(self.path, "rb") as file:
            file.seek(begin)
            return begin + file.read(size - begin).rfind(b"\n") + 1

    def took(self, batch: list[dict[str, Any]]) -> None:
        """Record that the collector has these lines."""
        first, last = int(batch[0]["seq"]), int(batch[-1]["seq"])
        self.skipped += max(0, first - self.sent - 1) if self.sent else 0
        self.sent = last

    def again(self) -> None:
        """Read from the file again, since a batch was not taken."""
        self._seen = (-1, 0, 0)

    def _all(self) -> Iterator[dict[str, Any]]:
        numbers = [int(one["seq"]) for one in self.files()]
        if numbers and max(numbers) < self.sent:  # another log, which begins anew
            self.sent = 0
        return (one for one in self.files() if int(one["seq"]) > self.sent)

    def _new_lines(self, offset: int) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            file.seek(offset)
            while line := file.readline(LONGEST):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    record = json.loads(line)
                    if int(record["seq"]) > self.sent:
                        yield record


def resource() -> Resource:
    """Return what tells this machine and user from others."""
    named = {"service.name": "sandboxd", "service.version": __version__, "host.name": socket.gethostname()}
    return Resource({**named, "process.owner": str(os.geteuid())})


def log_of(record: dict[str, Any], origin: Resource) -> ReadableLogRecord:
    """Return a line of the log as OpenTelemetry has it: the whole line as the body, short fields as attributes."""
    kind = str(record.get("kind", ""))
    when = 0
    with contextlib.suppress(ValueError, KeyError, TypeError):
        when = int(datetime.fromisoformat(str(record["time"]).replace("Z", "+00:00")).timestamp() * 1e9)
    told = {
        f"sandboxd.{name}": record[name]
        for name in ("seq", "kind", "wrap_id", "command_id", "hash")
        if record.get(name)
    }
    severity = SeverityNumber.WARN if kind in _WARNS else SeverityNumber.INFO
    made = LogRecord(
        timestamp=when,
        observed_timestamp=time.time_ns(),
        severity_number=severity,
        severity_text=severity.name,
        body=json.dumps(record, ensure_ascii=True),
        attributes=told,
        event_name=f"sandboxd.{kind}",
    )
    return ReadableLogRecord(made, origin, SCOPE)


def metrics_of(text: str, origin: Resource, started: float) -> metrics.MetricsData:
    """Return the metrics of a daemon that has run since `started`; histograms as counts and sums."""
    begun, now, made = int(started * 1e9), time.time_ns(), []
    for family in text_string_to_metric_families(text):
        points: dict[str, list[metrics.NumberDataPoint]] = {}
        for one in family.samples:
            if not one.name.endswith(("_bucket", "_created")):
                point = metrics.NumberDataPoint(dict(one.labels), begun, now, one.value)
                points.setdefault(one.name, []).append(point)
        counts = family.type in ("counter", "histogram", "summary")
        for name, found in points.items():
            data = metrics.Sum(found, _CUMULATIVE, True) if counts else metrics.Gauge(found)
            made.append(metrics.Metric(name, family.documentation, "", data))
    scope = metrics.ScopeMetrics(SCOPE, made, "")
    return metrics.MetricsData([metrics.ResourceMetrics(origin, [scope], "")])


def send(
    endpoint: str,
    follower: Follower,
    save: Callable[[int], None],
    note: Callable[[str], None],
    *,
    once: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Send what is new until the process ends, or `once`; return whether the collector took everything."""
    base, origin = endpoint.rstrip("/"), resource()
    logs = OTLPLogExporter(f"{base}/v1/logs", timeout=TIMEOUT_S)
    figures = OTLPMetricExporter(f"{base}/v1/metrics", timeout=TIMEOUT_S)
    wait_s, due = LOOK_S, 0.0
    while True:
        batch = follower.next()
        if batch and logs.export([log_of(one, origin) for one in batch]) is LogRecordExportResult.SUCCESS:
            follower.took(batch)
            save(follower.sent)
            wait_s = LOOK_S
            if len(batch) == BATCH:
                continue
        elif batch:
            follower.again()
            if once:
                return False
            note(f"the collector at {endpoint} takes nothing; trying again in {wait_s:.0f} s")
            pause(wait_s)
            wait_s = min(2 * wait_s, SLOWEST_S)
            continue
        if time.monotonic() >= due:
            due = time.monotonic() + METRICS_S
            with contextlib.suppress(SandboxdError), Client(autostart=False) as box:
                status = box.status()
                figures.export(metrics_of(box.metrics().text, origin, status.started_at))
        if once:
            return True
        pause(LOOK_S)
