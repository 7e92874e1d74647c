"""Path entries: canonical paths with marks, from rules and host facts.

This module handles symlinks, absent paths, globs and the sandbox's private paths. `plan.filesystem.mounts` alone
combines rules and orders mounts."""

from __future__ import annotations

import re

from sandboxd.errors import PolicyError
from sandboxd.paths import is_below
from sandboxd.plan.filesystem.link_trust import LinkTrust, is_in_session
from sandboxd.plan.filesystem.mounts import Mark, Mount, Operation, PathEntry, Visibility, settled_at
from sandboxd.plan.filesystem.path_table import MarkReason, PathTable
from sandboxd.plan.filesystem.protected_paths import add_guards, warn_of_visited_directory
from sandboxd.plan.host_facts import Facts, PathKind, ResolvedPath, Symlink, session_directory
from sandboxd.plan.host_queries import split_pattern
from sandboxd.plan.request import Place
from sandboxd.plan.trust import SYSTEM_BUNDLES
from sandboxd.policy.model import FilePolicy, Missing, PathRule
from sandboxd.policy.paths.rule_paths import doubt
from sandboxd.policy.paths.wide_places import is_system_directory

TMP = "/tmp"
DEVICES = "/dev"
PROCESSES = "/proc"
BASIC_DEVICES = frozenset({"null", "zero", "full", "random", "urandom", "tty", "ptmx", "shm", "pts", "fd",
                           "stdin", "stdout", "stderr", "core", "console"})  # fmt: skip
_DENIES = Mark.DENY_READ | Mark.DENY_WRITE
_MOST_PASSED_BY = 3
"""The number of links that warnings name for each pattern."""


def make_path_table(files: FilePolicy, place: Place, facts: Facts, *, guards: bool = False) -> PathTable:
    """Make all path entries. Raises `PolicyError` for what cannot be enforced."""
    _check_working_directories(place, facts)
    table = PathTable(facts.mount_aliases, guards=guards, managed_reads_only=files.managed_reads_only)
    own = _OwnPlaces(files, place, facts)
    link_trust = LinkTrust(files, place, facts)
    for mark, rules in (
        (Mark.ALLOW_WRITE, (*files.allow_write, *place.allow_write)),
        (Mark.DENY_WRITE, files.deny_write),
        (Mark.DENY_READ, files.deny_read),
        (Mark.ALLOW_READ, (*files.allow_read, *place.allow_read)),
    ):
        for rule in rules:
            _add_rule(table, own, facts, link_trust, mark, rule)
    _add_working_directories(table, place, facts)
    add_guards(table, files, place, facts, link_trust)
    own.add_to(table)
    warn_of_visited_directory(table, place, facts)
    _add_name_files(table, place, facts)
    _warn_of_missing(table)
    return table


