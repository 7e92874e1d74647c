"""The launchd agent that starts the daemon (launchd.plist(5)). Pure.

The label is `dev.sandboxd.agent`, since macOS has a system service called sandboxd. launchd opens the socket and starts
the daemon at login, at the first connection and after a failure; `rpc.launchd_socket` takes the socket over. Nothing
cleans up in the directory of the socket."""

from __future__ import annotations

import plistlib
import posixpath
from collections.abc import Mapping

from sandboxd_client.records import dataclass

LAUNCHCTL = "/bin/launchctl"
LABEL = "dev.sandboxd.agent"
SOCKET_NAME = "rpc"
THROTTLE_S = 2
OPEN_FILES = 8192


@dataclass(frozen=True, slots=True)
class Agent:
    """The inputs of an agent; `program` is the absolute argv of the daemon."""

    program: tuple[str, ...]
    home: str
    socket: str
    uid: int
    environment: Mapping[str, str]

    @property
    def plist_path(self) -> str:
        return posixpath.join(self.home, "Library", "LaunchAgents", f"{LABEL}.plist")

    @property
    def log_path(self) -> str:
        return posixpath.join(self.home, "Library", "Logs", "sandboxd", "agent.log")

    @property
    def domain(self) -> str:
        """The launchd domain of a logged-in user."""
        return f"gui/{self.uid}"


KEPT_VARIABLES = ("PATH", "LANG", "SANDBOXD_CONFIG_HOME", "SANDBOXD_FLAG_SETTINGS", "SANDBOXD_LOG_LEVEL")
"""Variables of the installing shell that the agent keeps. launchd sets next to none."""


def agent_plist(agent: Agent) -> bytes:
    """Return the property list, which holds no secret."""
    variables = {name: agent.environment[name] for name in KEPT_VARIABLES if agent.environment.get(name)}
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": [*agent.program, "serve"],
            "EnvironmentVariables": {"HOME": agent.home, **variables},
            # Start at login, at the first connection and after a failure, but not after a regular exit.
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": THROTTLE_S,
            "Sockets": {
                SOCKET_NAME: {
                    "SockFamily": "Unix",
                    "SockType": "stream",
                    "SockPathName": agent.socket,
                    "SockPathMode": 0o600,  # plistlib writes a decimal number, as launchd expects
                }
            },
            "ProcessType": "Interactive",  # the user waits for it: no throttling of processor and disk
            "Umask": 0o077,
            "WorkingDirectory": "/",
            "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "HardResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "StandardErrorPath": agent.log_path,
            "StandardOutPath": agent.log_path,
        },
        sort_keys=True,
    )


BUSY = (5, 37)
"""Statuses of `bootstrap` for some seconds after `bootout`: the old agent is not gone yet."""
BUSY_FOR_S = 15.0


def install_commands(agent: Agent) -> tuple[tuple[str, ...], ...]:
    """Return the commands after the file is written; the first one may fail, the last one be `BUSY`.

    An agent that was disabled once is not accepted before `enable`."""
    return (
        (LAUNCHCTL, "bootout", f"{agent.domain}/{LABEL}"),
        (LAUNCHCTL, "enable", f"{agent.domain}/{LABEL}"),
        (LAUNCHCTL, "bootstrap", agent.domain, agent.plist_path),
    )


def uninstall_commands(agent: Agent) -> tuple[tuple[str, ...], ...]:
    """Return the commands before the file is removed."""
    return ((LAUNCHCTL, "bootout", f"{agent.domain}/{LABEL}"),)


def status_command(agent: Agent) -> tuple[str, ...]:
    """Return the command that exits with 0 when launchd knows the agent."""
    return (LAUNCHCTL, "print", f"{agent.domain}/{LABEL}")
