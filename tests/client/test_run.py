"""`run` and `spawn`: what people know from subprocess. The fake's argv is bare, or makes a real pid namespace."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sandboxd_client import (
    ApprovalRequired,
    Client,
    CommandDenied,
    CommandFailed,
    CommandRefused,
    InvalidCommand,
    Process,
    RpcError,
    SandboxOffWarning,
    SandboxSetupError,
)
from sandboxd_client.testing import FakeDaemon
from support import processes
from support.waiting import time_limits, wait_until


def in_namespace(params: Any) -> list[str]:
    """A pid namespace as the real argv makes it: bubblewrap, and below it process 1."""
    argv = ["/bin/bash", "-c", params["command"]] if "command" in params else params["argv"]
    return [
        "bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
        "--unshare-user", "--unshare-pid", "--as-pid-1", "--", *argv,
    ]  # fmt: skip


def stopped(reason: str = "a rule") -> dict[str, Any]:
    return {"type": "rule", "text": reason}


def test_a_string_is_a_shell_line_and_a_list_an_argv(box: Client, fake: FakeDaemon) -> None:
    assert box.run("echo $((1+1)) | cat", capture_output=True, text=True).stdout == "2\n"
    assert box.run(["echo", "$HOME", "a b"], capture_output=True, text=True).stdout == "$HOME a b\n"
    assert box.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\n"


def test_streams_as_in_subprocess(box: Client, tmp_path: Path) -> None:
    assert box.run("cat", input=b"\xff\n", capture_output=True).stdout == b"\xff\n"
    assert box.run("cat", input="é", capture_output=True, encoding="latin-1").stdout == "é"
    assert box.run("printf 'a\\r\\n'", stdout=subprocess.PIPE, universal_newlines=True).stdout == "a\n"
    both = box.run("echo out; echo err >&2", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert both.stdout == "out\nerr\n" and not both.stderr
    with open(tmp_path / "f", "w+") as file:
        box.run("echo written", stdout=file)
        file.seek(0)
        assert file.read() == "written\n"
    with open(tmp_path / "f") as file:
        assert box.run("cat", stdin=file, capture_output=True, text=True).stdout == "written\n"
    assert box.run("wc -c", input="x" * 300_000, capture_output=True, text=True).stdout.strip() == "300000"


def test_a_directory_and_an_environment(box: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web").mkdir()
    monkeypatch.chdir(tmp_path)
    assert box.run("pwd", cwd="web", capture_output=True, text=True).stdout.strip() == str(tmp_path / "web")
    monkeypatch.setenv("INHERITED", "yes")
    show = 'echo "$INHERITED $SANDBOX_RUNTIME"'
    assert box.run(show, capture_output=True, text=True).stdout == "yes 1\n"
    assert box.run(show, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True).stdout == " 1\n"


def test_what_the_daemon_takes_out_of_the_environment_stays_out(box: Client, fake: FakeDaemon) -> None:
    def wrap(params: Any) -> Any:
        answer = fake._wrap(params)
        answer["env"] = {"set": {"ADDED": "1"}, "unset": ["SECRET"]}
        return answer

    fake.answer("wrap", wrap)
    done = box.run('echo "$ADDED${SECRET-none}"', env={"SECRET": "s"}, capture_output=True, text=True)
    assert done.stdout == "1none\n"


def test_the_exit_status_is_the_commands(box: Client) -> None:
    assert box.run("exit 7").returncode == 7
    assert box.run("kill -SEGV $$").returncode == 139
    assert box.run("exit 1").returncode == 1
    assert box.run("exit 125").returncode == 125
    assert box.run(["sh", "-c", "exit 0"]).returncode == 0


def test_check_raises_with_what_was_blocked(box: Client, fake: FakeDaemon) -> None:
    violation = {
        "id": 1, "time": 1.0, "session_id": "s", "command_id": "c", "kind": "network", "operation": "CONNECT",
        "target": "no.test:443", "outcome": "hostNotListed", "source": "proxy",
    }  # fmt: skip
    fake.answer(
        "wrap.outcome",
        {"started": True, "exited": True, "status": 3, "reason": None, "violations": [violation]},
    )
    with pytest.raises(CommandFailed) as caught:
        box.run("echo out; exit 3", check=True, capture_output=True, text=True)
    assert isinstance(caught.value, subprocess.CalledProcessError)
    assert (caught.value.returncode, caught.value.stdout) == (3, "out\n")
    assert caught.value.violations[0].target == "no.test:443"
    assert "no.test:443" in str(caught.value)
    done = box.run("true")
    assert done.violations[0].operation == "CONNECT" and done.sandboxed and done.wrap is not None
    done.check_returncode()


@pytest.mark.parametrize("status", [1, 125])
def test_a_sandbox_that_could_not_be_set_up(box: Client, fake: FakeDaemon, status: int) -> None:
    fake.not_started("no user namespaces", "run: sysctl …")
    with pytest.raises(SandboxSetupError) as caught:
        box.run(f"echo 'bwrap: setting up uid map: denied' >&2; exit {status}", capture_output=True, text=True)
    assert "no user namespaces" in caught.value.message
    assert "uid map: denied" in caught.value.message
    assert caught.value.hint == "run: sysctl …"
    with pytest.raises(SandboxSetupError):
        box.spawn(f"exit {status}").wait()
    with pytest.raises(SandboxSetupError):
        box.spawn(f"exit {status}").communicate()


def test_without_the_daemon_the_status_counts(box: Client, fake: FakeDaemon) -> None:
    process = box.spawn("read x; exit 1", stdin=subprocess.PIPE)
    fake.close()
    assert process.communicate() == (None, None)
    assert process.returncode == 1
    assert process.violations == ()


def test_an_argv_that_cannot_be_spawned(box: Client, fake: FakeDaemon) -> None:
    fake.argv = lambda params: ["/nonexistent/helper"]
    with pytest.raises(SandboxSetupError) as caught:
        box.run("true")
    assert "/nonexistent/helper" in caught.value.message


def test_a_directory_that_is_not_there(box: Client, tmp_path: Path) -> None:
    with pytest.raises(SandboxSetupError) as caught:
        box.run("true", cwd=tmp_path / "missing")
    assert str(tmp_path / "missing") in caught.value.message


def test_a_command_too_long_for_an_argument(box: Client, fake: FakeDaemon) -> None:
    """The real daemon sends such a command past the argv; a fake one shows what is said where that is not done."""
    with pytest.raises(SandboxSetupError) as caught:
        box.run(": " + "x" * 200_000)
    assert caught.value.slug == "command_too_long"
    assert len(fake.calls[0].params["command"]) == 200_002


@pytest.mark.parametrize(
    ("command", "shell", "argv"),
    [
        ("a b", None, ["/bin/sh", "-c", "a b"]),
        ("a b", True, ["/bin/sh", "-c", "a b"]),
        ("a b", "/bin/bash", ["/bin/bash", "-c", "a b"]),
        (["a", "b"], None, ["a", "b"]),
        (["a", "b"], False, ["a", "b"]),
    ],
)
def test_the_shell(box: Client, fake: FakeDaemon, command: Any, shell: Any, argv: list[str]) -> None:
    seen: list[Any] = []

    def record(params: Any) -> list[str]:
        seen.append(params.get("argv") or [params.get("shell") or "/bin/sh", "-c", params["command"]])
        return ["true"]

    fake.argv = record
    box.run(command, shell=shell)
    assert seen == [argv]


@pytest.mark.parametrize(("command", "shell"), [("a", False), (["a"], True), (["a"], "/bin/sh")])
def test_a_shell_that_contradicts_the_command(box: Client, fake: FakeDaemon, command: Any, shell: Any) -> None:
    with pytest.raises(InvalidCommand):
        box.run(command, shell=shell)
    assert not fake.calls


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"capture_ouput": True}, TypeError),
        ({"preexec_fn": print}, TypeError),
        ({"input": b"", "stdin": subprocess.PIPE}, ValueError),
        ({"capture_output": True, "stdout": subprocess.PIPE}, ValueError),
        ({"dangerously_disable_sandbox": True}, ValueError),
    ],
)
def test_wrong_keywords_are_refused_before_anything_happens(
    box: Client, fake: FakeDaemon, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        box.run("true", **options)
    assert not fake.calls
    if "capture_ouput" in options:
        assert "did you mean 'capture_output'" in str(caught.value)


def test_overrides_travel(box: Client, fake: FakeDaemon) -> None:
    box.run("true", overrides={"allow_domains": ["ok.test"], "settings": "/f"}, command_id="c1")
    assert fake.wait_for_call("wrap").params["overrides"] == {
        "allow_domains": ["ok.test"], "allow_write": [], "allow_read": [], "settings": "/f",
    }  # fmt: skip
    assert fake.wait_for_call("wrap").params["command_id"] == "c1"


def test_ports_to_publish_travel(box: Client, fake: FakeDaemon) -> None:
    box.run("true", publish=[3000, "0:80"], overrides={"publish": ["[::1]:1:2"]})
    assert fake.wait_for_call("wrap").params["overrides"]["publish"] == ["[::1]:1:2", "3000", "0:80"]
    with pytest.raises(TypeError, match="list of ports"):
        box.run("true", publish="3000")


# time-outs and signals


@pytest.mark.parametrize("namespaced", [False, True], ids=["bare", "namespace"])
def test_a_time_out_ends_the_whole_tree_and_keeps_the_output(
    box: Client, fake: FakeDaemon, namespaced: bool, tmp_path: Path
) -> None:
    """Grandchildren, also those in a session of their own, do not survive."""
    if namespaced:
        fake.argv = in_namespace
    before = {process.pid for process in processes.descendants()}
    tree = "sleep 300 & (nohup sleep 300 >/dev/null 2>&1 &); " + ("setsid sleep 300 & " if namespaced else "")
    deaf = f"echo begun; trap '' TERM; : > {tmp_path}/begun; while :; do sleep 300; done"
    for limit in time_limits(0.3, (tmp_path / "begun").exists):
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            box.run(tree + deaf, text=True, capture_output=True, timeout=limit, grace=0.1)
    output: object = (caught.value.stdout, caught.value.stderr)
    assert output == ("begun\n", "")
    assert caught.value.timeout == limit
    wait_until(lambda: {process.pid for process in processes.descendants()} <= before, "everything is gone")


def test_after_a_time_out_the_command_may_clean_up(box: Client, fake: FakeDaemon, tmp_path: Path) -> None:
    fake.argv = in_namespace
    command = f"trap 'echo cleaned; exit 3' TERM; echo begun; : > {tmp_path}/begun; sleep 300 & wait"
    for limit in time_limits(0.5, (tmp_path / "begun").exists):
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            box.run(command, capture_output=True, timeout=limit, grace=20)
    assert caught.value.output == b"begun\ncleaned\n"


@pytest.mark.parametrize("namespaced", [False, True], ids=["bare", "namespace"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command(box: Client, fake: FakeDaemon, namespaced: bool, number: signal.Signals) -> None:
    """Bubblewrap passes none on, so they go to the sandbox's process 1."""
    if namespaced:
        fake.argv = in_namespace
    name = number.name.removeprefix("SIG")
    command = f"trap 'echo got; exit 3' {name}; echo ready; while :; do sleep 0.01; done"
    with box.spawn(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert process.poll() is None and process.returncode is None
        process.send_signal(number)
        assert process.wait() == 3
        assert process.stdout.read() == "got\n"
    process.send_signal(number)  # one that is gone is no error


def test_a_signal_before_the_command_runs_takes_the_sandbox_down(box: Client, fake: FakeDaemon) -> None:
    """The kernel drops signals that a process 1 does not listen to; then the sandbox itself is signalled."""
    fake.argv = in_namespace
    with box.spawn("exec sleep 300", stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: [p for p in processes.descendants(process.pid) if p.name == "sleep"])
        process.terminate()
        assert process.wait() == 143


def test_stopping_and_going_on(box: Client, fake: FakeDaemon) -> None:
    def states() -> set[str]:
        found = [processes.read_process(p.pid) for p in processes.descendants(process.pid)]
        return {p.state for p in found if p is not None and p.name == "sleep"}

    fake.argv = in_namespace
    with box.spawn("sleep 300; :") as process:
        wait_until(lambda: states() == {"S"})
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: states() == {"T"})
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: states() == {"S"})
        process.kill()
        assert process.wait() == 137


