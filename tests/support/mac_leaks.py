"""What a sandbox must not reach, and what everyday programs need: tables, and a disk that folds case as APFS does."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Mapping
from functools import cache

from support.dictionary_host import DictionaryHost

CONTROL_PATHS = """
/run/docker.sock
/var/run/docker.sock
/run/user/1000/bus
/run/user/1000/systemd/private
/run/systemd/private
/tmp/.X11-unix/X0
/run/user/1000/wayland-0
/home/u/.gnupg/S.gpg-agent
/tmp/ssh-abc/agent.12
/run/containerd/containerd.sock
/run/user/1000/podman/podman.sock
/run/WSL/8_interop
/home/u/.ssh/agent/s.wX3bQ0.agent.Jz1
/private/tmp/com.apple.launchd.aB3/Listeners
/private/var/run/com.apple.launchd.aB3/Listeners
/private/var/folders/xy/T/com.apple.launchd.aB3/Listeners
/Users/me/Library/Group Containers/2BUA8C4S2C.com.1password/t/agent.sock
/Users/me/.1password/agent.sock
/Users/me/Library/Containers/com.maxgoedjen.Secretive.SecretAgent/Data/socket.ssh
/Users/me/.bitwarden-ssh-agent.sock
/private/var/folders/xy/T/podman/podman-machine-default-api.sock
/Users/me/.local/share/containers/podman/machine/podman-machine-default/podman.sock
/Users/me/Library/Containers/com.docker.docker/Data/docker.raw.sock
/Users/me/.lima/default/ha.sock
/Users/me/.colima/_lima/colima/ha.sock
/Users/me/.colima/default/containerd.sock
/run/multipass_socket
/var/snap/multipass/common/multipass_socket
/run/tailscale/tailscaled.sock
/var/run/tailscaled.socket
/Users/me/Library/Application Support/iTerm2/private/socket
/Users/me/Library/Application Support/iTerm2/iterm2-daemon-1.socket
/home/u/.local/share/wezterm/gui-sock-77
/run/user/1000/wezterm/gui-sock-77
/tmp/mykitty-12
/run/user/1000/kitty-12
/Users/me/Library/Application Support/Code/1.96-main.sock
/run/user/1000/vscode-1b2c-1.96-main.sock
/home/u/.config/Code/1.96-main.sock
/private/var/run/mDNSResponder
/private/var/run/usbmuxd
/private/var/run/vpncontrol.sock
/private/tmp/tmux-501/default
""".strip().split("\n")
"""Sockets of agents, containers, machines, terminals and editors."""


def same_name(text: str) -> str:
    """What APFS compares (xnu, `vfs_unicode.c`): decomposed, folded, decomposed again."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())


class FoldingDisk(DictionaryHost):
    """A disk that finds a name in every spelling, and keeps the one it was made with."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        super().__init__(entries)
        self._by_name = {same_name(path): path for path in self._entries}

    def _spelled(self, path: str) -> str:
        return self._by_name.get(same_name(path), path)


@cache
def _stand_ins() -> Mapping[str, list[str]]:
    """All characters by what they are compared as: found by looking at every one."""
    found: dict[str, list[str]] = {}
    for character in map(chr, (*range(0x20, 0x2F), *range(0x30, 0xD800), *range(0xE000, 0x1F000))):
        found.setdefault(same_name(character), []).append(character)
    return found


def another_spelling(path: str, rng: random.Random) -> str:
    """A path that such a disk takes for the same. Slashes stay."""
    folded, out, known = same_name(path), "", _stand_ins()
    while folded:
        sizes = [size for size in range(1, 5) if folded[:size] in known] if folded[0] != "/" else []
        size = rng.choice(sizes or [1])
        out += rng.choice(known[folded[:size]]) if sizes else folded[0]
        folded = folded[size:]
    return out
