"""The grammar of permission rules and what they feed."""

from __future__ import annotations

import pytest

from sandboxd.settings.rules import Feeds, Kind, RuleSyntaxError, parse_rule


@pytest.mark.parametrize(
    ("text", "tool", "content"),
    [
        ("Bash", "Bash", None),
        ("Bash(ls)", "Bash", "ls"),
        ("Bash(npm run test:*)", "Bash", "npm run test:*"),
        ("Bash:npm run test:*", "Bash", "npm run test:*"),
        ("Bash(echo (a))", "Bash", "echo (a)"),
        (" Edit( src/** ) ", "Edit", "src/**"),
        ("WebFetch(domain:a.test)", "WebFetch", "a.test"),
        ("WebFetch(domain: a.test:8443 )", "WebFetch", "a.test:8443"),
        ("WebFetch:domain:a.test", "WebFetch", "a.test"),
        ("WebFetch", "WebFetch", None),
        ("mcp__server__tool", "mcp__server__tool", None),
        ("mcp__server__*", "mcp__server__*", None),
        ("Other(thing)", "Other", "thing"),
    ],
)
def test_rules(text: str, tool: str, content: str | None) -> None:
    rule = parse_rule(text)
    assert (rule.tool, rule.content, rule.text) == (tool, content, text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "(ls)", "Bash(", "Bash(ls", "Bash()", "Bash( )", "Bash:", "Bash ls", "Bash(ls) x", "Bash)ls(", "1Bash(x)",
     "WebFetch(a.test)", "WebFetch(domain:)", "WebFetch(domain)", "WebFetch(url:a.test)", "*", "é(x)"],
)  # fmt: skip
def test_what_is_no_rule_says_so_with_a_hint_or_a_quote(text: str) -> None:
    with pytest.raises(RuleSyntaxError) as caught:
        parse_rule(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "allow", "deny", "ask"),
    [
        ("WebFetch(domain:a.test)", Feeds.ALLOWED_HOST, Feeds.DENIED_HOST, Feeds.NOTHING),
        ("Edit(a)", Feeds.ALLOW_WRITE, Feeds.DENY_WRITE, Feeds.NOTHING),
        ("Write(a)", Feeds.ALLOW_WRITE, Feeds.DENY_WRITE, Feeds.NOTHING),
        ("MultiEdit(a)", Feeds.ALLOW_WRITE, Feeds.DENY_WRITE, Feeds.NOTHING),
        ("NotebookEdit(a)", Feeds.ALLOW_WRITE, Feeds.DENY_WRITE, Feeds.NOTHING),
        ("Read(a)", Feeds.NOTHING, Feeds.DENY_READ, Feeds.NOTHING),
        ("Bash(a)", Feeds.COMMAND, Feeds.COMMAND, Feeds.COMMAND),
        ("Bash", Feeds.COMMAND, Feeds.COMMAND, Feeds.COMMAND),
        ("Edit", Feeds.NOTHING, Feeds.NOTHING, Feeds.NOTHING),
        ("Read", Feeds.NOTHING, Feeds.NOTHING, Feeds.NOTHING),
        ("WebFetch", Feeds.NOTHING, Feeds.NOTHING, Feeds.NOTHING),
        ("Glob(a)", Feeds.NOTHING, Feeds.DENY_READ, Feeds.NOTHING),
        ("Grep(a)", Feeds.NOTHING, Feeds.DENY_READ, Feeds.NOTHING),
        ("WebSearch(a)", Feeds.NOTHING, Feeds.NOTHING, Feeds.NOTHING),
    ],
)
def test_what_rules_feed(text: str, allow: Feeds, deny: Feeds, ask: Feeds) -> None:
    rule = parse_rule(text)
    assert [rule.feeds(kind) for kind in (Kind.ALLOW, Kind.DENY, Kind.ASK)] == [allow, deny, ask]
