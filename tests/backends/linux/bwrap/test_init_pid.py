"""What bubblewrap tells of process 1, whole, in pieces and not at all. With a helper around it: test_bridge.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from sandboxd.backends.linux.bwrap.init_pid import InitPidReader, decode_init_pid
from sandboxd.backends.linux.helper.bridge_protocol import ProtocolError
from support.waiting import wait_until_async

WORDS = b'{\n    "child-pid": 42\n}\n'


class Pipe:
    def __init__(self) -> None:
        self.heard: list[object] = []
        reading, self.writing = os.pipe()
        self.reading = reading
        self.birth = InitPidReader(reading, self.heard.append, self.heard.append)

    @property
    def is_closed(self) -> bool:
        with contextlib.suppress(OSError):
            os.fstat(self.reading)
            return False
        return True

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    made = Pipe()
    yield made
    made.birth.close()
    os.close(made.writing)


async def test_it_is_told_once_and_the_pipe_is_closed(pipe: Pipe) -> None:
    for byte in WORDS:
        assert pipe.heard == []
        pipe.write(bytes((byte,)))
    await wait_until_async(lambda: bool(pipe.heard), "it is told")
    assert pipe.heard == [42]
    assert pipe.is_closed


async def test_what_is_wrong_is_told_once(pipe: Pipe) -> None:
    pipe.write(b"hello}\n")
    await wait_until_async(lambda: bool(pipe.heard), "it is told")
    (error,) = pipe.heard
    assert isinstance(error, ProtocolError)
    assert pipe.is_closed


async def test_an_end_before_that_tells_nothing(pipe: Pipe) -> None:
    pipe.write(WORDS[:10])
    os.close(pipe.writing)
    await wait_until_async(lambda: pipe.is_closed, "it has seen the end")
    assert pipe.heard == []
    pipe.writing = os.open(os.devnull, os.O_WRONLY)


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        (b'{\n    "child-pid": 42\n}\n', 42),
        (b'{ "child-pid": 7, "net-namespace": 1 }\n', 7),
        (b"", None),
        (b'{\n    "child-pid": 42', None),
        (b'{ "child-pid": 42 }', None),
    ],
)
def test_what_bubblewrap_writes(text: bytes, pid: int | None) -> None:
    assert decode_init_pid(text) == pid


@pytest.mark.parametrize(
    "text",
    [b"}\n", b"[]}\n", b'{"child-pid": 0}\n', b'{"child-pid": true}\n', b'{"child-pid": "4"}\n', b"{}\n", b"{" * 5000],
)
def test_what_bubblewrap_does_not_write(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_init_pid(text)
