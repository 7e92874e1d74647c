"""The file part of a Policy: paths that settings open and close."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from sandboxd.paths import is_below
from sandboxd.policy.hosts.parent_proxies import without_password
from sandboxd.policy.model import FilePolicy, Missing, PathRule
from sandboxd.policy.paths.rule_paths import (
    PathScope,
    doubt,
    expand_permission_path,
    expand_rule_path,
    is_project_path,
    unanchored_pattern,
)
from sandboxd.policy.settings_reader import BadEntry, SettingsReader
from sandboxd.settings.layer import Placed
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.presets import PRESETS
from sandboxd.settings.problems import error
from sandboxd.settings.tools import Feeds, RuleList

_F = "sandbox.filesystem."
_HOMES_AND_VOLUMES = ("/home", "/root", "/Users", "/mnt", "/media", "/run/media", "/Volumes")
AMBIGUOUS = "path_ambiguous"
"""Slug of a rule that is easily misread: lint reports it, commands do not."""


class FileBuilder:
    """Builder of the file part; problems go to the reader."""

    def __init__(self, reader: SettingsReader) -> None:
        self._reader = reader

    def policy(self) -> FilePolicy:
        entries = self._reader.entries
        return FilePolicy(
            allow_write=(
                *self.hosts_tmp(),
                *self.opened(_F + "allowWrite", Feeds.ALLOW_WRITE),
                *self._reader.collect(entries("permissions.additionalDirectories"), self.directory, opens=True),
            ),
            deny_write=(
                *self.closed(entries(_F + "denyWrite")),
                *self.closed_by_rules(Feeds.DENY_WRITE),
                *self.closed(entries(_F + "denyEdit")),
            ),
            deny_read=(
                *self.closed(entries(_F + "denyRead")),
                *self.closed_by_rules(Feeds.DENY_READ),
                *self._reader.collect(tuple(self.preset_paths(Feeds.DENY_READ)), self.preset_rule, opens=False),
                *self.closed(Placed(one.value.path, one.origin) for one in entries("sandbox.credentials.files")),
                *self.closed(self.credential_files()),
                *self.files_with_passwords(),
                *self.outside_working_directories(),
            ),
            allow_read=self.opened(_F + "allowRead", None),
            allow_git_config=self._reader.value(_F + "allowGitConfig"),
            managed_reads_only=self._reader.value(_F + "allowManagedReadPathsOnly"),
            protected_search_depth=self._reader.value("sandbox.mandatoryDenySearchDepth"),
            tmp=self._reader.value(_F + "tmp"),
            home=self._reader.value(_F + "home"),
            owners=self._reader.value(_F + "owners"),
            tmp_size=self._reader.value("sandbox.limits.tmp"),
            settings_files=self._reader.settings.files,
        )

    def credential_files(self) -> Iterator[Placed]:
        """Close files with credentials. Where a mask shows a copy of one, it is mounted over the closed file."""
        for entry in self._reader.entries("sandbox.credentials.inject"):
            if entry.value.from_.startswith("file:"):
                yield Placed(entry.value.from_.removeprefix("file:").partition("#")[0], entry.origin)
        for entry in self._reader.entries("sandbox.credentials.mask"):
            if entry.value.file is not None:
                yield Placed(entry.value.file, entry.origin)

    def hosts_tmp(self) -> Iterator[PathRule]:
        """Open the host's `/tmp` where settings choose it."""
        if self._reader.value(_F + "tmp") == "host":
            yield PathRule("/tmp", self._reader.origin(_F + "tmp"), text=f"{_F}tmp")

    def opened(self, key: str, feeds: Feeds | None) -> tuple[PathRule, ...]:
        rules = () if feeds is None else tuple(self._reader.rules(RuleList.ALLOW, feeds))
        return (
            *self._reader.collect(self._reader.entries(key), self.path_rule, opens=True),
            *self._reader.collect(rules, self.allowed_path, opens=True),
            *self._reader.collect(tuple(self.preset_paths(feeds)), self.preset_rule, opens=True),
        )

    def closed_by_rules(self, feeds: Feeds) -> Iterator[PathRule]:
        """Deny rules, and ask rules: a question for each file is not possible."""
        for kind in (RuleList.DENY, RuleList.ASK):
            rules = tuple(self._reader.rules(kind, feeds))
            yield from chain.from_iterable(self._reader.collect(rules, self.denied_paths, opens=False))

    def outside_working_directories(self) -> Iterator[PathRule]:
        """Close homes and mounted volumes; working directories re-open their part."""
        key = "permissions.blockReadsOutsideWorkingDirectories"
        if self._reader.value(key):
            scope, origin = self._reader.scope, self._reader.origin(key)
            for path in dict.fromkeys((*_HOMES_AND_VOLUMES, scope.home)):
                if not is_below(path, scope.project):
                    yield PathRule(path, origin, text=key, missing=Missing.UNMEANT)

    def files_with_passwords(self) -> Iterator[PathRule]:
        """Close settings files that hold the password of a parent proxy."""
        for layer in self._reader.settings.layers:
            placed = layer.values.get("sandbox.network.parentProxy")
            if layer.file is None or not isinstance(placed, Placed) or not layer.may_widen:
                continue
            if without_password(str(placed.value)) != placed.value:
                message = f"{layer.file} holds a password of parentProxy, so no command may read this file"
                hint = "keep the password in HTTPS_PROXY of the daemon's environment"
                self._reader.warn("proxy_password_in_file", message, placed.origin, hint=hint)
                yield PathRule(layer.file, placed.origin, text=layer.file)

    def preset_paths(self, feeds: Feeds | None) -> Iterator[Placed]:
        for entry in self._reader.entries("sandbox.presets"):
            preset = PRESETS.get(entry.value)
            if preset is None:
                if feeds is Feeds.ALLOW_WRITE:  # one report is enough
                    known = ", ".join(sorted(PRESETS))
                    message = f"unknown preset {entry.value!r}"
                    self._reader.problems.append(
                        error("preset_unknown", message, entry.origin, hint=f"known presets: {known}")
                    )
                continue
            paths = {Feeds.ALLOW_WRITE: preset.allow_write, Feeds.DENY_READ: preset.deny_read}.get(
                feeds or Feeds.NOTHING, ()
            )
            yield from (Placed(path, entry.origin) for path in paths)

    # --- rules that open ---

    def path_rule(self, text: str, origin: Origin) -> PathRule:
        expanded = expand_rule_path(text, self._reader.scope_that_opens(text, origin))
        self.warn_of_doubt(text, origin)
        return PathRule(expanded.path, origin, expanded.glob, text)

    def preset_rule(self, text: str, origin: Origin) -> PathRule:
        missing = Missing.MAKE if text.endswith("/") else Missing.IGNORE
        return replace(self.path_rule(text, origin), missing=missing)

    def directory(self, text: str, origin: Origin) -> PathRule:
        rule = self.path_rule(text, origin)
        if rule.glob:
            raise BadEntry("path_glob_invalid", f"{text!r} is a pattern where a directory is meant")
        return rule

    def allowed_path(self, text: str, origin: Origin) -> PathRule:
        """Return the path of a permission rule that allows."""
        scope = self._reader.scope_that_opens(text, origin)
        (reading,) = expand_permission_path(text, scope, denies=False)
        self.warn_of_doubt(text, origin)
        self.warn_of_slash(text, reading.rule.path, origin)
        return PathRule(reading.rule.path, origin, reading.rule.glob, text)

    # --- rules that close ---

    def closed(self, entries: Iterable[Placed]) -> Iterator[PathRule]:
        yield from chain.from_iterable(self._reader.collect(tuple(entries), self.denied_path, opens=False))

    def denied_path(self, text: str, origin: Origin) -> tuple[PathRule, ...]:
        """Return the rules for a denied path; unanchored ones not from a project."""

        def read(scope: PathScope) -> PathRule:
            rule = expand_rule_path(text, scope)
            deep = unanchored_pattern(text, scope) if rule.glob else ""
            if deep:
                rule = expand_rule_path(deep, scope)
            return PathRule(
                rule.path, origin, rule.glob, text, unanchored="" if origin.source is Source.PROJECT else deep
            )

        self.warn_of_doubt(text, origin)
        return tuple(dict.fromkeys(map(read, self._reader.scopes_that_close(text))))

    def denied_paths(self, text: str, origin: Origin) -> tuple[PathRule, ...]:
        """Return the paths of a permission rule that denies."""
        named = (Source.USER, Source.LOCAL, Source.FLAG, Source.CLI)
        directory = posixpath.dirname(origin.file or "") if origin.source in named else ""
        if directory == posixpath.join(self._reader.scope.project, ".claude"):
            directory = ""
        readings = [
            reading
            for scope in self._reader.scopes_that_close(text)
            for reading in expand_permission_path(text, scope, denies=True, settings_directory=directory)
        ]
        self.warn_of_doubt(text, origin)
        self.warn_of_slash(text, readings[0].rule.path, origin)
        return tuple(
            PathRule(
                reading.rule.path,
                origin,
                reading.rule.glob,
                text,
                Missing.UNMEANT if reading.second else Missing.TELL,
                "" if origin.source is Source.PROJECT else reading.unanchored,
            )
            for reading in dict.fromkeys(readings)
        )

    def warn_of_doubt(self, text: str, origin: Origin) -> None:
        found = doubt(text)
        if found is not None:
            self._reader.warn("path_doubtful", found[0], origin, hint=found[1])

    def warn_of_slash(self, text: str, path: str, origin: Origin) -> None:
        if is_project_path(text):
            message = f"the path {text!r} of a permission rule is {path}, not an absolute path"
            hint = f"write /{text} for the absolute path, or .{text} to say that the project is meant"
            self._reader.warn(AMBIGUOUS, message, origin, hint=hint)
