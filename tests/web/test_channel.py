"""What a channel answers by its role, and that the views follow what happens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from sandboxd.web.access import METHODS, Role
from sandboxd.web.channel import MOST_WAITING, PageChannel
from support.daemon import running_daemon
from support.fake_runtime import FakeMachine
from support.waiting import wait_until_async
from support.web_page import Opened, opened_page

MARKUP = "<img src=x onerror=alert(1)>\"'&"


async def test_roles_are_enforced_on_the_server(opened: Opened) -> None:
    channels = {role: await opened.program(role) for role in Role}
    for method, needed in METHODS.items():
        for role, channel in channels.items():
            answer = await channel.call(method, {"no_such_parameter": 1})
            assert (answer["error"]["data"]["slug"] == "not_permitted") is (role < needed), (method, role, answer)
    for role, channel in channels.items():
        for method in ("wrap", "shutdown", "permission.request", "policy.close_ports"):
            assert await channel.refused(method) == "method_not_found"
        always = {"request_id": "q", "behavior": "allow", "scope": "always"}
        slug = "question_unknown" if role is Role.ADMINISTER else "not_permitted"
        assert await channel.refused("sandbox_permission_response", always) == slug
        answer = {"request_id": "q", "key": "y"}
        assert await channel.refused("screen.answer", answer) == (
            "not_permitted" if role is Role.WATCH else "question_closed"
        )


async def test_each_view_has_its_rows(opened: Opened) -> None:
    channel = await opened.channel(Role.WATCH)
    async with opened.daemon.client() as client:
        session = await client.result("session.open", {"cwd": str(opened.daemon.around.project), "name": MARKUP})
        now = await channel.screen("now")
        assert [one["name"] for one in now["sessions"]] == [MARKUP], "text is data, as it is"
        assert session["session_id"] == now["sessions"][0]["session_id"]
    assert (await channel.screen("policy"))["lists"]["allow host"] == "sandbox.network.allowedDomains"
    assert (await channel.screen("layers"))["sentence"]
    assert await channel.screen("questions") == {"open": [], "outcomes": [], "known": False}
    assert await channel.refused("screen.show", {"view": "secrets"}) == "invalid_params"
    explained = await channel.result("screen.explain", {"text": "no.test:443"})
    assert explained["behavior"] == "ask" and "no.test" in explained["sentence"]


async def test_what_was_blocked_comes_by_itself_and_filtered(opened: Opened, machine: FakeMachine) -> None:
    watching, filtered, program = (
        await opened.channel(Role.WATCH),
        await opened.channel(),
        await opened.program(Role.WATCH),
    )
    assert (await watching.screen("blocked"))["total"] == 0
    assert (await filtered.screen("blocked", text="other"))["shown"] == 0
    await program.result("violation.subscribe")
    async with opened.daemon.client() as client:
        session_id = (await client.result("session.open", {"cwd": str(opened.daemon.around.project)}))["session_id"]
        await client.result("wrap", {"session_id": session_id, "argv": ["x"]})
        (launch,) = machine.backend.launches
        launch.start()

        def block(target: str) -> None:
            launch.observer.refused(DenialEvent(ViolationKind.WRITE, "openat", target, ViolationSource.SECCOMP))

        block(MARKUP)
        told = await program.told()
        assert (told["method"], told["params"]["violation"]["target"]) == ("sandbox_violation", MARKUP)
        while not (rows := await watching.next_screen("blocked"))["groups"]:
            pass
        (group,) = rows["groups"]
        assert (group["count"], group["rows"], group["more"]) == (1, [], 1)
        unfolded = await watching.screen("blocked", unfolded=[[group["title"], group["place"]]])
        assert unfolded["groups"][0]["rows"][0]["target"] == MARKUP
        block("an-other.test")
        while not (rows := await filtered.next_screen("blocked"))["groups"]:
            pass
        assert (rows["shown"], rows["kept"]) == (1, 2)


@pytest.mark.parametrize("key", ["y", "n"])
async def test_the_first_answer_counts_and_all_see_it(opened: Opened, key: str) -> None:
    channels = [await opened.channel(), await opened.channel(Role.ANSWER), await opened.program(Role.ANSWER)]
    page, phone, bot = channels
    assert (await bot.result("permission.subscribe"))["open"] == []
    for channel in (page, phone):
        await channel.screen("questions")
    async with opened.daemon.client_in_a_child() as agent:
        asking = agent.request("permission.request", {
            "kind": "network", "host": "ask.test", "port": 443, "cwd": str(opened.daemon.around.project),
        })  # fmt: skip
        told = (await bot.told())["params"]
        assert told["host"] == "ask.test"
        rows = {}
        for name, channel in (("page", page), ("phone", phone)):
            while not (shown := (await channel.next_screen("questions"))["open"]):
                pass
            rows[name] = {choice["key"] for choice in shown[0]["choices"]}
        assert "a" in rows["page"] and "a" not in rows["phone"] and {"y", "n"} <= rows["phone"]
        answer = {"request_id": told["request_id"], "key": key}
        assert await phone.refused("screen.answer", {**answer, "key": "a"}) == "not_permitted"
        done = await phone.result("screen.answer", answer)
        assert done["behavior"] == {"y": "allow", "n": "deny"}[key]
        assert await page.refused("screen.answer", answer) == "question_closed"
        while (message := await agent.receive()).get("id") != asking:
            pass
        assert message["result"]["behavior"] == done["behavior"]
        while (resolved := await bot.told())["method"] != "sandbox_permission_resolved":
            pass
        assert resolved["params"]["request_id"] == told["request_id"]


async def test_programs_that_tell_of_questions_get_the_link(tmp_path: Path, machine: FakeMachine) -> None:
    """As long as the page is open; it holds no secret, and leads nowhere but to a port that commands do not reach."""
    shown = tmp_path / "shown"
    program = ["/bin/sh", "-c", f'cat >> "{shown}"; echo "${{SANDBOXD_LINK-none}}" >> "{shown}"']
    settings = {"sandbox": {"enabled": True, "prompts": {"notify": [program]}}}
    async with running_daemon(settings=settings, assemble=machine.assemble) as daemon:
        async with daemon.client() as agent:
            cwd = str(daemon.around.project)

            async def told(host: str, lines: int) -> tuple[Any, str]:
                agent.request("permission.request", {"kind": "network", "host": host, "port": 443, "cwd": cwd})
                await wait_until_async(lambda: shown.exists() and shown.read_text().count("\n") == lines)
                facts, link = shown.read_text().splitlines()[-2:]
                return json.loads(facts), link

            async with opened_page(daemon) as page:
                facts, link = await told("one.test", 2)
                assert facts["link"] == link == f"{page.site.url}#{facts['request_id']}"
                for address in ("https://evil.test/", f"http://a@127.0.0.1:{page.site.port}/", "http://h:1/#x", "x:1/"):
                    asked = {"ports": [page.site.port], "page": address}
                    assert (await agent.call("policy.close_ports", asked))["error"]["data"]["slug"] == "invalid_params"
            await wait_until_async(lambda: not daemon.daemon.closed_ports.page())
            facts, link = await told("two.test", 4)
            assert "link" not in facts and link == "none"


async def test_the_daemon_hears_of_no_watcher_that_cannot_answer(opened: Opened) -> None:
    """A question without a client that can answer is refused at once, and does not wait."""

    async def subscribers() -> int:
        async with opened.daemon.client() as client:
            return int((await client.result("permission.list"))["subscribers"])

    async def become(count: int) -> None:
        async with asyncio.timeout(20):
            while await subscribers() != count:
                pass

    await (await opened.program(Role.WATCH)).result("hello")
    assert await subscribers() == 0
    answering = await opened.program(Role.ANSWER)
    await become(1)
    await answering.socket.close()
    await become(0)


async def test_a_change_is_shown_before_it_is_written(opened: Opened) -> None:
    channel = await opened.channel()
    changes = [{"act": "add", "key": "sandbox.network.allowedDomains", "value": "new.test"}]
    shown = await channel.result("settings.update", {"changes": changes, "preview": True})
    assert "new.test" in json.dumps(shown["difference"]) and not shown["written"]
    assert (await channel.result("screen.explain", {"text": "new.test:443"}))["behavior"] == "ask"
    await channel.screen("policy")
    await channel.result("settings.update", {"changes": changes})
    rules = (await channel.next_screen("policy"))["rules"]
    assert ("new.test", True) in {(one["text"], one["removable"]) for one in rules}


async def test_a_program_that_does_not_read_is_cut(opened: Opened) -> None:
    class Transport(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    entry, transport = opened.door.program("bot", Role.WATCH), Transport()
    slow = PageChannel(opened.page.hub, opened.door, entry.session, web.WebSocketResponse(), transport)
    slow._feeds.add("sandbox_violation")
    for _ in range(MOST_WAITING):
        slow.tell("sandbox_violation", {})
        slow.tell("sandbox_permission_request", {})
    assert not transport.aborted
    slow.tell("sandbox_violation", {})
    assert transport.aborted
