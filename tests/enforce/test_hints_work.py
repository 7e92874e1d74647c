"""Every hint is followed on a machine where it applies: then the refused thing works, and nothing else was opened."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.explain.hint_table import HINTS, Hint, Symptom
from sandboxd.policy.violation import ViolationKind
from sandboxd.settings.origins import BUILT_IN
from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.users import Identity, identity_names

COMMAND = re.compile(r"(?:mkdir -p \S+ && |touch \S+ && )?sandboxd [^,;()]+|export (.+)$")
CONNECT = """python3 -I -S -c 'import socket, sys
socket.socket(socket.AF_UNIX).connect(sys.argv[1])' """
CASES = [
    # (a refused line, a line beside that stays refused)
    ("echo x > ~/notes", "echo x > ~/others"),
    ("mkdir ~/made; touch ~/made/x", "mkdir ~/others"),
    ("mkdir -p ~/.cache/pip/http && touch ~/.cache/pip/http/x", "mkdir ~/.cache/other"),
    ("mkdir -p ~/.m2/repository/x", "mkdir ~/.m2/other"),
    ("mkdir -p ~/.cache/tool/x", "mkdir -p ~/.cache/tool2"),
    ("mkdir ~/.local/tool", "mkdir ~/.local/tool2"),
    ("touch $PLACE/x", "touch $PLACE/y"),
    ("touch $ELSEWHERE/x", "touch $ELSEWHERE/y"),
    ("mkdir ~/.config", "touch $PLACE/y"),
    ("touch ~/s/.jj/repo/x", "touch ~/s/other"),
    ("touch ~/s/.hg/x", "touch ~/s/other"),
    ("curl -sm 1 --unix-socket ~/docker.sock http://docker/v1.41/containers/json", f"{CONNECT} ~/b.sock"),  # docker ps
    (f"{CONNECT} ~/ssh-a/agent.1", f"{CONNECT} ~/b.sock"),
    (f"{CONNECT} ~/plain.sock", f"{CONNECT} ~/b.sock"),
    ("getent hosts no.test", "getent hosts other.test"),
    ("curl -sf http://no.test:$PORT/", "curl -sf http://other.test:$PORT/"),
    ("curl -sf --noproxy '' http://localhost:$PORT/", "curl -sf --noproxy '' http://localhost:1/"),
    ("git ls-remote code >&2; git fetch code", "curl -sf http://other.test:$PORT/"),
    *(
        (f"mkdir {place} {variable}", "")
        for place, variable in (
            ("${UV_CACHE_DIR:-~/.cache/uv}", ""),
            ("${UV_TOOL_DIR:-~/.local/share/uv}", "$UV_PYTHON_INSTALL_DIR"),
            ("${PIPX_HOME:-~/.local/share/pipx}", "$PIPX_BIN_DIR"),
            ("${npm_config_store_dir:-~/.local/share/pnpm}", ""),
            ("${BUN_INSTALL_CACHE_DIR:-~/.bun/install}", ""),
            ("${npm_config_cache:-~/.npm/_npx}", ""),
            ("${PRE_COMMIT_HOME:-~/.cache/pre-commit}", "$PREK_HOME"),
            ("${COREPACK_HOME:-~/.cache/node}", ""),
            ("${PLAYWRIGHT_BROWSERS_PATH:-~/.cache/ms-playwright}", ""),
            ("${GRADLE_USER_HOME:-~/.gradle/wrapper}", ""),
            ("${GOMODCACHE:-~/go}", "$GOCACHE"),
            ("${GEM_HOME:-~/.gem}", ""),
            ("${PYENV_ROOT:-~/.pyenv}", ""),
        )
    ),
]
WITHOUT_COMMAND = {
    "no setting opens it": "there is no way",
    "the listed path leads here by a symbolic link": "tests/enforce/test_sockets_handed_in.py",
    "start its server before the command": "tests/enforce/test_sockets_brought.py",
    "the permission mode plan": "tests/enforce/test_permission_modes.py",
    "a socket without a path": "there is no rule for one",
    "it holds secrets": "no rule is proposed",
    "it holds keys or passwords": "no rule is proposed",
    "remove it outside the sandbox": "the sandbox stays as it is",
    "git runs commands that it names": "the sandbox stays as it is",
    "git runs the programs in it": "the sandbox stays as it is",
    "it is protected": "the sandbox stays as it is",
    "remove the rule {rule}": "the rule may stand in a file of another author",
    "the mode was set without the set-user-ID bit": "the sandbox stays as it is",
    "it belongs to the system": "no rule is proposed",
}
"""Beginnings of hints that tell no command line, so that nothing is opened."""
ELSEWHERE = {
    "it starts Windows programs": "WSL",
    "it starts services outside the sandbox": "a system bus or the user's, whose place is the system's",
    "it types into and reads every window": "a display",
    "chown to a user that does not exist": "root, whose call succeeded: tests/enforce/test_foreign_suites.py",
    "if it may be read": "guessed from the output: the next test",
    "sandboxd allow path --read {path}": "macOS",
    "programs that lie there are run outside the sandbox; put those of this command elsewhere: export POETRY": "poetry",
}
"""Beginnings of hints for machines that this one is not."""
MAC = (ViolationKind.SERVICE, ViolationKind.CONNECT)


