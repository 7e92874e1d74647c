"""`sandboxd logs`: what stays of a daemon's log, and how it is read."""

from __future__ import annotations

import json
import os
import signal
from subprocess import PIPE

import pytest

from support.users import Identity
from support.waiting import wait_until


def run(identity: Identity, *words: str) -> str:
    done = identity.run(identity.command(*words))
    assert done.returncode == 0, done
    return done.stdout


def pid_of(identity: Identity) -> int:
    return int(json.loads(run(identity, "status", "--json"))["pid"])


def test_the_log_is_kept_over_a_stop_and_a_kill(identity: Identity) -> None:
    assert identity.run(identity.command("logs")).returncode == 1
    pids = []
    for _ in range(2):
        run(identity, "run", "true")
        pids.append(pid_of(identity))
        run(identity, "stop")
    run(identity, "run", "true")
    pids.append(pid_of(identity))
    os.kill(pids[-1], signal.SIGKILL)
    log = run(identity, "logs")
    for pid in pids:
        assert f"pid={pid}" in log
    state = identity.home / ".local/state/sandboxd"
    assert (state / "daemon.log").exists() and state.stat().st_mode & 0o777 == 0o700
    line = f"ls {state}; cat {state}/daemon.log; echo x >>{state}/daemon.log; mv {state} {state}2"
    done = identity.run(identity.command("run", "-c", line))
    assert done.stdout == "" and len(done.stderr.splitlines()) >= 3
    assert log.count(" stopped") == 2
    assert all(json.loads(line)["event"] for line in run(identity, "logs", "--json").splitlines())


@pytest.mark.parametrize("option", ["-f", "--follow"])
def test_it_follows_into_the_next_file(identity: Identity, option: str) -> None:
    path = identity.home / ".local/state/sandboxd/daemon.log"
    record = {"event": "first", "level": "info", "timestamp": "2026-01-02T03:04:05Z", "a": "b c"}
    identity.write(path, json.dumps(record) + "\nTrace\x1b\n")
    env = identity.environment(TZ="UTC")
    with identity.popen(identity.command("logs", option), env=env, stdout=PIPE) as shown:
        assert shown.stdout is not None
        assert shown.stdout.readline() == b'2026-01-02 03:04:05 info    first a="b c"\n'
        assert shown.stdout.readline() == b"Trace\\x1b\n"
        with path.open("a") as log:
            log.write("half")
            log.flush()
            log.write(" and half\n")
        assert shown.stdout.readline() == b"half and half\n"
        path.rename(path.with_name("daemon.log.1"))
        identity.write(path, "new\n")
        assert shown.stdout.readline() == b"new\n"
        shown.send_signal(signal.SIGINT)
    assert shown.returncode == 130
    assert run(identity, "logs").splitlines()[-2:] == ["half and half", "new"]


def test_uninstalling_ends_the_daemon_of_a_client_too(identity: Identity) -> None:
    """Also where there is no systemd for this user."""
    run(identity, "run", "true")
    pid = pid_of(identity)
    assert f"stopped (pid {pid})" in run(identity, "service", "uninstall")
    wait_until(lambda: identity.run(identity.command("status")).returncode == 1, "the daemon is gone")
    assert "stopped" not in run(identity, "service", "uninstall")
