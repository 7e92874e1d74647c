"""`policy.*`: policy queries. `credential.*`: values that the proxy puts into requests; no answer has one."""

from __future__ import annotations

from typing import Any, Literal

from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.decisions import Behavior, ReasonRecord

Style = Literal["open", "strict"]
ExplainKind = Literal["path", "host", "command", "socket"]


@dataclass(frozen=True, slots=True)
class ExplainParams:
    """A query about one target."""

    kind: ExplainKind
    target: str  # a path (relative to `cwd`), host[:port], command line or socket path
    write: bool = False  # ask about writing the path
    session_id: str | None = None
    cwd: str | None = None
    is_sandbox: bool | None = None  # $IS_SANDBOX of the caller is set; by default that of its process


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """The decision on a target."""

    kind: str
    subject: str  # the target in canonical form
    behavior: Behavior
    reason: ReasonRecord
    hint: str = ""
    sandboxed: bool | None = None  # for commands only


@dataclass(frozen=True, slots=True)
class ClosePortsParams:
    """Ports of this machine, in place of those that the connection closed before.

    `page` is the address of a page for questions that is served on one of them."""

    ports: tuple[int, ...]
    page: str = ""


@dataclass(frozen=True, slots=True)
class ClosePortsResult:
    """The ports that no command reaches now, as far as the warnings do not say otherwise."""

    ports: tuple[int, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectiveParams:
    session_id: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class EffectiveResult:
    """The whole policy as JSON, each rule with its origin."""

    generation: int
    policy: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DescribeParams:
    """A query for a description."""

    session_id: str | None = None
    cwd: str | None = None
    exceptions: dict[str, str] | None = None  # commands that cannot work inside, each with a reason or ""
    flag_name: str | None = None  # what the caller's tool calls its flag; default: dangerously_disable_sandbox
    style: Style | None = None  # strict: the tool has no such flag; by default as the policy permits
    examples: bool | None = None  # two calls as JSON; default: True


@dataclass(frozen=True, slots=True)
class DescribeResult:
    """The policy in words for a model, and as facts for programs."""

    generation: int
    text: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CredentialSetParams:
    """The value of `env:NAME`, which the daemon keeps in memory until it ends."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class CredentialSetResult:
    used: bool  # an entry of sandbox.credentials.inject names it


@dataclass(frozen=True, slots=True)
class CredentialRemoveParams:
    name: str


@dataclass(frozen=True, slots=True)
class CredentialRemoveResult:
    removed: bool


@dataclass(frozen=True, slots=True)
class CredentialListParams:
    pass


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """An entry of `sandbox.credentials.inject`."""

    source: str
    host: str
    place: str  # such as `header Authorization`
    state: str  # where the value comes from, `not read yet`, or `missing`
    variables: tuple[str, ...] = ()  # of commands, with the placeholder


@dataclass(frozen=True, slots=True)
class CredentialListResult:
    credentials: tuple[CredentialRecord, ...]
