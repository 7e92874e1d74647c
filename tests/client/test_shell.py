"""`Shell`, which the modules for frameworks share, with a fake daemon: its commands are bare."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd_client.errors import RpcError, SandboxdError
from sandboxd_client.integrations import MissingExtra, Ran, Shell
from sandboxd_client.testing import FakeDaemon
from support.waiting import wait_until

ADAPTERS = {
    "openai_agents": "openai-agents",
    "openai_sandbox": "openai-agents",
    "langchain": "langchain",
    "deepagents": "deepagents",
    "claude_agent": "claude-agent-sdk",
    "pydantic_ai": "pydantic-ai",
    "smolagents": "smolagents",
    "crewai": "crewai",
}


@pytest.fixture
def shell(fake: FakeDaemon, tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path, socket=fake.socket, autostart=False, max_output=100) as shell:
        yield shell


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo out; echo err >&2; exit 3", Ran(3, "out\n", "err\n")),
        ("printf é", Ran(0, "é")),
        ("pwd", Ran(0, "{cwd}\n")),
        ("echo ${SANDBOX_RUNTIME-none} ${SOME_TOKEN-none}", Ran(0, "1 none\n")),
        (
            "seq 40",
            Ran(0, "".join(f"{n}\n" for n in range(1, 21))[:50] + "\n[sandboxd: 11 bytes are left out here]\n"
                "" + "".join(f"{n}\n" for n in range(1, 41))[-50:], cut=True),
        ),
    ],
)  # fmt: skip
def test_a_command_has_one_result(
    line: str, expected: Ran, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    done = shell.run(line)
    assert done.stdout == expected.stdout.format(cwd=tmp_path)
    assert (done.status, done.stderr, done.cut) == (expected.status, expected.stderr, expected.cut)
    assert asyncio.run(shell.arun(line)) == done, "the same from an event loop"


@pytest.mark.parametrize(
    ("ran", "text"),
    [
        (Ran(0, "a\n"), "a\n"),
        (Ran(0), ""),
        (Ran(2, "a", "b"), "a\nb\n[exit status 2]"),
        (Ran(1), "[exit status 1]"),
        (Ran(None, "a\n", timed_out=True), "a\n[timed out: all its processes were ended]"),
        (Ran(None, refusal="no (hint)"), "not run: no (hint)"),
    ],
)
def test_the_text_for_a_model_says_how_it_ended(ran: Ran, text: str) -> None:
    assert ran.text == text


def test_a_time_out_keeps_the_output_so_far(shell: Shell) -> None:
    done = shell.run("echo begun; exec sleep 1000", timeout=0.3)
    assert (done.status, done.stdout, done.timed_out) == (None, "begun\n", True)


def test_output_is_told_while_a_command_runs(shell: Shell) -> None:
    told: list[tuple[str, str]] = []
    gone = threading.Event()
    running = threading.Thread(
        target=lambda: shell.run("echo one; read x <go; echo two >&2", tell=lambda *piece: told.append(piece))
    )
    os.mkfifo(os.path.join(shell.cwd, "go"))
    running.start()
    wait_until(lambda: told == [("stdout", "one\n")], "the first piece")
    Path(shell.cwd, "go").write_text("x\n")
    running.join()
    gone.set()
    assert told == [("stdout", "one\n"), ("stderr", "two\n")]


def test_a_function_that_fails_holds_up_no_command(shell: Shell) -> None:
    with pytest.raises(ZeroDivisionError):
        shell.run("seq 100000; echo end >done", tell=lambda name, text: 1 / 0)
    assert Path(shell.cwd, "done").read_text() == "end\n"


def test_a_cancelled_call_ends_its_command_first(shell: Shell, tmp_path: Path) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(shell.arun("echo $$ >new; mv new pid; exec sleep 1000"))
        await asyncio.to_thread(wait_until, lambda: (tmp_path / "pid").exists(), "the command runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")

    asyncio.run(cancelled())
    assert shell.run("echo on").stdout == "on\n", "the session goes on"


def test_commands_run_in_the_background(shell: Shell) -> None:
    name = shell.start("echo up; exec sleep 1000")
    assert shell.read(name, 20).stdout == "up\n"
    assert shell.read(name, 0).status is None
    assert shell.stop(name).status == 143
    with pytest.raises(SandboxdError, match="no command"):
        shell.read(name)


def test_what_refuses_a_command_is_its_result(shell: Shell, fake: FakeDaemon) -> None:
    reason = {"type": "rule", "text": "denied by Bash(rm:*)"}
    fake.answer("should_sandbox", {"sandboxed": True, "behavior": "deny", "reason": reason, "hint": "ask the user"})
    assert shell.run("rm x") == Ran(None, refusal="the command is denied: denied by Bash(rm:*) (ask the user)")
    fake.answer("should_sandbox", RpcError("internal_error", "broken"))
    assert shell.run("echo x").text == "not run: broken"


@pytest.mark.parametrize("answer", [True, False, "yes"])
def test_questions_reach_the_function(answer: Any, fake: FakeDaemon, tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(text: str) -> Any:
        asked.append(text)
        return answer

    reason = {"type": "rule", "text": "ask for it"}
    fake.answer("should_sandbox", {"sandboxed": True, "behavior": "ask", "reason": reason})
    with Shell(tmp_path, socket=fake.socket, autostart=False, ask=ask) as shell:
        done = shell.run("echo ran")
        assert done.stdout == ("ran\n" if answer is True else ""), "only True is a yes"
        assert asked == ["Run 'echo ran'? (ask for it)"]
        [session] = {call.params.get("session_id") for call in fake.calls if call.method == "should_sandbox"}
        for name, about in (("q-1", session), ("q-2", "session-of-another")):
            question = {
                "request_id": name, "session_id": about, "kind": "network", "text": name, "scopes": ["once"],
                "host": "ok.test", "port": 443, "expires_at": 0.0,
            }  # fmt: skip
            fake.notify("sandbox_permission_request", question)
        wait_until(lambda: any(call.method == "sandbox_permission_response" for call in fake.calls), "an answer")
    answers = [call.params for call in fake.calls if call.method == "sandbox_permission_response"]
    assert [(one["request_id"], one["behavior"]) for one in answers] == [("q-1", "allow" if answer is True else "deny")]


def test_a_child_after_a_fork_has_its_own_session(shell: Shell) -> None:
    shell.run("true")
    if not (child := os.fork()):
        os._exit(0 if shell.run("echo child").stdout == "child\n" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_framework_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without(wanted: str, *rest: Any, **keywords: Any) -> Any:
        if wanted.split(".")[0] in ("agents", "langchain", "deepagents", "claude_agent_sdk", "pydantic_ai", *ADAPTERS):
            raise ModuleNotFoundError(f"No module named {wanted!r}")
        return real(wanted, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra) as missing:
        importlib.import_module(f"sandboxd_client.integrations.{name}")
    assert str(missing.value).endswith(f": install it with: pip install 'sandboxd-client[{ADAPTERS[name]}]'")
    assert "\n" not in str(missing.value)


def test_a_closed_shell_ends_the_calls_of_other_threads(shell: Shell, tmp_path: Path) -> None:
    said: list[object] = []

    def call() -> None:
        try:
            said.append(shell.run("touch up; exec sleep 1000"))
        except SandboxdError as error:
            said.append(error.slug)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    wait_until(lambda: (tmp_path / "up").exists(), "the command runs")
    shell.close()
    thread.join(20)
    assert said == ["session_closed"]
    assert shell.run("echo again").stdout == "again\n", "a later call opens another session"
