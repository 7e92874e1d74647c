"""Text that no file name, command or file can hold, in every parameter of every method: an error of the caller's."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from sandboxd.rpc.dispatch import METHODS
from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient

HALF = "/x/\ud800"
NUL = "/x/a\0b"
LONG: tuple[object, ...] = ("/x/" + "a" * 65536, ["/x" * 32768])
RULES = {"sandbox": {"enabled": True, "excludedCommands": ["docker"]}, "permissions": {"deny": ["Bash(rm:*)"]}}
NEEDED: dict[str, dict[str, Any]] = {
    "should_sandbox": {"command": "ls"},
    "wrap": {"command": "true"},
    "policy.explain": {"kind": "command", "target": "ls"},
    "permission.request": {"kind": "network", "host": "a.test", "port": 1},
    "settings.update": {"changes": [{"act": "add", "key": "excludedCommands", "value": "x"}]},
    "settings.exclude_command": {"pattern": "x"},
    "settings.trust": {"action": "list"},
    "violation.annotate": {"command_id": "x", "stderr": "y"},
}


async def slug(client: RawClient, method: str, params: dict[str, Any]) -> str:
    answer = await client.call(method, params)
    return str(answer["error"]["data"]["slug"]) if "error" in answer else ""


async def refused(client: RawClient, running: RunningDaemon, method: str) -> None:
    needed = dict(NEEDED.get(method, {}))
    fields = typing.get_type_hints(METHODS[method].params)
    if "cwd" in fields:
        needed["cwd"] = str(running.around.project)
    for name in fields:
        for text in (HALF, NUL):
            for value in (text, [text], {"a": text}, {text: 1}):
                found = await slug(client, method, {**needed, name: value})
                assert found != "internal_error", (method, name, value)
                assert text != HALF or found == "invalid_params", (method, name, value, found)
    assert await slug(client, method, {**needed, HALF: 1}) == "invalid_params"


async def test_no_text_makes_the_daemon_fail() -> None:
    async with running_daemon(settings=RULES, assemble=FakeMachine().assemble) as running, running.client() as client:
        for method in METHODS.keys() - {"shutdown", "restart", "hello"}:
            await refused(client, running, method)
        async with running.client() as restricted:  # a hello that is not understood takes power from its connection
            await refused(restricted, running, "hello")
        project = str(running.around.project)
        assert await slug(client, "should_sandbox", {"command": "é \U0001f600", "cwd": project}) == ""
        assert await slug(client, "wrap", {"argv": ["é", "\U0001f600"], "cwd": project}) == ""


async def test_no_long_name_makes_the_daemon_fail() -> None:
    """Longer than the kernel takes, in one part and in many."""
    async with running_daemon(settings=RULES, assemble=FakeMachine().assemble) as running, running.client() as client:
        for method in METHODS.keys() - {"shutdown", "restart", "hello"}:
            needed = dict(NEEDED.get(method, {}))
            fields = typing.get_type_hints(METHODS[method].params)
            if "cwd" in fields:
                needed["cwd"] = str(running.around.project)
            for name in fields:
                for value in LONG:
                    found = await slug(client, method, {**needed, name: value})
                    assert found != "internal_error", (method, name, str(value)[:9])
        assert await slug(client, "wrap", NEEDED["wrap"] | {"cwd": str(running.around.project)}) == ""


@pytest.mark.parametrize("path", [NUL, "settings.json", "~/x.json", ""])
async def test_settings_of_one_command_need_an_absolute_path(path: str) -> None:
    async with running_daemon(assemble=FakeMachine().assemble) as running, running.client() as client:
        query = {"command": "true", "cwd": str(running.around.project), "overrides": {"settings": path}}
        error = await client.error("wrap", query)
        assert error["data"]["slug"] == "invalid_params" and error["data"]["parameter"] == "overrides.settings"
        query["overrides"] = {"settings": str(running.around.write(running.around.home / "x.json", {}))}
        assert await slug(client, "wrap", query) == ""


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400 + ".5"])
async def test_a_number_that_no_answer_can_hold(client: RawClient, number: str) -> None:
    client.send_bytes(f'{{"jsonrpc": "2.0", "id": {number}, "method": "hello"}}\n'.encode())
    answer = await client.receive()
    assert (answer["id"], answer["error"]["code"], answer["error"]["data"]["slug"]) == (None, -32600, "invalid_request")
    params = f'{{"grace_s": {number}}}'
    client.send_bytes(f'{{"jsonrpc": "2.0", "id": 1, "method": "shutdown", "params": {params}}}\n'.encode())
    assert (await client.receive())["error"]["code"] == -32602
    change = f'{{"act": "set", "key": "sandbox.audit.keep", "value": [{number}]}}'
    line = f'{{"jsonrpc": "2.0", "id": 2, "method": "settings.update", "params": {{"changes": [{change}]}}}}\n'
    client.send_bytes(line.encode())
    assert (await client.receive())["error"]["code"] == -32602
    batch = ", ".join(f'{{"jsonrpc": "2.0", "id": {one}, "method": "hello"}}' for one in (number, 7))
    client.send_bytes(f"[{batch}]\n".encode())
    assert {one["id"] for one in await client.receive()} == {None, 7}
    for text in ("NaN", "Infinity", "-Infinity"):
        client.send_bytes(f'{{"jsonrpc": "2.0", "id": {text}, "method": "hello"}}\n'.encode())
        assert (await client.receive())["error"]["code"] == -32700
    client.send_bytes(b'{"jsonrpc": "2.0", "id": 1.5, "method": "hello"}\n')
    assert (await client.receive())["id"] == 1.5
