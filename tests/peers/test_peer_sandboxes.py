"""Commands in real sandboxes, as the tests of others have them: one command tries all the rows of a sandbox, and the
host tells what became of its files. The same lines are run bare afterwards, where each file changes and each line that
has failed works, but for those that `alone` names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from peers.tables import PeerCase, case_of, tables
from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.users import Identity

CONTROL = """
state() { stat -L -c '%i %s %.Y' "$1" 2>/dev/null; }
control() {
    [ -e "$2" ] || { mkdir -p "$(dirname "$2")"; echo old > "$2"; }
    local before; before=$(state "$2")
    eval "( $1 )" </dev/null >/dev/null 2>&1
    [ "$before" = "$(state "$2")" ] && echo kept || echo changed
}
"""
SANDBOXES: dict[str, dict[str, Any]] = {one["name"]: one for table in tables() for one in table.get("sandbox", ())}


class Place:
    """The files of one sandbox: its project, its home, and a directory beside them that no rule opens."""

    def __init__(self, identity: Identity, port: int, process: int) -> None:
        self.identity = identity
        self.outside = identity.workspace.parent / f"outside-{port}"
        self.values = {"{port}": str(port), "{outside}": str(self.outside), "{pid}": str(process)}

    def filled(self, text: str) -> str:
        for name, value in self.values.items():
            text = text.replace(name, value)
        return text

    def path(self, text: str) -> Path:
        return self.identity.workspace / Path(self.filled(text).replace("~", str(self.identity.home), 1))

    def attempt(self, line: str, path: str) -> str:
        if line == "write":
            name = shlex.quote(str(self.path(path)))
            line = f'mkdir -p "$(dirname {name})" && echo changed > {name}'
        return self.filled(line)

    def prepare(self, before: str) -> None:
        self.outside.mkdir(mode=0o755)
        self.identity.own(self.outside)
        self.bare(self.filled(before))

    def quoted(self, case: PeerCase) -> str:
        return shlex.join((self.attempt(*case.inputs), str(self.path(case.inputs[1]))))

    def bare(self, script: str) -> str:
        env = self.identity.environment(GIT_CONFIG_NOSYSTEM="1", TMPDIR="/tmp")
        return self.identity.run(["/bin/bash", "-c", script], cwd=self.identity.workspace, env=env).stdout


def told(path: Path) -> tuple[Any, ...] | None:
    """Inode, size and modification time of a file; None where it is absent."""
    try:
        state = path.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


def tried(attempts: list[str]) -> str:
    """A script that says of each line whether it works."""
    each = (f"( {line}\n) </dev/null >/dev/null 2>&1 && echo works || echo fails" for line in attempts)
    return "\n".join(each)


def test_every_sandbox_has_rows() -> None:
    assert all(one.get("changes") or one.get("runs") for one in SANDBOXES.values())
    for one in SANDBOXES.values():
        assert set(one.get("alone", ())) <= {row[1] for row in one.get("runs", ())}, one["name"]


@pytest.mark.parametrize("name", SANDBOXES)
def test_what_a_command_can_do(name: str, share_daemon: StartDaemon, origin: Origin) -> None:
    sandbox = SANDBOXES[name]
    daemon: DaemonProcess = share_daemon()
    place = Place(daemon.identity, origin.port, daemon.pid)
    place.prepare(sandbox.get("before", ""))
    changes = [case_of(row, 2) for row in sandbox.get("changes", ())]
    runs = [case_of(row, 1) for row in sandbox.get("runs", ())]
    lines = [place.attempt(*case.inputs) for case in changes]
    settings = {"filesystem": sandbox.get("filesystem", {}), "presets": sandbox.get("presets", [])}
    file = daemon.identity.write(place.outside / "settings.json", json.dumps({"sandbox": settings}))
    words = ("run", "--settings", str(file), "-c", tried([*lines, *(place.filled(case.inputs[0]) for case in runs)]))
    before = {case.inputs[1]: told(place.path(case.inputs[1])) for case in changes}
    done = daemon.run(*words, cwd=daemon.identity.workspace, env=sandbox.get("environment"))
    answers = done.stdout.split()
    assert len(answers) == len(lines) + len(runs), done.stderr

    def became(case: PeerCase) -> str:
        path = case.inputs[1]
        return "kept" if told(place.path(path)) == before[path] else "changed"

    wrong = [(case, found) for case in changes if (found := became(case)) != case.expected]
    wrong += [(case, found) for case, found in zip(runs, answers[len(lines) :], strict=True) if found != case.expected]
    assert not wrong, "\n".join(f"{case.peer}: {case.inputs} is {found}" for case, found in wrong)
    assert not origin.connections
    alone = sandbox.get("alone", {})
    failed = [case.inputs[0] for case in runs if case.expected == "fails" and case.inputs[0] not in alone]
    bare = place.bare(tried([place.filled(line) for line in failed])).split()
    useless = [line for line, found in zip(failed, bare, strict=True) if found != "works"]
    assert not useless, f"they fail bare, too: {useless}"
    kept = [case for case in changes if case.expected == "kept"]
    own = [case for case in kept if place.path(case.inputs[1]).is_relative_to(daemon.identity.base)]
    bare = place.bare(CONTROL + "\n".join(f"control {place.quoted(case)}" for case in own)).split()
    harmless = [case.inputs for case, found in zip(own, bare, strict=True) if found != "changed"]
    assert not harmless, f"they change nothing bare: {harmless}"
