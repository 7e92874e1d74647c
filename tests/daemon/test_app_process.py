"""What keeps the daemon from starting: told in one line with a hint, and nothing is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxd.app import process
from sandboxd.app.process import main
from support.daemon import Surroundings, surroundings


@dataclass(frozen=True, slots=True)
class Options:
    socket: str | None = None
    settings: str | None = None
    log_format: str | None = None
    resolve: tuple[str, ...] = ()
    idle_exit: float | None = None


@pytest.fixture
async def around() -> AsyncIterator[Surroundings]:
    async with surroundings() as made:
        yield made


@pytest.fixture
def refused(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Call `main` where it must not come to serve; what it said. One line and a hint, no traceback, nothing left."""
    for name in [name for name in os.environ if name.startswith(("SANDBOXD_", "LISTEN_", "NOTIFY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(around.home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(around.base))
    monkeypatch.setattr(process, "raise_descriptor_limit", lambda: 0)  # it would last beyond the test

    def call(**options: Any) -> str:
        before = around.left()
        assert main(Options(**{"socket": str(around.socket), **options})) == 125
        said = capfd.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        lines = [line for line in said.err.splitlines() if not line.startswith("{")]
        assert len(lines) == 2, said.err
        assert lines[0].startswith("sandboxd: ")
        assert lines[1].startswith("hint: ")
        assert around.left() == before
        return said.err

    yield call


def test_broken_settings_are_named_with_their_place(refused: Callable[..., str], around: Surroundings) -> None:
    around.write(around.user_settings, '{\n  "sandbox": {\n    "enabled": tru\n  }\n}')
    assert f"{around.user_settings}:3:" in refused()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "nul", '{"a": 1,', "\0", '{"sandbox": {"enabled": "yes"}}', '{"permissions": {"deny": [1]}}'],
)
def test_settings_of_every_brokenness_are_refused(refused: Callable[..., str], around: Surroundings, text: str) -> None:
    around.write(around.user_settings, text)
    assert str(around.user_settings) in refused()


def test_settings_that_are_no_file(refused: Callable[..., str], around: Surroundings) -> None:
    around.user_settings.mkdir(parents=True)
    assert str(around.user_settings) in refused()


def test_a_settings_file_that_was_named_must_exist(refused: Callable[..., str]) -> None:
    assert "/no/such.json" in refused(settings="/no/such.json")


def test_the_socket_path_is_a_file(refused: Callable[..., str], around: Surroundings) -> None:
    around.directory.mkdir(mode=0o700)
    around.socket.write_text("precious")
    assert str(around.socket) in refused()
    assert around.socket.read_text() == "precious"


def test_what_stands_in_the_way_in_its_directory(refused: Callable[..., str], around: Surroundings) -> None:
    around.directory.mkdir(mode=0o700)
    os.mkfifo(around.directory / "lock")
    assert "is only a lock file" in refused()
    (around.directory / "lock").unlink()
    (around.directory / "bridge.sock").mkdir()
    words, path = refused(), around.directory / "bridge.sock"
    assert f"{path}: Is a directory" in words and f"move {path} away" in words


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_the_directory_is_open_to_others(refused: Callable[..., str], around: Surroundings, mode: int) -> None:
    around.directory.mkdir()
    around.directory.chmod(mode)
    words = refused()
    assert f"{around.directory} can be used by other users (mode {mode:04o})" in words
    assert "chmod 700" in words


if os.geteuid() == 0:

    def test_the_directory_belongs_to_somebody_else(refused: Callable[..., str], around: Surroundings) -> None:
        around.directory.mkdir(mode=0o700)
        os.chown(around.directory, 12345, 12345)
        assert "uid 12345" in refused()


def test_the_directory_of_directories_is_missing(refused: Callable[..., str], around: Surroundings) -> None:
    refused(socket=str(around.base / "no" / "such" / "s.sock"))


def test_the_socket_path_is_too_long(refused: Callable[..., str], around: Surroundings) -> None:
    refused(socket=str(around.base / ("x" * 120)))


@pytest.mark.parametrize("path", ["relative/s.sock", ""])
def test_the_socket_path_is_not_absolute(refused: Callable[..., str], path: str) -> None:
    refused(socket=path)


@pytest.mark.parametrize("text", ["ok.test", "=127.0.0.1", "ok.test=", "ok.test=here", "a b=::1", "1.2.3.4=1.2.3.4"])
@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_bad_pin_is_refused(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, text: str, way: str
) -> None:
    if way == "option":
        refused(resolve=(text,))
    else:
        monkeypatch.setenv("SANDBOXD_RESOLVE", f"good.test=127.0.0.1,{text}")
        refused()
