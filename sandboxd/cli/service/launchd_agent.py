"""The launchd agent: what starts the daemon at login and when somebody connects (launchd.plist(5), launchctl(1)). Pure.

Its label is `dev.sandboxd.agent`, since macOS has a system service called sandboxd. launchd opens the socket and starts
the daemon, at the first connection or after a failure; `rpc.launchd_socket` takes the socket over. The socket's
directory is in $TMPDIR, which the system empties at a start: then launchd cannot open it, and the daemon, which is
started at login in any case, makes directory and socket itself.
"""

from __future__ import annotations

import plistlib
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

LAUNCHCTL = "/bin/launchctl"
LABEL = "dev.sandboxd.agent"
SOCKET_NAME = "rpc"
THROTTLE_S = 2
OPEN_FILES = 8192


@dataclass(frozen=True, slots=True)
class Agent:
    """What an agent is made from. `program` are the words that start the daemon, absolute ones."""

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
        """Where launchd keeps agents of a logged-in person."""
        return f"gui/{self.uid}"


KEPT_VARIABLES = ("PATH", "LANG", "SANDBOXD_CONFIG_HOME", "SANDBOXD_FLAG_SETTINGS", "SANDBOXD_LOG_LEVEL")
"""Of the environment in which the agent was installed. launchd gives a program next to nothing."""


def agent_plist(agent: Agent) -> bytes:
    """The property list. Nothing in it is a secret."""
    variables = {name: agent.environment[name] for name in KEPT_VARIABLES if agent.environment.get(name)}
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": [*agent.program, "serve"],
            "EnvironmentVariables": {"HOME": agent.home, **variables},
            # At login (see above), by the first connection, and again after a failure. An end in good order is an end.
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": THROTTLE_S,
            "Sockets": {
                SOCKET_NAME: {
                    "SockFamily": "Unix",
                    "SockType": "stream",
                    "SockPathName": agent.socket,
                    "SockPathMode": 0o600,  # plistlib writes a decimal, which is what launchd reads
                }
            },
            "ProcessType": "Interactive",  # commands of a person wait for it: no throttling of its processor and disk
            "Umask": 0o077,
            "WorkingDirectory": "/",
            "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "HardResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "StandardErrorPath": agent.log_path,
            "StandardOutPath": agent.log_path,
        },
        sort_keys=True,
    )


def install_commands(agent: Agent) -> tuple[tuple[str, ...], ...]:
    """What to run once the file is in its place. The first one may fail: nothing was there to be removed."""
    return (
        (LAUNCHCTL, "bootout", f"{agent.domain}/{LABEL}"),
        (LAUNCHCTL, "bootstrap", agent.domain, agent.plist_path),
        (LAUNCHCTL, "enable", f"{agent.domain}/{LABEL}"),
    )


def uninstall_commands(agent: Agent) -> tuple[tuple[str, ...], ...]:
    """What to run before the file is removed."""
    return ((LAUNCHCTL, "bootout", f"{agent.domain}/{LABEL}"),)


def status_command(agent: Agent) -> tuple[str, ...]:
    """Its status is 0 when launchd knows the agent; what it prints is for people."""
    return (LAUNCHCTL, "print", f"{agent.domain}/{LABEL}")
