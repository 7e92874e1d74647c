"""The parser and the matcher of host names.

HTTP, CONNECT, SOCKS, DNS, the settings rules and `explain` share them, so that a name has exactly one canonical form.
That form is matched, resolved and dialled. Ambiguous text is refused (`HostSyntaxError`), never repaired: a filter that
guesses differently from the resolver behind it is no filter.

The canonical form:

- lower case ASCII; non-ASCII text (settings, command line) is mapped with UTS #46 and encoded as IDNA 2008 A-labels.
  That mapping also turns full-width letters, digits and the three full-width dots into their ASCII forms. Bytes from
  the wire are ASCII or refused: a client that means an international name sends its `xn--` form.
- one trailing dot is dropped; empty labels, labels over 63 and names over 253 bytes are refused.
- labels hold letters, digits, `-` and `_`. Everything else is refused: NUL, control characters, spaces, `%`, `@`, `/`,
  `\\`, and so on. An `xn--` label must be the encoding of something that is not ASCII.
- a name whose last label looks like a number is an IPv4 address or refused, as in the WHATWG URL standard and
  inet_aton(3): decimal, octal (leading 0), hexadecimal (0x), one to four parts. It becomes the dotted form.
- IPv6 is compressed lower case without brackets; zone ids are refused; an IPv4-mapped address becomes the IPv4 one.

Pure.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import idna

from sandboxd.errors import CallerError, SettingsError
from sandboxd.policy.hosts.public_suffixes import is_public_suffix, is_shared_suffix
from sandboxd_client.records import dataclass

IPAddress = IPv4Address | IPv6Address

MAX_NAME: Final = 253
MAX_TEXT: Final = 1024
"""Limit of a spelling, which may be longer than its canonical form."""

_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}", re.ASCII)
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_USER: Final = "user information in host name"
_USER_HINT: Final = "write the host alone, without user and password"
_IPV6_TEXT: Final = re.compile(r"[0-9a-fA-F:.]{2,45}", re.ASCII)


class HostSyntaxError(CallerError):
    """A malformed or ambiguous host; the message masks user information."""

    def __init__(self, reason: str, text: str | bytes, *, hint: str = "") -> None:
        super().__init__("host_invalid", f"{reason}: {quote(without_user(text))}", hint=hint)
        self.reason = reason


class HostPatternError(SettingsError):
    """A host rule that cannot be used; `hint` has the right spelling."""


def without_user(text: str | bytes) -> str:
    """Mask the user information before the last `@` (RFC 3986, section 3.2.1)."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    _, found, host = text.rpartition("@")
    return "***@" + host if found else text


def quote(text: str | bytes, limit: int = 80) -> str:
    """Return printable ASCII between quotes, shortened, for headers and logs."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    shown = ascii(text[:limit])
    return shown + "..." if len(text) > limit else shown


@dataclass(frozen=True, slots=True)
class Host:
    """A canonical host; for an IP literal, `name` is the text of `address`."""

    name: str
    address: IPAddress | None = None

    @property
    def uri(self) -> str:
        """The host in an authority: IPv6 in brackets."""
        return f"[{self.name}]" if isinstance(self.address, IPv6Address) else self.name

    def authority(self, port: int) -> str:
        return f"{self.uri}:{port}"

    @classmethod
    def of_address(cls, address: IPAddress) -> Host:
        """Return the host of an address; an IPv4-mapped one is its IPv4 address."""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return cls(str(address), address)

    def __str__(self) -> str:
        return self.uri


def parse_host(text: str) -> Host:
    """Parse a name, IPv4 in any spelling, or IPv6; raises HostSyntaxError."""
    if not text:
        raise HostSyntaxError("host name is empty", text)
    if len(text) > MAX_TEXT:
        raise HostSyntaxError("host name is too long", text)
    if "@" in text:
        raise HostSyntaxError(_USER, text, hint=_USER_HINT)
    if text[0] == "[":
        if text[-1] != "]":
            raise HostSyntaxError("unbalanced bracket in host", text)
        return _parse_ipv6(text[1:-1], text)
    if ":" in text:
        return _parse_ipv6(text, text)
    name = text.lower() if text.isascii() else _to_ascii(text)
    return _parse_ascii_name(name, text)


def parse_authority(text: str, default_port: int | None = None) -> tuple[Host, int]:
    """Parse `host`, `host:port`, `[v6]` or `[v6]:port`; raises HostSyntaxError."""
    host_text, separator, port_text = _split_port(text)
    if not separator:
        if default_port is None:
            raise HostSyntaxError("port is missing", text, hint="write HOST:PORT")
        return parse_host(host_text), default_port
    return parse_host(host_text), _parse_port(port_text, text)


def parse_wire_host(raw: bytes) -> Host:
    """Parse a host from a program's bytes, ASCII only; raises HostSyntaxError."""
    return parse_host(_wire_text(raw))


