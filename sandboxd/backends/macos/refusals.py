"""From a denial in the log to a refusal with a kind and a hint. Pure, and two tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandboxd.backends.base import Refusal
from sandboxd.backends.macos.log_lines import Denial
from sandboxd.policy.violation import ViolationKind, ViolationSource

_KINDS = (
    ("file-read", ViolationKind.READ),
    ("file-map-executable", ViolationKind.READ),
    ("file-", ViolationKind.WRITE),
    ("network-", ViolationKind.CONNECT),
)


@dataclass(frozen=True, slots=True)
class _Hint:
    """`operation` and `target` are expressions for the whole of each; the first row that fits speaks."""

    operation: str
    target: str
    text: str

    def fits(self, operation: str, target: str) -> bool:
        flags = re.DOTALL
        return bool(re.fullmatch(self.operation, operation, flags) and re.fullmatch(self.target, target, flags))


_ANY = ".*"
HINTS = (
    _Hint(
        "mach-lookup", r"com\.apple\.trustd\.agent",
        "programs that check certificates with the system need it (Go among them); "
        "sandbox.enableWeakerNetworkIsolation allows it, and opens a way out past the proxies",
    ),
    _Hint(
        "forbidden-sandbox-reinit", _ANY,
        "the program wants a sandbox of its own inside this one, which macOS refuses; start it without "
        "(browsers: --no-sandbox)",
    ),
    _Hint("forbidden-exec-sugid", _ANY, "setuid programs cannot be started in a sandbox on macOS"),
    _Hint(
        "mach-lookup", r"com\.apple\.(coreservices\.(appleevents|quarantine-resolver)|CoreServices\.coreservicesd)",
        "sandbox.allowAppleEvents allows telling other programs what to do, outside the sandbox",
    ),
    _Hint(
        "appleevent-send|lsopen", _ANY,
        "sandbox.allowAppleEvents allows telling other programs what to do, outside the sandbox",
    ),
    _Hint("mach-lookup", _ANY, "a service can be named in sandbox.network.allowMachLookup"),
    _Hint("mach-register", _ANY, "a service can be named in sandbox.network.allowMachRegister"),
    _Hint("pseudo-tty", _ANY, "sandbox.allowPty allows new pseudo-terminals"),
    _Hint("file-.*", r"/dev/(ptmx|ttys[0-9]+)", "sandbox.allowPty allows new pseudo-terminals"),
    _Hint("network-(bind|inbound)", r"/.*", "name the socket or its directory in sandbox.network.allowUnixSockets"),
    _Hint("network-(bind|inbound)", _ANY, "sandbox.network.allowLocalBinding allows listening on local ports"),
    _Hint("network-outbound", r"/.*", "name the socket or its directory in sandbox.network.allowUnixSockets"),
    _Hint(
        "network-outbound", r".*(localhost|127\.0\.0\.1|::1)\]?:[0-9]+",
        "name the port in sandbox.network.allowLocalPorts",
    ),
    _Hint(
        "network-outbound", _ANY,
        "the program does not use the proxy in HTTP_PROXY; set it there, and allow the host in allowedDomains",
    ),
    _Hint("system-socket", _ANY, "Unix sockets have to be named in sandbox.network.allowUnixSockets"),
    _Hint(
        "file-write.*", r".*/(\.git|\.git/modules/.*)/config(\.worktree|\.lock)?",
        "sandbox.filesystem.allowGitConfig allows writing git's configuration",
    ),
    _Hint("file-write.*", _ANY, "to open it, name the path in sandbox.filesystem.allowWrite"),
    _Hint("file-read.*", _ANY, "to open it, name the path in sandbox.filesystem.allowRead"),
)  # fmt: skip


def refusal_of(denial: Denial) -> Refusal:
    """What is told of a denial."""
    return Refusal(
        kind=_kind(denial.operation, denial.target),
        operation=denial.operation,
        target=denial.target,
        source=ViolationSource.SEATBELT,
        process=denial.process or None,
        count=denial.count,
        hint=next((row.text for row in HINTS if row.fits(denial.operation, denial.target)), ""),
    )


def _kind(operation: str, target: str) -> ViolationKind:
    kind = next((kind for beginning, kind in _KINDS if operation.startswith(beginning)), ViolationKind.SERVICE)
    if kind is ViolationKind.CONNECT and target.startswith("/"):
        return ViolationKind.UNIX_SOCKET
    return kind
