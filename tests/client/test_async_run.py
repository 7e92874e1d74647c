"""The same for asyncio. What `test_run.py` says about shared code is not said again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd_client import (
    ApprovalRequired,
    AsyncClient,
    CommandDenied,
    CommandFailed,
    RpcError,
    SandboxSetupError,
)
from sandboxd_client.running.processes import kill_command, kill_group
from sandboxd_client.testing import FakeDaemon
from support import processes
from support.waiting import time_limits, wait_until_async


@pytest.fixture
async def abox(fake: FakeDaemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(fake.socket, autostart=False, timeout=20) as client:
        yield client


def in_namespace(params: Any) -> list[str]:
    return [
        "bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
        "--unshare-user", "--unshare-pid", "--as-pid-1", "--", "/bin/bash", "-c", params["command"],
    ]  # fmt: skip


async def test_streams_and_text(abox: AsyncClient) -> None:
    assert (await abox.run("cat", input=b"\xff", capture_output=True)).stdout == b"\xff"
    done = await abox.run("cat; echo e >&2; exit 7", input="é", capture_output=True, encoding="latin-1")
    assert (done.returncode, done.stdout, done.stderr) == (7, "é", "e\n")
    assert (await abox.run("printf 'a\\r\\n'", stdout=subprocess.PIPE, text=True)).stdout == "a\n"
    big = await abox.run("cat", input="x" * 2_000_000, capture_output=True, text=True)
    assert len(big.stdout) == 2_000_000
    assert (await abox.run("true", input=b"x" * 300_000)).returncode == 0


async def test_many_at_once(abox: AsyncClient) -> None:
    done = await asyncio.gather(*(abox.run(f"exit {number}") for number in range(2, 22)))
    assert [one.returncode for one in done] == list(range(2, 22))


async def test_statuses_and_check(abox: AsyncClient) -> None:
    assert (await abox.run("kill -SEGV $$")).returncode == 139
    with pytest.raises(CommandFailed) as caught:
        await abox.run(["sh", "-c", "exit 5"], check=True)
    assert caught.value.returncode == 5


async def test_a_sandbox_that_could_not_be_set_up(abox: AsyncClient, fake: FakeDaemon) -> None:
    fake.not_started("no user namespaces")
    with pytest.raises(SandboxSetupError, match="no user namespaces: said it"):
        await abox.run("echo said it >&2; exit 1", capture_output=True)
    with pytest.raises(SandboxSetupError):
        await (await abox.spawn("exit 125")).wait()
    fake.argv = lambda params: ["/nonexistent/helper"]
    with pytest.raises(SandboxSetupError):
        await abox.run("true")


@pytest.mark.parametrize("namespaced", [False, True], ids=["bare", "namespace"])
async def test_a_time_out_ends_the_whole_tree_and_keeps_the_output(
    abox: AsyncClient, fake: FakeDaemon, namespaced: bool, tmp_path: Path
) -> None:
    if namespaced:
        fake.argv = in_namespace
    before = {process.pid for process in processes.descendants()}
    tree = "sleep 300 & " + ("setsid sleep 300 & " if namespaced else "")
    deaf = f"echo begun; trap '' TERM; : > {tmp_path}/begun; while :; do sleep 300; done"
    for limit in time_limits(0.3, (tmp_path / "begun").exists):
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            await abox.run(tree + deaf, text=True, capture_output=True, timeout=limit, grace=0.1)
    output: object = (caught.value.stdout, caught.value.stderr)
    assert output == ("begun\n", "")
    await wait_until_async(lambda: {process.pid for process in processes.descendants()} <= before)


async def test_cancelling_ends_the_command(abox: AsyncClient, fake: FakeDaemon, tmp_path: Path) -> None:
    fake.argv = in_namespace
    before = {process.pid for process in processes.descendants()}
    command = f"trap 'echo cleaned > {tmp_path}/f; exit' TERM; echo > {tmp_path}/ready; sleep 300 & wait"
    task = asyncio.create_task(abox.run(command, grace=20))
    await wait_until_async(lambda: (tmp_path / "ready").exists())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "f").read_text() == "cleaned\n"
    await wait_until_async(lambda: {process.pid for process in processes.descendants()} <= before)


async def test_signals_reach_the_command(abox: AsyncClient, fake: FakeDaemon) -> None:
    fake.argv = in_namespace
    command = "trap 'echo got; exit 3' USR1; echo ready; while :; do sleep 0.01; done"
    async with await abox.spawn(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGUSR1)
        assert await process.wait() == 3
        assert await process.stdout.read() == b"got\n"
    assert await process.violations() == ()
    process.kill()


async def test_leaving_a_process_by_an_exception_ends_it(abox: AsyncClient, fake: FakeDaemon) -> None:
    with pytest.raises(RuntimeError):
        async with await abox.spawn("sleep 300") as process:
            raise RuntimeError
    assert process.returncode == 143


async def test_a_process_is_communicated_with(abox: AsyncClient) -> None:
    process = await abox.spawn("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert await process.communicate(b"x") == (b"x", None)
    assert "returncode=0" in repr(process) and process.wrap is not None
    with pytest.raises(ValueError, match="of bytes"):
        await abox.spawn("true", text=True)


async def test_decisions(abox: AsyncClient, fake: FakeDaemon) -> None:
    reason = {"type": "rule", "text": "because"}
    fake.answer("should_sandbox", {"sandboxed": False, "behavior": "ask", "reason": reason})
    with pytest.raises(ApprovalRequired):
        await abox.run("true", decide=True)

    async def approve(decision: object) -> bool:
        return True

    assert not (await abox.run("true", decide=True, approve=approve)).sandboxed
    fake.answer("should_sandbox", {"sandboxed": False, "behavior": "deny", "reason": reason})
    with pytest.raises(CommandDenied):
        await abox.run("true", decide=True, approve=approve)
    with pytest.raises(ValueError, match="decide=True"):
        await abox.run("true", dangerously_disable_sandbox=True)


async def test_sessions(abox: AsyncClient, fake: FakeDaemon, tmp_path: Path) -> None:
    async with abox.session(tmp_path) as session:
        assert (await session.run("pwd", capture_output=True, text=True)).stdout.strip() == str(tmp_path)
        assert await (await session.spawn("exit 4")).wait() == 4
        await session.policy_effective()
    assert fake.wait_for_call("session.close").params["session_id"] == session.id
    gone = RpcError("session_unknown", "gone")
    fake.answer("session.close", gone)
    async with abox.session(tmp_path) as session:
        first = session.id
        fake.disconnect()
        answers = iter([gone, fake._wrap])

        def wrap(params: Any) -> Any:
            answer = next(answers)
            return answer(params) if callable(answer) else answer

        fake.answer("wrap", wrap)
        assert (await session.run("exit 4")).returncode == 4
        assert session.id != first
    with pytest.raises(RuntimeError, match="not open"):
        _ = abox.session(tmp_path).id


async def test_nothing_is_left_open(fake: FakeDaemon) -> None:
    async with AsyncClient(fake.socket, autostart=False) as box:
        await box.run("true", capture_output=True)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await box.run("true", capture_output=True)
            fake.disconnect()
            await box.status()
        await wait_until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_what_is_not_read_holds_no_end_up(abox: AsyncClient) -> None:
    """Of a command that prints without end, when asyncio's buffers are full."""
    expected = (128 + signal.SIGTERM, 128 + signal.SIGPIPE)
    async with asyncio.timeout(20):
        with pytest.raises(ZeroDivisionError):
            async with await abox.spawn("yes", stdout=subprocess.PIPE, grace=1000) as process:
                output: Any = process.stdout
                await wait_until_async(lambda: output._paused, "asyncio reads no more")
                assert await process.stop() in expected
                raise ZeroDivisionError
        assert process.returncode in expected
        for _ in range(20):
            run = asyncio.ensure_future(abox.run("yes", capture_output=True, grace=1000))
            for _ in range(30):
                await asyncio.sleep(0.001)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run


async def test_a_number_of_another_process_gets_no_signal() -> None:
    async with asyncio.timeout(20):
        shell = await asyncio.create_subprocess_exec("sh", "-c", "setsid sleep 300 & echo $!; wait $!", stdout=-1)
        assert shell.stdout is not None
        other = int(await shell.stdout.readline())
        await wait_until_async(lambda: os.getpgid(other) == other)
        for group in (False, True):
            kill_command(other, group=group)
        kill_group(other)
        assert processes.is_alive(other)
        os.kill(other, signal.SIGKILL)
        assert await shell.wait() == 128 + signal.SIGKILL
        own = await asyncio.create_subprocess_exec("sleep", "300", start_new_session=True)
        kill_command(own.pid, group=True)
        assert await own.wait() == -signal.SIGKILL
