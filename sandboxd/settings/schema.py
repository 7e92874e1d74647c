"""Schema of the settings file. Field names are the keys.

The default None means *unset*: an empty list is a value, an absent one is not. Defaults are in `settings.key_table`.
The JSON Schema for editors comes from the same classes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from sandboxd.quantities import duration_s, memory_size, upload_size
from sandboxd.settings.key_table import TABLE

Text = Annotated[str, StringConstraints(min_length=1, max_length=8192)]
Texts = Annotated[list[Text], Field(max_length=100_000)]
Argv = Annotated[list[Text], Field(min_length=1, max_length=64), AfterValidator(tuple)]
Port = Annotated[int, Field(ge=1, le=65535)]
Size = Annotated[str | int, AfterValidator(memory_size)]
UploadSize = Annotated[str | int, AfterValidator(upload_size)]
Ports = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,5}-[0-9]{1,5}$")]


def _one_word_for_deny(value: str) -> str:
    return "enforce" if value == "deny" else value


def _disable(value: str | bool) -> str:
    return "disable" if value else ""


class Section(BaseModel):
    """A part of the file, parsed without conversion of types."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Permissions(Section):
    """Rules for tools: `Tool(content)`, `Tool:content` or the tool's name alone."""

    allow: Texts | None = Field(None, description="Rules that allow, such as WebFetch(domain:example.com)")
    deny: Texts | None = Field(None, description="Rules that deny; a deny beats every allow")
    ask: Texts | None = Field(None, description="Rules that ask the user first")
    additionalDirectories: Texts | None = Field(
        None, description="Directories that are writable as the working directory is"
    )
    blockReadsOutsideWorkingDirectories: bool | None = Field(
        None, description="Deny reads of home directories and mounted volumes, except working directories"
    )
    denyInsteadOfPrompting: bool | None = Field(None, description="Deny instead of asking the user")
    disableBypassPermissionsMode: Annotated[Literal["disable", ""] | bool, AfterValidator(_disable)] | None = Field(
        None, description='"disable": the permission mode open of a session skips no question'
    )


class RequestSection(Section):
    """A rule for HTTP requests to a host."""

    host: Text = Field(description="The host: name, *.name, address, [:port]")
    methods: Annotated[tuple[Text, ...], Field(strict=False)] | None = Field(
        None, description="Methods such as GET, or the groups read and git-fetch; unset is all of them"
    )
    paths: Annotated[tuple[Text, ...], Field(strict=False)] | None = Field(
        None, description="Patterns over the whole path; * matches within a segment, ** over several; unset is all"
    )
    action: Literal["allow", "ask", "deny"] = Field(description="deny beats ask, ask beats allow")
    reason: Text | None = Field(None, description="Text for the refusal")

    def __str__(self) -> str:
        parts = (self.action, *(self.methods or ()), self.host, *(self.paths or ()))
        return " ".join(parts)


def _upload_limits(value: dict[str, int] | int) -> dict[str, int]:
    """Convert one limit for all hosts to an object."""
    return value if isinstance(value, dict) else {"*": value}


class Tls(Section):
    """TLS that ends in the proxy, so that rules for requests hold for https."""

    terminate: Texts | None = Field(None, description="Hosts for which TLS ends in the proxy: name, *.name, or *")
    exclude: Texts | None = Field(None, description="Hosts whose TLS passes untouched; beats terminate")


