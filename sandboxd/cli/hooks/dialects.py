"""The hooks of agents: where each one reads them, and its documents (facts from the documentation of each). Pure.

An agent starts the hook with a document on standard input and obeys the one on standard output. Exit status 2 refuses
the call in all of them; any other failure lets it through, so every command line of a hook ends in `|| exit 2`."""

from __future__ import annotations

import os
import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Dialect:
    """The hooks of one agent.

    `settings` is the path of its file below the home directory, `project` that of a file for one project and one
    machine. `events` are that before a call and those after one; `tool` is the name of the tool that runs shell lines.
    `form` says how the file names hooks: in groups with a matcher, flat, or as a plug-in that calls them. `note` is
    what the user has to do in the agent after an installation.
    """

    __slots__ = ("answers", "events", "form", "name", "note", "project", "settings", "timeout", "title", "tool")

    def __init__(
        self,
        name: str,
        title: str,
        settings: str,
        project: str,
        tool: str,
        events: tuple[str, ...],
        *,
        timeout: int,
        answers: str,
        form: str = "groups",
        note: str = "",
    ) -> None:
        self.name = name
        self.title = title
        self.settings = settings
        self.project = project
        self.tool = tool
        self.events = events
        self.timeout = timeout
        self.answers = answers
        self.form = form
        self.note = note

    def file(self, home: str, project: str | None) -> str:
        return os.path.join(home, self.settings) if project is None else os.path.join(project, self.project)

    def line(self, program: Sequence[str]) -> str:
        """Return the command line of the hook, which refuses the call when the program cannot answer."""
        return f"{shlex.join(program)} hook run {self.name} || exit 2"

    def decision(self, verdict: Verdict) -> dict[str, Any]:
        """Return the answer to the event before a call."""
        return _ANSWERS[self.answers](self.events[0], verdict)

    def context(self, event: str, text: str) -> dict[str, Any]:
        """Return the answer to an event after a call: `text` is for the model."""
        if self.form != "groups":
            return {"additional_context": text}
        return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


class Verdict:
    """The answer to a call.

    `behavior` is allow, ask, deny, or None for the agent's own rules. `input` replaces the arguments of the tool."""

    __slots__ = ("behavior", "input", "reason")

    def __init__(self, behavior: str | None, reason: str, input: dict[str, Any] | None = None) -> None:
        self.behavior = behavior
        self.reason = reason
        self.input = input


_CANNOT_ASK = "the hooks of this agent cannot ask, so run it yourself, or: sandboxd exclude add PATTERN"


def _claude(event: str, verdict: Verdict) -> dict[str, Any]:
    output: dict[str, Any] = {"hookEventName": event}
    if verdict.behavior is not None:
        output.update(permissionDecision=verdict.behavior, permissionDecisionReason=verdict.reason)
    if verdict.input is not None:
        output["updatedInput"] = verdict.input
    return {"hookSpecificOutput": output}


def _codex(event: str, verdict: Verdict) -> dict[str, Any]:
    """As Claude Code, but its hooks ask no questions, and replace an input only where they allow the call."""
    if verdict.behavior == "ask":
        verdict = Verdict("deny", f"{verdict.reason}; {_CANNOT_ASK}")
    return {} if verdict.behavior is None else _claude(event, verdict)


def _gemini(event: str, verdict: Verdict) -> dict[str, Any]:
    if verdict.behavior == "ask":
        return {"decision": "deny", "reason": f"{verdict.reason}; {_CANNOT_ASK}"}
    if verdict.behavior == "deny":
        return {"decision": "deny", "reason": verdict.reason}
    replaced = {} if verdict.input is None else {"hookEventName": event, "tool_input": verdict.input}
    return {"hookSpecificOutput": replaced} if replaced else {}


