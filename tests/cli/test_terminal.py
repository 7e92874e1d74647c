"""`sandboxd run` at a terminal: Ctrl-C, Ctrl-Z and fg, background reads, resizing."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd_client.testing import FakeDaemon
from support import processes
from support.terminal import CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, Terminal
from support.waiting import wait_until

PROMPT = "%%-"


@pytest.fixture
def shell(cli: CommandLine) -> Iterator[Terminal]:
    """An interactive shell with job control, in which `sbx` is our command line."""
    env = {**cli.env, "PS1": PROMPT, "HISTFILE": "", "TERM": "dumb", "INPUTRC": "/dev/null"}
    with Terminal(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], env=env) as terminal:
        terminal.expect(PROMPT)
        terminal.type(f'sbx() {{ {shlex.join(cli.argv)} run "$@"; }}')
        terminal.expect(PROMPT)
        yield terminal


def status(shell: Terminal) -> int:
    shell.type("echo status=$?")
    return int(shell.expect(r"status=(\d+)\r").group(1))


def wait_until_stopped(shell: Terminal) -> None:
    """Every process of the job has stopped, or (D) waits in vfork(2) for a child that has."""

    def stopped() -> bool:
        job = [one for one in processes.descendants(shell.pid) if os.getpgid(one.pid) != os.getpgid(shell.pid)]
        return bool(job) and all(one.state in "TD" for one in job)

    wait_until(stopped)


def stop(shell: Terminal) -> None:
    """Ctrl-Z. One that has not stopped yet could still take the next key."""
    shell.press(CTRL_Z)
    shell.expect("Stopped")
    shell.expect(PROMPT)
    wait_until_stopped(shell)


def test_ctrl_c_ends_the_command_and_the_status_says_so(shell: Terminal) -> None:
    shell.type("sbx -c 'echo re''ady; exec sleep 300'")
    shell.expect("^ready")
    shell.press(CTRL_C)
    shell.expect(PROMPT)
    assert status(shell) == 130


def test_a_command_may_handle_ctrl_c_and_go_on(shell: Terminal) -> None:
    """It gets exactly one: the terminal's own. The client hands none on, and starts no grace period."""
    shell.type(
        "sbx --grace 0.1 -c 'trap \"echo caught\" INT; echo re''ady; until read x; do :; done; echo last $x; exit 4'"
    )
    shell.expect("^ready")
    shell.press(CTRL_C)
    shell.expect("^(\\^C)?caught")
    shell.type("word")
    shell.expect("^last word")
    shell.expect(PROMPT)
    assert shell.text.count("caught\r\n") == 1
    assert status(shell) == 4


def test_ctrl_backslash(shell: Terminal) -> None:
    shell.type("""ulimit -c 0; sbx sh -c 'echo re""ady; exec sleep 300'""")  # bash would ignore it until the exec
    shell.expect("^ready")
    shell.press(CTRL_BACKSLASH)
    shell.expect(PROMPT)
    assert status(shell) == 131


def test_ctrl_z_stops_it_and_fg_goes_on(shell: Terminal) -> None:
    shell.type("sbx -c 'echo re''ady; read x; echo got $x; exit 6'")
    shell.expect("^ready")
    stop(shell)
    shell.type("jobs")
    shell.expect(r"\[1\].*Stopped.*sandboxd run")
    shell.expect(PROMPT)
    shell.type("fg")
    shell.expect("sandboxd run")
    shell.type("word")
    shell.expect("^got word")
    shell.expect(PROMPT)
    assert status(shell) == 6


def test_bg_lets_it_run_and_reading_stops_it_again(shell: Terminal) -> None:
    shell.type("sbx -c 'echo re''ady; read x; echo got $x' &")
    shell.expect("ready\r")
    wait_until_stopped(shell)
    shell.type("bg")
    shell.expect(PROMPT)
    wait_until_stopped(shell)
    shell.type("fg")
    shell.expect("echo got")
    shell.type("word")
    shell.expect("^got word")
    shell.expect(PROMPT)
    assert status(shell) == 0


