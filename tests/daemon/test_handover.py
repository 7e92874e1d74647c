"""One daemon after another, in this process: real sandboxes, and clients that notice nothing (design 9)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import termios
import time
from collections.abc import Callable
from typing import Any

import pytest

from sandboxd.app import compose, handover
from sandboxd.app.platform import LaunchHandover, Platform
from sandboxd.backends.base import ConnectAttempt, LaunchHandle, Observer
from sandboxd.plan.host_facts import ResolvedPath
from sandboxd.runtime import temporary_directories
from sandboxd.runtime.session import Inherited, SandboxSession
from sandboxd.runtime.tree_removal import remove_tree
from support.daemon import Successive, successive_daemons
from support.fake_runtime import FakeMachine
from support.origin import serve_origin
from support.rpc import RawClient
from support.waiting import wait_until_async

SETTINGS = {"sandbox": {"enabled": True, "network": {"allowedDomains": ["ok.test"]}}}
NAMES = {"ok.test": "127.0.0.1", "ask.test": "127.0.0.1"}

FULL = 100_000
ANSWERS = 60
"""Of settings.schema: more than the kernel holds for a client."""

# Keeps one tunnel open and sends on it what it is told, a line at a time; says what comes back.
TUNNEL = """
import socket, sys
proxy = socket.create_connection(("127.0.0.1", 3128))
proxy.sendall(b"CONNECT ok.test:%s HTTP/1.1\\r\\n\\r\\n" % sys.argv[1].encode())
head = b""
while b"\\r\\n\\r\\n" not in head: head += proxy.recv(1)
print("connected", flush=True)
for line in sys.stdin:
    proxy.sendall(line.encode())
    answer = b""
    while not answer.endswith(b"\\n"): answer += proxy.recv(100)
    print(answer.decode().strip(), flush=True)
