"""Fixtures of all tests. What they are made of is in `support/`.

`identity` runs a test once for each kind of person (as root: root and an ordinary user), `start_daemon` and `daemon`
give a real daemon running as that person, `host_snapshot` compares the host before and after, `origin` is a loopback
server that records connections. Nothing here skips: a missing layer fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from support import processes
from support.bubblewrap import install_newest
from support.daemons import DaemonProcess, StartDaemon, start_daemon_process
from support.forks import close_forkers
from support.fuzzing import FACTOR, examples
from support.hands import Hands
from support.origin import Origin, serve_origin
from support.processes import Births, there_now
from support.snapshot import HostWatch
from support.turns import close_turns, open_turns, turn
from support.users import (
    CHECKOUT,
    Code,
    Identity,
    code_for,
    compile_code,
    identity_names,
    make_identity,
)
from support.waiting import wait_until

# Slow machines are no bugs: no deadline. CI tries the same examples every time, people get new ones.
hypothesis_settings.register_profile("people", deadline=None, max_examples=examples(100))
hypothesis_settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis_settings.load_profile("ci" if os.environ.get("CI") and FACTOR == 1 else "people")

# Programs of others that `./dev integrations` and `./dev programs` install.
collect_ignore = [one for one in ("integrations", "programs") if f"SANDBOXD_{one.upper()}" not in os.environ]


def pytest_configure(config: pytest.Config) -> None:
    processes.adopt_orphans()
    # A shell starts its background jobs with the first two ignored, nohup the third, and processes started so hand
    # that on: a command under test could not even set a trap.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.umask(0o022)  # handed on too; modes that tests expect are those of what this leaves
    if not hasattr(config, "workerinput"):  # not in a worker: before everything else, and once
        compile_code(CHECKOUT)
    if config.getoption("numprocesses", None):  # the process that starts the workers
        open_turns()


def pytest_unconfigure(config: pytest.Config) -> None:
    close_forkers()
    if config.getoption("numprocesses", None):
        close_turns()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with turn(alone="host_snapshot" in getattr(item, "fixturenames", ())):
        return (yield)


@pytest.fixture(scope="session")
def world_directory() -> Iterator[Path]:
    """A directory that every user can reach, outside /tmp. Short, for socket paths.

    It is removed when the run ends, and what single tests leave in it not before: ext4 looks at every inode that was
    deleted in the last minutes before it hands out one, and took half of the run for that."""
    path = Path(tempfile.mkdtemp(prefix="sdt-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    if os.environ.get("CI"):  # the machine goes with it; to remove half a million files takes a minute
        return
    for directory, names, _ in os.walk(path):  # an ordinary user cannot remove what a test has closed
        for name in names:
            below = os.path.join(directory, name)
            if not os.path.islink(below) and os.lstat(below).st_mode & 0o700 != 0o700:
                os.chmod(below, 0o700)
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def _code_by_kind() -> dict[str, Code]:
    return {}


@pytest.fixture(scope="session")
def _serial() -> Iterator[int]:
    return count()


@pytest.fixture(scope="session")
def _make_identity(
    world_directory: Path, _code_by_kind: dict[str, Code], _serial: Iterator[int]
) -> Callable[[str], Identity]:
    def make(kind: str) -> Identity:
        if kind not in _code_by_kind:
            _code_by_kind[kind] = code_for(kind, world_directory / f"code-{kind}")
        return make_identity(kind, world_directory / str(next(_serial)), _code_by_kind[kind])

    return make


@pytest.fixture
def _strangers() -> Births:
    """What runs below us and is not of this test: what is shared, and what another test has left to end by itself."""
    return there_now()


@pytest.fixture(params=identity_names())
def identity(
    request: pytest.FixtureRequest, _make_identity: Callable[[str], Identity], _strangers: Births
) -> Iterator[Identity]:
    """A person with empty directories of their own. Whatever they still have running at the end is ended."""
    with _ended_afterwards(_strangers):
        yield _make_identity(request.param)


@contextlib.contextmanager
def _ended_afterwards(strangers: Births) -> Iterator[None]:
    """All but these, and not before they are gone: the next test would see them go."""
    yield
    wait_until(lambda: processes.end_others(strangers), "what the test has left running is gone")


@pytest.fixture(scope="session")
def _newest_bubblewrap(world_directory: Path) -> Path:
    return install_newest(world_directory / "newest")


@pytest.fixture
def bubblewrap(request: pytest.FixtureRequest) -> dict[str, str]:
    """What the environment of a daemon has to say of it (`support.bubblewrap`)."""
    if getattr(request, "param", "machine") == "machine":
        return {}
    return {"SANDBOXD_TEST_PATH": str(request.getfixturevalue("_newest_bubblewrap"))}


@pytest.fixture
def placeholders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons keep names absent by placeholders, as where the helper cannot."""
    monkeypatch.setenv("SANDBOXD_TEST_PLACEHOLDERS", "1")


