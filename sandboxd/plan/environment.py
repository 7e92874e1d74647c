"""The environment of a sandboxed command: variables to set and to remove. Pure.

No value is a secret, since the user can read the environment of a process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from sandboxd.paths import is_below
from sandboxd.plan.request import Place
from sandboxd.policy.sockets.control_sockets import canonical_socket_path
from sandboxd.policy.sockets.socket_decisions import OpenSockets, decide_socket
from sandboxd.policy.sockets.socket_variables import SOCKET_VARIABLES, named_sockets
from sandboxd_client.records import dataclass, field

NO_PROXY = "localhost,127.0.0.1,::1,*.local"
_JAVA_NO_PROXY = "localhost|127.0.0.1|[::1]|*.local"

HTTP_NAMES = (
    "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy",
    "ALL_PROXY", "all_proxy", "GRPC_PROXY", "grpc_proxy", "FTP_PROXY", "ftp_proxy",
    "DOCKER_HTTP_PROXY", "DOCKER_HTTPS_PROXY",
)  # fmt: skip
"""Always `http://`: several HTTP libraries fail at start with a socks URL in these."""

FOREIGN_NAMES = (
    "npm_config_proxy", "npm_config_http_proxy", "npm_config_https_proxy", "npm_config_noproxy",
    "NPM_CONFIG_PROXY", "NPM_CONFIG_HTTP_PROXY", "NPM_CONFIG_HTTPS_PROXY", "NPM_CONFIG_NOPROXY",
    "YARN_PROXY", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY", "PIP_PROXY", "CARGO_HTTP_PROXY", "CGI_HTTP_PROXY",
    "GLOBAL_AGENT_HTTP_PROXY", "GLOBAL_AGENT_HTTPS_PROXY", "SOCKS_PROXY", "socks_proxy", "WS_PROXY", "WSS_PROXY",
    "CLOUDSDK_PROXY_USERNAME", "CLOUDSDK_PROXY_PASSWORD",
)  # fmt: skip
"""Variables with a proxy of one program, which precede the common names. They are removed: the proxy cannot be reached
from inside, and its URL may hold a password."""

JAVA_NAMES = ("JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "MAVEN_OPTS", "GRADLE_OPTS", "SBT_OPTS")
"""Java options that precede JAVA_TOOL_OPTIONS: their proxy properties are removed."""

CERTIFICATE_NAMES = (
    "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
    "PIP_CERT", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)  # fmt: skip
"""Variables with a file of certificate authorities. A program that cannot read it fails without a message."""

SOCKET_NAMES = tuple(variable.name for variable in SOCKET_VARIABLES)

_WITH_OPTIONS = ("JAVA_TOOL_OPTIONS", *JAVA_NAMES, "GIT_SSH_COMMAND", "GIT_SSH")
_WITH_ADDRESSES = ("XDG_RUNTIME_DIR", *SOCKET_NAMES, *CERTIFICATE_NAMES)
CALLER_NAMES = (*_WITH_OPTIONS, *_WITH_ADDRESSES)
"""The caller's variables whose values are used."""

_OPENSSH = re.compile(r"(?:^|[\s/'\"])ssh(?:\.exe)?(?:$|[\s'\"])")
_OWN_JAVA = re.compile(
    r"\s*-D(?:https?\.(?:proxyHost|proxyPort|proxyUser|proxyPassword|nonProxyHosts))=(?:\"[^\"]*\"|\S+)"
)


@dataclass(frozen=True, slots=True)
class EnvironmentChange:
    """Variables to remove (`unset`), and then to set."""

    set: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"EnvironmentChange(set={sorted(self.set)}, unset={list(self.unset)})"


def session_variables(tmp: str) -> dict[str, str]:
    """Return the variables of every command of a session, inside and outside."""
    return {"TMPDIR": tmp, "TMPPREFIX": f"{tmp}/zsh"}


def change_environment(
    place: Place, tmp: str, caller: Mapping[str, str], sockets: OpenSockets | None = None
) -> EnvironmentChange:
    """Return the change; variables that name sockets outside `sockets` are removed."""
    useless = () if sockets is None else _useless(caller, sockets)
    values: dict[str, str] = {"SANDBOX_RUNTIME": "1", **session_variables(tmp)}
    if not _names_a_socket(caller.get("XDG_RUNTIME_DIR", ""), sockets):
        values["XDG_RUNTIME_DIR"] = tmp  # as private, and writable
    port = place.http_port
    if port is None:
        return EnvironmentChange(values, (*HTTP_NAMES, "RSYNC_PROXY", *FOREIGN_NAMES, *useless))
    values |= _for_proxy(port)
    values["JAVA_TOOL_OPTIONS"] = _java(port, caller.get("JAVA_TOOL_OPTIONS", ""))
    if not place.captured and (ssh := _git_ssh(port, caller)) is not None:
        values["GIT_SSH_COMMAND"] = ssh
    for name in JAVA_NAMES:
        if _OWN_JAVA.search(caller.get(name, "")):
            values[name] = _OWN_JAVA.sub("", caller[name]).strip()
    return EnvironmentChange(values, (*FOREIGN_NAMES, *useless))


