"""Programs that tell of questions: argv lists, without a shell, bounded, never ones that commands could write."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sandboxd.host.tools import safe_program
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.runtime.prompts import notifying
from sandboxd.runtime.prompts.connection_prompts import host_question
from sandboxd.runtime.prompts.grants import Grants, GrantScope
from sandboxd.runtime.prompts.notifying import Notifying
from sandboxd.runtime.prompts.open_prompts import Prompts
from sandboxd.runtime.prompts.prompt_records import Asked, Outcome, UserAnswer
from support.waiting import wait_until_async

SHOW = """
import json, os, sys
with open(sys.argv[1], "w") as file:
    json.dump([sys.argv[2:], json.load(sys.stdin), dict(os.environ)], file)
"""


class Bell:
    """Notifying programs, the prompts that they tell of, and what was logged."""

    def __init__(self, *programs: tuple[str, ...]) -> None:
        self.logged: list[dict[str, Any]] = []
        self.now, self.page = 0.0, ""
        self.notifying = Notifying(
            lambda: programs, self.find, tuple, lambda text, **more: self.logged.append(more),
            {"HOME": "/h", "SECRET": "x"}, lambda: self.now, lambda: self.page,
        )  # fmt: skip
        self.prompts = Prompts(self.write, observe=self.notifying.listen, can_notify=self.notifying.can_tell)
        self.notifying.unseen = self.prompts.unseen

    def find(self, name: str, written: Collection[str]) -> tuple[str | None, str]:
        return (None, "commands may write it") if "unsafe" in name else (name, "")

    async def write(self, directory: str, suggestion: object, confirmed: bool) -> tuple[str, ...]:
        return ()

    async def ask(self, host: str = "a.test") -> Outcome:
        question = host_question(parse_host(host), 443, "/w", text="it is\x1b[2J new", command="curl; x")
        return (await self.prompts.ask("s-1", Grants(), question, "c-1")).outcome


def show(file: Path, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", SHOW, str(file), *words)


@pytest.mark.parametrize("page", ["", "https://127.0.0.1:8443/"])
async def test_a_program_gets_the_question_and_no_shell(tmp_path: Path, page: str) -> None:
    file = tmp_path / "shown"
    bell = Bell(show(file, "$(touch x); `x`"), ("unsafe",))
    bell.page = page
    asking = asyncio.create_task(bell.ask())
    await wait_until_async(lambda: file.exists() and file.read_text().endswith("]"))
    words, facts, environment = json.loads(file.read_text())
    assert words == ["$(touch x); `x`"]
    assert (facts["text"], facts["reason"]) == ("May a command reach a.test:443?", "it is\\x1b[2J new")
    assert (facts["answer"], facts["command"]) == ("sandboxd prompts", "curl; x")
    assert environment["SANDBOXD_QUESTION"] == facts["text"] and environment["HOME"] == "/h"
    assert "SECRET" not in environment
    (asked,) = bell.prompts.open()  # it waits for a user who was told
    link = f"{page}#{asked.request_id}" if page else None
    assert facts.get("link", None) == link and environment.get("SANDBOXD_LINK") == link
    assert ("link" in facts) is bool(page)
    bell.prompts.subscribe(self := object(), lambda subscriber, event: None)
    await bell.prompts.answer(self, asked.request_id, UserAnswer(True, GrantScope.ONCE), "me")
    assert await asking is Outcome.ANSWERED
    await bell.notifying.aclose()
    assert [(one["program"], one["reason"]) for one in bell.logged] == [("unsafe", "commands may write it")]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("unsafe",), "commands may write it"),
        (("/nowhere/program",), "it does not start: No such file or directory"),
        (("/bin/sh", "-c", "exit 3"), "it ends with status 3"),
        (("/bin/sh", "-c", "sleep 600"), "it does not end within"),
    ],
)
async def test_a_question_that_no_program_told_is_denied(
    argv: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "LONGEST_S", 0.3)
    bell = Bell(argv)
    assert await bell.ask() is Outcome.NO_SUBSCRIBER
    assert [one["reason"].startswith(reason) for one in bell.logged] == [True]


async def test_a_flood_of_questions_runs_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "A_MINUTE", 3)
    bell = Bell(("/bin/true",))
    event = Asked("q-1", "s-1", host_question(parse_host("a.test"), 443, "/w"), 9.0)
    for _ in range(100):
        bell.notifying.listen(event)
    assert len(bell.notifying._tasks) == 3 and not bell.notifying.can_tell()
    assert await bell.ask() is Outcome.NO_SUBSCRIBER, "no program tells of it"
    bell.now = 61.0
    assert bell.notifying.can_tell()
    await bell.notifying.aclose()


async def test_nothing_waits_without_a_program_or_subscriber() -> None:
    assert await Bell().ask() is Outcome.NO_SUBSCRIBER


def test_a_program_that_commands_could_write_is_none(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert safe_program(str(program), [str(tmp_path)])[0] is None
    assert safe_program("no-such-program", [])[0] is None
    assert safe_program("/etc/passwd", [])[0] is None
    assert os.path.basename(safe_program("tee", [])[0] or "") == "tee"
    assert safe_program("/bin/sh", [])[0] == "/bin/sh"
