"""The parent proxy of an allowed connection.

| | a request for a plain `http://` URL | everything else: CONNECT, SOCKS, captured connections |
| --- | --- | --- |
| 1 | `sandbox.network.parentProxy`; `direct` means none | the same |
| 2 | `http_proxy`, `HTTP_PROXY` of the daemon | `https_proxy`, `HTTPS_PROXY` of the daemon |
| 3 | `all_proxy`, `ALL_PROXY` | the same |

Direct are, whatever is set: names in `no_proxy` or `NO_PROXY`, names pinned with `--resolve`, `localhost`, names of
metadata services, and addresses of this machine or its link, which would mean the proxy's own there.

Policy comes first, and by the name alone: a proxy that takes names resolves them where the address guard cannot look.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from ipaddress import ip_network
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from sandboxd.policy.hosts.addresses import IPNetwork, refuse_address
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, IPAddress, parse_host
from sandboxd_client.records import dataclass, field

DIRECT: Final = "direct"
"""Value of the setting for no proxy, whatever the environment says."""
METADATA_NAMES: Final = frozenset(
    {"metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"}
)
"""Names that mean the resolving machine's metadata service: the address guard refuses them here."""
_PLAIN: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_OTHER: Final = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_EXEMPT: Final = ("no_proxy", "NO_PROXY")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PORT: Final = re.compile(r"(?P<host>.+):(?P<port>[0-9]{1,5})")


class Protocol(StrEnum):
    """Protocol to the proxy."""

    HTTP = "http"
    SOCKS5 = "socks5"
    """Names are resolved on this host, under the address guard, as curl does for this scheme."""
    SOCKS5H = "socks5h"
    DIRECT = DIRECT
    UNUSABLE = "unusable"
    """The setting cannot be used: its connections are refused."""


_DEFAULT_PORTS: Final = {Protocol.HTTP: 80, Protocol.SOCKS5: 1080, Protocol.SOCKS5H: 1080}


class UpstreamError(ValueError):
    """An unusable proxy; the message never repeats the text and its password."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ParentProxy:
    """A parent proxy, named by the setting or variable `place`; safe to display."""

    protocol: Protocol
    host: Host | None = None
    port: int = 0
    user: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)
    place: str = ""
    fault: str = ""

    @property
    def takes_names(self) -> bool:
        return self.protocol in (Protocol.HTTP, Protocol.SOCKS5H)

    def __str__(self) -> str:
        if self.host is None:
            return self.protocol.value
        return f"{self.protocol}://{self.host.authority(self.port)}"


def parse_parent(text: str, place: str = "", *, bare: bool = False) -> ParentProxy:
    """Parse a proxy's URL, `direct`, or `bare` `host:port`; raises UpstreamError."""
    text = text.strip()
    if text == DIRECT:
        return ParentProxy(Protocol.DIRECT, place=place)
    if bare and not _SCHEME.match(text):
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _not_a_proxy() from None
    protocol = _protocol(parts)
    if not parts.hostname or port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _not_a_proxy()
    try:
        host = parse_host(parts.hostname)
    except HostSyntaxError as error:
        raise UpstreamError("the host of the parent proxy is no host name", error.hint or "write a name") from None
    user = None if parts.username is None else unquote(parts.username)
    password = unquote(parts.password or "")
    _check_credentials(user or "", password, protocol)
    return ParentProxy(protocol, host, port or _DEFAULT_PORTS[protocol], user, password, place)


def without_password(text: str) -> str:
    """Return the URL of a proxy for display: user name and password become `***`."""
    head, separator, rest = text.partition("://")
    before, at, after = (rest if separator else head).rpartition("@")
    if not before and not at:
        return text
    return f"{head}://***@{after}" if separator else f"***@{after}"


@dataclass(frozen=True, slots=True)
class NoProxy:
    """Exemptions from the proxy: `names` with those below, and networks, by port."""

    everything: bool = False
    names: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[tuple[IPNetwork, int | None], ...] = ()

    def matches(self, host: Host, port: int) -> bool:
        if self.everything:
            return True
        if host.address is not None:
            return any(
                host.address.version == network.version and host.address in network and wanted in (None, port)
                for network, wanted in self.networks
            )
        labels = host.name.split(".")
        tails = (".".join(labels[start:]) for start in range(len(labels)))
        return any((tail, wanted) in self.names for tail in tails for wanted in (None, port))