def _cursor(event: str, verdict: Verdict) -> dict[str, Any]:
    """`permission`, and the input in place of the tool's; a question here would be taken for a yes."""
    if verdict.behavior == "ask":
        verdict = Verdict("deny", f"{verdict.reason}; {_CANNOT_ASK}")
    answer: dict[str, Any] = {} if verdict.input is None else {"updated_input": verdict.input}
    if verdict.behavior is not None:
        answer["permission"] = verdict.behavior
    if verdict.behavior == "deny":
        answer.update(user_message=verdict.reason, agent_message=verdict.reason)
        answer.pop("updated_input", None)
    return answer


_ANSWERS = {"claude": _claude, "codex": _codex, "gemini": _gemini, "cursor": _cursor}

DIALECTS = (
    Dialect(
        "claude",
        "Claude Code",
        ".claude/settings.json",
        ".claude/settings.local.json",
        "Bash",
        ("PreToolUse", "PostToolUse", "PostToolUseFailure"),
        timeout=30,
        answers="claude",
    ),
    Dialect(
        "codex",
        "Codex",
        ".codex/hooks.json",
        ".codex/hooks.json",
        "Bash",
        ("PreToolUse", "PostToolUse"),
        timeout=30,
        answers="codex",
        note="Codex skips a hook, and runs its commands outside, until you trust it there: type /hooks",
    ),
    Dialect(
        "gemini",
        "Gemini CLI",
        ".gemini/settings.json",
        ".gemini/settings.json",
        "run_shell_command",
        ("BeforeTool", "AfterTool"),
        timeout=30_000,
        answers="gemini",
    ),
    Dialect(
        "cursor",
        "Cursor",
        ".cursor/hooks.json",
        ".cursor/hooks.json",
        "Shell",
        ("preToolUse", "postToolUse"),
        timeout=30,
        answers="cursor",
        form="flat",
    ),
    Dialect(
        "opencode",
        "opencode",
        ".config/opencode/plugins/sandboxd.js",
        ".opencode/plugins/sandboxd.js",
        "bash",
        ("tool.execute.before", "tool.execute.after"),
        timeout=30,
        answers="cursor",
        form="plugin",
    ),
)

PLUGIN = """\
// Written by: sandboxd hook install opencode. Shell commands run in the sandbox.
import { spawn } from "node:child_process";

const hook = (event) =>
  new Promise((resolve, reject) => {
    const child = spawn("/bin/sh", ["-c", LINE], { stdio: ["pipe", "pipe", "inherit"] });
    let text = "";
    child.stdout.setEncoding("utf8").on("data", (data) => (text += data));
    child.on("error", reject);
    child.stdin.on("error", () => {});
    child.on("close", (status) => {
      try {
        if (status !== 0) throw new Error(`status ${status}`);
        resolve(JSON.parse(text));
      } catch (error) {
        reject(new Error(`sandboxd: the hook gave no answer: ${error.message}`));
      }
    });
    child.stdin.end(JSON.stringify(event));
  });

export const Sandboxd = async ({ directory }) => {
  const event = (name, { tool, sessionID, callID }, args) => ({
    hook_event_name: name, tool_name: tool, tool_input: args, tool_use_id: callID,
    session_id: sessionID, cwd: directory,
  });
  return {
    "tool.execute.before": async (input, output) => {
      if (input.tool !== "bash") return;
      const answer = await hook(event("tool.execute.before", input, output.args));
      if (answer.permission === "deny") throw new Error(answer.agent_message);
      if (!answer.updated_input) throw new Error("sandboxd: the hook gave no command");
      Object.assign(output.args, answer.updated_input);
    },
    "tool.execute.after": async (input, output) => {
      if (input.tool !== "bash") return;
      const answer = await hook(event("tool.execute.after", input, input.args ?? {})).catch(() => ({}));
      if (answer.additional_context) output.output += `\\n${answer.additional_context}`;
    },
  };
};
"""
"""The plug-in of opencode, in which LINE is the command line of the hook as JSON."""
