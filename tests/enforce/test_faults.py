"""System calls of the helper, of bubblewrap and of the daemon that fail: the result is closed, and told.

strace(1) lets one call fail in each process of a sandbox. A sample runs with all tests, `./dev faults` walks every call
from the start of the launch to the command, with one error after the other."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from support import fault_driver
from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.processes import descendants
from support.users import Identity
from support.waiting import wait_until

WALK = os.environ.get("SANDBOXD_FAULTS", "")
"""`all`, or some calls with commas between."""
Row = tuple[str, str, int]
ERRORS = ("ENOMEM", "EMFILE", "EIO", "ENOSPC", "EINTR")
SAMPLE: tuple[Row, ...] = (
    ("execve", "ENOMEM", 1), ("clone", "ENOMEM", 1), ("mount", "ENOMEM", 5), ("openat", "EMFILE", 4),
    ("socket", "EMFILE", 1), ("sendmsg", "EIO", 1), ("recvmsg", "EIO", 1), ("sendto", "EIO", 4),
    ("seccomp", "ENOMEM", 1),
    ("landlock_restrict_self", "EIO", 1), ("prctl", "EIO", 2), ("umount2", "EIO", 1), ("ppoll", "EINTR", 1),
)  # fmt: skip
IN_DAEMON: tuple[Row, ...] = (
    ("sendmsg", "EIO", 1), ("recvmsg", "ENOMEM", 3), ("openat", "EMFILE", 3), ("pidfd_open", "EMFILE", 1),
    ("accept4", "EMFILE", 1), ("sendto", "EIO", 1), ("setns", "ENOMEM", 1), ("memfd_create", "ENOSPC", 1),
)  # fmt: skip

COMMAND = (
    "echo up; echo x > {outside}/made; cat {secret}; echo x > .git/hooks/pre-commit; "
    "exec 3<>/dev/tcp/127.0.0.1/{port}; echo x >&3; echo done"
)

DONE = "up\ndone\n"
"""A connection is taken by the proxy, which refuses it then."""


class Faults:
    """A person's daemon, what its commands must not reach, and a client that runs them below strace."""

    def __init__(self, daemon: DaemonProcess, origin: Origin) -> None:
        identity = daemon.identity
        self.daemon, self.identity, self.origin = daemon, identity, origin
        self.outside = identity.base / "outside"
        self.outside.mkdir()
        identity.own(self.outside)
        self.secret = identity.write(identity.workspace / "secret", "secret-text\n")
        identity.run(["git", "init", "-q"], cwd=identity.workspace, check=True)
        self.command = "exec 2>/dev/null; " + COMMAND.format(outside=self.outside, secret=self.secret, port=origin.port)
        script = identity.write(identity.base / "driver.py", Path(fault_driver.__file__).read_text())
        self._driver = identity.popen(
            identity.python(str(script)), cwd=identity.workspace, env=daemon.environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def close(self) -> None:
        self._driver.communicate()

    def run(self, *strace: str) -> dict[str, Any]:
        assert self._driver.stdin is not None and self._driver.stdout is not None
        print(json.dumps({"command": self.command, "strace": strace}), file=self._driver.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._driver.stdout.readline())
        return answer

    def reached(self, output: str) -> list[str]:
        """Forbidden effects of the command."""
        hook = self.identity.workspace / ".git" / "hooks" / "pre-commit"
        found = {
            "wrote outside": (self.outside / "made").exists(),
            "read the secret": "secret-text" in output,
            "wrote a hook": hook.exists(),
            "had the network": bool(self.origin.connections),
        }
        return [what for what, done in found.items() if done]

    def wrong(self, answer: dict[str, Any]) -> list[str]:
        """Effects of a fault that are neither refused nor reported."""
        if answer.get("hung"):
            return ["it hangs"]
        if "refused" in answer:
            return [] if all(answer["refused"]) and answer["refused"][0] != "internal_error" else ["it is not told"]
        output, started = answer["output"], answer["started"]
        wrong = self.reached(output)
        if started and answer["status"] == 0 and output != DONE and not WALK:
            wrong.append("a part of the command failed, and is said not to have")
        if output and not started:
            wrong.append("a command ran, and is said not to have")
        if not (started or answer["told"]):
            wrong.append("it is not told")
        return wrong


@pytest.fixture
def faults(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> Iterator[Faults]:
    settings = {"sandbox": {"filesystem": {"denyRead": [f"{identity.workspace}/secret"]}}}
    made = Faults(start_daemon(settings=settings), origin)
    yield made
    made.close()


def calls_until_the_command(trace: str) -> Counter[str]:
    """How often one process makes each call, at most, before the command begins."""
    of_process: defaultdict[str, Counter[str]] = defaultdict(Counter)
    over: set[str] = set()
    for line in trace.splitlines():
        found = re.match(r"(\d+) +(\w+)\(", line)
        if found is None or found[1] in over:
            continue
        of_process[found[1]][found[2]] += 1
        if found[2] == "execve" and re.search(r'^\d+ +execve\("\S*/bash"', line):
            over.add(found[1])
    most: Counter[str] = Counter()
    for counted in of_process.values():
        most |= counted
    return most


NEVER = {"execve", "exit", "exit_group", "rt_sigreturn", "brk", "mmap", "munmap", "mprotect", "arch_prctl", "wait4"}
"""Calls of a C library and its loader before main(), those that do not return, and `wait4`, after whose failure
bubblewrap waits for ever: it reads the signal that its child has ended, asks once, and waits for the next one. The
helper asks again, which has a test of its own."""


def test_a_call_of_a_sandbox_that_fails_opens_nothing(faults: Faults, tmp_path: Path) -> None:
    bare = faults.identity.run(["bash", "-c", faults.command], cwd=faults.identity.workspace)
    assert bare.stdout == "up\nsecret-text\ndone\n"
    wait_until(lambda: len(faults.reached(bare.stdout)) == 4, "without a sandbox all is reached")
    (faults.outside / "made").unlink()
    (faults.identity.workspace / ".git/hooks/pre-commit").unlink()
    faults.origin.connections.clear()
    usual = faults.run()
    assert usual["status"] == 0 and usual["output"] == DONE and faults.reached(usual["output"]) == [], usual
    rows = SAMPLE
    if WALK:
        trace = faults.identity.base / "trace"
        assert faults.run("strace", "-f", "-o", str(trace))["output"] == DONE
        errors = cycle(ERRORS)
        counted = sorted(calls_until_the_command(trace.read_text()).items())
        chosen = [one for one in counted if one[0] not in NEVER and (WALK == "all" or one[0] in WALK.split(","))]
        rows = tuple((call, next(errors), when + 1) for call, count in chosen for when in range(count))
    assert rows, "no call has such a name"
    took_effect, wrong, note = set(), {}, faults.outside / "note"
    for call, error, when in rows:
        inject = f"inject={call}:error={error}:when={when}"
        begun = time.monotonic()
        answer = faults.run("strace", "-f", "-qq", "-o", str(note), "-e", f"trace={call}", "-e", inject)
        print(f"{time.monotonic() - begun:6.2f} s {inject}: {answer}", flush=True)
        if found := faults.wrong(answer):
            wrong[inject] = found, answer
        if "(INJECTED)" in note.read_text():
            took_effect.add((call, error, when))
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert WALK or took_effect == set(rows), set(rows) - took_effect
    assert faults.run()["output"] == DONE
    wait_until(lambda: len(descendants(faults.daemon.pid)) < 3, "no process of a sandbox is left")


@contextlib.contextmanager
def failing(pids: list[int], inject: str, note: Path) -> Iterator[None]:
    """While calls of these processes fail; those that do are noted."""
    words = ["-e", f"inject={inject}", *(word for pid in pids for word in ("-p", str(pid)))]
    tracer = subprocess.Popen(
        ["strace", "-f", "-o", str(note), "-e", f"trace={inject.partition(':')[0]}", *words],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert tracer.stderr is not None
    for _ in pids:
        assert "attached" in tracer.stderr.readline()
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()


def test_a_call_of_the_daemon_that_fails_opens_nothing(faults: Faults, tmp_path: Path) -> None:
    assert faults.run()["output"] == DONE
    rows = IN_DAEMON[:4]
    if WALK:
        errors = cycle(ERRORS)
        rows = tuple((call, next(errors), when) for call, _, _ in IN_DAEMON for when in range(1, 13))
    wrong, note, took_effect = {}, tmp_path / "note", set()
    for call, error, when in rows:
        inject = f"{call}:error={error}:when={when}"
        pids = [faults.daemon.pid, *(one.pid for one in descendants(faults.daemon.pid))]
        with failing(pids, inject, note):
            begun = time.monotonic()
            answer = faults.run()
            print(f"{time.monotonic() - begun:6.2f} s {inject}: {answer}", flush=True)
        if "(INJECTED)" in note.read_text():
            took_effect.add(inject)
        if found := faults.wrong(answer):
            wrong[inject] = found, answer, faults.daemon.output()[-3000:]
        assert faults.daemon.process.poll() is None, (inject, faults.daemon.output())
        assert faults.run()["output"] == DONE, inject
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert WALK or len(took_effect) == len(rows), took_effect


@pytest.mark.parametrize("call", ["wait4", "read"])
def test_process_1_goes_on_after_failures(faults: Faults, tmp_path: Path, call: str) -> None:
    """Those of the helper alone: the end of its child is found all the same, and told."""
    pipe = subprocess.PIPE
    words = "run", "--", "sh", "-c", "echo up; read -r x; exit 3"
    with faults.daemon.popen(*words, stdin=pipe, stdout=pipe) as client:
        assert client.stdin is not None and client.stdout is not None and client.stdout.readline().strip()
        (init,) = [one for one in descendants(client.pid) if one.command[1:] == ("init",)]
        with failing([init.pid], f"{call}:error=EIO:when=1..3", tmp_path / "note"):
            client.stdin.close()
            assert client.wait(60) == 3
    assert "(INJECTED)" in (tmp_path / "note").read_text()
