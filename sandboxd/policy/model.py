"""The Policy: all that a sandbox may do, valid by construction.

Every path is absolute and normalised, every host pattern parsed, every variable expanded. A policy never changes; a
reload makes a new one with the next generation number. `policy.build.build_policy` builds it from merged settings."""

from __future__ import annotations

from enum import StrEnum

from sandboxd.policy.decision import Behavior
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.hosts.parent_proxies import ParentProxy
from sandboxd.settings.origins import BUILT_IN, Origin, Source
from sandboxd.settings.problems import Problem
from sandboxd_client.records import dataclass, field


class Missing(StrEnum):
    """The effect of a rule for a path that does not exist."""

    TELL = "tell"
    """It opens nothing, and a warning says so."""
    IGNORE = "ignore"
    """It opens nothing."""
    MAKE = "make"
    """It is a directory, made while a command runs. It stays when a command put something into it."""
    UNMEANT = "unmeant"
    """It denies nothing: the path is a second reading of the rule."""


@dataclass(frozen=True, slots=True)
class PathRule:
    """One path of a file list.

    `path` is absolute and normalised, without a trailing slash (except `/`), its symlinks *not* resolved. With `glob`
    it is a pattern over absolute paths. `text` is the rule as its author wrote it. `unanchored`, the pattern of a
    denial that begins in no directory, holds below every directory that the rules of a place open
    (`plan.host_queries.files_in`)."""

    path: str
    origin: Origin
    glob: bool = False
    text: str = ""
    missing: Missing = Missing.TELL
    unanchored: str = ""
    bounded: str = ""
    """Directory of a preset: such a denial is searched below it, within a budget."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"path of a rule is not absolute: {self.path!r}")


@dataclass(frozen=True, slots=True)
class FilePolicy:
    """The four lists of paths that settings open and close, for all commands."""

    allow_write: tuple[PathRule, ...] = ()
    deny_write: tuple[PathRule, ...] = ()
    deny_read: tuple[PathRule, ...] = ()
    allow_read: tuple[PathRule, ...] = ()
    allow_git_config: bool = False
    protected_search_depth: int = 3
    settings_files: tuple[str, ...] = ()
    """Every settings file that is or would be read: protected in every writable root."""
    managed_reads_only: bool = False
    """Only managed settings may set `allow_read`."""
    tmp: str = "overlay"
    """The state of `/tmp`: `overlay`, `private`, or `host`."""
    home: str = "host"
    """The state of the home directory: `host`, or `overlay`."""
    owners: str = "pretend"
    """The result of chown of root to an id that does not exist inside: `pretend` (success) or `refuse`."""
    tmp_size: int | None = None
    """Bytes that a session may keep in `/tmp`, which is then in memory."""


PLAN_MODE = Origin(Source.CLI, "permission_mode")
"""The origin of the rule that closes every path to sessions of the mode plan."""


@dataclass(frozen=True, slots=True)
class HostRule:
    pattern: HostPattern
    origin: Origin


@dataclass(frozen=True, slots=True)
class RequestRule:
    """A rule for HTTP requests to the hosts of `pattern`.

    `operations` are methods with the end that a path must have; none means every method. `paths` are patterns over
    whole paths; none means every path. `reason` is text of the settings for a refusal."""

    pattern: HostPattern
    behavior: Behavior
    origin: Origin
    text: str = ""
    operations: tuple[tuple[frozenset[str], str], ...] = ()
    paths: tuple[str, ...] = ()
    reason: str = ""


class SourceKind(StrEnum):
    """The kinds of places that the daemon reads a credential from."""

    ENV = "env"
    FILE = "file"
    COMMAND = "command"
    KEYRING = "keyring"


@dataclass(frozen=True, slots=True)
class CredentialSource:
    """A place that the daemon reads a credential from; `words` depend on the kind.

    They are the variable; the path and the pattern of its value, if any; an argv; service and user of a keyring."""

    kind: SourceKind
    words: tuple[str, ...]

    def __str__(self) -> str:
        if self.kind is SourceKind.FILE:
            path, pattern = self.words
            return f"file:{path}#{pattern}*" if pattern else f"file:{path}"
        return f"{self.kind.value}:{(' ' if self.kind is SourceKind.COMMAND else '/').join(self.words)}"


@dataclass(frozen=True, slots=True)
class CredentialRule:
    """A credential that the proxy puts into requests to the hosts of `pattern`, over TLS that ends in the proxy.

    `place` is `header`, `query` or `basic`, `name` that of the header, parameter or user; `form` has `{value}` where
    a header that a command does not send gets the value. `operations` and `paths` are as in `RequestRule`. Commands
    have a stand-in in `variables`, which begins with `prefix` (None: as the value does)."""

    pattern: HostPattern
    source: CredentialSource
    origin: Origin
    place: str = "header"
    name: str = "Authorization"
    form: str = "{value}"
    operations: tuple[tuple[frozenset[str], str], ...] = ()
    paths: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class MaskRule:
    """A variable or file in which commands see a stand-in; `pattern` is the part of the file before a value.

    `by_project`: a project's settings say so."""

    origin: Origin
    variable: str = ""
    path: str = ""
    pattern: str = ""
    by_project: bool = False


