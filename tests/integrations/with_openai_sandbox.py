"""The SandboxAgent of the OpenAI Agents SDK with its own loop, its own scripted model, and the example."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

from agents import set_tracing_disabled
from agents.sandbox import ExecTimeoutError, WorkspaceArchiveWriteError
from agents.testing import ScriptedModel, assistant_message, function_call

from examples.frameworks.openai_sandbox import answer
from integrations.checks import COMMANDS, LONG, OUTSIDE, check, runs, started
from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.openai_sandbox import SandboxdSandboxClient


async def agent() -> None:
    calls = [function_call("exec_command", json.dumps({"cmd": one}), call_id=f"c{n}") for n, one in enumerate(COMMANDS)]
    model = ScriptedModel([*([one] for one in calls), [assistant_message("done")]])
    assert await answer(model, "go") == "done"
    check([one["output"] for one in model.calls[-1].input if one.get("type") == "function_call_output"])


async def session() -> None:
    async with Shell() as shell:
        client = SandboxdSandboxClient(shell)
        async with await client.create() as box:
            await box.write(Path("deep/file"), io.BytesIO(b"\xff\0"))
            assert Path("deep/file").read_bytes() == (await box.read(Path("deep/file"))).read() == b"\xff\0"
            assert [Path(one.path).name for one in await box.ls("deep") if "file" in one.path] == ["file"]
            await box.rm("deep", recursive=True)
            assert not Path("deep").exists()
            try:
                await box.write(Path(".vscode/tasks.json"), io.BytesIO(b"x"))
            except WorkspaceArchiveWriteError:
                assert not Path(".vscode/tasks.json").exists()
            else:
                raise AssertionError("a protected name was written")
            refused = await box.exec(f"touch {OUTSIDE}")
            assert refused.exit_code == 1 and b"<sandbox_violations>" in refused.stderr and not OUTSIDE.exists()
            try:
                await box.exec(f"setsid {LONG} & wait", timeout=1)
            except ExecTimeoutError:
                assert not runs(LONG)
            else:
                raise AssertionError("no time-out")
            task = asyncio.create_task(box.exec(f"setsid {LONG} & wait"))
            await started(LONG)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not runs(LONG)
            state = client.deserialize_session_state(client.serialize_session_state(box.state))
            assert (await (await client.resume(state)).exec("echo again")).stdout == b"again\n"


set_tracing_disabled(True)
asyncio.run(agent())
asyncio.run(session())