class Network(Section):
    """Connections of commands."""

    allowedDomains: Texts | None = Field(None, description="Hosts that may be reached: name, *.name, address, [:port]")
    deniedDomains: Texts | None = Field(None, description="Hosts that may never be reached; beats allowedDomains")
    deniedDomainReasons: dict[Text, Text] | None = Field(
        None, description="Text for the refusal of a host, by host pattern"
    )
    requests: Annotated[list[RequestSection], Field(max_length=10_000)] | None = Field(
        None, description="Rules for HTTP requests: {host, methods, paths, action, reason}"
    )
    tls: Tls | None = None
    maxUpload: Annotated[dict[Text, UploadSize] | UploadSize, AfterValidator(_upload_limits)] | None = Field(
        None, description='Bytes that a session may send: 100M, or by host {"*": "1G", "example.com": "5M"}'
    )
    maxNewNames: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="Names below one registered domain that a session may look up, and eight times as many in all"
    )
    strictAllowlist: bool | None = Field(None, description="Refuse hosts on no list instead of asking about them")
    onUnlisted: Literal["ask", "deny"] | None = Field(
        None, description="Treatment of a host on no list; deny is the same as strictAllowlist"
    )
    useWebFetchRules: bool | None = Field(
        None,
        description="WebFetch(domain:…) allow rules open the host to shell commands as well (denies always close it)",
    )
    allowManagedDomainsOnly: bool | None = Field(
        None, description="Managed settings only: ignore allowed domains from everywhere else"
    )
    allowUnixSockets: Texts | None = Field(None, description="Unix sockets, or directories of them, that may be used")
    allowAllUnixSockets: bool | None = Field(None, description="Allow every Unix socket but the known control sockets")
    allowLocalBinding: bool | None = Field(
        None, description="Allow connections from this host to servers in the sandbox: --publish; on macOS any port"
    )
    allowLocalPorts: list[Port | Ports] | None = Field(
        None, description="Ports of the host's loopback that may be reached: 5432 or 8000-8010"
    )
    allowMachLookup: Texts | None = Field(None, description="macOS: Mach services that may be looked up")
    allowMachRegister: Texts | None = Field(None, description="macOS: Mach services that may be registered")
    httpProxyPort: Port | None = Field(
        None,
        description="Port of the user's HTTP proxy on this host, which decides in place of sandboxd",
    )
    socksProxyPort: Port | None = Field(
        None, description="Port of the user's SOCKS5 proxy on this host, which decides in place of sandboxd"
    )
    parentProxy: Text | None = Field(
        None, description="Proxy that allowed connections go through: http://host:port, socks5h://host:port, or direct"
    )
    deniedResolvedAddresses: Texts | None = Field(
        None, description="Networks (10.0.0.0/8) that an allowed name must not resolve to"
    )
    transparent: bool | None = Field(None, description="Capture connections of programs that ignore proxy variables")
    checkServerName: Annotated[Literal["off", "log", "enforce", "deny"], AfterValidator(_one_word_for_deny)] | None = (
        Field(None, description="Compare the TLS server name with the requested host; deny is enforce")
    )


class Filesystem(Section):
    """Paths that commands may read and write."""

    allowWrite: Texts | None = Field(None, description="Paths that may be written, beside the working directory")
    denyWrite: Texts | None = Field(None, description="Paths that may not be written; beats allowWrite")
    denyEdit: Texts | None = Field(None, description="The same as denyWrite")
    denyRead: Texts | None = Field(None, description="Paths that may not be read")
    allowRead: Texts | None = Field(None, description="Paths that may be read inside a denied region")
    tmp: Literal["overlay", "private", "host"] | None = Field(
        None, description="Linux: /tmp is the host's with the session's changes on top, the session's, or the host's"
    )
    home: Literal["host", "overlay"] | None = Field(
        None, description="Linux: with overlay, changes in the home directory are the session's and vanish with it"
    )
    owners: Literal["pretend", "refuse"] | None = Field(
        None, description="Linux: chown of root to another user succeeds without effect, or is refused"
    )
    allowGitConfig: bool | None = Field(None, description="Allow writing .git/config (hooks stay closed)")
    allowManagedReadPathsOnly: bool | None = Field(
        None, description="Managed settings only: ignore allowRead from everywhere else"
    )


class Environment(Section):
    """Variables of commands."""

    remove: Texts | None = Field(None, description="Variables that are withheld from commands; * and ? match (AWS_*)")


class CredentialFile(Section):
    """A secret file; `mask` is enforced as `deny`, which is stricter."""

    path: Text = Field(description="A file or directory")
    mode: Literal["deny", "mask"] = Field(description="deny, or mask, which has the same effect")

    def __str__(self) -> str:
        return self.path


class CredentialVariable(Section):
    """A secret variable; `mask` is enforced as `deny`, which is stricter."""

    name: Text = Field(description="An environment variable")
    mode: Literal["deny", "mask"] = Field(description="deny, or mask, which has the same effect")

    def __str__(self) -> str:
        return self.name


