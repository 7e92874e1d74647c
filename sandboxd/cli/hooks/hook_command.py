"""`sandboxd hook`: hooks that put the shell commands of an agent into its sandbox."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from sandboxd.cli.arguments import Help, Option, UsageError, suggestion, visible
from sandboxd.cli.hooks.dialects import DIALECTS, PLUGIN, Dialect
from sandboxd.cli.hooks.installing import refuse_opened, write_file
from sandboxd.cli.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TERMINALS = ("vscode-terminal", "zed-terminal")
AGENTS = {dialect.name: dialect for dialect in DIALECTS}
_ACTIONS = ("install", "uninstall", "status", "run")
HELP = Help(
    "hook (install | uninstall | status | run) [AGENT]",
    f"""Put the shell commands of an agent into its sandbox, by the hooks that the agent offers: {", ".join(AGENTS)}.

  install AGENT    add the hooks to the settings of the agent; other entries stay
  uninstall AGENT  remove them
  status [AGENT]   show where they are installed
  vscode-terminal  as AGENT: a profile of the terminal of Visual Studio Code, which starts `session shell`
  zed-terminal     as AGENT: the same as the terminal of Zed
  run AGENT        answer one event of the agent, on standard input; the hooks call this""",
    (
        Option("--project", "install, uninstall: only for the project in this directory, on this machine"),
        Option("--cwd", "the directory of --project", value="DIR"),
    ),
    ("hook install claude", "hook status"),
    words=_ACTIONS,
    negative="not installed",
)


class _UnknownForm(Exception):
    """Settings of another form than documented; the text says which."""


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    action, *rest = parsed.words or [""]
    if action not in _ACTIONS:
        raise UsageError(
            f"unknown hook command {visible(action)}" if action else "hook needs a command",
            suggestion(action, _ACTIONS),
        )
    if len(rest) > 1 or (not rest and action != "status"):
        raise UsageError("name one agent", f"known: {', '.join((*AGENTS, *TERMINALS))}")
    if rest and rest[0] not in AGENTS and (rest[0] not in TERMINALS or action == "run"):
        raise UsageError(f"unknown agent {visible(rest[0])}", suggestion(rest[0], (*AGENTS, *TERMINALS)))
    if action == "run":
        from sandboxd.cli.hooks.hook_event import main as answer

        return answer(AGENTS[rest[0]])
    project = os.path.abspath(parsed.get("cwd") or ".") if "project" in parsed or "cwd" in parsed else None
    if rest and rest[0] in TERMINALS:
        from sandboxd.cli.hooks.editor_terminals import change

        return change(rest[0], action, project)
    if action == "status":
        return _status(rest, project)
    dialect = AGENTS[rest[0]]
    path = dialect.file(os.path.expanduser("~"), project)
    try:
        return _install(dialect, path) if action == "install" else _uninstall(dialect, path)
    except _UnknownForm as error:
        return fail(f"{path} is not changed: {error}", "correct the file, and run this command again")
    except OSError as error:
        return fail(f"cannot write {path}: {error.strerror}", f"make {os.path.dirname(path)} writable for you")


def _install(dialect: Dialect, path: str) -> int:
    from sandboxd.cli.hooks.hook_event import own_program

    program = own_program()
    if status := refuse_opened(program):
        return status
    line = dialect.line(program)
    if dialect.form == "plugin":
        write_file(path, PLUGIN.replace("LINE", json.dumps(line)))
    else:
        settings = _read(dialect, path)
        _remove(dialect, settings)
        hooks = settings.setdefault("hooks", {})
        for event in dialect.events:
            hooks.setdefault(event, []).append(_entry(dialect, line))
        if dialect.form == "flat":
            settings.setdefault("version", 1)
        _write(path, settings)
    sys.stdout.write(f"{dialect.title} runs its shell commands in the sandbox from its next start on\n    in {path}\n")
    if dialect.note:
        sys.stdout.write(f"    {dialect.note}\n")
    return 0


def _entry(dialect: Dialect, line: str) -> dict[str, Any]:
    """Return the entry of one event."""
    if dialect.form == "flat":
        return {"command": line, "matcher": dialect.tool, "timeout": dialect.timeout, "failClosed": True}
    entry = {"type": "command", "command": line, "timeout": dialect.timeout}
    return {"matcher": dialect.tool, "hooks": [entry]}


def _uninstall(dialect: Dialect, path: str) -> int:
    settings = _read(dialect, path)
    if dialect.form == "plugin" and settings:
        os.unlink(path)
        settings = {}
        sys.stdout.write(f"{dialect.title} runs its shell commands without it from its next start on\n    in {path}\n")
        return 0
    if not _remove(dialect, settings):
        sys.stdout.write(f"nothing to change: {visible(path, 2000)} has no hook of sandboxd\n")
        return 0
    _write(path, settings)
    sys.stdout.write(f"{dialect.title} runs its shell commands without it from its next start on\n    in {path}\n")
    return 0


def _status(names: list[str], project: str | None) -> int:
    """Show each agent; the exit status is 1 where the one that was named has no hook."""
    found = False
    for name in names or AGENTS:
        dialect, lines = AGENTS[name], []
        for path in (dialect.file(os.path.expanduser("~"), None), dialect.file("", project or os.getcwd())):
            try:
                commands = [hook["command"] for _, _, hook in _ours(dialect, _read(dialect, path))]
            except (_UnknownForm, OSError) as error:
                lines.append(f"{path}: cannot be read: {error}")
                continue
            if commands:
                whole = "installed" if len(commands) == len(dialect.events) else "incomplete: install it again"
                lines.append(f"{path}: {whole}")
                found = True
        sys.stdout.write(f"{name}: {'; '.join(map(visible, lines)) or 'not installed'}\n")
    return 0 if found or not names else 1


def _read(dialect: Dialect, path: str) -> dict[str, Any]:
    """Return the settings of a file; a plug-in of sandboxd counts as its hooks."""
    try:
        with open(path, encoding="utf-8") as file:
            if dialect.form == "plugin":
                hook = {"command": f" hook run {dialect.name} "}
                found = hook["command"] in file.read()
                return {"hooks": {event: [hook] for event in dialect.events}} if found else {}
            settings = json.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise _UnknownForm(f"it is no JSON: {error}") from None
    if not isinstance(settings, dict):
        raise _UnknownForm("it is no JSON object")
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(groups, list) for groups in hooks.values()):
        raise _UnknownForm("its key hooks is no object of lists")
    return settings


def _ours(dialect: Dialect, settings: dict[str, Any]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield the event, the list and the entry of each hook of sandboxd."""
    for event, groups in settings.get("hooks", {}).items():
        lists = [groups]
        if dialect.form == "groups":
            lists = [group["hooks"] for group in groups if isinstance(group, dict) and "hooks" in group]
        for entries in lists:
            for hook in entries:
                if isinstance(hook, dict) and f" hook run {dialect.name} " in f"{hook.get('command', '')} ":
                    yield event, entries, hook


def _remove(dialect: Dialect, settings: dict[str, Any]) -> bool:
    """Remove the hooks of sandboxd, with lists that become empty by that."""
    found = list(_ours(dialect, settings))
    for event, entries, hook in found:
        entries.remove(hook)
        groups = settings["hooks"][event]
        groups[:] = [group for group in groups if not (isinstance(group, dict) and group.get("hooks") == [])]
        if not groups:
            del settings["hooks"][event]
    if found and not settings["hooks"]:
        del settings["hooks"]
    return bool(found)


def _write(path: str, settings: dict[str, Any]) -> None:
    write_file(path, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
