"""One launch, between the bridge and the observer of its command."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Protocol

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, LaunchHandle, Listeners, Observer, SandboxNetwork
from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions
from sandboxd.backends.linux.helper.bridge_protocol import HARMLESS, PARTLY
from sandboxd.backends.linux.network.capture import Ability
from sandboxd.errors import HostError, LaunchError
from sandboxd.plan.filesystem.mounts import FileView
from sandboxd.plan.host_facts import Neutralised, Territory
from sandboxd.plan.network import NetworkPlan
from sandboxd.plan.plan import ProcessLimit
from sandboxd.policy.model import Limits
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from sandboxd_client.records import dataclass

NOT_LOOKED_THROUGH = "the repository clean-up after the command did not finish"
LOOKED_IN_PART = "the repository clean-up after the command was partial"
NOT_LOOKED_STATUS = 125


class Releasable(Protocol):
    def stands(self) -> bool:
        """Return whether all placeholders are still in place."""

    def release(self, *, ran: bool = True) -> Neutralised:
        """Release the placeholders, and report the protected names moved aside.

        `ran`: a command could have made such names."""


class LaunchLimits(Protocol):
    """The limits of a command (`command_limits`). `told` hears what it has met."""

    told: Callable[[DenialEvent], None]
    kill: Callable[[], None]
    limits: Limits
    processes: ProcessLimit | None

    def started(self) -> None: ...
    def ending(self) -> None: ...
    def ended(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PendingSetup:
    """The set-up steps that a launch still owes before its command starts."""

    options: BwrapOptions
    ability: Ability
    network: NetworkPlan


class Launching:
    """One launch: forwards events to its observer, and ends its placeholders."""

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
        """Set until the launch starts or fails.

        When it ends before that, a missing placeholder may be the reason."""
        self.last_byte = HARMLESS
        """The result of the clean-up, for process 1."""
        self.was_claimed = False
        self.launch_id = launch_id
        self.view = view
        self.territory = territory
        self.pending_setup = pending_setup
        self.handle: LaunchHandle | None = None
        self.mounts: Callable[[], object] | None = None
        """Looks at the mounts of a prepared sandbox, until it has a command."""
        self._mounts: object = None
        self._unrecorded: HostError | None = None
        """The reason why the start is not in the journal, so that the command must not run."""
        self.begins: Callable[[], None] | None = None
        """Begins with the set-up while bubblewrap starts."""
        self.limits: LaunchLimits | None = None

    def take_limits(self, limits: LaunchLimits) -> None:
        """Watch these limits, from the start to the end."""
        self.limits = limits
        limits.told, limits.kill = self._observer.refused, self.kill

    def claimed(self, pid: int) -> None:
        self.was_claimed = self.mounts is None
        self._process = pid
        self._observer.claimed(pid)
        self.record()
        if self.begins is not None:
            self.begins()

    def record(self) -> None:
        """Put the start into the journal, once there is a command, and again when its territory has changed.

        Early, since bubblewrap has something to do meanwhile; a failure is raised at the start."""
        if self.mounts is None:
            try:
                self._write_down(self.launch_id, self._process)
            except HostError as error:
                self._unrecorded = error

    def listening(self, listeners: Listeners) -> None:
        self._observer.listening(listeners)

    def starting(self, inside: SandboxNetwork | None = None) -> Awaitable[None] | None:
        if self.mounts is not None:
            self._mounts = self.mounts()
        elif self._unrecorded is not None:
            raise self._unrecorded
        return self._observer.starting(inside)

    def check_mounts(self) -> None:
        """Compare the mounts of a prepared sandbox with those it was made with. Raises LaunchError."""
        if self.mounts is None or self._mounts is None or self.mounts() != self._mounts:
            raise LaunchError("mount_misplaced", "mounts have changed since the sandbox was made")

    def become(self, observer: Observer, hold: Releasable, territory: Territory) -> None:
        """Make a prepared sandbox that of a command. Raises HostError."""
        try:
            self._write_down(self.launch_id, self._process)
        except BaseException:
            hold.release(ran=False)
            raise
        self.mounts, self.was_claimed = None, True
        self._observer, self._hold, self.territory = observer, hold, territory

    def started(self) -> None:
        self.must_stand = False
        self._observer.started()
        if self.limits is not None:
            self.limits.started()

    def refused(self, refusal: DenialEvent) -> None:
        self._observer.refused(refusal)

    def lost(self, count: int) -> None:
        self._observer.lost(count)

    def listens(self) -> None:
        self._observer.listens()

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        self._observer.connecting(attempt, answer)

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self.must_stand = False
        self._observer.failed(reason, outdated=outdated)

    def clear_up(self) -> asyncio.Future[bytes] | bytes:
        """Clean up after the command. The result is the last byte for process 1."""
        if not self._cleared:
            self._cleared = True
            if self.limits is not None:
                self.limits.ending()
            try:
                if self.must_stand and not self._hold.stands():
                    self._observer.failed("a name that is kept absent was removed meanwhile", outdated=True)
                self.tell(self._hold.release())
            except OSError as error:  # the repository clean-up and the report of the end must still happen
                self.not_looked_through(error)
            self._looking = self._look_after(self)
        return self.last_byte if self._looking is None or self._looking.done() else self._looking

    def ended(self, status: int | None) -> None:
        looking = self.clear_up()
        self._forget()
        if self.limits is not None:
            self.limits.ended()
        if isinstance(looking, bytes):
            self._tell_end(status)
        else:
            looking.add_done_callback(lambda _: self._tell_end(status))

    def _tell_end(self, status: int | None) -> None:
        """Report the end with the status that process 1 exits with."""
        self._observer.ended(NOT_LOOKED_STATUS if status is not None and not self.last_byte else status)

    def tell(self, found: Neutralised) -> None:
        """Report the result of a clean-up."""
        for path in found.moved:
            self._moved_aside(path)
        if found.failed is not None:
            self.not_looked_through(found.failed)
        elif found.unseen:
            self._observer.failed(f"{LOOKED_IN_PART}: {found.unseen}")
            self._not_whole(found.unseen, PARTLY)

    def _moved_aside(self, path: str) -> None:
        """Report a protected name that was renamed."""
        self._log("a protected name appeared during a command and was moved aside", path=path)
        self._observer.refused(
            DenialEvent(ViolationKind.WRITE, "create", path, ViolationSource.DAEMON, hint=f"see {path}.refused-*")
        )

    def not_looked_through(self, error: Exception) -> None:
        """Report a failed clean-up: a file that git obeys may be left."""
        self._observer.failed(f"{NOT_LOOKED_THROUGH}: {error}")
        self._not_whole(str(error), b"")

    def _not_whole(self, why: str, last_byte: bytes) -> None:
        if self.last_byte:
            self.last_byte = last_byte
        self._log("clean-up after a command is incomplete", error=why)
        place = next(reversed(self.territory.places), "")
        hint = f"check the git repositories in {place or 'its directory'} before you use them: {why}"
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
    """The observer of a launch whose session has ended. Closes its listeners."""

    def claimed(self, pid: int) -> None: ...

    def listening(self, listeners: Listeners) -> None:
        listeners.close()

    def starting(self, inside: SandboxNetwork | None = None) -> Awaitable[None] | None:
        raise LaunchError("launch_failed", "its session has ended", hint="run the command in another session")

    def started(self) -> None: ...

    def failed(self, reason: str, *, outdated: bool = False) -> None: ...

    def refused(self, refusal: DenialEvent) -> None: ...

    def lost(self, count: int) -> None: ...

    def listens(self) -> None: ...

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        answer(errno.ECONNREFUSED)

    def ended(self, status: int | None) -> None: ...
