"""`hello`: the optional exchange of versions and roles.

`PROTOCOL` counts incompatible changes. A daemon serves every client from `protocol_oldest` on. New methods, optional
parameters and result fields do not count; `methods` lists what the daemon has."""

from __future__ import annotations

from typing import Literal

from sandboxd_client.records import dataclass

PROTOCOL = 1
Role = Literal["full", "agent"]
"""The powers of a connection. `agent` keeps only those over sessions that the connection itself opened."""


@dataclass(frozen=True, slots=True)
class HelloParams:
    client: str | None = None
    version: str | None = None
    protocol: int = PROTOCOL
    role: Role | None = None  # the role `agent` is final


@dataclass(frozen=True, slots=True)
class HelloResult:
    server: str
    version: str
    protocol: int
    protocol_oldest: int
    pid: int
    methods: tuple[str, ...]
    role: Role = "full"
