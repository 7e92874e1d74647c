"""One launch between the bridge and its command: what is passed on, and that the placeholders are let go once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions
from sandboxd.backends.linux.helper.bridge_protocol import HARMLESS, PARTLY
from sandboxd.backends.linux.helper.launch import Launching, PendingSetup
from sandboxd.backends.linux.network.capture import NOTHING
from sandboxd.errors import HostError
from sandboxd.plan.filesystem.mounts import FileView
from sandboxd.plan.host_facts import Neutralised, Territory
from sandboxd.plan.network import NetworkPlan
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource


@dataclass
class Around:
    """Everything that a launch speaks to, in the order in which it does."""

    heard: list[tuple[object, ...]] = field(default_factory=list)
    appeared: tuple[str, ...] = ()
    looking: asyncio.Future[bytes] | None = None
    broken: OSError | None = None
    gone: bool = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *what, **more: self.heard.append((name, *what, *filter(None, more.values())))

    def look_after(self, launch: Launching) -> asyncio.Future[bytes] | None:
        self.heard.append(("look_after",))
        return self.looking

    def stands(self) -> bool:
        return not self.gone

    def release(self, *, ran: bool = True) -> Neutralised:
        self.heard.append(("release",) if ran else ("release", "unused"))
        if self.broken is not None:
            raise self.broken
        return Neutralised(self.appeared)


@pytest.fixture
def around() -> Around:
    return Around()


@pytest.fixture
def launch(around: Around) -> Launching:
    return launch_of(around)


def launch_of(around: Around, write_down: Callable[[str, int], object] = lambda launch_id, process: None) -> Launching:
    made = Launching(
        launch_id="a" * 32,
        observer=around,
        hold=around,
        log=lambda event, **values: around.heard.append(("log", *values.values())),
        view=FileView(()),
        territory=Territory(()),
        pending_setup=PendingSetup(BwrapOptions((), False), NOTHING, NetworkPlan()),
        look_after=around.look_after,
        forget=lambda: around.heard.append(("forget",)),
        write_down=write_down,
    )
    made.handle = around
    return made


REFUSAL = DenialEvent(ViolationKind.READ, "open", "/x", ViolationSource.SECCOMP)


@pytest.mark.parametrize(
    ("name", "what"),
    [("claimed", (7,)), ("started", ()), ("refused", (REFUSAL,)), ("lost", (3,)), ("failed", ("why",))],
)
def test_what_the_bridge_tells_is_passed_on(
    launch: Launching, around: Around, name: str, what: tuple[object, ...]
) -> None:
    getattr(launch, name)(*what)
    assert around.heard == [(name, *what)]
    assert launch.was_claimed is (name == "claimed")


def test_a_start_is_recorded_at_its_claim_and_at_a_change(around: Around) -> None:
    launch = launch_of(around, write_down=lambda launch_id, process: around.heard.append(("record", process)))
    launch.claimed(7)
    launch.record()
    launch.starting()
    assert around.heard == [("claimed", 7), ("record", 7), ("record", 7), ("starting", None)]


def test_a_start_that_cannot_be_recorded_is_refused(around: Around) -> None:
    def fails(launch_id: str, process: int) -> None:
        raise HostError("journal_failed", "no space")

    launch = launch_of(around, write_down=fails)
    launch.claimed(7)
    with pytest.raises(HostError, match="no space"):
        launch.starting()
    assert around.heard == [("claimed", 7)]


def test_a_prepared_sandbox_is_recorded_once_it_has_a_command(around: Around) -> None:
    launch = launch_of(around, write_down=lambda launch_id, process: around.heard.append(("record", process)))
    launch.mounts = lambda: "as they were"
    launch.claimed(7)
    launch.starting()
    assert ("record", 7) not in around.heard
    launch.become(around, around, Territory(()))
    assert around.heard[-1] == ("record", 7)


def test_the_end_is_told_when_all_is_cleared_up(launch: Launching, around: Around) -> None:
    launch.ended(3)
    assert around.heard == [("release",), ("look_after",), ("forget",), ("ended", 3)]


async def test_the_end_is_told_when_what_takes_longer_is_done(launch: Launching, around: Around) -> None:
    around.looking = asyncio.get_running_loop().create_future()
    assert launch.clear_up() is around.looking
    launch.ended(3)
    assert around.heard == [("release",), ("look_after",), ("forget",)]
    around.looking.set_result(HARMLESS)
    await asyncio.sleep(0)
    assert around.heard[3:] == [("ended", 3)]


async def test_it_is_cleared_up_once(launch: Launching, around: Around) -> None:
    assert launch.clear_up() == HARMLESS
    assert launch.clear_up() == HARMLESS
    launch.ended(0)
    assert around.heard == [("release",), ("look_after",), ("forget",), ("ended", 0)]


def test_a_name_that_appeared_is_told_with_where_it_is_now(launch: Launching, around: Around) -> None:
    around.appeared = ("/p/.git",)
    launch.ended(0)
    (refusal,) = [one[1] for one in around.heard if one[0] == "refused"]
    assert isinstance(refusal, DenialEvent)
    assert (refusal.kind, refusal.target, refusal.hint) == (ViolationKind.WRITE, "/p/.git", "see /p/.git.refused-*")
    assert ("log", "/p/.git") in around.heard


def test_a_look_at_a_part_is_told_and_keeps_the_status(launch: Launching, around: Around) -> None:
    launch.tell(Neutralised(unseen="too many"))
    assert launch.clear_up() == PARTLY
    launch.ended(3)
    assert ("failed", "the repository clean-up after the command was partial: too many") in around.heard
    assert around.heard[-1] == ("ended", 3)


def test_one_that_is_called_off_lets_go_and_tells_nothing(launch: Launching, around: Around) -> None:
    launch.cancel()
    assert around.heard == [("forget",), ("release", "unused"), ("look_after",), ("cancel",)]


def test_the_end_is_told_also_when_letting_go_fails(launch: Launching, around: Around) -> None:
    around.broken = OSError("no")
    launch.ended(3)
    assert ("look_after",) in around.heard and around.heard[-1] == ("ended", 125)
    assert [one for one in around.heard if one[0] == "refused"]


@pytest.mark.parametrize("name", ["terminate", "kill"])
def test_its_end_is_asked_of_the_bridge(launch: Launching, around: Around, name: str) -> None:
    getattr(launch, name)()
    assert around.heard == [(name,)]


async def test_what_could_not_be_looked_through_is_not_harmless(launch: Launching) -> None:
    launch.not_looked_through(OSError("no"))
    assert launch.clear_up() == b""
