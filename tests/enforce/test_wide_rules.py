"""Wide rules are not written without a confirmation of the user."""

from __future__ import annotations

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity


@pytest.mark.parametrize(
    "words",
    [("allow", "path", "/"), ("allow", "path", "~"), ("allow", "path", "~/.claude/settings.json"),
     ("allow", "domain", "169.254.169.254"), ("exclude", "add", "python3.11"), ("exclude", "add", "git"),
     ("settings", "set", "sandbox.excludedCommands", '["vim"]'), ("exclude", "add", "sudo"),
     ("exclude", "add", "docker"),
     ("allow", "path", "~/.ssh"), ("allow", "path", "~/.bashrc"), ("allow", "path", "~/.config/autostart"),
     ("allow", "path", "~/.local/bin"), ("allow", "path", "/etc/cron.d"), ("allow", "path", "--read", "~/.aws"),
     ("allow", "socket", "/run/docker.sock"), ("allow", "socket", "/run/user/1000/bus"),
     ("settings", "set", "sandbox.network.allowLocalPorts", '["1024-65535"]'),
     ("settings", "set", "sandbox.network.allowAllUnixSockets", "true"),
     ("settings", "set", "sandbox.network.parentProxy", "http://proxy.test:3128"),
     ("settings", "set", "sandbox.enableWeakerNestedSandbox", "true"),
     ("settings", "set", "sandbox.enabledPlatforms", '["macos"]'), ("settings", "set", "enabled", "false"),
     ("disable",)],
)  # fmt: skip
def test_a_rule_that_gives_very_much_away_needs_a_confirmation(daemon: DaemonProcess, words: tuple[str, ...]) -> None:
    refused = daemon.run(*words)
    assert refused.returncode == 125 and "allows very much" in refused.stderr and "--yes" in refused.stderr
    assert not (daemon.identity.home / ".claude" / "settings.local.json").exists()
    done = daemon.run(*words, "--yes")
    assert done.returncode == 0, done.stderr
    written = (daemon.identity.home / ".claude" / "settings.local.json").read_text()
    assert words[-1].strip('[]"~/').replace("disable", "false") in written


@pytest.mark.parametrize("how", ["settings", "option"])
def test_a_rule_whose_links_cannot_be_followed_stops_no_command(
    start_daemon: StartDaemon, identity: Identity, how: str
) -> None:
    """Links below /proc are another process's, and may not be followed."""
    path = "/proc/1/root"
    rules = {"filesystem": {"allowWrite": [path]}}
    daemon = start_daemon(settings={"sandbox": rules} if how == "settings" else {})
    named = identity.write(identity.base / "named" / "s.json", "{}")
    if how == "option":
        daemon.run("run", "--allow-write", path, "--", "true")
    for words in ((), ("--settings", str(named))):
        assert daemon.run("run", *words, "--", "echo", "ran").stdout == "ran\n"
    assert daemon.run("settings", "set", "sandbox.network.strictAllowlist", "true").returncode == 0
    assert daemon.run("restart").returncode == 0
    assert daemon.run("run", "--", "echo", "ran").stdout == "ran\n"


@pytest.mark.parametrize(
    "words",
    [("allow", "path", "HOME/.."), ("allow", "path", "LINK"), ("allow", "path", "/./"), ("allow", "path", "/[e]tc"),
     ("allow", "path", "~/.claude*"), ("settings", "set", "permissions.allow", '["Edit(/LINK/**)"]'),
     ("settings", "set", "permissions.additionalDirectories", '["LINK"]'), ("exclude", "add", "git -c *")],
)  # fmt: skip
def test_other_spellings_need_a_confirmation_as_well(
    daemon: DaemonProcess, identity: Identity, words: tuple[str, ...]
) -> None:
    link = identity.base / "link"
    link.symlink_to(identity.home)
    words = tuple(word.replace("HOME", str(identity.home)).replace("LINK", str(link)) for word in words)
    refused = daemon.run(*words)
    assert refused.returncode != 0 and "allows very much" in refused.stderr, refused
    assert not (identity.home / ".claude/settings.local.json").is_file()
    assert daemon.run(*words, "--yes").returncode == 0


@pytest.mark.parametrize("directory", ["/etc", "/usr/local/sbin"])
def test_a_system_directory_is_not_made_writable_by_a_session(
    daemon: DaemonProcess, identity: Identity, directory: str
) -> None:
    """It is for a rule to open it. Nothing is written: what the mount says is asked for."""
    look = "test -w . && echo open || echo closed"
    done = daemon.run("run", "--cwd", directory, "-c", look)
    assert done.stdout == "closed\n" and f"{directory} is read-only" in done.stderr
    assert "work in another directory" in done.stderr
    if identity.uid == 0 and directory != "/etc":
        opened = daemon.run("run", "--cwd", directory, "--allow-write", directory, "-c", look)
        assert opened.stdout == "open\n" and "read-only" not in opened.stderr