def test_a_signal_to_a_stopped_command_counts_once_it_continues(shell: Terminal) -> None:
    shell.type("sbx -c 'trap \"echo caught; exit 3\" TERM; echo re''ady; while :; do sleep 0.02; done'")
    shell.expect("^ready")
    stop(shell)
    shell.type("/bin/kill -TERM $(jobs -p); fg")  # bash's own would continue the job too, and it may end before fg
    shell.expect("^caught")
    shell.expect(PROMPT)
    assert status(shell) == 3


def test_end_of_input(shell: Terminal) -> None:
    shell.type("sbx -- cat")
    shell.type("word")
    shell.expect("^word\r\nword")
    shell.press(CTRL_D)
    shell.expect(PROMPT)
    assert status(shell) == 0


def test_resizing_reaches_the_command(shell: Terminal) -> None:
    # Without a trap bash forgets a Ctrl-C that comes while stty, whose output is there already, is about to exit.
    shell.resize(24, 80)
    shell.type("sbx -c 'trap \"stty size\" WINCH; trap exit INT; echo re''ady; while :; do sleep 0.02; done'")
    shell.expect("^ready")
    shell.resize(50, 132)
    shell.expect("^50 132")
    shell.press(CTRL_C)
    shell.expect(PROMPT)


def test_the_command_has_the_terminal(shell: Terminal) -> None:
    shell.type("sbx -c 'test -t 0 && test -t 1 && test -t 2 && echo t''ty > /dev/tty'")
    shell.expect("^tty")
    shell.expect(PROMPT)
    assert status(shell) == 0


def test_the_rest_of_a_pipeline_is_one_job(shell: Terminal) -> None:
    shell.type("sbx -c 'echo re''ady >&2; exec sleep 300' | cat")
    shell.expect("^ready")
    shell.press(CTRL_C)
    shell.expect(PROMPT)
    shell.type("sbx -- seq 100000 | head -1")
    shell.expect("^1\r?$")
    shell.expect(PROMPT)


def test_a_terminal_that_hangs_up_takes_the_command_along(cli: CommandLine) -> None:
    terminal = Terminal([*cli.argv, "run", "-c", "echo ready; exec sleep 300"], env=cli.env)
    terminal.expect("ready")
    below = [one.pid for one in processes.descendants(terminal.pid)]
    os.close(terminal._master)
    os.waitpid(terminal.pid, 0)
    wait_until(lambda: not any(processes.is_alive(pid) for pid in below))


LIBRARY = """
import sys
from sandboxd_client import Client
with Client(sys.argv[1], autostart=False) as box:
    print("status", box.run("read x; echo inside $x; exit 3", stdin=None).returncode)
    print("not given", box.run("read x").returncode)
    print("captured", box.run("cat", input="y", text=True, capture_output=True).stdout)
    print("quiet", box.run("sleep 0.01", stdin=-3).returncode)
"""


def test_the_library_in_the_foreground_is_not_stopped(cli: CommandLine, fake: FakeDaemon) -> None:
    """The caller stays in the foreground, the terminal's settings stay as they are."""
    with Terminal([sys.executable, "-c", LIBRARY, fake.socket], env=cli.env) as terminal:
        before = terminal.attributes()
        terminal.type("word")
        terminal.expect("^inside word")
        terminal.expect("^status 3")
        terminal.expect("^not given 1")
        terminal.expect("^captured y")
        assert terminal.foreground() == terminal.pid
        terminal.expect("^quiet 0")
        assert terminal.attributes() == before
        assert terminal.wait() == 0


