"""Machines on which a sandbox is harder to start: each works, or says why and what to do, and runs nothing."""

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
    """Output on such a host. `run` are the words that the command printed and its exit status."""

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


def test_root_without_the_capability_to_mount(identity: Identity) -> None:
    """As in a container without CAP_SYS_ADMIN."""
    if identity.uid == 0:  # other users lack it
        assert_sandboxed(look(identity, without("sys_admin", "net_admin", "sys_ptrace")))


def test_root_that_cannot_map_itself(identity: Identity) -> None:
    if identity.uid == 0:
        seen = look(identity, without("setfcap"))
        assert_nothing_runs(seen, "setfcap_missing")
        assert "SETFCAP" in seen.errors


def test_a_user_with_capabilities(identity: Identity) -> None:
    """As in a container that runs as a user and is given some; bubblewrap does not start for one."""
    if identity.uid != 0:
        seen = look(identity, within(identity, "--cap-add", "CAP_SETFCAP"))
        assert_nothing_runs(seen, "capabilities_restricted")


def test_a_container_that_masks_proc(identity: Identity) -> None:
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


def test_nested_user_namespaces_refused(identity: Identity) -> None:
    """As with user.max_user_namespaces=0 and kernel.unprivileged_userns_clone=0."""
    assert_nothing_runs(look(identity, within(identity, "--disable-userns")), "namespaces_disabled")


def test_a_security_module_in_the_way(identity: Identity) -> None:
    """A bubblewrap that says its version and then fails, as under AppArmor on Ubuntu."""
    stub = identity.write(
        identity.base / "stub" / "bwrap",
        'case "$*" in --version) echo "bubblewrap 0.9.0";;'
        ' *) echo "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted" >&2; exit 1;; esac\n',
    )
    stub.write_text("#!/bin/sh\n" + stub.read_text())
    stub.chmod(0o755)
    loose = {"failIfUnavailable": False, "allowUnsandboxedCommands": True}
    seen = look(identity, ["env", f"SANDBOXD_TEST_PATH={stub.parent}"], loose)
    assert_nothing_runs(seen, "namespaces_restricted")  # whatever an agent may ask for: run and wrap sandbox or fail
    assert "apparmor" in seen.errors and seen.failed["user namespace"] == "namespaces_restricted"


def test_nothing_is_installed(identity: Identity) -> None:
    """Nothing is installed."""
    few = identity.base / "few"
    few.mkdir()
    for program in ("sh", "touch", "env"):
        (few / program).symlink_to(f"/bin/{program}")
    seen = look(identity, ["env", f"PATH={identity.base / 'bin'}:{few}", "SANDBOXD_TEST_NO_PROGRAMS=1"])
    assert (seen.check_status, seen.run, seen.ran) == ("1", ["125"], False), seen
    assert seen.failed["bubblewrap"] == "bwrap_missing" and "hint: install it" in seen.errors
    assert "socat" not in seen.errors
    assert not {"network capture", "overlay"} & seen.failed.keys(), "what was not tried is not blamed"


def test_a_secret_on_a_file_system_that_cannot_be_written(identity: Identity) -> None:
    """As in a store of packages, which a workspace links to."""
    store, seen_at = identity.base / "store", identity.base / "ro"
    identity.write(store / ".env.example", "secret\n")
    identity.write(store / "open", "open\n")
    seen_at.mkdir()
    (identity.workspace / "flake").symlink_to(seen_at)
    rules = {"denyRead": ["./flake/.env*", f"/{seen_at}/.env.example"], "allowWrite": [f"/{identity.base}"]}
    capability = ["--cap-add", "CAP_SETFCAP"] if identity.uid == 0 else []
    container = within(identity, *capability, "--ro-bind", str(store), str(seen_at))
    identity.write(identity.home / ".claude" / "settings.json", json.dumps(
        {"sandbox": {"filesystem": rules, "enableWeakerNestedSandbox": True}}
    ))  # fmt: skip
    script = "sandboxd run -c 'cat flake/open; cat flake/.env.example; touch flake/new'; sandboxd stop >/dev/null"
    done = identity.run([*container, "/bin/sh", "-c", script], cwd=identity.workspace)
    assert done.stdout == "open\n" and "Permission denied" in done.stderr and "Read-only" in done.stderr, done
