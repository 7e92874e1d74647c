"""A reference model of the file policy: what may be read and written, worked out in the most naive way.

It shares no code with the planner. A tree is a dict from relative path to what is there; for each path the model looks
at every rule. `random_case` makes a tree and a policy from a seed, so that a failing case can be had again by its seed.
"""

from __future__ import annotations

import random
import re
from dataclasses import asdict, dataclass, field

DIRECTORY = "directory"
FILE = "file"
LINK = "link:"

NAMES = ("a", "b", "c", "d e", "ü", "f*")


@dataclass
class Case:
    """`tree`: relative path → DIRECTORY, FILE or LINK + target text. The four lists hold relative paths, or patterns
    when they start with `glob:`. `cwd` and `project` are relative directories."""

    seed: int
    tree: dict[str, str]
    allow_write: list[str] = field(default_factory=list)
    deny_write: list[str] = field(default_factory=list)
    deny_read: list[str] = field(default_factory=list)
    allow_read: list[str] = field(default_factory=list)
    cwd: str = ""
    project: str = ""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def covers(directory: str, path: str) -> bool:
    return directory in ("", path) or path.startswith(directory + "/")


@dataclass(frozen=True)
class End:
    """Where a rule leads by one of its names, and the links on the way."""

    rule: str
    name: str
    real: str
    hops: tuple[str, ...]


def follow(tree: dict[str, str], path: str, depth: int = 0, hops: list[str] | None = None) -> str | None:
    """Where a path leads, as a relative path; None for a loop or a way out of the tree. The links on the way are added
    to `hops`."""
    if depth > 40:
        return None
    at = ""
    parts = [part for part in path.split("/") if part]
    while parts:
        name = parts.pop(0)
        if name == ".":
            continue
        if name == "..":
            if not at:
                return None
            at = parent(at)
            continue
        here = f"{at}/{name}" if at else name
        kind = tree.get(here)
        if kind is not None and kind.startswith(LINK):
            target = kind.removeprefix(LINK)
            depth += 1
            if hops is not None:
                hops.append(here)
            if depth > 40:
                return None
            if target.startswith("/"):  # the root of the tree stands for /
                at = ""
            parts = [part for part in target.split("/") if part] + parts
            continue
        if kind == FILE and parts:
            return None
        at = here
    return at


def matches(tree: dict[str, str], pattern: str) -> dict[str, list[str]]:
    """Every path of the tree that a pattern names, links as themselves, each with the links on the way to it, the
    fewest there are. A part that names a link goes on where that leads; `**` goes through none."""
    found: dict[str, list[str]] = {}

    def walk(at: str, parts: list[str], hops: list[str]) -> None:
        if not parts:
            found[at] = min(hops, found.get(at, hops), key=lambda some: (len(some), some))
            return
        part, *rest = parts
        inside = [path for path in tree if parent(path) == at and path != at]
        if part == "**":
            walk(at, rest, hops)
            for path in inside:
                if tree[path] == DIRECTORY:
                    walk(path, parts, hops)
            return
        for path in inside:
            if _names(part, path.rpartition("/")[2]):
                more: list[str] = []
                real = follow(tree, path, hops=more) if rest else path
                if real is not None and (not rest or real == "" or tree.get(real) == DIRECTORY):
                    walk(real, rest, hops + more)

    walk("", pattern.split("/"), [])
    return found


def _names(part: str, name: str) -> bool:
    text = re.escape(part).replace(r"\[\*\]", "\0")
    text = text.replace(r"\*", ".*").replace(r"\?", ".").replace("\0", r"\*")
    return re.fullmatch(text, name, re.DOTALL) is not None


