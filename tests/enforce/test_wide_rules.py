"""Rules that give very much away are not written without a second word of a person."""

from __future__ import annotations

import pytest

from support.daemons import DaemonProcess


@pytest.mark.parametrize(
    "words",
    [("allow", "path", "/"), ("allow", "path", "~"), ("allow", "path", "~/.claude/settings.json"),
     ("allow", "domain", "169.254.169.254"), ("exclude", "add", "python3.11"), ("exclude", "add", "git"),
     ("settings", "set", "sandbox.excludedCommands", '["vim"]')],
)  # fmt: skip
def test_a_rule_that_gives_very_much_away_needs_a_confirmation(daemon: DaemonProcess, words: tuple[str, ...]) -> None:
    refused = daemon.run(*words)
    assert refused.returncode == 125 and "gives very much away" in refused.stderr and "--yes" in refused.stderr
    assert not (daemon.identity.home / ".claude" / "settings.local.json").exists()
    done = daemon.run(*words, "--yes")
    assert done.returncode == 0, done.stderr
    assert words[-1].strip('[]"~/') in (daemon.identity.home / ".claude" / "settings.local.json").read_text()
