"""`on_violation="ask"`: a second run outside the sandbox, after a person's yes and nothing else."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from sandboxd_client import AsyncClient, Client, CommandFailed, Completed, RpcError
from sandboxd_client.testing import FakeDaemon

BLOCKED = {
    "id": 1, "time": 1.0, "session_id": "s", "command_id": "c", "kind": "network", "operation": "CONNECT",
    "target": "no.test:443", "outcome": "hostNotListed", "source": "proxy",
}  # fmt: skip
COUNT = "echo run >> runs; cat; [ $SANDBOX_RUNTIME ] && exit 3; echo outside"


def blocking(fake: FakeDaemon, *violations: dict[str, Any]) -> None:
    answer = {"started": True, "exited": True, "status": 3, "reason": None, "violations": list(violations)}
    fake.answer("wrap.outcome", answer)


def answering(fake: FakeDaemon, behavior: str, by: str | None = "pid 1") -> None:
    fake.answer("permission.request", {"behavior": behavior, "scope": "once", "by": by, "text": "so it is"})


async def run(box: Client, command: Any, use_async: bool, **options: Any) -> Completed[Any]:
    if not use_async:
        done: Completed[Any] = box.run(command, on_violation="ask", capture_output=True, text=True, **options)
        return done
    async with AsyncClient(box.socket, autostart=False) as other:
        done = await other.run(command, on_violation="ask", capture_output=True, text=True, **options)
        return done


both = pytest.mark.parametrize("use_async", [False, True], ids=["Client", "AsyncClient"])


@both
async def test_a_yes_runs_it_once_more_outside(box: Client, fake: FakeDaemon, use_async: bool, tmp_path: Any) -> None:
    blocking(fake, BLOCKED)
    answering(fake, "allow")
    done = await run(box, COUNT, use_async, input="in\n", cwd=tmp_path, command_id="c")
    assert (done.returncode, done.stdout, done.sandboxed) == (0, "in\noutside\n", False)
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    override = done.override
    assert override is not None and override.allowed and (override.by, override.text) == ("pid 1", "so it is")
    assert override.inside is not None and override.inside.returncode == 3 and override.inside.sandboxed
    assert [violation.target for violation in override.inside.violations] == ["no.test:443"]
    asked = [call.params for call in fake.calls if call.method == "permission.request"]
    assert [(p["kind"], p["command"], p["command_id"], p["cwd"]) for p in asked] == [
        ("sandbox_override", COUNT, "c", str(tmp_path))
    ]
    assert asked[0]["reason"] == "it ended with status 3 in the sandbox"


@both
@pytest.mark.parametrize(
    ("behavior", "by"), [("deny", "pid 1"), ("deny", "policy"), ("deny", None), ("allow", "policy"), ("allow", None)]
)
async def test_nothing_but_a_person_s_yes_does(
    box: Client, fake: FakeDaemon, use_async: bool, behavior: str, by: str | None, tmp_path: Any
) -> None:
    blocking(fake, BLOCKED)
    answering(fake, behavior, by)
    done = await run(box, COUNT, use_async, cwd=tmp_path, input="")
    assert done.returncode == 3 and done.sandboxed and (tmp_path / "runs").read_text() == "run\n"
    assert done.override is not None and not done.override.allowed and done.override.inside is None
    assert done.override.text == "so it is"


@both
async def test_without_a_violation_nobody_is_asked(box: Client, fake: FakeDaemon, use_async: bool) -> None:
    blocking(fake)
    done = await run(box, "exit 3", use_async)
    assert done.returncode == 3 and done.override is None
    assert not [call for call in fake.calls if call.method == "permission.request"]


@both
async def test_a_question_that_cannot_be_put_leaves_the_result(box: Client, fake: FakeDaemon, use_async: bool) -> None:
    blocking(fake, BLOCKED)
    fake.answer("permission.request", RpcError("question_invalid", "too long", "shorten it"))
    done = await run(box, "exit 3", use_async)
    assert done.returncode == 3 and done.override is not None
    assert (done.override.allowed, done.override.text) == (False, "the prompt failed: too long")
    assert done.override.hint == "shorten it"


@both
async def test_the_status_that_is_checked_is_that_of_the_last_run(
    box: Client, fake: FakeDaemon, use_async: bool, tmp_path: Any
) -> None:
    blocking(fake, BLOCKED)
    answering(fake, "deny")
    with pytest.raises(CommandFailed):
        await run(box, COUNT, use_async, check=True, cwd=tmp_path, input="")
    answering(fake, "allow")
    assert (await run(box, COUNT, use_async, check=True, cwd=tmp_path, input="")).returncode == 0


def test_what_cannot_be_run_twice_is_refused_first(box: Client, fake: FakeDaemon, tmp_path: Any) -> None:
    with open(tmp_path / "f", "w+") as file, pytest.raises(ValueError, match="input="):
        box.run("cat", stdin=file, on_violation="ask")
    with pytest.raises(ValueError, match="'ask' or None"):
        box.run("cat", on_violation="retry")  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        box.spawn("cat", on_violation="ask")  # type: ignore[call-arg]
    assert not fake.calls
    assert box.run("cat", stdin=subprocess.DEVNULL, on_violation="ask").returncode == 0
