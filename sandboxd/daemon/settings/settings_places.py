"""Where settings come from, and which of these places commands could write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import replace

from sandboxd.daemon.settings.named_files import literal_part, why_doubtful
from sandboxd.paths import is_below
from sandboxd.policy.model import Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.files.locations import Location, SettingsLocations, find_locations
from sandboxd.settings.files.states import State, look_at_file
from sandboxd.settings.files.trust import OpenedPlaces, TrustStore, real_path, trust_directory
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass, field

OPENED_KEPT = 4096
"""Number of remembered directories that commands may write."""


@dataclass(frozen=True, slots=True)
class SettingsPlaces:
    """Sources of settings. No rule may open `own_paths`."""

    environment: Mapping[str, str]
    home: str
    platform: str = "linux"
    cli_file: str | None = None
    own_paths: tuple[str, ...] = ()
    managed_root: str = "/"
    opened: dict[str, None] = field(default_factory=dict, compare=False)
    """Directories that commands of this daemon may write, or could."""
    believed: dict[str, State] = field(default_factory=dict, compare=False)
    """States of named files that were the user's before a rule opened their place."""
    earlier: OpenedPlaces | None = field(default=None, compare=False)
    """Opened directories of all daemons of this user; None counts only this daemon's."""
    lock_directory: str = ""
    """Directory locked for writes of settings; all daemons of the user share it."""

    @property
    def trust(self) -> TrustStore:
        """Return the trust store. The environment cannot move it out of its protection."""
        return TrustStore(trust_directory(self.home))

    def note(self, paths: Iterable[str]) -> None:
        """Record directories that commands may write. Too many count as `/`."""
        new = [path for path in paths if path not in self.opened]
        if new and self.earlier is not None:
            self.earlier.add(new, self.trust)
        self.opened.update(dict.fromkeys(new))
        if len(self.opened) > OPENED_KEPT:
            self.opened["/"] = None
            for path in list(self.opened)[: len(self.opened) - OPENED_KEPT]:
                if path != "/":
                    del self.opened[path]

    def record(self) -> Awaitable[None] | None:
        """Return the write that makes the records survive a power cut, if one is needed.

        The caller awaits it before a command starts. Raises SettingsError."""
        return None if self.earlier is None or self.earlier.is_durable else asyncio.to_thread(self.earlier.sync)

    def note_policy(self, policy: Policy) -> None:
        """Record all directories that a policy opens."""
        self.note(literal_part(rule.path) for rule in policy.files.allow_write)

    def could_be_written(self) -> Collection[str]:
        """Return the real paths that commands of any daemon of the user could write."""
        return {*map(real_path, self.opened), *(() if self.earlier is None else self.earlier.read())}

    def why_doubtful(self, path: str) -> str:
        """Return why a command may have written a named file; empty if none may.

        A file that opens its own place stays believed: it is protected from the commands it opens that for."""
        state = look_at_file(path).states[0]
        if self.believed.get(path) == state:
            return ""
        reason = self._doubts(path)
        if not reason:
            if len(self.believed) >= OPENED_KEPT:
                self.believed.clear()
            self.believed[path] = state
        return reason

    def _doubts(self, path: str) -> str:
        records = real_path(self.trust.directory)
        if is_below(real_path(os.path.dirname(path)), records) and is_below(real_path(path), records):
            return ""  # masked in every sandbox: a file of `--learn`
        earlier = () if self.earlier is None else self.earlier.read()
        return why_doubtful(path, (*self.opened, *self.own_paths), self.home, earlier)

    def judged(self, locations: SettingsLocations) -> SettingsLocations:
        """Mark files that commands may have written as a project's, outside ~/.claude."""
        of_user = os.path.join(self.home, ".claude")

        def judge(location: Location) -> Location:
            named = location.source is not Source.MANAGED and os.path.dirname(location.path) != of_user
            if location.in_project or not named or not self._doubts(location.path):
                return location
            return replace(location, in_project=True)

        return replace(locations, files=tuple(map(judge, locations.files)))

    def locations(self, directory: str | None) -> SettingsLocations:
        return find_locations(
            self.environment,
            self.home,
            directory,
            platform=self.platform,
            cli_files=() if self.cli_file is None else (self.cli_file,),
            managed_root=self.managed_root,
        )

    def scope(self, directory: str | None) -> PathScope:
        return PathScope(self.home, directory or self.home, self.environment, self.platform, self.own_paths)
