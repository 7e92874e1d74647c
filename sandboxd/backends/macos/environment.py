"""The proxy ports and their password in a command's environment. Pure.

The rest is the table of `plan.environment`. ssh gets the password from the environment of its ProxyCommand: every user
can see arguments."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from sandboxd.backends.macos.tokens import USER, ProxyPassword
from sandboxd.plan.environment import HTTP_NAMES, change_environment
from sandboxd.plan.request import Place

AUTHORIZATION = "SANDBOXD_PROXY_AUTHORIZATION"
"""The header field for programs that write their own request, such as the ProxyCommand of ssh."""

_EVERYDAY = {
    "xcrun_db": "TMP/xcrun_db",
    "CLANG_MODULE_CACHE_PATH": "TMP/clang-modules",
    "SWIFTPM_MODULECACHE_OVERRIDE": "TMP/swift-modules",
    "HOMEBREW_AVOID_NESTED_SANDBOXING": "1",
}
"""Variables of Apple's tools and Homebrew, which otherwise write elsewhere or start a sandbox inside this one."""

_HEAD = r"CONNECT %%s:%%s HTTP/1.1\r\nHost: %%s:%%s\r\n\r\n"
_ARGUMENTS = '"$0" "$1" "$0" "$1"'


def private_name(place: Place) -> str:
    """Return the name of a session's directory in those that confstr(3) gives, which mktemp(1) and Foundation use."""
    directory, name = posixpath.split(place.session_tmp)
    return f"sandboxd-{posixpath.basename(directory)}-{name}"


def seatbelt_environment(
    place: Place, tmp: str, caller: Mapping[str, str], http_port: int, socks_port: int, password: ProxyPassword
) -> dict[str, str]:
    """Return all variables to set; those to remove are as in the plan."""
    placed = replace(place, http_port=http_port, socks_port=socks_port, captured=False)
    values = dict(change_environment(placed, tmp, caller).set)
    values |= {name: value.replace("TMP", tmp) for name, value in _EVERYDAY.items()}
    values["DIRHELPER_USER_DIR_SUFFIX"] = private_name(place)
    values["JAVA_TOOL_OPTIONS"] += f" -Djava.io.tmpdir={tmp} -Djava.net.preferIPv4Stack=true"
    authority = password.authority(http_port)
    values.update(dict.fromkeys(HTTP_NAMES, f"http://{authority}"))
    values.update(
        RSYNC_PROXY=authority,
        CLOUDSDK_PROXY_USERNAME=USER,
        CLOUDSDK_PROXY_PASSWORD=password.value,
        # `git init` and `git clone` copy sample hooks, which is refused; without a template they copy nothing
        GIT_TEMPLATE_DIR="",
    )
    values[AUTHORIZATION] = password.authorization
    if "GIT_SSH_COMMAND" in values:
        values["GIT_SSH_COMMAND"] = _with_password(values["GIT_SSH_COMMAND"])
    return values


def _with_password(command: str) -> str:
    """Add a header field to the ProxyCommand, whose value comes from the environment."""
    field = r"CONNECT %%s:%%s HTTP/1.1\r\nHost: %%s:%%s\r\nProxy-Authorization: %%s\r\n\r\n"
    return command.replace(_HEAD, field).replace(_ARGUMENTS, f'{_ARGUMENTS} "${AUTHORIZATION}"')
