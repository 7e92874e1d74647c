"""The trial of the program that would take over."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from sandboxd.daemon.restart.restarting import DaemonProgram, Restarting, answer_trial
from sandboxd.errors import HostError
from sandboxd_client.programs import OPENED_RECORD


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


def installation(directory: Path, code: str) -> str:
    """An interpreter that runs `code` in the place of a daemon; returns its path."""
    (directory / "bin").mkdir(parents=True)
    python = directory / "bin/python3"
    python.write_text(f'#!/bin/sh\necho "$0 $*" >{directory}/started\n{code}\n')
    python.chmod(0o755)
    return str(python)


def installation_with(directory: Path, name: str, text: str | None, code: str) -> str:
    """The same, with a file among its packages, or a link to the project."""
    python = installation(directory, code)
    file = directory / "lib/python3.11/site-packages" / name
    file.parent.mkdir(parents=True)
    if text is None:
        file.symlink_to("../../../../project/checkout")
    else:
        file.write_text(text)
    return python


async def test_the_program_of_the_asking_installation_takes_over(tmp_path: Path) -> None:
    said = json.dumps(json.loads(answer_trial()) | {"version": "9"})
    other = installation(tmp_path / "other", f"echo '{said}'")
    arguments = ("-I", "/opt/sandboxd/bin/sandboxd", "serve", "--socket", "/s")
    restarting = Restarting(DaemonProgram(sys.executable, arguments, {}), True, lambda: "")
    assert await restarting.prepared(other) == "9"
    assert (tmp_path / "other/started").read_text() == f"{other} -I -m sandboxd serve --socket /s\n"
    assert restarting.chosen == DaemonProgram(other, ("-I", "-m", "sandboxd", "serve", "--socket", "/s"), {})


async def test_a_program_that_commands_could_write_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    record = tmp_path / OPENED_RECORD
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(str(tmp_path / "project")) + "\n")
    own = program(tmp_path, "raise SystemExit('never')")
    restarting = Restarting(own, True, lambda: "")
    said = json.dumps(json.loads(answer_trial()))
    inside = installation(tmp_path / "project/.venv", f"echo '{said}'")
    outside = tmp_path / "venv/bin/python3"  # led there by a link
    outside.parent.mkdir(parents=True)
    outside.symlink_to(inside)
    between = tmp_path / "project/link"  # leads out again
    between.symlink_to(installation(tmp_path / "far", f"echo '{said}'"))
    (linked := tmp_path / "linked/bin/python3").parent.mkdir(parents=True)
    linked.symlink_to(between)
    code = str(tmp_path / "project/checkout")
    Path(code).mkdir()
    editable = [
        installation_with(tmp_path / f"editable{number}", name, text, f"echo '{said}'")
        for number, (name, text) in enumerate((
            ("_sandboxd.pth", f"/usr/lib\n{code}\n"),
            ("_sandboxd.pth", "../../../../project/checkout"),
            ("__editable___sandboxd_finder.py", f"MAPPING = {{'sandboxd': '{code}'}}"),
            ("sandboxd", None),
            ("sandboxd_client", None),
        ))
    ]  # fmt: skip
    for interpreter in (inside, str(outside), os.path.relpath(inside), f"{inside}\0", str(linked), *editable):
        with pytest.raises(HostError, match="does not start"):
            await restarting.prepared(interpreter)
    assert not list(tmp_path.rglob("started")) and restarting.chosen is own
    fine = installation_with(tmp_path / "fine", "_sandboxd.pth", f"{tmp_path}/checkout\nimport odd", f"echo '{said}'")
    assert await restarting.prepared(fine)
    assert await restarting.prepared(installation(tmp_path / "elsewhere", f"echo '{said}'"))


async def test_another_name_of_the_own_interpreter_is_the_own_program(tmp_path: Path) -> None:
    """As `python` and `python3` of one virtual environment; the same interpreter in another one is not."""
    for name in ("a/bin/python", "a/bin/python3", "b/bin/python3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(sys.executable)
    own = DaemonProgram(str(tmp_path / "a/bin/python"), ("-I", "/a/bin/sandboxd", "serve"), {})
    assert own.of(str(tmp_path / "a/bin/python3")) is own
    assert own.of(str(tmp_path / "b/bin/python3")).arguments == ("-I", "-m", "sandboxd", "serve")
