"""Learning suggests the smallest settings, never secrets or protected paths."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.decision import Reason
from sandboxd.policy.display import neutralise
from sandboxd.policy.explain.suggestions import Lesson, TargetState, learn
from sandboxd.policy.paths.rule_paths import PathScope, expand_rule_path
from sandboxd.policy.paths.secret_places import SecretPlaces
from sandboxd.policy.violation import Violation, ViolationKind, ViolationSource

HOME = "/home/me"
WRITE, READ, SOCKET, NETWORK = (
    ViolationKind.WRITE, ViolationKind.READ, ViolationKind.UNIX_SOCKET, ViolationKind.NETWORK,
)  # fmt: skip


def blocked(kind: ViolationKind, target: str, reason: Reason, rule: str | None = None, **more: Any) -> Violation:
    return Violation(1, 0.0, "s", "c", kind, "op", target, reason.value, ViolationSource.SECCOMP, rule=rule, **more)


def write(target: str, reason: Reason = Reason.PATH_NOT_WRITABLE, rule: str | None = None) -> Violation:
    return blocked(WRITE, target, reason, rule)


def host(target: str, reason: Reason = Reason.HOST_NOT_LISTED) -> Violation:
    return blocked(NETWORK, target, reason)


def lesson(
    *violations: Violation, absent: dict[str, str] | None = None, closed: dict[str, str] | None = None
) -> Lesson:
    """Learn from violations; `absent` maps missing paths to the nearest directory."""
    absent, closed = absent or {}, closed or {}
    context = {
        v.target: TargetState(v.target not in absent, absent.get(v.target, ""), closed.get(v.target, ""))
        for v in violations
    }
    return learn(violations, context, HOME)


def rules(learned: Lesson, key: str) -> list[str]:
    sandbox = learned.settings.get("sandbox", {})
    return next((section[key] for section in sandbox.values() if key in section), [])


def test_a_file_is_named_itself_and_three_are_their_directory() -> None:
    one = lesson(write("/srv/data/a"), write(f"{HOME}/notes/b"))
    assert one.settings == {"sandbox": {"filesystem": {"allowWrite": ["~/notes/b", "/srv/data/a"]}}}
    assert rules(lesson(*(write(f"/srv/data/{n}") for n in "abc")), "allowWrite") == ["/srv/data"]
    assert rules(lesson(write("/srv/data"), write("/srv/data/x/y")), "allowWrite") == ["/srv/data"]
    assert rules(lesson(*(write(f"/etc/{n}") for n in "abc")), "allowWrite") == ["/etc/a", "/etc/b", "/etc/c"]
    assert rules(lesson(*(write(f"{HOME}/{n}") for n in "abc")), "allowWrite") == ["~/a", "~/b", "~/c"]
    config = lesson(*(write(f"{HOME}/.config/{n}") for n in "abc"))
    assert rules(config, "allowWrite") == ["~/.config/a", "~/.config/b", "~/.config/c"], "secrets lie beside them"


def test_what_was_to_be_made_needs_the_directory_it_is_made_in() -> None:
    learned = lesson(write("/srv/data/x/new"), absent={"/srv/data/x/new": "/srv/data"})
    assert rules(learned, "allowWrite") == ["/srv/data"] and not learned.notes
    learned = lesson(write(f"{HOME}/.tool/cache/x"), absent={f"{HOME}/.tool/cache/x": HOME})
    assert rules(learned, "allowWrite") == ["~/.tool"] and "make it first" in learned.notes[0]
    learned = lesson(write(f"{HOME}/.config/tool/x"), absent={f"{HOME}/.config/tool/x": HOME})
    assert rules(learned, "allowWrite") == ["~/.config/tool"], "in ~/.config are secrets"


@pytest.mark.parametrize(
    ("violation", "why"),
    [
        (write(f"{HOME}/.ssh/config"), "secrets"),
        (write(f"{HOME}/.aws/x/y"), "secrets"),
        (write("/srv/app/.env"), "secrets"),
        (write("/srv/keys/server.pem"), "secrets"),
        (write(f"{HOME}/.bashrc", Reason.PATH_PROTECTED), "protected"),
        (write(f"{HOME}/.zshrc"), "protected"),
        (write(f"{HOME}/.local/bin/x"), "protected"),
        (write("/srv/repo/.git/hooks/pre-commit"), "protected"),
        (write("/srv/repo/.git/modules/a/config"), "protected"),
        (write("/srv/other/.vscode/tasks.json"), "protected"),
        (write("/srv/other/.claude/settings.local.json"), "protected"),
        (write("/srv/other/.mcp.json"), "protected"),
        (write("/srv/x", Reason.PATH_DENIED, "/srv/x"), "a deny wins"),
        (write("/run/sandboxd/x", Reason.PATH_DENIED), "no rule opens it"),
        (write("/srv/\\x1b[2J"), "cannot be written"),
        (blocked(READ, "/srv/s", Reason.PATH_DENIED, "/srv/s"), "exactly this path"),
        (blocked(READ, f"{HOME}/.ssh/id_rsa", Reason.PATH_DENIED, "~"), "secrets"),
        (blocked(SOCKET, "/run/docker.sock", Reason.SOCKET_NOT_LISTED), "outside"),
        (blocked(SOCKET, "/run/x", Reason.SOCKET_CONTROL), "outside"),
        (blocked(SOCKET, "/run/sandboxd/s", Reason.SOCKET_OWN), "belongs to sandboxd"),
        (host("no.test:443", Reason.HOST_DENIED), "denies"),
        (host("no.test:443", Reason.PROMPT_DENIED), "said no"),
        (host("169.254.169.254:80", Reason.LOCAL_ADDRESS), "this machine"),
        (blocked(READ, "/srv/s", Reason.PATH_DENIED, "/srv", inferred=True), "guessed"),
        (blocked(ViolationKind.SERVICE, "com.apple.x", Reason.RULE), "no rule opens it"),
    ],
)
def test_what_is_never_learned(violation: Violation, why: str) -> None:
    learned = lesson(violation, closed={"/srv/s": "/srv/s"})
    assert learned.settings == {} and why in learned.left_out[0].why
    assert learned.left_out[0].target == violation.target


def test_reading_inside_what_is_closed() -> None:
    learned = lesson(blocked(READ, "/srv/a/b/c", Reason.PATH_DENIED, "/srv/a"), closed={"/srv/a/b/c": "/srv/a"})
    assert rules(learned, "allowRead") == ["/srv/a/b/c"]
    targets = [f"/srv/a/{n}" for n in "xyz"]
    many = [blocked(READ, target, Reason.PATH_DENIED, "/srv/a") for target in targets]
    learned = lesson(*many, closed=dict.fromkeys(targets, "/srv/a"))
    assert rules(learned, "allowRead") == targets, "the rule's own directory stays closed"


def test_hosts() -> None:
    assert rules(lesson(host("b.test:443"), host("a.test:80")), "allowedDomains") == ["a.test:80", "b.test:443"]
    assert rules(lesson(*(host(f"{n}.cdn.test:443") for n in "abc")), "allowedDomains") == ["*.cdn.test:443"]
    shared = [f"{n}.github.io:443" for n in "abc"]
    assert rules(lesson(*map(host, shared)), "allowedDomains") == shared
    addresses = [f"203.0.113.{n}:443" for n in "123"]
    assert rules(lesson(*map(host, addresses)), "allowedDomains") == addresses
    tops = [f"{n}.com:443" for n in "abc"]
    assert rules(lesson(*map(host, tops)), "allowedDomains") == tops
    asked = lesson(host("pastebin.com:443", Reason.PROMPT_UNANSWERED))
    assert rules(asked, "allowedDomains") == ["pastebin.com:443"] and "check it before" in asked.notes[0]


def test_sockets() -> None:
    one = lesson(blocked(SOCKET, "/srv/pg/.s.PGSQL.5432", Reason.SOCKET_NOT_LISTED))
    assert rules(one, "allowUnixSockets") == ["/srv/pg/.s.PGSQL.5432"]
    many = lesson(*(blocked(SOCKET, f"/srv/pw/{n}.sock", Reason.SOCKET_NOT_LISTED) for n in "abc"))
    assert rules(many, "allowUnixSockets") == ["/srv/pw"]


@given(st.lists(st.text(alphabet="ab $*?[]{}~'\"é", min_size=1), min_size=1, max_size=3))
def test_a_rule_means_the_path_it_was_made_of(names: list[str]) -> None:
    for target in ("/srv/" + "/".join(names), HOME + "/" + "/".join(names)):
        if neutralise(target) != target or SecretPlaces(HOME).holds(target):
            continue
        [rule] = rules(lesson(write(target)), "allowWrite")
        expanded = expand_rule_path(rule, PathScope(HOME, "/p", {"a": "X", "b": "Y", "ab": "Z"}))
        plain = expanded.path
        for c in "*?[$":
            plain = plain.replace(f"[{c}]", c)
        assert plain == target


def test_places_of_secrets() -> None:
    secrets = SecretPlaces(HOME)
    for path in (
        ".ssh/id_rsa", ".aws/credentials", ".config/gcloud/x", ".kube/config", ".docker/config.json", ".gnupg/x",
        ".password-store/a", ".mozilla/firefox/x", ".netrc", ".npmrc", ".pypirc", ".cargo/credentials.toml",
        ".config/gh/hosts.yml", ".bash_history", "work/.env", "work/.env.local",
    ):  # fmt: skip
        assert secrets.holds(f"{HOME}/{path}"), path
    for path in ("work/main.py", ".cache/pip/x", ".npm/_cacache/x", ".cargo/registry/x"):
        assert not secrets.holds(f"{HOME}/{path}"), path
    assert secrets.below(HOME) and secrets.below(f"{HOME}/.config") and not secrets.below(f"{HOME}/work")
