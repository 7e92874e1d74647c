"""The page in a real browser: how it lets in, shows and answers, and that text from commands stays text."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandboxd.cli.web import opening_page
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from sandboxd.web.access import Role
from sandboxd_client.wire.messages.violations import ViolationRecord
from support.browser import Chromium, Tab
from support.fake_runtime import FakeHandle, FakeMachine
from support.rpc import RawClient
from support.web_page import Opened

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>"\'&'
CLICK_NO = (
    "[...document.querySelectorAll('[data-question] button')].find((one) => one.innerText.includes('[n]')).click()"
)
IN = "document.getElementById('state').textContent.startsWith('connected')"


async def let_in(opened: Opened, browser: Chromium, role: Role = Role.ADMINISTER, **look: Any) -> Tab:
    tab = await browser.tab(f"{opened.site.url}#{opened.door.link(role)}", own=True, **look)
    await tab.wait(IN)
    return tab


async def show(tab: Tab, view: str) -> None:
    await tab.value(f"document.getElementById('tab-{view}').click()")
    await tab.wait("state.rows !== null")


async def keep(tab: Tab, name: str) -> None:
    """Renew a picture of docs/screens.md where that is wanted."""
    if "SANDBOXD_WRITE_GOLDEN" in os.environ:
        await tab.picture(PICTURES / f"{name}.webp")


async def start(
    client: RawClient, machine: FakeMachine, opened: Opened, name: str, line: str
) -> tuple[str, FakeHandle]:
    project = str(opened.daemon.around.project)
    session_id = (await client.result("session.open", {"cwd": project, "name": name}))["session_id"]
    await client.result("wrap", {"session_id": session_id, "command": line, "command_text": line})
    launch = machine.backend.launches[-1]
    launch.start()
    return session_id, launch


def block(launch: FakeHandle, target: str, process: str = "npm", kind: ViolationKind = ViolationKind.WRITE) -> None:
    operation = "openat" if kind is ViolationKind.WRITE else "connect"
    launch.observer.refused(DenialEvent(kind, operation, target, ViolationSource.SECCOMP, process=process))


def ask(agent: RawClient, session_id: str, host: str, command: str) -> int:
    return agent.request("permission.request", {
        "kind": "network", "host": host, "port": 443, "session_id": session_id, "command": command,
    })  # fmt: skip


async def test_the_five_views_and_their_pictures(opened: Opened, browser: Chromium, machine: FakeMachine) -> None:
    tab = await let_in(opened, browser)
    assert await tab.value("location.hash + location.search") == "", "no secret stays in the address"
    async with opened.daemon.client() as client, opened.daemon.client_in_a_child() as agent:
        session_id, launch = await start(client, machine, opened, "shop", "npm install left-pad")
        for number in range(4):
            block(launch, f"/home/me/.npmrc{number or ''}")
        block(launch, "/usr/local/bin/tool", "make")
        await show(tab, "now")
        await tab.wait("document.querySelectorAll('#panel tbody tr').length === 2")
        assert "npm install left-pad" in await tab.text()
        await keep(tab, "web-now")
        await show(tab, "questions")
        ask(agent, session_id, "registry.test", "npm install left-pad")
        await tab.wait("document.querySelector('[data-question]')")
        await keep(tab, "web-questions")
        phone = await let_in(opened, browser, Role.ANSWER, width=390, height=760, dark=True)
        await show(phone, "questions")
        await phone.wait("document.querySelector('[data-question]')")
        assert await phone.value("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut on a phone"
        await keep(phone, "web-phone")
        await show(tab, "blocked")
        await tab.wait("document.querySelector('#panel details')")
        await tab.value("document.querySelector('#panel summary').click()")
        await tab.wait("document.querySelector('#panel details tbody tr')")
        await keep(tab, "web-blocked")
        await show(tab, "policy")
        assert "pypi.test" in await tab.text()
        await tab.value("document.querySelector('#tools input').value = 'evil.test:443'")
        await tab.value("document.querySelector('#tools form').requestSubmit()")
        await tab.wait("document.querySelector('#tools [role=status]').innerText.includes('evil.test')")
        await keep(tab, "web-policy")
        await show(tab, "layers")
        await tab.wait("document.querySelectorAll('#panel tbody tr').length > 0")
    assert tab.complaints == [] and phone.complaints == []


async def test_a_private_file_opens_the_page(opened: Opened, browser: Chromium, tmp_path: Path) -> None:
    """As `--open` does it, so that the link is in the arguments of no process; and it opens once."""
    link = f"{opened.site.url}#{opened.door.link(Role.WATCH)}"
    file = tmp_path / "link.html"
    file.write_text(opening_page(link))
    tab = await browser.tab(f"file://{file}", own=True)
    await tab.wait(IN)
    assert await tab.value("location.href") == opened.site.url
    again = await browser.tab(link, own=True)
    await again.wait("document.getElementById('said').textContent.includes('this link was used')")


async def test_text_of_commands_is_never_markup(opened: Opened, browser: Chromium, machine: FakeMachine) -> None:
    """In names of sessions, commands, paths, hosts and processes, in each view that shows them."""
    tab = await let_in(opened, browser)
    async with opened.daemon.client() as client, opened.daemon.client_in_a_child() as agent:
        session_id, launch = await start(client, machine, opened, MARKUP, MARKUP)
        block(launch, f"/srv/{MARKUP}", MARKUP)
        block(launch, f"{MARKUP}.test:443", MARKUP, ViolationKind.NETWORK)
        ask(agent, session_id, "ask.test", MARKUP)
        for view, ready in (
            ("now", "#panel tbody tr"),
            ("questions", "[data-question]"),
            ("blocked", "#panel summary"),
        ):
            await show(tab, view)
            await tab.wait(f"document.querySelector({json.dumps(ready)})")
            await tab.value("document.querySelectorAll('#panel summary').forEach((one) => one.click())")
            await tab.wait(f"document.body.textContent.includes({json.dumps(MARKUP)})")
            found = "document.querySelectorAll('img, #panel script, body script').length + Number(window.hit || 0)"
            assert await tab.value(found) == 0
    assert tab.complaints == []


async def test_answers_by_key_and_by_click(opened: Opened, browser: Chromium, machine: FakeMachine) -> None:
    page, other = await let_in(opened, browser), await let_in(opened, browser, Role.ANSWER)
    async with opened.daemon.client() as client, opened.daemon.client_in_a_child() as agent:
        session_id, _ = await start(client, machine, opened, "shop", "npm install")
        for tab in (page, other):
            await show(tab, "questions")
        for host, behavior, act in (
            ("one.test", "allow", lambda: page.press("y")),
            ("two.test", "deny", lambda: page.value(
                CLICK_NO
            )),
        ):  # fmt: skip
            number = ask(agent, session_id, host, "npm install")
            for tab in (page, other):
                await tab.wait("document.querySelector('[data-question]')")
                assert "question waits" in await tab.value("document.getElementById('said').textContent")
            tree = await page.send("Accessibility.getFullAXTree")
            roles = {node["role"]["value"] for node in tree["nodes"] if "role" in node}
            assert {"tablist", "tab", "tabpanel", "alert", "status", "heading", "button"} <= roles
            await act()
            while (message := await agent.receive()).get("id") != number:
                pass
            assert message["result"]["behavior"] == behavior
            for tab in (page, other):
                await tab.wait("!document.querySelector('[data-question]')")
    labels = await other.value(
        "[...document.querySelectorAll('[role=tab]')].map((one) => one.getAttribute('aria-selected'))"
    )
    assert labels.count("true") == 1
    await page.value("document.getElementById('tab-questions').focus()")
    await page.press("ArrowRight")
    assert await page.value("document.activeElement.id") == "tab-blocked"
    await page.press("1")
    assert await page.value("document.activeElement.id") == "tab-now"


async def test_a_rule_is_shown_before_it_is_written(opened: Opened, browser: Chromium, machine: FakeMachine) -> None:
    tab = await let_in(opened, browser)
    async with opened.daemon.client() as client:
        _, launch = await start(client, machine, opened, "shop", "npm install")
        block(launch, "new.test:443", kind=ViolationKind.NETWORK)
        await show(tab, "policy")
        await tab.value("document.querySelector('[name=rule]').value = 'new.test'")
        await tab.value("document.querySelector('[name=rule]').form.requestSubmit()")
        await tab.wait("document.querySelector('[data-key=write]')")
        assert "new.test" in await tab.value("document.querySelector('pre').innerText")
        asked = {"kind": "host", "target": "new.test:443"}
        assert (await client.result("policy.explain", asked))["behavior"] == "ask"
        assert await tab.value("document.activeElement.dataset.key") == "write"
        await tab.press("Enter")
        await tab.value("document.activeElement.click()")
        await tab.wait("[...document.querySelectorAll('#panel td')].some((one) => one.innerText === 'new.test')")
        assert (await client.result("policy.explain", asked))["behavior"] == "allow"


async def test_a_link_leads_to_its_question(opened: Opened, browser: Chromium, machine: FakeMachine) -> None:
    """Without a secret: a browser that was not let in says how to log in, and goes on there once it is."""
    shown = "document.activeElement.dataset.question"
    async with opened.daemon.client() as client, opened.daemon.client_in_a_child() as agent:
        session_id, _ = await start(client, machine, opened, "shop", "npm install")
        tab = await browser.tab(opened.site.url, own=True)
        await tab.wait("!document.getElementById('entry').hidden")
        program = await opened.program(Role.ANSWER)
        await program.result("permission.subscribe")
        numbers = [ask(agent, session_id, f"{name}.test", "npm install") for name in ("one", "two")]
        questions = [(await program.told())["params"]["request_id"] for _ in numbers]
        await tab.value(f"location.hash = '{questions[1]}'")
        assert await tab.value("document.getElementById('main').hidden")
        await tab.value(f"""(async () => {{
            const found = await post("/login", {{ token: "{opened.door.link(Role.ANSWER)}", name: "another tab" }});
            const frame = document.body.appendChild(document.createElement("iframe"));
            frame.contentWindow.localStorage.setItem("sandboxd-key", found.key);
            frame.remove(); }})()""")
        await tab.wait(f"{shown} === '{questions[1]}'")
        await tab.press("1")
        await tab.value(f"location.hash = '{questions[0]}'")
        await tab.wait(f"{shown} === '{questions[0]}'")
        await tab.press("n")
        while (await agent.receive()).get("id") != numbers[0]:
            pass
        await tab.value(f"location.hash = '{questions[0]}'")
        await tab.wait("document.getElementById('said').textContent.startsWith('This question was answered: no')")
        assert await tab.value("location.href") == opened.site.url
        assert await tab.value("document.querySelectorAll('[data-question]').length") == 1, "the other one waits"
    assert tab.complaints == []


@asynccontextmanager
async def evil(opened: Opened) -> AsyncIterator[tuple[str, list[str]]]:
    """A page on another port of this machine, as a command's published server: same site, other origin."""
    cookies: list[str] = []
    target = opened.site.url

    async def page(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie", ""))
        script = f"""<iframe src="{target}"></iframe><script>
          window.found = {{}};
          const note = (name) => (what) => {{ found[name] = String(what && what.status || what).slice(0, 60); }};
          fetch("{target}page.js", {{credentials: "include"}}).then(note("fetch"), () => note("fetch")("refused"));
          fetch("{target}login", {{method: "POST", mode: "no-cors", credentials: "include", body: "{{}}"}})
            .then(note("post"), () => note("post")("refused"));
          const socket = new WebSocket("{target.replace("http", "ws")}rpc");
          socket.onopen = () => note("socket")("open"); socket.onerror = () => note("socket")("refused");
        </script>"""
        return web.Response(text=script, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/", cookies
    await runner.cleanup()


async def test_a_server_at_another_port_gets_nowhere(opened: Opened, browser: Chromium) -> None:
    """Not even with the cookie, which browsers send to every port of a host: the key is that of one origin."""
    tab = await let_in(opened, browser)
    async with evil(opened) as (url, cookies):
        await tab.send("Page.navigate", url=url)
        await tab.wait("window.found && Object.keys(found).length === 3")
        found = await tab.value("found")
        assert (found["fetch"], found["socket"]) == ("refused", "refused")
        assert (
            await tab.value("(() => { try { return localStorage.getItem('sandboxd-key'); } catch { return null } })()")
            is None
        )
        stolen = cookies[0].partition("=")[2]
        assert stolen and opened.door.has_cookie(stolen) and opened.door.session_of(stolen) is None
        frames = (await tab.send("Page.getFrameTree"))["frameTree"].get("childFrames", [])
        assert all("chrome-error" in one["frame"]["url"] for one in frames), frames


async def test_it_connects_again_and_says_so(opened: Opened, browser: Chromium) -> None:
    tab = await let_in(opened, browser)
    await tab.value("""window.seen = []; window.line = document.getElementById("state");
        new MutationObserver(() => seen.push(line.className)).observe(line, {attributes: true, childList: true})""")
    opened.daemon.daemon.connections.hang_up()
    await tab.wait("seen.includes('away')")
    await tab.wait(IN)
    opened.page.end(opened.door.revoke("all"))
    await tab.wait("!document.getElementById('entry').hidden")
    assert await tab.value("localStorage.length") == 0


async def test_figures(
    opened: Opened, browser: Chromium, machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Page load, 10,000 violations, an event to the screen, memory."""
    tab = await let_in(opened, browser)
    loaded = await tab.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
    size = await tab.value("performance.getEntries().reduce((sum, one) => sum + (one.transferSize || 0), 0)")
    history = opened.page.hub._state.history
    for number in range(10_000):
        history.take(ViolationRecord(
            10**6 + number, time.time(), f"s-{number % 20}", "c", "write", "openat", f"/srv/{number}", "notWritable",
            "seccomp", process="npm", rule=f"rule {number % 300}", command="npm install",
        ))  # fmt: skip
    async with opened.daemon.client() as client:
        _, launch = await start(client, machine, opened, "shop", "npm install")
        before = time.perf_counter()
        await show(tab, "blocked")
        await tab.wait("document.querySelectorAll('#panel details').length === 200")
        shown_s = time.perf_counter() - before
        took = []
        for number in range(15):
            await tab.value(f"""window.arrived = new Promise((done) => new MutationObserver((_, one) => {{
                if (document.getElementById("panel").textContent.includes("of {10_001 + number} kept")) {{
                  one.disconnect(); requestAnimationFrame(() => done(Date.now())); }}
              }}).observe(document.getElementById("panel"), {{childList: true, subtree: true}})); 1""")
            await asyncio.sleep(0.5)
            begun = time.time() * 1000
            block(launch, f"/event/{number}")
            took.append(await tab.value("arrived") - begun)
    heap = (await tab.send("Runtime.getHeapUsage"))["usedSize"]
    with capsys.disabled():
        print(f"\npage load {loaded:.0f} ms, {size / 1000:.1f} KB; heap {heap / 1e6:.1f} MB")
        print(f"10,000 violations shown after {shown_s * 1000:.0f} ms")
        print(f"event to screen {statistics.median(took):.0f} ms (median), {max(took):.0f} ms (most)")
