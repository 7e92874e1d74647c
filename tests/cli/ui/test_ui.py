"""`sandboxd ui` on a fake daemon: its views as pictures, its keys, the mouse, floods and restarts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sandboxd.screens.blocked import KEPT
from sandboxd_client import RpcError
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.wire.messages.violations import ViolationRecord

from .conftest import EVIL, PLACE, STATE, Shown, of_rule, question, screens, violation

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"
VIEWS = {
    "now": ("1", "npm ci", "210 MiB", "80, 127.0.0.1:8080:80", "connected to: registry.test:443"),
    "questions": ("2", "May a command reach ask1.test:443?", "[a] yes, always (rule ask1.test:443"),
    "blocked": ("3", "read: rule ~/.netrc in /home/user/.claude/settings.json:4", "network: hostNotListed"),
    "policy": ("4", "a rule for a path", "registry.test", "locked", "managed-settings.json:2"),
    "layers": ("5", "degraded", "remedy: boot with lsm=landlock"),
}


async def test_each_view_is_as_in_its_picture(shown: Shown) -> None:
    """In 80 columns and 24 lines. The pictures are those of docs/screens.md; ./dev golden writes them."""
    for name, (key, *texts) in VIEWS.items():
        await shown.press(key)
        await shown.shows(*texts)
        picture = re.sub(r"@font-face \{.*?\}\s*", "", shown.app.export_screenshot(), flags=re.S)
        file = PICTURES / f"ui-{name}.svg"
        if os.environ.get("SANDBOXD_WRITE_GOLDEN"):
            file.write_text(picture)
        assert picture == file.read_text(), f"{name} looks different: ./dev golden"
        assert len(shown.text.splitlines()) == 24


async def test_keys_answer_a_question_and_it_disappears(shown: Shown) -> None:
    await shown.press("2")
    await shown.shows("ask1.test")
    shown.fake.notify("sandbox_permission_request", question(2, wide=True))
    await shown.shows("2 questions", "ask2.test")
    await shown.press("s")
    await shown.until(lambda: shown.sent("sandbox_permission_response"))
    answer = {"request_id": "q-1", "behavior": "allow", "scope": "session"}
    assert shown.sent("sandbox_permission_response") == [answer]
    ended = {"request_id": "q-1", "behavior": "allow", "scope": "session", "by": "pid 7", "text": "allowed"}
    shown.fake.notify("sandbox_permission_resolved", ended)
    await shown.shows("1 question (key 2)", "May a command reach ask2.test:443?")
    await shown.press("a")
    assert len(shown.sent("sandbox_permission_response")) == 1, "a wide yes needs the key twice"
    await shown.press("a")
    await shown.until(lambda: len(shown.sent("sandbox_permission_response")) == 2)
    assert shown.sent("sandbox_permission_response")[1]["confirm"] is True
    shown.fake.notify("sandbox_permission_resolved", {"request_id": "q-2", "behavior": "deny", "text": "no time"})
    await shown.shows("no open question", "no: no time")


async def test_a_long_command_hides_no_warning(daemon: FakeDaemon) -> None:
    asked = question(1, command="x" * 5000, warnings=["it may send what it reads"])
    daemon.answer("permission.subscribe", {"open": [asked]})
    async with screens(daemon) as shown:
        await shown.press("2")
        await shown.shows("careful: it may send what it reads", "[n] no", "xxxx")


async def test_a_key_for_a_question_that_went_answers_no_other(shown: Shown) -> None:
    shown.app.settle_s = 3600.0
    await shown.press("2")
    shown.fake.notify("sandbox_permission_request", question(2))
    shown.fake.notify("sandbox_permission_resolved", {"request_id": "q-1", "behavior": "deny", "text": "elsewhere"})
    await shown.shows("May a command reach ask2.test:443?")
    await shown.press("y", "a")
    await shown.pilot.pause()
    assert not shown.sent("sandbox_permission_response")


async def test_an_answer_that_does_not_count_says_why(shown: Shown) -> None:
    shown.fake.answer("sandbox_permission_response", RpcError("question_closed", "it is denied already", "look"))
    await shown.press("2")
    await shown.shows("ask1.test")
    await shown.pilot.click("#choices", offset=(2, 0))  # the mouse: "yes, once"
    await shown.until(lambda: any("denied already" in note.message for note in shown.app._notifications))
    assert shown.sent("sandbox_permission_response")[0]["scope"] == "once"


async def test_the_opening_rule_is_shown_and_then_written(shown: Shown) -> None:
    change = {"act": "add", "key": "sandbox.network.allowedDomains", "value": "no3.test:443"}
    answers = [RpcError("confirmation_needed", "this allows very much: no3.test", "repeat it")]

    def update(params: dict[str, object]) -> object:
        if params.get("preview"):
            return {"generation": 1, "file": "/l.json", "written": False, "difference": ["-[]", '+["no3.test:443"]']}
        return answers.pop() if answers else {"generation": 2, "file": "/l.json", "written": True}

    shown.fake.answer("violation.suggest", {"changes": [change]})
    shown.fake.answer("settings.update", update)
    await shown.press("3")
    await shown.shows("no3.test:443")
    await shown.press("down", "o")
    await shown.shows('+["no3.test:443"]', "/l.json:")
    assert shown.sent("violation.suggest") == [{"violation_id": 3}]
    await shown.press("w")
    await shown.shows("this allows very much", "press w again")
    await shown.press("w")
    await shown.until(lambda: len(shown.app.screen_stack) == 1)
    assert [params.get("confirm") for params in shown.sent("settings.update")] == [False, False, True]
    assert shown.sent("settings.update")[-1]["changes"] == [change]


async def test_violations_are_filtered_and_unfolded(shown: Shown) -> None:
    for number in range(10, 20):
        shown.fake.notify("sandbox_violation", {"cursor": f"e-{number}", "violation": violation(number)})
    await shown.press("3")
    await shown.shows("and 8 more", "⛔ 10 blocked", "13 of 13 shown")
    await shown.press("enter")
    await shown.shows("no2.test:443")
    await shown.press("k")
    await shown.shows("12 of 13 shown", "kind network")
    await shown.press("k", "slash", *"netrc")
    await shown.shows("1 of 13 shown", "kind read")
    await shown.press("escape")
    await shown.shows("13 of 13 shown")


async def test_rules_are_removed_added_and_explained(shown: Shown) -> None:
    shown.fake.answer("settings.update", {"generation": 1, "file": "/l", "written": False, "difference": ["+x"]})
    await shown.press("4")
    await shown.shows("registry.test")
    await shown.press("down", "d")  # of the user's own file: not changed here
    await shown.until(lambda: any("not removed" in note.message for note in shown.app._notifications))
    await shown.press("down", "d")
    await shown.until(lambda: shown.sent("settings.update"))
    removed = {"act": "remove", "key": "sandbox.network.allowedDomains", "value": "registry.test"}
    first = shown.sent("settings.update")[0]
    assert (first["changes"], first["cwd"], first["preview"]) == ([removed], "/home/user/web", True)
    await shown.press("escape", "down", "t")  # a switch that policy locks
    assert len(shown.sent("settings.update")) == 1
    await shown.press("a", *"deny read /x", "enter")
    await shown.until(lambda: len(shown.sent("settings.update")) == 2)
    assert shown.sent("settings.update")[1]["changes"] == [
        {"act": "add", "key": "sandbox.filesystem.denyRead", "value": "/x"}
    ]
    await shown.press("escape", "e", *"/etc/x", "enter")
    await shown.shows("allowed: read /etc/x")


async def test_one_command_is_ended_after_a_yes(shown: Shown) -> None:
    await shown.shows("210 MiB")
    await shown.press("k")
    await shown.shows("End npm ci?")
    await shown.press("n", "k", "y")
    await shown.until(lambda: shown.sent("command.kill"))
    assert shown.sent("command.kill") == [{"command_id": "w-1"}]


async def test_texts_of_commands_are_data(daemon: FakeDaemon) -> None:
    command = {**STATE["command.list"]["commands"][0], "command": EVIL}
    daemon.answer("command.list", {"commands": [command]})
    daemon.answer("permission.subscribe", {"open": [question(1, command=EVIL, host="x[/]y", text=EVIL)]})
    evil = violation(1, target=EVIL, command=EVIL, rule=EVIL, origin=PLACE, hint=EVIL)
    daemon.answer("violation.subscribe", {"violations": [evil], "total": 1, "hidden": 0, "cursor": "e-1"})
    async with screens(daemon, (120, 30)) as shown:
        for key in "123":
            await shown.press(key)
            await shown.shows("[bold red]x[/] \\u202eevil")
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown.text)


async def test_no_colours_where_none_are_wanted(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with screens(daemon) as shown:
        await shown.press("5")
        await shown.shows("degraded")
        found = re.findall("#[0-9a-f]{6}", shown.app.export_screenshot())
        coloured = [one for one in found if len({one[1:3], one[3:5], one[5:7]}) > 1]
        assert set(coloured) <= {"#ff5f57", "#febc2e", "#28c840", "#c5c8c6"}, "only the picture's frame"


async def test_a_hundred_thousand_violations_leave_it_responsive(shown: Shown) -> None:
    await shown.press("3")
    for number in range(4, 100_004):
        record = ViolationRecord(number, 1.0, "s-1", "c", "write", "openat", f"/t/{number}", "pathNotWritable", "x")
        shown.app.feed.history.take(record)
    shown.app.changed("blocked")
    await shown.shows("write: pathNotWritable", f"{KEPT} of {KEPT} shown, 100006 blocked")
    await shown.press("slash", *"/t/10000")
    await shown.shows("4 of 20000 shown")


async def test_a_restart_of_the_daemon_is_said_and_survived(daemon: FakeDaemon) -> None:
    async with screens(daemon) as shown:
        await shown.press("3")
        daemon.answer("permission.subscribe", RpcError("stopping", "the daemon is stopping"))
        daemon.disconnect()
        await shown.shows("NO CONNECTION")
        answer = {"violations": [of_rule(9)], "total": 9, "hidden": 0, "cursor": "e-9", "complete": True}
        daemon.answer("violation.subscribe", answer)
        daemon.answer("permission.subscribe", STATE["permission.subscribe"])
        await shown.shows("sandboxd · ", "4 of 4 shown")
        assert "NO CONNECTION" not in shown.text
        assert shown.sent("violation.subscribe")[-1] == {"since": "e-3"}