def test_stop_waits_for_a_grace_then_kills(box: Client, fake: FakeDaemon) -> None:
    fake.argv = in_namespace
    with box.spawn("trap : TERM; echo ready; while :; do sleep 1; done", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert process.stop(grace=0.05) == 137


def test_a_command_outlives_the_thread_that_started_it(box: Client, fake: FakeDaemon) -> None:
    """A parent-death signal would follow the thread."""
    started: list[Process] = []

    def start() -> None:
        started.append(box.spawn("read x; echo ok", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    fake.argv = in_namespace
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert started[0].communicate("go\n") == ("ok\n", None)
    assert started[0].returncode == 0


def test_an_exception_in_the_caller_ends_the_command(
    box: Client, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    before = {process.pid for process in processes.descendants()}
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        box.run("sleep 300")
    wait_until(lambda: {process.pid for process in processes.descendants()} <= before, "the command has ended")


def test_a_command_without_terminal_cannot_signal_its_caller(box: Client) -> None:
    """`kill 0` reaches the sender's process group: the caller must not be in it."""
    done = box.run("kill -TERM 0", stdin=subprocess.DEVNULL)
    assert done.returncode == 143
    group = box.run("ps -o pgid= -p $$", stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert int(group.stdout) != os.getpgid(0)
    same = box.run("ps -o pgid= -p $$", start_new_session=False, capture_output=True, text=True)
    assert int(same.stdout) == os.getpgid(0)


# decisions


def decide(fake: FakeDaemon, *, sandboxed: bool, behavior: str, **more: Any) -> None:
    reason = {"type": "excluded" if not sandboxed else "rule", "text": "because of a rule"}
    fake.answer("should_sandbox", {"sandboxed": sandboxed, "behavior": behavior, "reason": reason, "hint": "h", **more})


def methods(fake: FakeDaemon) -> list[str]:
    return [heard.method for heard in fake.calls]


def test_every_name_of_the_wish_is_sent(box: Client, fake: FakeDaemon) -> None:
    decide(fake, sandboxed=False, behavior="ask")
    wishes: tuple[Any, ...] = ({"dangerously_disable_sandbox": True}, {"dangerouslyDisableSandbox": True})
    for wish in wishes:
        with box.session("/") as session:
            for asked in (box, session):
                asked.should_sandbox("ls", **wish)
                assert fake.calls[-1].params["dangerously_disable_sandbox"] is True


def test_without_decide_it_is_always_wrapped(box: Client, fake: FakeDaemon) -> None:
    decide(fake, sandboxed=False, behavior="allow")
    assert box.run("true").sandboxed
    assert methods(fake)[0] == "wrap"


def test_a_decision_for_the_sandbox_is_followed(box: Client, fake: FakeDaemon, tmp_path: Path) -> None:
    decide(fake, sandboxed=True, behavior="allow")
    done = box.run(["ls", "a b"], decide=True, cwd=tmp_path, capture_output=True)
    assert done.sandboxed and done.decision is not None
    assert fake.calls[0].params == {
        "command": "ls 'a b'", "cwd": str(tmp_path), "dangerously_disable_sandbox": False, "path": os.environ["PATH"],
        "is_sandbox": "IS_SANDBOX" in os.environ,
    }  # fmt: skip
    assert methods(fake) == ["should_sandbox", "wrap"]


def test_violations_are_fetched_when_needed(fake: FakeDaemon) -> None:
    with Client(fake.socket) as box:
        looked = box.run(["true"])
        kept = box.run(["true"])
        box.run(["true"])
        assert methods(fake) == ["wrap"] * 3
        assert looked.violations == ()
        assert looked.violations == ()
        assert methods(fake) == [*["wrap"] * 3, "wrap.outcome"]
    assert methods(fake) == [*["wrap"] * 3, "wrap.outcome", "wrap.outcome"]
    assert kept.violations == ()
    assert methods(fake) == [*["wrap"] * 3, "wrap.outcome", "wrap.outcome"]


@pytest.mark.parametrize("command", ["echo $SANDBOX_RUNTIME; exit 3", ["sh", "-c", "echo $SANDBOX_RUNTIME; exit 3"]])
def test_only_a_decision_lets_a_command_run_bare(
    box: Client, fake: FakeDaemon, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SANDBOX_RUNTIME", raising=False)
    decide(fake, sandboxed=False, behavior="allow")
    done = box.run(command, decide=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "\n")
    assert not done.sandboxed and done.violations == ()
    assert methods(fake) == ["should_sandbox"]
    with pytest.raises(FileNotFoundError):
        box.run(["/nonexistent"], decide=True)


def test_a_denied_command_is_not_run(box: Client, fake: FakeDaemon, tmp_path: Path) -> None:
    decide(fake, sandboxed=True, behavior="deny")
    with pytest.raises(CommandDenied) as caught:
        box.run(f"touch {tmp_path}/f", decide=True, approve=lambda decision: True)
    assert "because of a rule" in caught.value.message and caught.value.hint == "h"
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("name", ["dangerously_disable_sandbox", "dangerouslyDisableSandbox"])
@pytest.mark.parametrize("approve", [None, lambda decision: False])
def test_a_question_nobody_approves_is_a_typed_error(box: Client, fake: FakeDaemon, approve: Any, name: str) -> None:
    decide(fake, sandboxed=False, behavior="ask")
    with pytest.raises(CommandRefused) as caught:
        box.run("true", decide=True, approve=approve, **{name: True})  # type: ignore[call-overload]
    assert type(caught.value) is (ApprovalRequired if approve is None else CommandDenied)
    assert caught.value.decision is not None
    assert fake.calls[0].params["dangerously_disable_sandbox"] is True
    assert methods(fake) == ["should_sandbox", *(["permission.request"] if approve is None else [])]


@pytest.mark.parametrize(
    ("sandboxed", "behavior", "by", "outcome", "error"),
    [
        (False, "allow", "pid 1", "answered", None),
        (True, "allow", "pid 1", "answered", None),
        (True, "allow", "policy", "", None),
        (False, "allow", "policy", "", CommandDenied),
        (False, "allow", None, "", ApprovalRequired),
        (False, "deny", None, "no_subscriber", ApprovalRequired),
        (True, "deny", None, "no_subscriber", ApprovalRequired),
        (True, "deny", None, "timed_out", CommandDenied),
        (False, "deny", "pid 1", "answered", CommandDenied),
        (True, "deny", "policy", "", CommandDenied),
    ],
)
def test_subscribers_are_asked_where_there_is_no_callback(
    box: Client, fake: FakeDaemon, sandboxed: bool, behavior: str, by: Any, outcome: str, error: Any
) -> None:
    kind = "command" if sandboxed else "sandbox_override"
    decide(fake, sandboxed=sandboxed, behavior="ask", question=kind)
    answer = {"behavior": behavior, "scope": "once", "by": by, "text": "so", "outcome": outcome, "env": {"T": "x"}}
    fake.answer("permission.request", answer)
    with contextlib.nullcontext() if error is None else pytest.raises(error):
        done = box.run("echo ${T-}", decide=True, capture_output=True, text=True, annotate=False)
        assert done.sandboxed is sandboxed and done.stdout == ("\n" if sandboxed else "x\n")
    (asked,) = [call.params for call in fake.calls if call.method == "permission.request"]
    assert (asked["kind"], asked["command"]) == (kind, "echo ${T-}")


def test_a_bare_run_by_settings_is_said_once_for_each_session(box: Client, fake: FakeDaemon) -> None:
    origin = {"source": "user", "key": "sandbox.enabled", "file": "/u.json", "line": 3}
    reason = {"type": "sandboxDisabled", "text": "the sandbox is off", "origin": origin}
    fake.answer("should_sandbox", {"sandboxed": False, "behavior": "allow", "reason": reason})
    with pytest.warns(SandboxOffWarning, match="without a sandbox: the sandbox is off by /u.json:3") as caught:
        assert not box.run("true", decide=True).sandboxed
        box.run("true", decide=True)
        with box.session() as session:
            session.run("true", decide=True)
            session.run("true", decide=True)
    assert len(caught) == 2 and caught[0].filename == __file__


@pytest.mark.parametrize(
    ("options", "annotated"),
    [
        ({"capture_output": True, "text": True}, "stderr"),
        ({"stderr": subprocess.STDOUT, "stdout": subprocess.PIPE, "text": True}, "stdout"),
        ({"capture_output": True, "text": True, "annotate": False}, None),
        ({"capture_output": True}, None),
        ({"stdout": subprocess.PIPE, "text": True}, None),
    ],
)
def test_captured_text_ends_with_the_block(box: Client, fake: FakeDaemon, options: Any, annotated: str | None) -> None:
    fake.answer("violation.annotate", lambda params: {"stderr": params["stderr"] + "BLOCK", "violations": 1})
    done = box.run("echo out; echo err >&2", **options)
    assert ("violation.annotate" in methods(fake)) is (annotated is not None)
    for stream in ("stdout", "stderr"):
        assert str(getattr(done, stream)).endswith("BLOCK") is (stream == annotated)


def test_a_text_that_cannot_be_annotated(box: Client, fake: FakeDaemon) -> None:
    with pytest.raises(ValueError, match="captured as text"):
        box.run("true", annotate=True)
    done = box.run("head -c 2000000 /dev/zero | tr '\\0' x >&2", capture_output=True, text=True)
    assert "too long to be annotated" in done.stderr[-200:] and "violation.annotate" not in methods(fake)
    fake.answer("violation.annotate", RpcError("internal_error", "no"))
    assert box.run("echo err >&2", capture_output=True, text=True).stderr == "err\n"


def test_an_approved_command_runs_as_decided(box: Client, fake: FakeDaemon) -> None:
    decide(fake, sandboxed=False, behavior="ask")
    assert not box.run("true", decide=True, approve=lambda decision: not decision.sandboxed).sandboxed
    decide(fake, sandboxed=True, behavior="ask")
    assert box.run("true", decide=True, approve=lambda decision: True).sandboxed


def test_no_error_of_the_daemon_makes_a_command_run_bare(box: Client, fake: FakeDaemon, tmp_path: Path) -> None:
    for method in ("should_sandbox", "wrap"):
        fake.answer(method, RpcError("internal_error", "broken"))
        with pytest.raises(RpcError):
            box.run(f"touch {tmp_path}/f", decide=True)
        fake.answer(method, {"nonsense": True})
        with pytest.raises(Exception, match="cannot read the answer"):
            box.run(f"touch {tmp_path}/f", decide=True)
        fake._answers.clear()
    assert not (tmp_path / "f").exists()


# sessions


def test_a_session_is_sent_along_and_closed(box: Client, fake: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with box.session(tmp_path, name="agent", permission_mode="none") as session:
        assert session.run("pwd", cwd="sub", capture_output=True, text=True).stdout.strip() == str(tmp_path / "sub")
        session.spawn("true").wait()
        session.should_sandbox("ls")
        session.wrap(argv=["ls"])
        session.policy_explain("path", "x")
        session.policy_effective()
        session.policy_describe()
        session.settings_get()
    assert fake.calls[0].params == {
        "cwd": str(tmp_path), "name": "agent", "permission_mode": "none", "detach": False,
    }  # fmt: skip
    in_session = [heard for heard in fake.calls[1:] if heard.method != "wrap.outcome"]
    assert {heard.params["session_id"] for heard in in_session} == {session.id}
    assert fake.calls[-1].method == "session.close"
    assert {heard.params.get("cwd") for heard in in_session if heard.method == "policy.explain"} == {str(tmp_path)}


def test_after_a_restart_a_session_is_opened_again(box: Client, fake: FakeDaemon) -> None:
    known: set[str] = set()

    def open_session(params: Any) -> Any:
        answer = fake._session_open(params)
        known.add(answer["session_id"])
        return answer

    def wrap(params: Any) -> Any:
        if params["session_id"] not in known:
            raise RpcError("session_unknown", f"no session {params['session_id']}")
        return fake._wrap(params)

    fake.answer("session.open", open_session)
    fake.answer("wrap", wrap)
    with box.session() as session:
        first = session.id
        fake.disconnect()
        known.clear()
        assert session.run("exit 4").returncode == 4
        assert session.id != first
        known.clear()
        with pytest.raises(RpcError):  # the connection is still the same: another client closed the session
            session.run("true")


def test_text_and_bytes_streams_of_a_process(box: Client) -> None:
    with box.spawn("cat; echo e >&2", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                   encoding="utf-8") as process:  # fmt: skip
        assert isinstance(process.stdin, io.TextIOWrapper)
        assert process.communicate("é") == ("é", "e\n")
    assert process.pid > 0 and "returncode=0" in repr(process)
