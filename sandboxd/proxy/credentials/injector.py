"""The credentials of one command's requests: decided by the policy of the moment, put in by `request_heads`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sandboxd.errors import DaemonError
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.hosts.request_rules import HttpRequest, credentials_for
from sandboxd.policy.model import CredentialRule, CredentialSource, NetworkPolicy
from sandboxd.proxy.credentials.request_heads import Headers, Placing, Secret, mentions, put_in, take_out, taken_out
from sandboxd.proxy.dial import DialError
from sandboxd_client.records import dataclass

MOST_REPORTED: Final = 256
"""Pairs of host and credential that one command is told about."""
UNAUTHORIZED: Final = 401

ReportMisplaced = Callable[[str, Host, int, Decision], None]


class SessionSecrets(Protocol):
    """The values and stand-ins of one session."""

    async def secret(self, source: CredentialSource, prefix: str | None) -> Secret:
        """Return a value with its stand-in. Raises DaemonError without a value."""
        ...

    @property
    def secrets(self) -> Sequence[Secret]:
        """Return those that were read until now."""
        ...

    @property
    def stand_ins(self) -> Sequence[tuple[bytes, CredentialSource]]: ...

    def refused(self, source: CredentialSource) -> None:
        """Note that a server did not accept the value."""
        ...


@dataclass(frozen=True, slots=True)
class Injection:
    """The credentials of one request, and what its answer loses."""

    placings: tuple[Placing, ...] = ()
    secrets: Sequence[Secret] = ()
    sources: tuple[CredentialSource, ...] = ()
    check: Callable[[bytes, Headers], None] | None = None
    refused: Callable[[CredentialSource], None] | None = None

    def request(self, target: bytes, headers: Headers) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Return target and headers for the server."""
        target, changed = put_in(self.placings, target, headers) if self.placings else (target, list(headers))
        if self.check is not None:
            self.check(target, changed)
        return target, changed

    def answer(self, status: int, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer for the client."""
        if status == UNAUTHORIZED and self.refused is not None:
            for source in self.sources:
                self.refused(source)
        return self.trailers(headers)

    def trailers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        return taken_out(self.secrets, headers)

    def text(self, text: bytes) -> bytes:
        return take_out(self.secrets, text)


NOTHING: Final = Injection()


class Injector:
    """The credentials of one command. `network` returns the current policy."""

    def __init__(self, network: Callable[[], NetworkPolicy], vault: SessionSecrets, report: ReportMisplaced) -> None:
        self._network = network
        self._vault = vault
        self._report = report
        self._reported: set[tuple[Host, CredentialSource]] = set()

    async def injection(self, host: Host, port: int, request: HttpRequest, *, secure: bool) -> Injection:
        """Return what a request to an allowed host gets; `secure` with TLS that ends here, whose server is verified.

        Raises DialError."""
        network = self._network()
        if not network.credentials and not self._vault.stand_ins:
            return NOTHING
        rules = credentials_for(network, host, port, request) if secure else ()
        placings = tuple([await self._placing(rule) for rule in rules])

        def check(target: bytes, headers: Headers) -> None:
            for stand_in, source in self._vault.stand_ins:
                if (host, source) not in self._reported and mentions(stand_in, target, headers):
                    self._misplaced(host, port, request, source, secure=secure)

        sources = tuple(rule.source for rule in rules)
        return Injection(placings, tuple(self._vault.secrets), sources, check, self._vault.refused)

    async def _placing(self, rule: CredentialRule) -> Placing:
        try:
            secret = await self._vault.secret(rule.source, rule.prefix)
        except DaemonError as error:
            raise DialError(error.slug, error.message, hint=error.hint) from None
        return Placing(rule.place, rule.name.encode(), rule.form.encode(), secret)

    def _misplaced(
        self, host: Host, port: int, request: HttpRequest, source: CredentialSource, *, secure: bool
    ) -> None:
        if len(self._reported) >= MOST_REPORTED:
            return
        self._reported.add((host, source))
        where = host.authority(port)
        about = f"a request to {where} has the placeholder of {source}, which stays"
        why = "no rule gives it to this request" if secure else "its TLS does not end in the proxy"
        hint = "see the hosts, methods, paths and headers of it: sandboxd settings show sandbox.credentials.inject"
        self._report(
            request.method,
            host,
            port,
            Decision(Behavior.DENY, Reason.CREDENTIAL_MISPLACED, f"{about}: {why}", hint=hint),
        )
