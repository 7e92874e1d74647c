"""`settings.get` and `settings.reload`: what holds, where it comes from, and what a broken file changes: nothing."""

from __future__ import annotations

from typing import Any

import pytest

from support.daemon import RunningDaemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient
from support.waiting import wait_until_async

DENY = {"sandbox": {"enabled": True, "network": {"deniedDomains": ["bad.test"]}}}
BROKEN = {
    "not closed": '{"sandbox": {"network": {"deniedDomains": ["bad.test"]}',
    "cut in the middle": '{"sandbox": {"netwo',
    "not utf-8": "\udcff",
    "wrong type": '{"sandbox": {"network": {"deniedDomains": "bad.test"}}}',
    "NUL": '{"sandbox": \0}',
    "no object": "[]",
}


async def host(client: RawClient, name: str, **params: Any) -> str:
    return str((await client.result("policy.explain", {"kind": "host", "target": name, **params}))["behavior"])


def write(running: RunningDaemon, settings: Any) -> None:
    path = running.around.user_settings
    if isinstance(settings, str) and "\udcff" in settings:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(settings.encode("utf-8", "surrogateescape"))
    else:
        running.around.write(path, settings)


async def test_values_come_with_their_origins(client: RawClient, running: RunningDaemon) -> None:
    network = '"network": {"allowedDomains": ["a.test", "b.test"]}'
    write(running, f'{{\n  "sandbox": {{\n    "enabled": true,\n    {network}\n  }}\n}}')
    await client.result("settings.reload")
    result = await client.result("settings.get")
    values = {value["key"]: value for value in result["values"]}
    assert values["sandbox.enabled"]["value"] is True
    assert values["sandbox.enabled"]["origins"] == [
        {
            "source": "user",
            "key": "sandbox.enabled",
            "file": str(running.around.user_settings),
            "line": 3,
            "column": 16,
        }
    ]
    assert values["sandbox.network.allowedDomains"]["value"] == ["a.test", "b.test"]
    assert [o["line"] for o in values["sandbox.network.allowedDomains"]["origins"]] == [4, 4]
    assert values["sandbox.failIfUnavailable"]["origins"][0]["source"] == "default"
    assert result["problems"] == []


@pytest.mark.parametrize(
    ("key", "found"),
    [("sandbox.enabled", 1), ("sandbox.network", None), ("sandbox.netw", 0), ("nothing", 0), ("sandbox.enabled.x", 0)],
)
async def test_one_key_and_those_below_it(client: RawClient, key: str, found: int | None) -> None:
    values = (await client.result("settings.get", {"key": key}))["values"]
    assert all(value["key"] == key or value["key"].startswith(key + ".") for value in values)
    assert len(values) == found if found is not None else len(values) > 5


async def test_files_with_their_state(client: RawClient, running: RunningDaemon) -> None:
    write(running, DENY)
    running.around.write(running.around.project_settings, "{")
    await client.result("settings.reload")
    own = {f["path"]: f["state"] for f in (await client.result("settings.get"))["files"]}
    assert own[str(running.around.user_settings)] == "loaded"
    assert own[str(running.around.home / ".claude" / "settings.local.json")] == "absent"
    assert own[str(running.around.managed_settings)] == "absent"
    assert str(running.around.project_settings) not in own


async def test_reload_tells_what_changed(client: RawClient, running: RunningDaemon) -> None:
    before = (await client.result("status"))["generation"]
    unchanged = await client.result("settings.reload")
    assert (unchanged["changed"], unchanged["generation"]) == (False, before)
    write(running, DENY)
    changed = await client.result("settings.reload")
    assert changed["generation"] > before or not changed["changed"]  # the watcher may have been faster
    assert await host(client, "bad.test") == "deny"


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_file_that_breaks_changes_nothing_but_is_seen(
    client: RawClient, running: RunningDaemon, kind: str
) -> None:
    write(running, DENY)
    await client.result("settings.reload")
    generation = (await client.result("status"))["generation"]
    write(running, BROKEN[kind])
    result = await client.result("settings.reload")
    assert result["generation"] == generation
    assert any(problem["severity"] == "error" for problem in result["problems"])
    assert await host(client, "bad.test") == "deny"
    status = await client.result("status")
    assert status["enabled"] is True
    states = {f["path"]: f["state"] for f in status["settings"]}
    assert states[str(running.around.user_settings)] == "broken"
    assert any(str(running.around.user_settings) in warning for warning in status["warnings"])
    assert any(record["event"].startswith("settings are broken") for record in running.around.log.records)
    write(running, {"sandbox": {"enabled": True}})
    await client.result("settings.reload")
    assert await host(client, "bad.test") == "ask"
    assert (await client.result("status"))["warnings"] == []


