"""`metrics`: the metrics of the daemon."""

from __future__ import annotations

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class MetricsParams:
    pass


@dataclass(frozen=True, slots=True)
class MetricsResult:
    """All metrics, in the text format of Prometheus (version 0.0.4)."""

    text: str
