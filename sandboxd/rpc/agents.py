"""Agents behind callers: the processes for which `--session auto` keeps a session.

Only ancestors of the caller count, each by process number and start time, so no caller finds the session of a program
that has not started it. Their names, as the kernel has them, say only which of them are passed over."""

from __future__ import annotations

import sys

from sandboxd.errors import CallerError
from sandboxd.processes import Process, ancestors_of, names_of

AGENTS = frozenset("aider amp claude codex copilot crush cursor-agent gemini goose opencode qwen".split())
"""Programs that are agents, wherever they are above the caller: their hooks are not."""
SHELLS = frozenset("ash bash busybox csh dash elvish fish ksh ksh93 mksh nu sh tcsh xonsh yash zsh".split())
GO_BETWEENS = SHELLS | frozenset(
    "chrt doas env flock ionice nice nohup parallel sandboxd script setpriv setsid stdbuf strace su sudo time timeout "
    "xargs".split()
)
"""Programs that run another one."""
SURROUNDINGS = frozenset(
    "init systemd sshd sshd-session sshd-auth login screen tmux dtach zellij xterm alacritty kitty konsole foot "
    "gnome-terminal- gnome-terminal-server wezterm-gui containerd-shim containerd-shim-runc-v2 runc crun conmon "
    "docker-init tini".split()
)
"""Programs around a shell of a person, or around everything: nothing above them is an agent."""


def agent_of(caller: Process) -> Process:
    """Return the nearest agent of the ancestors. Raises CallerError `agent_unknown`.

    That is a known agent, else the nearest program that is no go-between, else the outermost shell of a terminal."""
    nearest: Process | None = None
    shell: Process | None = None
    for process in ancestors_of(caller) if sys.platform == "linux" else ():
        names = frozenset(names_of(process[0]))
        if names & AGENTS:
            return process
        if process[0] == 1 or names & SURROUNDINGS:  # orphans of all programs are below process 1
            break
        if not names & GO_BETWEENS:
            nearest = nearest or process
        elif names & SHELLS:
            shell = process
    found = nearest or shell
    if found is None:
        raise CallerError(
            "agent_unknown",
            "no agent is among the processes that started this one",
            hint="name the session yourself: sandboxd run --session auto:KEY -- …",
        )
    return found
