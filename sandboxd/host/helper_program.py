"""Where our helper is: the static program that stands between bubblewrap and the command (docs/helper.md)."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from sandboxd.errors import HostError

_PACKAGE = Path(__file__).resolve().parents[1]
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def machine_name(machine: str | None = None) -> str:
    """The name that builds and filters use for this machine (`x86_64`, `aarch64`). Raises HostError
    `machine_unsupported`."""
    found = (machine or platform.machine()).lower()
    if found not in _MACHINES:
        raise HostError(
            "machine_unsupported",
            f"sandboxd has no helper and no system call table for {found}",
            hint="x86_64 and aarch64 are supported",
        )
    return _MACHINES[found]


def find_helper(package: Path = _PACKAGE) -> str:
    """The helper for this machine: inside the package where it was installed from a wheel, beside it in a checkout.
    Raises HostError `helper_missing`, `helper_not_executable`, `machine_unsupported`."""
    machine = machine_name()
    for root in (package, package.parent):
        path = root / "vendor" / "seccomp" / machine / "apply-seccomp"
        if not path.is_file():
            continue
        if not os.access(path, os.X_OK):
            raise HostError("helper_not_executable", f"{path} is not executable", hint=f"run: chmod a+rx {path}")
        return str(path)
    raise HostError("helper_missing", f"the helper for {machine} is missing from {package}", hint="reinstall sandboxd")