proxy.shutdown(socket.SHUT_WR)
print("rest", proxy.recv(100), flush=True)
"""


class LastingMachine(FakeMachine):
    """One whose commands outlive the daemon."""

    @property
    def machine(self) -> Platform:
        made = super().machine

        def resume(launch_id: str, observer: Observer) -> LaunchHandle | None:
            found = next((one for one in self.backend.launches if one.launch_id == launch_id), None)
            if found is not None:
                found.observer = observer
            return found

        async def prepared(patience_s: float) -> None:
            return

        launch_handover = LaunchHandover(prepared, lambda outgoing: None, Inherited(resume, _no_inside), list)
        return Platform(made.backend, made.planner, made.steps, made.layers, launch_handover=launch_handover)


def _no_inside(descriptor: int) -> Any:
    raise AssertionError("a fake sandbox has no network")


async def told(client: RawClient, method: str) -> Any:
    while (message := await client.receive()).get("method") != method:
        pass
    return message["params"]


async def spawn(daemons: Successive, client: RawClient, argv: list[str], **wrap: Any) -> asyncio.subprocess.Process:
    wrapped = await client.result("wrap", {"argv": argv, "cwd": str(daemons.around.project), **wrap})
    return await start(wrapped)


async def start(wrapped: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *wrapped["argv"],
        cwd=wrapped["cwd"],
        env={"PATH": "/usr/bin:/bin", **wrapped["env"]["set"]},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.write(b"bye")
    writer.close()


async def test_tunnels_tickets_and_sessions_go_on() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, successive_daemons(settings=SETTINGS, resolve=NAMES) as daemons, daemons.client() as client:
        session = await client.result("session.open", {"cwd": str(daemons.around.project), "name": "mine"})
        mine = {"session_id": session["session_id"]}
        tunnel = await spawn(daemons, client, ["python3", "-c", TUNNEL, str(port)], **mine)
        assert tunnel.stdin is not None
        assert await line_of(tunnel) == "connected"
        prepared = await client.result("wrap", {"argv": ["sh", "-c", "echo $TMPDIR; exit 7"], **mine})
        for word in ("one", "two"):
            daemon = await daemons.restart()
            tunnel.stdin.write(word.encode() + b"\n")
            assert await line_of(tunnel) == word.upper()
            assert (daemon.state.restarted.commands, daemon.state.restarted.lost) == (2, ())  # type: ignore[union-attr]
        late = await start(prepared)
        output, errors = await late.communicate()
        assert late.returncode == 7, errors
        assert (await client.result("wrap.outcome", {"wrap_id": prepared["wrap_id"]}))["status"] == 7
        tunnel.stdin.close()
        assert await line_of(tunnel) == "rest b'bye'"
        assert await tunnel.wait() == 0
        (still,) = (await client.result("session.list"))["sessions"]
        assert (still["session_id"], still["name"]) == (mine["session_id"], "mine")
        after = await spawn(daemons, client, ["sh", "-c", "echo $TMPDIR"], **mine)
        assert (await after.communicate())[0] == output
    assert daemons.around.left() == []


async def test_what_was_denied_in_between_is_cut() -> None:
    """The settings change after the one daemon has stopped looking, and before the other one reads them. Also what
    stands on a grant that has ended meanwhile."""
    watching = TUNNEL.partition("for line in")[0] + "\ntry: print(proxy.recv(1))\nexcept OSError: print('cut')"
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, successive_daemons(settings=SETTINGS, resolve=NAMES) as daemons, daemons.client() as client:
        tunnel = await spawn(daemons, client, ["python3", "-c", watching, str(port)])
        await client.result("permission.subscribe")
        granted = await spawn(daemons, client, ["python3", "-c", watching.replace("ok.test", "ask.test"), str(port)])
        question = await told(client, "sandbox_permission_request")
        answer = {"request_id": question["request_id"], "behavior": "allow", "scope": "session", "ttl_s": 3600}
        await client.result("sandbox_permission_response", answer)
        assert (await line_of(tunnel), await line_of(granted)) == ("connected", "connected")

        def tighten(document: bytes) -> bytes:
            denied = {"sandbox": {"network": {"allowedDomains": ["ok.test"], "deniedDomains": ["ok.test"]}}}
            daemons.around.write(daemons.around.user_settings, denied)
            read = json.loads(document)
            for part in read["parts"]:
                if part["kind"] == "session":
                    for grant in part["body"]["grants"]["given"]:
                        grant["expires_at"] -= 7200
            return json.dumps(read).encode()

        await daemons.restart(tighten)
        async with asyncio.timeout(20):
            assert (await line_of(tunnel), await line_of(granted)) == ("cut", "cut")


async def test_who_waits_for_an_answer_goes_on_waiting() -> None:
    with serve_origin() as origin:
        async with successive_daemons(settings=SETTINGS, resolve=NAMES) as daemons:
            child = RawClient.connected_from_a_child(daemons.around.socket)
            async with child as agent, daemons.client() as person:
                await person.result("permission.subscribe")
                url = f"http://ask.test:{origin.port}/"
                curls = [
                    await spawn(daemons, agent, ["curl", "-sSf", *proxy, url], command_id=str(number))
                    for number, proxy in enumerate(
                        ([], ["-x", "socks5h://127.0.0.1:1080"], ["--proxytunnel"], ["--noproxy", "*"])
                    )
                ]
                question = await told(person, "sandbox_permission_request")
                asking = agent.request("permission.request", {
                    "kind": "network", "host": "other.test", "port": 1, "cwd": str(daemons.around.project),
                })  # fmt: skip
                other = await told(person, "sandbox_permission_request")
                for _ in range(2):
                    await daemons.restart()
                assert len((await person.result("permission.list"))["open"]) >= 2
                assert not origin.connections
                answer = {"behavior": "allow", "scope": "session"}
                await person.result("sandbox_permission_response", {"request_id": question["request_id"], **answer})
                for curl in curls:
                    output, errors = await curl.communicate()
                    assert (curl.returncode, output) == (0, origin.body), errors
                person.request("sandbox_permission_response", {"request_id": other["request_id"], "behavior": "allow"})
                while (message := await agent.receive()).get("id") != asking:
                    pass
                assert message["result"]["behavior"] == "allow"
                assert message["result"]["request_id"] == other["request_id"]
                (grant,) = (await person.result("permission.list"))["grants"]
                assert grant["subject"] == f"ask.test:{origin.port}"


async def test_a_client_is_read_and_answered_from_where_it_was() -> None:
    machine = LastingMachine()
    async with successive_daemons(assemble=machine.assemble) as daemons, daemons.client() as client:
        await client.result("violation.subscribe")
        line = json.dumps({"jsonrpc": "2.0", "id": "half", "method": "session.list"}).encode()
        client.send_bytes(line[:20])
        await daemons.restart()
        client.send_bytes(line[20:] + b"\n")
        while (message := await client.receive()).get("id") != "half":
            pass
        assert message["result"] == {"sessions": []}


async def test_what_cannot_be_read_is_ended_and_named() -> None:
    async with successive_daemons(settings=SETTINGS) as daemons, daemons.client() as client:
        process = await spawn(daemons, client, ["sh", "-c", "echo up; exec sleep 987"])
        assert await line_of(process) == "up"

        def newer(document: bytes) -> bytes:
            read = json.loads(document)
            for part in read["parts"]:
                if part["kind"] in ("session", "launch"):
                    part["version"] = 99
            return json.dumps(read).encode()

        daemon = await daemons.restart(newer)
        assert await process.wait() != 0
        assert daemon.state.restarted is not None
        assert sorted(text.split()[0] for text in daemon.state.restarted.lost) == ["launch", "session"]
        assert (await client.result("status"))["restarted"]["lost"]
        assert (await client.result("session.list"))["sessions"] == []
        assert daemons.around.left()  # its own; nothing of the session that is gone
        again = await spawn(daemons, client, ["true"])
        assert await again.wait() == 0


async def test_a_session_ends_when_its_owner_disconnects_meanwhile() -> None:
    machine = LastingMachine()
    async with successive_daemons(assemble=machine.assemble) as daemons:
        async with daemons.client() as client:
            await client.result("session.open", {"cwd": str(daemons.around.project)})
            kept = await client.result("session.open", {"cwd": str(daemons.around.project), "detach": True})
            await daemons.restart()
        sessions = daemons.daemon.sessions  # type: ignore[union-attr]
        await wait_until_async(lambda: len(sessions.all()) == 1, "the owned session has ended")
        assert sessions.all()[0].id == kept["session_id"]


async def test_a_fault_in_one_session_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = LastingMachine()
    async with successive_daemons(assemble=machine.assemble) as daemons, daemons.client() as client:
        for name in ("good", "bad"):
            await client.result("session.open", {"cwd": str(daemons.around.project), "name": name})
        wrap = SandboxSession.resume

        def resume(session: SandboxSession, record: Any, inherited: Inherited) -> Any:
            if record.spec.name == "bad":
                raise ZeroDivisionError
            return wrap(session, record, inherited)

        monkeypatch.setattr(SandboxSession, "resume", resume)
        daemon = await daemons.restart()
        assert [session.spec.name for session in daemon.sessions.all()] == ["good"]
        assert daemon.state.restarted is not None
        assert len(daemon.state.restarted.lost) == 1


def is_full(sock: socket.socket) -> bool:
    """Whether all is there that the sender's buffer has room for, or nearly (unix(7): it is what holds the bytes)."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0\0\0\0"))
    return bool(waiting > FULL)


