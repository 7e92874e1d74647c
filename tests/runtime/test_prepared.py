"""Who may claim which prepared sandbox, and when one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

    def look(self) -> asyncio.Future[None]:
        self.log.append("look")
        return asyncio.get_running_loop().create_future()

    async def claim(self, arguments: object, observer: object) -> None:
        raise HostError("launch_failed", "it has ended")


def one(owner: object, wrap_id: str = "p", *, complete: bool = True) -> tuple[PreparedSandbox, Handle]:
    sandbox, handle = PreparedSandbox(wrap_id, PLAN, owner), Handle()
    sandbox.attach(LaunchSpec((), ()), handle)
    if complete:
        make_complete(sandbox)
    return sandbox, handle


def make_complete(sandbox: PreparedSandbox) -> None:
    sandbox.claimed(7)
    waiting = sandbox.starting()
    assert waiting is not None
    waiting.close()  # type: ignore[attr-defined]


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


async def test_one_that_is_not_complete_is_waited_for() -> None:
    owner, kept = object(), PreparedSandboxes()
    sandbox, _ = one(owner, complete=False)
    kept.add(sandbox)
    waiting = asyncio.create_task(kept.made(asked(owner)))
    await kept.made(asked(owner, "another"))
    assert not waiting.done() and not kept.waiting
    make_complete(sandbox)
    await waiting
    assert kept.take(asked(owner), PLAN) is sandbox


async def test_one_that_does_not_become_complete_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "MADE_WITHIN_S", 0.0)
    owner, kept = object(), PreparedSandboxes()
    sandbox, handle = one(owner, complete=False)
    kept.add(sandbox)
    await kept.made(asked(owner))
    assert kept.take(asked(owner), PLAN) is None and handle.log == ["cancel"]


@pytest.mark.parametrize(("given", "taken"), [(None, True), ("1", True), ("2", False), ("", False)])
async def test_what_was_given_has_to_be_right(given: str | None, taken: bool) -> None:
    owner, kept = object(), PreparedSandboxes()
    sandbox, handle = one(owner)
    kept.add(sandbox)
    assert (kept.take(replace(asked(owner), given=given), PLAN, "1") is sandbox) is taken
    assert handle.log == ["kill"] * (not taken)
    sandbox.end()


def test_a_tag_tells_what_changes() -> None:
    tags = [
        prepared.env_tag(*one) for one in (({"A": "1"}, ()), ({"A": "1"}, ("B",)), ({"A": "2"}, ()), ({"AA": ""}, ()))
    ]
    assert len(set(tags)) == 4 and tags[0] == prepared.env_tag({"A": "1"}, ())


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