@dataclass(frozen=True, slots=True)
class EnvironmentProxies:
    """The proxies of the daemon's environment."""

    plain: ParentProxy | None = None
    other: ParentProxy | None = None
    exempt: NoProxy = NoProxy()


NO_PROXIES: Final = EnvironmentProxies()


def read_environment(environment: Mapping[str, str]) -> EnvironmentProxies:
    """Read proxy variables; an unusable one refuses everything that is sent to it."""
    return EnvironmentProxies(
        _first(environment, _PLAIN),
        _first(environment, _OTHER),
        parse_no_proxy(next((environment[name] for name in _EXEMPT if environment.get(name)), "")),
    )


def parse_no_proxy(text: str) -> NoProxy:
    """Parse `no_proxy`; an entry that cannot be read exempts nothing."""
    everything = False
    names: set[tuple[str, int | None]] = set()
    networks: list[tuple[IPNetwork, int | None]] = []
    for entry in re.split(r"[,\s]+", text.strip()):
        if entry == "*":
            everything = True
            continue
        name, port = _with_port(entry)
        try:
            networks.append((ip_network(name.strip("[]"), strict=False), port))
            continue
        except ValueError:
            pass
        try:
            host = parse_host(name.removeprefix("*").removeprefix("."))
        except HostSyntaxError:
            continue
        if host.address is None:
            names.add((host.name, port))
        else:
            networks.append((ip_network(host.address), port))
    return NoProxy(everything, frozenset(names), tuple(networks))


def choose_parent(
    setting: ParentProxy | None,
    environment: EnvironmentProxies,
    host: Host,
    port: int,
    *,
    plain: bool,
    host_addresses: Collection[IPAddress] = (),
) -> ParentProxy | None:
    """Return the proxy for a connection or None; `plain` is for `http://` URLs."""
    parent = setting or (environment.plain if plain else environment.other)
    if parent is None or parent.protocol is Protocol.DIRECT or environment.exempt.matches(host, port):
        return None
    if host.address is not None and refuse_address(host.address, (), host_addresses) is not None:
        return None
    if host.name == "localhost" or host.name.endswith(".localhost") or host.name in METADATA_NAMES:
        return None
    return parent


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> ParentProxy | None:
    for name in names:
        text = environment.get(name, "").strip()
        if not text:
            continue
        try:
            return parse_parent(text, name, bare=True)
        except UpstreamError as error:
            return ParentProxy(Protocol.UNUSABLE, place=name, fault=f"{name} is not usable: {error.message}")
    return None


def _protocol(parts: SplitResult) -> Protocol:
    if parts.scheme.startswith("pac") or parts.scheme == "file" or parts.path.endswith((".pac", ".dat")):
        raise UpstreamError(
            "automatic proxy configuration (PAC) is not supported", "name the proxy itself: http://host:port"
        )
    if parts.scheme == "https":
        raise UpstreamError(
            "a proxy that is spoken to over TLS is not supported", "write http://host:port, if it listens there as well"
        )
    if parts.scheme not in (Protocol.HTTP, Protocol.SOCKS5, Protocol.SOCKS5H):
        raise _not_a_proxy()
    return Protocol(parts.scheme)


def _check_credentials(user: str, password: str, protocol: Protocol) -> None:
    if any(ord(character) < 32 or ord(character) == 127 for character in user + password):
        raise UpstreamError("the user name or password of the parent proxy has control characters", "check the URL")
    if protocol is Protocol.HTTP:
        if ":" in user:  # RFC 7617, section 2
            raise UpstreamError("the user name of the parent proxy has a colon", "use a name without a colon")
    elif max(len(user.encode()), len(password.encode())) > 255:  # RFC 1929
        raise UpstreamError("the user name or password of the parent proxy is too long", "use at most 255 bytes")


def _with_port(entry: str) -> tuple[str, int | None]:
    match = _PORT.fullmatch(entry)
    if match is None or (":" in match["host"] and not match["host"].endswith("]")):
        return entry, None
    return match["host"], int(match["port"])


def _not_a_proxy() -> UpstreamError:
    return UpstreamError(
        "the parent proxy is not a URL of a proxy", "write http://host:port or socks5h://host:port, or direct for none"
    )
