"""The paths of the helper's programs: between bubblewrap and the command, and for namespaces."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from sandboxd.errors import HostError

_PACKAGE = Path(__file__).resolve().parents[1]
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def machine_name(machine: str | None = None) -> str:
    """Return `x86_64` or `aarch64`. Raises HostError `machine_unsupported`."""
    found = (machine or platform.machine()).lower()
    if found not in _MACHINES:
        raise HostError(
            "machine_unsupported",
            f"sandboxd has no helper and no system call table for {found}",
            hint="run it on x86_64 or aarch64",
        )
    return _MACHINES[found]


def find_helper(package: Path = _PACKAGE, name: str = "apply-seccomp") -> str:
    """Return a program of the helper for this machine, from the package or the checkout.

    Raises HostError `helper_missing`, `helper_not_executable`, `machine_unsupported`."""
    machine = machine_name()
    for root in (package, package.parent):
        path = root / "vendor" / "seccomp" / machine / name
        if not path.is_file():
            continue
        if not os.access(path, os.X_OK):
            raise HostError("helper_not_executable", f"{path} is not executable", hint=f"run: chmod a+rx {path}")
        return str(path)
    raise HostError("helper_missing", f"{name} for {machine} is missing from {package}", hint="reinstall sandboxd")