class Model:
    """What a case means."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.tree = case.tree
        self.project = follow(self.tree, case.project) or ""
        self.cwd = follow(self.tree, case.cwd) or ""
        self.works_in = {self.project, self.cwd} if covers(self.project, self.cwd) else {self.project}
        self.deny_write = {one.real for one in self._ends(case.deny_write, deny=True)}
        self.deny_read = {one.real for one in self._ends(case.deny_read, deny=True)}
        writes, reads = self._ends(case.allow_write), self._ends(case.allow_read)
        refused = self._refused(writes, reads)
        self.allow_write = {one.real for one in writes - refused}
        self.allow_read = {one.real for one in reads - refused}

    def _ends(self, rules: list[str], *, deny: bool = False) -> set[End]:
        """Where rules lead; only to what exists, unless they deny."""
        found: set[End] = set()
        for rule in rules:
            glob = rule.startswith("glob:")
            ways = matches(self.tree, rule[5:]) if glob else {rule: []}
            for path, way in ways.items():
                hops = list(way)
                real = follow(self.tree, path, hops=hops)
                if real is not None and ((deny and not glob) or real == "" or real in self.tree):
                    found.add(End(rule, path, real, tuple(hops)))
        return found

    def _refused(self, writes: set[End], reads: set[End]) -> set[End]:
        """The ends of rules that open which are reached through a link that a command could have made. What the links
        of others open counts only for those that are left when the plain ones have been judged."""
        plain = self.works_in | {one.real for one in writes if not one.hops}
        refused: set[End] = set()
        for others in (False, True):
            while True:
                rest = (writes | reads) - refused
                opened = plain | ({one.real for one in rest & writes} if others else set())
                more = {one for one in rest if any(covers(root, parent(hop)) for hop in one.hops for root in opened)}
                if not more:
                    break
                refused |= more
        return refused

    def readable(self, path: str) -> bool:
        deny = self._longest(self.deny_read, path)
        allow = self._longest(self.allow_read | self.allow_write | {self.project}, path)
        return deny < 0 or allow > deny

    def writable(self, path: str) -> bool:
        if not self.readable(path) or any(covers(rule, path) for rule in self.deny_write):
            return False
        deny = self._longest(self.deny_read, path)
        opened = self.allow_write | {self.project}
        if self.readable(self.cwd):
            opened = opened | self.works_in
        return self._longest(opened, path) > deny

    @property
    def refused(self) -> bool:
        """Nothing can be run: the working directory itself cannot be read."""
        return not self.readable(self.cwd)

    def absent_denied(self) -> list[str]:
        """Denied paths that do not exist."""
        return [path for path in self.deny_read | self.deny_write if path and path not in self.tree]

    def pinned(self, path: str) -> bool:
        """Moving this path away would take a guarded one along."""
        guarded = [one for one in (*self.tree, *self.absent_denied()) if not self.writable(one)]
        return any(covers(path, one) for one in guarded)

    @staticmethod
    def _longest(rules: set[str], path: str) -> int:
        lengths = [0 if rule == "" else rule.count("/") + 1 for rule in rules if covers(rule, path)]
        return max(lengths, default=-1)


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    tree: dict[str, str] = {}
    directories = [""]
    for _ in range(rng.randint(4, 18)):
        at = rng.choice(directories)
        name = rng.choice(NAMES)
        path = f"{at}/{name}" if at else name
        if path in tree or path.count("/") > 4:
            continue
        kind = rng.choices((DIRECTORY, FILE, LINK), (6, 4, 2))[0]
        if kind == LINK:
            tree[path] = LINK + _target(rng, tree, path)
        else:
            tree[path] = kind
            if kind == DIRECTORY:
                directories.append(path)
    case = Case(seed, tree)
    for rules in (case.allow_write, case.deny_write, case.deny_read, case.allow_read):
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            rules.append(_rule(rng, tree))
    case.project = rng.choice(directories)
    case.cwd = case.project if rng.random() < 0.6 else rng.choice(directories)
    return case


def _target(rng: random.Random, tree: dict[str, str], path: str) -> str:
    others = list(tree) or ["a"]
    target = rng.choice(others)
    style = rng.random()
    if style < 0.4:
        return "/" + target
    if style < 0.8:
        return "../" * path.count("/") + target
    # nothing leads out of the tree: what is outside is no part of the model
    return rng.choice(("nowhere", "/" + path, ".." if "/" in path else ".", "a/b/nowhere"))


def _rule(rng: random.Random, tree: dict[str, str]) -> str:
    style = rng.random()
    known = list(tree) or ["a"]
    if style < 0.68:
        return rng.choice(known)
    if style < 0.72:
        return ""
    if style < 0.82:
        base = rng.choice([path for path in known if tree.get(path) == DIRECTORY] or [""])
        return f"{base}/new" if base else "new/below"
    if style < 0.9:
        base = rng.choice([path for path in known if tree.get(path) == DIRECTORY] or [""])
        return "glob:" + (f"{base.replace('*', '[*]')}/" if base else "") + rng.choice(("*", "a*", "?"))
    return "glob:" + rng.choice(("**/a", "**/b/*", "*/b", "*/?/*", "a/**/c", "**/f[*]"))
