"""The policy of each project: one object while nothing changes, the last good one when something breaks."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.daemon import policies as module
from sandboxd.daemon.policies import Policies, Reloaded, overrides_as_settings
from sandboxd.daemon.settings.settings_places import SettingsPlaces
from sandboxd.errors import SettingsError
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides
from support.rpc import Log


class World:
    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        self.managed = base / "managed"
        self.log = Log()

    def write(self, where: str, settings: Any) -> None:
        path = {
            "user": self.home / ".claude/settings.json",
            "project": self.project / ".claude/settings.json",
            "managed": self.managed / "etc/sandboxd/managed-settings.json",
        }[where]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings))

    def policies(self, cli_file: str | None = None) -> Policies:
        places = SettingsPlaces({}, str(self.home), cli_file=cli_file, managed_root=str(self.managed))
        return Policies(places, self.log.logger)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield World(tmp_path)


def allowing(*domains: str) -> dict[str, Any]:
    return {"sandbox": {"network": {"allowedDomains": list(domains)}}}


def names(policy: Any) -> list[str]:
    return [rule.pattern.text for rule in policy.network.allowed]


def test_nothing_changes_nothing(world: World) -> None:
    policies = world.policies()
    project = policies.of_session(str(world.project))
    before = project()
    heard: list[Reloaded] = []
    policies.on_change(heard.append)
    assert policies.reload() == Reloaded((), False)
    assert project() is before
    assert heard == []


def test_each_different_policy_has_its_own_generation(world: World) -> None:
    policies = world.policies()
    project = policies.of_session(str(world.project))
    seen = {policies.own.now.policy.generation, project().generation}
    assert len(seen) == 2
    world.write("user", allowing("a.test"))
    heard: list[Reloaded] = []
    policies.on_change(heard.append)
    outcome = policies.reload()
    assert outcome.changed == ("sandbox.network.allowedDomains",)
    assert heard == [outcome]
    seen |= {policies.own.now.policy.generation, project().generation}
    assert len(seen) == 4
    assert policies.generation == max(seen)


def test_moved_rules_change_the_policy_and_no_key(world: World) -> None:
    world.write("user", allowing("a.test"))
    policies = world.policies()
    before = policies.own.now.policy
    world.write("user", "\n\n" + json.dumps(allowing("a.test")))
    outcome = policies.reload()
    assert (outcome.changed, outcome.switched) == ((), True)
    assert policies.own.now.policy.generation > before.generation
    assert policies.own.now.policy.network.allowed[0].origin.line == 3


def test_a_broken_start_is_refused(world: World) -> None:
    world.write("user", "{")
    with pytest.raises(SettingsError):
        world.policies()


def test_a_file_that_breaks_leaves_the_last_good_policy(world: World) -> None:
    world.write("user", allowing("a.test"))
    policies = world.policies()
    session = policies.of_session(str(world.project))
    before = session()
    world.write("user", "{")
    outcome = policies.reload()
    assert not outcome.switched
    assert any(problem.fatal for problem in outcome.problems)
    assert session() is before
    assert policies.own.error is not None
    assert "the last good settings stay in force; the { of line 1, column 1 is not closed" in policies.own.complaints[0]
    world.write("user", allowing("b.test"))
    assert policies.reload().switched
    assert names(session()) == ["b.test"]
    assert policies.own.complaints == ()


@pytest.mark.parametrize("broken", ["{", '{"permissions": {"deny": ["Read(~nobody/x)"]}}', '{"sandbox": 1}'])
def test_a_broken_file_holds_no_rule_of_another_file_back(world: World, broken: str) -> None:
    world.write("user", allowing("a.test"))
    world.write("project", {"sandbox": {"network": {"deniedDomains": ["project.test"]}}})
    policies = world.policies()
    session = policies.of_session(str(world.project))
    session()
    world.write("project", broken)
    policies.reload()
    world.write("user", {"sandbox": {"network": {"deniedDomains": ["b.test"]}}})
    assert policies.reload().switched
    assert names(session()) == []
    assert {rule.pattern.text for rule in session().network.denied} == {"project.test", "b.test"}
    assert policies.project(str(world.project)).complaints[0].count("the last good settings stay in force") == 1
    world.write("managed", {"sandbox": {"network": {"deniedDomains": ["c.test"]}}})
    world.write("user", broken)
    policies.reload()
    assert {rule.pattern.text for rule in session().network.denied} == {"project.test", "b.test", "c.test"}


def test_one_broken_project_does_not_hold_others_back(world: World) -> None:
    policies = world.policies()
    other = policies.of_session(str(world.home))
    mine = policies.of_session(str(world.project))
    world.write("user", allowing("a.test"))
    world.write("project", "{")
    assert policies.reload().switched
    assert names(other()) == ["a.test"]
    assert names(mine()) == ["a.test"]


def test_a_project_that_was_never_good_has_no_policy(world: World) -> None:
    world.write("project", "{")
    policies = world.policies()
    for _ in range(2):
        with pytest.raises(SettingsError):
            policies.of_session(str(world.project))
    world.write("project", "{}")
    assert policies.of_session(str(world.project))() is not None


def test_overrides_are_kept_for_each_session_and_policy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = world.policies()
    session = policies.of_session(str(world.project))
    one, two = Overrides(allow_domains=("a.test",)), Overrides(allow_domains=("b.test",))
    assert session(one) is session(one)
    assert session(one) is not session(two)
    assert session(NO_OVERRIDES) is session()
    before = session(one)
    world.write("user", allowing("c.test"))
    policies.reload()
    assert session(one) is not before
    assert sorted(names(session(one))) == ["a.test", "c.test"]
    monkeypatch.setattr(module, "VARIANTS_KEPT", 2)
    for number in range(5):
        session(Overrides(allow_domains=(f"n{number}.test",)))
    assert names(session(two))[0] == "b.test"


def test_overrides_as_settings() -> None:
    assert overrides_as_settings(NO_OVERRIDES) == {}
    assert overrides_as_settings(Overrides(("h",), ("w",), ("r",))) == {
        "sandbox": {
            "network": {"allowedDomains": ["h"]},
            "filesystem": {"allowWrite": ["w"], "allowRead": ["r"]},
        }
    }


def test_managed_denials_stand_above_overrides(world: World) -> None:
    world.write("managed", {"sandbox": {"network": {"deniedDomains": ["a.test"]}}})
    policy = world.policies().of_session(str(world.project))(Overrides(allow_domains=("a.test",)))
    assert [rule.pattern.text for rule in policy.network.denied] == ["a.test"]


def test_a_broken_overrides_file_keeps_its_last_rules(world: World) -> None:
    """A running command asks for its policy again whenever something changes."""
    file = world.home / "extra.json"
    file.write_text(json.dumps(allowing("a.test")))
    policies = world.policies()
    session = policies.of_session(str(world.project))
    overrides = Overrides(settings=str(file))
    assert names(session(overrides)) == ["a.test"]
    file.write_text("{")
    with pytest.raises(SettingsError):  # a new command with it is refused
        session(overrides)


def test_projects_nobody_uses_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROJECTS_KEPT", 3)
    policies = world.policies()
    used = policies.of_session(str(world.project), {})
    for number in range(10):
        directory = world.home / f"p{number}"
        directory.mkdir()
        policies.of_session(str(directory))
    gc.collect()
    directories = [project.directory for project in policies._all()]
    assert str(world.project) in directories  # a session has it
    assert len(directories) == 1 + 1 + 3
    assert used() is not None


def test_whoever_watches_is_told_before_a_project_is_read(world: World) -> None:
    policies = world.policies()
    told: list[str] = []

    def before(locations: Any) -> None:
        told.append(locations.files[-1].path)
        world.write("project", {"sandbox": {"enabled": True}})  # a change between watching and reading is not lost

    policies.before_reading = before
    assert policies.of_session(str(world.project))().enabled is True
    policies.of_session(str(world.project))
    assert told == [str(world.project / ".claude/settings.json")]
