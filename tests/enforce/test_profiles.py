"""Profiles of whole agents, and settings that are imported and exported."""

from __future__ import annotations

import json
from pathlib import Path

from sandboxd.cli.rules.profile import built_in, rules_of, settings_for
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.origins import Source
from support.daemons import DaemonProcess, StartDaemon

PROFILES = {"mine": ["extends:aider", "host:ok.test", "write:~/mine/", "closed:~/mine/hooks", "set:GREETING=hi"]}


def test_every_profile_is_valid_settings_with_reasons() -> None:
    assert set(built_in()) == {"claude-code", "codex", "gemini", "opencode", "aider"}
    for name in built_in():
        rules = rules_of(name, {})
        assert {rule.kind for rule in rules} >= {"host", "write"} and all(len(rule.why) > 5 for rule in rules)
        assert layer_from_values(settings_for(rules)[0], Source.CLI).problems == ()


def test_a_profile_opens_what_it_names_and_no_more(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"profiles": PROFILES}})
    home = daemon.identity.home
    line = "touch ~/mine/state ~/.aider/x; touch ~/mine/hooks ~/outside; echo $GREETING $AIDER_ANALYTICS"
    done = daemon.run("run", "--profile", "mine", "--", "sh", "-c", line)
    assert done.stdout == "hi false\n", done
    assert (home / "mine" / "state").exists() and (home / ".aider" / "x").exists()
    assert not (home / "mine" / "hooks").exists() and not (home / "outside").exists()
    assert daemon.run("run", "--", "touch", f"{home}/mine/more").returncode == 1
    shown = daemon.run("profile", "show", "mine", "--json")
    assert ["host:ok.test", "your settings"] in json.loads(shown.stdout)["rules"]
    assert "mine" in daemon.run("profile", "list").stdout and daemon.run("profile", "lint").returncode == 0
    assert "did you mean mine?" in daemon.run("run", "--profile", "mime", "--", "true").stderr
    daemon.identity.write(home / ".claude" / "settings.json", json.dumps({"sandbox": {"profiles": {"mine": ["bad"]}}}))
    wrong = daemon.run("profile", "lint")
    assert wrong.returncode == 1 and wrong.stdout == "mine: bad is no rule of a profile\n"
    assert daemon.run("run", "--profile", "mine", "--", "touch", "ran").returncode == 125
    assert not (daemon.identity.workspace / "ran").exists()


STARTED = {
    "claude-code": ".claude.json .claude/local/claude .claude/shell-snapshots/s.sh .claude/session-env/s.sh "
    ".claude/settings.json .claude/plugins/p .claude/output-styles/o.md .claude/rules/r.md .claude/statusline.sh",
    "codex": ".codex/config.toml .codex/.env .codex/packages/codex .codex/bin/rg .codex/AGENTS.md .codex/memories/m",
    "gemini": ".gemini/settings.json .gemini/tmp/bin/rg .gemini/system.md .gemini/agents/a.md .gemini/hooks/h",
    "opencode": ".local/share/opencode/bin/x .local/share/opencode/plugin/p .cache/opencode/node_modules/n",
}
"""Files that later sessions of an agent, or those outside, start or obey."""


def test_a_profile_closes_what_later_sessions_start(daemon: DaemonProcess) -> None:
    for profile, names in STARTED.items():
        for name in names.split():
            daemon.identity.write(daemon.identity.home / name, "{}")
        state = next(rule.value for rule in rules_of(profile, {}) if rule.kind == "write")
        line = f"for f in {names}; do echo evil >>~/$f; done 2>/dev/null; echo made >{state}made"
        assert daemon.run("run", "--profile", profile, "--", "sh", "-c", line).returncode == 0
        written = [name for name in names.split() if (daemon.identity.home / name).read_text() != "{}"]
        assert (profile, written) == (profile, [])
        assert (daemon.identity.home / state[2:] / "made").exists()


def test_imported_settings_are_used_by_name(daemon: DaemonProcess) -> None:
    identity = daemon.identity
    source = {
        "network": {"allowedDomains": ["ok.test"], "deniedDomains": []},
        "filesystem": {"denyRead": [], "allowWrite": [".", "~/shared"], "denyWrite": ["kept"]},
        "enableWeakerNestedSandbox": True,
    }
    file = identity.write(identity.home / "srt.json", json.dumps(source))
    (identity.home / "shared").mkdir()
    identity.own(identity.home / "shared")
    done = daemon.run("import", str(file), "--to", "srt")
    assert done.returncode == 0 and "left out: enableWeakerNestedSandbox" in done.stderr, done
    run = daemon.run("run", "--settings", "srt", "--", "sh", "-c", "touch ~/shared/f made; touch kept ~/f")
    assert run.returncode == 1, run
    made = [(identity.workspace / name).exists() for name in ("made", "kept")]
    assert (
        made == [True, False] and (identity.home / "shared" / "f").exists() and not Path(identity.home / "f").exists()
    )
    again = daemon.run("import", str(file), "--to", "srt")
    assert again.returncode == 125 and "File exists" in again.stderr
    source["network"] = {"httpProxyPort": 1}
    identity.write(file, json.dumps(source))
    refused = daemon.run("import", str(file))
    assert (refused.returncode, refused.stdout) == (1, "") and "cannot be kept: network.httpProxyPort" in refused.stderr


def test_the_policy_is_exported_with_a_report(start_daemon: StartDaemon) -> None:
    settings = {
        "permissions": {"deny": ["Bash(rm:*)", "Read(~/.ssh/**)"]},
        "sandbox": {"network": {"allowedDomains": [".ok.test"]}, "excludedCommands": ["docker"]},
    }
    daemon = start_daemon(settings=settings)
    done = daemon.run("export", "--srt")
    out = json.loads(done.stdout)
    assert done.returncode == 1 and "Bash(rm:*)" in done.stderr and "excluded: docker" in done.stderr
    assert out["network"]["allowedDomains"] == ["ok.test", "*.ok.test"]
    assert out["filesystem"]["allowWrite"] == ["."] and f"{daemon.identity.home}/.ssh" in out["filesystem"]["denyRead"]
