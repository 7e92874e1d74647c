"""Whatever commands leave behind in places that they may write: no later policy is wider than the one of managed, flag,
user and command-line settings and of what a person trusted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.daemon.policies import Policies
from sandboxd.daemon.settings.settings_places import SettingsPlaces
from sandboxd.daemon.settings.trusting import Trusting
from sandboxd.errors import DaemonError
from sandboxd.policy.model import Policy

LOG = structlog.get_logger()
DIRECTORIES = ("work", "work/sub", "work/.hidden/deep", "tree", "open", "open/.cache/x", "elsewhere")
WRITABLE = ("work", "tree", "open")
NAMES = ("settings.json", "settings.local.json")
PLANTED = "/planted"

contents = st.sampled_from(
    [
        {"filesystem": {"allowWrite": [PLANTED]}},
        {"excludedCommands": ["planted"]},
        {"network": {"allowedDomains": ["planted.test"], "allowUnixSockets": [PLANTED]}},
        {"presets": ["caches"], "allowUnsandboxedCommands": True, "filesystem": {"allowRead": [PLANTED]}},
        {"network": {"deniedDomains": ["tight.test"]}},
    ]
).map(lambda sandbox: json.dumps({"sandbox": sandbox, "permissions": {"allow": ["Edit(//planted)"]}}))
places = st.sampled_from(DIRECTORIES)
files = st.sampled_from(
    [f"{one}/.claude/{name}" for one in DIRECTORIES for name in NAMES] + ["work/.git", "work/.git/index"]
)
steps = st.one_of(
    st.tuples(st.just("write"), files, contents),
    st.tuples(st.just("write"), files, contents),
    st.tuples(st.just("write"), files, contents),
    st.tuples(st.just("link"), files, files),
    st.tuples(st.just("hard link"), files, files),
    st.tuples(st.just("rename"), places, places),
    st.tuples(st.just("rename file"), files, files),
    st.tuples(st.just("link directory"), places, places),
    st.tuples(st.just("remove"), files, files),
    st.tuples(st.just("remove tree"), places, places),
    st.tuples(st.just("restart"), places, places),
    st.tuples(st.just("reload"), places, places),
    st.tuples(st.just("open"), places, places),
    st.tuples(st.just("trust"), places, places),
)


@dataclass
class World:
    """A home with an empty configuration; `trusted` are the contents that a person has seen, by directory and name."""

    base: Path
    trusted: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in DIRECTORIES:
            (self.base / name).mkdir(parents=True)
        config = self.base / "home/.claude"
        config.mkdir(parents=True)
        (config / "settings.json").write_text(
            json.dumps({"sandbox": {"filesystem": {"allowWrite": [str(self.base / "open")]}}})
        )
        self.start()

    def start(self) -> None:
        home = str(self.base / "home")
        places = SettingsPlaces({}, home, managed_root=str(self.base / "managed"))
        self.policies = Policies(places, LOG)
        self.trusting = Trusting(self.policies, LOG)

    def run(self, act: str, first: str, second: str) -> None:
        """One step. A command reaches only what it may write; what fails there fails."""
        one, other = self.base / first, self.base / (second if not second.startswith("{") else first)
        if act == "restart":
            self.start()
        elif act == "reload":
            self.policies.reload()
        elif act == "trust":
            self.trust(first)
        elif act == "open":
            self.check(first)
        elif all(any(str(path).startswith(str(self.base / root)) for root in WRITABLE) for path in (one, other)):
            with contextlib.suppress(OSError):
                self.command(act, one, other, second)

    def command(self, act: str, one: Path, other: Path, text: str) -> None:
        if act != "remove tree":
            one.parent.mkdir(parents=True, exist_ok=True)
        if act == "write":
            one.write_text(text)
        elif act == "link":
            one.unlink(missing_ok=True)
            one.symlink_to(other)
        elif act == "hard link":
            one.unlink(missing_ok=True)
            os.link(other, one)
        elif act in ("rename", "rename file"):
            one.rename(other)
        elif act == "link directory":
            shutil.rmtree(one / ".claude", ignore_errors=True)
            (one / ".claude").symlink_to(other)
        elif act == "remove":
            one.unlink(missing_ok=True)
        elif act == "remove tree" and one.name not in WRITABLE:
            shutil.rmtree(one, ignore_errors=True)

    def trust(self, directory: str) -> None:
        try:
            shown = self.trusting.show(str(self.base / directory))
            asyncio.run(self.trusting.trust(str(self.base / directory), shown.digests))
        except DaemonError:
            return
        for key in [key for key in self.trusted if key[0] == shown.directory]:
            del self.trusted[key]
        for file in shown.files:
            self.trusted[shown.directory, file.name] = file.content.text

    def check(self, directory: str) -> None:
        path = self.base / directory
        if not path.is_dir():
            return
        try:
            policy = self.policies.project(str(path)).now.policy
            self.policies.project(str(path)).refresh()
            policy = self.policies.project(str(path)).now.policy
        except DaemonError:
            return
        real = os.path.realpath(path)
        believed = []
        for name in NAMES:
            try:
                text = (path / ".claude" / name).read_text()
            except OSError:
                continue
            if self.trusted.get((real, f".claude/{name}")) == text:
                believed.append(text)
        allowed = {entry for text in believed for entry in _words(json.loads(text))}
        for word in _opened(policy) - {str(self.base / "open")}:
            assert word in allowed or ("caches" in allowed and word.startswith(str(self.base / "home"))), (
                word,
                directory,
            )


def _words(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {word for one in value.values() for word in _words(one)}
    if isinstance(value, list):
        return {word for one in value for word in _words(one)}
    return {str(value), PLANTED} if str(value) == "Edit(//planted)" else {str(value)}


def _opened(policy: Policy) -> set[str]:
    """Everything that a policy opens, as words."""
    return {
        *(rule.path for rule in (*policy.files.allow_write, *policy.files.allow_read)),
        *(rule.pattern.text for rule in policy.network.allowed),
        *(rule.path for rule in policy.network.allow_unix_sockets),
        *(rule.pattern for rule in policy.commands.excluded),
    }


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(steps, min_size=4, max_size=18))
def test_no_policy_is_wider_than_what_people_said(sequence: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as base:
        world = World(Path(base).resolve())
        for act, first, second in sequence:
            world.run(act, first, second)
        for again in range(2):
            if again:
                world.start()
            for directory in DIRECTORIES:
                world.check(directory)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_no_single_file_is_believed(directory: str, name: str, tmp_path: Path) -> None:
    """Each on its own, so that a mistake about one directory cannot hide behind the luck of generated sequences."""
    world = World(tmp_path.resolve())
    text = json.dumps({"sandbox": {"filesystem": {"allowWrite": [PLANTED]}}})
    world.command("write", world.base / directory / ".claude" / name, world.base, text)
    world.check(directory)
    world.start()
    world.check(directory)
    world.trust(directory)
    assert PLANTED in _opened(world.policies.project(str(world.base / directory)).now.policy), "trust opens it"


TIGHT = json.dumps({"sandbox": {"network": {"deniedDomains": ["tight.test"]}}})
WIDE = json.dumps({"sandbox": {"filesystem": {"allowWrite": [PLANTED]}}})
Core = tuple[tuple[str, str, str], ...]
"""Steps in this order: act, one place or file, another one or a text."""


def cores(file: str, same_place: str, same_name: str) -> dict[str, Core]:
    """Sequences after which the file may not widen, by what would believe it. `same_place` is the other file of that
    directory, `same_name` that file of another directory."""
    place, other = (one.partition("/.claude/")[0] for one in (file, same_name))
    return {
        "planted": (("write", file, WIDE),),
        "changed after trust": (("write", file, TIGHT), ("trust", place, place), ("write", file, WIDE)),
        "trusted under another name": (
            ("write", same_place, WIDE), ("trust", place, place), ("remove", same_place, same_place),
            ("write", file, WIDE),
        ),
        "beside a trusted one": (("write", same_place, TIGHT), ("trust", place, place), ("write", file, WIDE)),
        "trusted in another directory": (
            ("write", same_name, WIDE), ("trust", other, other), ("remove", same_name, same_name),
            ("write", file, WIDE),
        ),
        "a link to a trusted one": (("write", same_name, WIDE), ("trust", other, other), ("link", file, same_name)),
        "a hard link of a trusted one": (
            ("write", same_name, WIDE), ("trust", other, other), ("write", file, TIGHT), ("hard link", file, same_name)
        ),
        "another trusted directory": (
            ("write", same_name, WIDE), ("trust", other, other), ("link directory", place, f"{other}/.claude")
        ),
    }  # fmt: skip


def between(chosen: random.Random, untouched: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Up to three steps that leave these files as they are."""
    free = sorted({f"{one}/.claude/{name}" for one in DIRECTORIES for name in NAMES} - {*untouched})
    steps = [
        ("restart", "", ""), ("reload", "", ""), ("open", chosen.choice(DIRECTORIES), ""),
        ("write", chosen.choice(free), TIGHT), ("trust", "elsewhere", ""),
    ]  # fmt: skip
    return [chosen.choice(steps) for _ in range(chosen.randint(0, 3))]


@pytest.mark.parametrize("directory", [one for one in DIRECTORIES if one.startswith(WRITABLE)])
@pytest.mark.parametrize("name", NAMES)
def test_no_core_widens_whatever_is_between(directory: str, name: str, tmp_path: Path) -> None:
    file, same_place = (f"{directory}/.claude/{one}" for one in (name, *(one for one in NAMES if one != name)))
    chosen = random.Random(f"{directory} {name}")
    for number, other in enumerate(one for one in DIRECTORIES if one.startswith(WRITABLE) and one != directory):
        same_name = f"{other}/.claude/{name}"
        for what, core in cores(file, same_place, same_name).items():
            world = World((tmp_path / f"{number} {what}").resolve())
            for step in core:
                for noise in between(chosen, (file, same_place, same_name)):
                    world.run(*noise)
                world.run(*step)
            for again in range(2):
                if again:
                    world.start()
                world.check(directory)
