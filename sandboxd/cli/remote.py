"""The daemon of another machine over ssh: its socket is forwarded to a private one here, for as long as that is used.

ssh is run as argv, with the user's own configuration and keys. On the other machine it runs two fixed lines. The second
one waits for the end of its input, so that the connection ends with this process, however that ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any, Final

from sandboxd import __version__
from sandboxd.cli.arguments import Option, UsageError, visible
from sandboxd.cli.output import warn
from sandboxd_client import SandboxdError, programs
from sandboxd_client.wire import location
from sandboxd_client.wire.messages.hello import PROTOCOL

REMOTE: Final = Option("--remote", "those of this machine, over ssh: HOST, USER@HOST or a name of ssh's", value="HOST")
ASK: Final = "sandboxd status --json"
STAY: Final = "echo sandboxd-forwards; exec cat"
_READY: Final = b"sandboxd-forwards"
_LONGEST: Final = 1 << 20
_END_S: Final = 5.0


class RemoteError(SandboxdError):
    """The daemon of another machine cannot be used."""


@contextlib.contextmanager
def forwarded(host: str, ssh: str = "") -> Iterator[str]:
    """Yield the path of a socket here that leads to the daemon of `host`.

    `ssh` is the program, by default that of the system. Raises UsageError, RemoteError."""
    if not host or host.startswith("-") or not host.isprintable() or " " in host:
        raise UsageError(f"--remote: {visible(host, 60)!r} is not a host", "write HOST or USER@HOST")
    found = programs.find("ssh")
    program = ssh or found.path
    if not program:
        why = found.why or "it is not installed"
        raise RemoteError("ssh_missing", f"--remote needs ssh: {why}", "install the OpenSSH client")
    remote = _socket_of(program, host)
    own = os.path.dirname(location.socket_path())  # which no command can reach
    with tempfile.TemporaryDirectory(prefix="ssh-", dir=own if os.path.isdir(own) else None) as directory:
        local = os.path.join(directory, "sandboxd.sock")
        with _forwarding(program, host, local, remote):
            yield local


def _argv(program: str, host: str, line: str, *options: str) -> list[str]:
    """Return the argv of ssh, without a connection that other ssh programs share, which would outlive this one."""
    return [program, "-T", "-S", "none", "-o", "ExitOnForwardFailure=yes", *options, "--", host, line]


def _socket_of(program: str, host: str) -> str:
    """Ask for the daemon's socket and version there. Raises RemoteError."""
    try:
        done = subprocess.run(_argv(program, host, ASK), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise RemoteError("ssh_failed", f"{program} does not start: {error.strerror}") from None
    status = _status(done.stdout[:_LONGEST])
    if status is None:
        hint = f"try: ssh {host} {ASK}; sandboxd must be in the PATH of ssh commands there"
        raise RemoteError("ssh_failed", f"{host} does not tell of its daemon (ssh ended with {done.returncode})", hint)
    if not status.get("running"):
        raise RemoteError("daemon_not_running", f"no daemon runs on {host}", f"run: ssh {host} sandboxd start")
    if status.get("protocol") != PROTOCOL:
        theirs = visible(f"version {status.get('version')}, protocol {status.get('protocol')}", 60)
        message = f"the daemon on {host} is {theirs}; this program speaks protocol {PROTOCOL}"
        raise RemoteError("wrong_version", message, "use the same version of sandboxd on both machines")
    if status.get("version") != __version__:
        warn(f"the daemon on {host} is version {visible(str(status.get('version')), 40)}, this program {__version__}")
    path = status.get("socket")
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable() or ":" in path or " " in path:
        message = f"the socket of the daemon on {host} has a path that ssh cannot forward"
        raise RemoteError("ssh_failed", message, "set SANDBOXD_SOCKET there to a path without spaces and colons")
    return path


def _status(output: bytes) -> dict[str, Any] | None:
    """Return the object in the output, which start-up files of a shell may have written before."""
    text = output.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text[text.index("{") :])
        return found if isinstance(found, dict) else None
    return None


@contextlib.contextmanager
def _forwarding(program: str, host: str, local: str, remote: str) -> Iterator[None]:
    argv = _argv(program, host, STAY, "-L", f"{local}:{remote}")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=False) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            while (line := process.stdout.readline(4096)) and _READY not in line:
                continue
            if not line:
                hint = "its sshd must allow the forwarding of Unix sockets (AllowStreamLocalForwarding)"
                raise RemoteError("ssh_failed", f"ssh forwards nothing from {host}", hint)
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
