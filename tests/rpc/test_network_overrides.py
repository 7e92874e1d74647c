"""What a caller's settings do to the network rules: of a session, of one command, of a file named for it. Tightening
always works; widening unless it is forbidden; a caller cannot choose another proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandboxd.policy.model import NetworkPolicy
from support.daemon import RunningDaemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient

Seen = Callable[[NetworkPolicy], bool]
USERS = {"allowedDomains": ["ok.test"], "checkServerName": "log"}
TIGHTER: dict[str, tuple[dict[str, Any], Seen]] = {
    "a denial": ({"deniedDomains": ["ok.test"]}, lambda n: [r.pattern.text for r in n.denied] == ["ok.test"]),
    "no questions": ({"strictAllowlist": True}, lambda n: n.strict_allowlist),
    "the other word for it": ({"onUnlisted": "deny"}, lambda n: n.strict_allowlist),
    "networks": ({"deniedResolvedAddresses": ["10.0.0.0/8"]}, lambda n: n.denied_addresses == ("10.0.0.0/8",)),
    "names in TLS, the other word": ({"checkServerName": "deny"}, lambda n: n.check_server_name == "enforce"),
    "names in TLS": ({"checkServerName": "enforce"}, lambda n: n.check_server_name == "enforce"),
    "no capture": ({"transparent": False}, lambda n: not n.transparent),
}
WIDER: dict[str, tuple[dict[str, Any], Seen]] = {
    "a host": ({"allowedDomains": ["more.test"]}, lambda n: "more.test" in [r.pattern.text for r in n.allowed]),
    "no look at TLS": ({"checkServerName": "off"}, lambda n: n.check_server_name == "off"),
    "local ports": ({"allowLocalPorts": [5432]}, lambda n: bool(n.allow_local_ports)),
    "another way out": ({"parentProxy": "http://p.test:1"}, lambda n: n.parent_proxy is not None),
}
NEVER: dict[str, tuple[dict[str, Any], Seen]] = {
    "somebody else decides": ({"httpProxyPort": 8080, "socksProxyPort": 1081}, lambda n: n.http_proxy_port is not None),
}


async def network_of(
    client: RawClient, running: RunningDaemon, machine: FakeMachine, way: str, keys: dict[str, Any]
) -> NetworkPolicy:
    """The rules that a command is planned under when a caller adds `keys`."""
    settings = {"sandbox": {"network": keys}}
    params: dict[str, Any] = {"command": "x", "cwd": str(running.around.project)}
    if way == "session":
        opened = await client.result("session.open", {"cwd": params["cwd"], "settings": settings})
        params["session_id"] = opened["session_id"]
    else:
        params["overrides"] = {"settings": str(running.around.write(running.around.base / "more.json", settings))}
    await client.result("wrap", params)
    return machine.planner.asked[-1][0].network


@pytest.mark.parametrize("way", ["session", "command"])
@pytest.mark.parametrize("allowed", [True, False])
async def test_what_a_caller_may_say(
    client: RawClient, running: RunningDaemon, machine: FakeMachine, way: str, allowed: bool
) -> None:
    users = {"network": USERS, **({} if allowed else {"allowOverrides": False})}
    running.around.write(running.around.user_settings, {"sandbox": users})
    await client.result("settings.reload")
    for table, expected in ((TIGHTER, True), (WIDER, allowed), (NEVER, False)):
        for name, (keys, seen) in table.items():
            found = await network_of(client, running, machine, way, keys)
            assert seen(found) is expected, name
            assert "ok.test" in [rule.pattern.text for rule in found.allowed], "the user's own stay"


@pytest.mark.parametrize("way", ["session", "command"])
async def test_a_caller_s_denial_ends_with_its_session_or_command(
    client: RawClient, running: RunningDaemon, machine: FakeMachine, way: str
) -> None:
    assert (await network_of(client, running, machine, way, {"deniedDomains": ["ok.test"]})).denied
    await client.result("wrap", {"command": "x", "cwd": str(running.around.project)})
    assert not machine.planner.asked[-1][0].network.denied
