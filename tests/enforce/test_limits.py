"""Limits of a command: memory, time, processors and processes, with the report of what it has met."""

from __future__ import annotations

import json
import os

import pytest

from support.daemons import DaemonProcess, StartDaemon

EAT = """
import os, sys, time
children, size = int(sys.argv[1]), int(sys.argv[2]) << 20
for _ in range(children):
    if not os.fork():
        break
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(children)))
block = b"x" * size
time.sleep(float(sys.argv[3]))
"""


def eat(children: int, size: int, seconds: float) -> list[str]:
    """Words of a command of which so many processes have so many MiB each."""
    return ["python3", "-I", "-S", "-c", EAT, str(children), str(size), str(seconds)]


@pytest.fixture
def daemon(share_daemon: StartDaemon) -> DaemonProcess:
    return share_daemon(settings={})


@pytest.mark.parametrize("children", [1, 4])
def test_a_command_out_of_memory_is_ended_and_told(daemon: DaemonProcess, children: int) -> None:
    done = daemon.run("run", "--memory", "100M", *eat(children, 160 // children, 60))
    assert done.returncode == 137
    assert "sandboxd: the limit was met: memory 100M (out-of-memory)" in done.stderr
    assert "hint: sandboxd run --memory 200M -- …" in done.stderr
    done = daemon.run("run", "--memory", "200M", *eat(children, 160 // children, 0.5))
    assert (done.returncode, done.stderr) == (0, "")


def test_no_process_allocates_beyond_the_limit_at_once(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--memory", "100M", "python3", "-c", "print(len(bytearray(10 << 30)))")
    assert done.returncode in (1, 137) and done.stdout == "", "neither between two looks"


def test_a_command_that_runs_too_long_is_ended_and_told(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--timeout", "0.5s", "sh", "-c", "echo begun; sleep 60")
    assert (done.returncode, done.stdout) == (143, "begun\n")
    assert "sandboxd: the limit was met: time 0.5s" in done.stderr
    assert "hint: sandboxd run --timeout 1s -- …" in done.stderr
    assert daemon.run("run", "--timeout", "1h", "sleep", "0.1").stderr == ""


def test_the_time_goes_on_over_a_restart(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    command = daemon.popen("run", "--timeout", "3", "sh", "-c", "echo begun; sleep 60", stdout=-1, stderr=-1, text=True)
    assert command.stdout is not None and command.stdout.readline() == "begun\n"
    assert daemon.run("restart").returncode == 0
    _, told = command.communicate(timeout=60)
    assert command.returncode == 143 and "time 3s" in told


def test_processors_are_those_of_the_limit(daemon: DaemonProcess) -> None:
    count = ("python3", "-I", "-S", "-c", "import os; print(len(os.sched_getaffinity(0)))")
    done = daemon.run("run", "--cpus", "1", *count)
    assert done.stdout == "1\n" or "cpu-limit" in layers(daemon)
    assert daemon.run("run", *count).stdout == f"{len(os.sched_getaffinity(0))}\n"


def layers(daemon: DaemonProcess, key: str = "") -> list[str]:
    code = "import json\nfrom sandboxd_client import Client\nw = Client().wrap(argv=['true'], cwd='.', overrides=O)\n"
    head = "from sandboxd_client import Overrides\n"
    head += f"O = Overrides(limits={json.loads(key or '{}')!r})\n"
    done = daemon.python(head + code + "print(json.dumps(w.layers))")
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_each_limit_has_its_layer(daemon: DaemonProcess) -> None:
    found = layers(daemon, '{"memory": "1G", "cpu": 1, "time": "1m"}')
    for one in ("memory-limit", "time-limit"):
        assert any(name.startswith(one) for name in found), one
    assert {"cpu-limit", "cpu-affinity"} & set(found)
    assert not {"memory-limit", "memory-limit-watched", "time-limit", "cpu-affinity"} & set(layers(daemon))


def test_limits_of_the_settings_hold_and_are_shown(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"limits": {"memory": "100M", "time": "1h"}}})
    assert daemon.run("run", *eat(1, 160, 60)).returncode == 137
    status = json.loads(daemon.run("status", "--json").stdout)
    assert {"memory-limit", "memory-limit-watched"} & set(status["layers"]) and "time-limit" in status["layers"]
    steps = json.loads(daemon.run("check", "--json").stdout)["steps"]
    assert any(step["name"] == "limits" for step in steps)
    done = daemon.run("run", "--memory", "400M", *eat(1, 160, 0.5))
    assert done.returncode == 0, done.stderr


def test_a_project_lowers_limits_only(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"limits": {"time": "1s"}}})
    project = daemon.identity.workspace / ".claude" / "settings.json"
    daemon.identity.write(project, '{"sandbox": {"limits": {"memory": "100M", "time": "1h"}}}')
    assert daemon.run("run", *eat(1, 160, 60)).returncode == 137
    assert daemon.run("run", "sleep", "60").returncode == 143


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--memory", "1K"), "must be a size of at least 16M"),
        (("--memory", "much"), "must be a size"),
        (("--timeout", "soon"), "must be a duration"),
        (("--cpus", "many"), "--cpus needs a number"),
        (("--cpus", "0"), "cpu"),
    ],
)
def test_a_limit_that_means_nothing_runs_nothing(daemon: DaemonProcess, words: tuple[str, str], why: str) -> None:
    done = daemon.run("run", *words, "echo", "ran")
    assert done.returncode in (2, 125) and done.stdout == "" and why in done.stderr


def test_memory_is_watched_over_a_restart(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    code = "print(1, flush=True); input(); block = b'x' * (160 << 20); input()"
    words = ("run", "--memory", "100M", "python3", "-I", "-S", "-c", code)
    command = daemon.popen(*words, stdin=-1, stdout=-1, stderr=-1, text=True)
    assert command.stdin is not None and command.stdout is not None and command.stdout.readline() == "1\n"
    assert daemon.run("restart").returncode == 0
    command.stdin.write("\n")
    command.stdin.flush()
    assert command.wait(60) == 137
    assert "out-of-memory" in command.communicate()[1]