def parse_wire_authority(raw: bytes, default_port: int | None = None) -> tuple[Host, int]:
    """Parse an authority from a program's bytes; raises HostSyntaxError."""
    return parse_authority(_wire_text(raw), default_port)


def _wire_text(raw: bytes) -> str:
    if not raw.isascii():
        raise HostSyntaxError("host name is not ASCII", raw, hint="send the IDNA (xn--) form")
    return raw.decode("ascii")


def _split_port(text: str) -> tuple[str, str, str]:
    """Split host text, ":" or "", and port text; raises when that is ambiguous."""
    if "@" in text:  # checked before colons: a password could read as an IPv6 address
        raise HostSyntaxError(_USER, text, hint=_USER_HINT)
    if text.startswith("["):
        host_text, bracket, rest = text.partition("]")
        if not bracket or (rest and rest[0] != ":"):
            raise HostSyntaxError("unbalanced bracket in host", text)
        return host_text + "]", rest[:1], rest[1:]
    if text.count(":") > 1:
        raise HostSyntaxError("ambiguous: an IPv6 address or an address with a port", text, hint="write [ADDRESS]:PORT")
    return text.partition(":")


def _parse_port(port_text: str, whole: str) -> int:
    if not _PORT.fullmatch(port_text) or int(port_text) > 65535:
        raise HostSyntaxError("port is not a number from 1 to 65535", whole)
    return int(port_text)


def _to_ascii(text: str) -> str:
    """Map by UTS #46, then encode labels; the result can hold dots and slashes."""
    try:
        mapped = idna.uts46_remap(text, std3_rules=False, transitional=False)
        labels = [label if label.isascii() else idna.alabel(label).decode("ascii") for label in mapped.split(".")]
    except (idna.IDNAError, UnicodeError) as error:
        raise HostSyntaxError("not a valid international name", text, hint="write its ASCII (xn--) form") from error
    return ".".join(labels).lower()


def _parse_ascii_name(name: str, whole: str) -> Host:
    name = name.removesuffix(".")
    labels = name.split(".")
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise HostSyntaxError(_label_fault(label), whole)
        if label.startswith("xn--") and not _is_encoded_label(label):
            raise HostSyntaxError("label starts with xn-- and encodes nothing", whole)
    if len(name) > MAX_NAME:
        raise HostSyntaxError("host name is longer than 253 bytes", whole)
    if _NUMBER.fullmatch(labels[-1]):
        return Host.of_address(_parse_ipv4(labels, whole))
    if name[0] == "-":
        raise HostSyntaxError("host name starts with a hyphen", whole)
    return Host(name)


def _label_fault(label: str) -> str:
    if not label:
        return "empty label in host name"
    if len(label) > 63:
        return "label longer than 63 bytes in host name"
    return "character that is not allowed in a host name"


def _is_encoded_label(label: str) -> bool:
    try:
        decoded = label[4:].encode("ascii").decode("punycode")
        return not decoded.isascii() and decoded.encode("punycode").decode("ascii").lower() == label[4:]
    except (UnicodeError, ValueError, OverflowError):
        return False


def _parse_ipv4(labels: list[str], whole: str) -> IPv4Address:
    """Parse one to four numbers; the last one fills the bytes that are left."""
    if len(labels) > 4:
        raise HostSyntaxError("not an IPv4 address and not a name", whole)
    try:
        numbers = [_parse_number(label) for label in labels]
    except ValueError as error:
        raise HostSyntaxError("not an IPv4 address and not a name", whole) from error
    last = numbers.pop()
    if any(number > 255 for number in numbers) or last >= 256 ** (4 - len(numbers)):
        raise HostSyntaxError("number out of range in IPv4 address", whole)
    value = last
    for place, number in enumerate(numbers):
        value += number << (8 * (3 - place))
    return IPv4Address(value)


def _parse_number(label: str) -> int:
    """Parse a number; raises ValueError, also for the ambiguous "0x" and "08"."""
    if not _NUMBER.fullmatch(label):
        raise ValueError(label)
    if label.startswith("0x"):
        return int(label[2:], 16)
    return int(label, 8) if len(label) > 1 and label[0] == "0" else int(label, 10)


def _parse_ipv6(text: str, whole: str) -> Host:
    if "%" in text:
        raise HostSyntaxError("zone id in IPv6 address", whole)
    if not _IPV6_TEXT.fullmatch(text):
        raise HostSyntaxError("not an IPv6 address", whole)
    try:
        return Host.of_address(IPv6Address(text))
    except ValueError as error:
        raise HostSyntaxError("not an IPv6 address", whole) from error


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One host rule.

    | written | matches |
    | --- | --- |
    | `ok.test` | that name; also an address, in any spelling |
    | `*.ok.test` | every name below `ok.test` at any depth, never `ok.test` itself |
    | `.ok.test` | `ok.test` and every name below it, as squid, curl and cookies read it |
    | `*` | everything, addresses included (but those of private networks, and what the address guard refuses) |
    | any of these with `:PORT` | the same on that port only; an IPv6 address with a port needs brackets |

    `text` is the rule as its author wrote it. `host` is the exact host or the suffix's apex, None for `*`."""

    text: str
    host: Host | None
    port: int | None = None
    below: bool = False
    """Names below `host` match."""
    apex: bool = True
    """`host` itself matches."""

    @classmethod
    def parse(cls, text: str, *, public_suffix: bool = False) -> HostPattern:
        """Parse a rule; denials may cover a `public_suffix`. Raises HostPatternError."""
        if not text.strip():
            raise HostPatternError("host_pattern_invalid", "host rule is empty", hint="remove it, or name a host")
        _refuse_urls(text)
        if text == "*":
            return cls(text, None, below=True)
        try:
            host_text, separator, port_text = _split_port(text)
            port = _parse_port(port_text, text) if separator else None
            if host_text == "*":
                return cls(text, None, port, below=True)
            below = host_text.startswith(("*.", "."))
            apex = not host_text.startswith("*.")
            host = parse_host(host_text.removeprefix("*").removeprefix(".") if below else host_text)
        except HostSyntaxError as error:
            raise _pattern_error(text, error) from error
        if below and host.address is not None:
            raise HostPatternError(
                "host_pattern_invalid",
                f"host rule can never match, an address has no names below it: {quote(text)}",
                hint=f"write {host.uri}",
            )
        if below and not public_suffix and is_public_suffix(host.name):
            raise HostPatternError(
                "host_pattern_public_suffix",
                f"host rule covers everything registered below a public suffix: {quote(text)}",
                hint=f"name the registered domain, for example *.example.{host.name}",
            )
        return cls(text, host, port, below, apex)

    def matches(self, host: Host, port: int | None) -> bool:
        """Return whether the rule covers `host`; port None matches rules without port."""
        if self.port is not None and self.port != port:
            return False
        if self.host is None:
            return True
        if self.apex and self.host.name == host.name:
            return True
        return self.below and host.address is None and host.name.endswith("." + self.host.name)

    @property
    def covers_strangers(self) -> bool:
        """True for a rule that covers hosts of unrelated owners (`*`, `*.github.io`)."""
        return self.host is None or (self.below and is_shared_suffix(self.host.name))

    @property
    def is_broad(self) -> bool:
        """True also for a rule below one label (`*.corp`), whose owners may be unrelated."""
        return self.covers_strangers or (self.below and self.host is not None and "." not in self.host.name)

    def __str__(self) -> str:
        return self.text


def _refuse_urls(text: str) -> None:
    """Refuse URLs, paths, networks and stray spaces, each with the right spelling."""
    bare = text.strip()
    scheme, found, rest = bare.partition("://")
    authority = re.split(r"[/?#]", rest if found else bare, maxsplit=1)[0]
    if found or "/" in bare:
        if re.fullmatch(r"[0-9a-fA-F:.\[\]]+/[0-9]{1,3}", bare) and not found:
            raise HostPatternError(
                "host_pattern_invalid",
                f"host rule is a network, not a host: {quote(text)}",
                hint="list networks in sandbox.network.deniedResolvedAddresses, and allowed addresses one by one",
            )
        meant = authority.rpartition("@")[2]
        default = {"http": ":80", "https": ":443", "ws": ":80", "wss": ":443", "ftp": ":21"}.get(scheme.lower(), "")
        also = f" (or {meant}{default} for that port only)" if found and default and ":" not in meant and meant else ""
        raise HostPatternError(
            "host_pattern_url",
            f"host rule is a URL, and rules name hosts only: {quote(text)}",
            hint=f"write {quote(meant)[1:-1]}{also}" if meant else "write the host name alone",
        )
    if bare != text:
        raise HostPatternError(
            "host_pattern_invalid",
            f"host rule has spaces around it: {quote(text)}",
            hint=f"write {quote(bare)[1:-1]}",
        )


def _pattern_error(text: str, error: HostSyntaxError) -> HostPatternError:
    if text.count(":") > 1 and re.fullmatch(r"[0-9a-fA-F:.]+", text):
        head, _, tail = text.rpartition(":")
        with_port = f", [{head}]:{tail} for a port of another" if _PORT.fullmatch(tail) and head.count(":") > 1 else ""
        return HostPatternError(
            "host_pattern_ambiguous",
            f"host rule could be an IPv6 address or an address with a port: {quote(text)}",
            hint=f"write [{text}] for that address{with_port}",
        )
    hint = next((hint for pattern, hint in _SPELLINGS if pattern.search(text)), error.hint)
    return HostPatternError("host_pattern_invalid", f"host rule is not valid, {error.reason}: {quote(text)}", hint=hint)


_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\A[0-9.]+\.\*\Z"), "list addresses one by one; networks belong into deniedResolvedAddresses"),
    (re.compile(r":\*\Z|:\Z"), "write the name alone: a rule without a port is for every port"),
    (re.compile(r":[0-9]+-[0-9]+\Z"), "write one rule for each port, or none for every port"),
    (re.compile(r"\Adomain:"), "write the host alone; domain: belongs into WebFetch(domain:…)"),
    (re.compile(r"@"), "write the host alone, without user and path"),
    (re.compile(r"[\s,;|]"), "write one host in each entry"),
    (re.compile(r"\A\*\*\."), "write .example.test for a name and those below it"),
    (re.compile(r"\*"), "write * alone or as the first label: * or *.example.test"),
    (re.compile(r"[\^$()\[\]?+!~\\]"), "write a name, or *.example.test for those below it; expressions are no names"),
    (re.compile(r":"), "write HOST or HOST:PORT, the port as a number from 1 to 65535"),
)
"""Frequent mistakes in lists of hosts, with the right spelling; the first that fits counts."""
