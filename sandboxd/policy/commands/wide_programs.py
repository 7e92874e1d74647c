"""Programs whose exclusion lets a command do anything outside the sandbox."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sandboxd.policy.commands.command_patterns import CommandPattern
from sandboxd.policy.commands.shell_programs import INTERPRETERS, LAUNCHERS
from sandboxd_client.records import dataclass, field

RUN_OTHERS: Final = (
    INTERPRETERS
    | LAUNCHERS
    | frozenset(
        """ansible ansible-playbook ant asdf at batch bazel buck2 bun bundle bunx c++ cargo cc clang clang++ cmake
        codium composer conda corepack crontab ctest deno direnv dmesg dotnet dpkg ed ede elixir emacs emacsclient
        erl ex expect fd fzf g++ gcc gdb gem ghc git go gradle gradlew groovy guile hatch hg hyperfine info invoke
        irb jj jshell julia just kakoune lake lein lerna less lldb lua luajit m4 mail make man mc meson micro mise
        mix mocha more msbuild mutt mvn mvnw mysql nano ninja nix nix-shell nmap nodemon nox npm nvim nx octave
        ocaml opam osascript pager pdm pip pip3 pipx pnpm pnpx poetry pre-commit psql puppet pwsh pytest R rake rg
        ripgrep rlwrap Rscript rsync ruff rust-script rustc rustup rview rvim sbt scala scp screen sed sftp socat
        sqlite3 stack svn swift tar tclsh terraform tmux tofu tox ts-node tsx turbo uv vi view vim vimdiff w3m
        wasmtime watchexec watchman wget wish yarn zig zip zipinfo zsh""".split()
    )
)
"""Programs that run others by an argument, a file of the directory, or a key."""
RUNNING_SUBCOMMANDS: Final = {
    "bun": "run x", "bundle": "exec", "cargo": "run", "conda": "run", "corepack": "npm pnpm yarn", "deno": "run",
    "go": "run", "hatch": "run", "mise": "exec x", "npm": "exec x", "pdm": "run", "pipx": "run", "pnpm": "dlx exec",
    "poetry": "run", "uv": "run tool x", "yarn": "dlx exec",
}  # fmt: skip
"""First arguments behind which such a program runs whatever follows."""
_VERSION: Final = re.compile(r"[-.]?[0-9][0-9.]*$")


@dataclass(frozen=True, slots=True)
class WideProgram:
    """Programs with one reason why their exclusion is wide.

    A pattern that fixes the first argument is not wide. With `whatever_follows` it has to fix all arguments, or begin
    with one that is `harmless`."""

    names: frozenset[str]
    why: str
    whatever_follows: bool = True
    harmless: frozenset[str] = field(default=frozenset())


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


WIDE_PROGRAMS: Final = (
    WideProgram(LAUNCHERS, "runs other programs"),
    WideProgram(RUN_OTHERS, "runs other programs", whatever_follows=False),
    WideProgram(
        _names(
            """apptainer buildah colima crictl ctr distrobox docker docker-compose helm incus k3s k9s kind kubectl lima
            limactl lxc minikube multipass nerdctl orb podman podman-compose singularity skopeo systemd-nspawn toolbox
            vagrant vboxmanage virsh virt-install wsl"""
        ),
        "starts containers or machines, which gives control of this host",
        harmless=_names("events history images info inspect logs port ps pull search stats top version wait"),
    ),
    WideProgram(
        _names(
            """busctl cmd dbus-send dbus-launch gdbus gio gtk-launch launchctl loginctl machinectl open qdbus service
            snap flatpak systemctl xdg-open code cursor subl idea xdotool ydotool wtype"""
        ),
        "has services of your login or of the system start programs",
    ),
    WideProgram(
        _names(
            """7z apt apt-get aria2c brew chattr chgrp chmod chown cp cpio curl dd dnf dpkg-deb install ln losetup mkfs
            mount mv pacman patch rename rpm setfacl shred tee truncate umount unzip useradd usermod visudo xcopy yum
            zypper insmod modprobe apk"""
        ),
        "writes files anywhere outside the sandbox, or changes who may",
    ),
)


def why_wide_program(pattern: CommandPattern) -> str:
    """Return the power that an exclusion gives by its program; empty if none."""
    if pattern.is_exact:
        return ""
    free, first = _first_argument(pattern)
    for row in WIDE_PROGRAMS:
        fixed = not free and (not row.whatever_follows or first in row.harmless)
        if not fixed and _is_one_of(pattern, row.names):
            return row.why
    return ""


def runs_others(pattern: CommandPattern) -> bool:
    """Return whether the program runs others and its first argument is left open."""
    free, _ = _first_argument(pattern)
    return free and _is_one_of(pattern, RUN_OTHERS)


def _first_argument(pattern: CommandPattern) -> tuple[bool, str]:
    """Return whether the program to run is open; else the first argument that is no option."""
    words: Sequence[str] = pattern.words
    if pattern.wildcard:
        words = pattern.wildcard[0].split()
    fixed = [word for word in words[1:] if not word.startswith("-")]
    if pattern.is_exact:
        return False, fixed[0] if fixed else ""
    free = not fixed or (len(fixed) == 1 and fixed[0] in RUNNING_SUBCOMMANDS.get(pattern.program, "").split())
    return free, fixed[0] if fixed else ""


def _is_one_of(pattern: CommandPattern, names: frozenset[str]) -> bool:
    if pattern.wildcard:
        head = "*".join(pattern.wildcard).partition(" ")[0]
        if "*" in head and "/" not in head:
            any_of = re.compile(".*".join(map(re.escape, head.split("*"))))
            return any(map(any_of.fullmatch, names))
    name = pattern.program
    return not names.isdisjoint({name, _VERSION.sub("", name), name.partition(".")[0]})
