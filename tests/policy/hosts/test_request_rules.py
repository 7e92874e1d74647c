"""Rules for single requests: what they match, and paths that servers read in several ways."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.policy.build import evaluate
from sandboxd.policy.decision import Behavior, Reason
from sandboxd.policy.hosts.host_decisions import decide_host, decide_name
from sandboxd.policy.hosts.host_patterns import HostPattern, parse_host
from sandboxd.policy.hosts.request_rules import (
    HttpRequest,
    credentials_for,
    decide_request,
    parse_operations,
    readings_of,
    why_unclear,
)
from sandboxd.policy.model import CredentialRule, CredentialSource, NetworkPolicy, SourceKind
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import BUILT_IN, Source

API = parse_host("api.test")
RULES = [
    {"host": "api.test", "action": "allow", "methods": ["read"], "paths": ["/repos/**", "/@scope/*"]},
    {"host": "api.test", "action": "allow", "methods": ["POST"], "paths": ["/repos/me/*/issues"]},
    {"host": "api.test", "action": "deny", "paths": ["/repos/secret/**"], "reason": "it is private"},
    {"host": "api.test", "action": "ask", "methods": ["DELETE"], "paths": ["/repos/me/**"]},
    {"host": "git.test", "action": "allow", "methods": ["git-fetch"], "paths": ["/me/one.git/**"]},
    {"host": "open.test", "action": "deny", "methods": ["PUT"]},
    {"host": "*.wide.test:8080", "action": "allow"},
]


def network(*rules: object, source: Source = Source.USER, **more: object) -> NetworkPolicy:
    layers = [layer_from_values({"sandbox": {"network": {"requests": list(rules), **more}}}, source)]
    policy, problems = evaluate(merge(layers), PathScope("/home/me", "/home/me/p", {}))
    assert not problems, problems
    return policy.network


NETWORK = network(*RULES, allowedDomains=["open.test"])
ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY


@pytest.mark.parametrize(
    ("host", "method", "target", "answer"),
    [
        ("api.test", "GET", "/repos/a", ALLOW),
        ("api.test", "HEAD", "/repos/a/b?token=1", ALLOW),
        ("api.test", "GET", "/repos", DENY),
        ("api.test", "GET", "/Repos/a", DENY),
        ("api.test", "get", "/repos/a", DENY),
        ("api.test", "POST", "/repos/a", DENY),
        ("api.test", "POST", "/repos/me/x/issues", ALLOW),
        ("api.test", "POST", "/repos/me/x/y/issues", DENY),
        ("api.test", "GET", "/repos/secret/a", DENY),
        ("api.test", "GET", "/repos/SECRET/a", DENY),
        ("api.test", "GET", "/repos/%73ecret/a", DENY),
        ("api.test", "GET", "/repos//secret/a", DENY),
        ("api.test", "GET", "/repos/secret%2fa", DENY),
        ("api.test", "GET", "/repos/public%2Fa", ALLOW),
        ("api.test", "GET", "/@scope/name", ALLOW),
        ("api.test", "GET", "/@scope%2fname", DENY),
        ("api.test", "DELETE", "/repos/me/x", ASK),
        ("api.test", "DELETE", "/repos/you/x", DENY),
        ("api.test", "DELETE", "/repos/me%2fx", ASK),
        ("git.test", "GET", "/me/one.git/info/refs?service=git-upload-pack", ALLOW),
        ("git.test", "POST", "/me/one.git/git-upload-pack", ALLOW),
        ("git.test", "POST", "/me/one.git/git-receive-pack", DENY),
        ("git.test", "GET", "/me/two.git/info/refs", DENY),
        ("open.test", "GET", "/..%2f", ALLOW),
        ("open.test", "PUT", "/", DENY),
        ("open.test", "put", "/", DENY),
        ("a.wide.test", "PATCH", "/anything", ALLOW),
    ],
)
def test_decisions(host: str, method: str, target: str, answer: Behavior) -> None:
    port = 8080 if "wide" in host else 443
    decision = decide_request(NETWORK, parse_host(host), port, HttpRequest.of(method, target.encode()))
    assert decision is not None and decision.behavior is answer, decision
    assert "token" not in decision.text
    if answer is DENY:
        assert decision.hint and decision.reason is Reason.REQUEST_DENIED
    if "secret" in target:
        assert "it is private" in decision.text


@pytest.mark.parametrize(
    "path",
    [
        "/repos/../admin", "/repos/./a", "/repos/%2e%2e/admin", "/repos/..%2fadmin", "/repos/%2e", "/repos/a%5c..%5cb",
        "/repos/a\\b", "/repos/%252e%252e/", "/repos/%zz", "/repos/a%00", "/repos/a%0ab", "/repos/%", "/repos/..;/x",
        "/repos/" + "a" * 2048, "repos", "/repos/a%20b",
    ],
)  # fmt: skip
def test_a_path_with_several_readings_is_refused(path: str) -> None:
    decision = decide_request(NETWORK, API, 443, HttpRequest.of("GET", path.encode()))
    assert decision is not None and decision.reason is Reason.REQUEST_UNCLEAR and decision.hint


def test_a_broken_escape_is_refused_whatever_stands_around_it() -> None:
    network_of = network({"host": "api.test", "action": "allow", "paths": ["/**"]})
    for path, reason in ((b"/a%2", Reason.REQUEST_UNCLEAR), (b"/%g0", Reason.REQUEST_UNCLEAR), (b"/a%41", None)):
        decision = decide_request(network_of, API, 443, HttpRequest.of("GET", path))
        assert decision is not None and decision.allowed is (reason is None), path
        assert reason is None or decision.reason is reason


def test_a_credential_needs_every_reading_of_a_path() -> None:
    source = CredentialSource(SourceKind.ENV, ("A",))
    rule = CredentialRule(HostPattern.parse("api.test"), source, BUILT_IN, paths=("/@scope/*",))
    for path, gets in ((b"/@scope/name", True), (b"/@scope%2fname", False), (b"//@scope/name", False)):
        found = credentials_for(NetworkPolicy(credentials=(rule,)), API, 443, HttpRequest.of("GET", path))
        assert bool(found) is gets, path


def test_a_header_that_overrides_the_method_is_refused() -> None:
    request = HttpRequest.of("GET", b"/repos/a", [b"Accept", b"X-HTTP-Method-Override"])
    decision = decide_request(NETWORK, API, 443, request)
    assert decision is not None and decision.reason is Reason.REQUEST_UNCLEAR
    rule = {"host": "api.test", "action": "allow", "paths": ["/repos/**"]}
    decision = decide_request(network(rule), API, 443, request)
    assert decision is not None and decision.allowed, "methods play no part for this host"


@pytest.mark.parametrize(
    ("rule", "method", "names", "suits"),
    [
        ({"paths": ["/a/**"]}, "GET", [b"Accept", b"X-Url"], True),
        ({"paths": ["/a/**"]}, "GET", [b"X-Original-URL"], False),
        ({"paths": ["/a/**"]}, "GET", [b"x_rewrite_url"], False),
        ({"methods": ["GET"]}, "GET", [b"X-Original-URL"], True),
        ({"methods": ["GET"]}, "GET", [b"X_HTTP_Method_Override"], False),
        ({}, "TRACK", [], False),
        ({}, "trace", [], False),
        ({}, "GET", [b"X-Original-URL"], True),
    ],
)
def test_headers_that_override_get_no_credential(
    rule: dict[str, list[str]], method: str, names: list[bytes], suits: bool
) -> None:
    request, paths = HttpRequest.of(method, b"/a/b", names), tuple(rule.get("paths", ()))
    operations = parse_operations(rule.get("methods", ()))
    pattern, source = HostPattern.parse("api.test"), CredentialSource(SourceKind.ENV, ("A",))
    found = CredentialRule(pattern, source, BUILT_IN, operations=operations, paths=paths)
    assert bool(credentials_for(NetworkPolicy(credentials=(found,)), API, 443, request)) is suits
    if rule:
        decision = decide_request(network({"host": "api.test", "action": "allow", **rule}), API, 443, request)
        assert decision is not None and decision.allowed is suits


def test_a_host_without_rules_is_decided_by_its_name() -> None:
    assert decide_request(NETWORK, parse_host("other.test"), 443, HttpRequest("GET", "/")) is None
    assert decide_request(NETWORK, parse_host("a.wide.test"), 443, HttpRequest("GET", "/")) is None


@pytest.mark.parametrize(
    ("host", "port", "answer"),
    [
        ("api.test", 443, ALLOW), ("a.wide.test", 8080, ALLOW), ("a.wide.test", 443, ASK), ("wide.test", 8080, ASK),
        ("open.test", 443, ALLOW), ("other.test", 443, ASK),
    ],
)  # fmt: skip
def test_a_rule_that_allows_requests_opens_its_host(host: str, port: int, answer: Behavior) -> None:
    assert decide_host(NETWORK, parse_host(host), port).behavior is answer
    if answer is ALLOW:
        assert decide_name(NETWORK, parse_host(host)).allowed


def test_a_rule_that_denies_requests_opens_nothing() -> None:
    only = network({"host": "api.test", "action": "deny", "paths": ["/x"]}, strictAllowlist=True)
    assert decide_host(only, API, 443).behavior is DENY and decide_name(only, API).behavior is DENY
    denied = network({"host": "api.test", "action": "allow"}, deniedDomains=["api.test"])
    assert decide_host(denied, API, 443).behavior is DENY and decide_name(denied, API).behavior is DENY


def test_a_project_may_only_deny() -> None:
    rules = [{"host": "api.test", "action": action, "paths": ["/x"]} for action in ("allow", "ask", "deny")]
    merged = merge([layer_from_values({"sandbox": {"network": {"requests": rules}}}, Source.PROJECT)])
    assert [rule["action"] for rule in merged.effective()["sandbox.network.requests"]] == ["deny"]
    assert len(merged.ignored) == 2


def test_only_managed_rules_open_where_managed_settings_say_so() -> None:
    rules = [{"host": "api.test", "action": action} for action in ("allow", "deny")]
    user = layer_from_values({"sandbox": {"network": {"requests": rules}}}, Source.USER)
    managed = layer_from_values({"sandbox": {"network": {"allowManagedDomainsOnly": True}}}, Source.MANAGED)
    assert [r["action"] for r in merge([user, managed]).effective()["sandbox.network.requests"]] == ["deny"]


def test_questions_become_denials_where_none_are_wanted() -> None:
    rule = {"host": "api.test", "action": "ask"}
    layer = layer_from_values(
        {"permissions": {"denyInsteadOfPrompting": True}, "sandbox": {"network": {"requests": [rule]}}}, Source.USER
    )
    policy, _ = evaluate(merge([layer]), PathScope("/home/me", "/home/me/p", {}))
    decision = decide_request(policy.network, API, 443, HttpRequest("GET", "/"))
    assert decision is not None and decision.behavior is DENY


@pytest.mark.parametrize("kind", ["allow", "deny", "ask"])
def test_web_rules_with_a_path_are_rules_for_requests(kind: str) -> None:
    layer = layer_from_values({"permissions": {kind: ["WebFetch(https://api.test/docs/**)"]}}, Source.USER)
    policy, problems = evaluate(merge([layer]), PathScope("/home/me", "/home/me/p", {}))
    assert not problems and not (policy.network.allowed or policy.network.denied or policy.network.asked)
    decision = decide_request(policy.network, API, 443, HttpRequest("GET", "/docs/a/b"))
    assert decision is not None and decision.behavior is Behavior(kind)
    assert decide_request(policy.network, API, 80, HttpRequest("GET", "/docs/a/b")) is None


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ({"methods": ["get"]}, "write it in capitals (GET)"),
        ({"methods": ["git-push"]}, "name a group: read or git-fetch"),
        ({"paths": ["repos"]}, "begin with a slash"),
        ({"paths": ["/a?b"]}, "without a query"),
        ({"paths": ["/a/../b"]}, "without . and .."),
        ({"paths": ["/%61"]}, "write the characters themselves"),
        ({"paths": ["/" + "*a" * 9]}, "at most 8"),
    ],
)
@pytest.mark.parametrize("action", ["allow", "deny"])
def test_errors_of_rules(rule: dict[str, object], hint: str, action: str) -> None:
    values = {"sandbox": {"network": {"requests": [{"host": "api.test", "action": action, **rule}]}}}
    _, (problem,) = evaluate(merge([layer_from_values(values, Source.USER)]), PathScope("/home/me", "/home/me/p", {}))
    assert problem.slug == "request_rule_invalid" and hint in problem.hint
    assert problem.fatal == (action == "deny"), "what would close something cannot be left out"


def test_many_stars_need_no_search() -> None:
    rules = network({"host": "api.test", "action": "deny", "paths": ["/a*a*a*a*a*a*a*a*b", "/**a*a**a*a**a*a*a*b"]})
    for end, allowed in (("", True), ("b", False)):
        decision = decide_request(rules, API, 443, HttpRequest("GET", "/" + "a" * 2000 + end))
        assert decision is not None and decision.allowed is allowed


@given(st.lists(st.text("ab/*", max_size=4), min_size=1, max_size=4), st.text("ab/", max_size=12))
def test_patterns_mean_what_plain_expressions_mean(parts: list[str], path: str) -> None:
    """The automaton, which bounds the time, changes no answer."""
    pattern = "/" + "**".join(part.replace("**", "*") for part in parts)
    if "***" in pattern or len(re.findall(r"\*+", pattern)) > 8:
        return
    expected = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    rules = network({"host": "api.test", "action": "allow", "paths": [pattern]})
    decision = decide_request(rules, API, 443, HttpRequest("GET", "/" + path))
    merged = re.sub("/{2,}", "/", "/" + path)
    assert decision is not None
    wanted = all(re.fullmatch(expected, one) for one in {"/" + path, merged})
    assert decision.allowed == bool(wanted)


@given(st.text(max_size=30))
def test_an_allowed_path_decodes_to_what_was_allowed(text: str) -> None:
    path = "/" + quote(text, safe="/")
    if not why_unclear(path):
        assert "/" + text in readings_of(path)
    assert all(".." not in one.split("/") for one in readings_of(path)) or why_unclear(path)


def _decoded_twice(path: str) -> str:
    return unquote(unquote(path))


SERVERS: dict[str, Callable[[str], str]] = {
    "decodes, then resolves dots": lambda path: posixpath.normpath(unquote(path)),
    "resolves dots, then decodes": lambda path: unquote(posixpath.normpath(path)),
    "decodes twice": lambda path: posixpath.normpath(_decoded_twice(path)),
    "takes backslashes for slashes": lambda path: posixpath.normpath(unquote(path).replace("\\", "/")),
    "drops parameters of segments": lambda path: posixpath.normpath(re.sub(";[^/]*", "", unquote(path))),
    "stops at NUL": lambda path: posixpath.normpath(unquote(path).partition("\0")[0] or "/"),
    "ignores white space": lambda path: posixpath.normpath(re.sub(r"\s", "", unquote(path))),
}
"""How servers arrive at the path that they serve."""
PIECES = (
    "a", "b", "/", "//", ".", "..", "%2e", "%2E", "%2f", "%5c", "\\", "%252e", "%25", ";", ";x", "%00", "%20", "A"
)  # fmt: skip


@pytest.mark.parametrize("server", SERVERS)
@given(st.lists(st.sampled_from(PIECES), max_size=10))
@example(["a", "/", "b", "/", "%2e%2e", "/", "c"])
def test_no_server_serves_another_path_than_the_allowed(server: str, pieces: list[str]) -> None:
    rules = network({"host": "api.test", "action": "allow", "paths": ["/a/**"]})
    path = "/a/" + "".join(pieces)
    decision = decide_request(rules, API, 443, HttpRequest("GET", path))
    assert decision is not None
    served = SERVERS[server](path)
    assert not decision.allowed or f"{served}/".startswith(("/a/", "//a/")), served


@pytest.mark.parametrize("server", SERVERS)
@given(st.lists(st.sampled_from((*PIECES, "secret", "%73ecret", "SECRET")), max_size=8))
def test_no_server_serves_a_denied_path(server: str, pieces: list[str]) -> None:
    rules = network(
        {"host": "api.test", "action": "allow"}, {"host": "api.test", "action": "deny", "paths": ["/**secret**"]}
    )
    decision = decide_request(rules, API, 443, HttpRequest("GET", "/" + "".join(pieces)))
    assert decision is not None
    assert not decision.allowed or "secret" not in SERVERS[server]("/" + "".join(pieces)).lower()
