"""`settings.trust` and the question of kind `trust`: a person trusts what was shown, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.daemon import RunningDaemon
from support.rpc import RawClient

OPENING = {"sandbox": {"network": {"allowedDomains": ["a.test"]}, "enabled": True}}
WIDER = {"sandbox": {"network": {"allowedDomains": ["a.test", "b.test"]}}}


def write(running: RunningDaemon, values: Any) -> Path:
    return running.around.write(running.around.project / ".claude" / "settings.local.json", values)


async def show(client: RawClient, running: RunningDaemon) -> Any:
    return await client.result("settings.trust", {"action": "show", "path": str(running.around.project)})


async def trust(client: RawClient, running: RunningDaemon, shown: Any) -> dict[str, Any]:
    digests = {file["path"]: file["sha256"] for file in shown["files"]}
    params = {"action": "trust", "path": str(running.around.project), "digests": digests}
    answer: dict[str, Any] = await client.call("settings.trust", params)
    return answer


async def host(client: RawClient, running: RunningDaemon, name: str) -> str:
    params = {"kind": "host", "target": name, "cwd": str(running.around.project)}
    return str((await client.result("policy.explain", params))["behavior"])


async def test_what_was_shown_is_what_is_trusted(client: RawClient, running: RunningDaemon) -> None:
    file = write(running, OPENING)
    assert await host(client, running, "a.test") != "allow"
    shown = await show(client, running)
    assert [(one["key"], one["value"]) for one in shown["widens"]] == [
        ("sandbox.network.allowedDomains", "a.test"),
    ]
    assert [(one["path"], one["state"]) for one in shown["files"]] == [(str(file), "untrusted")]
    write(running, WIDER)
    refused = await trust(client, running, shown)
    assert refused["error"]["data"]["slug"] == "trust_changed"
    assert await host(client, running, "b.test") != "allow"
    shown = await show(client, running)
    assert (await trust(client, running, shown))["result"]["files"][0]["state"] == "trusted"
    assert await host(client, running, "b.test") == "allow"
    listed = await client.result("settings.trust", {"action": "list"})
    assert [(one["directory"], one["files"]) for one in listed["trusted"]] == [
        (str(running.around.project), [".claude/settings.local.json"])
    ]
    write(running, OPENING)
    await client.result("settings.reload")
    assert await host(client, running, "b.test") != "allow" and await host(client, running, "a.test") != "allow"
    assert (await show(client, running))["files"][0]["difference"]
    removed = await client.result("settings.trust", {"action": "remove", "path": str(running.around.project)})
    assert removed["done"] and not (await client.result("settings.trust", {"action": "list"}))["trusted"]


async def test_managed_settings_forbid_it_and_void_what_was_trusted(client: RawClient, running: RunningDaemon) -> None:
    write(running, OPENING)
    await trust(client, running, await show(client, running))
    assert await host(client, running, "a.test") == "allow"
    running.around.write(running.around.managed_settings, {"sandbox": {"allowProjectTrust": False}})
    await client.result("settings.reload")
    shown = await show(client, running)
    assert not shown["permitted"]
    assert await host(client, running, "a.test") != "allow"
    assert (await trust(client, running, shown))["error"]["data"]["slug"] == "trust_forbidden"


async def test_a_changed_content_is_asked_about_once(client: RawClient, running: RunningDaemon) -> None:
    write(running, OPENING)
    await trust(client, running, await show(client, running))
    await client.result("permission.subscribe")
    write(running, WIDER)
    await client.result("settings.reload")
    query = {"command": "true", "cwd": str(running.around.project)}
    wrapped = await client.result("wrap", query)
    assert any("not the content that was trusted" in warning for warning in wrapped["warnings"])
    await client.result("wrap", query)
    await _until(lambda: len(running.daemon.permissions.prompts.open()) == 1)
    (asked,) = (await client.result("permission.list"))["open"]
    assert (asked["kind"], asked["project"], asked["scopes"]) == ("trust", str(running.around.project), ["always"])
    assert any("b.test" in line for line in asked["warnings"])
    answer = {"request_id": asked["request_id"], "behavior": "allow", "scope": "always"}
    assert asked["wide"]
    refused = await client.error("sandbox_permission_response", answer)
    assert refused["data"]["slug"] == "confirmation_needed" and await host(client, running, "b.test") != "allow"
    answer["confirm"] = True
    assert (await client.result("sandbox_permission_response", answer))["behavior"] == "allow"
    assert await host(client, running, "b.test") == "allow"


async def test_an_answer_to_what_is_there_no_more_trusts_nothing(client: RawClient, running: RunningDaemon) -> None:
    write(running, OPENING)
    await trust(client, running, await show(client, running))
    await client.result("permission.subscribe")
    write(running, WIDER)
    await client.result("settings.reload")
    query = {"command": "true", "cwd": str(running.around.project)}
    await client.result("wrap", query)
    await _until(lambda: len(running.daemon.permissions.prompts.open()) == 1)
    (asked,) = (await client.result("permission.list"))["open"]
    write(running, {"sandbox": {"network": {"allowedDomains": ["c.test"]}}})
    answer = {"request_id": asked["request_id"], "behavior": "allow", "scope": "always", "confirm": True}
    assert (await client.error("sandbox_permission_response", answer))["data"]["slug"] == "trust_changed"
    deny = {"request_id": asked["request_id"], "behavior": "deny"}
    await client.result("sandbox_permission_response", deny)
    for name in ("b.test", "c.test"):
        assert await host(client, running, name) != "allow"


async def test_a_session_that_asks_nobody_does_not_ask(client: RawClient, running: RunningDaemon) -> None:
    write(running, OPENING)
    await trust(client, running, await show(client, running))
    await client.result("permission.subscribe")
    write(running, WIDER)
    await client.result("settings.reload")
    session = await client.result("session.open", {"cwd": str(running.around.project), "permission_mode": "none"})
    error = await client.error("wrap", {"command": "true", "session_id": session["session_id"]})
    assert error["data"]["slug"] == "mode_none"
    session = await client.result("session.open", {"cwd": str(running.around.project), "permission_mode": "plan"})
    await client.result("wrap", {"command": "true", "session_id": session["session_id"]})
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "trust-question"]


async def allow(client: RawClient, running: RunningDaemon, name: str) -> Any:
    change = {"act": "add", "key": "sandbox.network.allowedDomains", "value": name}
    params = {"changes": [change], "cwd": str(running.around.project), "project": True}
    return await client.result("settings.update", params)


async def test_what_a_person_adds_to_a_project_stays_trusted(client: RawClient, running: RunningDaemon) -> None:
    added = await allow(client, running, "a.test")
    file = running.around.project / ".claude" / "settings.local.json"
    assert (added["file"], added["written"], added["warnings"]) == (str(file), True, [])
    assert await host(client, running, "a.test") == "allow"
    await allow(client, running, "b.test")
    assert await host(client, running, "b.test") == "allow"
    file.write_text(file.read_text().replace("a.test", "c.test"))
    await client.result("settings.reload")
    assert (await allow(client, running, "d.test"))["warnings"]
    for name in ("a.test", "b.test", "c.test", "d.test"):
        assert await host(client, running, name) != "allow", "what was put in between is not trusted along with it"


async def test_a_file_that_only_tightened_is_trusted_with_additions(client: RawClient, running: RunningDaemon) -> None:
    write(running, {"sandbox": {"network": {"deniedDomains": ["x.test"]}}})
    await allow(client, running, "a.test")
    assert await host(client, running, "a.test") == "allow"


async def test_a_project_does_not_lead_the_change_elsewhere(client: RawClient, running: RunningDaemon) -> None:
    elsewhere = running.around.home / ".claude"
    elsewhere.mkdir(exist_ok=True)
    (running.around.project / ".claude").symlink_to(elsewhere)
    change = {"act": "add", "key": "sandbox.network.allowedDomains", "value": "a.test"}
    params = {"changes": [change], "cwd": str(running.around.project), "project": True}
    assert (await client.error("settings.update", params))["data"]["slug"] == "settings_unwritable"
    assert await host(client, running, "a.test") != "allow"


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")
