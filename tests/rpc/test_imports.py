"""Imported settings never allow what their source does not: made-up settings against a model of each source."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from sandboxd.settings.foreign.converters import from_codex, from_fence, from_srt
from sandboxd.settings.foreign.imported import SourcePlace
from support.daemon import Surroundings, running_daemon
from support.rpc import RawClient

ROUNDS = 5
"""Made-up settings of each program."""
HOSTS = ("a.test", "x.a.test", "y.x.a.test", "b.test", "a.test.b.test")
PATTERNS = ("a.test", "*.a.test", "b.test", "x.a.test", "a.test:443")
OWN_DENIES = ("closed.env", "sub/closed.env", "other/f", "f", "deep/in/f")


class Places:
    """Paths of a project and its home: as a rule spells them, and as they are."""

    def __init__(self, home: str, project: str) -> None:
        self.home, self.project = home, project
        self.texts = [".", "sub", "./deep", "~/out", "~/out/in", "~", f"{home}/list", "/srv", "other"]
        inside = [f"{project}/{name}" for name in (*OWN_DENIES, "sub/f", "sub/deep/f")]
        self.probes = [*inside, f"{home}/out/f", f"{home}/out/in/f", f"{home}/list/f", f"{home}/f", "/srv/f", "/opt/f"]

    def real(self, text: str) -> str:
        if text.startswith("/"):
            return text
        if text.startswith("~"):
            return self.home + text[1:]
        return self.project if text == "." else f"{self.project}/{text.removeprefix('./')}"

    def depth(self, text: str, path: str) -> int:
        """How specific a rule about a path is; -1 where it is about another one. Patterns hold in the project."""
        if "*" in text:
            matched = path.startswith(f"{self.project}/") and fnmatchcase(
                path.rpartition("/")[2], text.rpartition("/")[2]
            )
            return len(path) if matched else -1
        real = self.real(text)
        return len(real) if path == real or path.startswith(f"{real}/") else -1


def some(generator: random.Random, pool: Any, most: int) -> list[Any]:
    return generator.sample(list(pool), generator.randint(0, most))


def host_allowed(allowed: list[str], denied: list[str], host: str) -> bool:
    def matches(pattern: str) -> bool:
        name, _, port = pattern.partition(":")
        if port not in ("", "443"):
            return False
        return host.endswith(name[1:]) and host != name[2:] if name.startswith("*.") else host == name

    return any(map(matches, allowed)) and not any(map(matches, denied))


Allowed = Callable[[str, str], bool]
"""Whether the source allows `read`, `write` or `host` of a target."""


def srt(generator: random.Random, places: Places) -> tuple[Any, Allowed]:
    files = {
        "allowWrite": some(generator, places.texts, 4),
        "denyWrite": some(generator, [*places.texts[1:], "**/*.env"], 2),
        "denyRead": some(generator, [*places.texts, "**/*.env"], 2),
        "allowRead": some(generator, places.texts, 2),
    }
    network = {"allowedDomains": some(generator, PATTERNS, 3), "deniedDomains": some(generator, PATTERNS, 1)}

    def allowed(act: str, target: str) -> bool:
        if act == "host":
            return host_allowed(network["allowedDomains"], network["deniedDomains"], target)
        best = {name: max((places.depth(text, target) for text in texts), default=-1) for name, texts in files.items()}
        readable = best["denyRead"] < 0 or best["allowRead"] >= best["denyRead"]
        return readable if act == "read" else best["allowWrite"] >= 0 and best["denyWrite"] < 0

    return from_srt({"network": network, "filesystem": files}, SourcePlace(places.home, places.project)), allowed


def fence(generator: random.Random, places: Places) -> tuple[Any, Allowed]:
    files: dict[str, Any] = {
        "allowWrite": some(generator, places.texts, 4),
        "denyWrite": some(generator, places.texts[1:], 2),
        "denyRead": some(generator, [*places.texts[1:], "**/*.env"], 1),
        "allowRead": some(generator, places.texts, 2),
        "defaultDenyRead": generator.random() < 0.5,
    }
    network = {"allowedDomains": some(generator, PATTERNS, 3), "deniedDomains": some(generator, PATTERNS, 1)}

    def allowed(act: str, target: str) -> bool:
        if act == "host":
            return host_allowed(network["allowedDomains"], network["deniedDomains"], target)

        def named(*names: str) -> bool:
            return any(places.depth(text, target) >= 0 for name in names for text in files[name])

        if act == "write":
            return named("allowWrite") and not named("denyWrite")
        return not named("denyRead") and (not files["defaultDenyRead"] or named("allowRead", "allowWrite"))

    return from_fence({"network": network, "filesystem": files}, SourcePlace(places.home, places.project)), allowed


def codex(generator: random.Random, places: Places) -> tuple[Any, Allowed]:
    inside = [text for text in places.texts if not text.startswith(("/", "~"))]
    outside = [text for text in places.texts if text.startswith(("/", "~"))]
    accesses = ("read", "write", "deny")
    roots = {text.removeprefix("./"): generator.choice(accesses) for text in some(generator, [*inside, "**/*.env"], 4)}
    others = {text: generator.choice(accesses) for text in some(generator, outside, 3)}
    if generator.random() < 0.5:
        others[":root"] = "read"
    domains = {pattern: generator.choice(("allow", "deny")) for pattern in some(generator, PATTERNS[:4], 3)}
    profile: dict[str, Any] = {"filesystem": {":minimal": "read", **others, ":workspace_roots": roots}}
    profile["network"] = {"enabled": True, "mode": "full", "domains": domains}

    def allowed(act: str, target: str) -> bool:
        if act == "host":
            named = {name: [one for one, access in domains.items() if access == name] for name in ("allow", "deny")}
            return host_allowed(named["allow"], named["deny"], target)
        rules = [
            (places.depth(text, target), access) for text, access in [*roots.items(), *others.items()] if text[0] != ":"
        ]
        rules.append((0 if ":root" in others else -1, "read"))
        order = ("read", "write", "deny")
        depth, access = max(rules, key=lambda rule: (rule[0], order.index(rule[1])))
        return depth >= 0 and (access == "write" or (access == "read" and act == "read"))

    return from_codex(
        {"default_permissions": "p", "permissions": {"p": profile}}, SourcePlace(places.home, places.project)
    ), allowed


def made_up(places: Places) -> Iterator[tuple[str, Any, Allowed]]:
    generator = random.Random(22)
    for name, make in (("srt", srt), ("fence", fence), ("codex", codex)):
        for number in range(ROUNDS):
            done, allowed = make(generator, places)
            yield f"{name} {number}", done, allowed


async def test_nothing_is_allowed_that_the_source_denies() -> None:
    async with running_daemon() as running, running.client() as client:  # a fake back end would allow everything
        await compare(running.around, client)


async def compare(around: Surroundings, client: RawClient) -> None:
    home, project = str(around.home), str(around.project)
    places = Places(home, project)
    for path in places.probes:
        if path.startswith(home):
            file = around.base / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    kept = 0
    for name, done, allowed in made_up(places):
        assert not done.refused, (name, done.refused)
        opened = await client.result("session.open", {"cwd": project, "settings": done.settings})
        targets = [(act, path) for act in ("read", "write") for path in places.probes] + [
            ("host", host) for host in HOSTS
        ]
        for act, target in targets:
            kind = "host" if act == "host" else "path"
            subject = {"kind": kind, "target": f"{target}:443" if act == "host" else target, "write": act == "write"}
            answer = await client.call("policy.explain", {**subject, "session_id": opened["session_id"]})
            found = answer.get("result") or {"behavior": answer["error"]["data"]["slug"]}
            wider = found["behavior"] == "allow" and not allowed(act, target)
            assert not wider, f"{name} {act} {target} {found} {done.settings}"
            kept += found["behavior"] == "allow" and allowed(act, target)
        await client.result("session.close", {"session_id": opened["session_id"]})
    assert kept > 10 * ROUNDS  # and not by allowing nothing
