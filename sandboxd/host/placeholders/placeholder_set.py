"""Placeholders: empty directories that keep absent protected names absent.

A mount needs an existing target. Where a protected name does not exist, an empty directory is made on the host for as
long as a sandbox needs it: git never lists one, and `rmdir` can never destroy data. For a few names that programs fail
at when they are directories (`~/.gitconfig`) it is an empty file, and never in a working tree. Placeholders are counted
across the sandboxes of this daemon. A shared flock protects them from other daemons of this user."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping

from sandboxd.errors import HostError
from sandboxd.handover.record import Descriptor
from sandboxd.host import nofollow
from sandboxd.host.placeholders.placeholder import (
    Directories,
    Placeholder,
    is_absent,
    is_at,
    is_in_use,
    is_lost,
    make,
    reachable,
    remove,
    remove_empty,
    remove_left,
    take,
    unmark,
)
from sandboxd.host.placeholders.placeholder_journal import Journal, JournalsClosed
from sandboxd.host.sandbox_mounts import ProcessEnds, in_use, mounts_of_sandboxes
from sandboxd.plan.host_facts import Neutralised
from sandboxd_client.records import dataclass, field

LINGER = 0.2
"""Seconds from the last use to the removal: repeated creation is costly."""
_NO_ROOM = "make the working directory writable, and free some disk space"
_NO_MODES = "work on another file system, or mount this one with modes and owners (on WSL: the option metadata)"


@dataclass(slots=True, eq=False)
class PlaceholderHold:
    """The placeholders of one sandbox; a second `release` does nothing."""

    paths: tuple[str, ...]
    watched: tuple[tuple[str, ...], ...]
    _release: Callable[[tuple[str, ...], bool], Neutralised] = field(repr=False)
    _stand: Callable[[tuple[str, ...]], bool] = field(repr=False)

    def stands(self) -> bool:
        """Return whether all placeholders still exist."""
        return self._stand(self.paths)

    def release(self, *, ran: bool = True) -> Neutralised:
        """Release the placeholders.

        After a command that `ran`, watched names that have appeared are moved aside, and so is what replaces a removed
        placeholder. Otherwise these belong to another program."""
        paths, self.paths = self.paths, ()
        watched, self.watched = self.watched, ()
        done = self._release(paths, ran)
        moved, failed = list(done.moved), done.failed
        for together in watched if ran else ():
            try:
                moved += filter(None, [_move_aside(together)])
            except OSError as error:  # the command has closed a directory
                failed = error
        return Neutralised(tuple(moved), failed)


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A held placeholder; a killed daemon's command needs an `inherited` one."""

    path: str
    lock: Descriptor
    inherited: bool = False


@dataclass(frozen=True, slots=True)
class PlaceholdersRecord:
    """The hand-over of a daemon: the locked journal, and the placeholders."""

    journal: str
    log: Descriptor
    held: tuple[HeldRecord, ...] = ()
    written: tuple[str, ...] = ()