async def test_answers_that_a_client_has_not_taken_are_whole() -> None:
    machine = LastingMachine()
    async with successive_daemons(assemble=machine.assemble) as daemons:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
            slow.connect(str(daemons.around.socket))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            for number in range(ANSWERS):
                request = {"jsonrpc": "2.0", "id": number, "method": "settings.schema"}
                await loop.sock_sendall(slow, json.dumps(request).encode() + b"\n")
            for _ in range(2):
                await wait_until_async(lambda: is_full(slow), "the kernel holds no more for it")
                await daemons.restart()
            received = b""
            while received.count(b"\n") < ANSWERS:
                received += await loop.sock_recv(slow, 65536)
            answers = [json.loads(line) for line in received.splitlines()]
            assert sorted(answer["id"] for answer in answers) == list(range(ANSWERS))
            assert all("schema" in answer["result"] for answer in answers)


async def test_nothing_stands_in_the_project_over_a_restart() -> None:
    async with successive_daemons(settings=SETTINGS) as daemons, daemons.client() as client:
        process = await spawn(daemons, client, ["sh", "-c", "echo up; read line"])
        assert await line_of(process) == "up"
        assert os.listdir(daemons.around.project) == []
        await daemons.restart()
        assert os.listdir(daemons.around.project) == []
        await process.communicate(b"end\n")
        assert os.listdir(daemons.around.project) == []


