"""`checkServerName`: does the TLS inside a tunnel name a host that is allowed as well?

A tunnel to an allowed name may lead to a machine that serves many owners, and the name in the TLS greeting chooses
among them. `log` notes a greeting that names a host which is not allowed, `enforce` ends the tunnel before a byte of
it goes out, `off` does not look. A greeting without a name, and what is not TLS, pass: there is nothing to compare.
What is encrypted, above all the Host header inside, is out of reach.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sandboxd.policy.decision import ONLY_MANAGED, Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, parse_wire_host, quote
from sandboxd.proxy.transparent.tls_hello import HelloReader

log = logging.getLogger(__name__)


class ServerNameCheck:
    """Looks at the first bytes of one tunnel to `host`. `allows` says whether policy allows another host by itself."""

    def __init__(
        self,
        host: Host,
        allows: Callable[[Host], bool],
        refuse: Callable[[str, Decision], None],
        *,
        enforce: bool,
        managed_only: bool = False,
    ) -> None:
        """`managed_only`: managed settings alone can allow a host."""
        self._host = host
        self._allows = allows
        self._refuse = refuse
        self._enforce = enforce
        self._managed_only = managed_only
        self._reader = HelloReader()

    def receive(self, data: bytes) -> bool | None:
        """True to let everything through, False to end the tunnel, None to wait for more bytes."""
        opening = self._reader.receive(data)
        if opening is None:
            return None
        if not opening.is_tls or (opening.is_readable and opening.server_name is None):
            return True
        if opening.server_name is None:
            return self._object("?", "begins with a TLS greeting that cannot be read")
        name = quote(opening.server_name)[1:-1]
        try:
            found = parse_wire_host(opening.server_name)
        except HostSyntaxError as error:
            return self._object(name, f"begins with a TLS greeting for a host that cannot be read ({error.reason})")
        if found == self._host or self._allows(found):
            return True
        return self._object(name, f"begins with a TLS greeting for {name}, which is not allowed")

    def _object(self, name: str, what: str) -> bool:
        text = f"a connection to {self._host} {what}"
        if not self._enforce:
            log.warning("%s", text)
            return True
        hint = f"allow that host too, or set sandbox.network.checkServerName to log: sandboxd allow domain {name}"
        if self._managed_only:
            hint = ONLY_MANAGED
        self._refuse(name, Decision(Behavior.DENY, Reason.SERVER_NAME, text, hint=hint))
        return False
