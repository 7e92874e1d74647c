"""The policy in force for each project, and how a new one takes its place.

A reload builds the new policy completely and then switches. Of a file that is broken the last good content stays in
force, and the problem is kept beside the policy for `status`, `settings.get` and the log. Where there is no last good
one there is no policy at all: the daemon does not start, or the project's command is refused.

Every different policy gets the next generation number of the daemon. An unchanged one stays the same *object*, which
is what makes a warm `wrap` cheap: whatever was derived from a policy is found again by its identity.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.settings.named_files import literal_part, why_doubtful
from sandboxd.errors import SettingsError
from sandboxd.host.watch.directory_changes import is_remote
from sandboxd.paths import is_below
from sandboxd.policy.build import build_policy, check_settings
from sandboxd.policy.model import Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides
from sandboxd.settings.files.locations import Location, SettingsLocations, find_locations
from sandboxd.settings.files.reading import TRUST_CHANGED, read_layer, read_layers, trust_is_allowed
from sandboxd.settings.files.states import FileStates, State, look_at_file, look_at_files
from sandboxd.settings.files.trust import OpenedPlaces, TrustStore, real_path, trust_directory
from sandboxd.settings.layer import PROJECT_DISTRUST, Layer, layer_from_values
from sandboxd.settings.merge import Settings, changed_keys, merge
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import Problem, Severity

PROJECTS_KEPT = 64
"""Projects that stay read although no session is open in them."""
OPENED_KEPT = 4096
"""Directories that are known to be writable for commands."""
NO_VARIABLES: Mapping[str, str] = {}
VARIANTS_KEPT = 64
"""Policies with a caller's overrides that are kept for each session."""


@dataclass(frozen=True, slots=True)
class SettingsPlaces:
    """Where this daemon's settings come from. `cli_file` is that of `--settings`; `own_paths` no rule may open."""

    environment: Mapping[str, str]
    home: str
    platform: str = "linux"
    cli_file: str | None = None
    own_paths: tuple[str, ...] = ()
    managed_root: str = "/"
    opened: dict[str, None] = field(default_factory=dict, compare=False)
    """Directories that commands of this daemon may write, or could."""
    believed: dict[str, State] = field(default_factory=dict, compare=False)
    """Named files that were the person's own before anything opened their place, with their states then."""
    earlier: OpenedPlaces | None = field(default=None, compare=False)
    """The same of every daemon of this user; None: only this one's count."""
    lock_directory: str = ""
    """Locked while settings are written: one of all daemons of this user that commands cannot open."""

    @property
    def trust(self) -> TrustStore:
        """What people have trusted. Nothing in the environment moves it: another daemon would not protect it."""
        return TrustStore(trust_directory(self.home))

    def note(self, paths: Iterable[str]) -> None:
        """Commands may write there from now on. Of too many to be remembered all count."""
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
        """See to it that a failure of power does not lose what was noted; to be awaited before a command starts. Raises
        SettingsError."""
        return None if self.earlier is None or self.earlier.is_durable else asyncio.to_thread(self.earlier.sync)

    def note_policy(self, policy: Policy) -> None:
        """The same for all that a policy opens."""
        self.note(literal_part(rule.path) for rule in policy.files.allow_write)

    def could_be_written(self) -> Collection[str]:
        """The directories that commands of any daemon of this user could write at some time, by their real paths."""
        return {*map(real_path, self.opened), *(() if self.earlier is None else self.earlier.read())}

    def why_doubtful(self, path: str) -> str:
        """Why a file that a call names may be what a command has written; empty when it is the person's own, also where
        it opens its own place: it is protected from the commands that it opens that for."""
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
            return ""  # masked in every sandbox, whatever is opened: a file that `--learn` wrote by its name alone
        earlier = () if self.earlier is None else self.earlier.read()
        return why_doubtful(path, (*self.opened, *self.own_paths), self.home, earlier)

    def judged(self, locations: SettingsLocations) -> SettingsLocations:
        """The same, with those files marked as a project's that an option or a variable names in such a place. The
        user's own directory is protected from every command, and is not doubted."""
        own = os.path.join(self.home, ".claude")

        def judge(location: Location) -> Location:
            named = location.source is not Source.MANAGED and os.path.dirname(location.path) != own
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


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """What holds, in one piece: the merged settings, the policy they mean."""

    settings: Settings
    policy: Policy


