"""The audit log of a daemon: what it says, what it never says, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandboxd.cli.main import execute
from sandboxd.daemon.audit.audit_bounds import BOUNDS, AuditBounds
from sandboxd.daemon.audit.audit_log import AuditLog
from sandboxd.daemon.audit.audit_recorder import AuditRecorder
from sandboxd.daemon.log import LogFormat, make_logger
from sandboxd.errors import HostError
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.model import AuditPolicy
from sandboxd.policy.violation import Violation, ViolationKind, ViolationSource
from sandboxd.runtime.events import CommandDecided, Connected, Event, Fallback, RunEnded, RunPrepared, RunStarted
from sandboxd.runtime.prompts.prompt_records import Asked, Outcome, Question, QuestionKind, ResolvedQuestion
from sandboxd.runtime.rate_bound import RateBound
from support.daemon import RunningDaemon, running_daemon
from support.daemons import DaemonProcess, StartDaemon
from support.fake_runtime import FakeMachine
from support.users import Identity
from support.waiting import wait_until


def log_of(path: Path, **changes: Any) -> AuditLog:
    return AuditLog(
        str(path), **{"max_bytes": 1 << 20, "keep": 3, "time": lambda: "2026-01-01T00:00:00.000Z", **changes}
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "audit.jsonl"


def verified(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `audit verify` says, and that its exit status agrees."""
    status = execute(["audit", "verify", "--json", "--file", str(path)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (0 if found["ok"] else 1)
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# ---- files


def test_a_log_goes_on_where_it_ended(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        log = log_of(place)
        log.append({"kind": "run", "command": f"make {number}"})
        log.close()
    assert [line["kind"] for line in lines_of(place)] == ["opened", "run"] * 3
    assert verified(place, capsys)["last"] == 6
    assert place.stat().st_mode & 0o777 == 0o600 and place.parent.stat().st_mode & 0o777 == 0o700


def test_rotation_keeps_the_chain(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(place, max_bytes=600, keep=2)
    for number in range(40):
        log.append({"kind": "run", "command": f"make {number}"})
    log.close()
    names = sorted(path.name for path in place.parent.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.head"]
    found = verified(place, capsys)
    assert found["ok"] and found["first"] > 1
    place.with_name("audit.jsonl.1").unlink()
    assert not verified(place, capsys)["ok"]
    place.with_name("audit.jsonl.2").unlink()
    assert not verified(place, capsys)["ok"]


def test_an_unfinished_line_is_cut_off(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(place)
    log.append({"kind": "run"})
    log.close()
    with place.open("ab") as file:
        file.write(b'{"seq":3,"kind":"ru')
    assert verified(place, capsys)["ok"]
    log_of(place).close()
    assert lines_of(place)[-1]["unfinished_bytes_removed"] == 19
    assert verified(place, capsys) | {"notes": []} == verified(place, capsys)


def test_lines_that_somebody_removed_stay_missing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also for the next daemon: it goes on with the number that the head knows."""
    log = log_of(place)
    for _ in range(4):
        log.append({"kind": "run"})
    log.close()
    place.write_bytes(b"".join(place.read_bytes().splitlines(keepends=True)[:3]))
    log_of(place).close()
    assert "4 to 5 are missing" in verified(place, capsys)["faults"][0]["text"]


def test_one_writer(place: Path) -> None:
    log = log_of(place)
    with pytest.raises(HostError) as error:
        log_of(place)
    assert error.value.slug == "audit_locked"
    log.close()
    log_of(place).close()


def test_the_directory_is_its_own(tmp_path: Path) -> None:
    """Commands do not see it, so it cannot be one with other things in it."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(HostError) as error:
        log_of(tmp_path / "audit.jsonl")
    assert error.value.slug == "audit_directory" and "notes.txt" in error.value.message
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(HostError, match="written by others"):
        log_of(tmp_path / "open" / "audit.jsonl")


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "directory"])
def test_nothing_else_is_written_to(place: Path, tmp_path: Path, kind: str) -> None:
    place.parent.mkdir(mode=0o700)
    target = tmp_path / "target"
    target.write_text("mine")
    match kind:
        case "link":
            place.symlink_to(target)
        case "hard link":
            place.hardlink_to(target)
        case "fifo":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
    with pytest.raises(HostError) as error:
        log_of(place)
    assert error.value.slug == "audit_unavailable" and target.read_text() == "mine"


# ---- events


AUDIT = {"audit": {"enabled": True}}


def default_log(running: RunningDaemon) -> Path:
    return running.around.home / ".local/state/sandboxd/audit/audit.jsonl"


async def test_what_a_daemon_writes(capsys: pytest.CaptureFixture[str]) -> None:
    machine = FakeMachine()
    settings = {**AUDIT, "sandbox": {"enabled": True}, "permissions": {"deny": ["Bash(rm:*)"]}}
    async with running_daemon(settings=settings, assemble=machine.assemble) as running:
        async with running.client() as client:
            session = (await client.result("session.open", {"cwd": str(running.around.project)}))["session_id"]
            await client.result("should_sandbox", {"command": "rm -r x", "session_id": session})
            await client.result(
                "wrap", {"command": "make --token hunter22 all", "session_id": session, "command_id": "c1"}
            )
            await client.result("settings.reload", {})
            running.around.write(running.around.user_settings, {**settings, "sandbox": {"enabled": False}})
            await client.result("settings.reload", {})
            status = await client.result("status", {})
            assert status["audit"]["enabled"] and status["audit"]["lines"] >= 4 and not status["audit"]["lost"]
        path = default_log(running)
        lines = lines_of(path)
        kinds = [line["kind"] for line in lines]
        assert kinds[:3] == ["opened", "decision", "run"] and "settings" in kinds and kinds.count("control") == 2
        decision = lines[1]
        assert (
            decision["behavior"] == "deny"
            and decision["rule"] == "Bash(rm:*)"
            and "settings.json" in decision["origin"]
        )
        run = lines[2]
        assert run["command"] == "make --token [redacted] all" and run["command_id"] == "c1"
        assert run["session_id"] == session and run["layers"]
        assert verified(path, capsys)["ok"]
        capsys.readouterr()
        assert execute(["audit", "show", "--file", str(path), "--command-id", "c1", "--since", "1h"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) >= 1 and all("command_id=c1" in line for line in shown)
        assert execute(["audit", "show", "--file", str(path), "--since", "2099-01-01"]) == 0
        assert not capsys.readouterr().out
        assert execute(["audit", "show", "--file", str(path), "--since", "yesterday"]) == 2


async def test_it_is_off_unless_user_or_managed_settings_say_so() -> None:
    async with running_daemon(assemble=FakeMachine().assemble) as running:
        running.around.write(running.around.project_settings, AUDIT)
        async with running.client() as client:
            await client.result("wrap", {"command": "true", "cwd": str(running.around.project)})
            assert not (await client.result("status", {}))["audit"]["enabled"]
            assert not default_log(running).parent.exists()
            running.around.write(running.around.user_settings, AUDIT)
            await client.result("settings.reload", {})
            await client.result("wrap", {"command": "true", "cwd": str(running.around.project)})
            assert [line["kind"] for line in lines_of(default_log(running))][-1] == "run"
            running.around.write(running.around.user_settings, {})
            await client.result("settings.reload", {})
            assert lines_of(default_log(running))[-1]["kind"] == "closed"


@pytest.mark.parametrize("on_full", ["block", "drop"])
async def test_a_log_that_cannot_be_opened(on_full: str) -> None:
    async with running_daemon(assemble=FakeMachine().assemble) as running:
        path = running.around.base / "elsewhere" / "audit.jsonl"
        path.parent.mkdir()
        (path.parent / "other.txt").touch()
        settings = {"audit": {"enabled": True, "path": str(path), "onFull": on_full}}
        running.around.write(running.around.user_settings, settings)
        async with running.client() as client:
            await client.result("settings.reload", {})
            wrap = {"command": "true", "cwd": str(running.around.project)}
            if on_full == "block":
                error = await client.error("wrap", wrap)
                assert error["data"]["slug"] == "audit_directory"
            else:
                await client.result("wrap", wrap)
            status = await client.result("status", {})
            assert status["audit"]["lost"] >= 1 and str(path.parent) in status["audit"]["failure"]
            assert any("audit log" in warning for warning in status["warnings"])
            (path.parent / "other.txt").unlink()
            await client.result("wrap", wrap)
            kinds = [line["kind"] for line in lines_of(path)]
            assert "lost" in kinds and kinds[-1] == "run"


async def test_a_log_that_others_move_or_remove_goes_on_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written into a removed file; removed lines stay missing."""
    settings = {"audit": {"enabled": True, "onFull": "block"}}
    async with running_daemon(settings=settings, assemble=FakeMachine().assemble) as running:
        path = default_log(running)
        wrap = {"command": "true", "cwd": str(running.around.project)}
        async with running.client() as client:

            async def is_written() -> int:
                await client.result("wrap", wrap)
                *_, last = lines_of(path)
                assert last["kind"] == "run"
                return int(last["seq"])

            before = await is_written()
            path.rename(path.with_name("audit.jsonl.1"))  # as programs do that rotate logs
            assert before < (before := await is_written())
            assert verified(path, capsys)["ok"]
            head = path.with_name("audit.jsonl.head")
            for gone in (path, head, path.parent):
                shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
                assert before < (before := await is_written())
            assert "older files have been removed" in verified(path, capsys)["faults"][0]["text"]
            path.unlink()
            path.symlink_to(running.around.base / "elsewhere")
            assert (await client.error("wrap", wrap))["data"]["slug"] == "audit_unavailable"
            path.unlink()
            assert before < await is_written()
        assert not (running.around.base / "elsewhere").exists()


# ---- for real


def settled(daemon: DaemonProcess, path: Path, kind: str, many: int = 1) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        lines = lines_of(path) if path.exists() else []
        return lines if sum(line["kind"] == kind for line in lines) >= many else []

    wait_until(lambda: bool(found()), f"a line of kind {kind}")
    return found()


def test_a_run_from_its_beginning_to_its_end(start_daemon: StartDaemon, identity: Identity) -> None:
    daemon = start_daemon(settings=AUDIT)
    path = identity.home / ".local/state/sandboxd/audit/audit.jsonl"
    done = daemon.run(
        "run", "--", "sh", "-c", f"API_TOKEN=hunter22 true; ls {path.parent}; cat {path}; echo x >> {path}"
    )
    assert done.returncode != 125 and "Permission denied" in done.stderr and "opened" not in done.stdout
    lines = settled(daemon, path, "ended")
    run, started, ended = ([line for line in lines if line["kind"] == kind] for kind in ("run", "started", "ended"))
    assert run[0]["wrap_id"] == started[0]["wrap_id"] == ended[0]["wrap_id"]
    assert ended[0]["ran"] and ended[0]["status"] == done.returncode
    assert "hunter22" not in path.read_text() and "API_TOKEN=[redacted]" in run[0]["command"]
    daemon.run("run", "--", "curl", "-s", "http://nowhere.test/")

    def seen() -> dict[str, dict[str, Any]]:
        return {line["what"]: line for line in lines_of(path) if line["kind"] == "violation"}

    wait_until(lambda: "network" in seen(), "the violation is in the log")
    assert seen()["network"]["target"] == "nowhere.test:80"
    assert "whole" in daemon.run("audit", "verify").stdout
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()
    assert identity.run(identity.command("audit", "verify", "--file", str(path))).returncode == 0
    path.write_text(path.read_text().replace("nowhere.test", "allowed.test"))
    broken = identity.run(identity.command("audit", "verify", "--file", str(path)))
    assert broken.returncode == 1 and "was changed" in broken.stdout


@pytest.mark.parametrize("on_full", ["block", "drop"])
def test_a_full_disk(start_daemon: StartDaemon, identity: Identity, on_full: str) -> None:
    """A limit on the size of files does to the writer what a full disk does."""
    daemon = start_daemon(settings={"audit": {"enabled": True, "onFull": on_full}})
    path = identity.home / ".local/state/sandboxd/audit/audit.jsonl"
    assert daemon.run("run", "--", "true").returncode == 0
    settled(daemon, path, "ended")
    assert not identity.run(["prlimit", f"--pid={daemon.pid}", f"--fsize={path.stat().st_size + 100}:"]).returncode
    done = daemon.run("run", "--", "true")
    if on_full == "block":
        assert done.returncode == 125 and "audit log" in done.stderr and "onFull" in done.stderr
    else:
        assert done.returncode == 0
    status = json.loads(daemon.run("status", "--json").stdout)
    assert status["audit"]["lost"] >= 1 and status["audit"]["failure"]
    assert not identity.run(["prlimit", f"--pid={daemon.pid}", "--fsize=unlimited:"]).returncode
    assert daemon.run("run", "--", "true").returncode == 0
    settled(daemon, path, "ended", 2)
    lost = next(line for line in lines_of(path) if line["kind"] == "lost")
    assert lost["lines"] >= 1
    assert daemon.run("audit", "verify").returncode == 0


async def test_every_fallback_is_an_event() -> None:
    machine = FakeMachine()
    settings = {**AUDIT, "sandbox": {"enabled": True, "failIfUnavailable": False}}
    async with running_daemon(settings=settings, assemble=machine.assemble) as running:
        async with running.client() as client:
            machine.backend.warnings = ("nested, and weaker",)
            await client.result("wrap", {"command": "make", "cwd": str(running.around.project), "command_id": "c1"})
            machine.backend.unavailable = "bubblewrap is not installed"
            await client.result("should_sandbox", {"command": "make"})
        lines = [line for line in lines_of(default_log(running)) if line["kind"] == "fallback"]
    assert [(line["what"], line["command_id"]) for line in lines] == [("layer", "c1"), ("unsandboxed", None)]
    assert lines[0]["why"] == "nested, and weaker" and "bubblewrap is not installed" in lines[1]["why"]


def test_connections_of_many_commands_do_not_push_out_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "audit.jsonl"
    policy = AuditPolicy(enabled=True, path=str(path), max_bytes=2 << 20, keep=1)
    decision = Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, "allowed")

    async def flood() -> None:
        async with AuditRecorder(
            lambda: policy, str(tmp_path), make_logger(io.StringIO(), LogFormat.JSON)
        ).running() as audit:
            audit.listen(Fallback("layer", "first", "s", "c"))
            for command in map(str, range(60)):
                for _ in range(500):
                    audit.listen(Connected("s", command, "CONNECT", "n.test", 443, "192.0.2.1", decision))
                audit.listen(RunEnded("w", command, "s", True, 0, None))

    asyncio.run(flood())
    lines = lines_of(path)
    assert [line["why"] for line in lines if line["kind"] == "fallback"] == ["first"]
    written = [line for line in lines if line["kind"] == "connection"]
    folded = [line["count"] for line in lines if line["kind"] == "connections"]
    assert 5_000 <= len(written) < 6_000 and len(written) + sum(folded) == 30_000


def test_connections_of_one_command_do_not_push_out_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "audit.jsonl"
    policy = AuditPolicy(enabled=True, path=str(path), max_bytes=1 << 20, keep=1)
    decision = Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, "allowed")

    async def flood() -> None:
        async with AuditRecorder(
            lambda: policy, str(tmp_path), make_logger(io.StringIO(), LogFormat.JSON)
        ).running() as audit:
            audit.listen(Fallback("layer", "first", "s", "c"))
            for number in range(20_000):
                audit.listen(Connected("s", "c", "CONNECT", f"n{number % 3}.test", 443, "192.0.2.1", decision))
            audit.listen(Connected("s", "other", "CONNECT", "late.test", 443, "192.0.2.1", decision))
            audit.listen(RunEnded("w", "c", "s", True, 0, None))
            audit.listen(RunEnded("w", "other", "s", True, 0, None))

    asyncio.run(flood())
    lines = lines_of(path)
    assert [line["why"] for line in lines if line["kind"] == "fallback"] == ["first"]
    written = [line for line in lines if line["kind"] == "connection"]
    assert 500 < len(written) < 600 and written[-1]["target"] == "late.test:443"
    [folded] = [line for line in lines if line["kind"] == "connections"]
    assert folded["count"] + len(written) == 20_001
    assert sum(folded["targets"].values()) == folded["count"] and set(folded["targets"]) <= {
        f"n{number}.test:443" for number in range(3)
    }


FIRST = Violation(1, 0.0, "s", "first", ViolationKind.CONNECT, "CONNECT", "first.test:443", "x", ViolationSource.PROXY)


def audited(place: Path, happened: Iterable[Event], *, max_bytes: int, keep: int) -> list[dict[str, Any]]:
    """The lines of all files after these events, oldest first."""
    policy = AuditPolicy(enabled=True, path=str(place), max_bytes=max_bytes, keep=keep)

    async def happen() -> None:
        log = make_logger(io.StringIO(), LogFormat.JSON)
        async with AuditRecorder(lambda: policy, str(place.parent), log).running() as audit:
            for event in happened:
                if isinstance(event, RunPrepared):
                    audit.guard(event)
                audit.listen(event)

    asyncio.run(happen())
    files = [Path(f"{place}.{number}") for number in range(keep, 0, -1)]
    return [line for file in (*files, place) if file.exists() for line in lines_of(file)]


def short_commands(count: int, refused: int) -> Iterator[Event]:
    for command in map(str, range(count)):
        text = f"curl {'x' * 4000}"
        yield RunPrepared("w", command, "s", "/work", text, ("files",), (), 1, 0.0)
        yield RunStarted("w", command, "s", 1)
        for number in range(refused):
            yield replace(FIRST, command_id=command, target=f"n{number}.test:443")
        yield RunEnded("w", command, "s", True, 0, None)


def test_short_commands_push_out_no_refusal_and_fill_no_disk(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(QuestionKind.NETWORK, ("first.test", "443"), "first.test:443", "/work")
    said = ResolvedQuestion("r", "s", False, Outcome.ANSWERED, by="cli")
    events = (FIRST, Asked("r", "s", question, 0.0), said, *short_commands(3_000, 5))
    monkeypatch.setitem(BOUNDS, "violation", BOUNDS["violation"]._replace(of_all=(150, 1.0)))  # as the files are small
    lines = audited(place, events, max_bytes=1 << 20, keep=1)
    kinds = Counter(line["kind"] for line in lines)
    assert kinds["question"] == kinds["answer"] == 1
    assert [line["carried"] for line in lines if line.get("target") == "first.test:443"], "it went along"
    assert sum(one.stat().st_size for one in place.parent.iterdir()) < 3 << 20
    assert verified(place, capsys)["ok"]


def test_refusals_of_many_commands_have_a_bound_together(place: Path) -> None:
    lines = audited(place, short_commands(100, 300), max_bytes=64 << 20, keep=1)
    written = [line for line in lines if line["kind"] == "violation"]
    told = [line for line in lines if line["kind"] == "violations"]
    assert 2000 <= len(written) < 3000 and len(written) + sum(line["count"] for line in told) == 30_000
    assert all(len([one for one in written if one["command_id"] == str(n)]) >= 200 for n in range(10))
    assert len(told) == 100 and all(len(line["targets"]) == 20 for line in told)


def test_decisions_and_refused_commands_have_a_bound(place: Path) -> None:
    decision = Decision(Behavior.ALLOW, Reason.HOST_ALLOWED, "allowed")
    decided = CommandDecided("s", "x" * 10_000, True, decision)
    lines = audited(place, [decided] * 10_000, max_bytes=64 << 20, keep=1)
    assert 2000 <= len([line for line in lines if line["kind"] == "decision"]) < 2500


def test_what_was_not_written_is_told_by_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("sandboxd.daemon.audit.audit_bounds.RateBound", partial(RateBound, clock=lambda: now[0]))
    bounds, record = AuditBounds(), {"kind": "fallback", "why": "x"}
    assert [bounds.admitted(record) for _ in range(503)] == [record] * 500 + [None] * 3
    now[0] = 2.5
    assert bounds.admitted(record) == {**record, "not_written": 3} and bounds.admitted(record) is record


def test_lives_of_many_commands_are_written_and_cut(place: Path) -> None:
    lines = audited(place, short_commands(2000, 0), max_bytes=64 << 20, keep=1)
    runs = [line["command"] for line in lines if line["kind"] == "run"]
    assert len(runs) == 2000 and len(runs[0]) > 4000 and sum(len(command) > 250 for command in runs) < 1500
    assert len([line for line in lines if line["kind"] == "ended"]) == 2000
