"""The Policy: everything that was decided about what a sandbox may do, valid by construction.

A `Policy` that exists is complete: every path is absolute and normalised, every host pattern parsed, every variable
expanded. Nobody edits one; a reload makes a new one with the next generation number. It is built by
`policy.build.build_policy` from merged settings, and by tests directly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.hosts.parent_proxies import ParentProxy
from sandboxd.settings.origins import BUILT_IN, Origin
from sandboxd.settings.problems import Problem


class Missing(StrEnum):
    """What a rule means for a path that does not exist. A denial keeps such a path from being made, unless it says
    `UNMEANT`."""

    TELL = "tell"
    """It opens nothing, and people are told."""
    IGNORE = "ignore"
    """It opens nothing."""
    MAKE = "make"
    """It is a directory, and there for as long as a command runs. It stays when something has been put into it."""
    UNMEANT = "unmeant"
    """It denies nothing: the path is a second reading of the rule."""


@dataclass(frozen=True, slots=True)
class PathRule:
    """One path of a file list. `path` is absolute and normalised, without a trailing slash (`/` itself excepted), its
    symlinks *not* resolved (that needs the host). With `glob` it is a pattern over absolute paths. `text` is the rule
    as its author wrote it. `unanchored`: a denial that begins in no directory; this pattern holds below every directory
    that the rules of a place open (`plan.host_queries.files_in`)."""

    path: str
    origin: Origin
    glob: bool = False
    text: str = ""
    missing: Missing = Missing.TELL
    unanchored: str = ""
    bounded: str = ""
    """The directory of a preset below which such a denial is looked for, within a budget."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"path of a rule is not absolute: {self.path!r}")


@dataclass(frozen=True, slots=True)
class FilePolicy:
    """The four lists of paths that settings open and close. The working directory and the session's temporary directory
    are not in them: they belong to a command, and are added when it is planned."""

    allow_write: tuple[PathRule, ...] = ()
    deny_write: tuple[PathRule, ...] = ()
    deny_read: tuple[PathRule, ...] = ()
    allow_read: tuple[PathRule, ...] = ()
    allow_git_config: bool = False
    protected_search_depth: int = 3
    settings_files: tuple[str, ...] = ()
    """Every settings file that is read, or would be if it existed: protected in every writable root."""
    managed_reads_only: bool = False
    """`allow_read` is for managed settings alone to say."""


@dataclass(frozen=True, slots=True)
class HostRule:
    pattern: HostPattern
    origin: Origin


@dataclass(frozen=True, slots=True)
class PortRange:
    first: int
    last: int
    origin: Origin = BUILT_IN


@dataclass(frozen=True, slots=True)
class SocketRule:
    """An allowed Unix socket, or a directory of them."""

    path: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    allowed: tuple[HostRule, ...] = ()
    denied: tuple[HostRule, ...] = ()
    asked: tuple[HostRule, ...] = ()
    """A person is asked about these although `allowed` has them."""
    denied_reasons: tuple[tuple[HostPattern, str], ...] = ()
    strict_allowlist: bool = False
    """Never ask about a host that is on no list: deny it."""
    managed_domains_only: bool = False
    """`allowed` is for managed settings alone to say."""
    denied_addresses: tuple[str, ...] = ()
    """Networks in CIDR form that an allowed *name* must not resolve to, beside the built-in ones."""
    allow_unix_sockets: tuple[SocketRule, ...] = ()
    allow_all_unix_sockets: bool = False
    control_sockets: tuple[str, ...] = ()
    """Sockets that variables of the daemon's environment name (agents, buses): closed unless they are listed."""
    allow_local_binding: bool = False
    allow_local_ports: tuple[PortRange, ...] = ()
    allow_mach_lookup: tuple[str, ...] = ()
    allow_mach_register: tuple[str, ...] = ()
    http_proxy_port: int | None = None
    socks_proxy_port: int | None = None
    parent_proxy: ParentProxy | None = None
    transparent: bool = True
    check_server_name: str = "log"


@dataclass(frozen=True, slots=True)
class CommandRule:
    """A `Bash(…)` rule or an excluded-command pattern: the text between the parentheses, and where it stands."""

    pattern: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    auto_allow: bool = True
    auto_allow_origin: Origin = BUILT_IN
    allow_unsandboxed: bool = True
    allow_unsandboxed_origin: Origin = BUILT_IN
    open_mode: bool = True
    """A session may skip the question that is asked because nothing allows a command."""
    deny_instead_of_asking: bool = False
    """What a person would be asked about is denied."""
    excluded: tuple[CommandRule, ...] = ()
    allow: tuple[CommandRule, ...] = ()
    ask: tuple[CommandRule, ...] = ()
    deny: tuple[CommandRule, ...] = ()


@dataclass(frozen=True, slots=True)
class PlatformPolicy:
    """Switches that weaken or shape a back end, each off unless a person turned it on."""

    weaker_nested_sandbox: bool = False
    weaker_network_isolation: bool = False
    allow_apple_events: bool = False
    allow_pty: bool = False
    bwrap_path: str | None = None


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """The audit log. `path` None means the default place; `on_full` is `block` or `drop`."""

    enabled: bool = False
    path: str | None = None
    max_bytes: int = 16 * 1024 * 1024
    keep: int = 10
    on_full: str = "block"


@dataclass(frozen=True, slots=True)
class Policy:
    """`enabled` answers `should_sandbox` only: `wrap` always sandboxes. `warnings` are sentences about rules that are
    accepted and dangerous, or ignored for a stated reason."""

    generation: int = 0
    enabled: bool = False
    enabled_origin: Origin = BUILT_IN
    enabled_platforms: tuple[str, ...] | None = None
    enabled_platforms_origin: Origin = BUILT_IN
    fail_if_unavailable: bool = True
    fail_if_unavailable_origin: Origin = BUILT_IN
    files: FilePolicy = field(default_factory=FilePolicy)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    commands: CommandPolicy = field(default_factory=CommandPolicy)
    platform: PlatformPolicy = field(default_factory=PlatformPolicy)
    environment_remove: tuple[str, ...] = ()
    """Names of variables that commands do not get; `*` and `?` match."""
    max_processes: int = 8192
    """Of one command at a time, threads too."""
    max_processes_origin: Origin = BUILT_IN
    allow_overrides: bool = True
    """A caller may widen the rules for one command or session, unless somebody said no. Tightening always
    works."""
    audit: AuditPolicy = field(default_factory=AuditPolicy)
    report_violations: str = "writes"
    """Which file accesses that the system refuses are reported as they happen: `off`, `writes` or `all` (reads too)."""
    ignore_violations: tuple[tuple[str, tuple[str, ...]], ...] = ()
    variables: tuple[str, ...] = ()
    """Names of the environment variables that paths of the rules mention."""
    unenforced: tuple[Problem, ...] = ()
    """Keys and rules that restrict commands and are not enforced, with the reason: no command is wrapped."""
    ignore_unknown_restrictions: bool = False
    """A caller insists on running commands without what `unenforced` says; managed settings stay in the way."""
    warnings: tuple[str, ...] = ()
