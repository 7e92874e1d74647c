"""What a rule looks at: requests, and the filters that match them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from support.sbpl_operations import NAME_FILTERS, PATH_FILTERS, VALUE_FILTERS
from support.sbpl_reader import SbplError
from support.sbpl_regex import compile_regex


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`protocol` is `tcp` or `udp`, `host` an address."""

    host: str
    port: int
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True)
class Request:
    """One thing a process tries. Paths are real paths, as the kernel has them: no symlink is left in them. `values` are
    the attributes that name and value filters look at, by the filter's name."""

    operation: str
    path: str | None = None
    remote: Endpoint | None = None
    local: Endpoint | None = None
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """What a log line names."""
        if self.path is not None:
            return self.path
        endpoint = self.remote or self.local
        if endpoint is not None:
            return f"{endpoint.host}:{endpoint.port}"
        return " ".join(str(value) for value in self.values.values())


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter with its arguments, or a combination of filters."""

    name: str
    arguments: tuple[object, ...] = ()
    parts: tuple[Filter, ...] = ()

    def matches(self, request: Request) -> bool:
        return _MATCHERS[self.name](self, request)

    def walk(self) -> list[Filter]:
        """This filter and all inside it."""
        return [self, *(inner for part in self.parts for inner in part.walk())]


def make_filter(name: str, arguments: list[object]) -> Filter:
    """Raises SbplError for arguments that the real compiler refuses, or that we never mean to pass."""
    if name in COMBINATORS:
        parts = [argument for argument in arguments if isinstance(argument, Filter)]
        if len(parts) != len(arguments) or not parts:
            raise SbplError(f"{name} takes filters")
        if name == "require-not" and len(parts) != 1:
            raise SbplError("require-not takes one filter")
        return Filter(name, (), tuple(parts))
    if name in ("remote", "local"):
        return _network_filter(name, arguments)
    if not arguments:
        raise SbplError(f"{name} takes at least one argument")
    if name in PATH_FILTERS or name in NAME_FILTERS:
        for argument in arguments:
            if not isinstance(argument, str) or not argument:
                raise SbplError(f"{name} takes strings, not {argument!r}")
            _check_text(name, argument)
    return Filter(name, tuple(arguments))


def _check_text(name: str, argument: str) -> None:
    if "\0" in argument:
        raise SbplError(f"{name}: a string with a NUL")
    if name.endswith("regex"):
        compile_regex(argument)
    elif name in PATH_FILTERS and not argument.startswith("/"):
        raise SbplError(f"{name}: not an absolute path: {argument!r}")


_ADDRESS = re.compile(r"(\*|localhost):(\*|[0-9]{1,5})\Z")


def _network_filter(name: str, arguments: list[object]) -> Filter:
    """`(remote ip "localhost:80")`, `(remote ip)`, `(remote unix-socket (subpath "/x"))`, `(local tcp "*:*")`."""
    if not arguments:
        raise SbplError(f"{name} takes a protocol")
    protocol, *rest = arguments
    if protocol in ("unix-socket", "unix"):
        if not all(isinstance(argument, Filter) for argument in rest):
            raise SbplError(f"({name} {protocol}) takes path filters")
        return Filter(name, (protocol,), tuple(argument for argument in rest if isinstance(argument, Filter)))
    if protocol not in ("ip", "tcp", "udp", "ip4", "ip6", "tcp4", "tcp6", "udp4", "udp6"):
        raise SbplError(f"{name}: unknown protocol {protocol!r}")
    for address in rest:
        match = _ADDRESS.match(address) if isinstance(address, str) else None
        if match is None:
            raise SbplError(f"{name}: host must be * or localhost in network address: {address!r}")
        if match[2] != "*" and not 1 <= int(match[2]) <= 65535:
            raise SbplError(f"{name}: no such port: {address!r}")
    return Filter(name, (protocol, *(rest or ["*:*"])))


def _matches_path(self: Filter, request: Request) -> bool:
    path = request.path
    if path is None:
        return False
    for argument in self.arguments:
        assert isinstance(argument, str)
        match self.name:
            case "literal" | "path" | "path-literal":
                found = path == argument
            case "subpath":
                found = argument == "/" or path == argument or path.startswith(argument + "/")
            case "prefix" | "path-prefix":
                found = path.startswith(argument)
            case _:
                found = compile_regex(argument).search(path) is not None
        if found:
            return True
    return False


def _matches_name(self: Filter, request: Request) -> bool:
    attribute, how = NAME_FILTERS[self.name]
    value = request.values.get(attribute)
    if not isinstance(value, str):
        return False
    for argument in self.arguments:
        assert isinstance(argument, str)
        if how == "exact" and value == argument:
            return True
        if how == "prefix" and value.startswith(argument):
            return True
        if how == "regex" and compile_regex(argument).search(value):
            return True
    return False


def _matches_value(self: Filter, request: Request) -> bool:
    return self.name in request.values and request.values[self.name] in self.arguments


def _matches_network(self: Filter, request: Request) -> bool:
    if self.arguments[0] in ("unix-socket", "unix"):
        if request.path is None:
            return False
        return not self.parts or any(part.matches(request) for part in self.parts)
    if self.name == "local" and request.operation == "network-outbound" and request.remote is not None:
        # Every socket has a local address, so a local filter says yes to every connection, wherever it leads.
        return True
    endpoint = request.remote if self.name == "remote" else request.local
    if endpoint is None:
        return False
    if str(self.arguments[0]).rstrip("46") not in ("ip", endpoint.protocol):
        return False
    return any(_matches_address(str(address), endpoint) for address in self.arguments[1:])


def _matches_address(address: str, endpoint: Endpoint) -> bool:
    host, _, port = address.partition(":")
    if port not in ("*", str(endpoint.port)):
        return False
    return host == "*" or ip_address(endpoint.host).is_loopback


COMBINATORS = ("require-all", "require-any", "require-not")
_MATCHERS = {
    "require-all": lambda self, request: all(part.matches(request) for part in self.parts),
    "require-any": lambda self, request: any(part.matches(request) for part in self.parts),
    "require-not": lambda self, request: not self.parts[0].matches(request),
    "remote": _matches_network,
    "local": _matches_network,
    **dict.fromkeys(PATH_FILTERS, _matches_path),
    **dict.fromkeys(NAME_FILTERS, _matches_name),
    **dict.fromkeys(VALUE_FILTERS, _matches_value),
}
FILTERS = frozenset(_MATCHERS)