class Project:
    """The settings of one directory; those of the daemon itself when `directory` is None. `now` is the last good
    snapshot, `latest` what the files say (the same, unless they are broken), `problems` what is wrong with that."""

    def __init__(
        self,
        directory: str | None,
        places: SettingsPlaces,
        next_generation: Callable[[], int],
    ) -> None:
        """Raises SettingsError when the settings are broken: there is no last good policy to fall back on."""
        self.directory = directory
        if directory is not None and directory != "/":  # the root is writable by a rule only
            places.note([directory])
        self.locations = places.locations(directory)
        self.scope = places.scope(directory)
        self._next_generation = next_generation
        self.slow = directory is not None and is_remote(directory)
        """Whether its files are looked at in a thread: a server may not answer."""
        self.places = places
        self._trust = places.trust
        self.trust_has_changed = False
        """Whether a file that would widen has another content than the one that was trusted."""
        self.latest = merge(self._read())
        self.problems = check_settings(self.latest, self.scope)
        self.error: SettingsError | None = None
        self.plain: SessionPolicy | None = None
        """That of sessions without settings of their own: the same for all of them."""
        self.now = PolicySnapshot(self.latest, build_policy(self.latest, self.scope, next_generation()))
        places.note_policy(self.now.policy)

    def look(self) -> FileStates:
        """The state of its files now, and of what people have trusted, which another daemon may change."""
        return look_at_files((*self.locations.files, Location(Source.LOCAL, self._trust.directory)))

    def _read(self) -> tuple[Layer, ...]:
        self.seen = self.look()  # before they are read: what changes meanwhile is noticed the next time
        layers = read_layers(self.places.judged(self.locations), trust=self._trust)
        self.trust_has_changed = any(one.slug == TRUST_CHANGED for layer in layers for one in layer.problems)
        return layers

    def differs(self) -> bool:
        """Whether the files say something else than when they were last taken over."""
        return merge(self._read()) != self.latest

    def refresh(self) -> tuple[str, ...]:
        """Read the files again; return the keys whose effective value has changed. A broken file changes nothing, and
        is then told in `error`. The same rules elsewhere in a file make a new policy, but no changed key."""
        before = self.now
        self.latest = merge(self._read())
        self.problems = check_settings(self.latest, self.scope)
        settings, self.error = self.latest, None
        try:
            policy = build_policy(settings, self.scope, before.policy.generation)
        except SettingsError as error:
            self.error = error
            settings = self._without_broken_files(before.settings)
            try:
                policy = build_policy(settings, self.scope, before.policy.generation)
            except SettingsError:
                return ()
        changed = changed_keys(before.settings, settings)
        if policy != before.policy:
            self.now = PolicySnapshot(settings, replace(policy, generation=self._next_generation()))
            self.places.note_policy(policy)
        elif changed:
            self.now = PolicySnapshot(settings, before.policy)
        return changed

    def _without_broken_files(self, before: Settings) -> Settings:
        """The latest settings with the last good content of each broken file: it holds back no rule of another one. In
        a project that content only tightens from now on, since what is trusted does not stand there any more."""
        of_project = {one.path for one in self.places.judged(self.locations).files if one.in_project}
        good = {layer.file: layer for layer in before.layers}
        broken: set[str | None] = set()

        def usable(layer: Layer) -> Layer:
            if layer.file not in broken:
                return layer
            known = good.get(layer.file, Layer(layer.source, layer.file))
            if layer.file not in of_project or not known.may_widen:
                return known
            return replace(known, may_widen=False, distrust=PROJECT_DISTRUST)

        settings, problems = self.latest, self.problems
        while more := {problem.origin.file for problem in problems if problem.fatal} - broken:
            broken |= more  # a rule that two files have is one problem at a time
            settings = merge(map(usable, self.latest.layers))
            problems = check_settings(settings, self.scope)
        return settings

    @property
    def complaints(self) -> tuple[str, ...]:
        """What a person should know, one line each: a broken file first, then doubtful rules that are in force."""
        broken = () if self.error is None else (_last_good(self.error),)
        return (*broken, *self.now.policy.warnings)

    def with_layers(self, layers: tuple[Layer, ...], variables: Mapping[str, str] = NO_VARIABLES) -> PolicySnapshot:
        """What holds with settings of a session or a call on top, and a caller's variables. Raises SettingsError, also
        for an entry that a file would lose with a warning: whoever names one in a call is there to correct it."""
        merged = merge((*layers, *self.now.settings.layers))
        scope = replace(self.scope, caller=variables)
        for problem in check_settings(merged, scope):
            if problem.severity is Severity.ERROR and problem.origin.source is Source.CLI:
                raise problem.as_error()
        return PolicySnapshot(merged, build_policy(merged, scope, self.now.policy.generation))


