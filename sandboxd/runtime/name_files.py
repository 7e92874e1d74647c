"""Name service files of a sandbox: resolv.conf(5), hosts(5), nsswitch.conf(5).

Written once per daemon; nsswitch.conf only where the host's says something else."""

from __future__ import annotations

import os
import re
from typing import Final

from sandboxd.errors import HostError
from sandboxd.policy.hosts.host_patterns import HostSyntaxError, parse_host

RESOLV_CONF: Final = "/etc/resolv.conf"
HOSTS: Final = "/etc/hosts"
NSSWITCH: Final = "/etc/nsswitch.conf"
_WAYS: Final = "files dns"
_USUAL: Final = (["files", "dns"], ["files", "myhostname", "dns"], ["files", "dns", "myhostname"])
_HOSTS_LINE: Final = re.compile(r"^[ \t]*hosts[ \t]*:.*$", re.MULTILINE)


def resolv_conf(machine: str) -> str:
    """resolv.conf with the name server on loopback and no search domain.

    Without a list of search domains a C library makes one of the machine's name, and would ask for every short name
    with it first; `.` is the empty one."""
    search = "search .\n" if "." in machine.strip(".") else ""
    return f"# the name service of the sandbox; the rules of its policy decide\nnameserver 127.0.0.1\n{search}"


def hosts(machine: str) -> str:
    """Return /etc/hosts with loopback and the machine itself.

    `machine` is what uname(2) calls it; left out when it is no host name."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    try:
        host = parse_host(machine)
    except HostSyntaxError:
        host = None
    if host is not None and host.address is None and host.name != "localhost":
        short = host.name.partition(".")[0]
        lines.append(f"127.0.0.1 {host.name}" + (f" {short}" if short != host.name else ""))
    return "\n".join(lines) + "\n"


def nsswitch(text: str) -> str | None:
    """The host's nsswitch.conf with host names from files and DNS only, or None.

    None when it says so already. Services with a socket or bus of their own (resolve, mdns, sss) would be asked in
    vain, or in place of the rules where a rule allows the socket."""
    lines = _HOSTS_LINE.findall(text)
    usual = [line.partition(":")[2].partition("#")[0].split() in _USUAL for line in lines]
    if not text or usual == [True]:
        return None
    return _HOSTS_LINE.sub("", text).rstrip("\n") + f"\nhosts: {_WAYS}\n"


def read_nsswitch(path: str = NSSWITCH) -> str:
    """Read the host's nsswitch.conf, empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def write_name_files(
    directory: str, machine: str, hosts_nsswitch: str = "", *, inherited: bool = False
) -> tuple[tuple[str, str], ...]:
    """Write the name files; return (path inside, file) of each.

    In an `inherited` directory, equal files of the earlier daemon stay: running sandboxes have them mounted. Raises
    HostError."""
    texts = {RESOLV_CONF: resolv_conf(machine), HOSTS: hosts(machine), NSSWITCH: nsswitch(hosts_nsswitch)}
    written = []
    for path, text in texts.items():
        if text is None:
            continue
        file = os.path.join(directory, os.path.basename(path))
        try:
            if not (inherited and _replaced(file, text)):
                _write(file, text)
        except OSError as error:
            raise HostError(
                "temporary_directory",
                f"cannot write {file}: {error.strerror}",
                hint="check the free space of that file system",
            ) from error
        written.append((path, file))
    return tuple(written)


def _write(file: str, text: str) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), "w") as opened:
        opened.write(text)


def _replaced(file: str, text: str) -> bool:
    """Replace the content of an existing file; return whether it exists."""
    try:
        with open(file) as found:
            if found.read() == text:
                return True
    except FileNotFoundError:
        return False
    _write(f"{file}.new", text)
    os.rename(f"{file}.new", file)
    return True
