"""Control sockets: through them a command could act outside the sandbox.

Listing one is permitted, with a warning. With `allowAllUnixSockets` they stay closed unless they are listed one by one.
Patterns are over absolute paths with `/var/run` read as `/run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class ControlSocket:
    pattern: str
    gives: str


_CONTAINERS = "starts containers, which gives control of this host"
_SESSION_BUS = "starts programs and services of your login session"
_SCREEN = "types into and reads every window of your desktop"
_AGENT = "signs with your keys"
_EDITOR = "runs commands in your editor or terminal"

CONTROL_SOCKETS: tuple[ControlSocket, ...] = (
    ControlSocket("/run/docker.sock", _CONTAINERS),
    ControlSocket("*/docker.sock", _CONTAINERS),
    ControlSocket("*/podman.sock", _CONTAINERS),
    ControlSocket("*/containerd*.sock", _CONTAINERS),
    ControlSocket("*/containerd*.sock.ttrpc", _CONTAINERS),
    ControlSocket("/run/user/*/containerd-rootless/api.sock", _CONTAINERS),
    ControlSocket("*/cri-dockerd.sock", _CONTAINERS),
    ControlSocket("*/buildkitd.sock", _CONTAINERS),
    ControlSocket("*/crio.sock", _CONTAINERS),
    ControlSocket("/var/lib/lxd/unix.socket", _CONTAINERS),
    ControlSocket("/var/snap/lxd/common/lxd/unix.socket", _CONTAINERS),
    ControlSocket("/var/lib/incus/unix.socket", _CONTAINERS),
    ControlSocket("/run/incus/unix.socket", _CONTAINERS),
    ControlSocket("/run/libvirt/*", "controls virtual machines on this host"),
    ControlSocket("/run/user/*/libvirt/*", "controls virtual machines on this host"),
    ControlSocket("/run/user/*/bus", _SESSION_BUS),
    ControlSocket("/run/user/*/systemd/*", _SESSION_BUS),
    ControlSocket("/run/user/*/at-spi/*", _SCREEN),
    ControlSocket("/run/systemd/*", "controls system services"),
    ControlSocket("/run/dbus/system_bus_socket", "controls system services"),
    ControlSocket("/run/snapd*.socket", "installs software as root"),
    ControlSocket("/nix/var/nix/daemon-socket/socket", "builds and runs as the Nix daemon permits"),
    ControlSocket("/tmp/.X11-unix/*", _SCREEN),
    ControlSocket("/run/user/*/wayland-*", _SCREEN),
    ControlSocket("/run/user/*/pipewire-*", "records sound and screen"),
    ControlSocket("*/S.gpg-agent*", _AGENT),
    ControlSocket("*/ssh-*/agent.*", _AGENT),
    ControlSocket("/run/user/*/keyring/*", _AGENT),
    ControlSocket("/run/user/*/openssh_agent", _AGENT),
    ControlSocket("*/ssh-agent*", _AGENT),
    ControlSocket("/run/user/*/gcr/ssh", _AGENT),
    ControlSocket("*/.1password/agent.sock", _AGENT),
    ControlSocket("/tmp/tmux-*/*", _EDITOR),
    ControlSocket("/run/screen/*", _EDITOR),
    ControlSocket("*/vscode-ipc-*.sock", _EDITOR),
    ControlSocket("*/vscode-git-*.sock", _EDITOR),
    ControlSocket("*/emacs/server", _EDITOR),
    ControlSocket("*/.emacs.d/server/*", _EDITOR),
    ControlSocket("*/nvim.*", _EDITOR),
    ControlSocket("/run/WSL/*_interop", "starts Windows programs"),
)

FINDABLE = tuple(known.pattern for known in CONTROL_SOCKETS if not known.pattern.startswith(("*", "/tmp/")))
"""Patterns that the host can be searched for. Others may be anywhere, or in a `/tmp` that no sandbox sees."""

_PLACES = (
    "/run/docker/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
    "/run/containerd/containerd.sock.ttrpc", "/run/docker/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock",
    "/run/buildkit/buildkitd.sock", "/run/libvirt/libvirt-sock", "/run/systemd/private", "/run/snapd.socket",
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
    return (
        pattern.startswith("/")
        and len(parts) < len(wanted)
        and all(fnmatchcase(part, expected) for part, expected in zip(parts, wanted, strict=False))
    )


def canonical_socket_path(path: str) -> str:
    """Replace `/var/run`, a link on every current distribution, by `/run`."""
    if path == "/var/run" or path.startswith("/var/run/"):
        return path.removeprefix("/var")
    return path
