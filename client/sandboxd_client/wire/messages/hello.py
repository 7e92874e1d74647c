"""`hello`: who talks to whom. Optional; a client that needs more than the basics asks first.

`PROTOCOL` counts incompatible changes. A daemon serves every client from `protocol_oldest` on; new methods, optional
parameters and result fields do not count, and `methods` tells which there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PROTOCOL = 1
Role = Literal["full", "agent"]
"""The powers of a connection. `agent` gives all powers up but those over sessions opened by the connection itself."""


@dataclass(frozen=True, slots=True)
class HelloParams:
    client: str | None = None
    version: str | None = None
    protocol: int = PROTOCOL
    role: Role | None = None
    """Once a connection has the role `agent`, it keeps it."""


@dataclass(frozen=True, slots=True)
class HelloResult:
    server: str
    version: str
    protocol: int
    protocol_oldest: int
    pid: int
    methods: tuple[str, ...]
    role: Role = "full"
