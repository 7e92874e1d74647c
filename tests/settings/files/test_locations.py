"""Which files count for whom."""

from __future__ import annotations

import pytest

from sandboxd.errors import SettingsError
from sandboxd.settings.files.locations import Location, find_locations
from sandboxd.settings.origins import Source


def listed(**more: object) -> list[tuple[str, str]]:
    arguments: dict[str, object] = {"environment": {}, "home": "/home/u", "project": "/p"} | more
    found = find_locations(**arguments)  # type: ignore[arg-type]
    return [(location.source.value, location.path) for location in found.files]


def test_the_files_of_a_linux_machine_highest_first() -> None:
    assert listed() == [
        ("managed", "/etc/sandboxd/managed-settings.json"),
        ("managed", "/etc/sandboxd/managed-settings.d"),
        ("managed", "/etc/claude-code/managed-settings.json"),
        ("local", "/home/u/.claude/settings.local.json"),
        ("user", "/home/u/.claude/settings.json"),
        ("local", "/p/.claude/settings.local.json"),
        ("project", "/p/.claude/settings.json"),
    ]


def test_the_files_of_a_mac() -> None:
    assert listed(platform="macos")[:3] == [
        ("managed", "/Library/Application Support/sandboxd/managed-settings.json"),
        ("managed", "/Library/Application Support/sandboxd/managed-settings.d"),
        ("managed", "/Library/Application Support/ClaudeCode/managed-settings.json"),
    ]


def test_what_the_environment_can_move() -> None:
    environment = {"SANDBOXD_CONFIG_HOME": "/c", "SANDBOXD_FLAG_SETTINGS": "/f.json"}
    assert listed(environment=environment)[3:] == [
        ("flag", "/f.json"),
        ("local", "/c/settings.local.json"),
        ("user", "/c/settings.json"),
        ("local", "/p/.claude/settings.local.json"),
        ("project", "/p/.claude/settings.json"),
    ]


def test_nothing_in_the_environment_moves_managed_settings() -> None:
    names = ("SANDBOXD_MANAGED_ROOT", "MANAGED_ROOT", "SANDBOXD_ETC", "XDG_CONFIG_DIRS", "SANDBOXD_MANAGED_SETTINGS")
    assert listed(environment=dict.fromkeys(names, "/evil"))[:3] == listed()[:3]
    assert listed(managed_root="/t")[0] == ("managed", "/t/etc/sandboxd/managed-settings.json")


def test_files_of_the_command_line_rank_below_managed_ones() -> None:
    assert listed(cli_files=("/x.json",))[3] == ("cli", "/x.json")


def test_without_a_project_there_are_no_project_files() -> None:
    assert [path for _, path in listed(project=None)][3:] == [
        "/home/u/.claude/settings.local.json",
        "/home/u/.claude/settings.json",
    ]


def test_in_the_home_directory_the_files_are_the_users_own() -> None:
    found = find_locations({}, "/home/u", "/home/u")
    assert found.files[3:] == (
        Location(Source.LOCAL, "/home/u/.claude/settings.local.json"),
        Location(Source.USER, "/home/u/.claude/settings.json"),
    )


def test_changes_go_to_the_users_local_file() -> None:
    assert find_locations({}, "/home/u", "/p").local_file == "/home/u/.claude/settings.local.json"
    assert find_locations({"SANDBOXD_CONFIG_HOME": "/c"}, "/home/u", "/p").local_file == "/c/settings.local.json"


def test_every_path_is_listed_for_protection() -> None:
    assert len(find_locations({}, "/home/u", "/p").paths) == 7


@pytest.mark.parametrize("name", ["SANDBOXD_CONFIG_HOME", "SANDBOXD_FLAG_SETTINGS"])
def test_a_relative_path_in_the_environment_is_refused(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        find_locations({name: "settings"}, "/home/u")
    assert name in caught.value.message
