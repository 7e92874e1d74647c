"""Listed sockets are in the view; with everything allowed, what acts outside is not; variables say only what holds."""

from __future__ import annotations

from sandboxd.plan.filesystem.mounts import Mount, Operation
from sandboxd.plan.host_queries import list_needs
from sandboxd.plan.plan import Plan, environment_in, make_layout, plan_in
from sandboxd.plan.request import ShellText
from sandboxd.policy.model import FilePolicy, NetworkPolicy, PathRule, Policy, SocketRule
from sandboxd.settings.origins import Origin, Source
from support.fake_host import FakeHost, place

ORIGIN = Origin(Source.USER, "sandbox", "/u.json", 4, 7)
TREE = {
    "/tmp/ssh-x/agent.1": "socket", "/tmp/pw/a.sock": "socket", "/home/u/.gnupg/S.gpg-agent": "socket",
    "/home/u/.gnupg/key": "", "/srv/x.sock": "socket", "/srv/agent": "-> /tmp/ssh-x/agent.1",
    "/home/u/work/mine": "-> /run/docker.sock", "/run/docker.sock": "socket", "/run/dbus/system_bus_socket": "socket",
    "/run/user/1000/bus": "socket", "/srv/agent.9": "socket", "/run/systemd/notify": "socket",
}  # fmt: skip


def plan(
    *listed: str, deny_read: str = "", everything: bool = False, environment: dict[str, str] | None = None
) -> Plan:
    network = NetworkPolicy(
        allow_unix_sockets=tuple(SocketRule(path, ORIGIN) for path in listed),
        allow_all_unix_sockets=everything,
        control_sockets=("/srv/agent.9",),
    )
    files = FilePolicy(deny_read=(PathRule(deny_read, ORIGIN, text=deny_read),) if deny_read else ())
    policy, where = Policy(network=network, files=files), place()
    layout = make_layout(policy, where, FakeHost(TREE).facts(list_needs(policy, where)))
    return plan_in(layout, environment_in(layout, where, environment or {}), ShellText("true"))


def bind(path: str) -> Mount:
    return Mount(Operation.READ_ONLY, path, path)


def test_a_socket_in_tmp_is_bound_over_the_session_s() -> None:
    for listed, path in (("/tmp/ssh-x/agent.1",) * 2, ("/tmp/pw",) * 2, ("/srv/agent", "/tmp/ssh-x/agent.1")):
        mounts = plan(listed).view.mounts
        assert bind(path) in mounts and mounts.index(bind(path)) > [m.target for m in mounts].index("/tmp")
    assert bind("/tmp/pw") not in plan().view.mounts
    assert not any(mount.target.startswith("/srv") for mount in plan("/srv/x.sock").view.mounts), "it is seen anyway"


def test_only_the_socket_in_a_denied_place_is_opened() -> None:
    opened = plan("/home/u/.gnupg/S.gpg-agent", deny_read="/home/u/.gnupg")
    assert bind("/home/u/.gnupg/S.gpg-agent") in opened.view.mounts and not opened.warnings
    for listed in ("/home/u/.gnupg", "/home/u/.gnupg/key"):
        closed = plan(listed, deny_read="/home/u/.gnupg")
        assert bind(listed) not in closed.view.mounts
        assert any("cannot be reached" in warning for warning in closed.warnings)


def test_a_link_the_command_can_change_opens_nothing_and_warns() -> None:
    made = plan("/home/u/work/mine")
    assert any("/home/u/work/mine: opens nothing" in warning for warning in made.warnings)


def test_with_everything_allowed_what_acts_outside_is_masked() -> None:
    mounts = plan("/run/user/1000/bus", everything=True).view.mounts
    masked = {mount.target for mount in mounts if mount.operation is Operation.MASK_FILE}
    assert {"/run/docker.sock", "/run/dbus/system_bus_socket", "/srv/agent.9", "/run/systemd/notify"} <= masked
    assert not masked & {"/run/user/1000/bus", "/srv/x.sock"}
    assert not any(m.operation is Operation.MASK_FILE for m in plan("/run/user/1000/bus").view.mounts)


def test_variables_stay_when_their_socket_can_be_used() -> None:
    given = {
        "SSH_AUTH_SOCK": "/srv/agent", "SSH_AGENT_PID": "7", "DOCKER_HOST": "unix:///run/docker.sock", "DISPLAY": ":0",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus,guid=1", "KITTY_LISTEN_ON": "unix:@x",
    }  # fmt: skip
    names = {*given}
    assert names <= set(plan(environment=given).environment.unset)
    unset = set(plan("/srv/agent", environment=given).environment.unset)
    assert names & unset == names - {"SSH_AUTH_SOCK", "SSH_AGENT_PID"}
    assert "DBUS_SESSION_BUS_ADDRESS" not in plan("/run/user/1000", environment=given).environment.unset
    assert not names & set(plan(environment={"DOCKER_HOST": "tcp://docker.test:2375"}).environment.unset)
    two = {"SSH_AUTH_SOCK": "/srv/x.sock", "DISPLAY": ":0"}
    everything = set(plan(everything=True, environment=two).environment.unset)
    assert "DISPLAY" in everything and "SSH_AUTH_SOCK" not in everything