class SessionPolicy:
    """The policy of one session, now and with a call's overrides on top (`runtime.session.PolicyOf`)."""

    def __init__(
        self,
        project: Project,
        settings: Mapping[str, Any] | None,
        log: FilteringBoundLogger,
        *,
        restricted: bool = False,
    ) -> None:
        """`settings` of a `restricted` session may only tighten."""
        self.project = project
        self.settings = settings
        self._restricted = restricted
        self._log = log
        self._base = project.now
        self._variants: OrderedDict[_Variant, PolicySnapshot] = OrderedDict()
        self._last_good: Mapping[_Variant, PolicySnapshot] = {}

    def __call__(self, overrides: Overrides = NO_OVERRIDES) -> Policy:
        """Raises SettingsError when the settings on top cannot hold, and could not before either."""
        if self.settings is None and overrides is NO_OVERRIDES:
            return self.project.now.policy
        return self.snapshot(overrides).policy

    def snapshot(self, overrides: Overrides = NO_OVERRIDES) -> PolicySnapshot:
        """The settings with their policy. Raises as above."""
        if self._base is not self.project.now:
            self._base, self._last_good, self._variants = self.project.now, self._variants, OrderedDict()
        key = (overrides, _identity(overrides.settings), self._trust_state(overrides.settings))
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = self._build(key)
            while len(self._variants) > VARIANTS_KEPT:
                self._variants.popitem(last=False)
        return found

    def _trust_state(self, path: str | None) -> tuple[int, ...]:
        """What changes when the content of a named file is trusted, or is no longer, or a directory is opened."""
        if path is None:
            return ()
        places = self.project.places
        return (len(places.opened), *places.trust.state(os.path.dirname(real_path(path))))

    def variables(self, overrides: Overrides = NO_OVERRIDES) -> tuple[str, ...]:
        """The environment variables that rules mention; none where there is no policy."""
        try:
            return self(overrides).variables
        except SettingsError:
            return ()

    def _build(self, key: _Variant) -> PolicySnapshot:
        try:
            found = self.project.with_layers(self._layers(key[0]), dict(key[0].variables))
            self.project.places.note_policy(found.policy)
            return found
        except SettingsError as error:
            if key not in self._last_good:
                raise
            self._log.error("settings of a session no longer hold; the last good ones stay", reason=error.message)
            return self._last_good[key]

    def _layers(self, overrides: Overrides) -> tuple[Layer, ...]:
        may_widen, distrust = _trust(self.project.now, self._restricted)
        layers = []
        if self.settings:
            layers.append(layer_from_values(self.settings, Source.CLI, may_widen=may_widen, distrust=distrust))
        may_widen, distrust = _trust(self.project.now, overrides.restricted)
        if values := overrides_as_settings(overrides):
            layers.append(layer_from_values(values, Source.CLI, may_widen=may_widen, distrust=distrust))
        if overrides.granted_write or overrides.granted_read:
            widens, why_not = _trust(self.project.now, restricted=False)
            granted = Overrides(allow_write=overrides.granted_write, allow_read=overrides.granted_read)
            layers.append(
                layer_from_values(overrides_as_settings(granted), Source.CLI, may_widen=widens, distrust=why_not)
            )
        if overrides.settings is not None:
            layers.append(self._named_layer(overrides, may_widen, distrust))
        return tuple(layers)

    def _named_layer(self, overrides: Overrides, may_widen: bool, distrust: str) -> Layer:
        """The layer of the file that a call names."""
        path, home, places = overrides.settings or "", self.project.locations.home, self.project.places
        if not places.why_doubtful(path):
            return read_required(path, home, may_widen, distrust)
        trust = places.trust if trust_is_allowed(self.project.now.settings.layers) else None
        return read_required(path, home, may_widen, distrust, doubtful=True, trust=trust)


