"""One method per RPC, the same on both clients, with typed results and typed errors."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxd_client import (
    AsyncClient,
    AsyncSession,
    Change,
    Client,
    DaemonNotRunning,
    InvalidCommand,
    Overrides,
    PermissionDenied,
    RpcError,
    SandboxdError,
    Session,
    WrongVersion,
)
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.wire import codes
from sandboxd_client.wire.messages.methods import METHODS

CALLS: dict[str, Callable[[Any], Any]] = {
    "hello": lambda box: box.hello(),
    "status": lambda box: box.status(),
    "check": lambda box: box.check(),
    "metrics": lambda box: box.metrics(),
    "restart": lambda box: box.restart(),
    "shutdown": lambda box: box.shutdown(1.0),
    "session.open": lambda box: box.session_open("/", name="n", permission_mode="none", settings={"sandbox": {}}),
    "session.update": lambda box: box.session_update("s", {"sandbox": {}}),
    "session.join": lambda box: box.session_join("/", key="k"),
    "command.list": lambda box: box.command_list(),
    "command.kill": lambda box: box.command_kill("w"),
    "session.close": lambda box: box.session_close("s"),
    "session.list": lambda box: box.session_list(),
    "should_sandbox": lambda box: box.should_sandbox("ls", cwd="/"),
    "wrap": lambda box: box.wrap("ls", cwd="/", overrides=Overrides(allow_domains=("ok.test",))),
    "wrap.outcome": lambda box: box.wrap_outcome("w"),
    "permission.subscribe": lambda box: box.permission_subscribe(),
    "sandbox_permission_response": lambda box: box.permission_respond("q", "allow", scope="session", ttl_s=60.0),
    "permission.request": lambda box: box.permission_request("network", cwd="/", host="ok.test", port=443),
    "permission.list": lambda box: box.permission_list(),
    "permission.revoke": lambda box: box.permission_revoke("s", "g-1"),
    "violation.list": lambda box: box.violation_list(command_id="c"),
    "violation.subscribe": lambda box: box.violation_subscribe(session_id="s", since="fake-0"),
    "violation.clear": lambda box: box.violation_clear(),
    "violation.suggest": lambda box: box.violation_suggest(1),
    "violation.annotate": lambda box: box.violation_annotate("c", "text"),
    "violation.strip": lambda box: box.violation_strip("text"),
    "credential.set": lambda box: box.credential_set("A", "value-of-a"),
    "credential.remove": lambda box: box.credential_remove("A"),
    "credential.list": lambda box: box.credential_list(),
    "settings.get": lambda box: box.settings_get("sandbox.enabled"),
    "settings.update": lambda box: box.settings_update([Change("set", "enabled", True)]),
    "settings.exclude_command": lambda box: box.settings_exclude_command("docker", remove=True),
    "settings.trust": lambda box: box.settings_trust("trust", "/p", digests={"/p/.claude/settings.json": "00"}),
    "settings.reload": lambda box: box.settings_reload(),
    "settings.locked": lambda box: box.settings_locked(),
    "settings.subscribe": lambda box: box.settings_subscribe(cwd="/"),
    "settings.lint": lambda box: box.settings_lint(["a.json"], source="user"),
    "settings.schema": lambda box: box.settings_schema(),
    "policy.close_ports": lambda box: box.policy_close_ports([8443]),
    "policy.explain": lambda box: box.policy_explain("path", "/etc", write=True),
    "policy.effective": lambda box: box.policy_effective(),
    "policy.describe": lambda box: box.policy_describe(exceptions={"mcp-cli": "talks to a socket"}),
}


def test_every_method_has_a_call() -> None:
    assert set(CALLS) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_sends_its_parameters_and_returns_its_record(box: Client, fake: FakeDaemon, method: str) -> None:
    result = CALLS[method](box)
    assert type(result) is METHODS[method].result
    assert fake.calls[-1].method == method


@pytest.mark.parametrize("method", METHODS)
async def test_the_same_with_coroutines(fake: FakeDaemon, method: str) -> None:
    async with AsyncClient(fake.socket, autostart=False) as box:
        result = await CALLS[method](box)
    assert type(result) is METHODS[method].result
    assert fake.calls[-1].method == method


def public(cls: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in vars(cls).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }


@pytest.mark.parametrize(("blocking", "asynchronous"), [(Client, AsyncClient), (Session, AsyncSession)])
def test_both_clients_have_the_same_methods_and_parameters(blocking: type, asynchronous: type) -> None:
    mine, other = public(blocking), public(asynchronous)
    assert set(other) - set(mine) <= {"open"}  # a constructor cannot wait
    assert set(mine) <= set(other)
    for name, signature in mine.items():
        assert list(signature.parameters.values()) == list(other[name].parameters.values()), name


def test_wrap_sends_an_absolute_directory_and_the_environment(
    box: Client, fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "web").mkdir()
    monkeypatch.chdir(tmp_path)
    box.wrap(argv=["make", Path("x")], cwd="web", env={"A": "1", "GIT_SSH": "x"}, command_id="c", command_text="shown")
    assert fake.calls[-1].params == {
        "argv": ["make", "x"],
        "cwd": str(tmp_path / "web"),
        "env": {"GIT_SSH": "x"},
        "command_id": "c",
        "command_text": "shown",
    }
    monkeypatch.setenv("PATH", "/usr/bin:/\udcff:/bin")
    monkeypatch.setenv("HARMLESS", "unsent")
    box.wrap("ls")
    assert fake.calls[-1].params["cwd"] == str(tmp_path)
    sent = fake.calls[-1].params["env"]
    assert sent["PATH"] == "/usr/bin:/bin" and "HARMLESS" not in sent  # the daemon need not look for it


def test_variables_that_are_not_utf_8_are_left_out(box: Client, fake: FakeDaemon) -> None:
    box.wrap("ls", env={"GIT_SSH": "1", "JAVA_TOOL_OPTIONS": "\udcff", "\udcfe": "x"})
    assert fake.calls[-1].params["env"] == {"GIT_SSH": "1"}


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        ({"command": "a\0b"}, "command_nul"),
        ({"argv": ["a", "b\0"]}, "command_nul"),
        ({"argv": []}, "command_empty"),
        ({"argv": [""]}, "command_empty"),
        ({}, "command_empty"),
        ({"command": "a", "argv": ["a"]}, "command_empty"),
        ({"command": "echo \udcff"}, "not_utf8"),
        ({"command": "x" * 5_000_000}, "line_too_long"),
    ],
)
def test_commands_that_cannot_be_sent_are_refused_here(
    box: Client, fake: FakeDaemon, arguments: dict[str, Any], slug: str
) -> None:
    with pytest.raises(InvalidCommand) as caught:
        box.wrap(**arguments)
    assert caught.value.slug == slug
    assert not fake.calls
    assert isinstance(caught.value, ValueError)
    assert box.status()  # the connection is as good as before


@pytest.mark.parametrize(
    ("answer", "kind", "slug"),
    [
        (RpcError("session_unknown", "no session x", "open one"), RpcError, "session_unknown"),
        (RpcError("peer_other_namespace", "not from a sandbox"), PermissionDenied, "peer_other_namespace"),
        (RpcError("wrong_version", "too old"), WrongVersion, "wrong_version"),
        (RpcError("method_not_found", "no such method"), WrongVersion, "wrong_version"),
        (RpcError("new_slug", "of a newer daemon", number=codes.HOST), RpcError, "new_slug"),
        ({"new": "shape"}, WrongVersion, "wrong_version"),
        ([], WrongVersion, "wrong_version"),
    ],
)
def test_errors_are_typed(box: Client, fake: FakeDaemon, answer: Any, kind: type[SandboxdError], slug: str) -> None:
    fake.answer("status", answer)
    with pytest.raises(kind) as caught:
        box.status()
    assert caught.value.slug == slug
    if isinstance(answer, RpcError) and kind is RpcError:
        assert caught.value.message == answer.message and caught.value.hint == answer.hint
        assert isinstance(caught.value, RpcError)
        assert caught.value.number == (answer.number or codes.number_of(slug))


def test_an_older_client_ignores_what_a_newer_daemon_adds(box: Client, fake: FakeDaemon) -> None:
    fake.answer("wrap.outcome", {"started": True, "exited": True, "status": 0, "reason": None, "sealed": {"new": 1}})
    assert box.wrap_outcome("w").status == 0


def test_advice_when_nobody_answers(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    with pytest.raises(DaemonNotRunning) as caught:
        Client(directory / "s", autostart=False).status()
    assert str(directory / "s") in str(caught.value)
    assert "sandboxd serve" in str(caught.value)


def test_a_directory_open_to_others_is_refused(fake: FakeDaemon) -> None:
    os.chmod(os.path.dirname(fake.socket), 0o755)
    with pytest.raises(PermissionDenied) as caught:
        Client(fake.socket).status()
    assert caught.value.slug == "directory_not_private"
    assert f"chmod 700 {os.path.dirname(fake.socket)}" in caught.value.hint


def test_a_file_in_place_of_the_socket_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    (directory / "s").write_text("mine")
    with pytest.raises(PermissionDenied) as caught:
        Client(directory / "s").status()
    assert caught.value.slug == "socket_path_occupied"
    assert [path.name for path in directory.iterdir()] == ["s"]


def test_the_package_imports_what_is_asked_for_only() -> None:
    import sandboxd_client

    assert set(sandboxd_client.__all__) == set(sandboxd_client._MODULE_OF)
    for name in sandboxd_client.__all__:
        assert getattr(sandboxd_client, name) is not None
    assert set(sandboxd_client.__all__) <= set(dir(sandboxd_client))
    with pytest.raises(AttributeError):
        _ = sandboxd_client.Nothing
