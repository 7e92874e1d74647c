"""The check of server names in TLS handshakes (`checkServerName`).

A tunnel to an allowed name may lead to a machine with many owners, where the name in the ClientHello selects one. `log`
records a handshake for a host that is not allowed, `enforce` ends the tunnel before any byte of it leaves, `off` checks
nothing. A handshake without a name, and other protocols, pass. Encrypted content, above all the Host header, is out of
reach."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from sandboxd.policy.decision import ONLY_MANAGED, Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, parse_wire_host, quote
from sandboxd.proxy.transparent.tls_hello import HelloReader

_UNREADABLE: Final = "use a client that sends a valid server name, or none"
"""No command line here: the name comes from the sandbox, and may hold a shell's special characters."""

log = logging.getLogger(__name__)


class ServerNameCheck:
    """The check of one tunnel to `host`; `allows` decides on other hosts."""

    def __init__(
        self,
        host: Host,
        allows: Callable[[Host], bool],
        refuse: Callable[[str, Decision], None],
        *,
        enforce: bool,
        managed_only: bool = False,
        sees_requests: Callable[[Host], bool] = lambda host: False,
    ) -> None:
        """`managed_only`: only managed settings can allow a host.

        `sees_requests`: the requests to a host are decided, so that no tunnel of another host may lead there, whatever
        the mode."""
        self._host = host
        self._allows = allows
        self._refuse = refuse
        self._enforce = enforce
        self._managed_only = managed_only
        self._sees_requests = sees_requests
        self._reader = HelloReader()

    def receive(self, data: bytes) -> bool | None:
        """Return True to let all pass, False to end the tunnel, None for more bytes."""
        opening = self._reader.receive(data)
        if opening is None:
            return None
        if not opening.is_tls or (opening.is_readable and opening.server_name is None):
            return True
        if opening.server_name is None:
            return self._object("?", "begins with an unreadable TLS handshake")
        name = quote(opening.server_name)[1:-1]
        try:
            found = parse_wire_host(opening.server_name)
        except HostSyntaxError as error:
            return self._object(name, f"begins with a TLS handshake for an unreadable host ({error.reason})")
        if found == self._host:
            return True
        if self._sees_requests(found):
            text = f"a connection to {self._host} begins with a TLS handshake for {name}, whose requests are decided"
            self._refuse(name, Decision(Behavior.DENY, Reason.REQUEST_UNSEEN, text, hint=f"connect to {name} itself"))
            return False
        if self._allows(found):
            return True
        hint = f"run: sandboxd allow domain {name}, or set sandbox.network.checkServerName to log"
        return self._object(name, f"begins with a TLS handshake for {name}, which is not allowed", hint)

    def _object(self, name: str, what: str, hint: str = _UNREADABLE) -> bool:
        text = f"a connection to {self._host} {what}"
        if not self._enforce:
            log.warning("%s", text)
            return True
        if self._managed_only:
            hint = ONLY_MANAGED
        self._refuse(name, Decision(Behavior.DENY, Reason.SERVER_NAME, text, hint=hint))
        return False