def _last_good(fault: SettingsError) -> str:
    hint = f"; {fault.hint}" if fault.hint else ""
    return f"{fault.message}; the last good settings stay in force{hint}"


def _trust(now: PolicySnapshot, restricted: bool) -> tuple[bool, str]:
    """Whether settings of a caller may widen, and why not: neither where settings forbid it nor from an agent."""
    if restricted:
        return False, "a connection with the role agent may only tighten"
    refused = now.settings.is_set("sandbox.allowOverrides") and not now.policy.allow_overrides
    return not refused, "sandbox.allowOverrides is off, so a caller may only tighten" if refused else ""


def overrides_as_settings(overrides: Overrides) -> dict[str, Any]:
    """The settings object that a call's overrides mean."""
    network = {"allowedDomains": list(overrides.allow_domains)}
    files = {"allowWrite": list(overrides.allow_write), "allowRead": list(overrides.allow_read)}
    given = {
        "network": {key: value for key, value in network.items() if value},
        "filesystem": {key: value for key, value in files.items() if value},
    }
    sandbox: dict[str, Any] = {key: value for key, value in given.items() if value}
    if overrides.ignore_unknown_restrictions:
        sandbox["ignoreUnknownRestrictions"] = True
    return {"sandbox": sandbox} if sandbox else {}


def read_required(
    path: str,
    home: str,
    may_widen: bool = True,
    distrust: str = "",
    *,
    doubtful: bool = False,
    trust: TrustStore | None = None,
) -> Layer:
    """The layer of a settings file that somebody named. Raises SettingsError `settings_missing` when it is not there:
    whoever names a file means its rules. A broken file is a broken layer; a `doubtful` one widens only with a content
    that is trusted."""
    if not os.path.exists(path):
        raise SettingsError(
            "settings_missing", f"there is no settings file {path}", hint="check the path", data={"file": path}
        )
    layer = read_layer(Location(Source.CLI, path, in_project=doubtful), home, trust)
    return layer if may_widen else replace(layer, may_widen=False, distrust=distrust)


_Variant = tuple[Overrides, State | None, tuple[int, ...]]


