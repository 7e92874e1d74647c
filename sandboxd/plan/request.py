"""What a plan is asked for: where a command runs, and which command.

The two are apart because they change at different speeds: a session runs hundreds of commands in one `Place`, and
everything that depends on the place alone is worked out once (see `plan.planner`).

Text is `str` as `os.fsdecode` gives it, so bytes that are not UTF-8 survive (PEP 383).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxd.policy.model import PathRule


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command runs. Hashable: build one for each session and working directory, and keep it.

    `project_root` is the directory the session was opened in. A person chose it, so it counts as an `allowWrite` rule
    and re-opens a broader `denyRead`. `cwd` is chosen for each command, possibly by a model: it is writable, but it
    never re-opens what is denied.
    """

    cwd: str
    project_root: str
    session_tmp: str
    """The session's temporary directory on the host. Inside it is `/tmp`, and reachable by this path too. The daemon
    makes it, so below `temporary_base` there is no symlink on the way to it, and whether it was removed and made again
    since the last command is nobody's question."""
    home: str
    uid: int
    runtime_dir: str
    """The daemon's own directory. Masked inside."""
    mask_file: str
    """An empty file of mode 000 that the daemon owns; it is bound over every denied file."""
    temporary_base: str = ""
    """The directory that holds the temporary directories of all sessions: masked, except this session's own. The
    parent of `session_tmp` when empty."""
    private: tuple[str, ...] = ()
    """Further directories of the daemon, masked inside: that of the audit log."""
    daemon_paths: tuple[str, ...] = ()
    """Helper, Python environment, checkout: never writable inside."""
    allow_write: tuple[PathRule, ...] = ()
    allow_read: tuple[PathRule, ...] = ()
    http_port: int | None = 3128
    socks_port: int | None = 1080
    captured: bool = False
    """Every TCP connection is captured, so programs without proxy support need no help."""
    name_files: tuple[tuple[str, str], ...] = ()
    """(path inside, file of the daemon's) for each file that says where names are looked up: with `captured`, that is
    done by our own name service."""

    def __post_init__(self) -> None:
        if not self.temporary_base:
            object.__setattr__(self, "temporary_base", posixpath.dirname(self.session_tmp))


@dataclass(frozen=True, slots=True)
class Argv:
    """A program and its arguments, run without a shell."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShellText:
    """A shell line. Without `shell` it is the first of `DEFAULT_SHELLS` that exists."""

    text: str
    shell: str | None = None


DEFAULT_SHELLS = ("/bin/bash", "/bin/sh")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """`environment` is the caller's; only the names in `plan.environment.CALLER_NAMES` are looked at."""

    place: Place
    command: Argv | ShellText
    environment: Mapping[str, str] = field(default_factory=dict)
