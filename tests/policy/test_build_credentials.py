"""Entries of `sandbox.credentials`: what they mean, and which are refused without showing a secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandboxd.policy.build import evaluate
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.policy.hosts.request_rules import HttpRequest, credentials_for, ends_tls
from sandboxd.policy.model import Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import Problem

SCOPE = PathScope(home="/home/u", project="/home/u/p")
USER = "/home/u/.claude/settings.json"


def built(source: Source = Source.USER, file: str = USER, **sandbox: Any) -> tuple[Policy, tuple[Problem, ...]]:
    return evaluate(merge([parse_layer(json.dumps({"sandbox": sandbox}), source, file)]), SCOPE)


def entry(**more: Any) -> dict[str, Any]:
    return {"host": "a.test", "header": "X-Key", "from": "env:A", **more}


@pytest.mark.parametrize(
    ("given", "slug"),
    [
        (entry(**{"from": "ghp_a-secret-itself"}), "credential_source"),
        (entry(**{"from": "token:ghp_a-secret-itself"}), "credential_source"),
        (entry(**{"from": "env:ghp_a-secret itself"}), "credential_variable"),
        (entry(**{"from": 'command:["gh", "auth", "ghp_a-secret-itself"]'}), "credential_source"),
        (entry(**{"from": "command:/usr/bin/gh"}), "credential_source"),
        (entry(**{"from": 'command:["/usr/bin/gh", 1]'}), "credential_source"),
        (entry(**{"from": "keyring:service"}), "credential_source"),
        (entry(**{"from": "keyring:-x/user"}), "credential_source"),
        (entry(**{"from": "file:~/*"}), "path_glob_invalid"),
        (entry(**{"from": "file:~/a#token"}), "credential_pattern"),
        (entry(host="*"), "credential_host_wide"),
        (entry(host="*.github.io"), "credential_host_wide"),
        (entry(query="key"), "credential_place"),
        (entry(header=None), "credential_place"),
        (entry(header="Host"), "credential_place"),
        (entry(header="Transfer-Encoding: {value}"), "credential_place"),
        (entry(header="X-Key: a\r\nY: {value}"), "credential_place"),
        (entry(header="X-Key: fixed"), "credential_place"),
        (entry(header=None, basic="a:b"), "credential_place"),
        (entry(header=None, query="a=b&c"), "credential_place"),
        (entry(paths=["me"]), "request_rule_invalid"),
        (entry(variables=["A=B"]), "credential_variable"),
        (entry(**{"from": 'command:["/home/u/p/token"]'}), "credential_writable"),
        (entry(**{"from": 'command:["/usr/bin/python3", "/home/u/p/token.py"]'}), "credential_writable"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_used_is_left_out(given: dict[str, Any], slug: str) -> None:
    policy, problems = built(credentials={"inject": [{key: one for key, one in given.items() if one is not None}]})
    assert policy.network.credentials == () and slug in {problem.slug for problem in problems}
    assert "a-secret-itself" not in str(policy.warnings)
    good, _ = built(credentials={"inject": [entry()]})
    assert len(good.network.credentials) == 1


@pytest.mark.parametrize("source", [Source.PROJECT, Source.LOCAL])
def test_no_file_of_a_project_names_a_credential(source: Source) -> None:
    policy, problems = built(source, f"/home/u/p/.claude/{source}.json", credentials={"inject": [entry()]})
    assert policy.network.credentials == () and policy.environment_remove == () and problems
    mine, _ = built(Source.LOCAL, "/home/u/.claude/settings.local.json", credentials={"inject": [entry()]})
    assert len(mine.network.credentials) == 1


def test_an_excluded_host_gets_no_credential_and_it_is_said() -> None:
    policy, problems = built(network={"tls": {"exclude": ["a.test"]}}, credentials={"inject": [entry()]})
    assert [problem.slug for problem in problems] == ["credential_excluded"] and "a.test" in policy.warnings[0]
    assert not ends_tls(policy.network, parse_host("a.test"), 443)


def test_sources_are_closed_for_commands() -> None:
    inject = [
        entry(**{"from": "file:~/.token"}), entry(**{"from": "file:~/.npmrc#_authToken=*"}),
        entry(**{"from": "env:B", "variables": []}), entry(**{"from": "env:C", "variables": ["D", "E"]}),
    ]  # fmt: skip
    policy, problems = built(credentials={"inject": inject, "mask": [{"file": "~/.m"}]})
    assert not problems and policy.environment_remove == ("B", "C")
    assert [rule.path for rule in policy.files.deny_read] == [f"/home/u/{name}" for name in (".token", ".npmrc", ".m")]
    assert [rule.variables for rule in policy.network.credentials] == [(), (), (), ("D", "E")]


@pytest.mark.parametrize("mask", [{}, {"env": "A", "file": "/a"}, {"env": "A", "pattern": "b=*"}, {"env": "1"}])
def test_a_mask_that_cannot_be_understood_stops_everything(mask: dict[str, str]) -> None:
    _, problems = built(credentials={"mask": [mask]})
    assert any(problem.fatal for problem in problems)


def test_the_most_specific_entry_comes_first() -> None:
    inject = [entry(host="*.a.test", **{"from": "env:WIDE"}), entry(host="b.a.test:443", **{"from": "env:NEAR"})]
    policy, _ = built(credentials={"inject": inject})
    request = HttpRequest.of("GET", b"/")

    def names(host: str, port: int, request: HttpRequest = request) -> list[str]:
        return [rule.source.words[0] for rule in credentials_for(policy.network, parse_host(host), port, request)]

    assert names("b.a.test", 443) == ["NEAR", "WIDE"] and names("b.a.test", 80) == ["WIDE"]
    assert names("a.test", 443) == names("c.test", 443) == []
    assert names("b.a.test", 443, HttpRequest.of("TRACE", b"/")) == []
    assert names("b.a.test", 443, HttpRequest.of("GET", b"/", (), [b"h2c"])) == []
