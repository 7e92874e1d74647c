"""The result of an import, and the pieces of which converters make it.

The result never allows what the source does not. An entry that opens and cannot be kept is left out. One that closes
and cannot be kept refuses the import."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from sandboxd_client.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Left:
    """An entry of the source that was not kept as it is, and why."""

    entry: str
    why: str


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The home and the project that paths of the source mean, to compare them."""

    home: str
    project: str

    def real(self, path: str) -> str:
        """Return an absolute path."""
        path = path.removesuffix("/**") or "/"
        path = f"{self.home}{path[1:]}" if path.startswith("~") else path
        return posixpath.normpath(posixpath.join(self.project, path))

    def is_in(self, path: str, above: str) -> bool:
        """Return whether a path is another one, or lies below it."""
        inner, outer = self.real(path), self.real(above)
        return inner == outer or inner.startswith(f"{outer.rstrip('/')}/")

    def is_denied(self, path: str, rule: str) -> bool:
        """Return whether a rule to close, which may be a pattern, is about a path or a directory above it."""
        parts, pattern = self.real(path).split("/"), self.real(rule).rstrip("/").split("/")
        return any(_matches(parts[:end], pattern) for end in range(1, len(parts) + 1))


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


@dataclass(slots=True)
class Imported:
    """Settings in the making; `refused` are restrictions that would be lost."""

    place: SourcePlace
    settings: dict[str, Any] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    refused: list[Left] = field(default_factory=list)

    def put(self, key: str, value: Any) -> None:
        *sections, name = key.split(".")
        place = self.settings
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value

    def add(self, key: str, *entries: Any) -> None:
        """Add entries to a list, each once."""
        *sections, name = key.split(".")
        place = self.settings
        for section in sections:
            place = place.setdefault(section, {})
        known = place.setdefault(name, [])
        known += [entry for entry in dict.fromkeys(entries) if entry not in known]

    def leave(self, entry: str, why: str) -> None:
        self.left.append(Left(entry, why))

    def refuse(self, entry: str, why: str) -> None:
        self.refused.append(Left(entry, why))


Act = Callable[[Imported, str, Any], None]
"""Conversion of one key: gets the result, the name of the entry, and its value."""


def convert(tree: Mapping[str, Any], table: Mapping[str, Act], result: Imported) -> None:
    """Apply the row of each key; sections are those that begin another key. An unknown key may restrict."""
    _convert(tree, "", table, result)


def _convert(tree: Mapping[str, Any], prefix: str, table: Mapping[str, Act], result: Imported) -> None:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        act = table.get(key)
        if act is not None:
            act(result, key, value)
        elif isinstance(value, Mapping) and any(one.startswith(f"{key}.") for one in table):
            _convert(value, f"{key}.", table, result)
        elif value not in (None, False, [], {}, ""):
            result.refuse(key, "it is unknown, and may restrict")


def nothing(result: Imported, entry: str, value: Any) -> None:
    """Drop an entry that neither opens nor closes anything here."""


def left(why: str) -> Act:
    """Return the act that leaves out an entry that opens."""

    def act(result: Imported, entry: str, value: Any) -> None:
        if value not in (None, False, [], {}, ""):
            result.leave(entry, why)

    return act


def refused(why: str) -> Act:
    """Return the act for an entry that closes and cannot be kept."""

    def act(result: Imported, entry: str, value: Any) -> None:
        if value not in (None, False, [], {}, ""):
            result.refuse(entry, why)

    return act


def copied(target: str) -> Act:
    """Return the act that keeps a scalar under another name."""

    def act(result: Imported, entry: str, value: Any) -> None:
        if value is not None:
            result.put(target, value)

    return act


def opening(target: str, why_not: Callable[[str], str]) -> Act:
    """Return the act for a list that opens; `why_not` says why an entry cannot be kept."""

    def act(result: Imported, entry: str, value: Any) -> None:
        for one in texts(result, entry, value):
            why = why_not(one)
            if why:
                result.leave(f"{entry}: {one}", why)
            else:
                result.add(target, one)

    return act


