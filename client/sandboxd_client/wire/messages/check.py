"""`check`: what this host can enforce."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckParams:
    pass


@dataclass(frozen=True, slots=True)
class CheckStepRecord:
    """`code` is a stable word for programs, `remedy` what a person can do about a step that failed."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`ok`: a sandbox can be started. A step may have failed all the same; then a layer is missing."""

    ok: bool
    steps: tuple[CheckStepRecord, ...]
    layers: tuple[str, ...] = ()
