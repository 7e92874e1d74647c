"""The service manager's descriptor store, with a socket in the manager's place (sd_pid_notify_with_fds(3))."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxd.daemon.restart.descriptor_store import STATE, empty, keep, names_restart, take_stored, unit_of
from sandboxd.errors import HostError
from sandboxd.handover.document import Outgoing, read_document
from sandboxd.handover.record import Descriptor


@dataclass(frozen=True, slots=True)
class Held:
    text: str
    pipe: Descriptor


@dataclass(slots=True)
class Manager:
    """Takes what it is given, and says at the barrier that it has it."""

    address: str
    kept: dict[str, int] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def serve(self, manager: socket.socket) -> None:
        while True:
            text, rights, _, _ = manager.recvmsg(4096, socket.CMSG_SPACE(16))
            numbers = array.array("i")
            for _, _, payload in rights:
                numbers.frombytes(payload)
            said = dict(line.split("=", 1) for line in text.decode().splitlines())
            if "FDSTORE" in said:
                assert said["FDPOLL"] == "0"
                self.kept[said["FDNAME"]] = numbers[0]
            elif "FDSTOREREMOVE" in said:
                self.removed.append(said["FDNAME"])
            elif "BARRIER" in said:
                os.close(numbers[0])
            else:
                return


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        made = Manager(str(tmp_path / "notify"))
        thread = threading.Thread(target=made.serve, args=(sock,))
        thread.start()
        yield made
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"END=1", made.address)
        thread.join()
    for number in made.kept.values():
        os.close(number)


def test_entries_exist_until_they_are_released(manager: Manager) -> None:
    reader, writer = os.pipe()
    outgoing = Outgoing()
    outgoing.add("bridge", Held("x", Descriptor(writer)), "n", ends=[writer])
    keep(manager.address, outgoing)
    assert set(manager.kept) == {STATE, f"sandboxd-{writer}"}
    os.close(writer)
    os.write(manager.kept[f"sandboxd-{writer}"], b"!")
    assert os.read(reader, 1) == b"!"
    assert os.pread(manager.kept[STATE], 1 << 20, 0) == outgoing.text()
    os.close(reader)
    empty(manager.address, tuple(manager.kept))


def test_a_missing_manager_is_an_error_only_when_storing() -> None:
    empty("/no/such/socket", ("a",))
    with pytest.raises(OSError, match=r"."):
        keep("/no/such/socket", Outgoing())


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({}, {}),
        ({"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "sandboxd-7"}, None),
        ({"LISTEN_PID": "me", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "sandboxd-7"}, None),
        ({"LISTEN_PID": "me", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "sandboxd.socket"}, None),
        ({"LISTEN_PID": "me", "LISTEN_FDS": "x", "LISTEN_FDNAMES": "sandboxd-7"}, None),
    ],
)
def test_what_is_not_from_the_store_is_left_alone(environment: dict[str, str], left: dict[str, str] | None) -> None:
    given = {name: value.replace("me", str(os.getpid())) for name, value in environment.items()}
    before = dict(given)
    assert take_stored(given) == (None, ())
    assert given == (before if left is None else left)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ("", False),
        ("No jobs running.\n", False),
        ("712 sandboxd.service restart running\n", True),
        ("712 sandboxd.service try-restart running\n", True),
        ("712 sandboxd.service stop running\n", False),
        ("712 other.service restart running\n713 sandboxd.service stop waiting\n", False),
        ("712 not-sandboxd.service restart running\n", False),
    ],
)
def test_a_restart_is_told_from_a_stop(jobs: str, said: bool) -> None:
    assert names_restart(jobs, "sandboxd.service") is said


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/sandboxd.service\n", ("sandboxd.service", True)),
        ("0::/system.slice/sandboxd.service\n", ("sandboxd.service", False)),
        ("1:cpu:/a\n0::/system.slice/x.service\n", ("x.service", False)),
        ("0::/\n", ("", False)),
        ("0::/user.slice/session-3.scope\n", ("", False)),
        ("", ("", False)),
    ],
)
def test_the_own_unit_is_found(groups: str, unit: tuple[str, bool]) -> None:
    assert unit_of(groups) == unit


START = """
import json, os, sys
names, here = json.loads(sys.argv[1]), os.environ
for place, name in enumerate(names):
    if name.endswith(".socket"):
        import socket
        made = socket.socket(socket.AF_UNIX); made.bind(""); made.listen(); made = made.detach()
    elif name == "sparse": made = os.memfd_create("x"); os.truncate(made, 1 << 40)
    else: made = os.open("/dev/null", os.O_RDWR)
    if made != 3 + place: os.dup2(made, 3 + place); os.close(made)
names = ["sandboxd-state" if name == "sparse" else name for name in names]
for number in json.loads(sys.argv[2] or "[]"): os.close(number)
here.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(names)), LISTEN_FDNAMES=":".join(names))
from sandboxd.daemon.restart.descriptor_store import take_stored
from sandboxd.rpc.socket import take_passed
before = take_stored(here)[0]
print(before is None, take_passed(here) is not None)
"""


@pytest.mark.parametrize(
    ("names", "closed", "has_socket"),
    [
        (["sandboxd.socket", "sandboxd-1", "foreign", "sandboxd-state", "stored"], "", True),
        (["sandboxd.socket", "foreign", "sandboxd-1", "foreign"], "", True),
        (["sandboxd.socket", "sandboxd-1", "sandboxd-state"], "[4]", True),
        (["sandboxd.socket", "sparse"], "", True),
        (["stored"], "", False),
        (["foreign", "stored"], "", False),
        (["stored", "stored", "sandboxd-1"], "", False),
        (["sandboxd.socket", "stored"], "", True),
    ],
)
def test_what_others_have_put_there_never_stops_the_start(names: list[str], closed: str, has_socket: bool) -> None:
    words = [sys.executable, "-c", START, json.dumps(names), closed]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.stdout.split() == ["True", str(has_socket)], done.stderr


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": 1, "cut": 1e999, "parts": []}', "[]", "1", '{"format": []}']
)
def test_any_document_is_read_or_refused(text: str) -> None:
    with pytest.raises(HostError):
        read_document(text.encode())
