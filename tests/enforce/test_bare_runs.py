"""A command of a session that runs without a sandbox shares the session's temporary files."""

from __future__ import annotations

from support.daemons import StartDaemon

CODE = """
import asyncio
from sandboxd_client import AsyncClient, Client
with Client(autostart=False) as box, box.session() as session:
    session.run("echo inside > $TMPDIR/file")
    done = session.run("cat $TMPDIR/file", decide=True, capture_output=True, text=True)
    print(done.sandboxed, done.stdout.split("\\n")[0])
    inside = session.run("echo $TMPDIR $TMPPREFIX", capture_output=True, text=True).stdout
    bare = session.run(["printenv", "TMPDIR", "TMPPREFIX"], decide=True, capture_output=True, text=True)
    print(bare.sandboxed, bare.stdout.split() == inside.split())
    path = {"PATH": "/usr/bin:/bin"}
    without = box.run(["printenv", "TMPDIR"], decide=True, capture_output=True, text=True, env=path)
    print(without.sandboxed, without.stdout == "")
async def main():
    async with AsyncClient(autostart=False) as box, box.session() as session:
        inside = await session.run("echo $TMPDIR $TMPPREFIX", capture_output=True, text=True)
        bare = await session.run(["printenv", "TMPDIR", "TMPPREFIX"], decide=True, capture_output=True, text=True)
        print(bare.sandboxed, bare.stdout.split() == inside.stdout.split())
asyncio.run(main())
"""


def test_a_bare_run_has_the_variables_of_its_session(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"enabled": True, "excludedCommands": ["printenv", "cat", "echo"]}})
    said = daemon.python(CODE).stdout.split("\n")
    assert said[1:4] == ["False True", "False True", "False True"], said
    assert said[0].endswith("inside"), said
