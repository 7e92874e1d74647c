"""Directories of the daemon on real file systems without room, without names, or read-only: what cannot be done is
refused and told, nothing opens, and all works again afterwards."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from support.daemons import StartDaemon
from support.users import Identity, identity_names

NEW_NAMESPACE, RECURSIVE_PRIVATE, READ_ONLY, REMOUNT, BIND, DETACH = 0x20000, 0x44000, 1, 32, 4096, 2
SIZE = b"size=2m,nr_inodes=400,mode=0700"
CALLS = """
import hashlib, json, pathlib, sys
from sandboxd_client import Client, SandboxdError
project, opened = map(pathlib.Path, sys.argv[1:])
file = project / ".claude/settings.json"
digests = {str(file): hashlib.sha256(file.read_bytes()).hexdigest()}
settings = {"sandbox": {"filesystem": {"allowWrite": [str(opened)], "denyRead": ["./secret"]}}}
line = f"cat secret; echo x >{opened}/file; echo x >$TMPDIR/y; mkdir .vscode; touch ~/outside; echo end"
def told(call):
    try:
        return ["", str(call()), "-"]
    except SandboxdError as error:
        return [getattr(error, "slug", type(error).__name__), str(error), getattr(error, "hint", "")]
with Client(autostart=False, timeout=60) as box:
    def session():
        with box.session(str(project), settings=settings) as one:
            return one.run(line, capture_output=True, text=True).stdout
    print(json.dumps({
        "session": told(session),
        "trust": told(lambda: box.settings_trust("trust", str(project), digests=digests)),
        "trust again": told(lambda: box.settings_trust("remove", str(project))),
        "status": told(lambda: list(box.status().warnings)),
    }))
"""
PLACES = ("home/.local/state/sandboxd", "run", "home/tmp", "home")
REFUSED: dict[str, set[str]] = {
    "home/.local/state/sandboxd": {"trust"},
    "run": set(),
    "home/tmp": {"session"},
    "home": {"session", "trust", "allow"},
}
"""Attempts that at least one of the three makes impossible."""
TOLD = ("No space left on device", "Read-only file system")
REMEDIES = ("free", "mount")


def call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    done = getattr(libc, name)(*arguments)
    assert done == 0, (name, os.strerror(ctypes.get_errno()))


def in_a_namespace(work: Callable[[], None]) -> None:
    """Do it in a thread with mounts of its own, out of which everything is started."""
    failures: list[BaseException] = []

    def body() -> None:
        try:
            call("unshare", NEW_NAMESPACE)
            call("mount", b"none", b"/", None, RECURSIVE_PRIVATE, None)
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def lacking(place: Path, how: str) -> Callable[[], None]:
    """Take room, names or the right to write, and return what gives it back."""
    if how == "read-only":  # a mount above it, since open files keep a file system writable
        name = os.fsencode(place)
        call("mount", name, name, None, BIND, None)
        call("mount", None, name, None, BIND | REMOUNT | READ_ONLY, None)
        return lambda: call("umount2", name, DETACH)
    taken = place / "taken"
    taken.mkdir(mode=0o700)
    with (taken / "file").open("wb", buffering=0) as file:
        try:
            for number in count():
                if how == "no room":
                    file.write(bytes(4096))
                else:
                    (taken / str(number)).touch()
        except OSError:
            pass

    def free() -> None:
        for one in taken.iterdir():
            one.unlink()
        taken.rmdir()

    return free


class Disks:
    """A project, a daemon, and what its clients are told, while one of its places is a small file system."""

    def __init__(self, identity: Identity, place: str, start: StartDaemon) -> None:
        self.identity, self.place, self.start = identity, identity.base / place, start
        self.serial = count()
        temporary = identity.home / "tmp"
        for one in (identity.home / ".local/state/sandboxd", temporary, identity.home / ".claude"):
            one.mkdir(parents=True, exist_ok=True, mode=0o700)
        call("mount", b"none", os.fsencode(self.place), b"tmpfs", 0, SIZE)
        identity.own(self.place)
        for one in (identity.home / ".local/state/sandboxd", temporary, identity.home / ".claude"):
            one.mkdir(parents=True, exist_ok=True, mode=0o700)
            for part in (one, *one.parents):
                if part.is_relative_to(identity.home):
                    identity.own(part)
        identity.write(identity.workspace / ".claude/settings.json", "{}")
        identity.write(identity.workspace / "secret", "secret-text")
        self.user = identity.write(identity.home / ".claude/settings.local.json", "{}")
        self.daemon = start(executed=True, env={"CLAUDE_CODE_TMPDIR": str(temporary)})

    def attempt(self) -> dict[str, list[str]]:
        """Answers of each call: a slug, a message and a hint; the slug is empty where it was done."""
        opened = self.identity.base / f"opened{next(self.serial)}"
        opened.mkdir()
        self.identity.own(opened)
        done = self.daemon.python(CALLS, str(self.identity.workspace), str(opened))
        assert done.returncode == 0, done.stderr
        found: dict[str, list[str]] = json.loads(done.stdout)
        before = self.user.read_text()
        allowed = self.daemon.run("allow", "--yes", "domain", f"{opened.name}.test")
        found["allow"] = ["refused" if allowed.returncode else "", *allowed.stderr.partition("hint:")[::2]]
        assert (self.user.read_text() == before) is bool(allowed.returncode), allowed
        slug, said, _ = found["session"]
        assert slug or said == "end\n", found
        assert slug or (opened / "file").read_text() == "x\n", "what is open is open"
        assert not (self.identity.workspace / ".vscode").exists() and not (self.identity.home / "outside").exists()
        return found


if os.geteuid() == 0:  # other users cannot mount anything

    @pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)
    @pytest.mark.parametrize("place", PLACES)
    def test_a_place_without_room(start_daemon: StartDaemon, identity: Identity, place: str) -> None:
        def work() -> None:
            disks = Disks(identity, place, start_daemon)
            assert not any(slug for slug, _, _ in disks.attempt().values())
            refused = set()
            for how in ("no room", "no names", "read-only"):
                free = lacking(disks.place, how)
                for name, (slug, said, hint) in disks.attempt().items():
                    refused |= {name} if slug else set()
                    is_told = any(one in said for one in TOLD) and any(one in hint for one in REMEDIES)
                    assert not slug or is_told, (how, name, slug, said, hint)
                free()
            assert refused >= REFUSED[place], refused
            assert not any(slug for slug, _, _ in disks.attempt().values()), "all works again"
            assert disks.daemon.stop() == 0

        in_a_namespace(work)
