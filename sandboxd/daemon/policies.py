"""Policies in force for each project, and their replacement.

A reload builds the new policy completely and then switches. A broken file keeps its last good content in force, and the
problem is reported by `status`, `settings.get` and the log. Without a last good content the daemon does not start, or
the project's command is refused.

Each different policy gets the next generation number. An unchanged policy stays the same *object*, so that all that was
derived from it is found by its identity, which keeps a warm `wrap` cheap."""

from __future__ import annotations

import asyncio
import json
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.settings.kept_settings import KeptSettings, kept_settings
from sandboxd.daemon.settings.settings_places import SettingsPlaces
from sandboxd.errors import SettingsError
from sandboxd.host.watch.file_systems import is_remote
from sandboxd.policy.build import evaluate, in_order, usable
from sandboxd.policy.model import Policy
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides
from sandboxd.settings.files.locations import Location, SettingsLocations
from sandboxd.settings.files.reading import TRUST_CHANGED, read_layer, read_layers, trust_is_allowed
from sandboxd.settings.files.states import FileStates, State, look_at_file, look_at_files
from sandboxd.settings.files.trust import TrustStore, real_path
from sandboxd.settings.jsonc import MAX_PROJECT_VALUES
from sandboxd.settings.layer import PROJECT_DISTRUST, Layer, layer_from_values
from sandboxd.settings.merge import Settings, changed_keys, merge
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import Problem, Severity
from sandboxd_client.records import dataclass, field

PROJECTS_KEPT = 64
"""Number of projects that stay loaded without an open session."""
NO_VARIABLES: Mapping[str, str] = {}
VARIANTS_KEPT = 64
"""Number of policies with a caller's overrides kept for each session."""


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """Merged settings and their policy."""

    settings: Settings
    policy: Policy


