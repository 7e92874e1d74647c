"""The Seatbelt profile of a place: text and parameters.

No path, name or number of a policy is part of the text. Each is a parameter, handed to `sandbox-exec -D NAME=VALUE`, so
no name of a directory can become a rule. The text begins with `deny default` and opens what the fixed rule files and
the policy allow; closing rules follow the opening ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from sandboxd.backends.macos.seatbelt.case_folding import quote
from sandboxd.backends.macos.seatbelt.dialect import express
from sandboxd.backends.macos.seatbelt.file_rules import FileRule, PathFilter
from sandboxd.backends.macos.seatbelt.path_spellings import expression_spellings, path_spellings, real_spelling
from sandboxd.errors import PolicyError
from sandboxd.policy.model import NetworkPolicy, PlatformPolicy, PortRange
from sandboxd.policy.sockets.control_sockets import CONTROL_SOCKETS
from sandboxd_client.records import dataclass, field

TERMINAL, NO_TERMINAL = "TERMINAL", "/dev/null"
"""The parameter of the command's terminal; the supervisor fills it in."""
MAX_SIZE = 900_000
"""Bytes of text and parameters. macOS takes 1 MiB for all arguments and variables of a program together."""
MAX_PORTS = 2048
ALL_PORTS = (1, 65535)


@dataclass(frozen=True, slots=True)
class Profile:
    """The input of `sandbox-exec`.

    Five parameters differ for each command and come with `arguments`."""

    text: str
    parameters: tuple[tuple[str, str], ...] = ()

    def arguments(
        self, *, tag: str, member: str, http_port: int, socks_port: int, refused: frozenset[str] = frozenset()
    ) -> tuple[str, ...]:
        """Return the options, without the command.

        `tag` ends the log line of a refusal; `member` is the service name that identifies the sandbox's processes;
        `refused` are constructs that this macOS does not compile (`dialect`)."""
        places = (
            ("TAG", tag),
            ("MEMBER", member),
            ("HTTP_PORT", str(http_port)),
            ("SOCKS_PORT", str(socks_port)),
            (TERMINAL, NO_TERMINAL),
        )
        text, parameters = express(self.text, dict((*places, *self.parameters)), refused)
        words = ["-p", text]
        for name, value in parameters.items():
            words += ["-D", f"{name}={value}"]
        return tuple(words)


@dataclass(slots=True)
class _Text:
    """A writer of the text that numbers parameters, one for each value."""

    read: Callable[[str], str]
    parts: list[str] = field(default_factory=list)
    names: dict[tuple[str, str], str] = field(default_factory=dict)

    def file(self, name: str) -> None:
        self.parts.append(self.read(name))

    def section(self, title: str) -> None:
        self.parts.append(f"; --- {title}\n")

    def param(self, kind: str, value: str) -> str:
        if "\0" in value:
            raise PolicyError("profile_invalid", f"a value with a NUL character cannot be given to macOS: {value!r}")
        name = self.names.setdefault((kind, value), f"{kind}{len(self.names)}")
        return f'(param "{name}")'

    def rule(self, action: str, operations: Iterable[str], filters: Iterable[str], tagged: bool = False) -> None:
        lines = [f"({action} {' '.join(operations)}"]
        lines += [f"  {text}" for text in filters]
        if tagged:
            lines.append('  (with message (param "TAG"))')
        self.parts.append("\n".join(lines) + ")\n")


def make_profile(
    rules: tuple[FileRule, ...],
    network: NetworkPolicy,
    platform: PlatformPolicy,
    *,
    read_file: Callable[[str], str],
    closed_sockets: tuple[str, ...] = (),
    real: Callable[[str], str] = real_spelling,
) -> Profile:
    """Make the profile.

    `read_file` returns fixed rules, `closed_sockets` are directories whose sockets no rule opens, `real` resolves the
    path of a socket rule. Raises `PolicyError` for what Seatbelt cannot express."""
    text = _Text(read_file)
    text.file("base")
    text.file("proxies")
    if network.allow_local_binding:
        text.file("local-binding")
    _local_ports(text, network)
    _unix_sockets(text, network, closed_sockets, real)
    _mach_names(text, network)
    if platform.keychain:
        text.file("keychain")
    if platform.weaker_network_isolation:
        text.file("trustd")
    if platform.allow_apple_events:
        text.file("apple-events")
    _files(text, rules)
    text.file("plumbing")
    if platform.allow_pty:
        text.file("pty")
    text.file("tiocsti")
    profile = Profile("\n".join(text.parts), tuple((name, value) for (_, value), name in text.names.items()))
    _check_size(profile)
    return profile


def _files(text: _Text, rules: tuple[FileRule, ...]) -> None:
    why = ""
    for rule in rules:
        if rule.why != why:
            why = rule.why
            text.section(why)
        filters = list(_filters(text, rule))
        text.rule("allow" if rule.allow else "deny", rule.operations, filters, not rule.allow)


def _filters(text: _Text, rule: FileRule) -> Iterator[str]:
    matches = [spelled for match in rule.matches for spelled in _spelled(text, match.how, match.text)]
    if not rule.unless:
        yield from matches
        return
    yield "(require-all"
    yield from _joined("require-any", matches)
    for match in rule.unless:
        for spelled in _spelled(text, match.how, match.text):
            yield f"  (require-not {spelled})"
    yield ")"


def _joined(combinator: str, filters: list[str]) -> Iterator[str]:
    yield f"  ({combinator}"
    yield from (f"    {text}" for text in filters)
    yield "  )"


