"""The grammar of permission rules and what they feed."""

from __future__ import annotations

import json

import pytest

from sandboxd.settings.layer import parse_layer
from sandboxd.settings.origins import Source
from sandboxd.settings.rules import RuleSyntaxError, doubt_about, parse_rule
from sandboxd.settings.tools import Feeds, RuleList


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
     "WebFetch(a.test)", "WebFetch(domain:)", "WebFetch(domain)", "WebFetch(url:a.test)", "Gl?b(x)", "[RE]*(x)",
     "Read (x)", "é(x)"],
)  # fmt: skip
def test_what_is_no_rule_says_so_with_a_hint_or_a_quote(text: str) -> None:
    with pytest.raises(RuleSyntaxError) as caught:
        parse_rule(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


A, D, K = RuleList.ALLOW, RuleList.DENY, RuleList.ASK
HOST = (Feeds.ALLOWED_HOST, Feeds.DENIED_HOST, Feeds.ASKED_HOST)
WRITE = (Feeds.ALLOW_WRITE, Feeds.DENY_WRITE, Feeds.DENY_WRITE)
ALL_WRITES = (None, Feeds.DENY_WRITE, Feeds.COMMAND)
READ = (None, Feeds.DENY_READ, Feeds.DENY_READ)
COMMAND = (Feeds.COMMAND, Feeds.COMMAND, Feeds.COMMAND)
CLOSED_COMMAND = (None, Feeds.COMMAND, Feeds.COMMAND)
NOTHING = (None, None, None)


@pytest.mark.parametrize(
    ("text", "feeds", "contents"),
    [
        ("WebFetch(domain:a.test)", HOST, ("a.test", "a.test", "a.test")),
        ("WebFetch", (None, Feeds.DENIED_HOST, Feeds.ASKED_HOST), (None, "*", "*")),
        *((f"{tool}(a)", WRITE, ("a", "a", "a")) for tool in ("Edit", "Write", "MultiEdit", "NotebookEdit")),
        *((tool, ALL_WRITES, (None, "//**", None)) for tool in ("Edit", "Write", "MultiEdit")),
        ("NotebookEdit", (None, Feeds.DENY_WRITE, Feeds.DENY_WRITE), (None, "*.ipynb", "*.ipynb")),
        *((f"{tool}(/x)", READ, (None, "/x", "/x")) for tool in ("Read", "Glob", "Grep", "LS", "NotebookRead", "LSP")),
        ("Read", (None, Feeds.NO_COMMAND, Feeds.COMMAND), (None, None, None)),
        ("R*(/x)", READ, (None, "/x", "/x")),
        ("*ead(/x)", READ, (None, "/x", "/x")),
        ("W*(domain:a.test)", (None, Feeds.DENIED_HOST, Feeds.ASKED_HOST), (None, "a.test", "a.test")),
        ("Wri*", ALL_WRITES, (None, "//**", None)),
        ('Read(".env")', READ, (None, ".env", ".env")),
        ("Read('.env')", READ, (None, ".env", ".env")),
        ("Bash(a)", COMMAND, ("a", "a", "a")),
        ("Bash", COMMAND, (None, None, None)),
        ("Bash(timeout:*)", COMMAND, ("timeout:*",) * 3),
        ("PowerShell(rm *)", CLOSED_COMMAND, (None, "rm *", "rm *")),
        ("Monitor(rm *)", CLOSED_COMMAND, (None, "rm *", "rm *")),
        ("Bash(dangerouslyDisableSandbox:true)", (None, Feeds.SANDBOXED_ONLY, None), (None, None, None)),
        *((text, NOTHING, NOTHING) for text in ("Monitor", "PowerShell", "WebSearch(a)", "mcp__a__b", "mcp__*")),
        *((text, NOTHING, NOTHING) for text in ("Bash(command:rm *)", "Read(file_path:/x)", "Bash(timeout:5)")),
    ],
)  # fmt: skip
def test_what_rules_feed(text: str, feeds: tuple[Feeds | None, ...], contents: tuple[str | None, ...]) -> None:
    rule = parse_rule(text)
    for kind, meaning, content in zip((A, D, K), feeds, contents, strict=True):
        found = dict.fromkeys(one for one in rule.meanings(kind) if one[0] not in (Feeds.NOTHING, Feeds.WARNING))
        if meaning is None:
            assert not found, kind
        elif meaning is not Feeds.COMMAND or "*" not in rule.tool:
            assert found == {(meaning, content): None}, kind


def test_a_star_alone_is_every_tool() -> None:
    """Asking is for a person to answer; denied, nothing is left that could run."""
    denied = {feeds for feeds, _ in parse_rule("*").meanings(D)}
    assert {Feeds.NO_COMMAND, Feeds.DENIED_HOST, Feeds.DENY_WRITE, Feeds.COMMAND} <= denied
    assert (Feeds.COMMAND, None) in set(parse_rule("*").meanings(K)) and not list(parse_rule("*").meanings(A))


_E, _W, _N = "refused", "told", "silent"


@pytest.mark.parametrize(
    ("text", "allow", "deny", "ask"),
    [
        # enforced, or about something that no command can use
        *((text, _N, _N, _N) for text in (
            "LS(/x)", "Glob(x)", "Grep(x)", "Edit(x)", "Edit", "Write", "MultiEdit", "NotebookEdit", "Bash",
            "Bash(rm *)", "WebFetch", "WebFetch(domain:a.test)", "mcp__a__b", "mcp__a", "mcp__a__*", "Task(x)",
            "Agent(model:opus)", "WebSearch", "TodoWrite", "Skill(x)", "Monitor", "PowerShell",
        )),
        # what would allow by a name or form that is not read allows nothing
        *((text, _W, _N, _N) for text in ("R*(/x)", "E*", 'Read(".env")', "mcp__*", "W*(domain:a.test)")),
        # what would close by one is refused
        *((text, _W, _E, _E) for text in (
            "read(.env)", "bash", "WebFech(domain:a.test)", "r*(x)", "Foo(x)", "View(/x)", "Delete(**)", "Shell(rm *)",
            "Bash(command:rm *)", "Read(file_path:/x)", "Read(path:/x)", "Grep(path:/x)", "WebF*(url:a)", "Fo*(x)",
        )),
        ("Read", _N, _E, _N),
        ("*", _W, _E, _N),
        # a tool as a whole of which the shell is no part, and what no command knows of its call
        *((text, _N, _W, _W) for text in ("LS", "Glob", "Grep")),
        *((text, _W, _W, _W) for text in ("Foo", "Bash(run_in_background:true)", "Read(limit:5)")),
    ],
)  # fmt: skip
def test_no_rule_that_could_restrict_is_dropped_in_silence(text: str, allow: str, deny: str, ask: str) -> None:
    for kind, expected in ((A, allow), (D, deny), (K, ask)):
        doubt = doubt_about(parse_rule(text), kind)
        said = _N if doubt is None else _E if doubt.restricts and kind is not A else _W
        assert said == expected, (kind, doubt)
        assert doubt is None or repr(text) in doubt.message
        layer = parse_layer(json.dumps({"permissions": {kind.value: [text]}}), Source.USER, "/s.json")
        slugs = [problem.slug for problem in layer.problems]
        assert slugs == {_N: [], _W: ["rule_without_effect"], _E: ["restriction_unknown"]}[said]
