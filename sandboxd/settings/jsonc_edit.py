"""Edits of one value of a settings text, which keep everything else. Pure.

Comments, order, indentation, line ends and the byte-order mark stay. Every result is parsed and compared with the
intended value before it is returned."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from sandboxd.errors import InternalError, SettingsError
from sandboxd.settings.jsonc import Document, JsonNode, is_trivia, parse_jsonc, tokens

KeyPath = tuple[str, ...]


def set_value(text: str, path: KeyPath, value: Any) -> str:
    """Set a key, creating the objects above it. Raises `SettingsError`."""
    edit = _Edit.of(text)
    if edit.find(path) is not None and _same(edit.value(path), value):
        return text
    return edit.with_value(path, value)


def add_entry(text: str, path: KeyPath, value: Any) -> str:
    """Append an entry to a list, creating the list, unless it is there."""
    edit = _Edit.of(text)
    existing = edit.find(path)
    if existing is None:
        return edit.with_value(path, [value])
    entries = _list_at(existing, path)
    if any(entry.value == value for entry in entries):
        return text
    wanted = copy.deepcopy(edit.tree())
    _at(wanted, path).append(value)
    return edit.finish(edit.inserted(existing, existing.items[-1] if existing.items else None, value, None), wanted)


def remove_entry(text: str, path: KeyPath, value: Any) -> str:
    """Remove every equal entry from a list."""
    while True:
        edit = _Edit.of(text)
        existing = edit.find(path)
        if existing is None:
            return text
        entries = _list_at(existing, path)
        index = next((index for index, entry in enumerate(entries) if entry.value == value), None)
        if index is None:
            return text
        wanted = copy.deepcopy(edit.tree())
        del _at(wanted, path)[index]
        spans = [(entry.start, entry.end) for entry in entries]
        text = edit.finish(edit.removed(existing, spans, index), wanted)


def remove_key(text: str, path: KeyPath) -> str:
    """Remove a key, so that it is unset."""
    edit = _Edit.of(text)
    parent = edit.find(path[:-1])
    if parent is None or parent.member(path[-1]) is None:
        return text
    index = next(index for index, member in enumerate(parent.members) if member.key.value == path[-1])
    wanted = copy.deepcopy(edit.tree())
    del _at(wanted, path[:-1])[path[-1]]
    spans = [(member.key.start, member.node.end) for member in parent.members]
    return edit.finish(edit.removed(parent, spans, index), wanted)


def _list_at(node: JsonNode, path: KeyPath) -> tuple[JsonNode, ...]:
    if not node.is_array:
        raise SettingsError(
            "settings_wrong_type", f"{'.'.join(path)} is not a list", hint="correct the file in an editor first"
        )
    return node.items


def _same(one: Any, other: Any) -> bool:
    """Compare two JSON values by type too: True is not 1, and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _at(tree: Any, path: KeyPath) -> Any:
    for step in path:
        tree = tree[step]
    return tree