def _spelled(text: _Text, how: PathFilter, value: str) -> Iterator[str]:
    if how is PathFilter.REGEX:
        yield from (f"(regex {text.param('R', spelled)})" for spelled in expression_spellings(value))
    else:
        yield from (f"({how} {text.param('P', spelled)})" for spelled in path_spellings(value))


def _local_ports(text: _Text, network: NetworkPolicy) -> None:
    ranges = [(one.first, one.last) for one in network.allow_local_ports]
    if not ranges:
        return
    text.section("network.allowLocalPorts: to and on these ports of this machine's loopback")
    if ALL_PORTS in ranges:
        addresses = ['"localhost:*"']
    else:
        ports = _ports(network.allow_local_ports)
        addresses = [f'(string-append "localhost:" {text.param("L", str(port))})' for port in ports]
    text.rule("allow", ("network-outbound",), [f"(remote ip {address})" for address in addresses])
    text.rule("allow", ("network-bind", "network-inbound"), [f"(local ip {address})" for address in addresses])


def _ports(ranges: tuple[PortRange, ...]) -> list[int]:
    ports: set[int] = set()
    for one in ranges:
        if one.last - one.first >= MAX_PORTS:
            raise PolicyError(
                "port_range_too_long",
                f"allowLocalPorts {one.first}-{one.last}: macOS knows single ports and all ports, nothing between",
                hint=f"list at most {MAX_PORTS} ports, or 1-65535 for all of them",
                data={"rule": f"{one.first}-{one.last}"},
            )
        ports.update(range(one.first, one.last + 1))
    if len(ports) > MAX_PORTS:
        raise PolicyError(
            "port_range_too_long",
            f"allowLocalPorts names {len(ports):,} ports; {MAX_PORTS:,} can be given to macOS",
            hint="list fewer, or 1-65535 for all of them",
        )
    return sorted(ports)


def _unix_sockets(text: _Text, network: NetworkPolicy, closed: tuple[str, ...], real: Callable[[str], str]) -> None:
    listed = list(
        dict.fromkeys(
            spelled
            for rule in network.allow_unix_sockets
            for path in (real(rule.path), rule.path)
            for spelled in path_spellings(path)
        )
    )
    if network.allow_all_unix_sockets:
        text.file("unix-sockets-all")
        text.section("sockets that give control of something outside stay closed unless they are listed")
        spelled_out = [one for expression in _control_expressions() for one in expression_spellings(expression)]
        expressions = [f"(regex {text.param('R', one)})" for one in spelled_out]
        named = [one for path in network.control_sockets for one in path_spellings(real(path))]
        expressions += [f"(literal {text.param('P', path)})" for path in dict.fromkeys(named)]
        text.rule("deny", ("network-outbound",), expressions, True)
    elif listed:
        text.section("network.allowUnixSockets")
        text.rule("allow", ("system-socket",), ["(socket-domain AF_UNIX)"])
    if listed:
        filters = [f"(subpath {text.param('P', path)})" for path in listed]
        text.rule("allow", ("network-outbound", "network-bind"), filters)
    if closed and (listed or network.allow_all_unix_sockets):
        text.section("the daemon's own sockets")
        spelled = [one for path in closed for one in path_spellings(path)]
        filters = [f"(subpath {text.param('P', path)})" for path in spelled]
        text.rule("deny", ("network-outbound", "network-bind"), filters, True)


def _control_expressions() -> Iterator[str]:
    """Convert patterns in which `*` matches anything, slashes too."""
    for pattern in (known.pattern for known in CONTROL_SOCKETS):
        literal, star, rest = pattern.partition("*")
        body = quote(real_spelling(literal) if literal.startswith("/") else literal)
        if star:
            body += "([^/]|/)*" + "([^/]|/)*".join(quote(piece) for piece in rest.split("*"))
        yield f"^{body}$"


_MACH_NAME = re.compile(r"[A-Za-z0-9_@.:-]+")


def _mach_names(text: _Text, network: NetworkPolicy) -> None:
    for operation, key, names in (
        ("mach-lookup", "allowMachLookup", network.allow_mach_lookup),
        ("mach-register", "allowMachRegister", network.allow_mach_register),
    ):
        if names:
            text.section(f"network.{key}")
            text.rule("allow", (operation,), [_mach_filter(text, name, key) for name in names])


def _mach_filter(text: _Text, name: str, key: str) -> str:
    """Return a filter for a name, or for a prefix before a final `*`."""
    prefix = name.removesuffix("*")
    if not _MACH_NAME.fullmatch(prefix) or (prefix != name and "." not in prefix.rstrip(".")):
        raise PolicyError(
            "mach_name_invalid",
            f"network.{key}: {name!r} is not a service name, or its pattern is too broad",
            hint="write a whole name, or com.example.server.* for those that begin with it",
            data={"rule": name},
        )
    if prefix != name:
        return f"(global-name-prefix {text.param('N', prefix)})"
    return f"(global-name {text.param('N', name)})"


def _check_size(profile: Profile) -> None:
    size = len(profile.text.encode()) + sum(
        len(name) + len(value.encode("utf-8", "surrogateescape")) + 4 for name, value in profile.parameters
    )
    if size > MAX_SIZE:
        raise PolicyError(
            "profile_too_long",
            f"the rules need {size:,} bytes; {MAX_SIZE:,} can be given to macOS",
            hint="use fewer rules, or a pattern or a directory instead of single paths",
        )