@dataclass(frozen=True, slots=True)
class UploadRule:
    """The bytes that the commands of a session may send to the hosts of a pattern together."""

    pattern: HostPattern
    most: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class PortRange:
    first: int
    last: int
    origin: Origin = BUILT_IN
    text: str = ""
    """The host rule that opens them, where it is one."""

    def __str__(self) -> str:
        return self.text or (str(self.first) if self.first == self.last else f"{self.first}-{self.last}")


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
    """Hosts that need a prompt although `allowed` has them."""
    denied_reasons: tuple[tuple[HostPattern, str], ...] = ()
    requests: tuple[RequestRule, ...] = ()
    """Rules for single requests; a host that one of them covers is reached by requests that they allow alone."""
    tls_terminate: tuple[HostRule, ...] = ()
    """Hosts for which TLS ends in the proxy, so that requests are seen."""
    tls_exclude: tuple[HostRule, ...] = ()
    credentials: tuple[CredentialRule, ...] = ()
    masks: tuple[MaskRule, ...] = ()
    uploads: tuple[UploadRule, ...] = ()
    max_new_names: int | None = None
    """Names below one registrable domain that a session may have resolved."""
    strict_allowlist: bool = False
    """A host on no list is denied, without a prompt."""
    managed_domains_only: bool = False
    """Only managed settings may set `allowed`."""
    denied_addresses: tuple[str, ...] = ()
    """Networks in CIDR form, beside the built-in ones, that an allowed *name* must not resolve to."""
    private_networks: bool = False
    """Rules for hosts of unrelated owners (`*`) cover private networks too."""
    allow_unix_sockets: tuple[SocketRule, ...] = ()
    allow_all_unix_sockets: bool = False
    control_sockets: tuple[str, ...] = ()
    """Sockets named by the daemon's environment (agents, buses): closed unless listed."""
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
    """A `Bash(…)` rule or an excluded-command pattern, with its origin."""

    pattern: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    auto_allow: bool = True
    auto_allow_origin: Origin = BUILT_IN
    allow_unsandboxed: bool = True
    allow_unsandboxed_origin: Origin = BUILT_IN
    open_mode: bool = True
    """A session may skip the prompt for commands that no rule allows."""
    deny_instead_of_asking: bool = False
    """Prompts become denials."""
    excluded: tuple[CommandRule, ...] = ()
    allow: tuple[CommandRule, ...] = ()
    ask: tuple[CommandRule, ...] = ()
    deny: tuple[CommandRule, ...] = ()


@dataclass(frozen=True, slots=True)
class PlatformPolicy:
    """Switches that weaken or shape a back end, off by default.

    `keychain`: macOS lets commands ask for keys and passwords, which the preset `credentials` ends."""

    weaker_nested_sandbox: bool = False
    weaker_network_isolation: bool = False
    allow_apple_events: bool = False
    allow_pty: bool = False
    prepare_sandboxes: bool = True
    keychain: bool = True
    bwrap_path: str | None = None


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """The audit log; `path` None is the default, `on_full` is `block` or `drop`."""

    enabled: bool = False
    path: str | None = None
    max_bytes: int = 16 * 1024 * 1024
    keep: int = 10
    on_full: str = "block"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one command: bytes, processors and seconds; None for no limit."""

    memory: int | None = None
    cpu: float | None = None
    time_s: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Policy:
    """All that a sandbox may do.

    `enabled` is for `should_sandbox` only: `wrap` always sandboxes. `warnings` are sentences about rules that are
    accepted and dangerous, or ignored for a stated reason."""

    generation: int = 0
    enabled: bool = True
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
    """Limit for one command, threads included."""
    max_processes_origin: Origin = BUILT_IN
    limits: Limits = NO_LIMITS
    allow_overrides: bool = True
    """A caller may widen the rules for one command or session. Tightening always works."""
    audit: AuditPolicy = field(default_factory=AuditPolicy)
    report_violations: str = "writes"
    """Refused file accesses that are reported as they happen: `off`, `writes` or `all` (reads too)."""
    ignore_violations: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notify: tuple[tuple[str, ...], ...] = ()
    """Programs that the daemon runs for each question, as argv."""
    variables: tuple[str, ...] = ()
    """Names of the environment variables in paths of the rules."""
    unenforced: tuple[Problem, ...] = ()
    """Restrictions that are not enforced, with the reason: no command is wrapped."""
    ignore_unknown_restrictions: bool = False
    """A caller may ignore `unenforced` restrictions, except those of managed settings."""
    warnings: tuple[str, ...] = ()
