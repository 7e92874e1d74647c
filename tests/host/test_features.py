"""Finding out what a machine can do: bubblewrap that is missing, old, setuid or fails in each known way."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandboxd.backends.linux.bwrap.bwrap_options import PROBE_PARTS, probe_options
from sandboxd.errors import HostError
from sandboxd.host.features import (
    FAILURES,
    SandboxProbe,
    check_host,
    check_platform,
    explain_failure,
    try_sandbox,
    why_not_sealed,
    why_unbounded,
)
from sandboxd.host.tools import find_bwrap
from sandboxd.host.watch.exact_names import compares_exactly
from sandboxd_client import programs

OPTIONS = probe_options()
GOOD = 'case "$*" in --version) echo "bubblewrap 0.11.0";; *) exec /usr/bin/bwrap "$@";; esac'


@pytest.fixture(autouse=True)
def _any_place_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests write as bubblewrap is what commands could write (tests/client/test_programs.py)."""
    monkeypatch.setattr(programs, "SYSTEM_DIRECTORIES", ())
    monkeypatch.setattr(programs, "why_writable", lambda path, writable=(): "")


def stub(directory: Path, body: str, *, mode: int = 0o755) -> str:
    """A `bwrap` that is a shell script; the directory it lies in."""
    directory.mkdir(exist_ok=True)
    path = directory / "bwrap"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return str(directory)


def fails(text: str) -> str:
    return f'case "$*" in --version) echo "bubblewrap 0.8.0";; *) echo "{text}" >&2; exit 1;; esac'


KNOWN = [
    ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "namespaces_restricted", None),
    ("bwrap: setting up uid map: Permission denied", "namespaces_restricted", None),
    ("bwrap: setting up uid map: Operation not permitted", "setfcap_missing", True),
    ("bwrap: setting up uid map: Operation not permitted", "namespaces_restricted", False),
    ("bwrap: error writing to setgroups: Permission denied", "namespaces_restricted", None),
    ("bwrap: No permissions to creating new namespace, likely because the kernel does not allow non-privileged user "
     "namespaces.", "namespaces_disabled", None),
    ("bwrap: Creating new namespace failed: Operation not permitted", "namespaces_disabled", None),
    ("bwrap: Creating new namespace failed, likely because /proc/sys/user/max_user_namespaces is 0",
     "namespaces_disabled", None),
    ("bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
     "namespaces_disabled", None),
    ("bwrap: Failed to make / slave: Permission denied", "mounts_restricted", None),
    ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "proc_masked", None),
    ("bwrap: Unknown option --size", "bwrap_too_old", None),
    ("bwrap: --size option is not permitted in setuid mode", "bwrap_setuid", None),
    ("bwrap: Unexpected capabilities but not setuid, old file caps config?", "capabilities_restricted", None),
    ("bwrap: capset failed: Operation not permitted", "capabilities_restricted", None),
    ("bwrap: something nobody has seen", "sandbox_unavailable", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "slug", "root"), KNOWN)
def test_known_failures_have_a_cause_and_a_remedy(text: str, slug: str, root: bool | None) -> None:
    """Known failures have a cause and a remedy."""
    for is_root in (True, False) if root is None else (root,):
        error = explain_failure(text + "\n", 1, is_root=is_root)
        assert error.slug == slug and error.hint and error.data["output"] == text
        assert error.message.startswith("no sandbox can be started: ")


def test_every_row_of_the_table_is_tried_above() -> None:
    assert {failure.slug for failure in FAILURES} <= {slug for _, slug, _ in KNOWN}


@pytest.mark.parametrize(
    ("body", "slug"),
    [
        ("echo bubblewrap 0.4.0", "bwrap_too_old"),
        ("echo bubblewrap 0.6.2", "bwrap_too_old"),
        ("exit 3", "bwrap_broken"),
        ("echo no number", "bwrap_broken"),
    ],
)
def test_versions(tmp_path: Path, body: str, slug: str) -> None:
    """Versions."""
    with pytest.raises(HostError) as caught:
        find_bwrap(None, stub(tmp_path / "bin", body))
    assert caught.value.slug == slug and caught.value.hint


def test_newer_versions_are_fine(tmp_path: Path) -> None:
    assert find_bwrap(None, stub(tmp_path / "bin", "echo bubblewrap 0.11.0")).version == (0, 11, 0)
    assert find_bwrap(None, stub(tmp_path / "bin", "echo bubblewrap 1.0")).version_text == "1.0.0"


