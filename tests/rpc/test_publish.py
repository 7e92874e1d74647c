"""`overrides.publish` of `wrap`: permitted by settings, bound before anything runs, gone with the command."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from support.daemon import RunningDaemon
from support.fake_runtime import FakeMachine
from support.ports import free_port
from support.rpc import RawClient

PERMITTED = {"sandbox": {"network": {"allowLocalBinding": True}}}


async def wrapped(client: RawClient, running: RunningDaemon, *ports: str) -> Any:
    params = {"cwd": str(running.around.project), "argv": ["x"], "overrides": {"publish": list(ports)}}
    return await client.call("wrap", params)


async def permit(client: RawClient, running: RunningDaemon, settings: dict[str, Any]) -> None:
    running.around.write(running.around.user_settings, settings)
    await client.result("settings.reload")


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def reachable(machine: FakeMachine) -> None:
    machine.backend.reachable = True


async def test_ports_are_published_told_of_and_let_go(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    await permit(client, running, PERMITTED)
    port = free_port()
    result = (await wrapped(client, running, f"{port}:3000", "[::1]:0:80"))["result"]
    first, second = result["published"]
    assert first == f"127.0.0.1:{port}:3000"
    assert second.startswith("[::1]:") and second.endswith(":80") and ":0:" not in second
    status = await client.result("status")
    assert [session["published"] for session in status["sessions"]] == [[first, second]]
    machine.backend.launches[0].start()
    assert not is_free(port)
    machine.backend.launches[0].end()
    assert is_free(port)
    assert [session["published"] for session in (await client.result("status"))["sessions"]] in ([], [[]])


@pytest.mark.parametrize(
    ("ports", "slug"),
    [
        (["x"], "publish_invalid"),
        (["0.0.0.0:80:80"], "publish_not_loopback"),
        (["3000"], "local_binding_denied"),
    ],
)
async def test_without_permission_nothing_is_prepared(
    client: RawClient, running: RunningDaemon, machine: FakeMachine, ports: list[str], slug: str
) -> None:
    error = (await wrapped(client, running, *ports))["error"]
    assert error["data"]["slug"] == slug and error["data"]["hint"]
    assert machine.backend.launches == []


async def test_a_project_cannot_permit_it(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    running.around.write(running.around.project_settings, PERMITTED)
    error = (await wrapped(client, running, "0:3000"))["error"]
    assert error["data"]["slug"] == "local_binding_denied"


async def test_a_port_that_is_taken_is_known_before_anything_runs(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    await permit(client, running, PERMITTED)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = (await wrapped(client, running, str(taken.getsockname()[1])))["error"]
    assert error["data"]["slug"] == "port_taken"
    assert machine.backend.launches == []


async def test_where_sandboxes_cannot_be_reached_it_is_an_error(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    await permit(client, running, PERMITTED)
    machine.backend.reachable = False
    port = free_port()
    error = (await wrapped(client, running, str(port)))["error"]
    assert error["data"]["slug"] == "publish_unavailable"
    assert machine.backend.launches[0].log == ["cancel"]
    assert is_free(port)


async def test_permission_taken_back_closes_what_is_published(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    await permit(client, running, PERMITTED)
    port = free_port()
    assert "result" in await wrapped(client, running, str(port))
    machine.backend.launches[0].start()
    await permit(client, running, {**PERMITTED, "permissions": {}})
    assert not is_free(port), "another change"
    await permit(client, running, {})
    assert is_free(port)


async def test_a_ticket_that_nobody_used_gives_its_port_back(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    await permit(client, running, PERMITTED)
    port = free_port()
    result = (await wrapped(client, running, str(port)))["result"]
    (session,) = running.daemon.sessions.all()
    command = session.command(result["wrap_id"])
    assert command is not None
    command.expire()
    assert is_free(port)
