"""The stand-ins of one session: what its commands see in place of credentials.

A stand-in begins as the value does, where the beginning only says what it is, and is as long. It follows from the
session's number, so that the next daemon knows those of running commands."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Final

from sandboxd.errors import HostError
from sandboxd.plan.masked_files import masked_files
from sandboxd.policy.model import CredentialSource, NetworkPolicy
from sandboxd.proxy.credentials.request_heads import Secret
from sandboxd.runtime.credentials.credential_store import CredentialStore
from sandboxd.runtime.credentials.masked_copies import write_copy

_BEGINNING: Final = re.compile(
    r"gh[pousr]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|oas)-|sk-(?:ant-(?:api|oat|sid)[0-9]{2}-|proj-|or-v1-)?|npm_|pypi-|hf_|"
    r"xox[abposr]-|xapp-|dckr_(?:pat|oat)_|cio|rubygems_|hvs\.|dop_v1_|shp(?:at|ca|pa|ss)_|sq0[a-z]{3}-|AKIA|ASIA|AIza|"
    r"[rs]k_(?:live|test)_|whsec_|SG\.|key-|figd_|lin_api_|ntn_|secret_|atlasv1-|pat-|eyJ"
)
"""Beginnings that say what kind of credential it is, and nothing else."""
SHORTEST_TAIL: Final = 20
LONGEST: Final = 255
WAIT_S: Final = 3.0
"""Longest delay of a command for a value of which only the form is needed."""
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def stand_in_for(session_id: str, name: str, value: str, prefix: str | None) -> str:
    """Return the stand-in of a value, which may be empty when it is not known."""
    if prefix is None:
        found = _BEGINNING.match(value)
        prefix = found[0] if found else ""
    tail = min(max(len(value) - len(prefix), SHORTEST_TAIL), LONGEST - len(prefix))
    stream = b"".join(hashlib.sha256(f"{session_id}\0{name}\0{turn}".encode()).digest() for turn in range(8))
    return prefix + "".join(_LETTERS[byte % len(_LETTERS)] for byte in stream[:tail])


class SessionCredentials:
    """The stand-ins and values of one session."""

    def __init__(self, session_id: str, store: CredentialStore) -> None:
        self._session_id = session_id
        self._store = store
        self._stand_ins: dict[CredentialSource, bytes] = {}
        self._secrets: dict[CredentialSource, tuple[Secret, ...]] = {}
        self.warnings: tuple[str, ...] = ()
        """About masked files, as `prepare` found them."""

    @property
    def stand_ins(self) -> Sequence[tuple[bytes, CredentialSource]]:
        return [(stand_in, source) for source, stand_in in self._stand_ins.items()]

    @property
    def secrets(self) -> Sequence[Secret]:
        """Return the values that were read, the present and the one before it of each source."""
        return [secret for secrets in self._secrets.values() for secret in secrets]

    def refused(self, source: CredentialSource) -> None:
        self._store.refused(source)

    async def secret(self, source: CredentialSource, prefix: str | None = None) -> Secret:
        """Return a value with its stand-in. Raises HostError."""
        value = await self._store.value(source)
        before = self._secrets.get(source, ())
        if not before or before[0].value != value:
            secret = Secret(value, self._stand_in(source, value, prefix))
            self._secrets[source] = before = (secret, *before[:1])
        return before[0]

    async def stand_in(self, source: CredentialSource, prefix: str | None = None) -> str:
        """Return the stand-in of a credential, also of one that cannot be read now."""
        if source not in self._stand_ins:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self.secret(source, prefix)
            except (HostError, TimeoutError):
                self._stand_in(source, b"", prefix)
        return self._stand_ins[source].decode()

    async def prepare(self, network: NetworkPolicy, session_tmp: str) -> dict[str, str]:
        """Write the copies of masked files; return the variables of commands that hold a stand-in. Raises HostError."""
        found = {
            mask.variable: stand_in_for(self._session_id, mask.variable, "", None)
            for mask in network.masks
            if mask.variable
        }
        for rule in reversed(network.credentials):  # the first rule for a variable decides
            for name in rule.variables:
                found[name] = await self.stand_in(rule.source, rule.prefix)
        self.warnings = ()
        if files := masked_files(network):
            for rule in network.credentials:
                await self.stand_in(rule.source, rule.prefix)  # a value in a file may be one of these
            told = [
                await asyncio.to_thread(write_copy, file, session_tmp, self._stand_in_of_value, self.secrets)
                for file in files
            ]
            self.warnings = tuple(filter(None, told))
        return found

    def _stand_in_of_value(self, name: str, value: bytes) -> bytes:
        """Return what stands for a value in a file: the stand-in of the credential that it is, or one of its own."""
        known = next((secret for secret in self.secrets if secret.value == value), None)
        if known is not None:
            return known.stand_in
        return stand_in_for(self._session_id, name, value.decode("latin-1"), None).encode()

    def _stand_in(self, source: CredentialSource, value: bytes, prefix: str | None) -> bytes:
        if source not in self._stand_ins:
            text = value.decode("latin-1")
            self._stand_ins[source] = stand_in_for(self._session_id, str(source), text, prefix).encode()
        return self._stand_ins[source]
