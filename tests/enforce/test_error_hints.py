"""Each command line in the hint of an error is typed: then what was refused works, and its twin does not."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxd.cli.main import COMMANDS
from support.command_lines import LINE, texts
from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity, identity_names


@dataclass(frozen=True)
class Row:
    """A refused line and its hint.

    It is run in the directory `cwd`, after `before`. `hint` is a part of its text in the code, `typed` what of it is
    typed where that is not all from the first command on. `fill` are the words that the hint leaves to its reader.
    `works` is tried afterwards, the same line by default, and `beside` stays refused."""

    hint: str
    line: str
    settings: dict[str, Any] = field(default_factory=dict)
    before: str = "true"
    cwd: str = "."
    typed: str = r"(sandboxd|chmod|touch|git) [^;()\n]+"
    fill: dict[str, str] = field(default_factory=dict)
    works: str = ""
    beside: str = ""


def explained(words: str, answer: str = "allowed") -> str:
    return said(f"sandboxd explain {words}", f"^{answer}")


def said(line: str, pattern: str) -> str:
    """A line that succeeds where another one prints something."""
    return f'said=$({line}); echo "$said"; echo "$said" | grep -q "{pattern}"'


def network(**rules: Any) -> dict[str, Any]:
    return {"sandbox": {"network": rules}}


OPENING = '{"sandbox": {"filesystem": {"allowWrite": ["~/trusted"]}}}'
TMP = f"/tmp/sdt-hint-{os.getpid()}"
ROWS = [
    # explain
    Row("to close it: sandboxd deny path", explained("path ~/plain", "denied"), beside=explained("path ~/b", "denied")),
    Row("to share it with the host: sandboxd allow path",
        said(f"sandboxd explain path --write {TMP}-shared", "by /tmp"), before=f"touch {TMP}-shared",
        beside=said(f"sandboxd explain path --write {TMP}-other", "by /tmp")),
    Row("the home directory is read-only in the sandbox: {allow}", explained("path --write ~/notes"),
        beside=explained("path --write ~/others")),
    Row("to keep changes for the session alone", "sandboxd run -c 'mkdir ~/.config/tool'",
        before="mkdir -p ~/.config", typed="sandboxd settings .*", beside="ls ~/.config/tool"),
    Row("if it may be read: sandboxd allow path --read {path}", explained("path ~/hidden/x"),
        {"sandbox": {"filesystem": {"denyRead": ["~/hidden"]}}}, beside=explained("path ~/hidden/y")),
    Row("remove the rule {rule}, which denies exactly this path", explained("path ~/hidden"),
        {"sandbox": {"filesystem": {"denyRead": ["~/hidden"]}}}, typed=r"\S+/settings.json", works="rm {typed}"),
    Row("start the command elsewhere, or remove that rule", "sandboxd run true",
        {"sandbox": {"filesystem": {"denyRead": ["~/hidden"]}}}, cwd="~/hidden", typed=r"\S+/settings.json",
        works="rm {typed}"),
    Row("allow it with a rule, such as: sandboxd settings add permissions.allow",
        "sandboxd run --decide true </dev/null", {"sandbox": {"autoAllowBashIfSandboxed": False}},
        typed=r"sandboxd settings .*",
        fill={"npm test:*": "true"},
        beside="sandboxd run --decide false </dev/null"),
    Row("add it with: sandboxd allow domain", explained("host new.test"), beside=explained("host old.test")),
    Row("sandboxd allow domain localhost:", explained("host localhost:3000"), beside=explained("host localhost:3001")),
    Row("if that is meant, allow exactly this address: sandboxd allow domain", explained("host 169.254.169.254:80"),
        beside=explained("host 169.254.169.254:81")),
    Row("if that is meant, name it: sandboxd allow domain", explained("host 10.0.0.7:80"),
        network(allowedDomains=["*"]), beside=explained("host 10.0.0.8:80")),
    Row("take it off the list with: sandboxd exclude remove", explained("command 'tool x'", ".*in the sandbox"),
        before="sandboxd exclude add --yes 'tool:*'"),
    Row("take it off the list in", explained("command 'tool x'", ".*in the sandbox"),
        {"sandbox": {"excludedCommands": ["tool:*"]}}, typed=r"\S+/settings.json", works="rm {typed}"),
    # run
    Row("use bash: sandboxd run --shell bash -c", "sandboxd run --shell fish -c 'echo a'",
        {"permissions": {"deny": ["Bash(rm:*)"]}}, fill={"…": "'echo a'"}, works="{typed}",
        beside="sandboxd run --shell bash -c 'rm x'"),
    Row("start another with: sandboxd session start", "sandboxd run --session no-such true",
        works="sandboxd run --session {out} true"),
    Row("; to run without that restriction: sandboxd run --ignore-unknown-restrictions", "sandboxd run true",
        network(deniedMadeUp=["x"]), typed="sandboxd run --ignore-unknown-restrictions", works="{typed} true"),
    Row("sandboxd run X X -- …, or: X", "sandboxd run --show-violations sleep 1.5",
        {"sandbox": {"limits": {"time": 1}}},
        typed=r"sandboxd settings [^;()\n]+"),
    Row("to let servers in the sandbox be reached from this machine", "sandboxd run --publish 0:3000 true",
        network(allowLocalBinding=False)),
    Row("; if commands may write it: sandboxd allow path", "sandboxd run --session $(cat id) touch x",
        before="sandboxd session start --cwd . >../away/id", cwd="../away"),
    Row("is read-only in the sandbox, as it is outside: nothing can be made in it; if it is to be written: chmod u+w",
        "sandboxd run touch x", before="mkdir shut; chmod a-w shut", cwd="shut"),
    Row("run: chmod 700", "sandboxd status", before="chmod 755 $XDG_RUNTIME_DIR/sandboxd"),
    Row("run: git config --global", said("sandboxd check", "^ok .*bare rep")),
    Row("sandboxd trust X", "sandboxd run touch ~/trusted/x", before=f"""mkdir ~/trusted .claude
        echo '{{}}' >.claude/settings.json && sandboxd trust --yes && echo '{OPENING}' >.claude/settings.json""",
        beside="sandboxd run touch ~/x"),
    Row("in a script, write: sandboxd trust --yes", "sandboxd trust other </dev/null",
        before=f"""mkdir -p other/.claude; echo '{OPENING}' >other/.claude/settings.json""",
        typed="sandboxd trust --yes", works="{typed} other"),
    Row("to use it: sandboxd run --settings X …", "sandboxd run --learn needed touch ~/learned/x",
        before="mkdir ~/learned", fill={"…": "touch ~/learned/x"}, works="{typed}",
        beside="sandboxd run --settings needed touch ~/x"),
    Row("to keep files, write them below the working directory, or: sandboxd allow path /tmp",
        f"sandboxd run -c 'echo x >{TMP}-kept'; test -e {TMP}-kept"),
]  # fmt: skip

SHOW = frozenset(
    """check/status/ps/prompts/violations/settings/settings show/settings show sandbox.network.requests/session list/
    settings lint/audit verify/profile list/credential list/settings show sandbox.credentials.inject/
    settings show sandbox.network""".replace("\n    ", "").split("/")
)
"""Command lines that open nothing; tests/cli/ runs them."""
ELSEWHERE = {
    "run as the user: sandboxd trust": "tests/enforce/test_trust.py",
    "run: sandboxd trust X": "tests/enforce/test_trust.py",
    "run: sandboxd stop": "tests/daemon/restart/",
    "end it with: sandboxd stop": "tests/daemon/test_serve.py",
    "start your own with: sandboxd serve": "tests/rpc/test_peer.py: only another user sees it",
    "start it again with: sandboxd serve": "tests/daemon/test_serve.py",
    "start it with: SSL_CERT_FILE": "tests/enforce/test_requests_seen.py",
    "sandboxd web": "tests/enforce/test_web_page.py",
    "start it with: sandboxd serve": "tests/daemon/test_serve.py",
    "try: sandboxd serve": "tests/client/test_starting.py",
    "start a daemon with: sandboxd run true": "tests/cli/control/test_logs.py",
    "sandboxd restart": "tests/first_day/test_installing.py",
    "name the session yourself: sandboxd run --session auto:KEY": "the test has an agent above it",
    "sandboxd allow path …": "a text for models",
    "sandboxd allow path x": "asked, not told",
    "sandboxd allow tool X; X": "tests/enforce/test_told.py",
    "if that is meant, allow the address as well": "tests/policy/hosts/test_host_decisions.py",
    "turn it on with: sandboxd enable": "tests/cli/test_settings_commands.py",
    "the hooks of this agent cannot ask, so run it yourself, or: sandboxd exclude add": "tests/cli/hooks/",
    "sandboxd credential set": "tests/enforce/test_credentials.py",
    "sandboxd run --ask --": "tests/enforce/test_told.py: it needs a terminal",
    "start one with `sandboxd service install": "tests/enforce/test_service.py",
    "needs the package mcp": "a sentence",
    "needs the package textual": "a sentence",
    "sandboxd status --": "tests/cli/control/test_status_line.py",
    "sandboxd prompts --remote X": "tests/cli/test_remote.py",
    "no command runs; start one with: sandboxd run -- make": "tests/cli/ui/test_ui.py",
    "sandboxd run sh -c TEXT NAME ARG…": "a usage",
    "check the free space there, or: sandboxd settings set": "tests/enforce/test_files.py: a full disk",
    "run: sandboxd allow domain X": "tests/proxy/transparent/test_server_names.py",
    "turn it on here with: sandboxd settings add sandbox.enabledPlatforms": "another system",
    "name another shell, for example: sandboxd run --shell": "the row of fish",
    "each socket of the host needs its own decision: sandboxd allow socket PATH": "a report of an import",
    "sandboxd: written: X; use it with: sandboxd run --settings X": "tests/enforce/test_profiles.py",
    "usage: sandboxd ": "a usage",
    "sandboxd settings set sandbox.limits.X": "the row of the time limit",
    "sandboxd settings set sandbox.network.transparent": "tests/enforce/test_capture.py",
    "sandboxd settings add sandbox.network.tls.": "tests/enforce/test_requests_seen.py",
    "# Made from": "",
    "`sandboxd run": "",
}
"""Parts of other texts, and where they are followed, or why nowhere."""


@pytest.fixture
def daemon(identity: Identity, start_daemon: StartDaemon) -> Iterator[DaemonProcess]:
    for name in ("plain", "b", "hidden/x", "hidden/y"):
        identity.write(identity.home / name, "")
    away = identity.workspace.parent / "away"
    away.mkdir()
    identity.own(away)
    yield start_daemon()
    for kind in ("kept", "shared"):
        Path(f"{TMP}-{kind}").unlink(missing_ok=True)


@pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)
def test_a_typed_hint_opens_what_was_refused(daemon: DaemonProcess, identity: Identity) -> None:
    wrong = []
    env = daemon.environment(PATH=f"{identity.base}/bin:/usr/bin:/bin", SHELL="/bin/bash")
    local, user = identity.home / ".claude/settings.local.json", identity.home / ".claude/settings.json"

    def shell(line: str) -> tuple[int, str, str]:
        done = identity.run(["sh", "-c", line], cwd=identity.workspace, env=env)
        return done.returncode, done.stdout.strip(), done.stderr + done.stdout

    for row in ROWS:
        local.unlink(missing_ok=True)
        identity.write(user, json.dumps(row.settings))
        status, _, said = shell(f"({row.before}) && cd {row.cwd} && {row.line}")
        hint = re.search(rf"(?:hint: |: |; | in )(?P<typed>{row.typed})", said)
        print(row.hint, "|", status, "|", said)
        if not status or hint is None:
            wrong.append(f"{row.line}: status {status}, no command in: {said}")
            continue
        typed = hint["typed"].strip()
        for name, value in row.fill.items():
            typed = typed.replace(name, value)
        typed = re.sub("sandboxd (allow|trust)(?! --yes)", r"sandboxd \1 --yes", typed)
        shlex.split(typed)
        status, out, more = (0, "", "") if "{typed}" in row.works else shell(typed)
        if status:
            wrong.append(f"{row.line}: {typed}: status {status}: {more}")
        line = row.works.replace("{typed}", typed).replace("{out}", out) or row.line
        status, _, more = shell(f"cd {row.cwd} && {line}")
        if status:
            wrong.append(f"{row.line}: still refused after {typed}: {more}")
        if row.beside and not shell(f"cd {row.cwd} && {row.beside}")[0]:
            wrong.append(f"{row.line}: opened by {typed} as well: {row.beside}")
    assert not wrong, "\n\n".join(wrong)


def test_every_command_line_of_a_hint_has_a_row() -> None:
    """Those that only show something, or whose test is elsewhere, are listed with it."""
    names = {name for name, _, _ in COMMANDS}
    known = (*(row.hint for row in ROWS), *ELSEWHERE)
    left = [
        f"{place}: {text}"
        for text, place in texts()
        if len(text) < 500  # else a program or a page
        and not place.startswith(("sandboxd/policy/explain/hint", "sandboxd/backends/macos", "sandboxd/cli/service"))
        and any(found[1] in names and f"{found[1]}{found[2]}" not in SHOW for found in LINE.finditer(text))
        and not any(one in text for one in known)
    ]
    assert not left, "\n".join(["give each a row in ROWS, or name its test in ELSEWHERE:", *left])