def test_no_bubblewrap_is_one_cause_of_three(tmp_path: Path) -> None:
    """No bubblewrap is one cause of three."""
    for search_path in ("", str(tmp_path), f"relative:{tmp_path}/none"):
        with pytest.raises(HostError) as caught:
            find_bwrap(None, search_path)
        assert caught.value.slug == "bwrap_missing" and "install" in caught.value.hint
    for configured in ("bwrap", f"{tmp_path}/none", str(tmp_path)):
        with pytest.raises(HostError, match="bwrapPath"):
            find_bwrap(configured, "/usr/bin")
    directory = stub(tmp_path / "bin", "", mode=0o644)
    for arguments in ((None, directory), (f"{directory}/bwrap", "")):
        with pytest.raises(HostError) as caught:
            find_bwrap(*arguments)
        assert caught.value.slug == "bwrap_not_executable"


def test_a_setuid_build_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setuid build is another."""
    path = Path(stub(tmp_path / "bin", "echo bubblewrap 0.8.0")) / "bwrap"
    real = os.stat

    def setuid(name: str, **keywords: bool) -> os.stat_result:
        state = real(name, **keywords)
        if name != str(path):
            return state
        return os.stat_result((state.st_mode | stat.S_ISUID, *state[1:4], 0, *state[5:]))

    monkeypatch.setattr(os, "stat", setuid)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError) as caught:
        find_bwrap(None, str(path.parent))
    assert caught.value.slug == "bwrap_setuid" and "chmod u-s" in caught.value.hint


@pytest.mark.parametrize(
    ("system", "kernel", "slug"),
    [
        ("linux", "Linux version 6.1.0", None),
        ("linux", "Linux version 5.15.90.1-microsoft-standard-WSL2 (oe-user@oe-host)", None),
        ("linux", "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", "wsl1"),
        ("freebsd14", "", "platform_unsupported"),
    ],
)
def test_platforms(system: str, kernel: str, slug: str | None) -> None:
    """Platforms."""
    if slug is None:
        return check_platform(system, kernel)
    with pytest.raises(HostError) as caught:
        check_platform(system, kernel)
    assert caught.value.slug == slug


@pytest.mark.parametrize("version", ["5.10.0-32-amd64 (debian-kernel)", "4.18.0-553.el8", "5.11.22", "2.6.32"])
def test_a_kernel_that_seals_no_mounts(version: str) -> None:
    with pytest.raises(HostError) as caught:
        check_platform("linux", f"Linux version {version}", 0)
    assert caught.value.slug == "kernel_too_old" and "5.12" in caught.value.hint
    check_platform("linux", f"Linux version {version}", 1000)
    assert why_not_sealed(f"Linux version {version}")


@pytest.mark.parametrize("version", ["5.12.0", "5.15.90.1-microsoft-standard-WSL2", "6.1.0-50-amd64", "10.0"])
def test_a_kernel_that_seals_mounts(version: str) -> None:
    check_platform("linux", f"Linux version {version}", 0)
    assert not why_not_sealed(f"Linux version {version}")


async def test_a_version_is_no_proof(tmp_path: Path) -> None:
    """A version is no proof."""
    probe = SandboxProbe(OPTIONS)
    with pytest.raises(HostError) as caught:
        await probe.ready(None, stub(tmp_path / "bin", fails("bwrap: loopback: Failed RTM_NEWADDR: x")))
    assert caught.value.slug == "namespaces_restricted"


async def test_a_proof_is_kept_and_a_failure_tried_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    counted = f"echo x >> {count}\n{GOOD}"
    probe = SandboxProbe(OPTIONS)
    directory = stub(tmp_path / "bin", fails("no"))
    for _ in range(2):
        with pytest.raises(HostError):
            await probe.ready(None, directory)
    stub(tmp_path / "bin", counted)
    first = await probe.ready(None, directory)
    assert await probe.ready(None, directory) is first
    assert count.read_text().count("x") == 2
    probe.doubt()
    await probe.ready(None, directory)
    assert count.read_text().count("x") == 4
    stub(tmp_path / "bin", counted + "\n# replaced")
    os.utime(tmp_path / "bin" / "bwrap", ns=(1, 1))
    assert await probe.ready(None, directory) is not first


def test_a_sandbox_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.host.features._TIMEOUT_S", 0.1)
    with pytest.raises(HostError, match="did not end"):
        try_sandbox(stub(tmp_path / "bin", "exec sleep 30") + "/bwrap", OPTIONS)


@pytest.mark.parametrize(
    ("release", "uid", "uid_map", "said"),
    [
        ("5.14.0-1", 1000, "0 0 4294967295", ""),
        ("6.18.44-fc", 1000, "0 0 4294967295", ""),
        ("6.1.0", 0, "0 100000 65536", ""),
        ("6.1.0", 0, "         0          0 4294967295", "applies no such limit to root"),
        ("6.1.0", 0, "", "applies no such limit to root"),
        ("5.13.19", 1000, "0 0 4294967295", "counts all processes of the user"),
        ("4.4.0", 1000, "0 0 4294967295", "counts all processes of the user"),
        ("strange", 1000, "0 0 4294967295", "counts all processes of the user"),
    ],
)
def test_where_processes_can_be_limited(tmp_path: Path, release: str, uid: int, uid_map: str, said: str) -> None:
    (tmp_path / "uid_map").write_text(uid_map)
    reason = why_unbounded(release, uid, str(tmp_path / "uid_map"))
    assert said in reason and bool(said) is bool(reason)


def test_every_step_in_one_go() -> None:
    steps = check_host(OPTIONS, probe_options(weaker=True), PROBE_PARTS, None, "/usr/bin:/bin")
    assert all(step.ok for step in steps if step.required), steps
    names = [step.name for step in steps]
    assert names[:2] == ["platform", "bubblewrap"]
    assert {"sandbox", "write", "read", "processes", "network"} <= set(names)


def test_failing_steps_have_remedies(tmp_path: Path) -> None:
    steps = check_host(OPTIONS, probe_options(weaker=True), PROBE_PARTS, None, str(tmp_path))
    assert [step.slug for step in steps if not step.ok] == ["bwrap_missing"]
    broken = fails("bwrap: Can't mount proc on /newroot/proc: Operation not permitted")
    steps = check_host(OPTIONS, probe_options(weaker=True), PROBE_PARTS, None, stub(tmp_path / "bin", broken))
    failed = {step.name: step for step in steps if not step.ok}
    assert set(failed) == {"sandbox", "user namespace", "weaker nested sandbox"}
    assert "enableWeakerNestedSandbox" in failed["sandbox"].remedy and not failed["weaker nested sandbox"].required


def test_everything_that_is_in_the_way_is_named(tmp_path: Path) -> None:
    """A container that masks /proc and has no network namespaces: bubblewrap alone says the first."""
    body = """
