"""Generated policies: what `explain` says of a path or a socket is what a command in the sandbox meets.

One sandbox for each policy tries everything; one connection asks about all of it. Hosts and ports have the same in
test_hosts_model.py; commands are decided by the function that explains them."""

from __future__ import annotations

import json
import random
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.daemons import StartDaemon
from support.users import Identity, identity_names

POLICIES = 4
NAMES = ("a", "b", "c")
SOCKETS = 12
TRY = r"""
import json, os, socket, sys
asked = json.load(sys.stdin)
met = []
for kind, path in asked:
    try:
        if kind == "socket":
            with socket.socket(socket.AF_UNIX) as one: one.connect(path)
        elif os.path.isdir(path):
            if kind == "read": os.listdir(path)
            else: os.mkdir(path + "/made"); os.rmdir(path + "/made")
        else:
            os.close(os.open(path, os.O_RDONLY if kind == "read" else os.O_WRONLY | os.O_APPEND))
        met.append(True)
    except OSError:
        met.append(False)
print(json.dumps(met))
"""
ASK = r"""
import json, sys
from sandboxd_client import Client, RpcError
def runs(line):
    try: box.wrap(line)
    except RpcError: return False
    return True
with Client() as box:
    print(json.dumps([
        runs(path) if kind == "runs" else box.policy_explain(kind, path).behavior != "deny" if kind == "command" else
        box.policy_explain("socket" if kind == "socket" else "path", path, write=kind == "write").behavior == "allow"
        for kind, path in json.load(sys.stdin)
    ]))
"""
PROGRAMS = ("git push", "git status", "rm -r x", "make", "curl http://no.test", "env A=1 make", "sh -c 'rm x'")
LINES = [f"{one}{joint}{other}" for one in PROGRAMS for joint in (" && ", "; ", " | ") for other in PROGRAMS[:3]]
RULES = ("git push *", "git *", "rm *", "make", "curl *", "git status", "sh *")


def tree_of(identity: Identity) -> list[Path]:
    """Three levels of directories with a file each, in the home directory and in the project."""
    directories = [
        root / "/".join(names)
        for root in (identity.home / "tree", identity.workspace)
        for depth in (1, 2, 3)
        for names in ((a, b, c)[:depth] for a in NAMES for b in NAMES[: 3 if depth > 1 else 1] for c in NAMES)
    ]
    for directory in dict.fromkeys(directories):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "f").write_text("x")
    for root in (identity.home / "tree", identity.workspace):
        for path in (root, *root.rglob("*")):
            identity.own(path)
    return [path for directory in dict.fromkeys(directories) for path in (directory, directory / "f")]


@pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)
def test_explain_says_what_a_command_meets(start_daemon: StartDaemon, identity: Identity) -> None:
    paths = tree_of(identity)
    sockets = [identity.home / f"s{n % 3}" / f"{n}.sock" for n in range(SOCKETS)]
    wrong, compared = [], 0
    with ExitStack() as stack:
        for path in sockets:
            identity.own(path.parent) if path.parent.exists() else path.parent.mkdir()
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(path))
            server.listen(POLICIES)
            identity.own(path)
        daemon = start_daemon(settings={})
        questions = [(kind, str(path)) for path in paths for kind in ("read", "write")]
        questions += [("socket", str(path)) for path in sockets]
        for seed in range(POLICIES):
            chance = random.Random(seed)

            def some(most: int, among: list[Path], chance: random.Random = chance) -> list[str]:
                return [f"/{path}" for path in chance.sample(among, chance.randint(0, most))]

            places = [path.parent for path in sockets]
            files = {key: some(6, paths) for key in ("allowWrite", "denyWrite", "denyRead", "allowRead")}
            network = {"allowUnixSockets": [path[1:] for path in some(4, [*sockets, *places])]}
            denied = [f"Bash({rule})" for rule in chance.sample(RULES, chance.randint(1, 3))]
            settings = {"permissions": {"deny": denied}, "sandbox": {"filesystem": files, "network": network}}
            identity.write(identity.home / ".claude" / "settings.json", json.dumps(settings))
            assert daemon.run("settings", "lint").returncode == 0
            met = json.loads(daemon.run("run", "python3", "-I", "-S", "-c", TRY, input=json.dumps(questions)).stdout)
            assert {*met} == {True, False}
            commands = [(kind, line) for kind in ("runs", "command") for line in LINES]
            asked = json.dumps([*questions, *commands])
            told = identity.run(identity.python("-c", ASK), input=asked, env=daemon.environment())
            said = json.loads(told.stdout)
            met += said[len(questions) : len(questions) + len(LINES)]
            said = said[: len(questions)] + said[len(questions) + len(LINES) :]
            compared += len(said)
            wrong += [
                f"seed {seed}: {question}: met {one}, explain says {other}\n  {json.dumps(settings)}"
                for question, one, other in zip([*questions, *commands[len(LINES) :]], met, said, strict=True)
                if one is not other
            ]
    assert not wrong, "\n".join(wrong[:6]) + f"\n{len(wrong)} of {compared}"
    assert compared > 1000
