"""Who may claim which prepared sandbox, and when one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sandboxd.backends.base import LaunchSpec
from sandboxd.errors import HostError
from sandboxd.plan.environment import EnvironmentChange
from sandboxd.plan.filesystem.mounts import FileView
from sandboxd.plan.plan import Plan, Supervision
from sandboxd.policy.hosts.publication import Publication
from sandboxd.runtime import prepared
from sandboxd.runtime.prepared import MOST_OF_SESSION, PreparedSandbox, PreparedSandboxes
from sandboxd.runtime.wrap import WrapRequest

PLAN = Plan(FileView((), ()), EnvironmentChange({}, ()), "/work", ("one",))
ANOTHER_VIEW = FileView((), ())


class Handle:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.killed = asyncio.Event()

    def cancel(self) -> None:
        self.log.append("cancel")

    def terminate(self) -> None:
        self.log.append("terminate")

    def kill(self) -> None:
        self.log.append("kill")
        self.killed.set()

    async def claim(self, arguments: object, observer: object) -> Awaitable[None]:
        raise HostError("launch_failed", "it has ended")


def one(owner: object, wrap_id: str = "p", *, complete: bool = True) -> tuple[PreparedSandbox, Handle]:
    sandbox, handle = PreparedSandbox(wrap_id, PLAN, owner), Handle()
    sandbox.attach(LaunchSpec((), ()), handle)
    if complete:
        sandbox.claimed(7)
        waiting = sandbox.starting()
        assert waiting is not None
        waiting.close()  # type: ignore[attr-defined]
    return sandbox, handle


def asked(owner: object, wrap_id: str | None = "p", publish: tuple[Publication, ...] = ()) -> WrapRequest:
    return WrapRequest("/work", argv=("two",), prepared=wrap_id, owner=owner, publish=publish)


@pytest.mark.parametrize(
    ("plan", "request_of", "taken", "ended"),
    [
        (replace(PLAN, argv=("two",), environment=EnvironmentChange({"A": "1"}, ())), asked, True, False),
        (PLAN, lambda owner: asked(object()), False, False),
        (PLAN, lambda owner: asked(owner, "another"), False, False),
        (PLAN, lambda owner: asked(owner, None), False, False),
        (PLAN, lambda owner: asked(owner, publish=(Publication.parse("3000"),)), False, True),
        (replace(PLAN, view=ANOTHER_VIEW), asked, False, True),
        (replace(PLAN, cwd="/other"), asked, False, True),
        (replace(PLAN, supervision=Supervision(writes=True)), asked, False, True),
        (replace(PLAN, removed_variables=("A*",)), asked, False, True),
    ],
)
async def test_it_is_for_its_connection_and_its_plan(
    plan: Plan, request_of: Callable[[object], WrapRequest], taken: bool, ended: bool
) -> None:
    owner, kept = object(), PreparedSandboxes()
    sandbox, handle = one(owner)
    kept.add(sandbox)
    assert (kept.take(request_of(owner), plan) is sandbox) is taken
    assert handle.log == ["kill"] * ended
    assert kept.waiting == (not taken and not ended)
    sandbox.end()


async def test_one_that_is_not_complete_is_left_for_later() -> None:
    owner, kept = object(), PreparedSandboxes()
    sandbox, handle = one(owner, complete=False)
    kept.add(sandbox)
    assert kept.take(asked(owner), PLAN) is None and not handle.log and not kept.waiting
    sandbox.end()
    assert handle.log == ["cancel"]


async def test_a_newer_or_ninth_one_ends_an_older_one() -> None:
    kept, owner = PreparedSandboxes(), object()
    (first, old), (second, _) = one(owner), one(owner)
    kept.add(first)
    kept.add(second)
    assert old.log == ["kill"] and kept.waiting == 1
    for _ in range(MOST_OF_SESSION):
        kept.add(one(object())[0])
    assert kept.waiting == MOST_OF_SESSION and second.is_over
    kept.clear()
    assert kept.waiting == 0


async def test_an_unused_one_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "UNUSED_S", 0.0)
    sandbox, handle = one(object())
    await handle.killed.wait()
    assert sandbox.is_over


async def test_a_claim_that_fails_ends_it() -> None:
    sandbox, handle = one(object())
    with pytest.raises(HostError):
        await sandbox.claim(object(), PLAN)  # type: ignore[arg-type]
    assert handle.log == ["kill"] and sandbox.is_over