case "$*" in
  --version) exec /usr/bin/bwrap --version;;
  *--unshare-net*) echo "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted" >&2; exit 1;;
  *"--proc /proc"*) echo "bwrap: Can't mount proc on /newroot/proc: Operation not permitted" >&2; exit 1;;
esac
exec /usr/bin/bwrap "$@"
"""
    steps = check_host(OPTIONS, probe_options(weaker=True), PROBE_PARTS, None, stub(tmp_path / "bin", body))
    failed = {step.name: step.slug for step in steps if not step.ok and step.name != "sandbox"}
    assert failed == {
        "own /proc": "proc_masked",
        "network namespace": "namespaces_restricted",
        "weaker nested sandbox": "namespaces_restricted",
    }
    assert all(step.remedy for step in steps if not step.ok)


@pytest.mark.parametrize(
    ("drop", "held"), [("--ro-bind", {"write", "read"}), ("--unshare-net", {"network"}), ("--proc", {"processes"})]
)
def test_pd28_a_layer_that_silently_does_nothing_is_found(tmp_path: Path, drop: str, held: set[str]) -> None:
    """A bubblewrap that accepts an option and leaves it out."""
    body = f"""
case "$*" in --version) exec /usr/bin/bwrap --version;; esac
for word; do
  shift
  case "$word" in
    --unshare-net) test {drop} = --unshare-net || set -- "$@" "$word";;
    --ro-bind) test {drop} = --ro-bind && set -- "$@" --bind || set -- "$@" "$word";;
    --proc) test {drop} = --proc && set -- "$@" --ro-bind /proc || set -- "$@" "$word";;
    */mask) test {drop} = --ro-bind && set -- "$@" /etc/hostname || set -- "$@" "$word";;
    *) set -- "$@" "$word";;
  esac
done
exec /usr/bin/bwrap "$@"
"""
    steps = check_host(OPTIONS, (), PROBE_PARTS, None, stub(tmp_path / "bin", body))
    assert {step.name for step in steps if not step.ok} >= held, steps


def test_a_limit_that_is_high_enough_is_not_the_remedy() -> None:
    """In a nested container the limit of the outer system counts."""
    stderr = "bwrap: Creating new namespace failed: No space left on device"
    assert "sysctl user.max_user_namespaces=15000" in explain_failure(stderr, 1, is_root=False, namespaces=0).hint
    outer = explain_failure(stderr, 1, is_root=False, namespaces=254_000).hint
    assert "sysctl" not in outer and "254000: raise that of the system around it" in outer


def test_directories_that_compare_names_exactly(tmp_path: Path) -> None:
    assert compares_exactly(str(tmp_path))
    assert not compares_exactly("/proc") and not compares_exactly(str(tmp_path / "none"))