class Project:
    """Settings of one directory, or of the daemon when `directory` is None.

    `now` is the last good snapshot. `latest` is the content of the files, the same unless they are broken, and
    `problems` its faults."""

    def __init__(
        self,
        directory: str | None,
        places: SettingsPlaces,
        next_generation: Callable[[], int],
        kept: KeptSettings | None = None,
    ) -> None:
        """Read the settings. Raises SettingsError when they are broken and no daemon before has `kept` a content."""
        self.directory = directory
        if directory is not None and directory != "/":  # only a rule opens the root
            places.note([directory])
        self.locations = places.locations(directory)
        self.scope = places.scope(directory)
        self._next_generation = next_generation
        self.slow = directory is not None and is_remote(directory)
        """True where files are checked in a thread, as a server may not answer."""
        self.places = places
        self._trust = places.trust
        self.trust_has_changed = False
        """True where a widening file differs from its trusted content."""
        self.latest = merge(self._read())
        policy, found = evaluate(self.latest, self.scope)
        self.problems = in_order(found)
        self.error: SettingsError | None = None
        self.not_before = 0.0
        """When its files are read again, unless a command needs them."""
        self.plain: SessionPolicy | None = None
        """Policy of all sessions without own settings."""
        settings, generation = self.latest, next_generation()
        try:
            policy = usable(policy, found, generation)
        except SettingsError as error:
            if kept is None:
                raise
            self.error = error
            settings = self._without_broken_files(kept.layers())
            policy = usable(*evaluate(settings, self.scope), generation)
        self.now = PolicySnapshot(settings, policy)
        places.note_policy(self.now.policy)

    def look(self) -> FileStates:
        """Return the state of its files and of the trust store."""
        return look_at_files((*self.locations.files, Location(Source.LOCAL, self._trust.directory)))

    def _read(self) -> tuple[Layer, ...]:
        self.seen = self.look()  # before reading, so that a change meanwhile is noticed later
        layers = read_layers(self.places.judged(self.locations), trust=self._trust)
        self.trust_has_changed = any(one.slug == TRUST_CHANGED for layer in layers for one in layer.problems)
        return layers

    def differs(self, found: FileStates) -> bool:
        """Return whether the files, in this state, differ from the settings taken last."""
        return found.states != self.seen.states or (not self.seen.settled and merge(self._read()) != self.latest)

    def refresh(self) -> tuple[str, ...]:
        """Reread the files; return the keys whose effective value has changed.

        A broken file changes nothing and is reported in `error`. The same rules at another place of a file make a new
        policy, but no changed key."""
        begun = time.thread_time()
        try:
            return self._refresh()
        finally:
            self.not_before = time.monotonic() + REST * (time.thread_time() - begun)

    def _refresh(self) -> tuple[str, ...]:
        before = self.now
        self.latest = merge(self._read())
        policy, found = evaluate(self.latest, self.scope)
        self.problems = in_order(found)
        settings, self.error = self.latest, None
        try:
            policy = usable(policy, found, before.policy.generation)
        except SettingsError as error:
            self.error = error
            settings = self._without_broken_files(before.settings.layers)
            try:
                policy = usable(*evaluate(settings, self.scope), before.policy.generation)
            except SettingsError:
                return ()
        changed = changed_keys(before.settings, settings)
        if policy != before.policy:
            self.now = PolicySnapshot(settings, replace(policy, generation=self._next_generation()))
            self.places.note_policy(policy)
        elif changed:
            self.now = PolicySnapshot(settings, before.policy)
        return changed

    def _without_broken_files(self, before: Iterable[Layer]) -> Settings:
        """Return the latest settings with the last good content of each broken file, which is `before`.

        So a broken file holds back no rule of another. In a project that content only tightens, since its file no
        longer has the trusted content."""
        of_project = {one.path for one in self.places.judged(self.locations).files if one.in_project}
        good = {layer.file: layer for layer in before}
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
            broken |= more  # a rule in two files is one problem at a time
            settings = merge(map(usable, self.latest.layers))
            problems = in_order(evaluate(settings, self.scope)[1])
        return settings

    @property
    def complaints(self) -> tuple[str, ...]:
        """Return problems for the user, one line each; a broken file comes first."""
        broken = () if self.error is None else (_last_good(self.error),)
        return (*broken, *self.now.policy.warnings)

    def with_layers(self, layers: tuple[Layer, ...], variables: Mapping[str, str] = NO_VARIABLES) -> PolicySnapshot:
        """Return the snapshot with settings of a call on top, and caller variables.

        Raises SettingsError, also for an entry that a file would lose with a warning: a caller can correct it."""
        merged = merge((*layers, *self.now.settings.layers))
        scope = replace(self.scope, caller=variables)
        policy, found = evaluate(merged, scope)
        for problem in in_order(found):
            if problem.severity is Severity.ERROR and problem.origin.source is Source.CLI:
                raise problem.as_error()
        return PolicySnapshot(merged, usable(policy, found, self.now.policy.generation))


REST: Final = 20
"""Pause between reads without need, as a multiple of the time of the last read."""
CallerSettings = Mapping[str, Any] | str | None
"""Settings of a call: an object, or the path of a file."""


