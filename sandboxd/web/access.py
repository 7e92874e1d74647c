"""Access to the page: roles and their methods, links, pairings, and the sessions that they open.

Secrets are kept as hashes only. A browser has two of them: a cookie, which it sends to every port of a host, and a key,
which the page keeps for this very port. So a server at another port that is sent the cookie has no use for it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from enum import IntEnum
from typing import Any, Final

from sandboxd_client.records import dataclass

LINK_S: Final = 600.0
PAIRING_S: Final = 120.0
SESSION_S: Final = 30 * 86400.0
"""Seconds that a link and a pairing wait, and that a session lasts."""
MOST_LINKS, MOST_PAIRINGS, MOST_SESSIONS = 16, 4, 64
TRIES, TRIES_PER_S = 10, 0.5
"""Failed attempts that are answered at once, and per second after that."""


class Role(IntEnum):
    """Roles of sessions; each one includes those before it."""

    WATCH = 1
    ANSWER = 2
    ADMINISTER = 3

    @property
    def word(self) -> str:
        return self.name.lower()


ROLES: Final[Mapping[str, Role]] = {role.word: role for role in Role}
METHODS: Final[Mapping[str, Role]] = {
    **dict.fromkeys(
        ("status", "check", "metrics", "session.list", "command.list", "permission.list", "violation.list",
         "violation.subscribe", "settings.get", "settings.locked", "settings.lint", "settings.schema",
         "policy.explain", "policy.effective", "policy.describe"),
        Role.WATCH,
    ),
    **dict.fromkeys(("permission.subscribe", "sandbox_permission_response"), Role.ANSWER),
    **dict.fromkeys(
        ("permission.revoke", "command.kill", "settings.update", "settings.exclude_command", "settings.reload",
         "violation.clear", "violation.suggest"),
        Role.ADMINISTER,
    ),
}  # fmt: skip
"""The methods of the daemon that a session may call. No other one: none runs or wraps a command."""

_NAMES_PROGRAMS: Final = "sandbox.credentials"


def why_refused(method: str, params: Mapping[str, Any], role: Role) -> str:
    """Return why a role may not make a call, empty where it may."""
    needed = METHODS.get(method)
    if needed is None:
        return f"{method} is not offered here"
    if method == "sandbox_permission_response" and params.get("scope") == "always":
        needed = Role.ADMINISTER  # it writes a rule
    if method == "settings.lint" and params.get("files"):
        return "settings.lint reads no named files here"
    if method == "settings.update" and _NAMES_PROGRAMS in json.dumps(params.get("changes")):
        return f"settings.update changes no {_NAMES_PROGRAMS} here, which names programs that the daemon runs"
    return "" if role >= needed else f"this needs the role {needed.word}, and this session has the role {role.word}"


@dataclass(frozen=True, slots=True)
class PageSession:
    """A browser, a device or a program that was let in; `kind` is one of them."""

    id: str
    kind: str
    name: str
    role: Role
    created: float
    expires: float
    secret: str
    """Hash of the cookie, or of the token of a program."""
    key: str = ""
    """Hash of the key of a browser or device."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The secrets of a new session, which are shown once."""

    session: PageSession
    secret: str
    key: str


@dataclass(frozen=True, slots=True)
class Pairing:
    """A device that asks to be let in, with the code that it shows."""

    code: str
    name: str
    address: str
    until: float
    waiting: str
    """Hash of the secret by which the device asks for the outcome."""
    role: Role | None = None


