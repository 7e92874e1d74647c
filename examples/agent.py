"""An agent with one tool, a shell in the sandbox: `python examples/agent.py COMMAND…`.

`FakeModel` stands where a real model is called. It does what `policy_describe` tells a model: it runs each command
inside, and with evidence of the sandbox once more outside, in the same turn. The user answers from another process:
`sandboxd prompts` in a terminal, or examples/approve.py."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from sandboxd_client import ApprovalRequired, Client, CommandDenied, Session

FLAG = "dangerously_disable_sandbox"


@dataclass
class FakeModel:
    """A model that wants one command run; `reply` returns its next tool call, or None when it is done."""

    system: str
    command: str

    def reply(self, messages: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not messages:
            return {"command": self.command}
        last = messages[-1]
        evidence = last["status"] != 0 and "<sandbox_violations>" in last["output"]
        if evidence and last["sandboxed"] and FLAG in self.system and len(messages) == 1:
            return {"command": self.command, FLAG: True}
        return None


def shell(session: Session, call: dict[str, Any]) -> dict[str, Any]:
    """Run one call of the tool. The daemon decides, and asks the user where it has to."""
    try:
        done = session.run(
            call["command"],
            decide=True,
            dangerously_disable_sandbox=bool(call.get(FLAG)),
            capture_output=True,
            text=True,
        )
    except (CommandDenied, ApprovalRequired) as refusal:
        return {"status": None, "sandboxed": None, "output": f"not run: {refusal.message}"}
    # The output ends with a block of what was blocked, for the model.
    return {"status": done.returncode, "sandboxed": done.sandboxed, "output": done.stdout + done.stderr}


def turn(session: Session, command: str) -> list[dict[str, Any]]:
    """Let the model work on one command; return the calls with their results."""
    model = FakeModel(session.policy_describe(flag_name=FLAG).text, command)
    messages: list[dict[str, Any]] = []
    while (call := model.reply(messages)) is not None:
        messages.append({"call": call, **shell(session, call)})
    return messages


def main() -> None:
    with Client(role="agent") as box, box.session(name="example agent") as session:
        for command in sys.argv[1:]:
            print(json.dumps(turn(session, command)), flush=True)


if __name__ == "__main__":
    main()
