"""Machines on which a sandbox is harder to start: each works, or says why and what to do, and runs nothing (F250 to
F263, PD-05, PD-24)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.users import Identity

INSIDE = """
sandboxd check --json > check.json; echo $?
sandboxd run -c 'touch ran; touch /etc/escaped; echo inside' 2>errors; echo $?
sandboxd status --json > status.json
sandboxd stop >/dev/null
"""


@dataclass(frozen=True)
class Seen:
    """What somebody on such a host sees. `run` are the words that the command printed and its exit status."""

    check_status: str
    run: list[str]
    errors: str
    ran: bool
    failed: dict[str, str]
    layers: list[str]
    warnings: list[str]
    log: str


def look(identity: Identity, prefix: Sequence[str], sandbox: dict[str, bool] | None = None) -> Seen:
    """Our command line on a host that `prefix` makes, with a daemon of its own."""
    identity.write(identity.home / ".claude" / "settings.json", json.dumps({"sandbox": sandbox or {}}))
    done = identity.run([*prefix, "/bin/sh", "-c", INSIDE], cwd=identity.workspace)
    status, *run = done.stdout.split()
    files = [identity.workspace / name for name in ("check.json", "status.json", "errors")]
    check, daemon = (json.loads(file.read_text()) for file in files[:2])
    return Seen(
        status, run, files[2].read_text(), (identity.workspace / "ran").exists(),
        {step["name"]: step["code"] for step in check["steps"] if not step["ok"]},
        daemon["layers"], daemon["warnings"], done.stderr,
    )  # fmt: skip


def assert_nothing_runs(seen: Seen, slug: str) -> None:
    assert (seen.check_status, seen.run, seen.ran) == ("1", ["125"], False), seen
    assert seen.failed["sandbox"] == slug
    lines = seen.errors.splitlines()
    assert lines[0].startswith("sandboxd: no sandbox can be started: ") and lines[1].startswith("hint: "), seen
    assert not any("None" in line or "{" in line for line in lines)


def assert_sandboxed(seen: Seen) -> None:
    assert (seen.check_status, seen.run, seen.ran) == ("0", ["inside", "0"], True), seen
    assert not Path("/etc/escaped").exists()


def within(identity: Identity, *options: str) -> list[str]:
    """Inside another bubblewrap."""
    base = str(identity.base)
    return [
        "/usr/bin/bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", base, base,
        "--bind", "/var/tmp", "/var/tmp", "--unshare-user", "--unshare-pid", *options,
    ]  # fmt: skip


def without(*capabilities: str) -> list[str]:
    dropped = ",".join(f"-{name}" for name in capabilities)
    return ["setpriv", "--bounding-set", dropped, "--inh-caps", dropped]


def test_f250_root_without_the_capability_to_mount(identity: Identity) -> None:
    if identity.uid == 0:  # nobody else has it
        assert_sandboxed(look(identity, without("sys_admin", "net_admin", "sys_ptrace")))


def test_f250_root_that_cannot_map_itself(identity: Identity) -> None:
    if identity.uid == 0:
        seen = look(identity, without("setfcap"))
        assert_nothing_runs(seen, "setfcap_missing")
        assert "SETFCAP" in seen.errors


def test_a_user_with_capabilities(identity: Identity) -> None:
    """As in a container that runs as a user and is given some; bubblewrap does not start for one."""
    if identity.uid != 0:
        seen = look(identity, within(identity, "--cap-add", "CAP_SETFCAP"))
        assert_nothing_runs(seen, "capabilities_restricted")


def test_f251_a_container_that_masks_proc(identity: Identity) -> None:
    """With root in it, who needs CAP_SETFCAP to map itself, and with a user."""
    capability = ["--cap-add", "CAP_SETFCAP"] if identity.uid == 0 else []
    container = within(identity, *capability, "--ro-bind", "/dev/null", "/proc/interrupts")
    seen = look(identity, container)
    assert_nothing_runs(seen, "proc_masked")
    assert seen.failed["own /proc"] == "proc_masked" and "mounts" not in seen.failed
    assert "enableWeakerNestedSandbox" in seen.errors
    weaker = look(identity, container, {"enableWeakerNestedSandbox": True})
    assert_sandboxed(weaker)
    assert "namespaces-weaker" in weaker.layers and "namespaces" not in weaker.layers
    assert any("weaker nested sandbox" in warning for warning in weaker.warnings)


def test_f252_nested_user_namespaces_refused(identity: Identity) -> None:
    """As with user.max_user_namespaces=0 and kernel.unprivileged_userns_clone=0."""
    assert_nothing_runs(look(identity, within(identity, "--disable-userns")), "namespaces_disabled")
