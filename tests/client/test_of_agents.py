"""Options for authors of agents: bounded output, no protocol pipe as input, a clean environment, types."""

from __future__ import annotations

import io
import os
import pydoc
import warnings

import pytest

from sandboxd_client import AsyncClient, Client, SecretsWarning
from sandboxd_client.testing import FakeDaemon


def test_long_output_keeps_its_head_and_tail(box: Client) -> None:
    done = box.run("seq 1 100000; echo over >&2", capture_output=True, text=True, max_output=40)
    (head, counted), tail = done.stdout.split("\n[... "), done.stdout[-10:]
    assert head == "".join(f"{n}\n" for n in range(1, 10)) + "10" and tail == "99\n100000\n"
    assert counted.startswith("588855 bytes left out ...]\n") and done.stderr == "over\n"
    assert box.run("printf abcdef", capture_output=True, max_output=6).stdout == b"abcdef"
    cut = box.run("printf abcdefg", capture_output=True, max_output=6)
    assert cut.stdout == b"abc\n[... 1 bytes left out ...]\nefg"
    with pytest.raises(ValueError, match="max_output"):
        box.run("true", capture_output=True, max_output=1)


async def test_the_same_in_the_asynchronous_client(fake: FakeDaemon) -> None:
    """Its session opens itself, too."""
    async with AsyncClient(fake.socket, autostart=False) as box:
        session = box.session(os.getcwd())
        done = await session.run("printf abcdefg; cat", capture_output=True, text=True, max_output=6)
        assert done.stdout == "abc\n[... 1 bytes left out ...]\nefg"
        await session.close()
        await box.session(os.getcwd()).close()  # never used


def test_standard_input_is_not_that_of_the_process(box: Client) -> None:
    """It may be the pipe of a protocol, which a command must not read."""
    reading, writing = os.pipe()
    os.write(writing, b"a message\n")
    os.close(writing)
    saved = os.dup(0)
    try:
        os.dup2(reading, 0)
        assert box.run("cat", capture_output=True, text=True).stdout == ""
        with box.spawn("cat", stdout=-1) as process:
            assert process.communicate()[0] == b""
        assert box.run("cat", stdin=None, capture_output=True, text=True).stdout == "a message\n", "asked for"
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(reading)


def test_a_clean_environment(box: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "t0p")
    monkeypatch.setenv("MINE", "1")
    line = "echo $GITHUB_TOKEN,$MINE,${PATH:+path},${HOME:+home}"
    clean = box.run(line, environment="clean", capture_output=True, text=True)
    assert clean.stdout == ",,path,home\n"
    allowed = box.run(line, environment="clean", allow_env=["MINE"], capture_output=True, text=True)
    assert allowed.stdout == ",1,path,home\n"
    with pytest.raises(ValueError, match="without env"):
        box.run("true", environment="clean", env={})
    with pytest.warns(SecretsWarning, match="GITHUB_TOKEN"):
        assert box.run(line, capture_output=True, text=True).stdout == "t0p,1,path,home\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        box.run("true")  # it is told once


def test_help_lists_the_keywords() -> None:
    text = io.StringIO()
    pydoc.doc(Client.run, output=text)
    assert all(name in text.getvalue() for name in ("max_output", "cwd", "timeout", "on_violation", "allow_env"))