class InjectedCredential(Section):
    """A credential that the proxy puts into requests; commands see a placeholder. One of header, query, basic."""

    host: Text = Field(description="The host: name, *.name, [:port]")
    header: Text | None = Field(None, description="Header, with the form of its value: Authorization: Bearer {value}")
    query: Text | None = Field(None, description="Parameter of the query")
    basic: Text | None = Field(None, description="User of Basic authentication, whose password the value is")
    from_: Text = Field(
        alias="from", description='env:NAME, file:PATH, file:PATH#before=*, command:["program"], keyring:SERVICE/USER'
    )
    methods: Annotated[tuple[Text, ...], Field(strict=False)] | None = Field(
        None, description="Methods such as GET, or the groups read and git-fetch; unset is all of them"
    )
    paths: Annotated[tuple[Text, ...], Field(strict=False)] | None = Field(
        None, description="Patterns over the whole path, as in network.requests; unset is all"
    )
    variables: Annotated[tuple[Text, ...], Field(strict=False)] | None = Field(
        None, description="Variables that hold the placeholder; unset is that of env:NAME"
    )
    placeholder: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{0,40}$")] | None = Field(
        None, description="Beginning of the placeholder, such as ghp_; unset is that of the value, if it is known"
    )

    def __str__(self) -> str:
        return f"{self.from_} for {self.host}"


class MaskedCredential(Section):
    """A variable or file in which commands see a placeholder. One of env and file."""

    env: Text | None = Field(None, description="An environment variable")
    file: Text | None = Field(None, description="A file")
    pattern: Text | None = Field(None, description="Of a file: the text before each value, and a star: token=*")

    def __str__(self) -> str:
        return self.env or self.file or ""


class PromptsSection(Section):
    """Permission questions. User and managed settings only."""

    notify: Annotated[list[Argv], Field(max_length=8)] | None = Field(
        None, description="Programs that are run for each question: argv lists, never through a shell"
    )


class Credentials(Section):
    """Secrets that are withheld from commands."""

    inject: Annotated[list[InjectedCredential], Field(max_length=1_000)] | None = Field(
        None, description="Credentials that the proxy puts into requests: {host, header | query | basic, from}"
    )
    mask: Annotated[list[MaskedCredential], Field(max_length=1_000)] | None = Field(
        None, description="Variables and files in which commands see placeholders: {env} or {file, pattern}"
    )

    files: Annotated[list[CredentialFile], Field(max_length=100_000)] | None = Field(
        None, description="Files that may not be read: {path, mode}"
    )
    envVars: Annotated[list[CredentialVariable], Field(max_length=100_000)] | None = Field(
        None, description="Variables that are withheld from commands: {name, mode}"
    )


class LimitsSection(Section):
    """Limits of one command."""

    memory: Size | None = Field(None, description="Memory of one command: 512M, 2G, or bytes")
    cpu: Annotated[float | int, Field(ge=0.05, le=4096)] | None = Field(
        None, description="Linux: processors of one command, such as 1.5"
    )
    time: Annotated[str | float | int, AfterValidator(duration_s)] | None = Field(
        None, description="Time that one command may run: 90s, 10m, 1h30m, or seconds"
    )
    tmp: Size | None = Field(
        None, description="Linux: size of a session's changes in /tmp, which are then in memory: 512M, 2G, or bytes"
    )
    processes: Annotated[int, Field(ge=16, le=4_194_304)] | None = Field(
        None, description="Linux: processes and threads of one command"
    )
    maxProcesses: Annotated[int, Field(ge=16, le=4_194_304)] | None = Field(None, description="The same as processes")


