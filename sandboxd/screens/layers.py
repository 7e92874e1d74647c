"""The view Layers: what is enforced on this machine, what is missing, and the remedy."""

from __future__ import annotations

from sandboxd.policy.display import neutralise
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.check import CheckResult


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A step of the check; `state` is enforced, degraded (a sandbox starts without it) or missing."""

    name: str
    state: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Layers:
    """A sentence about the whole, the steps with what fails first, and the layers of a command."""

    sentence: str
    rows: tuple[LayerRow, ...]
    layers: tuple[str, ...]


def layers_of(found: CheckResult) -> Layers:
    failed = "degraded" if found.ok else "missing"
    rows = [
        LayerRow(one.name, "enforced" if one.ok else failed, neutralise(one.detail), neutralise(one.remedy))
        for one in found.steps
    ]
    rows.sort(key=lambda row: row.state == "enforced")
    count = sum(row.state != "enforced" for row in rows)
    with_gaps = f"a sandbox can be started, {count} of {len(rows)} steps with gaps" if count else "all is enforced"
    return Layers(with_gaps if found.ok else "no sandbox can be started", tuple(rows), found.layers)