class SessionPolicy:
    """Policy of one session, with a call's overrides on top."""

    def __init__(
        self,
        project: Project,
        settings: CallerSettings,
        log: FilteringBoundLogger,
        *,
        restricted: bool = False,
        added: CallerSettings = None,
        planning: bool = False,
    ) -> None:
        """Keep the settings of the session; those of a `restricted` one only tighten.

        `added` are those of the user for a restricted session. They tighten only where it is `planning`."""
        self.project = project
        self.settings = settings
        self.added = added
        self._parts = ((settings, restricted), (added, planning))
        self._log = log
        self._base = project.now
        self._variants: OrderedDict[_Variant, PolicySnapshot] = OrderedDict()
        self._last_good: Mapping[_Variant, PolicySnapshot] = {}

    def __call__(self, overrides: Overrides = NO_OVERRIDES) -> Policy:
        """Return the policy. Raises SettingsError when it never could hold."""
        if self.settings is None is self.added and overrides is NO_OVERRIDES:
            return self.project.now.policy
        return self.snapshot(overrides).policy

    def snapshot(self, overrides: Overrides = NO_OVERRIDES) -> PolicySnapshot:
        """Return the settings with their policy. Raises like a call."""
        if self._base is not self.project.now:
            self._base, self._last_good, self._variants = self.project.now, self._variants, OrderedDict()
        paths = [_path_of(one) for one in (overrides.settings, self.settings, self.added)]
        key = (overrides, tuple((_identity(path), self._trust_state(path)) for path in paths))
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = self._build(key)
            while len(self._variants) > VARIANTS_KEPT:
                self._variants.popitem(last=False)
        return found

    def _trust_state(self, path: str | None) -> tuple[int, ...]:
        """Return a value that changes with trust in a file, or an opened directory."""
        if path is None:
            return ()
        places = self.project.places
        return (len(places.opened), *places.trust.state(os.path.dirname(real_path(path))))

    def variables(self, overrides: Overrides = NO_OVERRIDES) -> tuple[str, ...]:
        """Return the variables that rules mention; none where there is no policy."""
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
            self._log.error("settings of a session are invalid; its last good policy stays", reason=error.message)
            return self._last_good[key]

    def _layers(self, overrides: Overrides) -> tuple[Layer, ...]:
        parts = (*self._parts, (overrides.settings, overrides.restricted))
        layers = [self._layer(settings, restricted) for settings, restricted in parts if settings]
        may_widen, distrust = _trust(self.project.now, overrides.restricted)
        if values := overrides_as_settings(overrides):
            layers.append(layer_from_values(values, Source.CLI, may_widen=may_widen, distrust=distrust))
        if overrides.granted_write or overrides.granted_read:
            widens, why_not = _trust(self.project.now, restricted=False)
            granted = Overrides(allow_write=overrides.granted_write, allow_read=overrides.granted_read)
            layers.append(
                layer_from_values(overrides_as_settings(granted), Source.CLI, may_widen=widens, distrust=why_not)
            )
        return tuple(layers)

    def _layer(self, settings: Mapping[str, Any] | str, restricted: bool) -> Layer:
        """Return the layer of settings of a call: an object, the same as JSON, or the file it names."""
        may_widen, distrust = _trust(self.project.now, restricted)
        path = _path_of(settings)
        if path is None:
            values = json.loads(settings) if isinstance(settings, str) else settings
            return layer_from_values(values, Source.CLI, may_widen=may_widen, distrust=distrust)
        home, places = self.project.locations.home, self.project.places
        if not places.why_doubtful(path):
            return read_required(path, home, may_widen, distrust, most=MAX_PROJECT_VALUES)
        trust = places.trust if trust_is_allowed(self.project.now.settings.layers) else None
        return read_required(path, home, may_widen, distrust, doubtful=True, trust=trust)


def _path_of(settings: CallerSettings) -> str | None:
    """Return the path among settings of a call, which may also be JSON or an object."""
    return settings if isinstance(settings, str) and settings.startswith("/") else None


def _last_good(fault: SettingsError) -> str:
    hint = f"; {fault.hint}" if fault.hint else ""
    return f"{fault.message}; the last good settings stay in force{hint}"


def _trust(now: PolicySnapshot, restricted: bool) -> tuple[bool, str]:
    """Return whether settings of a caller may widen, and why not."""
    if restricted:
        return False, "a connection with the role agent, and a session in the mode plan, may only tighten"
    refused = now.settings.is_set("sandbox.allowOverrides") and not now.policy.allow_overrides
    return not refused, "sandbox.allowOverrides is off, so a caller may only tighten" if refused else ""