class _OwnPlaces:
    """The paths of daemon and sandbox, which no rule reaches."""

    def __init__(self, files: FilePolicy, place: Place, facts: Facts) -> None:
        self._files = files
        self._overlays = TMP in place.overlays
        self._over_home = place.home in place.overlays
        self._home = facts.paths[place.home]
        self.session = session_directory(place, facts)
        self.base = facts.paths[place.temporary_base].real
        self.runtime = facts.paths[place.runtime_dir].real
        self.tmp = facts.paths[TMP].real
        self._works_in_tmp = self.tmp == facts.paths[place.project_root].real
        masked = [place.runtime_dir, *place.private]
        self._masked = [self.base, *(facts.paths[path].real for path in masked if _is_directory(facts.paths[path]))]
        self._masked += [alias for path in self._masked for alias in facts.mount_aliases.others(path)]
        self._own = [self.session, self.base, self.runtime, *(facts.paths[path].real for path in place.private)]
        self._own += [alias for path in self._own for alias in facts.mount_aliases.others(path)]
        self._absent = [facts.paths[path] for path in place.private if facts.paths[path].kind is None]

    @property
    def is_private(self) -> bool:
        """Return whether settings keep the host's `/tmp` out."""
        return self._files.tmp == "private" and not self._works_in_tmp

    def covers(self, path: str) -> bool:
        return any(is_below(path, own) for own in self._own)

    def add_to(self, table: PathTable) -> None:
        entries = table.entries
        entries.setdefault("/", PathEntry("/"))
        _fix(entries, DEVICES, Mount(Operation.DEVICES, DEVICES), Visibility.PRIVATE)
        _fix(entries, PROCESSES, Mount(Operation.PROCESSES, PROCESSES), Visibility.PRIVATE)
        for path in [path for path in entries if self.covers(path)]:
            del entries[path]
        for absent in self._absent:  # or a command could make it, with records that the daemon would trust
            table.add_absent(absent, MarkReason(Mark.PROTECTED, "the daemon keeps its records there"))
        for masked in self._masked:
            # no read-only remount, which costs more than the mask: no program expects a file there
            entries[masked] = PathEntry(masked, shows=Visibility.NOTHING, sealed=False)
        tmp, size = self._tmp(table), self._files.tmp_size
        table.layers.append(f"tmp-{tmp}")
        if self._files.home == "overlay":
            self._add_home(table)
        if size is not None:
            self._limit(table, tmp, size)
        if tmp == "host":
            if self._works_in_tmp:
                table.warn(f"{self.tmp} is the working directory, so the sandbox sees the host's {self.tmp}")
        elif tmp == "overlay" or (size is not None and self._overlays):
            _fix(entries, self.tmp, self._overlay(self.tmp, "tmp", tmp), _SHOWN.get(tmp, Visibility.PRIVATE))
        else:
            _fix(entries, self.tmp, Mount(Operation.WRITABLE, self.tmp, self.session), Visibility.PRIVATE)
        if tmp == "host" or (tmp == "overlay" and size is None):
            entries[self.session] = PathEntry(
                self.session, fixed=Mount(Operation.WRITABLE, self.session, self.session), shows=Visibility.PRIVATE
            )
        else:
            # a link, not a second bind: rename(2) between the two names has to work, and a bind costs more
            entries[self.session] = PathEntry(self.session, link=self.tmp)

    def _tmp(self, table: PathTable) -> str:
        """Choose what `/tmp` is: the host's where a rule opens it, private where one closes it."""
        table.entries.setdefault(self.tmp, PathEntry(self.tmp))
        end = settled_at(table.entries, self.tmp)[-1]
        if self._works_in_tmp or end.shows is Visibility.HOST_WRITABLE:
            return "host"
        if not end.readable or self._files.tmp == "private":
            return "private"
        return "overlay" if self._overlays else "entries"

    def _add_home(self, table: PathTable) -> None:
        """Lay the session's changes over the home directory, where it can be read and not written."""
        home = self._home.real
        table.entries.setdefault(home, PathEntry(home))
        end = settled_at(table.entries, home)[-1]
        if not self._over_home or home in ("/", self.tmp) or self._home.kind is not PathKind.DIRECTORY:
            table.warn(f"sandbox.filesystem.home: {home} stays as it is, since nothing can be laid over it here")
        elif end.shows is Visibility.HOST_READ_ONLY:
            _fix(table.entries, home, self._overlay(home, "home", "overlay"), Visibility.OVERLAY)
            table.layers.append("home-overlay")

    def _overlay(self, path: str, name: str, kind: str) -> Mount:
        part = "upper" if kind == "overlay" else "alone"
        return Mount(Operation.OVERLAY, path, f"{overlay_directory(self.session)}/{name}/{part}")

    def _limit(self, table: PathTable, tmp: str, size: int) -> None:
        if tmp == "host" or not self._overlays:
            why = "it is the host's" if tmp == "host" else "nothing can be mounted for a session here"
            table.warn(f"sandbox.limits.tmp: the size of {self.tmp} is not limited, since {why}")
        else:
            table.tmp_size = size
            table.layers.append("tmp-limit")


_SHOWN = {"overlay": Visibility.OVERLAY}


def overlay_directory(session: str) -> str:
    """Return where the changes of a session are, given its temporary directory."""
    return f"{session}-over"


def _is_directory(resolved: ResolvedPath) -> bool:
    return resolved.kind is PathKind.DIRECTORY


def _fix(entries: dict[str, PathEntry], path: str, mount: Mount, shows: Visibility) -> None:
    entry = entries.setdefault(path, PathEntry(path))
    entry.fixed, entry.shows, entry.kind = mount, shows, PathKind.DIRECTORY


