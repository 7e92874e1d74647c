"""Subscriptions to settings, with the last state of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from sandboxd.daemon.policies import Policies, PolicySnapshot, Project, SessionPolicy
from sandboxd.errors import SettingsError
from sandboxd.settings.merge import Settings, changed_keys
from sandboxd.settings.problems import Problem
from sandboxd_client.records import dataclass

Scope = tuple[str | None, str | None]
"""Session id, directory of a project, or neither for the daemon's own settings."""


@dataclass(frozen=True, slots=True)
class SettingsState:
    """State of settings.

    `changed` are the keys with another effective value than in the last reported state. `broken` is why the files are
    not in force as they are, with the place."""

    scope: Scope
    generation: int
    settings: Settings
    problems: tuple[Problem, ...]
    broken: str
    changed: tuple[str, ...] = ()


Tell = Callable[[Any, SettingsState], None]
"""Function that gets the subscriber, and must not keep it alive."""


@dataclass(slots=True)
class _Subscription:
    scope: Scope
    project: Project
    """Kept, so that its files stay watched."""
    session: SessionPolicy | None
    tell: Tell
    last: SettingsState | None = None

    def renewed(self) -> SettingsState:
        """Return the present state, and count it as reported. Raises SettingsError."""
        error, last = self.project.error, self.last
        try:
            now: PolicySnapshot = self.project.now if self.session is None else self.session.snapshot()
        except SettingsError as fault:
            if last is None:
                raise
            self.last = replace(last, broken=fault.message, changed=())
            return self.last
        self.last = SettingsState(
            self.scope,
            now.policy.generation,
            now.settings,
            self.project.problems,
            "" if error is None else error.message,
            () if last is None else changed_keys(last.settings, now.settings),
        )
        return self.last


class SettingsSubscriptions:
    """Report of each reload that changes something for a subscriber, exactly once."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._of: WeakKeyDictionary[Any, dict[Scope, _Subscription]] = WeakKeyDictionary()
        policies.after_reload(self._reloaded)

    def add(self, subscriber: object, session_id: str | None, directory: str | None, tell: Tell) -> SettingsState:
        """Subscribe; return the state that changes count from. Raises SettingsError."""
        project, session = self._policies.view(session_id, directory)
        scope = (session_id, directory)
        subscription = _Subscription(scope, project, session, tell)
        state = subscription.renewed()
        self._of.setdefault(subscriber, {})[scope] = subscription
        return state

    def remove(self, subscriber: object) -> None:
        """End the subscriptions of a subscriber."""
        self._of.pop(subscriber, None)

    def scopes(self, subscriber: object) -> tuple[Scope, ...]:
        """Return the scopes of a subscriber."""
        return tuple(self._of.get(subscriber, ()))

    def __len__(self) -> int:
        """Return the number of subscribers."""
        return len(self._of)

    def session_changed(self, session_id: str) -> None:
        """Report the other settings of a session."""
        _, policy = self._policies.view(session_id, None)
        for subscriptions in self._of.values():
            for subscription in subscriptions.values():
                if subscription.scope[0] == session_id:
                    subscription.session = policy
        self._reloaded()

    def _reloaded(self) -> None:
        for subscriber, subscriptions in list(self._of.items()):
            for subscription in subscriptions.values():
                before, now = subscription.last, subscription.renewed()
                if now.changed or before is None or now.broken != before.broken:
                    subscription.tell(subscriber, now)
