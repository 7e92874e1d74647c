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
from sandboxd.sources.locations import Location, SettingsLocations
from sandboxd.sources.watching import SettingsWatcher

_MORE = 256
"""Files that may be watched for nothing."""

Watch = Callable[[Iterable[Location]], SettingsWatcher]


class Reloading:
    """Owns the task that follows the files. `failure` says why it does not, empty while it does."""

    def __init__(self, policies: Policies, log: FilteringBoundLogger, watch: Watch = SettingsWatcher) -> None:
        self.failure = ""
        self._policies = policies
        self._log = log
        self._watch = watch
        self._watcher: SettingsWatcher | None = None
        self._most = _MORE

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Reload on every change as long as the context lasts."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                self._watcher = await stack.enter_async_context(self._watch(_files(self._policies.locations())))
            except (HostError, OSError) as error:
                self._give_up(error)
                yield
                return
            self._policies.before_reading = self._include
            self.reload()  # what changed between the first reading and now
            task = asyncio.get_running_loop().create_task(self._follow(self._watcher), name="settings-watch")
            try:
                yield
            finally:
                self._policies.before_reading = lambda locations: None
                task.cancel()
                await asyncio.wait([task])

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
        assert self._watcher is not None
        try:
            self._watcher.include(locations.files)
            if len(self._watcher) > self._most:  # those of projects that are over go now and then, not each time
                self._watcher.set_locations(_files((*self._policies.locations(), locations)))
                self._most = 2 * len(self._watcher) + _MORE
        except (HostError, OSError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        reason = error.message if isinstance(error, HostError) else str(error)
        self.failure = (
            f"settings files are not watched ({reason}): a change holds for the next command, not for those that run; "
            "mend that, and then run: sandboxd restart"
        )
        self._log.warning("settings files are not watched", reason=reason)


def _files(locations: Iterable[SettingsLocations]) -> tuple[Location, ...]:
    return tuple(dict.fromkeys(location for one in locations for location in one.files))