def _add_rule(
    table: PathTable, own: _OwnPlaces, facts: Facts, link_trust: LinkTrust, mark: Mark, rule: PathRule
) -> None:
    reason = MarkReason(mark, rule.text or rule.path, rule)
    if rule.glob:
        _add_pattern(table, own, facts, link_trust, rule, reason)
        return
    resolved = facts.paths[rule.path]
    if not mark & _DENIES and not link_trust.opens(rule):
        _warn_of_link(table, link_trust, reason, resolved.real, resolved.links)
        return
    if _special(table, own, resolved.real, mark, rule):
        return
    if resolved.kind is not None:
        table.add(resolved.real, resolved.kind, reason)
        _warn_of_pipe(table, reason, resolved.real, resolved.kind)
        if mark & _DENIES and resolved.kind is PathKind.FILE and resolved.hard_links > 1:
            table.warn(f"{resolved.real} has {resolved.hard_links} names (hard links); only this one is denied")
    elif mark & _DENIES and rule.missing is Missing.UNMEANT:
        return
    elif mark & _DENIES:
        table.add_absent(resolved, reason)
        _warn_of_doubt(table, reason)
    elif rule.missing is Missing.MAKE:
        table.add_made(resolved, reason)
    elif rule.missing is Missing.IGNORE:
        pass
    elif resolved.problem:
        table.warn(f"{reason.text}: ignored, the path cannot be followed ({resolved.problem})")
    else:
        table.missing.append((resolved.real, reason))
    table.add_links(resolved, guard=bool(mark & _DENIES))


def _add_pattern(
    table: PathTable, own: _OwnPlaces, facts: Facts, link_trust: LinkTrust, rule: PathRule, reason: MarkReason
) -> None:
    matches = facts.globs.get(rule.path, ()) if rule.bounded else facts.globs[rule.path]
    denies, root = bool(reason.mark & _DENIES), split_pattern(rule.path)[0]
    if denies:  # also without a match: later matches have to be where the rule looks
        for link in facts.paths[root].links:
            table.add_guard(link.path)
        _warn_of_unfollowed(table, reason, facts.unfollowed.get(rule.path, ()))
    for match in matches:
        if not denies and not link_trust.opens(rule, match.path):
            _warn_of_link(table, link_trust, reason, match.real, match.links)
        elif not _special(table, own, match.real, reason.mark, rule):
            table.searching = denies and match.path != root  # a match that is gone at the start is not covered
            table.add_found(match, reason, guard=denies)
            table.searching = False
            _warn_of_pipe(table, reason, match.real, match.kind)
    if not matches and denies:
        _warn_of_doubt(table, reason)
    if reason.mark & Mark.DENY_WRITE and rule.missing is not Missing.UNMEANT:
        table.warn(f"{reason.text}: covers what exists when a command starts, not what it creates")
    elif not matches and not denies:
        table.warn(f"{reason.text}: matches nothing, so nothing was opened")


def _warn_of_missing(table: PathTable) -> None:
    """Warn of an absent path to open, unless a command can make it."""
    for path, reason in table.missing:
        at = settled_at(table.entries, path)[-1]
        if reason.mark is not Mark.ALLOW_WRITE or at.shows is not Visibility.HOST_WRITABLE:
            table.warn(f"{reason.text}: {path} does not exist, so nothing was opened; make it first")


def _warn_of_unfollowed(table: PathTable, reason: MarkReason, links: tuple[Symlink, ...]) -> None:
    for link in links[:_MOST_PASSED_BY]:
        table.warn(
            f"{reason.text}: nothing in {link.target} is denied, since ** goes through no symbolic link ({link.path}); "
            f"to deny it, write a rule for that directory"
        )
    if (more := len(links) - _MOST_PASSED_BY) > 0:
        table.warn(f"{reason.text}: ** goes through none of {more:,} more symbolic links")


def _warn_of_doubt(table: PathTable, reason: MarkReason) -> None:
    """Warn of a rule that denies nothing, and may be mistyped."""
    why = doubt(reason.text)
    if why is not None:
        table.warn(f"{why[0]}: no such name exists, so the rule denies nothing now ({why[1]})")


def _warn_of_pipe(table: PathTable, reason: MarkReason, path: str, kind: PathKind | None) -> None:
    """Warn of a pipe in a writable directory, where no mount makes it read-only."""
    if kind is PathKind.OTHER and reason.mark & Mark.DENY_WRITE:
        table.warn(
            f"{reason.text}: {path} is a pipe or a socket, which in a writable directory can be written all the same; "
            "denyRead closes it altogether"
        )


def _warn_of_link(
    table: PathTable, link_trust: LinkTrust, reason: MarkReason, real: str, links: tuple[Symlink, ...]
) -> None:
    if not link_trust.is_writable(real):
        link = link_trust.can_change(links) or links[0]
        table.warn(
            f"{reason.text}: opens nothing, since a command could have made the symbolic link {link.path} that leads "
            f"to {real}; if that is meant, name {real} itself"
        )


