"""A question from inside a real sandbox: bubblewrap, the helper's sockets, the real gate, a loopback origin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.daemon import running_daemon
from support.origin import serve_origin
from support.rpc import RawClient

SETTINGS = {"sandbox": {"enabled": True}}


async def started(wrapped: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *wrapped["argv"],
        cwd=wrapped["cwd"],
        env={"PATH": "/usr/bin:/bin", **wrapped["env"]["set"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def told(client: RawClient, method: str) -> Any:
    while (message := await client.receive()).get("method") != method:
        pass
    return message["params"]


@pytest.mark.parametrize("behavior", ["allow", "deny"])
async def test_a_program_in_a_sandbox_waits_for_the_answer(behavior: str) -> None:
    with serve_origin() as origin:
        async with running_daemon(settings=SETTINGS, resolve={"ask.test": "127.0.0.1"}) as running:
            async with running.client() as agent, running.client() as person:
                await person.result("permission.subscribe")
                argv = ["curl", "-sSf", f"http://ask.test:{origin.port}/"]
                params = {"cwd": str(running.around.project), "argv": argv, "command_id": "c"}
                process = await started(await agent.result("wrap", params))
                question = await told(person, "sandbox_permission_request")
                assert (question["host"], question["command"]) == ("ask.test", " ".join(argv))
                assert origin.connections == []
                answer = {"request_id": question["request_id"], "behavior": behavior}
                person.request("sandbox_permission_response", answer)
                output, errors = await process.communicate()
                assert process.returncode == (0 if behavior == "allow" else 22), errors
                assert (output == origin.body) is (behavior == "allow")
                assert len(origin.connections) == (behavior == "allow")
                await told(person, "sandbox_permission_resolved")
                found = await agent.result("violation.list", {"command_id": "c"})
                assert [v["outcome"] for v in found["violations"]] == ["promptDenied"] * (behavior == "deny")


async def test_a_program_without_proxy_waits_for_the_answer() -> None:
    """The look-up asks no question: the connection does, with its port. Without subscribers there is no such name."""
    with serve_origin() as origin:
        async with running_daemon(settings=SETTINGS, resolve={"ask.test": "127.0.0.1"}) as running:
            async with running.client() as agent:
                line = f"curl -sS --noproxy '*' http://ask.test:{origin.port}/"

                async def start() -> asyncio.subprocess.Process:
                    params = {"cwd": str(running.around.project), "command": line, "command_id": "c"}
                    return await started(await agent.result("wrap", params))

                output, errors = await (await start()).communicate()
                assert output == b"" and b"Could not resolve host: ask.test" in errors
                found = await agent.result("violation.list", {"command_id": "c"})
                assert [(v["operation"], v["target"]) for v in found["violations"]] == [("DNS", "ask.test")]
                async with running.client() as person:
                    await person.result("permission.subscribe")
                    process = await start()
                    question = await told(person, "sandbox_permission_request")
                    assert (question["host"], question["port"]) == ("ask.test", origin.port)
                    assert origin.connections == []
                    answer = {"request_id": question["request_id"], "behavior": "allow"}
                    person.request("sandbox_permission_response", answer)
                    output, errors = await process.communicate()
                    assert output == origin.body, errors
