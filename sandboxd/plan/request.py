"""The request for a plan: a place and a command.

A session runs hundreds of commands in one `Place`, so what depends on the place alone is computed once
(`plan.planner`). Text is `str` as `os.fsdecode` gives it: bytes that are not UTF-8 survive (PEP 383)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from types import MappingProxyType

from sandboxd.policy.model import PathRule
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of a command. Hashable: keep one for each session and `cwd`.

    `project_root` is the directory of the session. The user chose it, so it counts as an `allowWrite` rule and re-opens
    a broader `denyRead`. `cwd` is chosen for each command, possibly by a model: it is writable, but re-opens nothing.
    """

    cwd: str
    project_root: str
    session_tmp: str
    """The session's temporary directory on the host; inside it is `/tmp`, and has this path too. The daemon makes it:
    no symlink is on the way from `temporary_base`, and facts do not depend on its inode."""
    home: str
    uid: int
    runtime_dir: str
    """The daemon's directory, masked inside."""
    mask_file: str
    """An empty file of mode 000 of the daemon, which is mounted over every denied file."""
    temporary_base: str = ""
    """The directory of all sessions' temporary directories: masked, except for this session's. Default: the parent of
    `session_tmp`."""
    private: tuple[str, ...] = ()
    """Further directories of the daemon, masked inside, such as that of the audit log."""
    daemon_paths: tuple[str, ...] = ()
    """Helper, Python environment, source checkout: never writable inside."""
    allow_write: tuple[PathRule, ...] = ()
    allow_read: tuple[PathRule, ...] = ()
    http_port: int | None = 3128
    socks_port: int | None = 1080
    overlays: frozenset[str] = frozenset()
    """Directories, of `/tmp` and `home`, that can have a session's changes laid over them."""
    captured: bool = False
    """Every TCP connection is captured, so programs without proxy support need no help."""
    name_files: tuple[tuple[str, str], ...] = ()
    """(path inside, file of the daemon) of each file that configures name look-up: with `captured`, the daemon's name
    service answers."""

    trust_directory: str = ""
    """The daemon's directory of certificate bundles, which commands see where TLS ends in the proxy."""

    def __post_init__(self) -> None:
        if not self.temporary_base:
            object.__setattr__(self, "temporary_base", posixpath.dirname(self.session_tmp))


@dataclass(frozen=True, slots=True)
class Argv:
    """A program and its arguments, run without a shell."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShellText:
    """A shell line, by default for the first of `DEFAULT_SHELLS` that exists."""

    text: str
    shell: str | None = None
    login: bool = False


DEFAULT_SHELLS = ("/bin/bash", "/bin/sh")
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
