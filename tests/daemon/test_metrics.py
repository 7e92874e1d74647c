"""`metrics` and `sandboxd metrics`: figures that a collector can read, and that say what happened."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from support.daemon import running_daemon
from support.daemons import StartDaemon
from support.fake_runtime import FakeMachine
from support.origin import Origin
from support.users import Identity
from support.waiting import wait_until


def figures(text: str) -> dict[str, float]:
    """Name with labels, as the text has it: value."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_method() -> None:
    async with running_daemon(settings={"sandbox": {"enabled": True}}, assemble=FakeMachine().assemble) as running:
        async with running.client() as client:
            before = figures((await client.result("metrics"))["text"])
            assert before["sandboxd_wraps_total"] == 0 and before["sandboxd_policy_generation"] >= 1
            for command in ("make", "make install"):
                await client.result("wrap", {"command": command, "cwd": str(running.around.project)})
            await client.result("should_sandbox", {"command": "make"})
            after = figures((await client.result("metrics"))["text"])
    assert after["sandboxd_wraps_total"] == 2 == after["sandboxd_wrap_seconds_count"]
    assert after["sandboxd_commands"] == 2 and after["sandboxd_sessions"] == 1
    assert after["sandboxd_decisions_total,behavior=allow,sandboxed=true"] == 1
    assert after["sandboxd_open_descriptors"] >= 5


def test_after_some_commands(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> None:
    settings = {"sandbox": {"network": {"allowedDomains": ["ok.test"]}}}
    daemon = start_daemon(settings=settings, resolve={"ok.test": "127.0.0.1"})
    assert daemon.run("run", "--", "curl", "-sf", f"http://ok.test:{origin.port}/").returncode == 0
    assert daemon.run("run", "--", "curl", "-sfp", f"http://ok.test:{origin.port}/").returncode == 0
    assert daemon.run("run", "--", "curl", "-sf", "http://denied.test/").returncode != 0
    assert daemon.run("run", "--cwd", "/proc", "--", "true").returncode == 125

    def now() -> dict[str, float]:
        done = daemon.run("metrics")
        assert done.returncode == 0
        return figures(done.stdout)

    wait_until(lambda: now().get("sandboxd_runs_ended_total,outcome=success") == 2, "the commands have ended")
    seen = now()
    assert seen["sandboxd_runs_total"] == 3 == seen["sandboxd_wraps_total"]
    assert seen["sandboxd_runs_ended_total,outcome=failure"] == 1
    assert seen["sandboxd_wrap_failures_total,slug=cwd_special"] == 1
    assert seen["sandboxd_connections_total,operation=GET"] == 1 == seen["sandboxd_connections_total,operation=CONNECT"]
    assert seen["sandboxd_violations_total,kind=network,outcome=hostNotListed,source=proxy"] >= 1
    assert seen["sandboxd_gate_seconds_count"] >= 3
    assert seen["sandboxd_tunnel_bytes_total,direction=received"] > 10
    assert seen["sandboxd_tunnel_bytes_total,direction=sent"] > 10


def test_without_a_daemon(identity: Identity) -> None:
    done = identity.run(identity.command("metrics"), env=identity.environment(SANDBOXD_SOCKET="/nowhere/x.sock"))
    assert done.returncode == 1 and "no daemon is running" in done.stderr