class EntryRefused(Exception):
    """A refusal; the text is for the other side."""


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Door:
    """Links, pairings and sessions. `save` gets the text of the sessions that outlive the page, after each change.

    Those of links do not: a server that has the port later is the same origin for a browser, and gets its secrets."""

    def __init__(
        self, saved: str = "", save: Callable[[str], None] = lambda text: None, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._save = save
        self._links: dict[str, tuple[float, Role]] = {}
        self._pairings: dict[str, Pairing] = {}
        self._sessions = _read(saved)
        self._tries, self._tried = float(TRIES), clock()

    @property
    def sessions(self) -> tuple[PageSession, ...]:
        now = self._clock()
        return tuple(one for one in self._sessions.values() if one.expires > now)

    @property
    def pairings(self) -> tuple[Pairing, ...]:
        now = self._clock()
        return tuple(one for one in self._pairings.values() if one.until > now)

    def link(self, role: Role) -> str:
        """Return a token that opens one session."""
        token = secrets.token_urlsafe(32)
        now = self._clock()
        self._links = {key: value for key, value in self._links.items() if value[0] > now}
        while len(self._links) >= MOST_LINKS:
            self._links.pop(next(iter(self._links)))
        self._links[hash_of(token)] = now + LINK_S, role
        return token

    def redeem(self, token: str, name: str) -> Entry:
        """Open the session of a link, once. Raises EntryRefused."""
        until, role = self._links.pop(hash_of(token), (0.0, Role.WATCH))
        if until <= self._clock():
            self._count_try()
            raise EntryRefused("this link was used, or is too old: run sandboxd web again for another one")
        return self._open("browser", name, role)

    def program(self, name: str, role: Role) -> Entry:
        """Open the session of a program, whose secret is its token."""
        return self._open("program", name, role)

    def ask(self, name: str, address: str) -> tuple[Pairing, str]:
        """Begin a pairing; return it with the secret for `collect`. Raises EntryRefused."""
        self._count_try()
        waiting = {one.code: one for one in self.pairings if one.address != address}
        if len(waiting) >= MOST_PAIRINGS:
            raise EntryRefused("other devices wait to be paired: try again in two minutes")
        code = next(code for code in iter(lambda: f"{secrets.randbelow(10**6):06}", "") if code not in waiting)
        secret = secrets.token_urlsafe(32)
        pairing = Pairing(code, name[:60], address, self._clock() + PAIRING_S, hash_of(secret))
        self._pairings = {**waiting, code: pairing}
        return pairing, secret

    def approve(self, code: str, role: Role) -> Pairing:
        """Accept the device that shows this code. Raises EntryRefused."""
        pairing = self._pairings.get(code)
        if pairing is None or pairing.until <= self._clock() or pairing.role is not None:
            raise EntryRefused("no device waits with this code")
        self._pairings[code] = pairing = replace(pairing, role=role)
        return pairing

    def collect(self, secret: str) -> Entry | None:
        """Return the session of an accepted device, once; None while it waits. Raises EntryRefused."""
        hashed, now = hash_of(secret), self._clock()
        found = next((one for one in self._pairings.values() if one.waiting == hashed and one.until > now), None)
        if found is None:
            self._count_try()
            raise EntryRefused("the pairing has ended: begin again")
        if found.role is None:
            return None
        del self._pairings[found.code]
        return self._open("device", found.name, found.role)

    def session_of(self, secret: str, key: str = "") -> PageSession | None:
        """Return the session of a cookie and a key, or of a token."""
        hashed, hashed_key = hash_of(secret), hash_of(key) if key else ""
        for one in self.sessions:
            if secrets.compare_digest(one.secret, hashed) and secrets.compare_digest(one.key, hashed_key):
                return one
        return None

    def has_cookie(self, secret: str) -> bool:
        """Return whether a cookie is one of a session; without the key it opens nothing."""
        return any(one.key and one.secret == hash_of(secret) for one in self.sessions)

    def is_open(self, session: PageSession) -> bool:
        """Return whether a session was neither revoked nor has ended."""
        return self._sessions.get(session.id) == session and session.expires > self._clock()

    def revoke(self, session_id: str) -> tuple[PageSession, ...]:
        """End a session, or all with `all`; return those that ended."""
        ended = tuple(one for one in self._sessions.values() if session_id in (one.id, "all"))
        for one in ended:
            del self._sessions[one.id]
        self._keep()
        return ended

    def _count_try(self) -> None:
        """Count a failure or a pairing. Raises EntryRefused where there are too many; what is right, is let in."""
        now = self._clock()
        self._tries = min(self._tries + (now - self._tried) * TRIES_PER_S, TRIES) - 1
        self._tried = now
        if self._tries < 0:
            self._tries = 0.0
            raise EntryRefused("too many attempts: try again in a moment")

    def _open(self, kind: str, name: str, role: Role) -> Entry:
        secret, key, now = secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._clock()
        self._sessions = {one.id: one for one in self.sessions}
        if len(self._sessions) >= MOST_SESSIONS:
            raise EntryRefused("there are too many sessions: revoke one with sandboxd web revoke ID")
        number = next(one for one in iter(lambda: secrets.token_hex(4), "") if one not in self._sessions)
        hashed = "" if kind == "program" else hash_of(key)
        session = PageSession(number, kind, name[:60], role, now, now + SESSION_S, hash_of(secret), hashed)
        self._sessions[number] = session
        self._keep()
        return Entry(session, secret, key)

    def _keep(self) -> None:
        kept = [one for one in self._sessions.values() if one.kind != "browser"]
        self._save(json.dumps([{**asdict(one), "role": one.role.word} for one in kept]))


def _read(saved: str) -> dict[str, PageSession]:
    """Return saved sessions; none where the text is not understood."""
    try:
        found = [PageSession(**{**one, "role": ROLES[one["role"]]}) for one in json.loads(saved or "[]")]
        return {one.id: one for one in found if one.secret and (one.key or one.kind == "program")}
    except (ValueError, TypeError, KeyError):
        return {}


def write_private(path: str, text: str) -> None:
    """Replace a file that only the user can read. Raises OSError."""
    beside = f"{path}.{os.getpid()}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(beside, path)
