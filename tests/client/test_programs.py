"""Where programs and code may come from."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from sandboxd_client import programs

ROOT = os.geteuid() == 0


def plant(place: Path, name: str = "tool", *, mode: int = 0o755) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home that both the user database and the environment name."""
    entry = type("Entry", (), {"pw_dir": str(tmp_path / "home")})
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_the_system_comes_first(tmp_path: Path) -> None:
    plant(tmp_path, "sh")
    found = programs.find("sh", f"{tmp_path}:{os.environ['PATH']}")
    assert found.path is not None and os.path.dirname(found.path) in programs.SYSTEM_DIRECTORIES


def test_nothing_is_found_in_what_commands_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tool = plant(tmp_path / ".venv" / "bin")
    for search in (f"{tool.parent}", f":.:.venv/bin:{tool.parent}", f"{tool.parent}/../bin", f"/no:{tool.parent}//"):
        found = programs.find("tool", search)
        assert found.path is None and found.why
    for search in ("", ".", ".venv/bin", "/nowhere"):
        assert programs.find("tool", search) == programs.Search(None)


def test_a_link_is_judged_by_all_the_way_it_leads(tmp_path: Path) -> None:
    tool = plant(tmp_path / "bin")
    os.symlink("/usr/bin/env", tmp_path / "env")  # the link itself can be replaced
    os.symlink(tool.parent, tmp_path / "linked")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    for path in (tmp_path / "env", tmp_path / "linked" / "tool", tmp_path / "loop", tmp_path / "none"):
        assert programs.why_writable(str(path)), path
    assert not programs.why_writable("/usr/bin/env")
    assert not programs.why_writable("/usr/../usr/./bin//env")


def test_the_places_on_a_way(tmp_path: Path) -> None:
    plant(tmp_path / "a" / "b")
    os.symlink("../a/b", tmp_path / "a" / "c")
    os.symlink("c/tool", tmp_path / "a" / "d")
    seen = [place for place, _ in programs.places_on(f"{tmp_path}/a/d")][-5:]
    assert seen == [f"{tmp_path}/{name}" for name in ("a/d", "a/c", "a", "a/b", "a/b/tool")]


def test_protected_trees_of_the_home_count(home: Path, tmp_path: Path) -> None:
    tool = plant(home / ".local" / "bin")
    assert programs.find("tool", str(tool.parent)).path == str(tool) or not ROOT_OWNED
    assert programs.why_writable(str(plant(home / "elsewhere")))
    real = plant(home / ".local" / "share" / "uv" / "tools" / "x" / "bin", "x")
    os.symlink(real, home / ".local" / "bin" / "x")
    assert not programs.why_writable(str(home / ".local" / "bin" / "x")) or not ROOT_OWNED
    os.symlink(plant(home / "project", "y"), home / ".local" / "bin" / "y")
    assert programs.why_writable(str(home / ".local" / "bin" / "y"))


# Above the directories of these tests everything belongs to root where root runs them, and else to the user.
ROOT_OWNED = ROOT


def test_a_home_that_only_the_environment_names_does_not_count(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = plant(tmp_path / "project" / ".local" / "bin")
    monkeypatch.setenv("HOME", str(tmp_path / "project"))
    assert programs.home_trees() == ()
    assert programs.why_writable(str(tool))


def test_what_the_policy_opens_is_refused_everywhere(home: Path) -> None:
    assert programs.find("env", "", ["/usr"]).path is None
    assert "may write" in programs.find("env", "", ["/usr/bin"]).why
    assert programs.find("env", "", ["/usr/share", "/usr/binx"]).path is not None
    plant(home / ".local" / "bin")
    if ROOT_OWNED:  # protected below an open home, and not where a rule opens it by name
        assert not programs.why_writable(f"{home}/.local/bin/tool", [str(home)])
        assert programs.why_writable(f"{home}/.local/bin/tool", [f"{home}/.local/bin"])


@pytest.mark.skipif(not ROOT, reason="only root can make what belongs to root")
def test_root_owned_programs_are_safe_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Path("/opt/sandboxd-test-programs")
    try:
        tool = plant(place / "bin")
        assert "outside the directories of the system" in programs.why_writable(str(tool))
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setattr(os, "access", lambda path, mode, **_: mode == os.X_OK)
        assert not programs.why_writable(str(tool))
        os.chown(tool, 1000, 1000)
        assert "does not belong to root" in programs.why_writable(str(tool))
        os.chown(tool, 0, 0)
        (place / "bin").chmod(0o777)
        assert "can be written" in programs.why_writable(str(tool))
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"PYTHONPATH": ".", "PYTHONHOME": "/x", "PYTHONSTARTUP": "s", "PYTHONWARNINGS": "error::evil.E"}, {}),
        ({"PYTHONPYCACHEPREFIX": "p", "PYTHONUSERBASE": "u", "PYTHONBREAKPOINT": "evil.b", "PYTHONINSPECT": "1"}, {}),
        ({"LD_PRELOAD": "./evil.so", "LD_AUDIT": "/var/tmp/x/evil.so", "LD_LIBRARY_PATH": "lib:.:"}, {}),
        ({"LD_LIBRARY_PATH": "/usr/lib:/var/tmp/x:$ORIGIN/lib:lib"}, {"LD_LIBRARY_PATH": "/usr/lib"}),
        ({"LD_PRELOAD": "libfake.so ./evil.so"}, {"LD_PRELOAD": "libfake.so"}),
        ({"DYLD_INSERT_LIBRARIES": "/var/tmp/x/e.dylib", "GCONV_PATH": ".", "OPENSSL_CONF": "o", "BASH_ENV": "b"}, {}),
        ({"HOSTALIASES": "h", "TZDIR": "z", "SSLKEYLOGFILE": "k", "TZ": ":/var/tmp/x/zone"}, {}),
        ({"TZ": "x/../../var/tmp/x/zone", "LOCALE_ARCHIVE": "a", "RESOLV_HOST_CONF": "h"}, {}),
        ({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/none;unixexec:path=./evil"}, {}),
        ({"TZ": ":Europe/Berlin", "LC_ALL": "C.UTF-8", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1/bus"}, None),
        ({"PATH": "/bin", "LANG": "C", "MY_PYTHONPATH": "x", "BUILD_ENV": "y"}, None),
    ],
)
def test_an_environment_without_code(before: dict[str, str], after: dict[str, str] | None) -> None:
    kept = programs.without_code(before)
    assert kept == (before if after is None else after)
    assert programs.without_code(kept) == kept
