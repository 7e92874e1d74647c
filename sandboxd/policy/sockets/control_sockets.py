"""Control sockets: through them a command could act outside the sandbox.

Listing one is permitted, with a warning. With `allowAllUnixSockets` they stay closed unless they are listed one by one.
Patterns are over absolute paths with `/var/run` read as `/run`, and `/private/tmp` as `/tmp`. Linux and macOS use the
same table: programs keep their sockets in the same places, or in places that the other system does not have."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class ControlSocket:
    pattern: str
    gives: str


_CONTAINERS = "starts containers, which gives control of this host"
_SESSION_BUS = "starts programs and services of your login session"
_SCREEN = "types into and reads every window of your desktop"
_AGENT = "signs with your keys"
_EDITOR = "runs commands in your editor or terminal"
_MACHINES = "controls virtual machines on this host"


def _rows(gives: str, patterns: str) -> tuple[ControlSocket, ...]:
    return tuple(ControlSocket(pattern.strip(), gives) for pattern in patterns.strip().split("\n"))


CONTROL_SOCKETS: tuple[ControlSocket, ...] = (
    *_rows(
        _CONTAINERS,
        """
        /run/docker.sock
        */docker.sock
        */com.docker.docker/Data/*
        */podman.sock
        */podman-machine*
        */podman/*.sock
        */containerd*.sock
        */containerd*.sock.ttrpc
        /run/user/*/containerd-rootless/api.sock
        */cri-dockerd.sock
        */buildkitd.sock
        */crio.sock
        /var/lib/lxd/unix.socket
        /var/snap/lxd/common/lxd/unix.socket
        /var/lib/incus/unix.socket
        /run/incus/unix.socket
        """,
    ),
    *_rows(
        _MACHINES,
        """
        /run/libvirt/*
        /run/user/*/libvirt/*
        */.lima/*/*.sock
        */_lima/*/*.sock
        */.colima/*.sock
        */multipass_socket
        """,
    ),
    *_rows(
        _SESSION_BUS,
        """
        /run/user/*/bus
        /run/user/*/systemd/*
        """,
    ),
    *_rows("controls system services", "/run/systemd/*\n/run/dbus/system_bus_socket"),
    ControlSocket("/run/snapd*.socket", "installs software as root"),
    ControlSocket("/nix/var/nix/daemon-socket/socket", "builds and runs as the Nix daemon permits"),
    *_rows("changes the private network of this host", "*/tailscaled.sock\n*/tailscaled.socket\n/run/vpncontrol.sock"),
    ControlSocket("/run/mDNSResponder", "looks names up past the proxies, which carries data out"),
    ControlSocket("/run/usbmuxd", "controls attached telephones"),
    *_rows(
        _SCREEN,
        """
        /run/user/*/at-spi/*
        /tmp/.X11-unix/*
        /run/user/*/wayland-*
        """,
    ),
    ControlSocket("/run/user/*/pipewire-*", "records sound and screen"),
    *_rows(
        _AGENT,
        """
        */S.gpg-agent*
        */ssh-*/agent.*
        */.ssh/agent/*
        /run/user/*/keyring/*
        /run/user/*/openssh_agent
        */ssh-agent*
        /run/user/*/gcr/ssh
        */.1password/agent.sock
        */Library/Group Containers/*.com.1password/*
        */com.maxgoedjen.Secretive.*/Data/socket.ssh
        */com.apple.launchd.*/*
        */.bitwarden-ssh-agent.sock
        """,
    ),
    *_rows(
        _EDITOR,
        """
        /tmp/tmux-*/*
        /run/screen/*
        */vscode-*.sock
        */Application Support/*-main.sock
        */.config/*-main.sock
        */emacs/server
        */.emacs.d/server/*
        */nvim.*
        */iTerm2/*socket
        */wezterm/*
        /tmp/*kitty*
        /run/user/*/*kitty*
        */zellij*/*
        /run/user/*/Alacritty-*.sock
        """,
    ),
    ControlSocket("/run/WSL/*_interop", "starts Windows programs"),
)

FINDABLE = tuple(known.pattern for known in CONTROL_SOCKETS if not known.pattern.startswith(("*", "/tmp/")))
"""Patterns that the host can be searched for. Others may be anywhere, or in a `/tmp` that no sandbox sees."""

_PLACES = (
    "/run/docker/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
    "/run/containerd/containerd.sock.ttrpc", "/run/docker/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock",
    "/run/buildkit/buildkitd.sock", "/run/libvirt/libvirt-sock", "/run/systemd/private",
    "/run/tailscale/tailscaled.sock", "/run/multipass_socket", "/run/snapd.socket",
    "{run}/docker.sock", "{run}/podman/podman.sock", "{run}/buildkit/buildkitd.sock",
    "{run}/containerd-rootless/api.sock", "{run}/bus", "{run}/systemd/private", "{run}/gnupg/S.gpg-agent",
    "{run}/gnupg/S.gpg-agent.ssh", "{run}/gnupg/S.gpg-agent.extra", "{run}/gnupg/S.gpg-agent.browser",
    "{run}/gcr/ssh", "{run}/keyring/ssh", "{run}/keyring/control", "{run}/openssh_agent", "{run}/ssh-agent.socket",
    "{run}/emacs/server", "{home}/.docker/run/docker.sock", "{home}/.docker/desktop/docker.sock",
    "{home}/.colima/docker.sock", "{home}/.colima/default/docker.sock", "{home}/.rd/docker.sock",
    "{home}/.orbstack/run/docker.sock", "{home}/.lima/default/sock/docker.sock", "{home}/.gnupg/S.gpg-agent",
    "{home}/.gnupg/S.gpg-agent.ssh", "{home}/.gnupg/S.gpg-agent.extra", "{home}/.gnupg/S.gpg-agent.browser",
    "{home}/.1password/agent.sock", "{home}/.emacs.d/server/server",
)  # fmt: skip


def usual_places(home: str, uid: int) -> tuple[str, ...]:
    """Return known paths of sockets, whose directories may not be listable."""
    return tuple(place.format(run=f"/run/user/{uid}", home=home) for place in _PLACES)


def control_socket(path: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the power that a socket or directory gives; None when none is known."""
    path = canonical_socket_path(path)
    if environment is not None and path == canonical_socket_path(environment.get("SSH_AUTH_SOCK", "")):
        return _AGENT
    for known in CONTROL_SOCKETS:
        if fnmatchcase(path, known.pattern) or _is_above(path, known.pattern):
            return known.gives
    return None


def _is_above(directory: str, pattern: str) -> bool:
    """Return whether sockets of the pattern may lie below a directory."""
    parts = [part for part in directory.split("/") if part]
    wanted = [part for part in pattern.split("/") if part]
    if not pattern.startswith("/"):
        return fnmatchcase(directory + "/", pattern)
    return len(parts) < len(wanted) and all(fnmatchcase(*pair) for pair in zip(parts, wanted, strict=False))


def canonical_socket_path(path: str) -> str:
    """Replace `/var/run`, a link on every current distribution, by `/run`, and `/private/tmp` of macOS by `/tmp`."""
    if path.startswith(("/private/tmp/", "/private/var/")):
        path = path.removeprefix("/private")
    if path == "/var/run" or path.startswith("/var/run/"):
        return path.removeprefix("/var")
    return path
