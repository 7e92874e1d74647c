"""What is kept for a crash, with a list in the place of the service manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
import structlog

from sandboxd.daemon.restart import crash_store as crash_store_module
from sandboxd.daemon.restart.crash_store import CrashEntry, CrashStore, IsOldEnough
from sandboxd.daemon.restart.descriptor_store import ManagerMessage, Store, take_stored
from sandboxd.errors import HostError
from sandboxd.handover.crash_documents import document_in, name_of, parse_name
from sandboxd.handover.document import Outgoing, read_document
from sandboxd.handover.record import Descriptor
from sandboxd.runtime.events import RunEnded, RunStarted
from support.waiting import wait_until_async


@dataclass(frozen=True, slots=True)
class Held:
    text: str
    pipe: Descriptor


class List(Store):
    """A manager that takes everything, in this process. `refuses` makes it go away."""

    def __init__(self, size: int, old: tuple[str, ...] = ()) -> None:
        super().__init__("", str(size), old)
        self.kept: dict[str, int] = {}
        self.removed: list[str] = []
        self.refuses = False
        self._sending = threading.Lock()  # it is told in another thread

    def send(self, messages: Sequence[ManagerMessage]) -> None:
        with self._sending:
            self._take(messages)

    def _take(self, messages: Sequence[ManagerMessage]) -> None:
        for message in messages:
            said = dict(line.split("=", 1) for line in message.text.splitlines())
            name = said["FDNAME"]
            if self.refuses:
                if message.descriptor >= 0:
                    os.close(message.descriptor)
            elif "FDSTORE" in said:
                assert name not in self.kept, "the manager would keep both"
                self.kept[name] = message.descriptor
            else:
                self.removed.append(name)
                if name in self.kept:
                    os.close(self.kept.pop(name))
        if self.refuses:
            raise ConnectionRefusedError(111, "Connection refused")

    def names(self) -> set[str]:
        with self._sending:
            return set(self.kept)

    def texts(self) -> dict[str, str]:
        """What the documents say, by their keys."""
        with self._sending:
            found = {}
            for name, memory in self.kept.items():
                parsed = parse_name(name)
                if parsed is not None and parsed[1] is None:
                    with contextlib.suppress(HostError):
                        text = document_in(os.pread(memory, 1 << 20, 0))
                        found[parsed[0]] = str(read_document(text).parts[0].body["text"])
            return found

    def close(self) -> None:
        for descriptor in self.kept.values():
            os.close(descriptor)


@dataclass(slots=True)
class Runs:
    """Commands with a text and a pipe each."""

    running: dict[str, list[object]] = field(default_factory=dict)
    written: int = 0

    def wanted(self, is_old_enough: IsOldEnough) -> Iterator[CrashEntry]:
        for key in self.running:
            if is_old_enough(key):
                yield CrashEntry(key, "s-1", partial(self.write, key))

    def write(self, key: str, outgoing: Outgoing) -> bool:
        self.written += 1
        text, *pipes = self.running[key]
        assert isinstance(text, str)
        outgoing.add("bridge", Held(text, Descriptor(int(str(pipes[0])))), key)
        return True


def started(key: str) -> RunStarted:
    return RunStarted(key, key, "s-1", None)


def ended(key: str) -> RunEnded:
    return RunEnded(key, key, "s-1", True, 0, None)


async def test_an_entry_follows_its_command() -> None:
    store, runs = List(100, ("sandboxd-kept-0f",)), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    crash_store.start(runs.wanted)
    reader, writer = os.pipe()
    runs.running["a1"] = ["first", writer]
    crash_store.listen(started("a1"))
    assert store.kept == {}  # never at once: the start of a command does not wait
    await wait_until_async(lambda: store.texts() == {"a1": "first"}, "it is kept")
    assert set(store.kept) == {name_of("a1"), name_of("a1", writer)}
    assert store.removed == ["sandboxd-kept-0f"]  # what a daemon before had kept

    runs.running["a1"][0] = "second and longer"
    crash_store.changed("s-2")  # another session
    crash_store.changed("s-1")
    await wait_until_async(lambda: store.texts() == {"a1": "second and longer"}, "it is written")
    assert store.removed == ["sandboxd-kept-0f"]  # in the same memory file

    runs.running["a1"] = ["another pipe", reader]
    crash_store.changed("")
    pair = {name_of("a1"), name_of("a1", reader)}
    await wait_until_async(lambda: store.names() == pair, "the other one is kept, and the first one no more")

    runs.running.clear()
    crash_store.listen(ended("a1"))
    assert store.kept and store.texts() == {}  # no daemon would find it, even before it is removed
    await wait_until_async(lambda: not store.kept, "it is removed")
    await crash_store.close()
    os.close(reader)
    os.close(writer)


async def test_what_was_taken_back_is_written_at_once() -> None:
    store, runs = List(100), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    runs.running = {"a1": ["with a grant", 0], "b2": ["other", 0]}
    crash_store.start(runs.wanted)
    await wait_until_async(lambda: len(store.texts()) == 2, "both are kept")
    runs.running["a1"][0] = runs.running["b2"][0] = "without"
    crash_store.grants_revoked("a1")
    assert store.texts() == {"a1": "without", "b2": "other"}
    del runs.running["a1"]  # it is being ended
    crash_store.grants_revoked("a1")
    assert store.texts() == {"b2": "other"}
    crash_store.grants_revoked("c3")
    await crash_store.close()


async def test_other_work_goes_on_between_many_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """One event changes the entries of every command of its session."""
    monkeypatch.setattr(crash_store_module, "AT_ONCE_S", 0.0)
    store, runs = List(100), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    reader, writer = os.pipe()
    runs.running = {f"{number:02x}": ["first", writer] for number in range(20)}
    crash_store.start(runs.wanted)
    await wait_until_async(lambda: len(store.texts()) == 20, "all are kept")
    before = runs.written
    for number in range(20):
        runs.running[f"{number:02x}"][0] = "later"
    seen: list[int] = []
    crash_store.changed("s-1")
    while not seen or seen[-1] < before + 20:
        seen.append(runs.written)
        await asyncio.sleep(0)
    assert set(range(before, before + 21)) <= set(seen), "one document a turn"
    await crash_store.close()
    os.close(reader)
    os.close(writer)
    store.close()


async def test_what_is_over_soon_is_never_kept() -> None:
    store, runs = List(100), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    crash_store.start(runs.wanted)
    for number in range(50):
        crash_store.listen(started(f"{number:x}"))
        crash_store.listen(ended(f"{number:x}"))
    runs.running["ff"] = ["stays", 0]
    crash_store.listen(started("ff"))
    await wait_until_async(lambda: store.texts() == {"ff": "stays"}, "the one that stays is kept")
    assert runs.written == 1
    await crash_store.close()
    assert store.kept == {}


async def test_no_room_is_said_and_used_when_there_is_some() -> None:
    store, runs = List(4), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    runs.running = {key: [key, 0] for key in ("a", "b", "c")}
    crash_store.start(runs.wanted)
    await wait_until_async(lambda: crash_store.warnings, "it is full")
    assert set(store.texts()) == {"a", "b"}
    assert "FileDescriptorStoreMax=4" in crash_store.warnings[0] and "1 commands" in crash_store.warnings[0]
    runs.running.update({f"f{number:x}": [f"f{number:x}", 0] for number in range(40)})
    crash_store.changed("s-1")
    await wait_until_async(lambda: "41 commands" in crash_store.warnings[0], "it is overfull")
    looked_at = runs.written
    crash_store.changed("s-1")
    await wait_until_async(lambda: not crash_store._changed and crash_store._working is None, "it has looked again")
    assert runs.written == looked_at + 2  # those that are kept: what has no room is not looked at
    for number in range(40):
        del runs.running[f"f{number:x}"]
    del runs.running["a"]
    crash_store.listen(ended("a"))
    await wait_until_async(lambda: set(store.texts()) == {"b", "c"}, "there is room")
    assert crash_store.warnings == ()
    await crash_store.close()


async def test_without_a_store_nothing_is_ever_done() -> None:
    store, runs = List(0), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    runs.running["a"] = ["a", 0]
    crash_store.start(runs.wanted)
    await asyncio.sleep(0)
    await wait_until_async(lambda: "keeping" not in {task.get_name() for task in asyncio.all_tasks()}, "it knows")
    crash_store.listen(started("a"))
    assert (crash_store._timer, runs.written, crash_store.warnings) == (None, 0, ())
    await crash_store.close()


async def test_a_returning_manager_gets_everything_again() -> None:
    store, runs = List(100), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    runs.running["a"] = ["a", 0]
    store.refuses = True
    crash_store.start(runs.wanted)
    await wait_until_async(lambda: crash_store.warnings, "it is said")
    assert "Connection refused" in crash_store.warnings[0]
    store.refuses = False
    crash_store.changed("s-1")
    await wait_until_async(lambda: store.texts() == {"a": "a"}, "it is kept")
    await wait_until_async(lambda: crash_store.warnings == (), "the warning goes when the work is done")
    crash_store.pause()
    await crash_store.close()
    assert store.kept == {}
    await crash_store.close()


async def test_the_next_daemon_reads_what_was_kept() -> None:
    store, runs = List(100), Runs()
    crash_store = CrashStore(store, structlog.get_logger())
    reader, writer = os.pipe()
    runs.running = {"a": ["first", writer], "b": ["second", writer]}
    crash_store.start(runs.wanted)
    await wait_until_async(lambda: len(store.texts()) == 2, "both are kept")
    # the pipe of one is missing, and one descriptor has no document
    os.close(store.kept.pop(name_of("b", writer)))
    store.kept[name_of("c", 5)] = os.dup(writer)
    first = 3
    names = list(store.kept)
    moved = dict(enumerate(store.kept.values(), first))
    stored = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)}

    def read() -> int:
        """In a process whose descriptors are where a manager puts them."""
        high = {number: os.dup(descriptor) for number, descriptor in moved.items()}
        for number, descriptor in high.items():
            os.dup2(descriptor, number)
        incoming, found = take_stored({**stored, "LISTEN_PID": str(os.getpid())})
        assert incoming is not None and incoming.crashed and set(found) == set(names)
        (part,) = incoming.parts
        assert part.body["text"] == "first"
        os.write(part.descriptors[0], b"!")
        (refused,) = incoming.refused
        assert refused[0].name == "b" and "missing" in refused[1]
        return 0

    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = read()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1) == b"!"
    await crash_store.close()
    store.close()
    os.close(reader)
    os.close(writer)
