"""`settings.update`, `exclude_command`, `locked`, `lint`, `schema`: what can be changed, by whom, and what is said."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from support.daemon import RunningDaemon, running_daemon, successive_daemons, surroundings
from support.fake_runtime import FakeMachine
from support.rpc import RawClient

ENABLED = "sandbox.enabled"
DOMAINS = "sandbox.network.allowedDomains"


def local_file(running: RunningDaemon) -> Path:
    return running.around.home / ".claude" / "settings.local.json"


def change(act: str, key: str, value: Any = None) -> dict[str, Any]:
    return {"act": act, "key": key, "value": value}


async def update(client: RawClient, *changes: dict[str, Any], **params: Any) -> Any:
    return await client.result("settings.update", {"changes": list(changes), **params})


async def refusal(client: RawClient, *changes: dict[str, Any]) -> Any:
    return await client.error("settings.update", {"changes": list(changes)})


async def host(client: RawClient, name: str) -> str:
    return str((await client.result("policy.explain", {"kind": "host", "target": name}))["behavior"])


async def test_a_change_is_in_force_when_it_is_answered(client: RawClient, running: RunningDaemon) -> None:
    before = running.daemon.policies.generation
    result = await update(client, change("add", DOMAINS, "ok.test"), change("set", "allowPty", True))
    assert result["generation"] > before
    assert (result["file"], result["written"], result["warnings"]) == (str(local_file(running)), True, [])
    assert result["changed"] == [DOMAINS, "sandbox.allowPty"]
    assert await host(client, "ok.test") == "allow"
    assert json.loads(local_file(running).read_text()) == {
        "sandbox": {"network": {"allowedDomains": ["ok.test"]}, "allowPty": True}
    }
    assert stat.S_IMODE(local_file(running).stat().st_mode) == 0o600


async def test_twice_is_once(client: RawClient, running: RunningDaemon) -> None:
    await update(client, change("add", DOMAINS, "ok.test"))
    generation = running.daemon.policies.generation
    again = await update(client, change("add", DOMAINS, "ok.test"))
    assert (again["written"], again["changed"], again["generation"]) == (False, [], generation)


async def test_all_changes_or_none(client: RawClient, running: RunningDaemon) -> None:
    error = await refusal(client, change("add", DOMAINS, "ok.test"), change("set", "enabledd", True))
    assert (error["code"], error["data"]["slug"]) == (-32000, "settings_unknown_key")
    assert ENABLED in error["data"]["hint"]
    assert not local_file(running).exists()


async def test_comments_order_and_mode_are_kept(client: RawClient, running: RunningDaemon) -> None:
    text = '{\n    // mine\n    "theme": "dark",\n    "sandbox": { "enabled": false /* yes */ },\n}\n'
    running.around.write(local_file(running), text).chmod(0o640)
    await update(client, change("set", ENABLED, True))
    assert local_file(running).read_text() == text.replace("false", "true")
    assert stat.S_IMODE(local_file(running).stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("given", "slug", "word"),
    [
        (change("set", ENABLED, "yes"), "settings_wrong_type", "true or false"),
        (change("add", ENABLED, True), "settings_wrong_type", "true or false"),
        (change("add", DOMAINS, "*.com"), "host_pattern_public_suffix", "public suffix"),
        (change("add", DOMAINS, "https://x.test/"), "host_pattern_url", "URL"),
        (change("add", "sandbox.excludedCommands", "*"), "command_pattern_matches_all", "every program"),
        (change("add", "sandbox.filesystem.denyRead", "~other/x"), "path_other_home", "home"),
        (change("set", "sandbox.bwrapPath", "/x"), "settings_locked", "managed settings only"),
        (change("set", "audit.enabled", True), "settings_other_source", "managed or user"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    client: RawClient, running: RunningDaemon, given: dict[str, Any], slug: str, word: str
) -> None:
    error = await refusal(client, given)
    assert word in error["message"] and error["data"]["hint"] is not None
    assert error["data"]["slug"] == slug, error
    assert error["data"]["key"]
    assert not local_file(running).exists()


@pytest.mark.parametrize("changes", [[], [{"act": "put", "key": ENABLED}], [{"key": ENABLED}], {}, ["x"]])
async def test_parameters_that_are_none(client: RawClient, changes: Any) -> None:
    error = await client.error("settings.update", {"changes": changes})
    assert (error["code"], error["data"]["slug"]) == (-32602, "invalid_params")


async def test_what_policy_locks_is_refused_with_the_reason(client: RawClient, running: RunningDaemon) -> None:
    managed = {
        "sandbox": {
            "enabled": True,
            "network": {"allowManagedDomainsOnly": True, "allowedDomains": ["ok.test"]},
        }
    }
    running.around.write(running.around.managed_settings, managed)
    await client.result("settings.reload")
    for given in (change("set", ENABLED, False), change("add", DOMAINS, "x.test"), change("unset", ENABLED)):
        error = await refusal(client, given)
        assert error["data"]["slug"] == "settings_locked"
        assert "managed" in error["message"] and str(running.around.managed_settings) in error["message"]
    assert not local_file(running).exists()
    locks = {lock["key"]: lock for lock in (await client.result("settings.locked"))["locked"]}
    assert {ENABLED, DOMAINS, "sandbox.bwrapPath"} <= set(locks)
    assert locks[ENABLED]["origin"]["file"] == str(running.around.managed_settings)
    assert locks[ENABLED]["origin"]["line"] == 1
    assert locks["sandbox.bwrapPath"]["origin"] is None
    # lists that managed settings only begin may be added to
    assert (await update(client, change("add", "sandbox.filesystem.allowWrite", "~/x")))["written"]


async def test_a_change_without_effect_says_why(client: RawClient, running: RunningDaemon, tmp_path: Path) -> None:
    user = {"sandbox": {"enabled": True, "excludedCommands": ["docker"]}}
    running.around.write(running.around.user_settings, user)
    await client.result("settings.reload")
    removed = await update(client, change("remove", "sandbox.excludedCommands", "docker"))
    assert not removed["written"]
    assert str(running.around.user_settings) in removed["warnings"][0] and "stays" in removed["warnings"][0]
    unset = await update(client, change("unset", ENABLED))
    assert "says so" in unset["warnings"][0]
    local_file(running).write_text("{}")
    local_file(running).chmod(0o666)  # writable for every user, so it may only tighten
    opened = await update(client, change("add", DOMAINS, "ok.test"))
    assert "ignored" in opened["warnings"][0] and "every user can write it" in opened["warnings"][0]


async def test_a_dangerous_rule_is_made_with_a_warning(client: RawClient) -> None:
    dangerous = {"changes": [change("add", "sandbox.network.allowUnixSockets", "/run/docker.sock")]}
    assert (await client.error("settings.update", dangerous))["data"]["slug"] == "confirmation_needed"
    result = await client.result("settings.update", {**dangerous, "confirm": True})
    assert result["written"] and "control" in result["warnings"][0]


async def test_while_another_file_is_broken(client: RawClient, running: RunningDaemon) -> None:
    running.around.write(running.around.user_settings, "{")
    await client.result("settings.reload")
    result = await update(client, change("set", "allowPty", True))
    assert result["written"] and result["changed"] == ["sandbox.allowPty"]
    assert f"{running.around.user_settings}:1:" in result["warnings"][0]
    assert "last good" in result["warnings"][0]


@pytest.mark.parametrize("kind", ["broken", "link", "directory", "empty"])
async def test_a_file_that_cannot_be_edited_stays_as_it_is(
    client: RawClient, running: RunningDaemon, tmp_path: Path, kind: str
) -> None:
    file, target = local_file(running), tmp_path / "target"
    file.parent.mkdir(exist_ok=True)
    target.write_text("{}")
    if kind == "broken":
        file.write_text('{"sandbox": ')
    elif kind == "link":
        file.symlink_to(target)
    elif kind == "directory":
        file.mkdir()
    else:
        file.write_text("")
    error = await refusal(client, change("set", ENABLED, True))
    assert error["code"] == -32002 and str(file) in json.dumps(error), error
    assert target.read_text() == "{}"
    assert sorted(os.listdir(file.parent)) == ["settings.local.json"]


async def test_changes_of_many_clients_at_once_are_all_there(running: RunningDaemon) -> None:
    async def add(number: int) -> None:
        async with running.client() as client:
            await update(client, change("add", DOMAINS, f"n{number}.test"))

    await asyncio.gather(*(add(number) for number in range(20)))
    found = json.loads(local_file(running).read_text())["sandbox"]["network"]["allowedDomains"]
    assert sorted(found) == sorted(f"n{number}.test" for number in range(20))
    assert len(running.daemon.policies.own.now.policy.network.allowed) == 20


async def test_exclude_command(client: RawClient, running: RunningDaemon) -> None:
    query = {"pattern": "docker:*", "confirm": True}
    assert (await client.error("settings.exclude_command", {"pattern": "docker:*"}))["data"]["grants"]
    added = await client.result("settings.exclude_command", query)
    assert added["written"] and added["changed"] == ["sandbox.excludedCommands"]
    explained = await client.result("policy.explain", {"kind": "command", "target": "docker ps && curl x"})
    assert explained["sandboxed"] is True and "'curl x' is not an excluded command" in explained["reason"]["text"]
    assert (await client.result("policy.explain", {"kind": "command", "target": "docker ps"}))["sandboxed"] is False
    assert not (await client.result("settings.exclude_command", query))["written"]
    removed = await client.result("settings.exclude_command", {"pattern": "docker:*", "remove": True})
    assert removed["written"]
    assert (await client.result("policy.explain", {"kind": "command", "target": "docker ps"}))["sandboxed"] is True


async def test_rules_of_a_project_count_when_it_is_named(client: RawClient, running: RunningDaemon) -> None:
    cwd = str(running.around.project)
    running.around.write(running.around.project_settings, {"sandbox": {"network": {"deniedDomains": ["ok.test"]}}})
    result = await update(client, change("add", DOMAINS, "ok.test"), cwd=cwd)
    assert any("deniedDomains" in warning or "denied" in warning for warning in result["warnings"]), result
    assert not (await update(client, change("add", DOMAINS, "other.test")))["warnings"]


# --- get: what is ignored ---


async def test_what_a_project_says_in_vain_is_listed(client: RawClient, running: RunningDaemon) -> None:
    """What a project says in vain is listed."""
    project = {"sandbox": {"enabled": False, "excludedCommands": ["ls"], "network": {"strictAllowlist": True}}}
    running.around.write(running.around.user_settings, {"sandbox": {"enabled": True}})
    running.around.write(running.around.project_settings, project)
    await client.result("settings.reload")
    result = await client.result("settings.get", {"cwd": str(running.around.project)})
    ignored = {entry["key"]: entry for entry in result["ignored"]}
    assert set(ignored) == {ENABLED, "sandbox.excludedCommands"}
    assert ignored[ENABLED]["origin"]["file"] == str(running.around.project_settings)
    assert "may only tighten" in ignored[ENABLED]["reason"]
    values = {value["key"]: value for value in result["values"]}
    assert values["sandbox.network.strictAllowlist"]["value"] is True
    only = await client.result("settings.get", {"cwd": str(running.around.project), "key": "enabled"})
    assert [entry["key"] for entry in only["ignored"]] == [ENABLED]


async def test_two_clients_in_one_directory_see_the_same(running: RunningDaemon) -> None:
    """Two clients in one directory see the same."""
    running.around.write(running.around.user_settings, {"sandbox": {"network": {"deniedDomains": ["bad.test"]}}})
    running.around.write(running.around.project_settings, {"sandbox": {"filesystem": {"denyRead": ["./x"]}}})
    cwd = str(running.around.project)
    seen = []
    for directory in (cwd, cwd + "/", f"{cwd}/.", f"{cwd}/../project"):
        async with running.client() as client:
            session = (await client.result("session.open", {"cwd": directory}))["session_id"]
            seen.append(
                [
                    (await client.result("settings.get", {"session_id": session})),
                    (await client.result("policy.effective", {"session_id": session})),
                    (await client.result("policy.effective", {"cwd": directory})),
                ]
            )
    assert all(one == seen[0] for one in seen)
    values = {value["key"]: value for value in seen[0][0]["values"]}
    (origin,) = values["sandbox.network.deniedDomains"]["origins"]
    assert (origin["source"], origin["file"]) == ("user", str(running.around.user_settings))
    assert seen[0][1]["policy"]["network"]["denied"][0]["pattern"] == "bad.test"


# --- lint and schema ---


async def test_lint_of_a_file_that_nobody_reads(client: RawClient, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    file.write_text('{"sandbox": {\n  "network": {"allow": ["ok.test"]}}}')
    result = await client.result("settings.lint", {"files": [str(file)]})
    assert (result["ok"], result["files"]) == (False, [str(file)])
    (problem,) = result["problems"]
    assert (problem["file"], problem["line"], problem["column"]) == (str(file), 2, 15)
    assert DOMAINS in problem["hint"]
    file.write_text('{"sandbox": {"network": {"allowedDomains": ["ok.test"]}}, /* fine */ }')
    assert (await client.result("settings.lint", {"files": [str(file)]}))["ok"] is True


@pytest.mark.parametrize(
    ("name", "source", "ok"),
    [
        ("managed-settings.json", None, True),
        ("managed-settings.d/10-x.json", None, True),
        ("settings.json", None, False),
        ("x.json", "managed", True),
        ("managed-settings.json", "user", False),
    ],
)
async def test_lint_knows_as_what_a_file_is_meant(
    client: RawClient, tmp_path: Path, name: str, source: str | None, ok: bool
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"sandbox": {"bwrapPath": "/usr/bin/bwrap"}}')
    result = await client.result("settings.lint", {"files": [str(file)], "source": source})
    assert result["ok"] is ok
    assert ok or "managed settings only" in result["problems"][0]["message"]


async def test_lint_of_a_projects_file_lists_what_would_widen(client: RawClient, running: RunningDaemon) -> None:
    file = running.around.write(running.around.project_settings, {"sandbox": {"excludedCommands": ["ls"]}})
    params = {"files": [str(file)], "cwd": str(running.around.project)}
    (problem,) = (await client.result("settings.lint", params))["problems"]
    assert "may only tighten" in problem["message"] and problem["line"] == 1
    assert (await client.result("settings.lint", {"files": [str(file)], "source": "user"}))["ok"] is True


async def test_lint_of_everything_that_counts(client: RawClient, running: RunningDaemon) -> None:
    user = running.around.write(running.around.user_settings, {"sandbox": {"enabledd": True}})
    project = running.around.write(running.around.project_settings, "{")
    everything = await client.result("settings.lint", {"cwd": str(running.around.project)})
    assert {problem["file"] for problem in everything["problems"]} == {str(user), str(project)}
    assert set(everything["files"]) == {str(user), str(project)}
    assert {p["file"] for p in (await client.result("settings.lint"))["problems"]} == {str(user)}


async def test_lint_of_files_that_are_none(client: RawClient, tmp_path: Path) -> None:
    absent, directory = tmp_path / "absent.json", tmp_path
    result = await client.result("settings.lint", {"files": [str(absent), str(directory)]})
    assert [problem["severity"] for problem in result["problems"]] == ["error", "error"]
    assert "no such file" in result["problems"][0]["message"]
    assert (await client.error("settings.lint", {"files": ["x.json"]}))["data"]["slug"] == "path_relative"
    assert (await client.error("settings.lint", {"source": "somebody"}))["data"]["slug"] == "invalid_params"


async def test_schema(client: RawClient) -> None:
    schema = (await client.result("settings.schema"))["schema"]
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "sandbox" in schema["properties"]


# --- describe: what the caller knows ---


async def test_describe_takes_exceptions_in_both_variants(client: RawClient, running: RunningDaemon) -> None:
    exceptions = {"mcp-cli": "talks to a server outside", "xcodebuild": ""}
    running.around.write(running.around.user_settings, {"sandbox": {"enabled": True}})
    await client.result("settings.reload")
    asked = await client.result("policy.describe", {"exceptions": exceptions})
    assert "run outside at once: mcp-cli (talks to a server outside), xcodebuild" in asked["text"]
    assert asked["facts"]["exceptions"] == ["mcp-cli", "xcodebuild"]
    forbidden = {"sandbox": {"enabled": True, "allowUnsandboxedCommands": False}}
    running.around.write(running.around.user_settings, forbidden)
    await client.result("settings.reload")
    never = await client.result("policy.describe", {"exceptions": exceptions})
    assert "dangerously_disable_sandbox has no effect" in never["text"] and "not at all: mcp-cli" in never["text"]
    off = {"sandbox": {"enabled": False}}
    running.around.write(running.around.user_settings, off)
    await client.result("settings.reload")
    assert (await client.result("policy.describe"))["text"].count("\n") == 1
    assert (await client.result("status"))["enabled"] is False
    running.around.write(running.around.user_settings, {"sandbox": {"enabledPlatforms": ["macos"]}})
    await client.result("settings.reload")
    assert "not on for linux" in (await client.result("policy.describe"))["text"]
    status = await client.result("status")
    assert status["enabled"] is False and status["enabled_origin"]["file"] == str(running.around.user_settings)
    running.around.write(running.around.user_settings, {})
    await client.result("settings.reload")
    many = await client.result("policy.describe", {"exceptions": {f"tool-{n}": "x" * 999 for n in range(999)}})
    assert len(many["text"]) < 10_000


@pytest.mark.parametrize(
    ("params", "written"),
    [
        ({"pattern": "Bash(docker compose up)"}, ["docker compose up"]),
        (
            {"permission_updates": [{"type": "addRules", "rules": ["Bash(gh pr list)"], "behavior": "allow"}]},
            ["gh pr list"],
        ),
        (
            {"permissionUpdates": [{"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "gh pr list"}]}]},
            ["gh pr list"],
        ),
        ({"pattern": "gh issue list", "permission_updates": []}, ["gh issue list"]),
        ({}, "invalid_params"),
        ({"permission_updates": [{"type": "addRules", "rules": ["Read(x)"]}]}, "invalid_params"),
        ({"permission_updates": [{"type": "addRules", "rules": ["Bash(x y)"], "behavior": "deny"}]}, "invalid_params"),
        ({"pattern": "docker ps && gh x"}, "exclusion_never_matches"),
        ({"pattern": "docker ps > out"}, "exclusion_never_matches"),
        ({"pattern": "X=1 docker ps"}, "exclusion_never_matches"),
        ({"pattern": "$TOOL x"}, "exclusion_never_matches"),
        ({"pattern": "Bash(docker"}, "exclusion_never_matches"),
    ],
)
async def test_an_exclusion_is_a_pattern_that_can_match(
    client: RawClient, running: RunningDaemon, params: Any, written: Any
) -> None:
    answer = await client.call("settings.exclude_command", params)
    if isinstance(written, str):
        assert answer["error"]["data"]["slug"] == written
        return
    assert answer["result"]["written"]
    assert json.loads(local_file(running).read_text()) == {"sandbox": {"excludedCommands": written}}


OBJECT = {"sandbox": {"network": {"allowedDomains": ["own.test"]}}}


async def explained(client: RawClient, host: str, **where: Any) -> str:
    return str((await client.result("policy.explain", {"kind": "host", "target": host, **where}))["behavior"])


async def test_settings_of_a_session_are_an_object_or_a_file(client: RawClient, running: RunningDaemon) -> None:
    cwd, file = str(running.around.project), running.around.write(running.around.base / "own.json", OBJECT)
    for given in (OBJECT, str(file)):
        session = (await client.result("session.open", {"cwd": cwd, "settings": given}))["session_id"]
        assert await explained(client, "own.test", session_id=session) == "allow"
        assert await explained(client, "own.test", cwd=cwd) == "ask"
    running.around.write(file, {"sandbox": {"network": {"deniedDomains": ["own.test"]}}})
    assert await explained(client, "own.test", session_id=session) == "deny", "a changed file holds"
    for wrong, slug in (("own.json", "invalid_params"), ("/no/such.json", "settings_missing"), ([], "invalid_params")):
        error = await client.error("session.open", {"cwd": cwd, "settings": wrong})
        assert error["data"]["slug"] == slug


async def test_overrides_take_an_object_as_well(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    cwd, file = str(running.around.project), running.around.write(running.around.base / "own.json", OBJECT)
    for given in (OBJECT, str(file), {}):
        await client.result("wrap", {"cwd": cwd, "argv": ["x"], "overrides": {"settings": given}})
        allowed = [rule.pattern.text for rule in machine.planner.asked[-1][0].network.allowed]
        assert allowed == (["own.test"] if given else [])
    wrong = {"sandbox": {"network": {"allowedDomains": 5}}}
    error = await client.error("wrap", {"cwd": cwd, "argv": ["x"], "overrides": {"settings": wrong}})
    assert error["data"]["slug"] == "settings_wrong_type"
    await client.result("hello", {"role": "agent"})
    await client.result("wrap", {"cwd": cwd, "argv": ["x"], "overrides": {"settings": OBJECT}})
    assert machine.planner.asked[-1][0].network.allowed == (), "those of an agent only tighten"


async def test_a_live_session_gets_other_settings(client: RawClient, running: RunningDaemon) -> None:
    session = (await client.result("session.open", {"cwd": str(running.around.project)}))["session_id"]
    await client.result("settings.subscribe", {"session_id": session})
    where = {"session_id": session}
    changed = await client.result("session.update", {**where, "settings": OBJECT})
    assert (changed["settings"], changed["changed"], changed["written"]) == (OBJECT, [DOMAINS], True)
    assert await explained(client, "own.test", **where) == "allow"
    add = [{"act": "add", "key": "network.allowedDomains", "value": "more.test"}]
    changed = await client.result("session.update", {**where, "changes": add})
    assert changed["settings"]["sandbox"]["network"]["allowedDomains"] == ["own.test", "more.test"]
    assert not (await client.result("session.update", {**where, "changes": add}))["written"]
    assert await explained(client, "more.test", **where) == "allow"
    assert await explained(client, "more.test", cwd=str(running.around.project)) == "ask"
    changed = await client.result("session.update", {**where, "settings": {}})
    assert await explained(client, "own.test", **where) == "ask" and changed["settings"] == {}
    assert not local_file(running).exists()
    wide = [{"act": "add", "key": "filesystem.allowWrite", "value": "~"}]
    refused: dict[str, dict[str, Any]] = {
        "confirmation_needed": {"changes": wide},
        "settings_other_source": {"changes": [{"act": "set", "key": "audit.enabled", "value": True}]},
        "settings_unknown_key": {"changes": [{"act": "set", "key": "netwrk.x", "value": True}]},
        "settings_wrong_type": {"settings": {"sandbox": {"enabled": 5}}},
        "invalid_params": {"settings": {}, "changes": add},
    }
    for slug, params in refused.items():
        assert (await client.error("session.update", {**where, **params}))["data"]["slug"] == slug
    assert (await client.error("session.update", where))["data"]["slug"] == "invalid_params"
    assert (await client.result("session.update", {**where, "changes": wide, "confirm": True}))["warnings"]


async def test_subscribers_hear_of_the_settings_of_a_session(client: RawClient, running: RunningDaemon) -> None:
    session = (await client.result("session.open", {"cwd": str(running.around.project)}))["session_id"]
    async with running.client() as other:
        await other.result("settings.subscribe", {"session_id": session})
        await client.result("session.update", {"session_id": session, "settings": OBJECT})
        told = (await other.receive())["params"]
        assert [value["key"] for value in told["changed"]] == [DOMAINS] and told["session_id"] == session


async def test_what_a_user_adds_to_an_agents_session_stays() -> None:
    """The agent's own settings only tighten, before and after; those of the user may widen."""
    async with successive_daemons() as daemons:
        async with daemons.client() as agent, daemons.client() as user:
            await agent.result("hello", {"role": "agent"})
            own = {"sandbox": {"network": {"allowedDomains": ["agents.test"], "deniedDomains": ["closed.test"]}}}
            params = {"cwd": str(daemons.around.project), "settings": own}
            session = (await agent.result("session.open", params))["session_id"]
            assert (await agent.error("session.update", {"session_id": session, "settings": {}}))["data"][
                "slug"
            ] == "not_permitted"
            add = [{"act": "add", "key": "network.allowedDomains", "value": "users.test"}]
            await user.result("session.update", {"session_id": session, "changes": add})
            hosts = ("users.test", "agents.test", "closed.test")
            for _ in range(2):
                found = [await explained(user, host, session_id=session) for host in hosts]
                assert found == ["allow", "ask", "deny"]
                await daemons.restart()
            await user.result("session.update", {"session_id": session, "settings": {}})
            assert [await explained(user, host, session_id=session) for host in hosts] == ["ask", "ask", "deny"]


async def test_a_flag_file_locks_keys_with_its_reason(machine: FakeMachine) -> None:
    async with surroundings() as around:
        flag = around.write(around.base / "flag.json", {"sandbox": {"allowPty": False, "excludedCommands": ["gh x"]}})
        environment = {"HOME": str(around.home), "SANDBOXD_FLAG_SETTINGS": str(flag)}
        async with running_daemon(around=around, assemble=machine.assemble, environment=environment) as running:
            async with running.client() as client:
                locked = {one["key"]: one["reason"] for one in (await client.result("settings.locked"))["locked"]}
                assert locked["sandbox.allowPty"] == "set by the flag settings"
                assert "sandbox.excludedCommands" not in locked
                error = await refusal(client, change("set", "allowPty", True))
                assert error["data"]["slug"] == "settings_locked" and f"{flag}:1" in error["message"]
                assert (await update(client, change("add", "excludedCommands", "gh y")))["written"]