def _add_name_files(table: PathTable, place: Place, facts: Facts) -> None:
    """Mount the daemon's files for name look-up over those of the host.

    The host's name servers cannot be reached from inside. Where the host has no such file, programs look for a name
    server on loopback, where the daemon's is."""
    for path, source in place.name_files if place.captured else ():
        resolved = facts.paths[path]
        if resolved.kind is not PathKind.FILE or any(is_below(resolved.real, top) for top in (DEVICES, PROCESSES)):
            continue
        reason = MarkReason(Mark.PROTECTED, "it names the name service of the sandbox")
        _mount_over(table, resolved, PathKind.FILE, reason, source)


def add_trust(table: PathTable, place: Place, facts: Facts, bundle: str) -> None:
    """Show the directory of certificate bundles, and mount one over each of the system's."""
    reason = MarkReason(Mark.PROTECTED, "it holds the certificate authorities that commands trust")
    shown = facts.paths[place.trust_directory]
    _mount_over(table, shown, PathKind.DIRECTORY, reason, shown.real)
    for path in SYSTEM_BUNDLES:
        resolved = facts.paths[path]
        if resolved.kind is PathKind.FILE:
            _mount_over(table, resolved, PathKind.FILE, reason, bundle)


def _mount_over(table: PathTable, at: ResolvedPath, kind: PathKind, reason: MarkReason, source: str) -> None:
    table.add(at.real, kind, reason)
    entry = table.entries[at.real]
    entry.fixed, entry.shows = Mount(Operation.READ_ONLY, at.real, source), Visibility.HOST_READ_ONLY
    table.add_links(at, guard=False)


_OF_A_PROCESS = re.compile(r"/proc/([0-9]+|self|thread-self)(/|$)")


def _special(table: PathTable, own: _OwnPlaces, real: str, mark: Mark, rule: PathRule) -> bool:
    """Handle a rule for a path of the sandbox itself; True when it was one."""
    if own.covers(real):
        table.warn(f"{rule.text or rule.path}: ignored, it lies in the daemon's own directories")
        return True
    if real == own.tmp and own.is_private and mark is Mark.ALLOW_WRITE:
        table.warn(f"{rule.text or rule.path}: ignored, since sandbox.filesystem.tmp is private")
        return True
    if is_below(real, PROCESSES):
        if mark & Mark.DENY_READ and real.startswith("/proc/") and not _OF_A_PROCESS.match(real):
            table.entries[real] = PathEntry(real, PathKind.FILE, mark, force=True)
        return True
    if is_below(real, DEVICES):
        return _device(table, real, mark, rule)
    return False


def _device(table: PathTable, real: str, mark: Mark, rule: PathRule) -> bool:
    text = rule.text or rule.path
    if real == DEVICES:
        if mark & Mark.ALLOW_WRITE:
            raise PolicyError(
                "devices_all",
                f"{text}: {DEVICES} cannot be opened as a whole",
                hint="list the devices that are needed one by one",
                data={"rule": text},
            )
        return True
    if mark & _DENIES and real.split("/")[2] in BASIC_DEVICES:
        if rule.glob:  # the match is a link to a device, often made for a name that is to stay empty
            return True
        raise PolicyError(
            "device_basic",
            f"{text}: the sandbox has its own {real}, which cannot be denied",
            hint="remove the rule; the sandbox never sees the host's device directory",
            data={"rule": text},
        )
    return not mark & Mark.ALLOW_WRITE


def _check_working_directories(place: Place, facts: Facts) -> None:
    for name in (place.project_root, place.cwd):
        resolved = facts.paths[name]
        if is_below(resolved.real, DEVICES) or is_below(resolved.real, PROCESSES):
            raise PolicyError(
                "cwd_special", f"{resolved.real} cannot be a working directory", hint="start the command elsewhere"
            )
        if resolved.kind is not PathKind.DIRECTORY:
            raise PolicyError(
                "cwd_missing",
                f"the working directory {name} {'does not exist' if resolved.kind is None else 'is not a directory'}",
                hint="start the command in a directory that exists",
                data={"path": name},
            )


def _add_working_directories(table: PathTable, place: Place, facts: Facts) -> None:
    root, cwd = facts.paths[place.project_root], facts.paths[place.cwd]
    of_command = Mark.WORKING if is_in_session(place, facts) else Mark.VISITED
    for resolved, mark in ((root, Mark.ALLOW_WRITE), (cwd, of_command)):
        if resolved.real == "/" and mark is not Mark.VISITED:
            table.warn("the working directory is /, which is not made writable; list what is needed in allowWrite")
        else:
            mark = Mark.VISITED if is_system_directory(resolved.real) else mark
            table.add(resolved.real, PathKind.DIRECTORY, MarkReason(mark, "it is the working directory"))
            table.add_links(resolved, guard=False)