@pytest.fixture
def start_daemon(identity: Identity, bubblewrap: dict[str, str]) -> Iterator[StartDaemon]:
    """`start_daemon(resolve={"ok.test": "127.0.0.1"}, settings={…}, arguments=[…], env={…})`, ended with the test."""
    started: list[DaemonProcess] = []

    def start(env: Mapping[str, str] | None = None, **keywords: Any) -> DaemonProcess:
        started.append(start_daemon_process(identity, env={**bubblewrap, **(env or {})}, **keywords))
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    """A daemon without settings of its own, in which `ok.test` and `denied.test` are this machine."""
    return start_daemon(resolve={"ok.test": "127.0.0.1", "denied.test": "127.0.0.1"})


@pytest.fixture(scope="session")
def _shared_daemons() -> Iterator[dict[str, DaemonProcess]]:
    daemons: dict[str, DaemonProcess] = {}
    yield daemons
    for daemon in daemons.values():
        daemon.stop()


@pytest.fixture(params=identity_names())
def share_daemon(
    request: pytest.FixtureRequest,
    _make_identity: Callable[[str], Identity],
    _shared_daemons: dict[str, DaemonProcess],
    _serial: Iterator[int],
    bubblewrap: dict[str, str],
) -> Iterator[StartDaemon]:
    """`start_daemon` for tests that only run commands: equal requests share a daemon, which takes much
    longer to start than such a test. The workspace is new each time; what runs at the end of the test is ended."""
    with contextlib.ExitStack() as stack:

        def share(env: Mapping[str, str] | None = None, **keywords: Any) -> DaemonProcess:
            env = {**bubblewrap, **(env or {})}
            key = json.dumps([request.param, env, keywords], sort_keys=True)
            if key not in _shared_daemons:
                _shared_daemons[key] = start_daemon_process(_make_identity(request.param), env=env, **keywords)
            stack.enter_context(_ended_afterwards(there_now()))
            daemon = _shared_daemons[key]
            identity = replace(daemon.identity, project=f"work-{next(_serial)}")
            identity.workspace.mkdir(mode=0o755)
            identity.own(identity.workspace)
            return replace(daemon, identity=identity)

        yield share


@pytest.fixture
def shared_daemon(share_daemon: StartDaemon) -> DaemonProcess:
    """As `daemon`, shared."""
    return share_daemon(resolve={"ok.test": "127.0.0.1", "denied.test": "127.0.0.1"})


@pytest.fixture
def host_snapshot(identity: Identity, _strangers: Births) -> HostWatch:
    """`with host_snapshot.assert_unchanged(): …`"""
    return HostWatch(identity, _strangers)


@pytest.fixture
def hands(identity: Identity, origin: Origin) -> Iterator[Hands]:
    """A server outside that hands descriptors in."""
    made = Hands(identity, origin.port)
    yield made
    made.close()


@pytest.fixture
def origin() -> Iterator[Origin]:
    with serve_origin() as server:
        yield server