@pytest.fixture
def daemon(identity: Identity, start_daemon: StartDaemon, origin: Origin) -> Iterator[DaemonProcess]:
    home = identity.home
    for name in ("hidden/x", "hidden/y", "s/.jj/repo/old", "s/.hg/old"):
        identity.write(home / name, "")
    for name in (".cache", ".local/share", ".bun", ".gradle", ".npm"):
        identity.own(identity.write(home / name / ".keep", "").parent)
    elsewhere = Path(f"/srv/sdt-{os.getpid()}") if os.geteuid() == 0 else identity.base / "elsewhere"
    with ExitStack() as stack:
        for place in (identity.base / "place", elsewhere):
            place.mkdir(parents=True)
            identity.own(place)
            stack.callback(shutil.rmtree, place)
        for name in ("docker.sock", "ssh-a/agent.1", "plain.sock", "b.sock"):
            (home / name).parent.mkdir(exist_ok=True)
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(home / name))
            server.listen(8)
            identity.own(home / name)
        settings = {"sandbox": {"network": {"strictAllowlist": True}, "filesystem": {"denyRead": ["~/hidden"]}}}
        started = start_daemon(settings=settings, resolve=dict.fromkeys(("no.test", "other.test"), "127.0.0.1"))
        line = f"git init -q; git remote add code http://no.test:{origin.port}/x.git; git config http.proxy ''"
        identity.run(["sh", "-c", line], cwd=identity.workspace)
        values = {"PLACE": identity.base / "place", "ELSEWHERE": elsewhere, "PORT": origin.port}
        VALUES.update({name: str(value) for name, value in values.items()})
        yield started


VALUES: dict[str, str] = {}


def tried(daemon: DaemonProcess, line: str) -> tuple[bool, str]:
    """Whether nothing of a line was blocked, and the first hint."""
    done = daemon.run("run", "--show-violations", "-c", line, env=VALUES)
    hints = [text.removeprefix("  hint: ") for text in done.stderr.splitlines() if text.startswith("  hint: ")]
    return "sandboxd: blocked" not in done.stderr and not hints, hints[0] if hints else done.stderr


def row_of_the_last(daemon: DaemonProcess, line: str) -> Hint:
    """The row of the table that gave the first hint of the newest command, whose record names that line."""
    found = json.loads(daemon.run("violations", "--json").stdout)["violations"]
    assert found[-1]["command"][:40] in " ".join(line.split()), "each refusal leaves a record"
    newest = next(one for one in found if one["command_id"] == found[-1]["command_id"])
    decision = Decision(
        Behavior.DENY, Reason(newest["outcome"]), "", newest["rule"], None if newest["rule"] is None else BUILT_IN
    )
    kind = ViolationKind(newest["kind"])
    symptom = Symptom(kind, newest["operation"], newest["target"], str(daemon.identity.home), decision)
    return next((row for row in HINTS if row.match(symptom)), HINTS[0])


@pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)
def test_a_hint_opens_what_was_refused_and_nothing_else(daemon: DaemonProcess, identity: Identity) -> None:
    used: set[Hint] = set()
    wrong = []
    local = identity.home / ".claude" / "settings.local.json"
    for line, beside in CASES:
        works, hint = tried(daemon, line)
        if works:
            wrong.append(f"not refused: {line}")
            continue
        used.add(row_of_the_last(daemon, line))
        found = COMMAND.search(hint)
        if found is None:
            wrong.append(f"no command for {line}: {hint}")
            continue
        if found[1]:
            line = f"export {found[1]}; {line}"
        else:
            command = found[0].replace("sandboxd allow", "sandboxd allow --yes")
            done = identity.run(["sh", "-c", command], cwd=identity.workspace, env=daemon.environment())
            if done.returncode:
                wrong.append(f"{line}: {command}: {done.stderr}")
        works, more = tried(daemon, line)
        if not works:
            wrong.append(f"still refused: {line}, by {found[0]}: {more}")
        if beside and tried(daemon, beside)[0]:
            wrong.append(f"opened beside {line}: {beside}")
        local.unlink(missing_ok=True)
    left = [row for row in HINTS if row not in used and not of_macos(row)]
    named = (*WITHOUT_COMMAND, *ELSEWHERE)
    wrong += [f"no case for {row.text}" for row in left if not row.text.startswith(named)]
    assert not wrong, "\n".join(wrong)
    assert not (identity.home / ".config").exists(), "made in the overlay of a session alone"


def test_the_hint_of_a_denied_read_works(daemon: DaemonProcess, identity: Identity) -> None:
    """It is guessed from the output, since the system does not report reads."""

    def read(name: str) -> str:
        return daemon.run("run", "--annotate", "-c", f"cat ~/hidden/{name}").stderr

    found = COMMAND.search(read("x"))
    assert found is not None and found[0].endswith("sandboxd allow path --read ~/hidden/x")
    assert identity.run(["sh", "-c", found[0]], env=daemon.environment()).returncode == 0
    assert read("x") == "" and "hidden/y: " in read("y")


def of_macos(row: Hint) -> bool:
    words = ("network-", "system-socket")
    return set(row.kinds) <= set(MAC) or "ttys" in row.target or any(word in row.operation for word in words)


def test_hints_without_a_command_tell_none() -> None:
    """A hint that opens nothing holds no command line."""
    for row in HINTS:
        if row.text.startswith(tuple(WITHOUT_COMMAND)):
            text = row.text.removesuffix("sandboxd settings set sandbox.filesystem.home overlay")  # opens nothing
            assert not re.search(r"sandboxd (allow|settings|run)|\{allow\}", text), row.text
