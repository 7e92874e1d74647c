"""Something that was blocked. The `violation.*` methods add their parameters here."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd_client.wire.messages.origins import OriginRecord


@dataclass(frozen=True, slots=True)
class ViolationRecord:
    """`kind` is one of read write connect unix-socket network, `source` of proxy seccomp seatbelt; `time` is seconds
    since the epoch; `inferred` marks a guess from program output, `policy_generation` the policy that was in force. Texts
    are neutralised for display."""

    id: int
    time: float
    session_id: str
    command_id: str
    kind: str
    operation: str
    target: str
    outcome: str
    source: str
    process: str | None = None
    rule: str | None = None
    origin: OriginRecord | None = None
    hint: str = ""
    count: int = 1
    inferred: bool = False
    policy_generation: int = 0
