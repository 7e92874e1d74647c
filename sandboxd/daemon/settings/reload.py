"""Reload of settings that change on disk, without a timer or a missed change.

Watches are set *before* the files are read, so that a later change is noticed. Where the system cannot watch (inotify
is used up), the daemon reports that: each command compares the state of the files (`Policies.bring_up_to_date`), and
`settings.reload` and SIGHUP read them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.policies import Policies
from sandboxd.errors import HostError
from sandboxd.settings.files.locations import Location, SettingsLocations
from sandboxd.settings.files.watching import SettingsWatcher

_MORE = 256
"""Number of files that may be watched without need."""
RETRY_S = 1.0
LONGEST_RETRY_S = 60.0

Watch = Callable[[Iterable[Location]], SettingsWatcher]


class Reloading:
    """Owner of the task that follows the files.

    `failure` is why it does not, empty while it does. It retries after `retry_s`, doubled each time. Only a command
    causes a retry, so that an idle daemon does not wake up."""

    def __init__(
        self,
        policies: Policies,
        log: FilteringBoundLogger,
        watch: Watch = SettingsWatcher,
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self.failure = ""
        self._policies = policies
        self._log = log
        self._watch = watch
        self._watcher: SettingsWatcher | None = None
        self._task: asyncio.Task[None] | None = None
        self._most = _MORE
        self._shortest_s = self._retry_s = retry_s
        self._retry_at = 0.0
        self._is_on = False
        self._again: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Reload on every change while the context lasts."""
        self._is_on = True
        try:
            await self._begin()
            yield
        finally:
            self._is_on = False
            if self._again is not None:
                self._again.cancel()
            self._policies.before_reading = lambda locations: None
            await self._end()

    async def bring_up_to_date(self, directory: str | None) -> None:
        """Reread changed files of a known project, or of the daemon. Never raises."""
        await self.come_back()
        await self._policies.bring_up_to_date(directory)

    async def come_back(self) -> None:
        """Retry a failed watch when it is time. Never raises."""
        if not self.failure or not self._is_on or asyncio.get_running_loop().time() < self._retry_at:
            return
        if self._watcher is None or self._task is None or self._task.done():
            await self._begin()
            return
        try:
            self._watcher.set_locations(_files(self._policies.locations()))
        except (HostError, OSError) as error:
            self._give_up(error)
        else:
            self._go_on()

    async def _begin(self) -> None:
        """Begin to watch. The retry time prevents a second call, which would leak."""
        self._put_off()
        await self._end()
        async with contextlib.AsyncExitStack() as stack:
            try:
                watcher = self._watch(_files(self._policies.locations()))
                stack.push_async_exit(watcher)  # also after a failure in the middle
                await watcher.__aenter__()
            except (HostError, OSError) as error:
                self._give_up(error)
                return
            stack.pop_all()
        self._watcher = watcher
        self._policies.before_reading = self._include
        self._task = asyncio.get_running_loop().create_task(self._follow(watcher), name="settings-watch")
        self._go_on()

    async def _end(self) -> None:
        task, self._task = self._task, None
        watcher, self._watcher = self._watcher, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if watcher is not None:
            await watcher.__aexit__(None, None, None)

    def _go_on(self) -> None:
        if self.failure:
            self._log.info("settings files are watched again")
        self.failure, self._retry_s = "", self._shortest_s
        self._reload_changed()  # since the last read

    def reload(self) -> None:
        """Read everything again. Never raises."""
        try:
            self._policies.reload()
        except Exception:
            self._log.exception("reading the settings failed; the last good policy stays")

    def _reload_changed(self) -> None:
        """Read what has changed, and come back for what changes too often. Never raises."""
        try:
            again_s = self._policies.reload_changed().again_s
        except Exception:
            self._log.exception("reading the settings failed; the last good policy stays")
            return
        if self._again is not None:
            self._again.cancel()
        loop = asyncio.get_running_loop()
        self._again = loop.call_later(again_s, self._reload_changed) if again_s and self._is_on else None

    async def _follow(self, watcher: SettingsWatcher) -> None:
        try:
            async for _ in watcher.changes():
                self._reload_changed()
        except (HostError, OSError) as error:
            self._give_up(error)

    def _include(self, locations: SettingsLocations) -> None:
        """Watch the files of one more project."""
        if self._watcher is None:
            return  # its replacement gets all files
        try:
            self._watcher.include(locations.files)
            if len(self._watcher) > self._most:  # removes those of closed projects, now and then
                self._watcher.set_locations(_files((*self._policies.locations(), locations)))
                self._most = 2 * len(self._watcher) + _MORE
        except (HostError, OSError) as error:
            self._give_up(error)

    def _put_off(self) -> None:
        self._retry_at = asyncio.get_running_loop().time() + self._retry_s

    def _give_up(self, error: Exception) -> None:
        self._put_off()
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        reason = error.message if isinstance(error, HostError) else str(error)
        failure = (
            f"settings files are not watched ({reason}): a change holds for the next command, not for those that run; "
            "raise fs.inotify.max_user_instances and fs.inotify.max_user_watches, it is tried again with later commands"
        )
        if failure != self.failure:
            self._log.warning("settings files are not watched", reason=reason)
        self.failure = failure


def _files(locations: Iterable[SettingsLocations]) -> tuple[Location, ...]:
    return tuple(dict.fromkeys(location for one in locations for location in one.files))
