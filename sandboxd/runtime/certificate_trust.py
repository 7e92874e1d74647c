"""The daemon's certificate authorities, and the bundles of commands that trust them (`plan.trust`).

There is one authority for each list of hosts that settings name, so that each is constrained to its list and a command
goes on with its own when the list changes. Bundles hold no secret; they lie in a directory that commands see."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence

from sandboxd.errors import HostError, way_out
from sandboxd.plan.trust import SYSTEM_BUNDLES, bundle_path, callers_files, java_store_path, terminated_hosts
from sandboxd.policy.model import NetworkPolicy
from sandboxd.proxy.tls.authority import Authority, AuthorityRecord, java_store
from sandboxd_client.records import dataclass

MOST_BYTES = 8 << 20
"""Of one file of certificates."""
MOST_AUTHORITIES = 64
"""Lists of hosts that commands were started under, each with its own authority."""
MOST_BUNDLES = 1024
_CERTIFICATE = re.compile(rb"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----[A-Za-z0-9+/=\s]{1,65536}-----END \1-----")


@dataclass(frozen=True, slots=True)
class OwnTrust:
    """Files and directories of authorities that the daemon believes.

    Sandboxes protect those of `guarded`. Commands could write `opened`, if it is not empty."""

    paths: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    opened: str = ""


class CertificateTrust:
    """The authorities of one daemon."""

    def __init__(self, directory: str, own: OwnTrust) -> None:
        self.directory = directory
        self.own = own
        self._authorities: dict[tuple[str, ...], Authority] = {}
        self._written: dict[str, tuple[object, ...]] = {}
        self._lock = asyncio.Lock()

    @property
    def records(self) -> tuple[AuthorityRecord, ...]:
        """Return what the next daemon needs, so that running commands go on."""
        return tuple(one.record for one in self._authorities.values())

    def authority(self, network: NetworkPolicy) -> Authority | None:
        """Return the authority for the hosts of a policy, if a command was prepared under it."""
        return self._authorities.get(terminated_hosts(network))

    async def prepare(self, network: NetworkPolicy, caller: Mapping[str, str]) -> None:
        """Make what a command of this policy trusts. Raises HostError."""
        hosts = terminated_hosts(network)
        if not hosts:
            return
        async with self._lock:
            await asyncio.to_thread(self._prepare, network, hosts, callers_files(caller))

    async def resume(self, records: Sequence[AuthorityRecord]) -> None:
        """Take over the authorities of an earlier daemon, for its running commands."""
        for record in records:
            with contextlib.suppress(HostError):  # these commands reach no such host until they start again
                self._authorities[record.hosts] = await asyncio.to_thread(Authority, (), self._believed(), record)

    def _believed(self) -> tuple[str, ...]:
        """Return what the daemon verifies servers with. Raises HostError."""
        if self.own.opened:
            raise HostError(
                "tls_trust_opened",
                f"servers are not verified with {', '.join(self.own.guarded)}: commands could write {self.own.opened}",
                hint="start it with: SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt sandboxd serve",
            )
        return self.own.paths or (_system_bundle(()),)

    def _prepare(self, network: NetworkPolicy, hosts: tuple[str, ...], files: tuple[str, ...]) -> None:
        os.makedirs(self.directory, mode=0o755, exist_ok=True)
        authority = self._authority_for(network, hosts)
        for one in dict.fromkeys(((), files)):  # the bundle without the caller's files stands over the system's
            self._write(bundle_path(self.directory, hosts, one), authority, one)

    def _authority_for(self, network: NetworkPolicy, hosts: tuple[str, ...]) -> Authority:
        found = self._authorities.pop(hosts, None)
        if found is None:
            patterns = [rule.pattern for rule in network.tls_terminate]
            found = Authority(patterns, self._believed())
        self._authorities[hosts] = found
        while len(self._authorities) > MOST_AUTHORITIES:
            del self._authorities[next(iter(self._authorities))]
        return found

    def _write(self, path: str, authority: Authority, files: tuple[str, ...]) -> None:
        """Write a bundle, unless it is as its sources are now. A new one replaces the name, so commands keep theirs."""
        system = _system_bundle(self.own.paths)
        sources = (system, *files)
        state = (authority, *map(_state, sources))
        if self._written.get(path) == state:
            return
        if len(self._written) >= MOST_BUNDLES and path not in self._written:
            raise HostError(
                "tls_bundles_too_many", "too many files of certificates are in use", hint="sandboxd restart"
            )
        text = b"\n".join((*map(_read, sources), authority.certificate.encode()))
        try:
            _replace(java_store_path(path), java_store(found[0] for found in _CERTIFICATE.finditer(text)))
            _replace(path, text)
        except OSError as error:
            raise HostError(
                "tls_bundle", f"cannot write {path}: {error.strerror}", hint=way_out(error, "free some disk space")
            ) from None
        self._written[path] = state


def _replace(path: str, content: bytes) -> None:
    """Write a file under a new name and move it into place. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with open(os.open(f"{path}.new", flags, 0o444), "wb") as file:
        file.write(content)
    os.rename(f"{path}.new", path)


def _system_bundle(own: Sequence[str]) -> str:
    """Return the file of the machine's authorities: that of the daemon's environment, or of the system."""
    for path in (*own, *SYSTEM_BUNDLES):
        if os.path.isfile(path):
            return path
    raise HostError(
        "tls_no_authorities",
        "this machine has no file of certificate authorities",
        hint="install them: apt-get install ca-certificates",
    )


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: str) -> bytes:
    """Return the certificates in a file, and nothing else of it: commands read them, and may not read the file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            return b"\n".join(found[0] for found in _CERTIFICATE.finditer(file.read(MOST_BYTES)))
    except OSError:
        return b""
