"""Repositories that commands have made, which later commands may remove whole.

The helper tells of each name that makes a repository, with the inode of a new directory `.git`. Once the repository
clean-up has searched it, it is protected no more than while its maker ran: it can be removed, and is searched again
afterwards. That ends when something changes in it while no command runs, since a program of the user works with it
then. A repository that was moved, has worktrees or is older than the daemon stays protected. So does one within no
repository of the user: it may be cloned to be worked with, while a server that was started before goes on running."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping

from sandboxd.host.busy_places import BusyPlaces
from sandboxd.host.git.repositories import pointers_of
from sandboxd.host.scan import ScanRecord
from sandboxd.paths import is_below

MOST = 100
"""Repositories that are kept, since each is looked at before each command; the oldest one is protected again."""
MOST_TOLD = 4_000
"""Names of one command."""
_TOUCHED = ("", "HEAD", "config", "hooks", "index", "logs/HEAD")
"""Below `.git`: what changes when a program works with a repository."""
_INODE = 0xFFFFFFFF
MOST_KNOWN = 20_000
"""Names `.git` of all commands. Beyond, none counts as the user's."""


class MadeRepositories:
    """The made repositories of one daemon."""

    def __init__(self, busy: BusyPlaces) -> None:
        self._busy = busy
        self._told: dict[str, dict[str, int]] = {}
        """By launch: the inode of each new directory, else 0, by path."""
        self._searched: dict[str, int] = {}
        self._known: set[str] = set()
        """Each `.git` that a command has made, of whatever kind."""
        self._lock = threading.Lock()
        self.version = 0
        """A number that changes with each addition."""

    def made(self, launch_id: str, path: str, inode: int) -> None:
        """Record a new name of a running command."""
        told, path = self._told.setdefault(launch_id, {}), path.rstrip("/")
        if len(told) < MOST_TOLD:
            told[path] = inode
        if os.path.basename(path) == ".git" and len(self._known) <= MOST_KNOWN:
            self._known.add(path)

    def told(self) -> tuple[str, ...]:
        """Return the names that commands have made which run, or are being cleaned up after."""
        return tuple(path for told in self._told.values() for path in told)

    def ended(self, launch_id: str, *, searched: bool) -> None:
        """Keep the repositories of an ended command, if its clean-up was complete."""
        made = self._told.pop(launch_id, {})
        told = {path: inode for path, inode in made.items() if inode and os.path.basename(path) == ".git"}
        if not searched or not told:
            return
        with self._lock:
            self._searched.update(told)
            for oldest in list(self._searched)[:-MOST]:
                del self._searched[oldest]
            self.version += 1

    def can_be_removed(self, git_dir: str) -> bool:
        """Return whether a later command may remove it; forget one that has changed hands."""
        with self._lock:
            inode = self._searched.get(git_dir)
        if inode is None:
            return False
        good = self._is_untouched(git_dir, inode)
        if not good:
            with self._lock:
                self._searched.pop(git_dir, None)
        return good

    def _is_untouched(self, git_dir: str, inode: int) -> bool:
        try:
            state = os.lstat(git_dir)
        except OSError:
            return False
        if not stat.S_ISDIR(state.st_mode) or state.st_ino & _INODE != inode or not self._is_within_another(git_dir):
            return False
        if any(os.path.lexists(os.path.join(git_dir, name)) for name in ("worktrees", "commondir")):
            return False
        for name in _TOUCHED:
            try:
                path = os.path.join(git_dir, name)
                moment = os.lstat(path).st_ctime_ns
            except OSError:
                continue
            if self._busy.was_quiet(moment, path):
                return False
        return True

    def _is_within_another(self, git_dir: str) -> bool:
        """Return whether the working tree lies in that of a repository that no command has made."""
        above = os.path.dirname(os.path.dirname(git_dir))
        while above != "/" and len(self._known) <= MOST_KNOWN:
            outer = os.path.join(above, ".git")
            if outer not in self._known and os.path.exists(os.path.join(outer, "HEAD")):
                return True
            above = os.path.dirname(above)
        return False

    def around(self, directory: str, root: str, notable: Mapping[str, ScanRecord]) -> str:
        """Return the removable `.git` that a directory below `root` belongs to, or "".

        The working tree of a submodule belongs to the repository that holds its git directory."""
        above = directory
        while is_below(above, root) and above != root:
            record = notable.get(above)
            if record is not None and record.git == "directory":
                git_dir = os.path.join(above, ".git")
                return git_dir if self.can_be_removed(git_dir) else ""
            if record is not None and record.git:
                outer = self.around(os.path.dirname(above), root, notable)
                leads = [] if not outer or record.git != "file" else list(pointers_of(above))
                return outer if leads and all(is_below(one, outer) for one in leads) else ""
            above = os.path.dirname(above)
        return ""
