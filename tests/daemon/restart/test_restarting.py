"""The trial of the program that would take over."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from sandboxd.daemon.restart.restarting import DaemonProgram, Restarting, answer_trial
from sandboxd.errors import HostError


def program(tmp_path: Path, code: str) -> DaemonProgram:
    """One that notes each of its starts."""
    noting = f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); "
    return DaemonProgram(sys.executable, ("-I", "-S", "-c", noting + code), {})


async def test_who_asks_at_once_shares_one_trial(tmp_path: Path) -> None:
    said = json.dumps(json.loads(answer_trial()) | {"version": "9"})
    restarting = Restarting(program(tmp_path, f"print({said!r})"), True, lambda: "")
    impatient = asyncio.create_task(restarting.prepared())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await asyncio.gather(*(restarting.prepared() for _ in range(20))) == ["9"] * 20
    assert (tmp_path / "starts").read_text() == "x"
    assert await restarting.prepared() == "9" and (tmp_path / "starts").read_text() == "xx"


async def test_all_of_them_hear_that_it_failed(tmp_path: Path) -> None:
    restarting = Restarting(program(tmp_path, "raise SystemExit('broken')"), True, lambda: "")
    for outcome in await asyncio.gather(*(restarting.prepared() for _ in range(3)), return_exceptions=True):
        assert isinstance(outcome, HostError) and "broken" in outcome.message
    with pytest.raises(HostError):
        await restarting.prepared()
    assert (tmp_path / "starts").read_text() == "xx"