TRAPPING = "trap 'echo asked; read line; echo $line; exit 5' TERM; echo up; while :; do sleep 0.01; done"


async def test_a_kill_keeps_its_grace_over_a_restart() -> None:
    async with successive_daemons(settings=SETTINGS) as daemons, daemons.client() as client:
        stays, goes = [
            await spawn(daemons, client, ["bash", "-c", TRAPPING], command_id=name) for name in ("stays", "goes")
        ]
        async with daemons.client() as killer:
            for process, name in ((stays, "stays"), (goes, "goes")):
                assert await line_of(process) == "up"
                killer.request("command.kill", {"command_id": name, "grace_s": 600})
                assert await line_of(process) == "asked"
            await daemons.restart()
        assert (await client.result("command.kill", {"command_id": "goes", "grace_s": 0}))["status"] == 137
        output, _ = await stays.communicate(b"end\n")
        assert (output, stays.returncode) == (b"end\n", 5)
        assert await goes.wait() == 137


@pytest.mark.parametrize("later_s", [36_000, -36_000])
async def test_a_clock_that_is_set_moves_no_limit(monkeypatch: pytest.MonkeyPatch, later_s: int) -> None:
    """Neither ends a command over a restart, nor gives it more than its hour."""
    limits = {"sandbox": {"limits": {"time": "1h"}}}
    async with successive_daemons(settings=limits) as daemons, daemons.client() as client:
        ends, stays = [
            await spawn(daemons, client, ["sh", "-c", "echo up; read line; echo $line"], command_id=name)
            for name in ("ends", "stays")
        ]
        for process in (ends, stays):
            assert await line_of(process) == "up"
        now, counted = time.time(), time.monotonic
        monkeypatch.setattr(time, "time", lambda: now + later_s)
        await daemons.restart()
        output, _ = await ends.communicate(b"end\n")
        assert (output, ends.returncode) == (b"end\n", 0)
        with monkeypatch.context() as context:
            context.setattr(time, "monotonic", lambda: counted() + 3600)
            await daemons.restart()
            assert await stays.wait() not in (0, None)


PLANTING = """
echo up; read line
mkdir .vscode 2>/dev/null && echo planted || echo refused
"""


async def test_a_failed_start_leaves_commands_protected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is full, say, after the placeholders have been taken over and before the sessions."""
    async with successive_daemons(settings=SETTINGS) as daemons, daemons.client() as client:
        process = await spawn(daemons, client, ["sh", "-c", PLANTING])
        assert await line_of(process) == "up"

        def full(*_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(compose, "write_name_files", full)
        with pytest.raises(OSError, match="No space"):
            await daemons.restart()
        assert await ended(process) == "nothing more was said"
        assert await process.wait() != 0
        assert not (daemons.around.project / ".vscode").exists()


async def test_a_failed_hand_over_leaves_commands_protected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some are handed over by then, and some are not: no daemon can resume either."""
    async with successive_daemons(settings=SETTINGS) as daemons, daemons.client() as client:
        processes = []
        for name in ("first", "second"):
            session = await client.result("session.open", {"cwd": str(daemons.around.project), "name": name})
            argv = ["sh", "-c", PLANTING]
            processes.append(await spawn(daemons, client, argv, session_id=session["session_id"]))
            assert await line_of(processes[-1]) == "up"
        right = SandboxSession.hand_over

        async def hand_over(session: SandboxSession, *what: Any) -> Any:
            if session.spec.name == "second":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return await right(session, *what)

        monkeypatch.setattr(SandboxSession, "hand_over", hand_over)
        commands = [one for session in daemons.daemon.sessions.all() for one in session.commands()]  # type: ignore[union-attr]
        with pytest.raises(OSError, match="Too many"):
            await handover.hand_over(daemons.daemon)  # type: ignore[arg-type]
        await daemons.end()
        for process in processes:
            assert await ended(process) == "nothing more was said"
            assert await process.wait() != 0
        assert not (daemons.around.project / ".vscode").exists()
        for command in commands:  # a process that ends leaves that to the system
            if command.proxies is not None:
                await command.proxies.aclose()


