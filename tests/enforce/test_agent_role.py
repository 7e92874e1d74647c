"""A client with the role `agent` runs commands and widens nothing."""

from __future__ import annotations

import pytest

from support.daemons import DaemonProcess

SYNC = """
from sandboxd_client import Client, SandboxdError
from sandboxd_client.wire.messages.settings import ChangeRecord
with Client(autostart=False, role="agent") as box, box.session(settings=WIDE) as session:
    print(session.run("echo ran", capture_output=True, text=True).stdout.strip())
    session.run(["touch", OUTSIDE])
    box.run(["touch", OUTSIDE], overrides={"allow_write": [HOME]})
    for act in (
        lambda: box.settings_update([ChangeRecord("add", "sandbox.filesystem.allowWrite", HOME)]),
        lambda: box.settings_exclude_command("touch"),
        lambda: box.permission_subscribe(),
        lambda: box.shutdown(),
    ):
        try:
            act()
        except SandboxdError as error:
            print(error.slug)
    box._connector._drop(box._connector._shared)  # as after a lost connection: the next one has the role too
    try:
        box.settings_reload()
    except SandboxdError as error:
        print("again", error.slug)
"""
ASYNC = """
import asyncio
from sandboxd_client import AsyncClient, SandboxdError
async def main():
    async with AsyncClient(autostart=False, role="agent") as box:
        done = await box.run("echo ran", capture_output=True, text=True)
        print(done.stdout.strip())
        await box.run(["touch", OUTSIDE], overrides={"allow_write": [HOME]})
        try:
            await box.settings_reload()
        except SandboxdError as error:
            print(error.slug)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [(SYNC, ["ran", *["not_permitted"] * 4, "again not_permitted"]), (ASYNC, ["ran", "not_permitted"])],
    ids=["sync", "async"],
)
def test_an_agent_widens_nothing(daemon: DaemonProcess, code: str, said: list[str]) -> None:
    home = daemon.identity.home
    outside = home / "outside"
    values = f"HOME, OUTSIDE = {str(home)!r}, {str(outside)!r}\n"
    values += 'WIDE = {"sandbox": {"filesystem": {"allowWrite": [HOME]}}}\n'
    done = daemon.python(values + code)
    assert done.stdout.split("\n")[: len(said)] == said, done
    assert not outside.exists()
    full = code.replace('role="agent"', 'role="full"').replace("box.shutdown()", "box.settings_reload()")
    daemon.python(values + full)
    assert outside.exists(), "the same with all powers"
