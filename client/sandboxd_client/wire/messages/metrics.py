"""`metrics`: the figures of the daemon."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricsParams:
    pass


@dataclass(frozen=True, slots=True)
class MetricsResult:
    """`text` is in the text exposition format of Prometheus, version 0.0.4."""

    text: str