class Placeholders:
    """All placeholders of one daemon.

    `journal` is the common prefix of the paths of all daemons' journals, in a directory that survives the daemon."""

    def __init__(self, journal: str, linger: float = LINGER) -> None:
        self._journal = Journal(journal)
        self._linger = linger
        self._idle: dict[str, None] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._held: dict[str, Placeholder] = {}
        self._directories = Directories()
        self._inherited: frozenset[str] = frozenset()
        self._ends = ProcessEnds()
        self._found: frozenset[str] = frozenset()
        self._others = JournalsClosed(self._journal.directory)
        self._other_has_ended = False
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False

    def recover(self) -> tuple[str, ...]:
        """Remove what ended daemons left; return the paths. Call it before `hold`.

        What one of their commands still needs is kept until that has ended, see `follow`."""
        removed = self._recover()
        self._adopt()
        return removed

    def _recover(self) -> tuple[str, ...]:
        """Do the work of `recover` in any thread; store what commands need in `_found`.

        The journals go last: a daemon that is killed in the middle leaves them to the next."""
        with contextlib.ExitStack() as locks:
            journals = tuple(self._journal.abandoned(locks))
            text = b"".join(journal.text for journal in journals)
            # only paths: a damaged journal must not keep a daemon from starting
            lines = sorted({os.fsdecode(line) for line in text.split(b"\0") if line.startswith(b"/")}, reverse=True)
            # A command outlives its daemon, and a mount goes with the directory it stands on.
            needed = in_use(lines, mounts_of_sandboxes()) if lines else frozenset()
            # the longest first, so that outer placeholders are empty
            removed = tuple(path for path in lines if path not in needed and remove_left(path))
            if needed:
                self._journal.write(sorted(needed))
                self._found |= needed
            for journal in journals:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(journal.path)
        return removed

    def _adopt(self) -> None:
        """Hold what `_recover` has found for the commands that need it."""
        found, self._found = self._found, frozenset()
        for path in found - self._inherited:
            placeholder = self._held.get(path) or take(path)
            if placeholder is not None:
                self._held[path] = placeholder
                placeholder.users += 1
                self._idle.pop(path, None)
        self._inherited |= found

    def follow(self) -> None:
        """Remove placeholders when commands of ended daemons end. Call it after `resume`."""
        self._others.watch(self._another_has_ended)
        self._look()

    def _another_has_ended(self) -> None:
        self._other_has_ended = True
        self._look()

    def _look(self) -> None:
        self._ends.close()
        if self._looking is not None:
            self._look_again = True
        elif self._inherited or self._other_has_ended:
            self._looking = asyncio.get_running_loop().create_task(self._look_through(), name="placeholders-left")

    async def _look_through(self) -> None:
        """Release what ended commands needed, and watch those that run."""
        try:
            running = await self._looked()
            while self._look_again:
                self._look_again = False
                running = await self._looked()
        finally:
            self._looking = None
        needing = [process for process in running if in_use(self._inherited, {process: running[process]})]
        if needing:
            self._ends.watch(needing, self._look)
        if self._idle and self._sweeping is None:
            self._sweep()

    async def _looked(self) -> Mapping[int, frozenset[str]]:
        if self._other_has_ended:
            self._other_has_ended = False
            with contextlib.suppress(HostError, OSError):  # the journal cannot be written: leave it to the next daemon
                await asyncio.to_thread(self._recover)
            self._adopt()
        running = await asyncio.to_thread(mounts_of_sandboxes)
        left = in_use(self._inherited, running)
        for path in self._inherited - left:
            placeholder = self._held.get(path)
            if placeholder is not None:
                placeholder.users -= 1
                if not placeholder.users:
                    self._idle[path] = None
        self._inherited = left
        return running

    def hand_over(self) -> PlaceholdersRecord:
        """Leave all placeholders to the next daemon; later releases change nothing."""
        self._stop()
        held = tuple(HeldRecord(p, Descriptor(one.lock), p in self._inherited) for p, one in self._held.items())
        journal, log, written = self._journal.hand_over()
        self._held.clear()
        self._idle.clear()
        self._inherited = frozenset()
        return PlaceholdersRecord(journal, Descriptor(log), held, written)

    def resume(self, record: PlaceholdersRecord) -> None:
        """Take over the placeholders of another daemon, to be held before a sweep."""
        self._journal.resume(record.journal, record.log, record.written)
        self._inherited |= {one.path for one in record.held if one.inherited}
        for one in record.held:
            self._held[one.path] = Placeholder(one.path, one.lock, int(one.inherited))
            if not one.inherited:
                self._idle[one.path] = None
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(max(self._linger, LINGER), self._sweep)

    def _stop(self) -> None:
        self._others.close()
        self._ends.close()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        self._adopt()  # results of an interrupted check

    async def prepare(self, paths: tuple[str, ...]) -> None:
        """Write the journal lines that `hold` needs, off the event loop."""
        if unknown := self._journal.unknown(paths):
            await asyncio.to_thread(self._write, unknown)

    def hold(
        self,
        paths: tuple[str, ...],
        watched: tuple[tuple[str, ...], ...] = (),
        rests_on: Callable[[str], bool] = lambda path: False,
        searched: Collection[str] = (),
    ) -> PlaceholderHold:
        """Make missing placeholders, parents first, and count existing ones.

        `watched` and `searched`: see `FileView`; of the latter, those that cannot be made are left out. Raises
        `HostError` when a directory cannot be made, and holds nothing then. `placeholder_taken`: something real is
        there, also at a name that another sandbox keeps absent and that the facts of this one rest on. The facts are
        outdated then (`FactSource.look_again`)."""
        self._look_at_others(paths, rests_on)
        if not paths:
            return PlaceholderHold((), watched, lambda held, ran: Neutralised(), lambda held: True)
        held: list[str] = []
        try:
            if unknown := self._journal.unknown(paths):
                self._write(unknown)
            with reachable(*paths):
                as_before = self._directories.as_before(paths)
                for path in paths:
                    try:
                        self._hold(path, certainly_there=os.path.dirname(path.rstrip("/")) in as_before)
                    except (FileNotFoundError, NotADirectoryError, FileExistsError):
                        if path not in searched:
                            raise
                        continue
                    held.append(path)
        except OSError as error:
            self._release(tuple(held), False)
            if isinstance(error, FileExistsError):
                raise HostError(
                    "placeholder_taken",
                    f"cannot keep {error.filename} from being created: {error.strerror}",
                    hint="stop the program that creates and removes it, and try again",
                    data={"path": error.filename},
                ) from error
            raise HostError(
                "placeholder_failed",
                f"cannot keep {error.filename} from being created: {error.strerror}",
                hint=_NO_MODES if error.errno == errno.ENOTSUP else _NO_ROOM,
                data={"path": error.filename},
            ) from error
        return PlaceholderHold(tuple(held), watched, self._release, lambda held: self._stand(held, searched))

    def close(self) -> None:
        """Remove all placeholders but those that commands of earlier daemons need."""
        self._stop()
        left = in_use(self._inherited, mounts_of_sandboxes()) if self._inherited else frozenset()
        for path in sorted(self._held, reverse=True):
            if path in left:
                os.close(self._held.pop(path).lock)
            else:
                self._drop(path)
        self._journal.clear()
        if left:
            self._journal.write(sorted(left))

    def _look_at_others(self, paths: tuple[str, ...], rests_on: Callable[[str], bool]) -> None:
        """Raise `placeholder_taken` once for each placeholder that a program uses."""
        used = []
        for path in self._held.keys() - paths:
            placeholder = self._held[path]
            if placeholder.is_known_used or not rests_on(path.rstrip("/")) or not is_in_use(placeholder):
                continue
            placeholder.is_known_used = True
            unmark(placeholder.lock)
            used.append(path)
        if used:
            raise HostError(
                "placeholder_taken",
                f"{used[0]} has changed: another program uses it now",
                hint="try again",
                data={"path": used[0], "more": used[1:]},
            )

    def _hold(self, path: str, *, certainly_there: bool) -> None:
        """Hold one placeholder, made again as a mount target if it was removed."""
        placeholder = self._held.get(path)
        lost = placeholder if placeholder is not None and not certainly_there and is_lost(placeholder) else None
        if placeholder is not None and lost is None and is_in_use(placeholder):
            unmark(placeholder.lock)
            raise FileExistsError(errno.EEXIST, "another program uses it now", path)
        if placeholder is None or lost is not None:
            placeholder = make(path)  # on failure the lost one stays known to its users
            if lost is not None:
                self._drop(path)
                placeholder.users, placeholder.lost = lost.users, lost.users > 0
            self._held[path] = placeholder
        placeholder.users += 1
        self._idle.pop(path, None)

    def _stand(self, paths: tuple[str, ...], searched: Collection[str]) -> bool:
        found = [self._held.get(path) for path in paths if path not in searched]
        return not any(placeholder is None or is_lost(placeholder) for placeholder in found)

    def _release(self, paths: tuple[str, ...], ran: bool) -> Neutralised:
        moved: list[str] = []
        failed: OSError | None = None
        with reachable(*paths):
            as_before = self._directories.as_before(paths)
            for path in reversed(paths):
                placeholder = self._held.get(path)
                if placeholder is None:
                    continue
                placeholder.users -= 1
                if ran and os.path.dirname(path.rstrip("/")) not in as_before:
                    placeholder.lost = placeholder.lost or is_lost(placeholder)
                if placeholder.lost:
                    try:
                        moved += filter(None, [self._moved_aside(placeholder)])
                    except OSError as error:
                        failed = error
                # The last use of this daemon: the command may be the one it was kept for, taken over after a crash.
                if placeholder.users <= int(path in self._inherited):
                    self._idle[path] = None
        self._sweep_later()
        return Neutralised(tuple(moved), failed)

    def _moved_aside(self, placeholder: Placeholder) -> str | None:
        """Move aside what replaced a removed placeholder, and may come from a command.

        A placeholder that was made anew stays while others are mounted on it. Programs replace files in the home
        directory by renaming, so a file there is the user's."""
        path, state = placeholder.path.rstrip("/"), os.fstat(placeholder.lock)
        is_same = is_at(path, state)
        if not stat.S_ISDIR(state.st_mode) or is_absent(path) or (is_same and placeholder.users):
            return None
        if remove_empty(path) or (aside := _move_aside((path,))) is None:
            return None
        if is_same:
            unmark(placeholder.lock)
        return aside

    def _sweep_later(self) -> None:
        if not self._idle:
            return
        if self._linger <= 0:
            self._sweep()
        elif self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._linger, self._sweep)

    def _sweep(self) -> None:
        """Remove placeholders without users, the innermost first."""
        self._sweeping = None
        for path in sorted(self._idle, reverse=True):
            if path in self._inherited:
                del self._idle[path]
                self._look()
            else:
                self._drop(path)

    def _write(self, paths: list[str]) -> None:
        self._journal.write(paths, afresh=not self._held)

    def _drop(self, path: str) -> None:
        self._idle.pop(path, None)
        placeholder = self._held.pop(path, None)
        if placeholder is not None:
            remove(placeholder)


def _move_aside(together: tuple[str, ...]) -> str | None:
    """Move aside a name that must be absent, if all of its set exist."""
    above, name = os.path.split(together[0])
    try:
        with reachable(together[0]), nofollow.opened(above) as directory:
            if not all(nofollow.mode_of(directory, os.path.basename(path)) for path in together):
                return None
            moved = nofollow.move_aside(directory, name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return together[0] if moved else None
