"""Checks of settings files without a daemon, which a broken file may stop."""

from __future__ import annotations

import os
import posixpath
import pwd
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandboxd.daemon.settings.settings_places import SettingsPlaces
from sandboxd.policy.build import check_settings, evaluate
from sandboxd.policy.commands.exclusion import head_of
from sandboxd.policy.paths.opening_checks import why_writable
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.reading import read_layer, read_layers
from sandboxd.settings.files.trust import OpenedPlaces, opened_file
from sandboxd.settings.layer import Layer
from sandboxd.settings.merge import Settings, merge
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.presets import PRESETS
from sandboxd.settings.problems import Problem, error
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class Linted:
    """Checked files, and their problems in order of file and line."""

    files: tuple[str, ...]
    problems: tuple[Problem, ...]


def places_here(environment: Mapping[str, str], platform: str) -> SettingsPlaces:
    """Return the settings places of the user of this process, for this environment."""
    return SettingsPlaces(environment, environment.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir, platform)


def lint_files(
    places: SettingsPlaces, directory: str | None, files: Sequence[str] | None = None, source: str | None = None
) -> Linted:
    """Check `files` (absolute paths) one by one, as `source` or as the path implies.

    Without `files`, all that apply in `directory` are checked together. Raises SettingsError for an invalid
    environment."""
    scope = places.scope(directory)
    if files is None:
        layers = read_layers(places.locations(directory), trust=places.trust)
        present = tuple(layer.file for layer in layers if layer.file is not None and os.path.lexists(layer.file))
        settings = merge(layers)
        opened = OpenedPlaces(opened_file(places.home)).read()
        return Linted(present, (*check_settings(settings, scope), *_planted_programs(settings, scope, opened)))
    known = {location.path: location for location in places.locations(directory).files}
    problems: list[Problem] = []
    for file in files:
        location = known.get(file) or Location(guess_source(file), file)
        problems += _lint(location if source is None else replace(location, source=Source(source)), places.home, scope)
    return Linted(tuple(files), tuple(problems))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file, for editors."""
    from sandboxd.settings.schema import json_schema

    return json_schema()


def presets() -> dict[str, bool]:
    """Return the names of presets, and whether each opens something."""
    return {name: preset.opens for name, preset in PRESETS.items()}


def guess_source(path: str) -> Source:
    """Return the source that name and directory of a settings file imply."""
    directory, name = posixpath.split(path)
    if name == "managed-settings.json" or posixpath.basename(directory) == "managed-settings.d":
        return Source.MANAGED
    return Source.LOCAL if name == "settings.local.json" else Source.USER


def _planted_programs(settings: Settings, scope: PathScope, opened: Collection[str]) -> Iterator[Problem]:
    """Yield exclusions of programs that commands can write, or could (`opened`)."""
    policy, _ = evaluate(settings, scope)
    for rule in policy.commands.excluded:
        head = head_of(rule.pattern)
        named = "/" in head
        path = posixpath.dirname(head.partition("*")[0]) if named and "*" in head else head
        found = path if named else shutil.which(head, path=scope.environment.get("PATH", "")) if head else None
        if found is None or (not named and "*" in head):
            continue
        found = os.path.abspath(scope.home + found[1:] if found.startswith("~/") else found)
        ways = (found, os.path.realpath(found))
        why = "" if named else next(filter(None, (why_writable(way, policy.files, scope) for way in ways)), "")
        place = next((place for way in ways for place in _above(way) if place in opened), None)
        if not why and place is not None:
            why = f"commands could write {place} before"
        if why:
            until = "" if named else f" as long as PATH finds {found}"
            message = f"{rule.pattern!r} is not excluded{until}: {why}"
            hint = "exclude a program that only you can write"
            hint += "" if named else ", or take the directory out of PATH"
            yield error("exclusion_writable", message, rule.origin, hint=hint, fatal=False)


def _above(path: str) -> Iterator[str]:
    while path != "/":
        yield path
        path = posixpath.dirname(path)
    yield path


def _lint(location: Location, home: str, scope: PathScope) -> Iterable[Problem]:
    if not os.path.lexists(location.path):
        at = Origin(location.source, "", location.path)
        return [error("settings_missing", "there is no such file", at, hint="check the path")]
    # A file may be checked before it is installed, under another owner: only its content counts.
    layer = read_layer(location, home)
    content = Layer(layer.source, layer.file, layer.values, _about_content(layer))
    if layer.source is Source.PROJECT:
        content = replace(content, may_widen=False, distrust=layer.distrust)
    return check_settings(merge([content]), scope)


def _about_content(layer: Layer) -> tuple[Problem, ...]:
    return tuple(problem for problem in layer.problems if problem.slug != "settings_not_yours")
