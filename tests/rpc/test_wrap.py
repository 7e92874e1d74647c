"""`wrap` and `wrap.outcome`: always a sandbox, or an error."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import pytest

from sandboxd.errors import PolicyError
from support.daemon import RunningDaemon, running_daemon, surroundings
from support.fake_runtime import FakeMachine
from support.rpc import RawClient
from support.waiting import wait_until_async


def in_project(running: RunningDaemon, **params: Any) -> dict[str, Any]:
    return {"cwd": str(running.around.project), **params}


async def test_the_answer_has_what_a_client_spawns(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    result = await client.result("wrap", in_project(running, argv=["echo", "a b"]))
    assert result["argv"] == ["/bin/false", result["wrap_id"], "--", "echo", "a b"]
    assert shlex.split(result["command"]) == result["argv"]
    assert result["env"] == {"set": {"SANDBOX_RUNTIME": "1"}, "unset": ["SECRET"]}
    assert result["cwd"] == str(running.around.project)
    assert "fake" in result["layers"]
    assert result["expires_in_s"] > 0
    assert result["policy_generation"] == running.daemon.policies.generation


async def test_a_shell_line_with_everything_given(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    more = {"command": "make 'x y'", "shell": "/bin/sh", "env": {"A": "1"}, "command_id": "c-1", "command_text": "make"}
    params = in_project(running, **more)
    await client.result("wrap", params)
    _, place, command, environment = machine.planner.asked[0]
    assert (command.text, command.shell) == ("make 'x y'", "/bin/sh")  # type: ignore[union-attr]
    assert environment == {"A": "1"}
    assert place.cwd == place.project_root == str(running.around.project)
    assert place.runtime_dir == str(running.around.directory)


@pytest.mark.parametrize(
    ("params", "slug"),
    [
        ({}, "invalid_params"),
        ({"command": "x", "argv": ["x"]}, "invalid_params"),
        ({"argv": []}, "command_empty"),
        ({"argv": [""]}, "command_empty"),
        ({"argv": ["a\0b"]}, "command_nul"),
        ({"command": "a\0b"}, "command_nul"),
        ({"argv": "ls"}, "invalid_params"),
        ({"argv": ["a", 1]}, "invalid_params"),
        ({"command": ["ls"]}, "invalid_params"),
        ({"command": "x", "cwd": "rel"}, "cwd_relative"),
        ({"command": "x", "cwd": "/no/such"}, "cwd_missing"),
        ({"command": "x", "session_id": "s-none"}, "session_unknown"),
        ({"command": "x", "dangerously_disable_sandbox": True}, "invalid_params"),
        ({"command": "x", "env": {"A": 1}}, "invalid_params"),
        ({"command": "x", "overrides": {"allow_all": True}}, "invalid_params"),
        ({"command": "x", "overrides": {"settings": "/no/such.json"}}, "settings_missing"),
        ({"command": "x", "overrides": {"allow_domains": ["*"]}}, None),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_impossible_wrap_is_an_error_and_prepares_nothing(
    client: RawClient, running: RunningDaemon, machine: FakeMachine, params: dict[str, Any], slug: str | None
) -> None:
    answer = await client.call("wrap", in_project(running, **params) if "cwd" not in params else params)
    if slug is None:
        assert answer.get("error") or "fake" in answer["result"]["layers"]
        return
    assert answer["error"]["data"]["slug"] == slug
    assert machine.backend.launches == []


async def test_without_directory_and_session_there_is_nowhere_to_run(client: RawClient) -> None:
    error = await client.error("wrap", {"command": "true"})
    assert "cwd" in error["data"]["hint"]


async def test_a_host_without_sandbox_runs_nothing(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    machine.backend.unavailable = "user namespaces are denied"
    error = await client.error("wrap", in_project(running, command="true"))
    assert error["data"]["slug"] == "sandbox_unavailable"
    assert error["message"] == "user namespaces are denied"
    assert error["data"]["hint"]


async def test_a_plan_that_fails_runs_nothing(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    machine.planner.refusal = PolicyError("scan_failed", "the scan was cut short", hint="lower the depth")
    error = await client.error("wrap", in_project(running, command="true"))
    assert (error["code"], error["data"]["slug"]) == (-32003, "scan_failed")
    assert machine.backend.launches == []


@pytest.mark.parametrize("settings", [{"sandbox": {"enabled": False}}, {"sandbox": {"excludedCommands": ["true"]}}])
async def test_no_setting_makes_it_return_the_bare_command(
    client: RawClient, running: RunningDaemon, settings: dict[str, Any]
) -> None:
    session = (await client.result("session.open", in_project(running, settings=settings)))["session_id"]
    result = await client.result("wrap", {"argv": ["true"], "session_id": session})
    assert result["argv"][0] == "/bin/false"
    assert "fake" in result["layers"]


async def test_overrides_hold_for_one_command(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    overrides = {"allow_domains": ["ok.test:8080"], "allow_write": ["out", "/abs", "~/cache"], "allow_read": ["in"]}
    await client.result("wrap", in_project(running, command="x", overrides=overrides))
    await client.result("wrap", in_project(running, command="x"))
    (with_overrides, *_), (without, *_) = machine.planner.asked
    assert [rule.pattern.text for rule in with_overrides.network.allowed] == ["ok.test:8080"]
    project, home = running.around.project, running.around.home
    assert [rule.path for rule in with_overrides.files.allow_write] == [f"{project}/out", "/abs", f"{home}/cache"]
    assert [rule.path for rule in with_overrides.files.allow_read] == [f"{project}/in"]
    assert without.network.allowed == ()
    assert without.files.allow_write == ()


async def test_the_same_overrides_give_the_same_policy_object(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    for _ in range(3):
        await client.result("wrap", in_project(running, command="x", overrides={"allow_domains": ["ok.test"]}))
        await client.result("wrap", in_project(running, command="x"))
    policies = [policy for policy, *_ in machine.planner.asked]
    assert len({id(policy) for policy in policies[0::2]}) == 1
    assert len({id(policy) for policy in policies[1::2]}) == 1


async def test_a_settings_file_of_one_command(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    file = running.around.base / "extra.json"
    params = in_project(running, command="x", overrides={"settings": str(file)})
    running.around.write(file, {"sandbox": {"network": {"allowedDomains": ["one.test"]}}})
    await client.result("wrap", params)
    running.around.write(file, {"sandbox": {"network": {"allowedDomains": ["two.test"]}}})
    await client.result("wrap", params)
    names = [[rule.pattern.text for rule in policy.network.allowed] for policy, *_ in machine.planner.asked]
    assert names == [["one.test"], ["two.test"]]
    running.around.write(file, "{")
    error = await client.error("wrap", params)
    assert str(file) in error["message"]
    assert error["code"] == -32002


async def test_managed_settings_say_whether_a_caller_may_widen(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    running.around.write(running.around.managed_settings, {"sandbox": {"allowOverrides": False}})
    await client.result("settings.reload")
    await client.result("wrap", in_project(running, command="x", overrides={"allow_domains": ["ok.test"]}))
    policy, *_ = machine.planner.asked[0]
    assert policy.network.allowed == ()
    assert any("allowOverrides" in warning for warning in policy.warnings)


async def test_an_ignored_override_is_a_warning_of_that_command(client: RawClient, running: RunningDaemon) -> None:
    locks = {"network": {"allowManagedDomainsOnly": True}, "filesystem": {"allowManagedReadPathsOnly": True}}
    running.around.write(running.around.managed_settings, {"sandbox": locks})
    await client.result("settings.reload")
    overrides = {"allow_domains": ["ok.test"], "allow_read": ["x"]}
    for _ in range(2):
        warnings = (await client.result("wrap", in_project(running, command="x", overrides=overrides)))["warnings"]
        for key in ("allowManagedDomainsOnly", "allowManagedReadPathsOnly"):
            assert any(key in warning for warning in warnings), warnings
    assert (await client.result("wrap", in_project(running, command="x")))["warnings"] == []
    for target in ("ok.test", "10.0.0.1", "10.0.0.1:80"):
        decision = await client.result("policy.explain", in_project(running, kind="host", target=target))
        assert decision["behavior"] == "deny"
        assert "sandboxd allow" not in decision["hint"] and "administrator" in decision["hint"]
    described = (await client.result("policy.describe", in_project(running)))["text"]
    assert "allow domain" not in described and "sandboxd allow path" in described


async def test_nobody_ignores_a_restriction_of_managed_settings(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    managed = running.around.managed_settings
    running.around.write(managed, {"sandbox": {"filesystem": {"denyNew": ["~/x"]}}})
    await client.result("settings.reload")
    for overrides in ({}, {"ignore_unknown_restrictions": True}):
        error = await client.error("wrap", in_project(running, command="x", overrides=overrides))
        assert error["data"]["slug"] == "restriction_unknown"
        assert error["data"]["key"] == "sandbox.filesystem.denyNew" and str(managed) in error["message"]
        assert "--ignore-unknown" not in error["data"]["hint"]
    assert not machine.planner.asked
    running.around.write(managed, {"sandbox": {"filesystem": {"denyNew": []}}})
    await client.result("settings.reload")
    assert (await client.result("wrap", in_project(running, command="x")))["wrap_id"]


@pytest.mark.parametrize(
    ("where", "role", "opened"),
    [("user", None, True), ("managed", None, False), ("project", None, False), ("user", "agent", False)],
)
async def test_a_callers_variables_open_what_the_caller_could_open(
    running: RunningDaemon, machine: FakeMachine, where: str, role: str | None, opened: bool
) -> None:
    around = running.around
    file = {"user": around.user_settings, "managed": around.managed_settings, "project": around.project_settings}[where]
    around.write(file, {"sandbox": {"filesystem": {"allowWrite": ["$OUT_DIR/x"]}}})
    async with running.client() as client:
        if role is not None:
            await client.result("hello", {"protocol": 1, "role": role})
        running.daemon.policies.reload()
        await client.result("wrap", in_project(running, command="x", env={"OUT_DIR": "/out"}))
    policy, *_ = machine.planner.asked[0]
    assert [rule.path for rule in policy.files.allow_write] == (["/out/x"] if opened else [])


async def test_one_implicit_session_for_each_directory(client: RawClient, running: RunningDaemon) -> None:
    other = running.around.home / "other"
    other.mkdir()
    for cwd in (running.around.project, other, running.around.project):
        await client.result("wrap", {"command": "x", "cwd": str(cwd)})
    listed = (await client.result("session.list"))["sessions"]
    assert sorted(s["cwd"] for s in listed) == sorted([str(running.around.project), str(other)])
    assert all(s["implicit"] for s in listed)


async def test_a_session_of_another_connection_can_be_used_by_its_id(client: RawClient, running: RunningDaemon) -> None:
    session = (await client.result("session.open", in_project(running)))["session_id"]
    async with running.client() as other:
        await other.result("wrap", {"command": "x", "session_id": session})
    (listed,) = (await client.result("session.list"))["sessions"]
    assert listed["commands"] == 1


async def test_the_outcome(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    wrapped = await client.result("wrap", in_project(running, command="x"))
    machine.backend.launches[0].start()
    machine.backend.launches[0].end(3)
    outcome = await client.result("wrap.outcome", {"wrap_id": wrapped["wrap_id"]})
    assert (outcome["started"], outcome["exited"], outcome["status"]) == (True, True, 3)
    assert outcome["violations"] == []
    error = await client.error("wrap.outcome", {"wrap_id": "none"})
    assert error["data"]["slug"] == "wrap_unknown"


async def test_the_outcome_waits_for_an_end_that_is_near(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    wrapped = await client.result("wrap", in_project(running, command="x"))
    machine.backend.launches[0].start()
    number = client.request("wrap.outcome", {"wrap_id": wrapped["wrap_id"]})
    assert await client.result("status")
    machine.backend.launches[0].end(0)
    answer = await client.receive()
    assert answer["id"] == number
    assert answer["result"]["exited"] is True


async def test_two_hundred_clients_wrap_at_once(running: RunningDaemon, machine: FakeMachine) -> None:
    async def one(number: int) -> list[str]:
        async with running.client() as client:
            result = await client.result("wrap", in_project(running, argv=["run", str(number)]))
            return list(result["argv"][3:])

    results = await asyncio.gather(*(one(number) for number in range(200)))
    assert results == [["run", str(number)] for number in range(200)]
    await wait_until_async(lambda: not [s for s in running.daemon.sessions.all() if s.idle], "idle sessions end")


async def test_a_long_command(client: RawClient, running: RunningDaemon) -> None:
    text = "x" * 200_000
    assert (await client.result("wrap", in_project(running, command=text)))["argv"][-1] == text
    error = await client.error("wrap", in_project(running, argv=["a\udcff"]))
    assert error["data"]["slug"]


async def test_commands_and_environments_are_not_in_the_log(client: RawClient, running: RunningDaemon) -> None:
    await client.result("wrap", in_project(running, command="echo topsecretword", env={"TOKEN": "topsecretvalue"}))
    await client.error("wrap", in_project(running, argv="echo topsecretword"))
    assert "topsecret" not in running.around.log.text


async def test_a_rule_that_a_proxy_makes_ineffective_is_a_warning() -> None:
    settings = {"sandbox": {"network": {"deniedResolvedAddresses": ["10.0.0.0/8"]}}}
    async with surroundings() as around:
        environment = {"HOME": str(around.home), "PATH": "/usr/bin:/bin", "HTTPS_PROXY": "http://proxy.test:3128"}
        async with (
            running_daemon(
                settings=settings, around=around, assemble=FakeMachine().assemble, environment=environment
            ) as running,
            running.client() as client,
        ):
            wrapped = await client.result("wrap", {"argv": ["true"], "cwd": str(around.project)})
            told = [text for text in wrapped["warnings"] if "deniedResolvedAddresses" in text]
            assert len(told) == 1 and "http://proxy.test:3128 (HTTPS_PROXY)" in told[0]
            assert told[0] in (await client.result("status"))["network"]
