"""`sandboxd session`: sessions that outlive their connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from sandboxd.cli.arguments import JSON, NO_AUTOSTART, Help, Option, Parsed, UsageError, suggestion, visible
from sandboxd.cli.control.status import counted, duration
from sandboxd.cli.daemon_client import client, print_json
from sandboxd.cli.output import note, warn
from sandboxd_client import Client
from sandboxd_client.running.commands import SESSION_VARIABLE

SYNTAX = "session (start | list | end ID… | shell [ID])"
SUMMARY = """Keep one session for many commands: they share /tmp, localhost, grants and violations.

  start       open a session and print its id
  list        list the sessions of all clients
  end ID…     end sessions with their commands, by id or name
  shell [ID]  start your shell, with $SANDBOXD_SESSION for `sandboxd run` and agents in it.
              The shell itself is not in the sandbox. Without ID the session ends with it"""
_ACTIONS = ("start", "list", "end", "shell")
HELP = Help(
    SYNTAX,
    SUMMARY,
    (
        Option("--name", "start, shell: the name of the new session", value="NAME"),
        Option("--cwd", "start, shell: the directory of its project", value="DIR"),
        Option("--settings", "start, shell: settings of the new session: a path, or an object as JSON", value="FILE"),
        Option(
            "--permission-mode",
            "start, shell: prompt (the default), open, plan (write temporary files only) or none",
            value="MODE",
            only=("prompt", "open", "plan", "none"),
        ),
        JSON,
        NO_AUTOSTART,
    ),
    ("session start --name web", "session shell", "session end web"),
    words=_ACTIONS,
)
SHELLS = ("/bin/bash", "/bin/sh")


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    action, *rest = [*parsed.words, *(parsed.command or ())] or [""]
    if action not in _ACTIONS:
        message = f"unknown session command {visible(action)}" if action else "session needs a command"
        raise UsageError(message, suggestion(action, _ACTIONS))
    if len(rest) > {"end": sys.maxsize, "shell": 1}.get(action, 0):
        raise UsageError(f"unexpected word {visible(rest[-1], 60)}")
    if action == "end" and not rest:
        raise UsageError("session end needs the id or name of a session", "list them with: sandboxd session list")
    with client(parsed) as box:
        if action == "list":
            return _list(box, parsed)
        if action == "end":
            for name in rest:
                ended = box.session_close(name).commands_ended
                note(f"sandboxd: session {name} has ended, with {counted(ended, 'command')}")
            return 0
        session_id = rest[0] if rest else _open(box, parsed)
        if action == "start":
            print_json({"session_id": session_id}) if "json" in parsed else sys.stdout.write(f"{session_id}\n")
            return 0
        try:
            return _shell(session_id)
        finally:
            if not rest:
                box.session_close(session_id)


def _open(box: Client, parsed: Parsed) -> str:
    settings = parsed.get("settings")
    if settings is not None and settings.startswith("{"):
        try:
            settings = json.loads(settings)
        except ValueError as error:
            raise UsageError(f"--settings: the object is no valid JSON: {error}") from None
    mode, name = parsed.get("permission_mode"), parsed.get("name")
    opened = box.session_open(parsed.get("cwd"), name=name, settings=settings, permission_mode=mode, detach=True)
    for warning in opened.warnings:
        warn(warning)
    return opened.session_id


def _shell(session_id: str) -> int:
    """Run the user's shell to its end. Signals of the terminal are the shell's."""
    shells = filter(None, (os.environ.get("SHELL"), *SHELLS))
    shell = next(path for path in shells if os.access(path, os.X_OK))
    note(f"sandboxd: this shell is not in the sandbox; `sandboxd run` in it uses the session {session_id}")
    child = subprocess.Popen([shell], env={**os.environ, SESSION_VARIABLE: session_id})
    while True:
        try:
            status = child.wait()
            return 128 - status if status < 0 else status
        except KeyboardInterrupt:
            continue


def _list(box: Client, parsed: Parsed) -> int:
    found = box.session_list()
    if "json" in parsed:
        print_json(found)
        return 0
    for one in found.sessions:
        age, kind = duration(time.time() - one.opened_at), "connection" if not one.detached else "detached"
        kind = f"agent {one.agent}" if one.agent is not None else kind
        state = f"{kind}, for {age}, {one.commands} running, {one.violations} blocked"
        sys.stdout.write(visible(f"{one.session_id}  {one.name or '-'}  {state}  {one.cwd}", 2000) + "\n")
    return 0
