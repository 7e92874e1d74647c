"""Files that an interpreter looks for before the first line of the daemon are closed to commands: strace names them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.policy.paths.protected_names import ProtectedIn, rows

ROOT = Path(__file__).parents[2]
REAL = os.path.realpath(sys.executable)
CODE = f"""
import sys
sys.path += {[str(ROOT), str(ROOT / "client")]!r}
from sandboxd.app.loaded_code import own_code
print(*own_code(), sep="\\n")
"""


def linked(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(REAL)


def copied(path: Path) -> None:
    path.parent.mkdir(parents=True)
    shutil.copy(REAL, path)


def environment(path: Path) -> None:
    venv.create(path.parent.parent, symlinks=True, with_pip=False)


def looked_at(home: Path, interpreter: Path, code: str) -> tuple[set[str], str]:
    """Return the paths below a directory that were looked at, but the directories on the way, and what was printed."""
    log = home.parent / "log"
    words = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=file", str(interpreter), "-I", "-c", code]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd="/", env={})
    found = set(re.findall(rf'"({re.escape(str(home))}/[^"]*)"', log.read_text()))
    assert str(interpreter) in found
    return {path for path in found if not os.path.isdir(path)}, done.stdout


def is_below(path: str, places: list[str]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


@pytest.mark.parametrize("make", [linked, copied, environment])
def test_it_is_the_code_of_the_daemon(tmp_path: Path, make: Callable[[Path], None]) -> None:
    project = tmp_path / "project"
    interpreter = project / "tools" / "bin" / "python3"
    make(interpreter)
    found, printed = looked_at(project, interpreter, CODE)
    places = printed.splitlines()
    assert not {path for path in found if not is_below(path, places)}
    assert not is_below(str(project / "free"), places)


UV, PIPX = ".local/share/uv/tools/sandboxd/bin/python3", ".local/share/pipx/venvs/sandboxd/bin/python3"


@pytest.mark.parametrize(
    ("place", "make"),
    [
        (".local/bin/python3", linked),
        (".local/bin/python3", environment),
        ("bin/python3", linked),
        (UV, environment),
        (PIPX, environment),
    ],
)
def test_it_is_protected_in_a_home_directory(tmp_path: Path, place: str, make: Callable[[Path], None]) -> None:
    """Also of a program that does not run now, as the interpreters that uv links into ~/.local/bin."""
    home = tmp_path / "home"
    make(home / place)
    found, _ = looked_at(home, home / place, "0")
    names = [f"{home}/{row.name}" for row in rows(ProtectedIn.HOME)]
    assert not {path for path in found if not is_below(path, names)}
