"""`check`: the layers that this host can enforce."""

from __future__ import annotations

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class CheckParams:
    pass


@dataclass(frozen=True, slots=True)
class CheckStepRecord:
    """One step of the check."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""  # an action of the user against a failed step
    code: str = ""  # stable, for programs


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The steps of the check, and the layers of a sandbox."""

    ok: bool  # a sandbox can be started, perhaps without the layer of a failed step
    steps: tuple[CheckStepRecord, ...]
    layers: tuple[str, ...] = ()