INTERRUPTED = """
import sys
from sandboxd_client import Client
with Client(sys.argv[1], autostart=False) as box:
    try:
        # It is ready when the caller has come to feed it, so the caller is waiting by then.
        command = "read x; trap 'echo cleaned; exit' TERM; echo ready; while :; do sleep 0.02; done"
        box.run(command, input=b"go\\n", grace=20)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_in_the_library_ends_the_command(cli: CommandLine, fake: FakeDaemon) -> None:
    with Terminal([sys.executable, "-c", INTERRUPTED, fake.socket], env=cli.env) as terminal:
        terminal.expect("^ready")
        terminal.press(CTRL_C)
        terminal.expect("interrupted")
        assert terminal.wait() == 0
        assert "cleaned" in terminal.text


def decided(fake: FakeDaemon, *, sandboxed: bool, behavior: str, **more: Any) -> None:
    reason = {"type": "sandboxOverride", "text": "asked to run without a sandbox"}
    fake.answer("should_sandbox", {"sandboxed": sandboxed, "behavior": behavior, "reason": reason, "hint": "h", **more})


@pytest.mark.parametrize(
    ("answer", "status", "shown"), [("y", 7, "bare"), ("n", 125, "not confirmed"), ("", 125, "not")]
)
def test_without_a_sandbox_only_when_a_person_says_yes(
    cli: CommandLine, fake: FakeDaemon, answer: str, status: int, shown: str
) -> None:
    decided(fake, sandboxed=False, behavior="ask")
    command = 'echo ba""re${SANDBOX_RUNTIME-}; exit 7'
    argv = [*cli.argv, "run", "--disable-sandbox", "-c", command]
    env = {name: value for name, value in cli.env.items() if name != "SANDBOX_RUNTIME"}
    with Terminal(argv, env=env) as terminal:
        terminal.expect("asked to run without a sandbox")
        terminal.expect("WITHOUT a sandbox")
        terminal.expect(r"\[y/N\] ")
        terminal.type(answer)
        terminal.expect(shown)
        assert terminal.wait() == status
    assert fake.calls[-1].method == "should_sandbox"
    assert fake.calls[-1].params["dangerously_disable_sandbox"] is True


def test_without_a_terminal_nobody_can_confirm(cli: CommandLine, fake: FakeDaemon) -> None:
    decided(fake, sandboxed=False, behavior="ask")
    done = cli.run("run", "--disable-sandbox", "--", "echo", "ran", input="y\n", start_new_session=True)
    assert (done.returncode, done.stdout) == (125, "")
    assert "no terminal and no client that answers prompts" in done.stderr and "sandboxd prompts" in done.stderr


@pytest.mark.parametrize(
    ("behavior", "by", "outcome", "status"),
    [
        ("allow", "pid 1", "answered", 0),
        ("allow", "policy", "", 125),
        ("allow", None, "", 125),
        ("deny", "pid 1", "answered", 125),
        ("deny", None, "no_subscriber", 125),
    ],
)
@pytest.mark.parametrize("option", ["--disable-sandbox", "--decide"])
def test_without_a_terminal_subscribers_are_asked(
    cli: CommandLine, fake: FakeDaemon, option: str, behavior: str, by: str | None, outcome: str, status: int
) -> None:
    decided(fake, sandboxed=False, behavior="ask", question="sandbox_override")
    answer = {"behavior": behavior, "scope": "once", "by": by, "text": "so it is", "outcome": outcome}
    fake.answer("permission.request", answer)
    done = cli.run("run", option, "-c", "echo ran", start_new_session=True)
    assert (done.returncode, done.stdout) == (status, "" if status else "ran\n")
    asked = fake.calls[-1]
    assert asked.method == "permission.request"
    assert (asked.params["kind"], asked.params["command"]) == ("sandbox_override", "echo ran")


def test_a_command_a_rule_asks_about_runs_inside_after_a_yes(cli: CommandLine, fake: FakeDaemon) -> None:
    decided(fake, sandboxed=True, behavior="ask", question="command")
    with Terminal([*cli.argv, "run", "--decide", "--", "echo", "ran"], env=cli.env) as terminal:
        terminal.expect("May this command run")
        terminal.expect(r"\[y/N\] ")
        terminal.type("y")
        terminal.expect("ran")
        assert terminal.wait() == 0
    assert "wrap" in [call.method for call in fake.calls]


def test_always_at_the_terminal_writes_the_narrowest_rule(cli: CommandLine, fake: FakeDaemon) -> None:
    key, rule = "sandbox.excludedCommands", "echo ran"
    found = [{"behavior": "allow", "scope": "always", "key": key, "rule": text, "wide": wide}
             for text, wide in ((rule, False), ("echo:*", True))]  # fmt: skip
    decided(fake, sandboxed=False, behavior="ask", question="sandbox_override", suggestions=found)
    fake.answer("settings.update", {"generation": 2, "file": "/x", "written": True})
    for answer, written in (("y", False), ("a", True)):
        with Terminal([*cli.argv, "run", "--disable-sandbox", "--", "echo", "ran"], env=cli.env) as terminal:
            terminal.expect(r"\[y/N, a: always, by echo ran\] ")
            terminal.type(answer)
            terminal.expect("^ran")
            assert terminal.wait() == 0
        last = fake.calls[-1]
        assert (last.method == "settings.update") is written
    assert last.params["changes"] == [{"act": "add", "key": key, "value": rule}]


def test_a_request_that_is_ignored_runs_inside(cli: CommandLine, fake: FakeDaemon) -> None:
    decided(fake, sandboxed=True, behavior="allow")
    done = cli.run("run", "--disable-sandbox", "-c", "echo $SANDBOX_RUNTIME", start_new_session=True)
    assert (done.returncode, done.stdout) == (0, "1\n") and "asked to run without a sandbox" in done.stderr


@pytest.mark.parametrize(("sandboxed", "behavior"), [(False, "deny"), (True, "deny")])
def test_the_wish_is_not_the_decision(cli: CommandLine, fake: FakeDaemon, sandboxed: bool, behavior: str) -> None:
    decided(fake, sandboxed=sandboxed, behavior=behavior)
    with Terminal([*cli.argv, "run", "--disable-sandbox", "--", "echo", "ran"], env=cli.env) as terminal:
        terminal.expect("cannot run without the sandbox: asked to run without a sandbox")
        assert terminal.wait() == 125
        assert not any(line.startswith("ran") for line in terminal.text.splitlines())


def test_a_confirmed_program_that_cannot_be_run(cli: CommandLine, fake: FakeDaemon) -> None:
    decided(fake, sandboxed=False, behavior="ask")
    for program, code in (("/nonexistent/x", 127), ("/etc/hostname", 126)):
        with Terminal([*cli.argv, "run", "--disable-sandbox", "--", program], env=cli.env) as terminal:
            terminal.expect(r"\[y/N\] ")
            terminal.type("yes")
            assert terminal.wait() == code


def test_a_stopped_client_can_be_killed(shell: Terminal) -> None:
    shell.type("sbx -c 'echo re''ady; exec sleep 300'")
    shell.expect("^ready")
    stop(shell)
    job = [one.pid for one in processes.descendants(shell.pid) if os.getpgid(one.pid) != os.getpgid(shell.pid)]
    shell.type("kill -KILL %1; wait %1")
    shell.expect(PROMPT)
    wait_until(lambda: not any(processes.is_alive(pid) for pid in job))
    assert signal.SIGKILL


@pytest.mark.parametrize(
    ("changes", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_where_the_terminal_takes_them(cli: CommandLine, changes: dict[str, str], colours: bool) -> None:
    env = {**cli.env, "TERM": "xterm", "NO_COLOR": "", **changes}
    with Terminal([*cli.argv, "run", "--cdw", "/"], env=env) as terminal:
        assert terminal.wait() == 2
    head = "\x1b[1;31msandboxd:\x1b[0m" if colours else "sandboxd:"
    assert terminal.text.startswith(f"{head} unknown option --cdw\r\n")
    assert cli.run("run", "--cdw", "/", env=env).stderr.startswith("sandboxd: unknown")  # a pipe has none