class _Edit:
    """A parsed text with its unit of indentation and its line end."""

    def __init__(self, document: Document, original: str) -> None:
        self.document = document
        self.text = document.text
        self.mark = "\ufeff" if document.had_mark else ""
        self.newline = "\r\n" if "\r\n" in original else "\n"
        indented = re.search(r"^([ \t]+)\S", self.text, re.MULTILINE)
        self.unit = indented[1] if indented else "  "

    @classmethod
    def of(cls, text: str) -> _Edit:
        text = text or "{}\n"
        return cls(parse_jsonc(text), text)

    def tree(self) -> Any:
        return self.document.root.value

    def find(self, path: KeyPath) -> JsonNode | None:
        return self.document.find(*path)

    def value(self, path: KeyPath) -> Any:
        node = self.find(path)
        return node.value if node else None

    def finish(self, text: str, wanted: Any) -> str:
        if parse_jsonc(text).root.value != wanted:
            raise InternalError("settings_edit_failed", "an edit of a settings file did not give the intended value")
        return self.mark + text

    def with_value(self, path: KeyPath, value: Any) -> str:
        wanted = copy.deepcopy(self.tree())
        inner = wanted
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                raise SettingsError(
                    "settings_not_an_object", f"{step} is not an object", hint="correct the file in an editor first"
                )
        inner[path[-1]] = value
        existing = self.find(path)
        if existing is not None:
            rendered = self.rendered(value, self.indent_at(existing.start))
            return self.finish(self.text[: existing.start] + rendered + self.text[existing.end :], wanted)
        depth = next(d for d in range(len(path) - 1, -1, -1) if self.find(path[:d]) is not None)
        container = self.find(path[:depth])
        assert container is not None
        for step in reversed(path[depth + 1 :]):
            value = {step: value}
        last = container.members[-1] if container.members else None
        place = JsonNode(last.key.start, last.node.end, None) if last else None
        return self.finish(self.inserted(container, place, value, path[depth]), wanted)

    def inserted(self, container: JsonNode, last: JsonNode | None, value: Any, key: str | None) -> str:
        """Return the text with one more entry at the end of an object or list."""
        outer = self.indent_at(container.start)
        closing = container.end - 1
        if last is None:
            inner = self.text[container.start + 1 : closing]
            entry = self.entry(value, key, outer + self.unit)
            if inner.strip():  # only comments: the entry goes after them
                body = inner.rstrip()
                return self.spliced(
                    container.start + 1, closing, f"{body}{self.newline}{outer}{self.unit}{entry}{self.newline}{outer}"
                )
            if key is None and self.newline not in entry:
                return self.spliced(container.start + 1, closing, entry)
            return self.spliced(
                container.start + 1, closing, f"{self.newline}{outer}{self.unit}{entry}{self.newline}{outer}"
            )
        indent = self.text[self.text.rfind("\n", 0, last.start) + 1 : last.start]
        comma, line_end = self.after(last.end, closing)
        if indent.strip():  # all in one line
            entry = self.entry(value, key, outer)
            if comma is not None:
                return self.spliced(comma + 1, comma + 1, f" {entry},")
            return self.spliced(last.end, last.end, f", {entry}")
        entry = self.entry(value, key, indent)
        added = f"{self.newline}{indent}{entry}{',' if comma is not None else ''}"
        text = self.text[:line_end] + added + self.text[line_end:]
        return text if comma is not None else text[: last.end] + "," + text[last.end :]

    def removed(self, container: JsonNode, spans: list[tuple[int, int]], index: int) -> str:
        """Return the text without one entry, its comma and the comment in its line."""
        start, end = spans[index]
        closing = container.end - 1
        comma, line_end = self.after(end, closing if index == len(spans) - 1 else spans[index + 1][0])
        line_start = self.text.rfind("\n", 0, start) + 1
        alone = (
            not self.text[line_start:start].strip() and self.text[line_end : line_end + 2].lstrip(" \t\r")[:1] == "\n"
        )
        last = index == len(spans) - 1
        if alone:
            cut_from, cut_to = line_start, self.text.index("\n", line_end) + 1
        else:
            cut_from, cut_to = start, (comma + 1 if comma is not None else end)
            while self.text[cut_to : cut_to + 1] in (" ", "\t") and not last:
                cut_to += 1
        text = self.text[:cut_from] + self.text[cut_to:]
        if last and index > 0 and comma is None:
            # The entry before becomes the last one, and this list ends without a comma.
            before, _ = self.after(spans[index - 1][1], start)
            if before is not None:
                between = self.text[before + 1 : cut_from] if alone else ""
                text = self.text[:before] + between + self.text[cut_to:]
        return text

    def after(self, offset: int, limit: int) -> tuple[int | None, int]:
        """Return the comma after an entry, and the end of its line with comments."""
        comma: int | None = None
        line_end = offset
        for token in tokens(self.text[offset:limit]):
            start, end = offset + token.start, offset + token.end
            piece = self.text[start:end]
            if not is_trivia(token):
                comma, line_end = start, end
            elif token.kind == "space" and "\n" in piece:
                if comma is not None or not self.comma_follows(end, limit):
                    break
            elif token.kind != "space":
                line_end = end
        return comma, line_end

    def comma_follows(self, offset: int, limit: int) -> bool:
        return any(not is_trivia(token) for token in tokens(self.text[offset:limit]))

    def spliced(self, start: int, end: int, piece: str) -> str:
        return self.text[:start] + piece + self.text[end:]

    def entry(self, value: Any, key: str | None, indent: str) -> str:
        rendered = self.rendered(value, indent)
        return rendered if key is None else f"{json.dumps(key, ensure_ascii=False)}: {rendered}"

    def rendered(self, value: Any, indent: str) -> str:
        """Format a value: objects over several lines, lists of scalars in one."""
        if isinstance(value, dict) and value:
            inner = indent + self.unit
            members = (self.entry(item, key, inner) for key, item in value.items())
            lines = f",{self.newline}".join(inner + member for member in members)
            return f"{{{self.newline}{lines}{self.newline}{indent}}}"
        return json.dumps(value, ensure_ascii=False)

    def indent_at(self, offset: int) -> str:
        line = self.text[self.text.rfind("\n", 0, offset) + 1 : offset]
        return line[: len(line) - len(line.lstrip(" \t"))]
