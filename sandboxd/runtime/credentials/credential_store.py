"""The values of credentials, which only the daemon has, and their sources.

A value is read when a request first needs it. Files are read again when they have changed, programs and keyrings after
`LIFETIME_S` or when a server answers 401. No value is handed to another daemon: it reads the sources again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sandboxd.children import run_program
from sandboxd.errors import CallerError, HostError
from sandboxd.policy.model import CredentialSource, SourceKind
from sandboxd_client.records import dataclass

LIFETIME_S: Final = 300.0
PAUSE_S: Final = 5.0
"""Between two runs of one program, however many requests fail."""
COMMAND_S: Final = 15.0
SHORTEST: Final = 8
"""A shorter value would be taken out of answers where it is not meant."""
LONGEST: Final = 8192
MOST_FILE: Final = 1 << 20
MOST_GIVEN: Final = 1000
SECRET_TOOL: Final = "/usr/bin/secret-tool"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/opt/homebrew/bin"
_PASSED_ON: Final = (
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
)


@dataclass(slots=True)
class _Read:
    """A value or the reason why there is none; `state` is that of the file."""

    at: float
    value: bytes = b""
    fault: HostError | None = None
    state: tuple[int, ...] = ()
    outdated: bool = False

    def __repr__(self) -> str:
        return "_Read()"


class CredentialStore:
    """The values of one daemon. `environment` is the daemon's own."""

    def __init__(self, environment: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._environment = environment
        self._clock = clock
        self._given: dict[str, bytes] = {}
        self._read: dict[CredentialSource, _Read] = {}
        self._locks: dict[CredentialSource, asyncio.Lock] = {}
        self._protected = False

    def give(self, name: str, value: str) -> None:
        """Keep the value of `env:NAME` in memory. Raises CallerError."""
        if len(self._given) >= MOST_GIVEN and name not in self._given:
            raise CallerError(
                "credentials_too_many", f"{MOST_GIVEN} credentials are kept", hint="sandboxd credential list"
            )
        try:
            self._given[name] = _checked(value.encode(), name)
        except HostError as error:
            raise CallerError(error.slug, error.message, hint=error.hint) from None
        self._protect()

    def forget(self, name: str) -> bool:
        """Drop a value that was given; return whether there was one."""
        return self._given.pop(name, None) is not None

    def state(self, source: CredentialSource) -> str:
        """Describe where a value comes from, without reading it."""
        if source.kind is SourceKind.ENV:
            name = source.words[0]
            return (
                "set" if name in self._given else "daemon's environment" if self._environment.get(name) else "missing"
            )
        found = self._read.get(source)
        return "not read yet" if found is None else "missing" if found.fault is not None else "read"

    def refused(self, source: CredentialSource) -> None:
        """Note that a server did not accept the value."""
        found = self._read.get(source)
        if found is not None:
            found.outdated = True

    async def value(self, source: CredentialSource) -> bytes:
        """Return a value. Raises HostError."""
        if source.kind is SourceKind.ENV:
            return self._of_environment(source)
        async with self._locks.setdefault(source, asyncio.Lock()):
            found = self._read.get(source)
            if found is None or await self._is_old(source, found):
                found = self._read[source] = await self._look(source)
            if found.fault is not None:
                raise found.fault
            return found.value

    def _of_environment(self, source: CredentialSource) -> bytes:
        name = source.words[0]
        value = self._given.get(name) or self._environment.get(name, "").encode("utf-8", "surrogateescape")
        if not value:
            raise HostError(
                "credential_missing", f"the daemon has no value for {source}", hint=f"sandboxd credential set {name}"
            )
        self._protect()
        return _checked(value, str(source))

    async def _is_old(self, source: CredentialSource, found: _Read) -> bool:
        if source.kind is SourceKind.FILE:
            return found.state != await asyncio.to_thread(_state, source.words[0])
        age = self._clock() - found.at
        return age > LIFETIME_S or (age > PAUSE_S and (found.outdated or found.fault is not None))

    async def _look(self, source: CredentialSource) -> _Read:
        self._protect()
        state: tuple[int, ...] = ()
        try:
            if source.kind is SourceKind.FILE:
                path, before = source.words
                state = await asyncio.to_thread(_state, path)
                text = await asyncio.to_thread(_of_file, path, before)
            elif source.kind is SourceKind.KEYRING:
                text = await self._output(_keyring(*source.words), source)
            else:
                text = await self._output(source.words, source)
            return _Read(self._clock(), _checked(text, _shown(source)), state=state)
        except HostError as fault:
            return _Read(self._clock(), fault=fault, state=state)

    async def _output(self, argv: tuple[str, ...], source: CredentialSource) -> bytes:
        """Return what a program prints, within limits of time and size. Raises HostError."""
        environment = {name: self._environment[name] for name in _PASSED_ON if name in self._environment}
        try:
            done = await run_program(argv, COMMAND_S, env={"PATH": _PATH, **environment}, most=LONGEST)
        except OSError as error:
            raise _unusable(source, f"{argv[0]} does not start: {error.strerror}") from None
        if done.status is None:
            raise _unusable(source, f"{argv[0]} does not end within {COMMAND_S:.0f} s")
        if done.status and len(done.output) <= LONGEST:
            raise _unusable(source, f"{argv[0]} ends with status {done.status}")
        return done.output

    def _protect(self) -> None:
        """Keep memory out of core dumps from now on: the limit for files, the filter for programs that take dumps."""
        if self._protected:
            return
        self._protected = True
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        with contextlib.suppress(OSError), open("/proc/self/coredump_filter", "w") as file:
            file.write("0")


def _keyring(service: str, user: str) -> tuple[str, ...]:
    if sys.platform == "darwin":
        return ("/usr/bin/security", "find-generic-password", "-s", service, "-a", user, "-w")
    return (SECRET_TOOL, "lookup", "service", service, "username", user)


def _state(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _of_file(path: str, before: str) -> bytes:
    source = CredentialSource(SourceKind.FILE, (path,))
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            text = file.read(MOST_FILE)
    except OSError as error:
        raise _unusable(source, error.strerror or "it cannot be read") from None
    if not before:
        return text
    found = re.search(beginning((before,)) + rb"[\"']?([^\s\"',;<>]+)", text)
    if found is None:
        raise _unusable(source, "the pattern is not in it")
    return found[1]


def beginning(patterns: Sequence[str]) -> bytes:
    """Return the expression for the texts before values in a file, with any blanks around = and :."""
    found = (
        re.sub(rb"(?<!^)[ \t]*[=:][ \t]*|[ \t]+|[^ \t=:]+|^[=:]", _spaced, pattern.encode())
        for pattern in sorted(patterns, key=len, reverse=True)
    )
    return rb"(?:" + b"|".join(found) + rb")[ \t]*+"


def _spaced(found: re.Match[bytes]) -> bytes:
    text = found[0].strip(b" \t")
    if not text:
        return rb"[ \t]++"
    return rb"[ \t]*+" + text + rb"[ \t]*+" if found.start() and text in b"=:" else re.escape(text)


def _checked(value: bytes, source: str) -> bytes:
    """Return a value that a header can hold. Raises HostError."""
    value = value.strip(b"\r\n")
    fault = ""
    if len(value) < SHORTEST:
        fault = f"it has less than {SHORTEST} characters"
    elif len(value) > LONGEST:
        fault = f"it has more than {LONGEST} characters"
    elif min(value) < 0x20 or 0x7F in value:
        fault = "it has control characters"
    if fault:
        raise HostError(
            "credential_unusable",
            f"the value of {source} cannot be used: {fault}",
            hint="give the value alone, in a line",
        )
    return value


def _unusable(source: CredentialSource, why: str) -> HostError:
    return HostError(
        "credential_missing",
        f"cannot read the credential from {_shown(source)}: {why}",
        hint="correct the source: sandboxd settings show sandbox.credentials.inject",
    )


def _shown(source: CredentialSource) -> str:
    return source.words[0] if source.kind in (SourceKind.FILE, SourceKind.COMMAND) else str(source)
