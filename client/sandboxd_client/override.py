"""`run(..., on_violation="ask")`: after a run in which something was blocked, people are asked whether the command may
run once outside the sandbox. Nothing but a person's yes makes it run there. No I/O; both clients use it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandboxd_client.commands import absolute
from sandboxd_client.completed import Completed, Override
from sandboxd_client.errors import SandboxdError
from sandboxd_client.launching import Command, Launch, approved_launch, command_line

if TYPE_CHECKING:
    from sandboxd_client.wire.messages.prompts import PermissionRequestResult


def wants_question(options: Mapping[str, Any]) -> bool:
    """Whether `run` is to ask. Raises ValueError for a value it does not know, and where the command could not be run
    a second time."""
    value = options.get("on_violation")
    if value is None:
        return False
    if value != "ask":
        raise ValueError(f"on_violation is 'ask' or None, not {value!r}")
    if options.get("stdin") not in (None, subprocess.DEVNULL):
        raise ValueError("on_violation='ask' may run the command twice, and stdin can be read once: use input=")
    return True


def question(command: Command, options: Mapping[str, Any], done: Completed) -> dict[str, Any]:
    """The keyword arguments of `permission_request`, beside its kind."""
    assert done.wrap is not None, "without a sandbox nothing is blocked"
    return {
        "session_id": options.get("session_id"),
        "cwd": absolute(options.get("cwd")),
        "command": command_line(command),
        "command_id": options.get("command_id") or done.wrap.wrap_id,
        "reason": f"it ended with status {done.returncode} in the sandbox",
    }


def launch_outside(command: Command, options: Mapping[str, Any], answer: PermissionRequestResult) -> Launch | None:
    """What to spawn after a yes of a person; None after every other answer. A yes that is said to be the policy's is
    none: policy does not give it."""
    if answer.behavior != "allow" or answer.by in (None, "policy"):
        return None
    return approved_launch(command, options, absolute(options.get("cwd")), answer.env)


def told(
    done: Completed, answer: PermissionRequestResult | SandboxdError, inside: Completed | None = None
) -> Completed:
    """`done`, which is the result, with what became of the question."""
    if isinstance(answer, SandboxdError):
        done.override = Override(False, f"nobody could be asked: {answer.message}", hint=answer.hint)
    else:
        done.override = Override(inside is not None, answer.text, answer.by, answer.hint, inside)
    return done