class Sandbox(Section):
    """The sandbox of commands."""

    enabled: bool | None = Field(None, description="Run commands in the sandbox when the call does not say")
    failIfUnavailable: bool | None = Field(
        None, description="Refuse a command when the sandbox cannot start; false asks the user"
    )
    enabledPlatforms: list[Literal["linux", "macos", "wsl"]] | None = Field(
        None, description="Platforms on which enabled counts; unset is all of them"
    )
    autoAllowBashIfSandboxed: bool | None = Field(None, description="Sandboxed commands run without a question")
    allowUnsandboxedCommands: bool | None = Field(
        None, description="A call may request to run one command outside the sandbox"
    )
    allowOverrides: bool | None = Field(
        None, description="A call may widen the rules for one command or session; it may always tighten"
    )
    ignoreUnknownRestrictions: bool | None = Field(
        None, description="Of a call only: run commands although a restriction of a file is not enforced"
    )
    allowProjectTrust: bool | None = Field(
        None,
        description="Managed settings only: the user may trust a project's settings files, which may then widen",
    )
    excludedCommands: Texts | None = Field(
        None, description="Commands that run outside the sandbox: docker, git push:*"
    )
    presets: list[Text] | None = Field(None, description="Named sets of rules, see docs/settings.md")
    profiles: dict[Text, Texts] | None = Field(
        None,
        description="Rules of run --profile NAME: host:ok.test, write:~/.x/, closed:PATH, set:NAME=VALUE, extends:NAME",
    )
    network: Network | None = None
    filesystem: Filesystem | None = None
    credentials: Credentials | None = None
    environment: Environment | None = None
    prompts: PromptsSection | None = None
    limits: LimitsSection | None = None
    reportViolations: Literal["off", "writes", "all"] | None = Field(
        None, description="Refusals to report: none, writes, or all, which adds reads"
    )
    ignoreViolations: dict[Text, Texts] | None = Field(
        None, description="Violations not to show: program with first words, or *, to parts of the target"
    )
    enableWeakerNestedSandbox: bool | None = Field(None, description="Run inside containers that hide /proc; weaker")
    enableWeakerNetworkIsolation: bool | None = Field(None, description="macOS: allow the trust service; weaker")
    allowAppleEvents: bool | None = Field(None, description="macOS: allow Apple events, which reach other programs")
    allowPty: bool | None = Field(None, description="macOS: allow new pseudo-terminals")
    prepareSandboxes: bool | None = Field(None, description="Let clients keep a sandbox ready for their next command")
    mandatoryDenySearchDepth: Annotated[int, Field(ge=1, le=10)] | None = Field(
        None, description="Depth of the search for protected names below a writable directory"
    )
    bwrapPath: Text | None = Field(None, description="Managed settings only: the bubblewrap program")


class Audit(Section):
    """The audit log. User and managed settings only."""

    enabled: bool | None = Field(None, description="Write an audit log")
    path: Text | None = Field(None, description="File of the audit log")
    maxBytes: Annotated[int, Field(ge=4096)] | None = Field(None, description="Size at which a new file begins")
    keep: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Number of old files to keep")
    onFull: Literal["block", "drop"] | None = Field(
        None, description="Without a writable log: block commands, or drop events"
    )


class SettingsFile(Section):
    """A whole settings file."""

    permissions: Permissions | None = None
    allowManagedPermissionRulesOnly: bool | None = Field(
        None, description="Managed settings only: ignore permissions.allow from everywhere else"
    )
    sandbox: Sandbox | None = None
    audit: Audit | None = None


def section_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the nested section of a field, or None when the field is a value."""
    annotation = model.model_fields[name].annotation
    for candidate in getattr(annotation, "__args__", ()):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def all_keys() -> tuple[str, ...]:
    """Return every key in dotted form, in the order of the schema."""

    def walk(model: type[BaseModel], prefix: str) -> list[str]:
        keys: list[str] = []
        for name in model.model_fields:
            inner = section_of(model, name)
            keys += walk(inner, f"{prefix}{name}.") if inner else [prefix + name]
        return keys

    return tuple(walk(SettingsFile, ""))


def _describe(properties: dict[str, Any], model: type[BaseModel], prefix: str, sections: dict[str, Any]) -> None:
    """Put defaults, and descriptions of sections, into the JSON Schema of a section."""
    for name, value in properties.items():
        inner = section_of(model, name)
        if inner is None:
            default = TABLE[prefix + name].default
            value["default"] = ({} if name in _OBJECTS else []) if default == () else default
            continue
        section = sections[inner.__name__]
        value.update(default={}, description=section["description"].splitlines()[0])
        _describe(section["properties"], inner, f"{prefix}{name}.", sections)


_OBJECTS = ("ignoreViolations", "deniedDomainReasons", "profiles", "maxUpload")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a settings file, with defaults; it permits unknown keys."""
    schema = SettingsFile.model_json_schema()
    _describe(schema["properties"], SettingsFile, "", schema["$defs"])
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "sandboxd settings"
    return schema
