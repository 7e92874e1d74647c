"""The same in processes that look like macOS to Python code (`as_darwin/sitecustomize.py`): nothing on the way of a
command needs a name, a file or a kernel feature that only Linux has."""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import sandboxd
import sandboxd_client
from support.daemon import surroundings
from support.users import installed

TESTS = Path(__file__).resolve().parents[1]
AS_DARWIN = TESTS / "macos" / "as_darwin"
LINUX_ONLY = "sandboxd.backends.linux"
EXTRAS = "sandboxd_client.integrations."

WHOLE_LINE = (
    "streams", "test_files", "refusals_become", "the_proxy_and", "with_its_owner", "check_says", "nothing_is_left",
)  # fmt: skip


@cache
def interpreter() -> str:
    """One that imports what this one does, and a sitecustomize.py that a variable names."""
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    return installed(Path(place) / "venv", sys.executable, tuple(filter(None, sys.path)), TESTS.parent).python


def environment(home: Path, **more: str) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "SANDBOXD_TEST_SITE": str(AS_DARWIN),
        **more,
    }


def python(code: str, home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    words = [interpreter(), "-c", code, *arguments]
    return subprocess.run(words, env=environment(home, **more), capture_output=True, text=True, timeout=120)


def test_it_looks_like_macos(tmp_path: Path) -> None:
    code = "import sys, os, select; print(sys.platform, hasattr(os, 'pidfd_open'), hasattr(select, 'epoll'))"
    assert python(code, tmp_path).stdout == "darwin False False\n"
    assert python("open('/proc/self/status')", tmp_path).stderr.splitlines()[-1].startswith("FileNotFoundError")


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    names = [
        module.name
        for package in (sandboxd, sandboxd_client)
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        if not module.name.startswith((LINUX_ONLY, EXTRAS)) and not module.name.endswith("__main__")
    ]
    assert len(names) > 100
    done = python("import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]", tmp_path, *names)
    assert done.returncode == 0, done.stderr


def test_the_whole_line(tmp_path: Path) -> None:
    words = [interpreter(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*words, "-k", " or ".join(WHOLE_LINE), str(TESTS / "macos" / "test_whole_line.py")],
        cwd=TESTS.parent, env=environment(tmp_path), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert f"{len(WHOLE_LINE)} passed" in done.stdout


CLI = "import sys; from sandboxd.cli.main import main; sys.argv[0] = 'sandboxd'; sys.exit(main())"


async def test_a_client_starts_the_daemon() -> None:
    """With the real parts, by default. There is no `sandbox-exec` here, so nothing may run."""
    async with surroundings() as around:
        (around.home / "Library" / "Application Support").mkdir(parents=True)
        more = {"TMPDIR": str(around.base / "tmp")}
        ran = python(CLI, around.home, "run", "--", "true", **more)
        assert ran.returncode == 125 and "/usr/bin/sandbox-exec cannot be started" in ran.stderr, ran.stderr
        status = json.loads(python(CLI, around.home, "status", "--json", **more).stdout)
        assert status["layers"] == [] and "sandbox-exec" in status["unavailable"]["message"]
        words = [interpreter(), "-c", CLI, "stop"]
        with subprocess.Popen(words, env=environment(around.home, **more), stdout=subprocess.PIPE) as stop:
            os.waitpid(status["pid"], 0)  # the tests adopt orphans, and a zombie would look alive
            assert stop.wait(60) == 0
