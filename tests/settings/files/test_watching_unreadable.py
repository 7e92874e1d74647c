"""Files that may not be read are watched too. Root may read everything, so this runs as every identity."""

from __future__ import annotations

from support.users import Identity

SCRIPT = """
import asyncio, os, sys
from sandboxd.settings.files.locations import find_locations
from sandboxd.settings.files.watching import SettingsWatcher

home = sys.argv[1]
folder = os.path.join(home, ".claude")
file = os.path.join(folder, "settings.json")

def write():
    with open(file, "w") as stream:
        stream.write("{}")

async def main():
    os.mkdir(folder)
    write()
    async with SettingsWatcher(find_locations({}, home, home).files) as watcher:
        changes = watcher.changes()
        for act in (
            lambda: os.chmod(file, 0), lambda: os.chmod(file, 0o600), write,
            lambda: os.chmod(file, 0), lambda: os.unlink(file), write,
            lambda: os.chmod(folder, 0), lambda: os.chmod(folder, 0o700), write,
            lambda: os.chmod(folder, 0), lambda: os.rename(folder, folder + "x"), lambda: os.mkdir(folder),
            write, lambda: os.unlink(file),
        ):
            act()
            async with asyncio.timeout(20):
                await anext(changes)
            print("noticed")
        await changes.aclose()
    os.chmod(folder + "x", 0o700)

asyncio.run(main())
"""


def test_what_cannot_be_read_is_watched(identity: Identity) -> None:
    done = identity.run(identity.python("-c", SCRIPT, str(identity.home)))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines() == ["noticed"] * 14
