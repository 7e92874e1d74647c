"""Settings that change on disk become the policy in force, without a timer and without a missed change.

The files to watch are set *before* they are read, so whatever happens after the reading is noticed. Where the system
cannot watch (inotify is used up), the daemon works on and says so: the state of the files is compared before each
command (`Policies.bring_up_to_date`), and `settings.reload` and SIGHUP read them.
"""

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
"""Files that may be watched for nothing."""
RETRY_S = 1.0
LONGEST_RETRY_S = 60.0

Watch = Callable[[Iterable[Location]], SettingsWatcher]


class Reloading:
    """Owns the task that follows the files. `failure` says why it does not, empty while it does. `retry_s` is how long
    it waits before it tries again, twice as long each time; only a command makes it try, so that an idle daemon does
    not wake up."""

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

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Reload on every change as long as the context lasts."""
        self._is_on = True
        try:
            await self._begin()
            yield
        finally:
            self._is_on = False
            self._policies.before_reading = lambda locations: None
            await self._end()

    async def come_back(self) -> None:
        """Watch again where watching had failed, if it is time to try. Never raises."""
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
        """Watch from the start. Two at once would each leave the other's watcher open, hence the time."""
        self._put_off()
        await self._end()
        async with contextlib.AsyncExitStack() as stack:
            try:
                watcher = self._watch(_files(self._policies.locations()))
                stack.push_async_exit(watcher)  # also where it has come to half of it
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
        self.reload()  # what changed between the last reading and now

    def reload(self) -> None:
        """Read everything again; never raises."""
        try:
            self._policies.reload()
        except Exception:
            self._log.exception("reading the settings failed; the last good policy stays")

    async def _follow(self, watcher: SettingsWatcher) -> None:
        try:
            async for _ in watcher.changes():
                self.reload()
        except (HostError, OSError) as error:
            self._give_up(error)

    def _include(self, locations: SettingsLocations) -> None:
        """Watch the files of one more project."""
        if self._watcher is None:
            return  # it is being replaced, by one that is given all files
        try:
            self._watcher.include(locations.files)
            if len(self._watcher) > self._most:  # those of projects that are over go now and then, not each time
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
