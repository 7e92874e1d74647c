"""Excluded programs with a slash are the files that they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.daemon.program_paths import ProgramPaths
from sandboxd.policy.commands.command_decisions import decide_command
from sandboxd.policy.commands.exclusion import decide_exclusion
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source


@pytest.fixture
def around(tmp_path: Path) -> Path:
    for name in ("tools/sub", "other", "work", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("tools/tool", "tools/sub/deep", "other/evil", "work/mine", "bin/sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "tools/link").symlink_to(tmp_path / "other/evil")
    (tmp_path / "tools/shell").symlink_to(tmp_path / "bin/sh")
    (tmp_path / "other/link").symlink_to(tmp_path / "tools/tool")
    (tmp_path / "work/link").symlink_to(tmp_path / "tools/tool")
    (tmp_path / "through").symlink_to(tmp_path / "work/link")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "command", "excluded"),
    [
        ("B/tools/*", "B/tools/tool x", True),
        ("B/tools/*", "B/other/../tools/tool x", True),
        ("B/tools/*", "B/other/link x", True),
        ("B/tools/*", "B/tools/../bin/sh -c x", False),
        ("B/tools/*", "B/tools/link x", False),
        ("B/tools/*", "B/tools/sub/deep", False),
        ("B/tools/*", "B/tools/shell -c x", False),
        ("B/*/*", "B/bin/sh -c x", False),
        ("B/tools/*", "../tools/tool", False),
        ("B/tools/*", "../tools/../other/evil", False),
        ("B/tools/tool", "B/tools/tool x", True),
        ("B/tools/tool x", "B/tools/tool x", True),
        ("B/tools/tool x", "B/tools/tool y", False),
        ("B/tools/tool", "/proc/self/root/B/tools/tool x", False),
        ("~/tools/*", "B/tools/tool x", True),
        ("~/tools/*", "~/tools/tool x", True),
        ("~/tools/*", "~/tools/../bin/sh x", False),
        ("~/tools/*", "'~/tools/tool'", False),
        ("~/tools/*", "\\~/tools/tool", False),
        ("~/tools/*", '"~"/tools/tool', False),
        ("~/tools/*", "~/'tools'/tool", True),
        ("B/work/*", "B/work/mine", False),
        ("./mine", "./mine", False),
        ("B/tools/tool", "B/work/link", False),
        ("B/tools/tool", "B/through", False),
        ("B/tools/to*", "B/tools/tool", True),
    ],
)
async def test_a_path_is_the_file_that_it_leads_to(around: Path, pattern: str, command: str, excluded: bool) -> None:
    rule = CommandRule(pattern.replace("B/", f"{around}/"), Origin(Source.LOCAL, "test"))
    text = command.replace("B/", f"{around}/")
    paths = ProgramPaths(str(around / "work"), str(around), [str(around / "work")])
    answer = await paths.decide(lambda resolve: decide_exclusion([rule], text, resolve))
    assert answer.excluded is excluded, answer.why


@pytest.mark.parametrize(
    ("pattern", "command", "behavior"),
    [
        ("./*", "./mine x", "allow"),
        ("./*:*", "./mine x", "allow"),
        ("./*", "../work/mine", "allow"),
        ("./*", "B/work/mine", "allow"),
        ("./*", "./mine; ./mine", "allow"),
        ("./mine", "B/work/mine", "allow"),
        ("B/work/*", "./mine", "allow"),
        ("./*", "./../other/evil", "ask"),
        ("./*", "../other/evil", "ask"),
        ("./*", "./link", "ask"),
        ("./*", "./sub/../../other/evil", "ask"),
        ("../*", "../other/evil", "ask"),
        ("./mine x", "./mine y", "ask"),
        ("./*", "cd ../other && ./evil", "ask"),
        ("~/tools/*", "~/tools/tool", "allow"),
        ("~/tools/*", "~/tools/../bin/sh -c x", "ask"),
        ("./*", "mine", "ask"),
        ("~/tools/tool", "'~/tools/tool'", "ask"),
        ("~/tools/tool", "~/tools/tool", "allow"),
    ],
)
async def test_an_allowing_rule_means_files(around: Path, pattern: str, command: str, behavior: str) -> None:
    """What commands can write may be allowed: it runs in the sandbox."""
    origin = Origin(Source.LOCAL, "test")
    rules = (CommandRule(pattern.replace("B/", f"{around}/"), origin), CommandRule("cd:*", origin))
    policy = Policy(enabled=True, commands=CommandPolicy(auto_allow=False, allow=rules))
    text = command.replace("B/", f"{around}/")
    paths = ProgramPaths(str(around / "work"), str(around), [str(around / "work")])
    answer = await paths.decide(lambda resolve: decide_command(policy, text, resolve=resolve))
    assert answer.behavior.value == behavior, answer.decision.text


async def test_names_are_found_where_no_command_can_write(around: Path) -> None:
    for name in ("tools/tool", "work/tool"):
        (around / name).write_text("")
        (around / name).chmod(0o755)
    rule = CommandRule("tool", Origin(Source.LOCAL, "test"))
    work, tools = str(around / "work"), str(around / "tools")
    for search, excluded, kept in (
        (tools, True, tools),
        (f"{tools}:{work}", True, tools),
        (f"{work}:{tools}", False, tools),
        (f":{tools}", False, tools),
        (f".:{tools}", False, tools),
        (f"{tools}:", True, tools),
        ("", False, "/usr/bin:/bin"),
        (f"{around}/absent:{tools}", True, f"{around}/absent:{tools}"),
        (f"/proc/self/root{tools}", False, "/usr/bin:/bin"),
    ):
        paths = ProgramPaths(work, str(around), [work], search=search)
        answer = await paths.decide(lambda resolve: decide_exclusion([rule], "tool x", resolve))
        assert (answer.excluded, await paths.search_path()) == (excluded, kept), search