def _names_a_socket(directory: str, sockets: OpenSockets | None) -> bool:
    """Return whether an open socket may lie in the runtime directory, by whose name programs find it."""
    if sockets is None or not directory.startswith("/"):
        return False
    place = canonical_socket_path(directory)
    return sockets.everything or any(is_below(one.rule.path, place) for one in sockets.listed)


def _useless(caller: Mapping[str, str], sockets: OpenSockets) -> tuple[str, ...]:
    """Return the variables that name a denied socket, and their companions."""
    names: list[str] = []
    for variable, path in named_sockets(caller):
        if not _usable(path, sockets):
            names += [variable.name, *variable.companions]
    return tuple(names)


def _usable(path: str, sockets: OpenSockets) -> bool:
    """Judge by name, or by the target of a trusted rule with that name."""
    by_name = any(one.trusted and canonical_socket_path(path) == one.rule.path for one in sockets.listed)
    return by_name or decide_socket(path, sockets).allowed


def variables_with_addresses(caller: Mapping[str, str]) -> tuple[str | None, ...] | None:
    """Return the variables that a change depends on; None with such as may hold a secret, which are not kept."""
    if any(name in caller for name in _WITH_OPTIONS):
        return None
    return tuple(map(caller.get, _WITH_ADDRESSES))


def certificates_of(caller: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of `CERTIFICATE_NAMES` with an absolute path, and the path."""
    for name in CERTIFICATE_NAMES:
        if caller.get(name, "").startswith("/"):
            yield name, caller[name]


@lru_cache(maxsize=16)
def _for_proxy(port: int) -> Mapping[str, str]:
    return MappingProxyType(
        {
            **dict.fromkeys(HTTP_NAMES, f"http://127.0.0.1:{port}"),
            "NO_PROXY": NO_PROXY,
            "no_proxy": NO_PROXY,
            "RSYNC_PROXY": f"127.0.0.1:{port}",
            "CLOUDSDK_PROXY_TYPE": "http",
            "CLOUDSDK_PROXY_ADDRESS": "127.0.0.1",
            "CLOUDSDK_PROXY_PORT": str(port),
            "NODE_USE_ENV_PROXY": "1",
        }
    )


def _java(port: int, present: str) -> str:
    """Append proxy options, and remove proxy properties of the caller."""
    own = " ".join(
        (
            f"-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port}",
            f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port}",
            f"-Dhttp.nonProxyHosts={_JAVA_NO_PROXY}",
        )
    )
    kept = _OWN_JAVA.sub("", present).strip()
    return f"{kept} {own}" if kept else own


def _git_ssh(port: int, caller: Mapping[str, str]) -> str | None:
    """Return GIT_SSH_COMMAND with a ProxyCommand; None for another program than ssh.

    git runs the value with `sh -c` and appends the destination. ssh uses the first value of an option, so a
    ProxyCommand of the caller stays in force. The variable hides core.sshCommand, which may differ between
    repositories: without a GIT_SSH_COMMAND of the caller, the value asks git for it and runs the answer, as git does.
    """
    own = caller.get("GIT_SSH_COMMAND", "")
    program = caller.get("GIT_SSH") or "ssh"
    if not _OPENSSH.search(own or program):
        return None
    option = f"-o ProxyCommand={_proxy_option(port)}"
    if own:
        return f"{own} {option}"
    configured = f"$(git config --get core.sshCommand||echo {_quoted(_quoted(program))})"
    return f's(){{ set -- {option} "$@";eval "{configured} \\"\\$@\\"";}};s'


@lru_cache(maxsize=16)
def _proxy_option(port: int) -> str:
    return _quoted(_proxy_command(port))


def _proxy_command(port: int) -> str:
    """Return a CONNECT tunnel in bash, whose /dev/tcp needs no netcat.

    ssh replaces %h and %p. `read` takes a socket byte by byte, so what follows the head of the reply is left for cat.
    """
    script = (
        f"exec 3<>/dev/tcp/127.0.0.1/{port}||exit 1;"
        'printf "CONNECT %s:%s HTTP/1.1\\r\\nHost: %s:%s\\r\\n\\r\\n" "$0" "$1" "$0" "$1">&3;'
        "read -r l<&3;"
        'case "$l" in *" 200 "*);; *)echo "sandboxd: the proxy refused $0:$1: ${l%?}">&2;exit 1;;esac;'
        'while read -r l<&3&&[ "${l%?}" ];do :;done;'
        "cat<&3& exec cat>&3"
    )
    return "bash -c " + _quoted(script.replace("%", "%%")) + " %h %p"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
