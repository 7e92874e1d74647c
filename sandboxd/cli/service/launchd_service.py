"""`sandboxd service` on macOS: a launchd agent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

from sandboxd.cli.output import fail
from sandboxd.cli.service.launchd_agent import (
    BUSY,
    BUSY_FOR_S,
    LABEL,
    Agent,
    agent_plist,
    install_commands,
    status_command,
    uninstall_commands,
)
from sandboxd_client.transport.connection import usable_path
from sandboxd_client.wire.location import make_directory

RETRY_S = 0.5


def own_agent() -> Agent:
    """Return the agent that runs this program by its interpreter."""
    return Agent(
        program=(sys.executable, "-I", "-m", "sandboxd"),
        home=os.path.expanduser("~"),
        socket=usable_path(),
        uid=os.getuid(),
        environment=dict(os.environ),
    )


def install(agent: Agent) -> int:
    """Install the agent, in the place of an older one."""
    try:
        make_directory(agent.socket)
        os.makedirs(os.path.dirname(agent.plist_path), exist_ok=True)
        os.makedirs(os.path.dirname(agent.log_path), mode=0o700, exist_ok=True)
        new = f"{agent.plist_path}.new"
        with open(new, "wb") as file:
            file.write(agent_plist(agent))
        os.replace(new, agent.plist_path)
    except OSError as error:
        return fail(f"cannot write {agent.plist_path}: {error.strerror}", "check the owner of ~/Library")
    forget, *steps = install_commands(agent)
    _launchctl(forget)
    for words in steps:
        done = _launchctl(words)
        until = time.monotonic() + BUSY_FOR_S
        while done.returncode in BUSY and time.monotonic() < until:
            time.sleep(RETRY_S)
            done = _launchctl(words)
        if done.returncode:
            return fail(f"{' '.join(words)}: {_last_line(done)}", f"see the agent: plutil -p {agent.plist_path}")
    sys.stdout.write(f"installed: {agent.plist_path}\nlog: {agent.log_path}\n")
    return 0


def uninstall(agent: Agent) -> int:
    """Remove the agent, and end its daemon."""
    for words in uninstall_commands(agent):
        _launchctl(words)
    existed = False
    with contextlib.suppress(FileNotFoundError):
        os.unlink(agent.plist_path)
        existed = True
    sys.stdout.write(f"removed: {agent.plist_path}\n" if existed else "no agent was installed\n")
    return 0


def status(agent: Agent) -> int:
    """Print the state; return 0 when the file exists and launchd knows the agent."""
    installed = os.path.exists(agent.plist_path)
    known = _launchctl(status_command(agent)).returncode == 0
    sys.stdout.write(
        f"{agent.plist_path}: {'present' if installed else 'absent'}\n"
        f"launchd: {'knows' if known else 'does not know'} {LABEL}\n"
        f"socket: {agent.socket}\n"
    )
    return 0 if installed and known else 1


def _launchctl(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", error.strerror or str(error))


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"status {done.returncode}"