async def ended(process: asyncio.subprocess.Process) -> str:
    """What a command does that is told to go on."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(b"go on\n")
        await process.stdin.drain()
    return await line_of(process) or "nothing more was said"


async def test_foreign_leftovers_end_no_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container, for example, that was given $TMPDIR of a session."""
    machine = LastingMachine()
    async with successive_daemons(assemble=machine.assemble) as daemons, daemons.client() as client:
        cwd = str(daemons.around.project)
        sessions = [(await client.result("session.open", {"cwd": cwd}))["session_id"] for _ in range(3)]
        for session in sessions:
            await client.result("wrap", {"argv": ["true"], "cwd": cwd, "session_id": session})

        def remove(path: str) -> None:
            if path.endswith("/t0"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            remove_tree(path)

        with monkeypatch.context() as patch:
            patch.setattr(temporary_directories, "remove_tree", remove)
            assert "error" in await client.call("session.close", {"session_id": sessions[0]})
            assert len((await client.result("session.list"))["sessions"]) == 2
            for _ in range(2):
                daemon = await daemons.restart()
                assert {session.id for session in daemon.sessions.all()} == set(sessions[1:])
        assert "cannot be removed" in daemons.around.log.text


def unread_launch(part: Any) -> None:
    if part["kind"] == "launch":
        part["version"] = 99


def broken_settings(part: Any) -> None:
    if part["kind"] == "session":
        part["body"]["settings"] = {"sandbox": {"enabled": "perhaps"}}


@pytest.mark.parametrize("change", [unread_launch, broken_settings])
async def test_what_cannot_be_taken_over_keeps_nothing_open(change: Callable[[Any], None]) -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"sandbox": {"network": {"allowedDomains": ["ok.test"], "allowLocalBinding": True}}}
    async with server, successive_daemons(settings=settings, resolve=NAMES) as daemons, daemons.client() as client:
        session = await client.result("session.open", {"cwd": str(daemons.around.project)})
        mine = {"session_id": session["session_id"], "overrides": {"publish": ["0:80"]}}
        tunnel = await spawn(daemons, client, ["python3", "-c", TUNNEL, str(port)], **mine)
        assert await line_of(tunnel) == "connected"
        open_before: list[int] = []

        def changed(document: bytes) -> bytes:
            read = json.loads(document)
            for part in read["parts"]:
                if part["kind"] == "session":
                    open_before.extend(os.fstat(number).st_ino for number in part["descriptors"])
                change(part)
            return json.dumps(read).encode()

        daemon = await daemons.restart(changed)
        assert daemon.state.restarted is not None and daemon.state.restarted.lost
        assert await tunnel.wait() != 0
        assert len(open_before) > 3
        await wait_until_async(lambda: not open_inodes() & set(open_before), "all of it is closed")


def open_inodes() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.fstat(int(name)).st_ino)
    return found