async def test_the_same_broken_file_is_reported_once(client: RawClient, running: RunningDaemon) -> None:
    write(running, "{")
    for _ in range(3):
        await client.result("settings.reload")
    events = [record["event"] for record in running.around.log.records]
    assert sum(event.startswith("settings are broken") for event in events) == 1


async def test_changes_on_disk_become_the_policy_by_themselves(client: RawClient, running: RunningDaemon) -> None:
    assert await host(client, "bad.test") == "ask"
    generation = running.daemon.policies.generation
    write(running, DENY)
    await wait_until_async(lambda: running.daemon.policies.generation > generation, "the new policy is in force")
    assert await host(client, "bad.test") == "deny"


async def test_a_project_is_followed_from_its_first_use(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    cwd = str(running.around.project)
    await client.result("wrap", {"command": "x", "cwd": cwd})
    generation = running.daemon.policies.generation
    running.around.write(running.around.project_settings, DENY)
    await wait_until_async(lambda: running.daemon.policies.generation > generation, "the project's settings are read")
    assert await host(client, "bad.test", cwd=cwd) == "deny"
    assert await host(client, "bad.test") == "ask"


async def test_touching_a_file_changes_no_generation(client: RawClient, running: RunningDaemon) -> None:
    write(running, DENY)
    await client.result("settings.reload")
    generation = running.daemon.policies.generation
    policy = running.daemon.policies.own.now.policy
    running.around.user_settings.touch()
    await client.result("settings.reload")
    write(running, DENY)
    await client.result("settings.reload")
    assert running.daemon.policies.generation == generation
    assert running.daemon.policies.own.now.policy is policy


async def test_a_project_may_tighten_and_never_widen(client: RawClient, running: RunningDaemon) -> None:
    write(running, {"sandbox": {"enabled": True}})
    running.around.write(
        running.around.project_settings,
        {"sandbox": {"enabled": False, "network": {"allowedDomains": ["ok.test"], "deniedDomains": ["bad.test"]}}},
    )
    await client.result("settings.reload")
    cwd = str(running.around.project)
    assert await host(client, "ok.test", cwd=cwd) == "ask"
    assert await host(client, "bad.test", cwd=cwd) == "deny"
    decision = await client.result("should_sandbox", {"command": "ls", "cwd": cwd})
    assert decision["sandboxed"] is True


async def test_a_broken_project_runs_nothing_until_it_is_mended(client: RawClient, running: RunningDaemon) -> None:
    running.around.write(running.around.project_settings, "{")
    params = {"command": "x", "cwd": str(running.around.project)}
    for _ in range(2):
        error = await client.error("wrap", params)
        assert error["code"] == -32002
        assert error["data"]["file"] == str(running.around.project_settings)
        assert error["data"]["line"] == 1
    running.around.write(running.around.project_settings, "{}")
    assert await client.result("wrap", params)


async def test_a_session_keeps_its_settings_through_a_reload(client: RawClient, running: RunningDaemon) -> None:
    cwd = str(running.around.project)
    own = {"sandbox": {"network": {"allowedDomains": ["ok.test"]}}}
    session = (await client.result("session.open", {"cwd": cwd, "settings": own}))["session_id"]
    write(running, DENY)
    await client.result("settings.reload")
    assert await host(client, "ok.test", session_id=session) == "allow"
    assert await host(client, "bad.test", session_id=session) == "deny"
    write(running, {"sandbox": {"network": {"deniedDomains": ["ok.test"]}}})
    await client.result("settings.reload")
    assert await host(client, "ok.test", session_id=session) == "deny"


async def test_an_unknown_key_is_a_problem_with_its_place(client: RawClient, running: RunningDaemon) -> None:
    write(running, '{"sandbox": {\n  "network": {"allow": ["ok.test"]}}}')
    problems = (await client.result("settings.reload"))["problems"]
    (problem,) = problems
    assert (problem["severity"], problem["line"], problem["column"]) == ("warning", 2, 15)
    assert "allowedDomains" in problem["hint"]


async def test_entries_with_an_error_are_not_effective(client: RawClient, running: RunningDaemon) -> None:
    network = {"allowedDomains": ["a.test", "no/host", "b.test"], "deniedDomains": ["c.test"]}
    write(running, {"sandbox": {"network": {**network, "deniedDomainReasons": {"c.test": "it is old"}}}})
    await client.result("settings.reload")
    result = await client.result("settings.get")
    values = {value["key"]: value for value in result["values"]}
    assert values["sandbox.network.allowedDomains"]["value"] == ["a.test", "b.test"]
    assert len(values["sandbox.network.allowedDomains"]["origins"]) == 2
    assert [problem["severity"] for problem in result["problems"]] == ["error"]
    assert values["sandbox.network.deniedDomainReasons"]["value"] == {"c.test": "it is old"}
