"""From a client to a violation, with stand-ins for `sandbox-exec` and `log`: a real daemon, real sockets and processes,
the profile that macOS would get, and the evaluator in the kernel's place."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from support.mac_line import Line, stub_parts, whole_line
from support.mac_stubs import MacStubs, install_stubs
from support.origin import Origin
from support.processes import is_alive
from support.waiting import wait_until_async


@pytest.fixture
def stubs(tmp_path: Path) -> MacStubs:
    return install_stubs(tmp_path / "state")


@pytest.fixture
async def line(stubs: MacStubs) -> AsyncIterator[Line]:
    async with whole_line(stub_parts(stubs)) as made:
        await wait_until_async(lambda: "violation-log" in made.running.daemon.state.layers(), "the log is read")
        yield made


async def test_a_command_its_streams_and_its_status(line: Line) -> None:
    assert await line.run("sh", "-c", "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")
    assert (await line.cli("run", "-c", "cat /dev/stdin | tr a-z A-Z", text=""))[0] == 0
    assert (await line.run("no-such-program"))[0] == 127


async def test_files(line: Line) -> None:
    (line.project / "old").write_text("old\n")
    assert await line.run("cat", "old") == (0, "old\n", "")
    assert (await line.run("write", "new", "text"))[0] == 0
    assert (line.project / "new").read_text() == "text"
    status, _, err = await line.run("write", str(line.running.around.home / "outside"), "x")
    assert status == 1 and "Operation not permitted" in err
    assert not (line.running.around.home / "outside").exists()
    for path in (".vscode/tasks.json", ".mcp.json", ".claude/settings.json"):
        assert (await line.run("write", path, "x"))[0] == 1
    assert (await line.run("sh", "-c", 'write "$TMPDIR/x" t && cat "$TMPDIR/x"'))[:2] == (0, "t")
    assert sorted(entry.name for entry in line.project.iterdir()) == ["new", "old"]


async def test_refusals_become_violations_of_their_command(line: Line) -> None:
    out = await line.client(
        "done = box.run('write ~/outside x; lookup com.apple.trustd.agent', capture_output=True, text=True); "
        "found = [[v.kind, v.operation, v.target, v.source, v.hint] for v in done.violations]; "
        "print(json.dumps([done.returncode, found]))"
    )
    status, violations = json.loads(out)
    assert status == 1
    kinds = [(kind, operation, source) for kind, operation, _, source, _ in violations]
    assert ("write", "file-write-create", "seatbelt") in kinds
    trust = [v for v in violations if v[1] == "mach-lookup"]
    assert trust and "enableWeakerNetworkIsolation" in trust[0][4]
    assert violations[0][2] == real_spelling(str(line.running.around.home / "outside"))


async def test_ignored_violations_are_hidden_and_counted(stubs: MacStubs) -> None:
    settings = {"sandbox": {"ignoreViolations": {"write": ["/outside"]}}}
    async with whole_line(stub_parts(stubs), settings) as line:
        await wait_until_async(lambda: "violation-log" in line.running.daemon.state.layers(), "the log is read")
        out = await line.client(
            "session = box.session('.'); done = session.run(['write', '../outside', 'x'], capture_output=True); "
            "other = session.run(['write', '../other', 'x'], capture_output=True); "
            "print(json.dumps([done.returncode, len(done.violations), len(other.violations)]))"
        )
        assert json.loads(out) == [1, 0, 1]


TRUST = "com.apple.trustd.agent"
WEAKER = {"sandbox": {"enableWeakerNetworkIsolation": True}}


async def test_switches_of_the_settings_reach_the_profile(stubs: MacStubs) -> None:
    """the same switch whichever proxy is used."""
    network = {"allowMachLookup": ["com.example.a"], "httpProxyPort": 3999}
    settings = {"sandbox": {**WEAKER["sandbox"], "network": network}}
    async with whole_line(stub_parts(stubs), settings) as line:
        for name, status in ((TRUST, 0), ("com.example.a", 0), ("com.example.b", 1)):
            assert (await line.run("lookup", name))[0] == status, name


async def test_one_command_gets_a_switch_and_a_project_gets_none(line: Line) -> None:
    more = line.running.around.write(line.running.around.home / "more.json", WEAKER)
    assert (await line.run("lookup", TRUST))[0] == 1
    assert (await line.run("lookup", TRUST, options=("--settings", str(more))))[0] == 0
    assert (await line.run("lookup", TRUST))[0] == 1
    line.running.around.write(line.running.around.project_settings, WEAKER)
    assert (await line.run("lookup", TRUST))[0] == 1


async def test_the_proxy_and_its_password(line: Line, origin: Origin) -> None:
    url = f"http://ok.test:{origin.port}/"
    assert await line.run("fetch", url) == (0, origin.body.decode(), "")
    status, out, _ = await line.run("fetch", f"http://no.test:{origin.port}/")
    assert (status, out.split()[0]) == (22, "403")
    status, _, err = await line.run("connect", "127.0.0.1", str(origin.port))
    assert status == 1 and "Operation not permitted" in err
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    environment = json.loads((await line.run(sys.executable, "-c", code))[1])
    assert environment["HTTP_PROXY"].startswith("http://sandboxd:")
    assert environment["PYTHONPATH"] == line.environment["PYTHONPATH"]


PROXY = """
import os, sys, time
print(os.environ["HTTP_PROXY"], os.environ["TMPDIR"], flush=True)
sys.stdin.readline()
"""


async def test_a_commands_proxy_serves_it_alone(line: Line, origin: Origin) -> None:
    code = (
        "import sys; from sandboxd.cli.main import main; "
        f"sys.argv[1:] = ['run', '--', sys.executable, '-c', {PROXY!r}]; sys.exit(main())"
    )
    process = await line.start(code)
    assert process.stdin is not None and process.stdout is not None
    url, _ = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()
    port, password = int(url.rpartition(":")[2]), url.split(":")[2].partition("@")[0]
    request = f"GET http://ok.test:{origin.port}/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n"
    assert (await ask(port, request)).startswith(b"HTTP/1.1 407 ")
    wrong = "Proxy-Authorization: Basic c2FuZGJveGQ6eA==\r\n"
    assert (await ask(port, request + wrong)).startswith(b"HTTP/1.1 407 ")
    assert not origin.connections
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        assert password.encode() not in words, pid
    process.stdin.write(b"\n")
    await asyncio.wait_for(process.wait(), 30)

    def closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    await wait_until_async(closed, "the port is closed")


async def ask(port: int, head: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + b"\r\n")
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


async def test_the_whole_tree_ends_with_the_command(line: Line) -> None:
    """Also what has left its group and session."""
    script = "setsid sleep 300 >/dev/null 2>&1 & echo $!; nohup sleep 300 >/dev/null 2>&1 & echo $!"
    status, out, _ = await line.run("bash", "-c", script)
    assert status == 0
    pids = [int(word) for word in out.split()]
    await wait_until_async(lambda: not any(map(is_alive, pids)), "both have ended")


async def test_the_whole_tree_ends_with_its_owner(line: Line) -> None:
    note = line.project / "note"
    script = f"setsid sleep 300 & echo $! > {note}; echo $$ >> {note}; wait"
    code = f"from sandboxd_client import Client\nClient().run(['bash', '-c', {script!r}])"
    process = await line.start(code)
    await wait_until_async(lambda: note.exists() and len(note.read_text().split()) == 2, "the command runs")
    process.kill()
    await process.wait()
    pids = [int(word) for word in note.read_text().split()]
    await wait_until_async(lambda: not any(map(is_alive, pids)), "everything has ended")


def has_text(file: Path) -> bool:
    return file.exists() and bool(file.read_text().strip())


def has_ended(pid: int) -> bool:
    return not is_alive(pid)


async def test_a_supervisor_that_is_killed_or_stopped_saves_nobody(line: Line) -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        note = line.project / f"note-{number}"
        code = f"from sandboxd_client import Client\nClient().run(['sh', '-c', 'echo $$ > {note}; sleep 300'])"
        process = await line.start(code)
        await wait_until_async(partial(has_text, note), "it runs")
        (command,) = [c for session in line.running.daemon.sessions.all() for c in session.commands()]
        assert command.pid is not None
        os.kill(command.pid, number)
        if number == signal.SIGSTOP:
            await asyncio.wait_for(command.stop(0.1, 20), 30)
        pid = int(note.read_text())
        await wait_until_async(partial(has_ended, pid), "the command has ended")
        await asyncio.wait_for(process.wait(), 30)


async def test_ending_a_session_ends_its_commands(line: Line) -> None:
    note = line.project / "note"
    code = f"from sandboxd_client import Client\nClient().session('.').run(['wait-for-term', {str(note)!r}])"
    process = await line.start(code)
    await wait_until_async(lambda: note.exists() and bool(note.read_text()), "the command runs")
    (session,) = [one for one in line.running.daemon.sessions.all() if one.commands()]
    await line.running.daemon.sessions.close(session.id)
    assert not is_alive(int(note.read_text()))
    await asyncio.wait_for(process.wait(), 30)


SETTLING = "done = box.run(['write', '../outside', 'x'], capture_output=True); print(json.dumps(done.returncode))"


@pytest.mark.parametrize("mode", ["sandboxed", "silent"])
async def test_results_do_not_wait_for_a_log_that_says_nothing(stubs: MacStubs, mode: str) -> None:
    """The layer is missing, status says why, and the result comes all the same."""
    stubs.log_mode(mode)
    async with whole_line(stub_parts(stubs)) as line:
        assert await line.client(SETTLING) == "1\n"
        assert "violation-log" not in line.running.daemon.state.layers()
        words = {"sandboxed": "refuses to run inside a sandbox", "silent": "has not shown a provoked refusal yet"}[mode]

        def said() -> bool:
            return any(words in warning for warning in line.running.daemon.state.machine_warnings())

        await wait_until_async(said, "status says why")
        status = json.loads((await line.cli("status", "--json"))[1])
        assert any("the system's log" in warning for warning in status["warnings"])
        assert "violation-log" not in status["layers"] and "seatbelt" in status["layers"]


async def test_a_language_without_some_constructs_does(stubs: MacStubs) -> None:
    """Profiles are written in another way, hold as well, and `check` names what is refused."""
    words = ("ioctl-command", "(with message (param", "(regex (param", '(string-append "localhost')
    (stubs.state / "refuses").write_text("\n".join(words))
    async with whole_line(stub_parts(stubs)) as line:
        assert (await line.run("write", "new", "x"))[0] == 0
        assert (await line.run("write", ".\u0076\u017fcode", "x"))[0] == 1
        _, out, _ = await line.cli("check", "--json")
        (step,) = [one for one in json.loads(out)["steps"] if one["name"] == "profile language"]
        assert step["ok"] and "tiocsti is refused: commands at a terminal get a pseudo-terminal" in step["detail"]


async def test_check_says_what_works(line: Line) -> None:
    status, out, _ = await line.cli("check", "--json")
    report = json.loads(out)
    assert (status, report["ok"]) == (0, True)
    assert {step["name"]: step["ok"] for step in report["steps"]} == {
        "sandbox": True, "profile language": True, "violation log": True,
    }  # fmt: skip
    assert set(report["layers"]) == {"seatbelt", "network-proxy", "violation-log"}


SCRIPTS = {
    "seatbelt_nested": "#!/bin/sh\necho 'sandbox-exec: sandbox_apply: Operation not permitted' >&2; exit 71\n",
    "seatbelt_failed": "#!/bin/sh\necho 'sandbox-exec: <input string>:1: broken' >&2; exit 65\n",
    "seatbelt_open": '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n',
    "sandbox_exec_missing": "",
}


@pytest.mark.parametrize("slug", SCRIPTS)
async def test_without_a_sandbox_nothing_runs(stubs: MacStubs, tmp_path: Path, slug: str) -> None:
    """Also when `sandbox-exec` works and refuses nothing."""
    program = tmp_path / "sandbox-exec"
    if SCRIPTS[slug]:
        program.write_text(SCRIPTS[slug])
        program.chmod(0o755)
    async with whole_line(stub_parts(stubs, sandbox_exec=str(program))) as line:
        status, out, err = await line.run("write", "x", "y")
        assert (status, out) == (125, "") and err.startswith("sandboxd: ") and "\nhint: " in err
        assert not (line.project / "x").exists()
        status, out, _ = await line.cli("check", "--json")
        report = json.loads(out)
        assert status == 1 and not report["ok"]
        (step,) = [step for step in report["steps"] if step["name"] == "sandbox"]
        assert step["code"] == slug and step["remedy"]


async def test_a_ticket_is_good_once_and_only_during_its_session(line: Line, stubs: MacStubs) -> None:
    once = json.loads(await line.client("print(json.dumps(box.wrap(argv=['write', 'x', 'y']).argv))"))
    assert once[7] == stubs.sandbox_exec and "-p" in once
    ended = json.loads(
        await line.client("session = box.session('.'); print(json.dumps(session.wrap(argv=['write', 'z', 'y']).argv))")
    )
    for argv, expected in ((once, 0), (once, 125), (ended, 125)):
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=line.project, env=line.environment, stderr=asyncio.subprocess.PIPE
        )
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == expected, err
        assert (b"did not accept this launch" in err) is (expected == 125)
    assert (line.project / "x").exists() and not (line.project / "z").exists()


async def test_nothing_is_left_behind(stubs: MacStubs) -> None:
    async with whole_line(stub_parts(stubs)) as line:
        await line.run("sh", "-c", 'write "$TMPDIR/x" t')
        around = line.running.around
        assert (around.directory / "launch.sock").exists()
        logs = stubs.log_starts
        left_at_the_end = around.left
    assert not around.base.exists() or left_at_the_end() == []
    await wait_until_async(lambda: not any(map(is_alive, logs)), "the log has ended")