async def test_the_outcome_of_a_command_that_ends_meanwhile_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the sessions are handed over one after another; what it has left took long to look through, say."""
    machine = LastingMachine()
    handing_over: list[SandboxSession] = []
    decided = asyncio.Event()

    async def resolve(path: str) -> ResolvedPath:
        await decided.wait()
        return ResolvedPath(path)

    right = SandboxSession.hand_over

    async def hand_over(session: SandboxSession, *what: Any) -> Any:
        handing_over.append(session)
        return await right(session, *what)

    monkeypatch.setattr(SandboxSession, "hand_over", hand_over)
    machine.planner.resolve = resolve  # type: ignore[method-assign]
    async with successive_daemons(assemble=machine.assemble) as daemons, daemons.client() as client:
        cwd = str(daemons.around.project)
        wraps = []
        for _ in range(2):
            session = await client.result("session.open", {"cwd": cwd})
            wrap = {"argv": ["true"], "session_id": session["session_id"], "cwd": cwd}
            wraps.append(await client.result("wrap", wrap))
            machine.backend.launches[-1].start()
        first, second = machine.backend.launches
        first.observer.connecting(ConnectAttempt(socket.AF_UNIX, "/some/socket", 0, 1, "some"), lambda number: None)
        restart = asyncio.create_task(daemons.restart())
        await wait_until_async(lambda: handing_over, "the first session is being handed over")
        second.end(5)
        decided.set()
        await restart
        assert (await client.result("wrap.outcome", {"wrap_id": wraps[1]["wrap_id"]}))["status"] == 5


async def test_a_closed_port_stays_closed_until_its_client_goes() -> None:
    """Over a restart; and no rule opens it for a command, by whichever way it connects."""

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nREACHED")
        writer.close()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"sandbox": {"network": {"allowLocalPorts": ["1-65535"], "allowedDomains": ["ok.test", "127.0.0.1"]}}}

    async with server, successive_daemons(settings=settings, resolve=NAMES) as daemons, daemons.client() as client:

        async def reached(text: str) -> bool:
            found = await client.result("policy.explain", {"kind": "host", "target": f"{text}:{port}"})
            return bool(found["behavior"] == "allow")

        names = ("localhost", "127.0.0.1")
        assert [await reached(name) for name in names] == [True, True]
        async with daemons.client() as serving:
            address = f"http://127.0.0.1:{port}/"
            await serving.result("policy.close_ports", {"ports": [port], "page": address})
            assert (await daemons.restart()).closed_ports.page() == address
            assert [await reached(name) for name in names] == [False, False]
            tries = [["curl", "-sS", *way, f"http://{name}:{port}/"] for name in (*names, "ok.test")
                     for way in ([], ["--proxytunnel"], ["--noproxy", "*"])]  # fmt: skip
            running = [await spawn(daemons, client, line) for line in tries]
            outputs = [(await one.communicate())[0] for one in running]
            assert not [one for one in outputs if b"REACHED" in one], outputs
        async with asyncio.timeout(20):
            while not await reached("localhost"):  # noqa: ASYNC110 (a client hears nothing of it)
                await asyncio.sleep(0.01)
        again = await spawn(daemons, client, ["curl", "-sS", "--noproxy", "*", f"http://localhost:{port}/"])
        assert (await again.communicate())[0] == b"REACHED"


async def test_settings_that_break_meanwhile_stay_as_they_were() -> None:
    """Of the daemon and of a project with a session, over two restarts; no other project has a last good content."""
    machine = LastingMachine()
    rules: dict[str, Any] = {"sandbox": {"network": {"allowedDomains": ["*.test"], "deniedDomains": ["own.test"]}}}
    project_rules: dict[str, Any] = {"sandbox": {"network": {"deniedDomains": ["project.test"]}}}
    async with successive_daemons(settings=rules, assemble=machine.assemble) as daemons, daemons.client() as client:
        around, other = daemons.around, daemons.around.base / "other"
        files = [place / ".claude" / "settings.json" for place in (around.project, other)]
        for file in files:
            around.write(file, project_rules)
        session = await client.result("session.open", {"cwd": str(around.project), "detach": True})

        def break_all(document: bytes) -> bytes:
            for file in (*files, around.user_settings):
                around.write(file, "{ broken")
            return document

        async def denied(*hosts: str) -> list[bool]:
            asked = [{"kind": "host", "target": host, "session_id": session["session_id"]} for host in hosts]
            return [(await client.result("policy.explain", one))["behavior"] == "deny" for one in asked]

        for change in (break_all, lambda document: document):
            daemon = await daemons.restart(change)
            assert daemon.state.restarted is not None and daemon.state.restarted.lost == ()
            assert await denied("a.test", "own.test", "project.test") == [False, True, True]
            told = json.dumps(await client.result("status"))
            assert told.count("the last good settings stay in force") >= 1
        refused = await client.call("session.open", {"cwd": str(other)})
        assert refused["error"]["data"]["slug"] == "settings_syntax", refused
        around.write(around.user_settings, {"sandbox": {"network": {"allowedDomains": ["*.test"]}}})
        await wait_until_async(lambda: daemon.policies.own.error is None, "the corrected file is read")
        assert await denied("a.test", "own.test", "project.test") == [False, False, True]
