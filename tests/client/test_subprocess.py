"""`sandboxd_client.subprocess` beside CPython's: every row is run with both, and both must say the same."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess as cpython
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd_client import Client, SandboxSetupError, Session
from sandboxd_client import subprocess as drop_in
from sandboxd_client.testing import FakeDaemon
from support.subprocess_rows import ENV, ROWS, said


@pytest.fixture
def session(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with Client(fake.socket, autostart=False) as box, box.session() as session:
        monkeypatch.setattr(drop_in, "open_session", lambda given=None: given or session)
        yield session


@pytest.mark.parametrize("name", ROWS)
def test_it_says_what_cpython_says(name: str, session: Session, tmp_path: Path) -> None:
    native = said(ROWS[name], cpython, tmp_path)
    inside = said(ROWS[name], drop_in, tmp_path)
    if name == "wrong keyword":  # one names a private method
        native, inside = "TypeError" in native, "TypeError" in inside  # type: ignore[operator]
    assert inside == native


@pytest.mark.parametrize(
    "given",
    [{"pass_fds": (0,)}, {"preexec_fn": print}, {"user": 0}, {"close_fds": False}, {"executable": "/bin/false"}],
)
def test_what_cannot_cross_is_refused(given: dict[str, Any], session: Session, fake: FakeDaemon) -> None:
    with pytest.raises(ValueError, match="cannot cross into a sandbox"):
        drop_in.run(["true"], **given)
    assert not any(call.method == "wrap" for call in fake.calls)
    assert drop_in.run(["true"], pass_fds=[], close_fds=True).returncode == 0


def test_a_sandbox_that_failed_is_no_status(session: Session, fake: FakeDaemon) -> None:
    fake.not_started("no user namespaces here")
    for run in (drop_in.run, drop_in.call, drop_in.check_output):
        with pytest.raises(SandboxSetupError, match="no user namespaces here"):
            run(["sh", "-c", "exit 125"])
    assert drop_in.run(["sh", "-c", "exit 2"]).returncode == 2


async def _observed(names: Any) -> list[Any]:
    """Compare asyncio's two functions by the same steps."""
    pipe = asyncio.subprocess.PIPE
    found: list[Any] = []
    process = await names.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
    found += [*await process.communicate(b"said"), process.returncode, await process.wait()]
    process = await names.create_subprocess_shell("echo $X; exit 3", stdout=pipe, env={**ENV, "X": "x"})
    found += [await process.stdout.readline(), await process.wait(), await process.stdout.read()]
    process = await names.create_subprocess_exec("sh", "-c", "echo up; exec sleep 1000", stdout=pipe)
    found.append(await process.stdout.readline())
    process.terminate()
    found += [await process.wait(), process.returncode]
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    for line in ("exit 143", "kill $$"):
        process = await names.create_subprocess_shell(line)
        while process.returncode is None:  # noqa: ASYNC110 (a caller that polls)
            await asyncio.sleep(0.01)
        found += [process.returncode, await process.wait()]
    for wrong in (("/no/such/program",), ("/etc/passwd",)):
        try:
            await names.create_subprocess_exec(*wrong)
        except OSError as error:
            found.append((type(error), error.filename))
    return found


async def test_the_asyncio_pair_says_what_asyncio_says(session: Session) -> None:
    assert await _observed(drop_in) == await _observed(asyncio)
