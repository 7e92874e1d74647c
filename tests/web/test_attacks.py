"""Requests that must not be answered, each beside one that is: other names, origins, methods, paths, sizes, floods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from sandboxd.web import server
from sandboxd.web.access import Role
from sandboxd.web.certificate import context_of, made_in
from support.daemon import RunningDaemon
from support.web_page import Opened, opened_page


async def status(opened: Opened, method: str, path: str, headers: Mapping[str, str], body: object = None) -> int:
    """The status of one request with exactly these headers."""
    reader, writer = await asyncio.open_connection(opened.site.address, opened.site.port)
    text = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, f"Content-Length: {len(text)}", "Connection: close", "", ""]).encode() + text)
    answer = await reader.read()
    writer.close()
    head = answer.partition(b"\r\n\r\n")[0].decode()
    if " 400 " not in head.splitlines()[0] and "Host" in headers:
        assert "default-src 'none'" in head and "frame-ancestors 'none'" in head and "no-referrer" in head
        assert "nosniff" in head and "Access-Control" not in head and "unsafe" not in head
    return int(head.split()[1])


def rows(port: int) -> list[tuple[str, str, dict[str, str], int]]:
    own, origin = {"Host": f"127.0.0.1:{port}"}, {"Origin": f"http://127.0.0.1:{port}"}
    json_type = {"Content-Type": "application/json"}
    return [
        ("GET", "/", own, 200),
        ("HEAD", "/", own, 200),
        ("GET", "/page.js", {"Host": f"localhost:{port}"}, 200),
        # rebinding: a name that leads here, and names like that of the page
        ("GET", "/", {"Host": f"evil.test:{port}"}, 421),
        ("GET", "/", {"Host": "127.0.0.1"}, 421),
        ("GET", "/", {"Host": f"127.0.0.1:{port}.evil.test"}, 421),
        ("GET", "/", {"Host": f"localhost:{port + 1}"}, 421),
        ("GET", "/", {}, 400),
        # other origins, also one of another port of this machine
        ("GET", "/page.js", {**own, "Origin": "http://evil.test"}, 403),
        ("GET", "/page.js", {**own, "Origin": "null"}, 403),
        ("GET", "/page.js", {**own, "Sec-Fetch-Site": "same-site"}, 403),
        ("GET", "/page.js", {**own, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ("GET", "/", {**own, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ("POST", "/login", {**own, **json_type}, 403),
        ("POST", "/login", {**own, **json_type, "Origin": f"http://127.0.0.1:{port + 1}"}, 403),
        ("POST", "/login", {**own, **json_type, "Origin": f"https://127.0.0.1:{port}"}, 403),
        ("POST", "/login", {**own, **origin, "Content-Type": "text/plain"}, 415),
        ("POST", "/login", {**own, **origin, **json_type}, 403),
        # methods and paths
        ("GET", "/login", own, 405),
        ("POST", "/", {**own, **origin}, 405),
        ("OPTIONS", "/rpc", {**own, **origin, "Access-Control-Request-Method": "POST"}, 405),
        ("TRACE", "/", own, 405),
        ("GET", "/../server.py", own, 404),
        ("GET", "/%2e%2e/server.py", own, 404),
        ("GET", "/static/page.js", own, 404),
        ("GET", "//page.js", own, 404),
        ("GET", "/page.js%00", own, 404),
        ("GET", "/rpc", own, 401),
        ("GET", "/metrics", own, 401),
        ("GET", "/metrics", {**own, "Authorization": "Bearer guess"}, 401),
    ]


async def test_only_the_page_itself_is_answered(opened: Opened) -> None:
    found = [
        (method, path, headers, await status(opened, method, path, headers, {"token": "guess", "name": ""}))
        for method, path, headers, _ in rows(opened.site.port)
    ]
    assert found == rows(opened.site.port)


async def test_a_channel_needs_cookie_key_and_origin_or_a_token(opened: Opened) -> None:
    http, key = await opened.browser()
    other, _ = await opened.browser()
    token = opened.door.program("bot", Role.WATCH).secret

    async def answered(client: aiohttp.ClientSession, headers: Mapping[str, str], key: object = None) -> object:
        try:
            async with client.ws_connect("/rpc", headers=headers) as socket:
                if key is not None:
                    await socket.send_json({"params": {"key": key}})
                with contextlib.suppress(ConnectionError):  # it may have been closed by now
                    await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "hello"})
                message = await socket.receive(timeout=20)
                return message.data if message.type is aiohttp.WSMsgType.CLOSE else json.loads(message.data)["id"]
        except aiohttp.WSServerHandshakeError as refusal:
            return refusal.status

    stranger = await opened.http()
    bearer = {"Authorization": f"Bearer {token}"}
    assert await answered(http, opened.origin, key) == 1
    assert await answered(stranger, bearer) == 1
    for client, headers, given, refusal in (
        (http, {}, key, 401),
        (http, {"Origin": "http://evil.test"}, key, 403),
        (http, opened.origin, "guess", 4401),
        (http, opened.origin, 7, 4401),
        (other, opened.origin, key, 4401),
        (stranger, opened.origin, key, 401),
        (stranger, {}, None, 401),
        (stranger, {"Authorization": "Bearer guess"}, None, 401),
        (stranger, {**bearer, "Origin": "http://evil.test"}, None, 403),
        (stranger, {**bearer, "Host": "evil.test"}, None, 421),
    ):
        assert await answered(client, headers, given) == refusal, (headers, given)


async def test_cookies_are_strict_and_secrets_are_nowhere(opened: Opened) -> None:
    """Neither in the log of the daemon, nor in an address, which a browser could pass on."""
    token = opened.door.link(Role.WATCH)
    http = await opened.http()
    async with http.post("/login", json={"token": token, "name": "x"}, headers=opened.origin) as answer:
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie and "Domain" not in cookie
        found = await answer.json()
    secret = cookie.partition("=")[2].partition(";")[0]
    for one in (token, secret, found["key"]):
        assert len(one) > 40 and one not in opened.log.text and one not in repr(opened.door.sessions)
    async with http.post("/login", json={"token": token, "name": "x"}, headers=opened.origin) as again:
        assert again.status == 403


async def test_frames_of_odd_sizes_and_kinds_end_one_channel(opened: Opened) -> None:
    watching = await opened.channel(Role.WATCH)
    for size, binary in (64 << 10, False), (2, True):
        victim = await opened.program(Role.WATCH)
        await (victim.socket.send_bytes(b"{}") if binary else victim.socket.send_str("x" * size))
        message = await victim.socket.receive(timeout=20)
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message
    for text, code in (
        ("{", -32700),
        ("[]", -32600),
        ('{"method": 1}', -32600),
        ('{"jsonrpc":"2.0","id":[],"method":"x"}', -32600),
    ):
        await watching.socket.send_str(text)
        assert (await watching.told())["error"]["code"] == code
    assert await watching.result("hello")


async def test_revoked_sessions_lose_their_channels_at_once(opened: Opened) -> None:
    one, other = await opened.program(Role.WATCH), await opened.program(Role.WATCH)
    first, _ = opened.door.sessions
    assert await one.result("hello") and await other.result("hello")
    opened.page.end(opened.door.revoke(first.id))
    assert (await one.socket.receive(timeout=20)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    assert await other.result("hello")


async def test_a_thousand_silent_connections_keep_no_browser_out(opened: Opened) -> None:
    """Slow clients are such: nothing is known of them until a whole request has come."""
    watching = await opened.channel()
    silent = []
    for number in range(1000):
        reader, writer = await asyncio.open_connection(opened.site.address, opened.site.port)
        writer.write(b"GET / HTTP/1.1\r\nHost:"[: number % 20])
        silent.append((reader, writer))
    assert len(opened.page.unknown) <= server.MOST_CONNECTIONS + 1
    assert await (await opened.channel()).result("hello") and await watching.result("hello")
    for _, writer in silent:
        writer.close()


async def test_slow_connections_have_little_time(
    running: object, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    monkeypatch.setattr(server, "UNKNOWN_S", 0.05)
    reader, writer = await asyncio.open_connection(opened.site.address, opened.site.port)
    writer.write(b"GET / HTTP/1.1\r\n")
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_the_page_serves_only_while_its_port_is_closed(opened: Opened) -> None:
    own = {"Host": f"127.0.0.1:{opened.site.port}"}
    watching = await opened.channel()
    async with opened.daemon.client() as client:
        explain = {"kind": "host", "target": f"localhost:{opened.site.port}"}
        assert (await client.result("policy.explain", explain))["reason"]["type"] == "portClosed"
    opened.daemon.daemon.connections.hang_up()
    assert (await watching.socket.receive(timeout=20)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    async with asyncio.timeout(20):
        while await status(opened, "GET", "/", own) != 200:
            pass


async def test_other_devices_pair_over_tls(running: RunningDaemon, tmp_path: Path) -> None:
    """With a certificate that is made once, and by the code that the device shows."""
    paths = made_in(str(tmp_path), "127.0.0.2")
    assert paths == made_in(str(tmp_path), "127.0.0.2") and Path(paths[0]).stat().st_mode & 0o777 == 0o600
    context, fingerprint = context_of(*paths)
    async with opened_page(running, "127.0.0.2", context) as opened:
        trust = ssl.create_default_context(cafile=paths[0])
        http = await opened.http(connector=aiohttp.TCPConnector(ssl=trust))
        pinned = aiohttp.Fingerprint(bytes.fromhex(fingerprint.replace(":", "")))
        shown = await opened.http(connector=aiohttp.TCPConnector(ssl=pinned))
        async with shown.get("/") as answer:
            assert answer.status == 200
        async with http.post("/pair", json={"name": "phone"}, headers=opened.origin) as answer:
            asked = await answer.json()
        secret = {"secret": asked["secret"]}
        async with http.post("/paired", json=secret, headers=opened.origin) as answer:
            assert await answer.json() == {"waiting": True}
        opened.door.approve(asked["code"], Role.ANSWER)
        async with http.post("/paired", json=secret, headers=opened.origin) as answer:
            key, cookie = (await answer.json())["key"], answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-sandboxd=") and "Secure" in cookie
        async with http.post("/paired", json=secret, headers=opened.origin) as answer:
            assert answer.status == 403, "once"
        async with http.ws_connect("/rpc", headers=opened.origin) as socket:
            await socket.send_json({"params": {"key": key}})
            await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "hello"})
            assert (await socket.receive_json(timeout=20))["result"]["role"] == "answer"
        plain = await opened.http()
        with pytest.raises(aiohttp.ClientError):
            await plain.get(opened.site.url.replace("https", "http"))


async def test_a_link_opens_nothing_from_another_machine(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOPBACK", ())
    http = await opened.http()
    token = opened.door.link(Role.WATCH)
    async with http.post("/login", json={"token": token, "name": ""}, headers=opened.origin) as answer:
        assert answer.status == 403 and "pair" in await answer.text()
    assert opened.door.redeem(token, "").session, "nothing was used up"