def overrides_as_settings(overrides: Overrides) -> dict[str, Any]:
    """Return the settings object that a call's overrides mean."""
    network = {"allowedDomains": list(overrides.allow_domains)}
    files = {"allowWrite": list(overrides.allow_write), "allowRead": list(overrides.allow_read)}
    given = {
        "network": {key: value for key, value in network.items() if value},
        "filesystem": {key: value for key, value in files.items() if value},
    }
    sandbox: dict[str, Any] = {key: value for key, value in given.items() if value}
    if overrides.limits:
        sandbox["limits"] = {key: float(value) if key == "cpu" else value for key, value in overrides.limits}
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
    most: int | None = None,
) -> Layer:
    """Return the layer of a named settings file.

    Raises SettingsError `settings_missing` when it does not exist, as its rules are required. A broken file makes a
    broken layer; so does one of more than `most` keys and values. A `doubtful` one widens only with trusted content."""
    if not os.path.exists(path):
        raise SettingsError(
            "settings_missing", f"there is no settings file {path}", hint="check the path", data={"file": path}
        )
    layer = read_layer(Location(Source.CLI, path, in_project=doubtful), home, trust, most)
    return layer if may_widen else replace(layer, may_widen=False, distrust=distrust)


_Variant = tuple[Overrides, tuple[tuple[State | None, tuple[int, ...]], ...]]


