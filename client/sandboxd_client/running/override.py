"""`on_violation="ask"`: a second run outside the sandbox after a user's yes.

Both clients use it. No I/O."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from sandboxd_client.errors import SandboxdError
from sandboxd_client.running.commands import absolute
from sandboxd_client.running.completed import Completed, Override
from sandboxd_client.running.launching import Command, Launch, approved_launch, command_line
from sandboxd_client.wire.messages.prompts import PermissionRequestResult


def wants_question(options: Mapping[str, Any]) -> bool:
    """Return whether `run` asks. Raises ValueError where it cannot."""
    value = options.get("on_violation")
    if value is None:
        return False
    if value != "ask":
        raise ValueError(f"on_violation is 'ask' or None, not {value!r}")
    if options.get("stdin") not in (None, subprocess.DEVNULL):
        raise ValueError("on_violation='ask' may run the command twice, and stdin can be read once: use input=")
    return True


def question(command: Command, options: Mapping[str, Any], done: Completed[Any]) -> dict[str, Any]:
    """Return the keyword arguments of `permission_request`, without its kind."""
    assert done.wrap is not None, "there are no violations without a sandbox"
    return {
        "session_id": options.get("session_id"),
        "cwd": absolute(options.get("cwd")),
        "command": command_line(command),
        "command_id": options.get("command_id") or done.wrap.wrap_id,
        "reason": f"it ended with status {done.returncode} in the sandbox",
    }


def launch_outside(command: Command, options: Mapping[str, Any], answer: PermissionRequestResult) -> Launch | None:
    """Return the bare launch after a user's yes, else None."""
    if answer.behavior != "allow" or answer.by in (None, "policy"):  # policy gives no such yes
        return None
    return approved_launch(command, options, absolute(options.get("cwd")), answer.env)


def with_answer(
    done: Completed[Any], answer: PermissionRequestResult | SandboxdError, inside: Completed[Any] | None = None
) -> Completed[Any]:
    """Return `done` with the answer to the prompt."""
    if isinstance(answer, SandboxdError):
        done.override = Override(False, f"the prompt failed: {answer.message}", hint=answer.hint)
    else:
        done.override = Override(inside is not None, answer.text, answer.by, answer.hint, inside)
    return done
