"""Crash store: state kept by the service manager while the daemon runs.

It holds the descriptors of each running command, and a memory file that describes them (docs/restarts.md). The manager
shares the memory file, so that later changes are only written there.

A command is stored after it has run for a moment, and many at a time: most are over by then and cost nothing. The start
of a command never waits for the manager, and an idle daemon does not wake up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.restart.descriptor_store import ManagerMessage, Store, removal, storing
from sandboxd.handover.crash_documents import DAEMON, Extent, name_of
from sandboxd.handover.document import Outgoing
from sandboxd.runtime.events import Event, RunEnded, RunStarted
from sandboxd_client.records import dataclass, field

KEPT_AFTER_S: Final = 0.2
"""Seconds until a command is stored, and until a change is written."""
AT_ONCE_S: Final = 0.005
"""Seconds in which documents are written in one turn of the event loop; one is always written."""
PAUSED: Final = 9
"""A pause follows, as a multiple of the time they took: one event changes the entries of all commands of a session."""


@dataclass(frozen=True, slots=True)
class CrashEntry:
    """Crash entry.

    `write` adds it to a document, and returns False when it has just ended. Events of `session_id` may change it, those
    of all sessions when that is empty."""

    key: str
    session_id: str
    write: Callable[[Outgoing], bool]


IsOldEnough = Callable[[str], bool]
"""Return whether a command (by its wrap_id) has run long enough."""


class CrashStore:
    """Crash entries of a daemon. Nothing is stored before `start` or after `close`."""

    def __init__(self, store: Store, log: FilteringBoundLogger) -> None:
        self._store = store
        self._wanted: Callable[[IsOldEnough], Iterable[CrashEntry]] = lambda is_old_enough: ()
        self._log = log
        self._entries: dict[str, _Entry] = {}
        self._young: dict[str, float] = {}
        self._changed: set[str] = set()
        self._to_write: set[str] = set()
        self._left_out: dict[str, int] = {}
        """Entries without room, with the room that they take."""
        self._failure = ""
        self._capacity = -1
        """Number of descriptors that the store holds; -1: not known yet."""
        self._paused = True
        self._timer: asyncio.TimerHandle | None = None
        self._working: asyncio.Task[None] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what a crash would lose, for `status`."""
        found = []
        if commands := self._left_out.keys() - {DAEMON}:
            found.append(
                f"the service manager keeps no more (FileDescriptorStoreMax={self._capacity}): {len(commands)} commands"
                " or sessions would be left without network if the daemon crashed"
            )
        if self._failure:
            found.append(f"what runs would be left without network if the daemon crashed: {self._failure}")
        return tuple(found)

    def start(self, wanted: Callable[[IsOldEnough], Iterable[CrashEntry]]) -> None:
        """Store what `wanted` returns, now and after each change.

        Until the first time, resumed commands are stored only under the names that the earlier daemon gave them."""
        self._wanted, self._paused = wanted, False
        self._begin()

    def listen(self, event: Event) -> None:
        """Handle an event of the daemon."""
        if isinstance(event, RunStarted) and self._capacity:
            self._young[event.wrap_id] = asyncio.get_running_loop().time()
        elif isinstance(event, RunEnded):
            self._young.pop(event.wrap_id, None)
            self._over(event.wrap_id)
        self.changed(getattr(event, "session_id", None) or "")

    def session(self, session_id: str, is_open: bool) -> None:
        """Handle the opening or closing of a session."""
        if not is_open:
            self._over(session_id)
        self.changed(session_id)

    def _over(self, key: str) -> None:
        """Mark an entry as removed first, so that a crash cannot restore it."""
        if (entry := self._entries.get(key)) is not None:
            entry.clear()

    def changed(self, session_id: str) -> None:
        """Schedule the entries of a session, or all when that is empty."""
        if self._capacity == 0:  # there is no store
            return
        self._changed.add(session_id)
        self._schedule()

    def grants_revoked(self, session_id: str) -> None:
        """Write a session's entry at once, so that a crash restores no revoked grant."""
        entry = self._entries.get(session_id)
        if entry is None:
            return
        for wanted in self._wanted(lambda wrap_id: wrap_id not in self._young):
            outgoing = Outgoing()
            if wanted.key == session_id and wanted.write(outgoing) and tuple(outgoing.descriptors) == entry.numbers:
                entry.write(outgoing.text())
                return
        entry.clear()

    def _schedule(self) -> None:
        if self._timer is None and self._working is None and not self._paused:
            self._timer = asyncio.get_running_loop().call_later(KEPT_AFTER_S, self._begin)

    def pause(self) -> None:
        """Store nothing more, because a hand-over follows. `close` has to follow."""
        self._paused = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def capacity(self) -> int:
        """Return the number of descriptors that the manager keeps."""
        if self._capacity < 0:
            self._capacity = await self._store.capacity()
        return self._capacity

    async def close(self) -> None:
        """Remove everything from the store. Idempotent."""
        self.pause()
        while self._working is not None:
            await asyncio.wait([self._working])
        messages = [*self._removed(list(self._entries)), *map(removal, self._store.take_old())]
        if messages:
            with contextlib.suppress(OSError):  # the manager may be gone
                await asyncio.to_thread(self._store.send, messages)

    def _begin(self) -> None:
        self._timer = None
        if self._working is None and not self._paused:
            self._working = asyncio.get_running_loop().create_task(self._work(), name="keeping")

    async def _work(self) -> None:
        try:
            await self.capacity()
            more = True
            tried: set[str] = set()
            while more and not self._paused:
                begun = time.perf_counter()
                messages, more = self._collect(tried, begun + AT_ONCE_S)
                taken = time.perf_counter() - begun
                if messages:
                    await asyncio.to_thread(self._store.send, messages)
                await asyncio.sleep(PAUSED * taken)
            self._failure = ""
        except OSError as error:
            self._failure = f"the service manager does not accept crash entries ({error.strerror or error})"
            self._forget()
        except Exception:  # an internal error must not end running commands
            self._log.exception("cannot store crash entries")
            self._failure = "internal error; see the log"
            self._forget()
        finally:
            self._working = None
            if self._capacity > 0 and (self._young or self._changed):
                self._schedule()

    def _collect(self, tried: set[str], until: float) -> tuple[list[ManagerMessage], bool]:
        """Return messages, and whether there are entries to write beside `tried`."""
        if self._capacity <= 0:
            return [removal(name) for name in self._store.take_old()], False
        wanted = {one.key: one for one in self._wanted(self._age())}
        if self._changed:
            changed, everything = {"", *self._changed}, "" in self._changed
            self._to_write.update(one.key for one in wanted.values() if everything or one.session_id in changed)
            self._changed.clear()
        messages = [removal(name) for name in self._store.take_old()]
        messages += self._removed([key for key in self._entries if key not in wanted])
        self._left_out = {key: size for key, size in self._left_out.items() if key in wanted}
        self._to_write &= wanted.keys()
        room = self._room
        due = [key for key in wanted if key not in tried and self._is_due(key, room)]
        for place, key in enumerate(due):
            if place and time.perf_counter() >= until:
                return messages, True
            tried.add(key)
            self._to_write.discard(key)
            messages += self._keep(wanted[key])
        return messages, False

    def _is_due(self, key: str, room: int) -> bool:
        return key in self._to_write if key in self._entries else self._left_out.get(key, 0) <= room

    @property
    def _room(self) -> int:
        return self._capacity - sum(one.size for one in self._entries.values())

    def _age(self) -> IsOldEnough:
        until = asyncio.get_running_loop().time() - KEPT_AFTER_S / 2
        for wrap_id in [wrap_id for wrap_id, since in self._young.items() if since <= until]:
            del self._young[wrap_id]
        return lambda wrap_id: wrap_id not in self._young

    def _keep(self, wanted: CrashEntry) -> list[ManagerMessage]:
        outgoing = Outgoing()
        if not wanted.write(outgoing):
            return []
        entry = self._entries.get(wanted.key)
        numbers = tuple(outgoing.descriptors)
        if entry is not None and entry.numbers == numbers:
            entry.write(outgoing.text())
            return []
        messages = self._removed([wanted.key]) if entry is not None else []
        size = len(numbers) + 1
        if size > self._room:
            self._left_out[wanted.key] = size
            return messages
        self._left_out.pop(wanted.key, None)
        entry = self._entries[wanted.key] = _Entry(wanted.key, numbers)
        entry.write(outgoing.text())
        # The memory file goes last: unnamed descriptors are closed, but a missing one loses the command.
        # Duplicates, since a command may end and its numbers be reused before they are sent.
        messages += [storing(name_of(wanted.key, number), os.dup(number)) for number in numbers]
        return [*messages, storing(name_of(wanted.key), os.dup(entry.memory))]

    def _removed(self, keys: Iterable[str]) -> list[ManagerMessage]:
        messages = []
        for key in keys:
            entry = self._entries.pop(key)
            os.close(entry.memory)
            messages += [removal(name) for name in entry.names]
        return messages

    def _forget(self) -> None:
        """Remove all after an error; the next change stores the commands again."""
        left = tuple(name for entry in self._entries.values() for name in entry.names)
        self._removed(list(self._entries))
        self._store.old = (*self._store.old, *left)


@dataclass(slots=True)
class _Entry:
    """Memory file, and the numbers of the descriptors that its document names."""

    key: str
    numbers: tuple[int, ...]
    memory: int = -1
    _extent: Extent = field(default_factory=Extent)

    def __post_init__(self) -> None:
        self.memory = os.memfd_create("sandboxd-kept", os.MFD_CLOEXEC)

    @property
    def size(self) -> int:
        return len(self.numbers) + 1

    @property
    def names(self) -> tuple[str, ...]:
        return (name_of(self.key), *(name_of(self.key, number) for number in self.numbers))

    def clear(self) -> None:
        os.pwrite(self.memory, Extent().header, 0)

    def write(self, text: bytes) -> None:
        extent = self._extent.next(len(text))
        os.pwrite(self.memory, text, extent.offset)
        os.pwrite(self.memory, extent.header, 0)
        self._extent = extent