def _identity(path: str | None) -> State | None:
    """Return a value that changes with a file, and always where a change could hide."""
    if path is None:
        return None
    found = look_at_file(path)
    return found.states[0] if found.settled else (*found.states[0], time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Result of a reload: changed keys, and whether a policy was replaced."""

    changed: tuple[str, ...]
    switched: bool
    problems: tuple[Problem, ...] = field(default=())
    again_s: float = 0.0
    """Seconds until files are to be compared again, which have changed too often; 0 where there are none."""


class Policies:
    """All projects. Raises SettingsError when the daemon's settings are broken."""

    def __init__(
        self,
        places: SettingsPlaces,
        log: FilteringBoundLogger,
        *,
        generation: int = 0,
        kept: Iterable[KeptSettings] = (),
    ) -> None:
        """Read the daemon's settings. `generation` and `kept`, its last good content, are of an earlier daemon."""
        self.places = places
        self.generation = generation
        self._log = log
        self._listeners: list[Callable[[Reloaded], None]] = []
        self._after_reload: list[Callable[[], None]] = []
        self._kept = {one.directory: one for one in kept}
        if places.cli_file is not None:
            read_required(places.cli_file, places.home)
        self.own = self._read_project(None)
        self._projects: weakref.WeakValueDictionary[str, Project] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, Project] = OrderedDict()
        self._of_sessions: weakref.WeakValueDictionary[str, SessionPolicy] = weakref.WeakValueDictionary()
        self.before_reading: Callable[[SettingsLocations], None] = lambda locations: None
        """Called with the files of a project before they are read for the first time."""

    def _next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def project(self, directory: str) -> Project:
        """Return the settings of a project. Raises SettingsError when never good."""
        project = self._projects.get(directory)
        if project is None:
            self.before_reading(self.places.locations(directory))
            project = self._projects[directory] = self._read_project(directory)
        self._recent[directory] = project
        self._recent.move_to_end(directory)
        while len(self._recent) > PROJECTS_KEPT:
            self._recent.popitem(last=False)
        return project

    def _read_project(self, directory: str | None) -> Project:
        project = Project(directory, self.places, self._next_generation, self._kept.get(directory))
        self._report(project)
        return project

    def _report(self, project: Project) -> None:
        if (error := project.error) is not None:
            self._log.error("settings are broken; the last good policy stays", reason=error.message, hint=error.hint)

    def hand_over(self) -> tuple[KeptSettings, ...]:
        """Return the last good content of the daemon's settings and of those of sessions."""
        projects = {policy.project for policy in self._of_sessions.values()}
        return tuple(kept_settings(one.directory, one.now.settings.layers) for one in (self.own, *projects))

    def taken_over(self) -> None:
        """Forget what an earlier daemon has kept: its content is not the last good one of a project read later."""
        self._kept.clear()

    def of_session(
        self,
        directory: str,
        settings: CallerSettings = None,
        *,
        restricted: bool = False,
        added: CallerSettings = None,
        planning: bool = False,
    ) -> SessionPolicy:
        """Return the policy of a session in `directory`. Raises SettingsError."""
        project = self.project(directory)
        if settings is not None or added is not None:
            return SessionPolicy(project, settings, self._log, restricted=restricted, added=added, planning=planning)
        if project.plain is None:
            project.plain = SessionPolicy(project, None, self._log)
        return project.plain

    def keep(self, session_id: str, policy: SessionPolicy) -> None:
        """Keep the policy of a session under its id as long as the session has it."""
        self._of_sessions[session_id] = policy

    def session_policy(self, session_id: str, directory: str) -> SessionPolicy:
        """Return a session's policy, or that of `directory`. Raises SettingsError."""
        return self._of_sessions.get(session_id) or self.of_session(directory)

    def view(self, session_id: str | None, directory: str | None) -> tuple[Project, SessionPolicy | None]:
        """Return project and policy of a session, a directory or the daemon."""
        policy = None if session_id is None else self._of_sessions.get(session_id)
        if policy is not None:
            return policy.project, policy
        return self.own if directory is None else self.project(directory), None

    def snapshot(self, session_id: str | None, directory: str | None) -> tuple[Project, PolicySnapshot]:
        """Return project and settings of a session, a directory or the daemon."""
        project, policy = self.view(session_id, directory)
        return project, project.now if policy is None else policy.snapshot()

    def broken(self) -> str:
        """Return why another daemon could not read a project in use, or empty."""
        return next((project.error.message for project in self._all() if project.error is not None), "")

    def locations(self) -> tuple[SettingsLocations, ...]:
        """Return all files in use."""
        return tuple(project.locations for project in self._all())

    async def bring_up_to_date(self, directory: str | None) -> None:
        """Reread changed files of a known project, or of the daemon. Never raises."""
        project = self.own if directory is None else self._projects.get(directory, self.own)
        self._take_over(project, await asyncio.to_thread(project.look) if project.slow else project.look())

    def look(self, directory: str) -> Awaitable[None] | None:
        """Do the same without waiting; returns an awaitable only for files on a server."""
        project = self._projects.get(directory, self.own)
        if project.slow:
            return self.bring_up_to_date(directory)
        self._take_over(project, project.look())
        return None

    def _take_over(self, project: Project, found: FileStates) -> None:
        if project.differs(found):
            self.reload(project)

    def _all(self) -> list[Project]:
        return [self.own, *self._projects.values()]

    def on_change(self, listener: Callable[[Reloaded], None]) -> None:
        """Call `listener` after each reload that replaced a policy."""
        self._listeners.append(listener)

    def after_reload(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each reload."""
        self._after_reload.append(listener)

    def reload_changed(self) -> Reloaded:
        """Read what has changed; a project that changes all the time, only now and then."""
        now, changed, again_s = time.monotonic(), [], 0.0
        for project in self._all():
            wait_s = 0.0 if project is self.own else project.not_before - now
            if wait_s > 0:
                again_s = min(again_s or wait_s, wait_s)
            elif project.differs(project.look()):
                changed.append(project)
        return replace(self.reload(*changed), again_s=again_s) if changed else Reloaded((), False, again_s=again_s)

    def reload(self, *projects: Project) -> Reloaded:
        """Read these projects again, by default all. The listeners have been called when this returns."""
        before = self.generation
        changed: dict[str, None] = {}
        problems: dict[Problem, None] = {}
        for project in projects or self._all():
            broken_before = project.error
            changed.update(dict.fromkeys(project.refresh()))
            problems.update(dict.fromkeys(project.problems))
            if str(project.error) != str(broken_before):
                self._report(project)
        outcome = Reloaded(tuple(changed), self.generation != before, tuple(problems))
        if outcome.switched:
            self._log.info("settings changed", keys=list(outcome.changed), generation=self.generation)
            for listener in self._listeners:
                listener(outcome)
        for after in self._after_reload:
            after()
        return outcome
