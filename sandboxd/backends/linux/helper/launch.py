"""One launch, between the bridge, which tells what becomes of it, and the command, which hears of it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, LaunchHandle, Listeners, Observer
from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions
from sandboxd.backends.linux.helper.bridge_protocol import HARMLESS, PARTLY
from sandboxd.backends.linux.network.capture import Ability
from sandboxd.errors import LaunchError
from sandboxd.plan.filesystem.mounts import FileView
from sandboxd.plan.host_facts import Neutralised, Territory
from sandboxd.plan.network import NetworkPlan
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource

NOT_LOOKED_THROUGH = "what the command has left was not looked through"
LOOKED_IN_PART = "only a part of what the command has left was looked through"
NOT_LOOKED_STATUS = 125


class Releasable(Protocol):
    def stands(self) -> bool:
        """Whether all that was made is still there."""

    def release(self, *, ran: bool = True) -> Neutralised:
        """Let go; says which protected names had appeared and were moved aside. `ran`: a command could have made
        them."""


@dataclass(frozen=True, slots=True)
class PendingSetup:
    """What has to be done to a sandbox before its command starts."""

    options: BwrapOptions
    ability: Ability
    network: NetworkPlan


class Launching:
    """One launch, seen from both sides: passes everything on, and lets go of the placeholders when it is over."""

    def __init__(
        self,
        launch_id: str,
        observer: Observer,
        hold: Releasable,
        log: Callable[..., None],
        view: FileView,
        territory: Territory,
        pending_setup: PendingSetup,
        look_after: Callable[[Launching], asyncio.Future[bytes] | None],
        forget: Callable[[], object],
        write_down: Callable[[str, int], object] = lambda launch_id, process: None,
    ) -> None:
        self._observer = observer
        self._hold = hold
        self._log = log
        self._look_after = look_after
        self._forget = forget
        self._write_down = write_down
        self._process = 0
        self._looking: asyncio.Future[bytes] | None = None
        self._cleared = False
        self.must_stand = True
        """It has neither started nor failed: that a placeholder is gone is the reason when it ends."""
        self.last_byte = HARMLESS
        """What process 1 hears of the look through what the command has left."""
        self.was_claimed = False
        self.launch_id = launch_id
        self.view = view
        self.territory = territory
        self.pending_setup = pending_setup
        self.handle: LaunchHandle | None = None

    def claimed(self, pid: int) -> None:
        self.was_claimed = True
        self._process = pid
        self._observer.claimed(pid)

    def listening(self, listeners: Listeners) -> None:
        self._observer.listening(listeners)

    def starting(self) -> Awaitable[None] | None:
        self._write_down(self.launch_id, self._process)
        return self._observer.starting()

    def started(self) -> None:
        self.must_stand = False
        self._observer.started()

    def refused(self, refusal: DenialEvent) -> None:
        self._observer.refused(refusal)

    def lost(self, count: int) -> None:
        self._observer.lost(count)

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        self._observer.connecting(attempt, answer)

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self.must_stand = False
        self._observer.failed(reason, outdated=outdated)

    def clear_up(self) -> asyncio.Future[bytes] | bytes:
        """The command has ended: make harmless what it has left. The result is the last byte for process 1."""
        if not self._cleared:
            self._cleared = True
            try:
                if self.must_stand and not self._hold.stands():
                    self._observer.failed("a name that is kept absent was removed meanwhile", outdated=True)
                self.tell(self._hold.release())
            except OSError as error:  # the look is still to come, and the end has to be told
                self.not_looked_through(error)
            self._looking = self._look_after(self)
        return self.last_byte if self._looking is None or self._looking.done() else self._looking

    def ended(self, status: int | None) -> None:
        looking = self.clear_up()
        self._forget()
        if isinstance(looking, bytes):
            self._tell_end(status)
        else:
            looking.add_done_callback(lambda _: self._tell_end(status))

    def _tell_end(self, status: int | None) -> None:
        """With the status that process 1 ends with."""
        self._observer.ended(NOT_LOOKED_STATUS if status is not None and not self.last_byte else status)

    def tell(self, found: Neutralised) -> None:
        """What was done about what the command has left."""
        for path in found.moved:
            self._moved_aside(path)
        if found.failed is not None:
            self.not_looked_through(found.failed)
        elif found.unseen:
            self._observer.failed(f"{LOOKED_IN_PART}: {found.unseen}")
            self._not_whole(found.unseen, PARTLY)

    def _moved_aside(self, path: str) -> None:
        """Something that a program outside would obey has been given another name."""
        self._log("a protected name appeared during a command and was moved aside", path=path)
        self._observer.refused(
            DenialEvent(ViolationKind.WRITE, "create", path, ViolationSource.DAEMON, hint=f"see {path}.refused-*")
        )

    def not_looked_through(self, error: Exception) -> None:
        """There may be something that a program outside would obey, and nothing was done about it."""
        self._observer.failed(f"{NOT_LOOKED_THROUGH}: {error}")
        self._not_whole(str(error), b"")

    def _not_whole(self, why: str, last_byte: bytes) -> None:
        if self.last_byte:
            self.last_byte = last_byte
        self._log("what a command has left could not be looked through", error=why)
        place = next(reversed(self.territory.places), "")
        hint = f"look at the git repositories in {place or 'its directory'} before you use them: {why}"
        self._observer.refused(DenialEvent(ViolationKind.WRITE, "search", place, ViolationSource.DAEMON, hint=hint))

    def cancel(self) -> None:
        self._forget()
        self.tell(self._hold.release(ran=self.was_claimed))
        if not self._cleared:
            self._cleared = True
            self._looking = self._look_after(self)
        if self.handle is not None:
            self.handle.cancel()

    def terminate(self) -> None:
        if self.handle is not None:
            self.handle.terminate()

    def kill(self) -> None:
        if self.handle is not None:
            self.handle.kill()


class NullObserver:
    """Hears of a launch whose session is gone, which is ending. Its listeners are closed."""

    def claimed(self, pid: int) -> None: ...

    def listening(self, listeners: Listeners) -> None:
        listeners.close()

    def starting(self) -> Awaitable[None] | None:
        raise LaunchError("launch_failed", "its session has ended", hint="run the command in another session")

    def started(self) -> None: ...

    def failed(self, reason: str, *, outdated: bool = False) -> None: ...

    def refused(self, refusal: DenialEvent) -> None: ...

    def lost(self, count: int) -> None: ...

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        answer(errno.ECONNREFUSED)

    def ended(self, status: int | None) -> None: ...
