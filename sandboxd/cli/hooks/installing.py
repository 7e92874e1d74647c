"""Writing of other programs' settings by `sandboxd hook`."""

from __future__ import annotations

import os
import stat
import sys
import tempfile

from sandboxd.cli.output import fail
from sandboxd_client import programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def refuse_opened(program: Sequence[str]) -> int:
    """Return 0, or the status of an error where commands could have written this installation."""
    opened = programs.opened_place((program[0], sys.prefix))
    if not opened:
        return 0
    return fail(
        f"nothing is installed: commands could write {opened}, where this program is",
        "install sandboxd outside all projects with: ./dev install, in a checkout of sandboxd",
    )


def write_file(path: str, text: str) -> None:
    """Replace the file behind all links in one step; its mode stays."""
    real = os.path.realpath(path)
    os.makedirs(os.path.dirname(real), mode=0o700, exist_ok=True)
    try:
        mode = stat.S_IMODE(os.stat(real).st_mode)
    except FileNotFoundError:
        mode = 0o600
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(real), prefix=".sandboxd-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise
