"""Heads of requests and answers with credentials: values in, values out. No I/O.

Both versions of HTTP use these functions. Headers are pairs of bytes; names may have any case.

| A request of the command has, at the place of a credential | The server gets |
| --- | --- |
| its stand-in, also within Basic authentication | the value in place of the stand-in |
| nothing | the value, in the form that settings give |
| something else | what the command sent |"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from sandboxd_client.records import dataclass, field

Headers = Sequence[tuple[bytes, bytes]]

_BASIC: Final = re.compile(rb"(?i)basic +([A-Za-z0-9+/_=-]+) *")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_REMOVED: Final = b"removedBySandboxd"
TIMES_ENCODED: Final = 3


@dataclass(frozen=True, slots=True)
class Secret:
    """A value, and the stand-in that the commands of one session have for it.

    `echoes` are the forms of the value in answers, each with what takes its place, the longest first."""

    value: bytes = field(repr=False)
    stand_in: bytes
    echoes: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "echoes", _echoes(self.value, self.stand_in))


@dataclass(frozen=True, slots=True)
class Placing:
    """A secret and its place in requests; `place`, `name` and `form` are as in `policy.model.CredentialRule`."""

    place: str
    name: bytes
    form: bytes
    secret: Secret


def put_in(placings: Iterable[Placing], target: bytes, headers: Headers) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return target and headers of a request with the values of credentials."""
    found = list(headers)
    filled: set[bytes] = set()
    missing: dict[bytes, tuple[bytes, bytes]] = {}
    for placing in placings:
        if placing.place == "query":
            target = _in_query(placing, target)
            continue
        name = b"Authorization" if placing.place == "basic" else placing.name
        key = name.lower()
        if any(header.lower() == key for header, _ in headers):
            found = [
                (header, _exchanged(value, placing.secret) if header.lower() == key else value)
                for header, value in found
            ]
        elif key not in filled:
            filled.add(key)
            missing[key] = name, _value_of(placing)
    return target, [*found, *missing.values()]


def take_out(secrets: Iterable[Secret], text: bytes) -> bytes:
    """Return a text of an answer without values: plain, percent-encoded, and within base64."""
    for secret in sorted(secrets, key=lambda one: -len(one.value)):  # one value may be a part of another
        for echo, instead in secret.echoes:
            if echo in text:
                text = text.replace(echo, instead)
        plain = text
        for _ in range(TIMES_ENCODED):
            if b"%" not in plain:
                break
            plain = unquote_to_bytes(plain)
            if any(echo in plain for echo, _ in secret.echoes):
                text = plain = secret.stand_in  # encoded in part, twice, or another encoding within
    return text


def taken_out(secrets: Sequence[Secret], headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers or trailers of an answer without values; one with a value in its name is left out."""
    if not secrets:
        return list(headers)
    kept = [one for one in headers if not any(secret.value.lower() in one[0].lower() for secret in secrets)]
    return [(name, value if name.lower() in _FRAMING else take_out(secrets, value)) for name, value in kept]


def mentions(stand_in: bytes, target: bytes, headers: Headers) -> bool:
    """Return whether a request has a stand-in in its target or headers."""
    if stand_in in target or stand_in in unquote_to_bytes(target):
        return True
    return any(stand_in in value or stand_in in (_decoded(value) or b"") for _, value in headers)


def _value_of(placing: Placing) -> bytes:
    if placing.place == "basic":
        return b"Basic " + base64.b64encode(placing.name + b":" + placing.secret.value)
    return placing.form.replace(b"{value}", placing.secret.value)


def _exchanged(value: bytes, secret: Secret) -> bytes:
    """Return the value of a header with the secret in place of its stand-in."""
    decoded = _decoded(value)
    if decoded is not None and secret.stand_in in decoded:
        return b"Basic " + base64.b64encode(decoded.replace(secret.stand_in, secret.value))
    return value.replace(secret.stand_in, secret.value)


def _decoded(value: bytes) -> bytes | None:
    """Return user and password of Basic authentication, else None."""
    found = _BASIC.fullmatch(value)
    if found is None:
        return None
    try:
        return base64.b64decode(found[1] + b"=" * (-len(found[1]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _in_query(placing: Placing, target: bytes) -> bytes:
    if not target.startswith(b"/"):
        return target
    path, mark, query = target.partition(b"?")
    parts = query.split(b"&") if mark else []
    is_there = False
    for place, part in enumerate(parts):
        name, equals, value = part.partition(b"=")
        if _unquoted(name) != placing.name:
            continue
        is_there = True
        plain = _unquoted(value)
        if placing.secret.stand_in in plain:
            plain = plain.replace(placing.secret.stand_in, placing.secret.value)
            parts[place] = name + equals + quote_from_bytes(plain, safe="").encode()
    if not is_there:
        parts.append(placing.name + b"=" + quote_from_bytes(placing.secret.value, safe="").encode())
    return path + b"?" + b"&".join(parts)


def _unquoted(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


def _echoes(value: bytes, stand_in: bytes) -> tuple[tuple[bytes, bytes], ...]:
    quoted = quote_from_bytes(value, safe="").encode()
    forms = {value, quoted, quoted.lower(), quote_from_bytes(value).encode()}
    forms |= {value.hex().encode(), value.hex().upper().encode()}
    found = dict.fromkeys(forms, stand_in)
    for before in range(3):  # the value begins at each place of a group of three
        start, end = -(-before * 8 // 6), (before + len(value)) * 8 // 6
        core = base64.b64encode(bytes(before) + value)[start:end]
        for form in (core, core.translate(bytes.maketrans(b"+/", b"-_"))):
            found[form] = (_REMOVED * (len(form) // len(_REMOVED) + 1))[: len(form)]
    return tuple(sorted(found.items(), key=lambda one: -len(one[0])))