def closing(target: str, why_not: Callable[[str], str], form: Callable[[str], str] = str) -> Act:
    """Return the act for a list that closes."""

    def act(result: Imported, entry: str, value: Any) -> None:
        for one in texts(result, entry, value):
            why = why_not(one)
            if why:
                result.refuse(f"{entry}: {one}", why)
            else:
                result.add(target, form(one))

    return act


def texts(result: Imported, entry: str, value: Any) -> list[str]:
    """Return a list of texts; anything else refuses the import."""
    if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
        return value
    if value is not None:
        result.refuse(entry, "it is no list of texts")
    return []


_HOST = re.compile(r"(\*\.|\.)?[\w-]+(\.[\w-]+)*(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?|\*(:\d{1,5})?")


def why_no_host(pattern: str) -> str:
    """Return why a host pattern has no form here, or ""."""
    return "" if _HOST.fullmatch(pattern) else "it is no host pattern of sandboxd"


def why_not_opened(path: str) -> str:
    """Return why a path cannot be opened, or "".

    Programs differ in their patterns and variables, and `..` depends on links."""
    if path.rstrip("/*") == "":
        return "it opens the whole system"
    if re.search(r"[*?\[\]{}$\\\0]", path.removesuffix("/**")):
        return "it is a pattern, and programs differ in them: name the directory"
    if re.match(r"~[^/]", path) or ".." in path.split("/"):
        return "it is another user's home, or leads upwards"
    return ""


def why_not_closed(path: str) -> str:
    """Return why a path or pattern to close has no form here, or ""."""
    if re.search(r"[{}$\\\0]", path) or re.match(r"~[^/]", path) or ".." in path.split("/"):
        return "this form of a path does not exist here"
    if any("**" in part and part != "**" for part in path.split("/")):
        return "** is a whole component of a path here"
    return ""


def close_project(result: Imported, entry: str) -> None:
    """Close the project, which commands may write here by default, unless the source opened it.

    A deny beats every allow, so what lies inside cannot stay open."""
    place = result.place
    files = result.settings["sandbox"].setdefault("filesystem", {})
    writable = files.get("allowWrite", [])
    if any(place.is_in(".", path) for path in writable):
        files["allowWrite"] = [path for path in writable if path != "."]
        return
    inside = [path for path in writable if place.is_in(path, ".")]
    for path in inside:
        result.leave(f"{entry}: {path}", "the project is read-only there, and a deny beats every allow here")
    files["allowWrite"] = [path for path in writable if path not in inside]
    result.add("sandbox.filesystem.denyWrite", ".")


def close_denied(result: Imported, entry: str) -> None:
    """Leave out what is writable inside a place that may not be read, and close a project there.

    Here what is writable can be read as well, and so can the directory of a command."""
    files = result.settings["sandbox"].setdefault("filesystem", {})
    place, denied, opened = result.place, files.get("denyRead", []), files.get("allowRead", [])

    def readable(path: str) -> bool:
        return all(
            any(place.is_in(path, one) and place.is_in(one, deny) and not place.is_in(deny, one) for one in opened)
            for deny in denied
            if place.is_denied(path, deny)
        )

    if not readable(".") and "." not in denied:
        result.leave(f"{entry}: .", "the project may not be read there")
        result.add("sandbox.filesystem.denyRead", ".")
    for path in list(files.get("allowWrite", [])):
        if not readable(path):
            result.leave(f"{entry}: {path}", "it may not be read there, and what is writable can be read here")
            files["allowWrite"].remove(path)


def begin(place: SourcePlace) -> Imported:
    """Return the result that every import of a whole sandbox starts with."""
    result = Imported(place)
    result.put("sandbox.enabled", True)
    result.put("sandbox.failIfUnavailable", True)
    result.put("sandbox.allowUnsandboxedCommands", False)
    result.put("sandbox.network.strictAllowlist", True)
    return result