def _identity(path: str | None) -> State | None:
    """What changes when a file does; another one each time as long as a change could go unnoticed."""
    if path is None:
        return None
    found = look_at_file(path)
    return found.states[0] if found.settled else (*found.states[0], time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Reloaded:
    """`changed` are the keys with another effective value in any project, `switched` that a policy was replaced."""

    changed: tuple[str, ...]
    switched: bool
    problems: tuple[Problem, ...] = field(default=())


class Policies:
    """All projects of a daemon. Made when the daemon starts: raises SettingsError when its own settings are broken."""

    def __init__(self, places: SettingsPlaces, log: FilteringBoundLogger, *, generation: int = 0) -> None:
        """`generation` is the last of an earlier daemon."""
        self.places = places
        self.generation = generation
        self._log = log
        self._listeners: list[Callable[[Reloaded], None]] = []
        self._after_reload: list[Callable[[], None]] = []
        if places.cli_file is not None:
            read_required(places.cli_file, places.home)
        self.own = Project(None, places, self._next_generation)
        self._projects: weakref.WeakValueDictionary[str, Project] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, Project] = OrderedDict()
        self._of_sessions: weakref.WeakValueDictionary[str, SessionPolicy] = weakref.WeakValueDictionary()
        self.before_reading: Callable[[SettingsLocations], None] = lambda locations: None
        """Told of the files of a project before they are read for the first time."""

    def _next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def project(self, directory: str) -> Project:
        """The settings of a project directory, read now when they are not known. Raises SettingsError when they are
        broken and never were good."""
        project = self._projects.get(directory)
        if project is None:
            self.before_reading(self.places.locations(directory))
            project = self._projects[directory] = Project(directory, self.places, self._next_generation)
        self._recent[directory] = project
        self._recent.move_to_end(directory)
        while len(self._recent) > PROJECTS_KEPT:
            self._recent.popitem(last=False)
        return project

    def of_session(
        self, directory: str, settings: Mapping[str, Any] | None = None, *, restricted: bool = False
    ) -> SessionPolicy:
        """The policy of a session in `directory`, with its own settings on top, which only tighten when `restricted`.
        Raises SettingsError."""
        project = self.project(directory)
        if settings is not None:
            return SessionPolicy(project, settings, self._log, restricted=restricted)
        if project.plain is None:
            project.plain = SessionPolicy(project, None, self._log)
        return project.plain

    def keep(self, session_id: str, policy: SessionPolicy) -> None:
        """Know the policy of a session by its id for as long as the session has it."""
        self._of_sessions[session_id] = policy

    def session_policy(self, session_id: str, directory: str) -> SessionPolicy:
        """The policy of a session, or of one without settings of its own in `directory`. Raises SettingsError."""
        return self._of_sessions.get(session_id) or self.of_session(directory)

    def view(self, session_id: str | None, directory: str | None) -> tuple[Project, SessionPolicy | None]:
        """Whose settings are meant: a session's, else those of a directory, else the daemon's. Raises SettingsError."""
        policy = None if session_id is None else self._of_sessions.get(session_id)
        if policy is not None:
            return policy.project, policy
        return self.own if directory is None else self.project(directory), None

    def snapshot(self, session_id: str | None, directory: str | None) -> tuple[Project, PolicySnapshot]:
        """The settings that hold for a session, else for a directory, else for the daemon. Raises SettingsError."""
        project, policy = self.view(session_id, directory)
        return project, project.now if policy is None else policy.snapshot()

    def broken(self) -> str:
        """Why the files of some project in use could not be read by another daemon; empty when all could."""
        return next((project.error.message for project in self._all() if project.error is not None), "")

    def locations(self) -> tuple[SettingsLocations, ...]:
        """Every file that matters to somebody now."""
        return tuple(project.locations for project in self._all())

    async def bring_up_to_date(self, directory: str | None) -> None:
        """Read again what has changed since it was read, before an answer rests on it: for the project of a directory,
        or the daemon's own settings. A project that is not known yet is read when it is asked for. Never raises."""
        project = self.own if directory is None else self._projects.get(directory, self.own)
        self._take_over(project, await asyncio.to_thread(project.look) if project.slow else project.look())

    def look(self, directory: str) -> Awaitable[None] | None:
        """The same, for what must not wait; only where files lie on a server there is something to be awaited."""
        project = self._projects.get(directory, self.own)
        if project.slow:
            return self.bring_up_to_date(directory)
        self._take_over(project, project.look())
        return None

    def _take_over(self, project: Project, found: FileStates) -> None:
        if found.states != project.seen.states or (not project.seen.settled and project.differs()):
            self.reload()

    def _all(self) -> list[Project]:
        return [self.own, *self._projects.values()]

    def on_change(self, listener: Callable[[Reloaded], None]) -> None:
        """Have `listener` called after each reload in which a policy was replaced."""
        self._listeners.append(listener)

    def after_reload(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each reload, also one that changed nothing."""
        self._after_reload.append(listener)

    def reload(self) -> Reloaded:
        """Read everything again. Whoever is affected has been told when this returns."""
        before = self.generation
        changed: dict[str, None] = {}
        problems: dict[Problem, None] = {}
        for project in self._all():
            broken_before = project.error
            changed.update(dict.fromkeys(project.refresh()))
            problems.update(dict.fromkeys(project.problems))
            if project.error is not None and str(project.error) != str(broken_before):
                reason, hint = project.error.message, project.error.hint
                self._log.error("settings are broken; the last good policy stays", reason=reason, hint=hint)
        outcome = Reloaded(tuple(changed), self.generation != before, tuple(problems))
        if outcome.switched:
            self._log.info("settings changed", keys=list(outcome.changed), generation=self.generation)
            for listener in self._listeners:
                listener(outcome)
        for after in self._after_reload:
            after()
        return outcome
