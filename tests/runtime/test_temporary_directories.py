"""Session directories: private, re-made when missing, removed with the session, swept after a killed daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.runtime.temporary_directories import TemporaryRoot

KILLED_DAEMON = """
import asyncio, os, sys
from sandboxd.runtime.temporary_directories import TemporaryRoot
async def main():
    root = await TemporaryRoot(sys.argv[1]).__aenter__()
    open(os.path.join(root.session("s-1"), "left"), "w").close()
    print(root.path, flush=True)
    if sys.argv[2] == "die":
        os._exit(9)
    sys.stdin.read()
    await root.__aexit__(None, None, None)
asyncio.run(main())
"""


async def test_a_session_directory_is_private_and_made_anew(tmp_path: Path) -> None:
    async with TemporaryRoot(str(tmp_path / "base")) as root:
        path = root.session("s-1")
        assert os.stat(path).st_mode & 0o777 == 0o700
        assert root.session("s-1") == path
        os.rmdir(path)
        assert os.path.isdir(root.session("s-1"))
        assert root.session("s-2") != path


async def test_everything_is_gone_with_the_daemon(tmp_path: Path) -> None:
    base = tmp_path / "base"
    async with TemporaryRoot(str(base)) as root:
        Path(root.session("s-1"), "file").write_text("x")
    assert not base.exists()


async def test_the_mask_cannot_be_read(tmp_path: Path) -> None:
    async with TemporaryRoot(str(tmp_path / "base")) as root:
        assert os.stat(root.mask).st_mode & 0o777 == 0
        assert os.path.getsize(root.mask) == 0


async def test_a_replaced_session_directory_is_refused(tmp_path: Path) -> None:
    async with TemporaryRoot(str(tmp_path / "base")) as root:
        path = Path(root.session("s-1"))
        path.rmdir()
        path.symlink_to(tmp_path)
        with pytest.raises(HostError) as refused:
            root.session("s-1")
        assert refused.value.slug == "temporary_directory"


async def test_leftovers_of_killed_daemons_only_are_removed(tmp_path: Path) -> None:
    base = str(tmp_path / "base")
    command = [sys.executable, "-c", KILLED_DAEMON, base]
    with subprocess.Popen([*command, "live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None
        kept = living.stdout.readline().strip()
        dead = subprocess.run([*command, "die"], stdout=subprocess.PIPE, text=True, check=False)
        left = dead.stdout.strip()
        assert os.path.exists(os.path.join(left, "t0", "left"))
        async with TemporaryRoot(base):
            assert not os.path.exists(left)
            assert os.path.exists(os.path.join(kept, "t0", "left"))
        living.communicate("")
    assert living.returncode == 0
    assert not os.path.exists(base)


async def test_two_daemons_share_a_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    async with TemporaryRoot(str(base)) as one:
        async with TemporaryRoot(str(base)) as two:
            assert one.path != two.path
        assert os.path.isdir(one.session("s-1"))
    assert not base.exists()


async def test_only_the_name_of_an_ended_session_is_reused(tmp_path: Path) -> None:
    async with TemporaryRoot(str(tmp_path / "base")) as root:
        first, second = root.session("s-1"), root.session("s-2")
        Path(first, "secret").write_text("x")
        await root.remove_session("s-1")
        assert not os.path.exists(first)
        assert root.session("s-3") == first
        assert os.listdir(first) == []
        assert root.session("s-4") not in (first, second)


async def test_a_daemon_starts_while_the_last_other_one_ends(tmp_path: Path) -> None:
    """That one takes the base away, in whichever moment."""

    async def come_and_go() -> None:
        for _ in range(15):
            async with TemporaryRoot(str(tmp_path / "base")) as root:
                assert Path(root.mask).exists()

    await asyncio.gather(*(come_and_go() for _ in range(4)))
    assert not (tmp_path / "base").exists()


async def test_what_commands_made_elsewhere_goes_along(tmp_path: Path) -> None:
    """macOS: directories of confstr(3). Those of a session, of its daemon, and of a killed one."""
    caches = tmp_path / "C"
    for name in ("sandboxd-d-gone-t0", "other"):
        (caches / name / "below").mkdir(parents=True)
    (tmp_path / "base" / "d-gone").mkdir(parents=True)
    async with TemporaryRoot(str(tmp_path / "base"), elsewhere=(str(caches), str(tmp_path / "none"))) as root:
        assert sorted(os.listdir(caches)) == ["other"]
        for session in ("s-1", "s-2"):
            (caches / f"sandboxd-{os.path.basename(root.path)}-{os.path.basename(root.session(session))}").mkdir()
        await root.remove_session("s-1")
        assert len(os.listdir(caches)) == 2
    assert os.listdir(caches) == ["other"]
