"""What a pattern names on a host that is written down, as the real one finds it: a part that names a symlink goes on
where that leads, `**` goes through none."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase

from sandboxd.plan.host_facts import PathKind, ResolvedPath, Symlink

Look = Callable[[str], ResolvedPath]


def walk_pattern(pattern: str, entries: Collection[str], look: Look) -> dict[str, tuple[Symlink, ...]]:
    """The paths, each with the links on the way to it: the fewest there are."""
    found: dict[str, tuple[Symlink, ...]] = {}
    for path, links in _walk("/", tuple(filter(None, pattern.split("/"))), (), entries, look):
        found[path] = min(links, found.get(path, links), key=lambda some: (len(some), [link.path for link in some]))
    return dict(sorted(found.items()))


def _walk(
    at: str, parts: tuple[str, ...], links: tuple[Symlink, ...], entries: Collection[str], look: Look
) -> Iterator[tuple[str, tuple[Symlink, ...]]]:
    if not parts:
        yield at, links
        return
    part, rest = parts[0], parts[1:]
    inside = [path for path in entries if path != "/" and posixpath.dirname(path) == at]
    if part == "**":
        yield from _walk(at, rest, links, entries, look)
        for path in inside:
            if look(path).kind is PathKind.DIRECTORY and not look(path).links:
                yield from _walk(path, parts, links, entries, look)
        return
    for path in inside:
        if fnmatchcase(posixpath.basename(path), part):
            led_to = look(path)
            if not rest:
                yield path, links
            elif led_to.kind is PathKind.DIRECTORY:
                yield from _walk(led_to.real, rest, (*links, *led_to.links), entries, look)
