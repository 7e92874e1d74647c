"""The stand-ins do what the real programs are documented to do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from support.mac_stubs import MacStubs, install_stubs
from support.waiting import wait_until

OPEN = "(version 1)(allow default)"


@pytest.fixture
def stubs(tmp_path: Path) -> MacStubs:
    return install_stubs(tmp_path / "state")


def sandbox_exec(stubs: MacStubs, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([stubs.sandbox_exec, *arguments], capture_output=True, text=True, timeout=30)


def test_a_command_runs_with_its_environment(stubs: MacStubs) -> None:
    done = sandbox_exec(stubs, "-p", OPEN, "-D", "A=1", "-DB=2", "--", "sh", "-c", "echo $PYTHONPATH; exit 7")
    assert (done.returncode, done.stdout) == (7, "\n")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 64, "Usage: sandbox-exec"),
        (("-x",), 64, "Usage: sandbox-exec"),
        (("-p", OPEN), 64, "Usage: sandbox-exec"),
        (("-p", OPEN, "-D", "novalue", "true"), 64, "Usage"),
        (("-p", "(version 1", "true"), 65, "not closed"),
        (("-p", "(version 1)(allow nonsense)", "true"), 65, "unbound variable: nonsense"),
        (("-p", OPEN, "no-such-program"), 71, "execvp() of 'no-such-program' failed"),
    ],
)
def test_what_goes_wrong(stubs: MacStubs, arguments: tuple[str, ...], status: int, words: str) -> None:
    done = sandbox_exec(stubs, *arguments)
    assert done.returncode == status
    assert words in done.stderr


def test_a_sandbox_in_a_sandbox_is_refused(stubs: MacStubs) -> None:
    done = sandbox_exec(stubs, "-p", OPEN, stubs.sandbox_exec, "-p", OPEN, "true")
    assert done.returncode == 71 and "sandbox_apply: Operation not permitted" in done.stderr


def test_profiles_come_from_files_too(stubs: MacStubs, tmp_path: Path) -> None:
    (tmp_path / "x.sb").write_text(OPEN)
    assert sandbox_exec(stubs, "-f", str(tmp_path / "x.sb"), "true").returncode == 0


def test_tools_are_refused_and_logged(stubs: MacStubs, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    profile = '(version 1)(allow default)(deny file-read* (literal (param "P")) (with message "TAG"))'
    real = real_spelling(str(tmp_path / "secret"))
    done = sandbox_exec(stubs, "-p", profile, "-D", f"P={real}", "--", "cat", str(tmp_path / "secret"))
    assert done.returncode == 1 and "Operation not permitted" in done.stderr
    logged = (stubs.state / "log").read_bytes()
    assert b"Sandbox: cat(" in logged and logged.endswith(f"file-read-data {real}\nTAG\0".encode())


@pytest.fixture
def stream(stubs: MacStubs) -> Iterator[subprocess.Popen[bytes]]:
    predicate = '(eventMessage ENDSWITH "mine")'
    words = [stubs.log, "stream", "--style", "compact", "--predicate", predicate]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_log_streams_what_ends_with_the_suffix(stubs: MacStubs, stream: subprocess.Popen[bytes]) -> None:
    assert stream.stdout is not None
    assert stream.stdout.readline().startswith(b"Filtering the log data")
    assert stream.stdout.readline().startswith(b"Timestamp")
    for text in ("one not", "two\nmine"):
        stubs.log_message(text)
    assert stream.stdout.readline().endswith(b"(Sandbox) two\n")
    assert stream.stdout.readline() == b"mine\n"


def test_log_refuses_in_a_sandbox_and_odd_predicates(stubs: MacStubs) -> None:
    assert subprocess.run([stubs.log, "stream"], capture_output=True).returncode == 64
    stubs.log_mode("sandboxed")
    done = subprocess.run([stubs.log, "stream"], capture_output=True)
    assert (done.returncode, done.stderr) == (64, b"log: Cannot run while sandboxed\n")
    wait_until(lambda: len(stubs.log_starts) == 2, "both starts are known")
