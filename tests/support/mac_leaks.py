"""What a sandbox must not reach although a switch opens its kind: tables for tests of both systems."""

from __future__ import annotations

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
