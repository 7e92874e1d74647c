"""Processes that have our code loaded and fork: a laboratory or a daemon is there in a twentieth of the time that the
imports take. `file_runner.py` is what they run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import processes
from support.users import Identity

PROGRAM = Path(__file__).with_name("file_runner.py")
_AT_START = ("SANDBOXD_TEST_SITE", "SANDBOXD_TEST_NO", "LANG", "LC_", "LD_", "PYTHON")
"""Beginnings of variables that count before our code is loaded."""
_NAMESPACES = ("mnt", "net", "user", "ipc", "uts", "cgroup")

Forker = tuple[subprocess.Popen[bytes], socket.socket]
_forkers: dict[tuple[int, str], Forker] = {}
"""For each user and interpreter the process that forks, and how to ask it."""


def forker_of(identity: Identity) -> Forker:
    """The one that serves all tests."""
    key = identity.uid, identity.code.python
    if key not in _forkers:
        _forkers[key] = start_forker(identity)
        processes.residents.add(_forkers[key][0].pid)
    return _forkers[key]


def start_forker(identity: Identity) -> Forker:
    # Each message is one request; without a file, because nothing of this person outlives the test.
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = identity.popen(
            [identity.code.python, "-I", "-c", PROGRAM.read_text(), str(theirs.fileno())],
            cwd="/",
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return process, control


def ask(forker: Forker, words: Sequence[str], environment: Mapping[str, str], cwd: Path, *descriptors: int) -> None:
    socket.send_fds(forker[1], [json.dumps([words, dict(environment), str(cwd)]).encode()], descriptors)


def end_forker(forker: Forker) -> None:
    process, control = forker
    control.close()
    process.wait(timeout=30)


def close_forkers() -> None:
    """When the tests have ended."""
    for forker in _forkers.values():
        end_forker(forker)
    _forkers.clear()


def is_alike(identity: Identity, env: Mapping[str, str]) -> bool:
    """Whether a process forked there is what one started here would be: the usual script, no variable that counts
    earlier, and the namespaces of this thread."""
    if (identity.base / "bin" / "sandboxd").read_text() != identity.code.script:
        return False
    pid = forker_of(identity)[0].pid
    places = [f"/proc/{place}/ns/" for place in (pid, "thread-self")]
    return not any(name.startswith(_AT_START) for name in env) and all(
        len({os.readlink(place + name) for place in places}) == 1 for name in _NAMESPACES
    )


class ForkedDaemon(subprocess.Popen[bytes]):
    """`sandboxd serve` that is forked instead of executed, in a session of its own."""

    def __init__(
        self, identity: Identity, words: Sequence[str], environment: Mapping[str, str], cwd: Path, output: int
    ) -> None:
        self._asked = identity, environment, cwd, output
        super().__init__(words)

    def _execute_child(self, words: Sequence[str], *_: object) -> None:
        identity, environment, cwd, output = self._asked
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ask(forker_of(identity), words, environment, cwd, theirs.fileno(), output)
            theirs.close()
            answer = ours.recv(20)
        assert answer, "the process that forks daemons died"
        self.pid = int(answer)
        self._child_created = True
