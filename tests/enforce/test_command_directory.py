"""The working directory of one command opens nothing that its session does not."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon

PLANTED = f"sdt-{secrets.token_hex(8)}"
"""A name that nothing else makes in the host's `/tmp`."""
CODE = """
import json, sys
from sandboxd_client import Client
session_directory, cwd, name = sys.argv[1:]
with Client(autostart=False) as box, box.session(cwd=session_directory) as session:
    done = session.run(f"pwd -P; touch {name}", cwd=cwd, capture_output=True, text=True)
    explained = box.policy_explain("path", f"{cwd}/{name}", write=True, session_id=session.id, cwd=cwd)
    print(json.dumps([done.stdout.strip(), done.returncode, explained.behavior, list(done.wrap.warnings)]))
"""


def attempt(daemon: DaemonProcess, session: object, cwd: object) -> tuple[str, int, str, str]:
    done = daemon.identity.run(
        [*daemon.identity.python("-c", CODE), str(session), str(cwd), PLANTED], env=daemon.environment(), check=True
    )
    where, status, explained, warnings = json.loads(done.stdout)
    return where, status, explained, " ".join(warnings)


@pytest.mark.parametrize("kind", ["home", "link", "dotdot", "sibling", "parent"])
def test_elsewhere_it_is_read_only(daemon: DaemonProcess, kind: str) -> None:
    identity = daemon.identity
    sibling = identity.home / "sibling"
    sibling.mkdir()
    identity.own(sibling)
    link = identity.workspace / "link"
    link.symlink_to(identity.home)
    directory = {
        "home": identity.home,
        "link": link,
        "dotdot": f"{identity.workspace}/../",
        "sibling": sibling,
        "parent": identity.workspace.parent,
    }[kind]
    real = {"sibling": sibling, "parent": identity.workspace.parent, "dotdot": identity.workspace.parent}
    where, status, explained, warnings = attempt(daemon, identity.workspace, directory)
    assert where == str(real.get(kind, identity.home).resolve())
    assert status != 0 and explained == "deny"
    assert not list(identity.base.rglob(PLANTED))
    assert "read-only" in warnings and "sandboxd allow path" in warnings
    if kind in ("home", "sibling"):
        assert attempt(daemon, directory, directory)[1:3] == (0, "allow"), "a session may be opened there"


@pytest.mark.parametrize("way", ["/proc/self/root", "/proc/thread-self/root", "/proc/{pid}/root", "/dev/fd/../root"])
def test_the_processes_of_the_daemon_are_not_those_of_a_command(daemon: DaemonProcess, way: str) -> None:
    identity, way = daemon.identity, way.format(pid=daemon.process.pid)
    link = identity.workspace / "link"
    link.symlink_to(way + str(identity.home))
    for directory in (link, way + str(identity.home)):
        done = daemon.run("run", "--cwd", str(directory), "--", "touch", PLANTED)
        assert done.returncode == 125 and "cannot be a working directory" in done.stderr, done
    if ".." not in way:
        said = daemon.run("explain", "path", f"{way}{identity.home}/x", "--write").stdout
        assert "the host's is not seen" in said, said
    for path in ("/dev/fd/3", "/dev/stdin", "/proc/self/environ"):
        assert f"/proc/{daemon.process.pid}" not in daemon.run("explain", "path", path).stdout
    assert not list(identity.base.rglob(PLANTED))


def test_below_the_session_and_where_a_rule_opens_it_is_writable(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"allowWrite": ["~/opened"]}}})
    identity = daemon.identity
    for directory in (identity.workspace / "a" / "b", identity.home / "opened" / "x"):
        directory.mkdir(parents=True)
    for directory in (identity.workspace / "a", identity.home / "opened"):
        identity.own(directory)
    for directory in (identity.workspace / "a" / "b", identity.home / "opened" / "x"):
        identity.own(directory)
        _, status, explained, warnings = attempt(daemon, identity.workspace, directory)
        assert (status, explained, warnings) == (0, "allow", "")
        assert (directory / PLANTED).exists()


@pytest.fixture
def host_tmp() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="sandboxd-test-", dir="/tmp"))
    directory.chmod(0o777)
    yield directory
    assert not list(directory.iterdir())
    directory.rmdir()


def test_a_directory_in_the_hosts_tmp_is_seen_and_not_written(daemon: DaemonProcess, host_tmp: Path) -> None:
    """A command's files there belong to its session: the fixture looks at the host's."""
    for directory in (host_tmp, Path("/tmp")):
        said = attempt(daemon, daemon.identity.workspace, directory)
        assert said == (str(directory), 0, "allow", ""), "the session's own"
    assert not Path("/tmp", PLANTED).exists()
