"""Every way in which a settings file can be odd: one clear outcome each, and never a policy without its rules."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from sandboxd.settings.files.locations import Location, SettingsLocations, find_locations
from sandboxd.settings.files.reading import drop_ins, read_layer, read_layers
from sandboxd.settings.files.trust import TrustedDirectory, TrustStore, remembered
from sandboxd.settings.jsonc import MAX_BYTES, MAX_PROJECT_BYTES, MAX_PROJECT_VALUES
from sandboxd.settings.layer import Layer, layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from support.users import Identity


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / ".claude").mkdir(parents=True)
    return home


def locate(home: Path, project: Path | None = None, **environment: str) -> SettingsLocations:
    return find_locations(environment, str(home), str(project) if project else None, managed_root=str(home / "managed"))


def read(path: Path, source: Source = Source.USER) -> Layer:
    return read_layer(Location(source, str(path)), str(path.parent))


def outcome(path: Path) -> str:
    layer = read(path)
    assert layer.file == str(path)
    if not layer.problems:
        return "fine"
    (problem,) = layer.problems
    assert problem.fatal and problem.origin.file == str(path) and not layer.values
    assert str(path) in problem.as_error().message
    return problem.slug


def test_an_absent_file_is_an_empty_layer_with_its_path(tmp_path: Path) -> None:
    """An absent file is an empty layer with its path."""
    assert outcome(tmp_path / "s.json") == "fine"
    assert outcome(tmp_path / "no" / "s.json") == "fine"
    (tmp_path / "file").write_text("")
    assert outcome(tmp_path / "file" / "s.json") == "fine"


def test_odd_files(tmp_path: Path) -> None:
    """Odd files."""
    path = tmp_path / "s.json"
    path.write_text("")
    assert outcome(path) == "settings_empty"
    path.write_bytes(b"{\xff}")
    assert outcome(path) == "settings_not_utf8"
    path.write_bytes(b"{}\0")
    assert outcome(path) == "settings_nul"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert outcome(path) == "fine"
    path.unlink()
    path.mkdir()
    assert outcome(path) == "settings_not_a_file"
    path.rmdir()
    os.mkfifo(path)
    assert outcome(path) == "settings_not_a_file"  # and does not wait for a writer
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert outcome(path) == "settings_unreadable"
    path.unlink()
    path.symlink_to("/dev/null")
    assert outcome(path) == "settings_not_a_file"
    path.unlink()
    path.symlink_to("nowhere")
    assert outcome(path) == "settings_dangling_link"
    path.unlink()
    path.symlink_to(path.name)
    assert outcome(path) == "settings_unreadable"


def test_a_file_of_100_mb_is_not_read(tmp_path: Path) -> None:
    """A file of 100 MB is not read."""
    path = tmp_path / "s.json"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    assert outcome(path) == "settings_too_large"
    path.write_bytes(b"{}" + b" " * (MAX_BYTES - 2))
    assert outcome(path) == "fine"
    in_project = Location(Source.PROJECT, str(path), in_project=True)
    assert [one.slug for one in read_layer(in_project, "/").problems] == ["settings_too_large"]
    path.write_bytes(b"{}" + b" " * (MAX_PROJECT_BYTES - 2))
    assert not read_layer(in_project, "/").problems


def test_commands_can_write_only_so_many_rules(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    in_project = Location(Source.PROJECT, str(path), in_project=True)
    named = Location(Source.CLI, str(path))
    for more in (0, 1):  # besides three brackets and two keys
        rules = [f"Read(f{number})" for number in range(MAX_PROJECT_VALUES - 5 + more)]
        path.write_text(json.dumps({"permissions": {"deny": rules}}))
        found = [read_layer(in_project, "/").problems, read_layer(named, "/", None, MAX_PROJECT_VALUES).problems]
        assert [[one.slug for one in problems] for problems in found] == [["settings_too_large"] * more] * 2
        assert not read_layer(named, "/").problems  # not of a call


def test_an_unreadable_file(identity: Identity) -> None:
    """An unreadable file."""
    path = identity.home / "s.json"
    path.write_text("{}")
    path.chmod(0)
    code = """
