"""What the built packages hold. Built offline, with the build back end that the development extras bring."""

from __future__ import annotations

import itertools
import re
import zipfile
from pathlib import Path

import pytest

from support.installations import build_wheel
from support.users import CHECKOUT

MACHINES = ("x86_64", "aarch64")


def build(project: Path, into: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(project, into))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(CHECKOUT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_brings_the_helper_for_both_machines(wheel: zipfile.ZipFile) -> None:
    for machine, name in itertools.product(MACHINES, ("apply-seccomp", "launch", "namespaces")):
        entry = wheel.getinfo(f"sandboxd/vendor/seccomp/{machine}/{name}")
        assert wheel.read(entry) == (CHECKOUT / "vendor" / "seccomp" / machine / name).read_bytes()
        assert entry.external_attr >> 16 & 0o777 == 0o755, "pip keeps the mode: it has to be executable"


def test_the_wheel_brings_the_front_for_both_machines(wheel: zipfile.ZipFile) -> None:
    """Below the prefix, where the script finds it without asking for the version of Python."""
    for machine in MACHINES:
        (name,) = (name for name in wheel.namelist() if name.endswith(f".data/data/lib/sandboxd/{machine}/sandboxd"))
        assert wheel.read(name) == (CHECKOUT / "vendor" / "seccomp" / machine / "front").read_bytes()
        assert wheel.getinfo(name).external_attr >> 16 & 0o777 == 0o755


def test_the_wheel_brings_the_units(wheel: zipfile.ZipFile) -> None:
    for unit in ("sandboxd.service", "sandboxd.socket"):
        assert wheel.read(f"sandboxd/systemd/{unit}") == (CHECKOUT / "systemd" / unit).read_bytes()


def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {"sandboxd", "sandboxd.pth"} <= tops
    assert all(top in ("sandboxd", "sandboxd.pth") or top.endswith((".dist-info", ".data")) for top in tops), tops


def test_the_program_is_a_script_that_installers_leave_as_it_is(wheel: zipfile.ZipFile) -> None:
    """What they generate for an entry point, and what begins with `#!python`, obeys PYTHONPATH."""
    assert not any(name.endswith("entry_points.txt") for name in wheel.namelist())
    (script,) = (name for name in wheel.namelist() if ".data/scripts/" in name)
    assert re.fullmatch(r"sandboxd-[^/]+\.data/scripts/sandboxd", script)
    assert wheel.read(script) == (CHECKOUT / "scripts" / "sandboxd").read_bytes()
    assert wheel.read(script).startswith(b"#!/bin/sh\n")


def test_the_wheel_carries_the_client(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The same files as the package for agents, at a place of their own: no file belongs to both."""
    client = build(CHECKOUT / "client", tmp_path)
    code = [name for name in client.namelist() if name.startswith("sandboxd_client/")]
    assert "sandboxd_client/py.typed" in code and "sandboxd/py.typed" in wheel.namelist()
    for name in code:
        assert wheel.read(f"sandboxd/vendor/client/{name}") == client.read(name)
    assert wheel.read("sandboxd.pth") == b"sandboxd/vendor/client\n"
    assert not set(client.namelist()) & set(wheel.namelist())
    (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("METADATA"))
    assert "sandboxd-client" not in re.findall(r"^Requires-Dist: (\S+)", metadata, re.MULTILINE)


def test_the_client_needs_nothing(tmp_path: Path) -> None:
    client = build(CHECKOUT / "client", tmp_path)
    (metadata,) = (client.read(name).decode() for name in client.namelist() if name.endswith("METADATA"))
    assert "Name: sandboxd-client\n" in metadata
    assert not re.search(r"^Requires-Dist:(?!.*; extra == )", metadata, re.MULTILINE), "only extras"
    assert any(name == "sandboxd_client/py.typed" for name in client.namelist())


@pytest.mark.parametrize("project", ["", "client"])
def test_each_wheel_carries_the_licence(project: str, tmp_path: Path) -> None:
    package = build(CHECKOUT / project, tmp_path)
    (licence,) = (name for name in package.namelist() if name.endswith("/licenses/LICENSE"))
    assert package.read(licence) == (CHECKOUT / "LICENSE").read_bytes()
    (metadata,) = (package.read(name).decode() for name in package.namelist() if name.endswith("METADATA"))
    assert "License-Expression: Apache-2.0\n" in metadata


def test_both_have_the_same_version() -> None:
    versions = {
        re.search(r'__version__ = "(.+)"', (CHECKOUT / path / "__init__.py").read_text())[1]  # type: ignore[index]
        for path in ("sandboxd", "client/sandboxd_client")
    }
    assert len(versions) == 1, versions