import sys
from sandboxd.settings.origins import Source
from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.trust import TrustedDirectory, TrustStore, remembered
from sandboxd.settings.files.reading import read_layer
layer = read_layer(Location(Source.USER, sys.argv[1]), "/")
print([problem.slug for problem in layer.problems], layer.broken)
"""
    seen = identity.run(identity.python("-c", code, str(path)), check=True).stdout.strip()
    assert seen == ("[] False" if identity.uid == 0 else "['settings_unreadable'] True")


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text('{"sandbox": {"enabled": true}}')
    (tmp_path / "s.json").symlink_to("real.json")
    assert "sandbox.enabled" in read(tmp_path / "s.json").values


def test_sources_and_files_in_one_go(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for path, text in {
        home / ".claude/settings.json": '{"sandbox": {"enabled": true, "excludedCommands": ["user"]}}',
        home / ".claude/settings.local.json": '{"sandbox": {"excludedCommands": ["local"]}}',
        home / "managed/etc/sandboxd/managed-settings.json": '{"sandbox": {"excludedCommands": ["managed"]}}',
        home / "managed/etc/sandboxd/managed-settings.d/20.json": '{"sandbox": {"excludedCommands": ["twenty"]}}',
        home / "managed/etc/sandboxd/managed-settings.d/10.json": '{"sandbox": {"excludedCommands": ["ten"]}}',
        home / "managed/etc/sandboxd/managed-settings.d/.10.json.swp": "{",
        home / "managed/etc/sandboxd/managed-settings.d/.hidden.json": "{",
        home / "managed/etc/sandboxd/managed-settings.d/10.json~": "{",
        home / "managed/etc/claude-code/managed-settings.json": '{"sandbox": {"excludedCommands": ["other"]}}',
        home / "flag.json": '{"sandbox": {"excludedCommands": ["flag"]}}',
        project / ".claude/settings.json": '{"sandbox": {"excludedCommands": ["project"]}}',
        project / ".claude/settings.local.json": '{"sandbox": {"excludedCommands": ["project-local"]}}',
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    cli = layer_from_values({"sandbox": {"excludedCommands": ["cli"]}}, Source.CLI)
    locations = locate(home, project, SANDBOXD_FLAG_SETTINGS=str(home / "flag.json"))
    settings = merge(read_layers(locations, (cli,)))
    assert settings.fatal() is None
    assert settings.effective()["sandbox.excludedCommands"] == [
        "other", "ten", "twenty", "managed", "cli", "flag", "local", "user"
    ]  # fmt: skip
    assert sorted(found.value for found in settings.ignored) == ["project", "project-local"]
    assert set(locations.paths) <= set(settings.files)
    assert str(home / "managed/etc/sandboxd/managed-settings.d/10.json") in settings.files


def test_absent_files_are_named_for_protection(home: Path, tmp_path: Path) -> None:
    locations = locate(home, tmp_path / "project")
    assert set(merge(read_layers(locations)).files) == set(locations.paths)


def test_one_broken_file_is_enough(home: Path) -> None:
    (home / ".claude/settings.json").write_text('{"sandbox": {"enabled": true}}')
    (home / ".claude/settings.local.json").write_text("{")
    fatal = merge(read_layers(locate(home))).fatal()
    assert fatal is not None and fatal.origin.file == str(home / ".claude/settings.local.json")


def test_an_unlistable_drop_in_directory_is_a_broken_layer(home: Path) -> None:
    path = home / "managed/etc/sandboxd/managed-settings.d"
    path.parent.mkdir(parents=True)
    path.write_text("a file where a directory should be")
    fatal = merge(read_layers(locate(home))).fatal()
    assert fatal is not None and fatal.origin.source is Source.MANAGED
    assert drop_ins(Location(Source.MANAGED, str(path), directory=True)) == ()


def test_a_file_under_two_names_counts_once(home: Path, tmp_path: Path) -> None:
    """A project directory that links to the user's own settings does not turn them into a project's."""
    (home / ".claude/settings.json").write_text('{"sandbox": {"excludedCommands": ["a"]}}')
    project = tmp_path / "project"
    project.mkdir()
    (project / ".claude").symlink_to(home / ".claude")
    settings = merge(read_layers(locate(home, project)))
    assert settings.effective()["sandbox.excludedCommands"] == ["a"]
    assert not settings.ignored


def test_project_files_only_tighten_until_they_are_trusted(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".claude").mkdir(parents=True)
    text = '{"sandbox": {"enabled": true, "excludedCommands": ["a"]}}'
    store = TrustStore(str(tmp_path / "state"))
    for name in ("settings.local.json", "settings.json"):
        (project / ".claude" / name).write_text(text)
        locations = locate(home, project)
        settings = merge(read_layers(locations, trust=store))
        assert settings.effective()["sandbox.excludedCommands"] == []
        assert settings.scalar("sandbox.enabled").value is True
        assert settings.scalar("sandbox.enabled").origin.source is Source.PROJECT
        store.save(TrustedDirectory(os.path.realpath(project), {f".claude/{name}": remembered(text.encode())}))
        assert merge(read_layers(locations, trust=store)).effective()["sandbox.excludedCommands"] == ["a"]
        assert merge(read_layers(locations)).effective()["sandbox.excludedCommands"] == [], "without records"
        (project / ".claude" / name).write_text(text + " ")
        changed = merge(read_layers(locations, trust=store))
        assert changed.effective()["sandbox.excludedCommands"] == []
        assert [problem.slug for problem in changed.problems] == ["trust_changed"]
        managed = home / "managed/etc/sandboxd/managed-settings.json"
        managed.parent.mkdir(parents=True, exist_ok=True)
        (project / ".claude" / name).write_text(text)
        managed.write_text('{"sandbox": {"allowProjectTrust": false}}')
        assert merge(read_layers(locations, trust=store)).effective()["sandbox.excludedCommands"] == []
        managed.unlink()
        (project / ".claude" / name).unlink()


def test_trust_holds_for_one_name_and_one_directory(home: Path, tmp_path: Path) -> None:
    text = '{"sandbox": {"excludedCommands": ["a"]}}'
    store = TrustStore(str(tmp_path / "state"))
    first, second = tmp_path / "first", tmp_path / "second"
    for project in (first, second):
        (project / ".claude").mkdir(parents=True)
        (project / ".claude/settings.json").write_text(text)
    record = {".claude/settings.local.json": remembered(text.encode())}
    store.save(TrustedDirectory(os.path.realpath(first), record))
    for project in (first, second):
        settings = merge(read_layers(locate(home, project), trust=store))
        assert settings.effective()["sandbox.excludedCommands"] == []
    store.save(TrustedDirectory(os.path.realpath(first), {".claude/settings.json": remembered(text.encode())}))
    link = tmp_path / "link"
    link.symlink_to(first)
    assert merge(read_layers(locate(home, link), trust=store)).effective()["sandbox.excludedCommands"] == ["a"]


def test_a_file_that_others_can_write_may_only_tighten(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.write_text('{"sandbox": {"enabled": true, "excludedCommands": ["a"]}}')
    path.chmod(0o666)
    settings = merge(read_layers(locate(home)))
    assert settings.effective()["sandbox.excludedCommands"] == []
    assert settings.scalar("sandbox.enabled").value is True
    assert [problem.slug for problem in settings.problems] == ["settings_not_yours"]
    assert not settings.problems[0].fatal


def test_a_file_of_another_user_may_only_tighten(home: Path) -> None:
    if os.geteuid() != 0:
        return  # only root can give files away; the other tests cover the rest
    path = home / ".claude/settings.json"
    path.write_text('{"sandbox": {"excludedCommands": ["a"]}}')
    os.chown(path, 65534, -1)
    assert merge(read_layers(locate(home))).effective()["sandbox.excludedCommands"] == []
    os.chown(home, 65534, -1)  # root over a mounted home directory: its owner is the user
    assert merge(read_layers(locate(home))).effective()["sandbox.excludedCommands"] == ["a"]


def test_what_the_environment_brought_in_is_named(home: Path) -> None:
    """What the environment brought in is named."""
    (home / ".claude/settings.json").write_text('{"sandbox": {"enabled": false}}')
    (home / "flag.json").write_text('{"sandbox": {"enabled": true}}')
    settings = merge(read_layers(locate(home, SANDBOXD_FLAG_SETTINGS=str(home / "flag.json"))))
    found = settings.scalar("sandbox.enabled")
    assert found.value is True
    assert (found.origin.source, found.origin.file) == (Source.FLAG, str(home / "flag.json"))
