"""What stands in a project widens nothing until a person trusts exactly that content, however it came there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.terminal import Terminal
from support.users import Identity

LOCAL = ".claude/settings.local.json"
RULE_OF_NO_PATH = '{"permissions": {"deny": ["Read(~n/x)"]}}'


def directory(identity: Identity, path: Path) -> Path:
    """A directory of this person."""
    path.mkdir(parents=True, exist_ok=True)
    for one in (path, *path.parents):
        if one == identity.base:
            break
        identity.own(one)
    return path


def opening(*paths: Path) -> str:
    return json.dumps({"sandbox": {"filesystem": {"allowWrite": [str(path) for path in paths]}}})


@pytest.fixture
def outside(identity: Identity) -> Path:
    return directory(identity, identity.base / "outside")


def assert_closed(daemon: DaemonProcess, outside: Path, cwd: Path) -> None:
    """A command that runs in `cwd` writes nothing outside, while it runs at all."""
    done = daemon.run("run", "-c", f"touch {outside}/reached; echo ran", cwd=cwd)
    assert "ran" in done.stdout, done.stderr
    assert not (outside / "reached").exists()


def reload(daemon: DaemonProcess) -> None:
    done = daemon.python(
        "from sandboxd_client import Client\nwith Client(autostart=False) as box: box.settings_reload()"
    )
    assert done.returncode == 0, done.stderr


def assert_open(daemon: DaemonProcess, outside: Path, cwd: Path) -> None:
    done = daemon.run("run", "--", "touch", f"{outside}/reached", cwd=cwd)
    assert (outside / "reached").exists(), done.stderr
    (outside / "reached").unlink()


def git(identity: Identity, cwd: Path, *words: str) -> None:
    identity.run(["git", "-c", "user.name=u", "-c", "user.email=u@h.test", *words], cwd=cwd, check=True)


@pytest.mark.parametrize(
    "escape", ["git rm -q --cached " + LOCAL, "mv .git/index .git/index.old", "rm -rf .git", "git reset -q --hard"]
)
def test_a_checked_out_file_that_git_is_told_to_forget(
    daemon: DaemonProcess, identity: Identity, outside: Path, escape: str
) -> None:
    identity.write(identity.workspace / LOCAL, opening(outside))
    for words in (["init", "-q"], ["add", "-f", "."], ["commit", "-q", "-m", "x"]):
        git(identity, identity.workspace, *words)
    daemon.run("run", "-c", escape)
    daemon.run("run", "--", "true")
    assert_closed(daemon, outside, identity.workspace)


@pytest.mark.parametrize("where", ["home/.cache", "home/opened", "home/opened/.deep/er"])
def test_a_project_planted_where_every_command_may_write(
    start_daemon: StartDaemon, identity: Identity, outside: Path, where: str
) -> None:
    place = directory(identity, identity.base / where)
    rules = {"presets": ["caches"], "filesystem": {"allowWrite": [str(identity.home / "opened")]}}
    daemon = start_daemon(settings={"sandbox": rules})
    plant = f"mkdir -p {place}/.claude && printf %s {shlex.quote(opening(outside))} > {place}/{LOCAL}"
    daemon.run("run", "-c", plant)
    assert_closed(daemon, outside, place)


def test_in_the_bare_directory_of_a_linked_worktree(daemon: DaemonProcess, identity: Identity, outside: Path) -> None:
    source, bare = directory(identity, identity.home / "source"), identity.home / "bare"
    git(identity, source, "init", "-q")
    git(identity, source, "commit", "-q", "--allow-empty", "-m", "x")
    git(identity, identity.home, "clone", "-q", "--bare", str(source), str(bare))
    git(identity, bare, "worktree", "add", "-q", "-b", "w", str(identity.workspace / "tree"))
    tree = identity.workspace / "tree"
    plant = f"mkdir -p {bare}/.claude; printf %s {shlex.quote(opening(outside))} > {bare}/{LOCAL}"
    daemon.run("run", "-c", plant, cwd=tree)
    if not (bare / LOCAL).exists():
        identity.write(bare / LOCAL, opening(outside))
    assert_closed(daemon, outside, bare)


@pytest.mark.parametrize("how", ["option", "session"])
def test_a_project_planted_where_one_command_may_write(
    daemon: DaemonProcess, identity: Identity, outside: Path, how: str
) -> None:
    opened = directory(identity, identity.home / "elsewhere")
    place = opened / "sub"
    plant = f"mkdir -p {place}/.claude && printf %s {shlex.quote(opening(outside))} > {place}/{LOCAL}"
    if how == "option":
        done = daemon.run("run", "--allow-write", str(opened), "-c", plant)
        assert done.returncode == 0, done.stderr
    else:
        settings = {"sandbox": {"filesystem": {"allowWrite": [str(opened)]}}}
        code = f"""
from sandboxd_client import Client
with Client(autostart=False) as box, box.session(cwd={str(identity.workspace)!r}, settings={settings!r}) as session:
    print(session.run({plant!r}).exit_status)
"""
        daemon.python(code)
    assert (place / LOCAL).exists()
    assert_closed(daemon, outside, place)


def test_a_subdirectory_after_the_daemon_was_stopped(
    start_daemon: StartDaemon, identity: Identity, outside: Path
) -> None:
    daemon = start_daemon()
    plant = f"mkdir -p sub/.claude && printf %s {shlex.quote(opening(outside))} > sub/{LOCAL}"
    assert daemon.run("run", "-c", plant).returncode == 0
    daemon.stop()
    assert_closed(start_daemon(), outside, identity.workspace / "sub")


def test_an_archive_brings_no_trust(daemon: DaemonProcess, identity: Identity, outside: Path) -> None:
    source = directory(identity, identity.home / "source")
    identity.write(source / LOCAL, opening(outside))
    identity.write(source / ".claude/settings.json", opening(outside))
    place = directory(identity, identity.home / "unpacked")
    subprocess.run(["tar", "-C", str(source), "-cf", str(identity.base / "a.tar"), "."], check=True)
    identity.run(["tar", "-xf", str(identity.base / "a.tar")], cwd=place, check=True)
    assert_closed(daemon, outside, place)


def trust(daemon: DaemonProcess, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return daemon.run("trust", *words, cwd=cwd)


@pytest.mark.parametrize("name", [LOCAL, ".claude/settings.json"])
def test_trusted_content_widens_and_only_that_content(
    start_daemon: StartDaemon, identity: Identity, outside: Path, name: str
) -> None:
    daemon = start_daemon()
    file = identity.write(identity.workspace / name, opening(outside))
    assert_closed(daemon, outside, identity.workspace)
    refused = trust(daemon)
    assert refused.returncode != 0 and str(outside) in refused.stdout and f"{file}:1" in refused.stdout
    assert_closed(daemon, outside, identity.workspace)
    assert trust(daemon, "--yes").returncode == 0
    assert_open(daemon, outside, identity.workspace)
    daemon.stop()
    daemon = start_daemon()
    assert_open(daemon, outside, identity.workspace)
    identity.write(file, opening(outside, identity.home / "more"))
    reload(daemon)
    done = daemon.run("run", "-c", f"touch {outside}/reached")
    assert not (outside / "reached").exists() and "not the content that was trusted" in done.stderr
    assert str(identity.home / "more") in done.stderr, "the difference"
    identity.write(file, opening(outside))
    reload(daemon)
    assert_open(daemon, outside, identity.workspace)
    assert trust(daemon, "--remove").returncode == 0
    assert_closed(daemon, outside, identity.workspace)


@pytest.mark.parametrize("broken", ["{", "directory", "link", RULE_OF_NO_PATH])
def test_trusted_content_that_breaks_widens_no_longer(
    start_daemon: StartDaemon, identity: Identity, outside: Path, broken: str
) -> None:
    """Nor does it hold back a rule that is written elsewhere, or the end of trust."""
    secret = identity.write(identity.home / "secret", "s\n")
    daemon = start_daemon()
    file = identity.write(identity.workspace / LOCAL, opening(outside))
    assert trust(daemon, "--yes").returncode == 0
    assert_open(daemon, outside, identity.workspace)
    file.unlink()
    if broken == "directory":
        identity.write(file / "x", "")
    elif broken == "link":
        file.symlink_to("nowhere")
    else:
        identity.write(file, broken)
    assert_closed(daemon, outside, identity.workspace)
    assert daemon.run("run", "--", "cat", str(secret)).stdout == "s\n"
    denied = {"sandbox": {"filesystem": {"denyRead": [str(secret)]}}}
    identity.write(identity.home / ".claude/settings.json", json.dumps(denied))
    done = daemon.run("run", "--", "cat", str(secret))
    assert not done.stdout and "denied" in done.stderr, done.stderr
    assert trust(daemon, "--remove").returncode == 0
    assert_closed(daemon, outside, identity.workspace)


def test_trust_is_for_one_directory(daemon: DaemonProcess, identity: Identity, outside: Path) -> None:
    identity.write(identity.workspace / LOCAL, opening(outside))
    sub = directory(identity, identity.workspace / "sub")
    identity.write(sub / LOCAL, opening(outside))
    assert trust(daemon, "--yes").returncode == 0
    assert_closed(daemon, outside, sub)
    assert_open(daemon, outside, identity.workspace)
    link = identity.home / "link"
    link.symlink_to(identity.workspace)
    assert_open(daemon, outside, link)


def test_the_records_are_out_of_reach(start_daemon: StartDaemon, identity: Identity, outside: Path) -> None:
    """Whatever opens the home: nothing can be recorded, moved away or put in its place from inside."""
    rules: dict[str, Any] = {"filesystem": {"allowWrite": ["~", "~/.local/state/sandboxd/trust", "~/.local"]}}
    daemon = start_daemon(settings={"sandbox": {**rules, "presets": ["caches"]}})
    identity.write(identity.workspace / LOCAL, opening(outside))
    assert trust(daemon, "--yes").returncode == 0
    store = identity.home / ".local/state/sandboxd/trust"
    (record,) = store.glob("*.json")
    before = record.read_bytes()
    other = directory(identity, identity.base / "other")
    identity.write(other / LOCAL, opening(outside))
    name = hashlib.sha256(os.fsencode(str(other))).hexdigest() + ".json"
    forged = before.decode().replace(str(identity.workspace), str(other))
    attack = f"""
    cd {identity.home}
    for d in .local .local/state .local/state/sandboxd .local/state/sandboxd/trust; do mv $d $d.old; done
    mkdir -p .local/state/sandboxd/trust
    printf %s {shlex.quote(forged)} > .local/state/sandboxd/trust/{name}
    rm -rf .local/state/sandboxd/trust; ln -s {identity.workspace} .local/state/sandboxd/trust
    mount --bind {identity.workspace} .local/state/sandboxd/trust
    ls .local/state/sandboxd/trust && echo listed
    """
    for cwd in (identity.workspace, identity.home):
        done = daemon.run("run", "-c", attack, cwd=cwd)
        assert "listed" not in done.stdout, done.stderr
    assert [one.name for one in store.glob("*.json")] == [record.name] and record.read_bytes() == before
    assert_closed(daemon, outside, other)


def test_nothing_is_trusted_from_inside(daemon: DaemonProcess, identity: Identity, outside: Path) -> None:
    identity.write(identity.workspace / LOCAL, opening(outside))
    words = shlex.join(identity.command("trust", "--yes", "--no-autostart"))
    socket = f"SANDBOXD_SOCKET={daemon.socket}"
    daemon.run("run", "-c", f"{socket} {words}")
    assert_closed(daemon, outside, identity.workspace)
    assert trust(daemon, "--list").stdout.startswith("no settings")


def test_records_are_not_made_from_inside_where_there_are_none(
    start_daemon: StartDaemon, identity: Identity, outside: Path
) -> None:
    """Before anything was trusted the directory is not there."""
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"allowWrite": ["~"]}}})
    identity.write(identity.workspace / LOCAL, opening(outside))
    assert trust(daemon, "--yes").returncode == 0
    (record,) = (identity.home / ".local/state/sandboxd/trust").glob("*.json")
    forged, name = record.read_text(), record.name
    assert trust(daemon, "--remove").returncode == 0
    shutil.rmtree(identity.home / ".local")
    attack = f"""
    cd {identity.home}
    for d in .local .local/state .local/state/sandboxd .local/state/sandboxd/trust; do mv $d $d.old; done
    rmdir .local/state/sandboxd/trust
    mkdir -p .local/state/sandboxd/trust
    printf %s {shlex.quote(forged)} > .local/state/sandboxd/trust/{name}
    mkdir -p made/trust; printf %s {shlex.quote(forged)} > made/trust/{name}; mv made .local/state/sandboxd
    mkdir -p .local/share/works && echo works
    """
    for cwd in (identity.workspace, identity.home):
        done = daemon.run("run", "-c", attack, cwd=cwd)
        assert "works" in done.stdout, done.stderr
        assert_closed(daemon, outside, identity.workspace)


@pytest.mark.parametrize("place", ["workspace", "opened", "link", "hard link", "flag"])
def test_a_named_settings_file_that_a_command_could_write(
    start_daemon: StartDaemon, identity: Identity, outside: Path, place: str
) -> None:
    """It only tightens until it is trusted; one from elsewhere widens."""
    opened = directory(identity, identity.home / "opened")
    planted = (opened if place == "opened" else identity.workspace) / "needed.json"
    named = planted
    identity.write(identity.base / "own.json", opening(outside))
    env = {}
    if place == "link":
        named = identity.home / "needed.json"
        named.symlink_to(planted)
    elif place == "flag":
        env["SANDBOXD_FLAG_SETTINGS"] = str(planted)
        identity.write(planted, opening(outside))  # protected while a daemon has the variable, and not before
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"allowWrite": [str(opened)]}}}, env=env)
    if place != "flag":
        done = daemon.run("run", "-c", f"printf %s {shlex.quote(opening(outside))} > {planted}")
        assert done.returncode == 0, done.stderr
    if place == "hard link":
        named = identity.home / "needed.json"
        os.link(planted, named)
    words = () if place == "flag" else ("--settings", str(named))
    reload(daemon)
    done = daemon.run("run", *words, "-c", f"touch {outside}/reached; echo ran")
    assert "ran" in done.stdout and not (outside / "reached").exists(), done.stderr
    assert "sandboxd trust" in done.stderr
    assert trust(daemon, str(named), "--yes").returncode == 0
    daemon.run("run", *words, "--", "touch", f"{outside}/reached")
    assert (outside / "reached").exists()
    (outside / "reached").unlink()
    identity.write(planted, opening(outside, identity.home))
    reload(daemon)
    daemon.run("run", *words, "--", "touch", f"{outside}/reached")
    assert not (outside / "reached").exists()
    if place != "flag":
        daemon.run("run", "--settings", str(identity.base / "own.json"), "--", "touch", f"{outside}/reached")
        assert (outside / "reached").exists()


@pytest.mark.parametrize("at", ["the name", "a directory"])
def test_a_named_file_by_a_link_that_commands_can_write(daemon: DaemonProcess, outside: Path, at: str) -> None:
    """It is for them to say which of the person's own files it names."""
    identity = daemon.identity
    lax = identity.write(identity.home / "lax" / "needed.json", opening(outside))
    leads = lax if at == "the name" else lax.parent
    assert daemon.run("run", "--", "ln", "-s", str(leads), "way").returncode == 0
    (identity.home / "mine").symlink_to(identity.workspace / "way")
    named = identity.home / "mine" if at == "the name" else identity.home / "mine" / "needed.json"
    done = daemon.run("run", "--settings", str(named), "-c", f"touch {outside}/reached; echo ran")
    assert "ran" in done.stdout and not (outside / "reached").exists(), done.stderr
    daemon.run("run", "--settings", str(lax), "--", "touch", f"{outside}/reached")
    assert (outside / "reached").exists()


@pytest.mark.parametrize("how", ["option", "flag", "configuration"])
@pytest.mark.parametrize("opened_by", ["workspace", "rule", "option"])
def test_a_named_file_planted_before_the_daemon_was_stopped(
    start_daemon: StartDaemon, identity: Identity, outside: Path, how: str, opened_by: str
) -> None:
    """In a directory without any mark of a project. What lies where no command could write is believed as before."""
    plain, other = directory(identity, identity.base / "plain"), directory(identity, identity.base / "other")
    own = directory(identity, identity.base / "own")
    rules = {"sandbox": {"filesystem": {"allowWrite": [str(plain)]}}} if opened_by == "rule" else {}
    daemon = start_daemon(settings=rules)
    words = ("--allow-write", str(plain)) if opened_by == "option" else ()
    plant = f"mkdir {plain}/c; printf %s {shlex.quote(opening(outside))} > {plain}/c/settings.json"
    done = daemon.run("run", *words, "-c", plant, cwd=plain if opened_by == "workspace" else other)
    assert (plain / "c/settings.json").exists(), done.stderr
    daemon.stop()
    identity.write(own / "c/settings.json", opening(outside))
    for place, believed in ((plain, False), (own, True)):
        named = place / "c/settings.json"
        variables = {
            "flag": {"SANDBOXD_FLAG_SETTINGS": str(named)},
            "configuration": {"SANDBOXD_CONFIG_HOME": str(named.parent)},
        }
        daemon = start_daemon(settings={}, env=variables.get(how, {}))
        given = ("--settings", str(named)) if how == "option" else ()
        done = daemon.run("run", *given, "-c", f"touch {outside}/reached; echo ran", cwd=other)
        assert "ran" in done.stdout, done.stderr
        assert (outside / "reached").exists() is believed, done.stderr
        daemon.stop()


@pytest.mark.parametrize("how", ["file", "session", "grant"])
def test_a_file_planted_in_a_place_that_an_earlier_daemon_opened(
    start_daemon: StartDaemon, identity: Identity, outside: Path, how: str
) -> None:
    """Nothing marks the place, which may be the file alone."""
    opened = directory(identity, identity.home / "elsewhere")
    if how == "file":
        identity.write(opened / "sub/needed.json", "{}")
    daemon = start_daemon()
    where = opened / "sub/needed.json"
    plant = f"mkdir -p {where.parent}; printf %s {shlex.quote(opening(outside))} > {where}"
    settings = {"sandbox": {"filesystem": {"allowWrite": [str(opened)]}}}
    if how == "file":
        daemon.run("run", "--allow-write", str(where), "-c", plant)
    elif how == "session":
        code = f"""
from sandboxd_client import Client
with Client(autostart=False) as box, box.session(cwd={str(identity.workspace)!r}, settings={settings!r}) as session:
    session.run({plant!r})
"""
        daemon.python(code)
    else:
        code = f"""
import os
from sandboxd_client import Client
subscribed, ready = os.pipe()
asking = os.fork()
if asking:  # a person, who is not the process that asks
    with Client(autostart=False) as person:
        person.permission_subscribe()
        os.write(ready, b"x")
        for said in person.notifications(60):
            if said.method == "sandbox_permission_request":
                person.permission_respond(said.params.request_id, "allow", scope="session")
                break
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(asking, 0)[1]))
os.read(subscribed, 1)
with Client(autostart=False) as box, box.session(cwd={str(identity.workspace)!r}) as session:
    box.permission_request("path", session_id=session.id, path={str(opened)!r}, write=True)
    session.run({plant!r})
"""
        asked = daemon.python(code)
        assert asked.returncode == 0, asked.stderr
    assert where.read_text() == opening(outside), "it was planted"
    own = identity.write(directory(identity, identity.home / "own") / "mine.json", opening(outside))
    daemon.stop()
    daemon = start_daemon()
    done = daemon.run("run", "--settings", str(where), "-c", f"touch {outside}/reached; echo ran")
    assert "ran" in done.stdout and not (outside / "reached").exists(), done.stderr
    assert f"sandboxd trust {where}" in done.stderr
    daemon.run("run", "--settings", str(own), "--", "touch", f"{outside}/reached")
    assert (outside / "reached").exists(), "a file of the person's own widens"


def test_what_was_learned_under_a_name_is_out_of_reach(
    start_daemon: StartDaemon, identity: Identity, outside: Path
) -> None:
    """Also where the whole home is open; a file of that name where the person stands is never taken silently."""
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"allowWrite": ["~"]}}})
    attempt = ("-c", f"touch {outside}/reached")
    done = daemon.run("run", "--learn", "needed.json", *attempt)
    learned = identity.home / ".local/state/sandboxd/trust/learned/needed.json"
    assert not (outside / "reached").exists() and str(outside) in learned.read_text(), done.stderr
    before = learned.read_bytes()
    planted = shlex.quote(opening(identity.base))
    for cwd in (identity.workspace, identity.home):
        daemon.run("run", "-c", f"cat {learned} && echo seen; printf %s {planted} > {learned}; rm {learned}", cwd=cwd)
        daemon.run("run", "-c", f"mv {learned.parent.parent} {identity.home}/old", cwd=cwd)
    assert learned.read_bytes() == before
    daemon.stop()
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"allowWrite": ["~"]}}})
    done = daemon.run("run", "--settings", "needed.json", *attempt)
    assert (outside / "reached").exists(), done.stderr
    (outside / "reached").unlink()
    daemon.run("run", "-c", f"printf %s {planted} > needed.json")
    done = daemon.run("run", "--settings", "needed.json", *attempt)
    assert done.returncode != 0 and "learned" in done.stderr and not (outside / "reached").exists()


@pytest.mark.parametrize("answer", ["y", "n", "", "changed"])
def test_trust_at_a_terminal(daemon: DaemonProcess, identity: Identity, outside: Path, answer: str) -> None:
    """What is trusted is what was shown, also when a command writes while the question stands there."""
    file = identity.write(identity.workspace / LOCAL, opening(outside))
    ids = (f"--reuid={identity.uid}", f"--regid={identity.gid}", "--clear-groups")
    argv = [*(() if identity.is_me else ("setpriv", *ids)), *identity.command("trust")]
    with Terminal(argv, env=daemon.environment(), cwd=identity.workspace) as opened:
        opened.expect(re.escape(f"{file}:1"))
        opened.expect(r"\[y/N\]")
        if answer == "changed":
            identity.write(file, opening(outside, identity.home))
        opened.type("y" if answer == "changed" else answer)
        assert (opened.wait() == 0) is (answer == "y")
        assert answer != "changed" or "not what was shown" in opened.text
    (assert_open if answer == "y" else assert_closed)(daemon, outside, identity.workspace)
    listed = trust(daemon, "--list").stdout
    assert (str(identity.workspace) in listed) is (answer == "y")


def test_trust_that_another_daemon_records_or_removes(daemon: DaemonProcess, identity: Identity, outside: Path) -> None:
    """Both daemons of one home believe the same at their next command."""
    socket = directory(identity, identity.base / "other-runtime") / "sandboxd.sock"
    socket.parent.chmod(0o700)

    def other(*words: str) -> subprocess.CompletedProcess[str]:
        env = identity.environment(SANDBOXD_SOCKET=str(socket))
        return identity.run(identity.command(*words), cwd=identity.workspace, env=env)

    identity.write(identity.workspace / LOCAL, opening(outside))
    assert_closed(daemon, outside, identity.workspace)
    try:
        done = other("trust", "--yes")
        assert done.returncode == 0, done.stderr
        assert socket.exists() and socket != daemon.socket
        assert_open(daemon, outside, identity.workspace)
        assert other("trust", "--remove").returncode == 0
        assert_closed(daemon, outside, identity.workspace)
    finally:
        other("stop")


SANDBOXED = """
import sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    print(box.should_sandbox(sys.argv[1], cwd=".").sandboxed)
"""


def is_sandboxed(daemon: DaemonProcess, command: str) -> bool:
    done = daemon.python(SANDBOXED, command, cwd=daemon.identity.workspace)
    assert done.returncode == 0, done.stderr
    return done.stdout == "True\n"


def test_what_a_person_writes_with_project_is_trusted(
    start_daemon: StartDaemon, identity: Identity, outside: Path
) -> None:
    """`allow`, `deny` and `exclude`, one after the other: each time the whole file is what a person has said."""
    daemon = start_daemon(settings={"sandbox": {"enabled": True}})
    work = identity.workspace
    done = daemon.run("allow", "path", str(outside), "--project", cwd=work)
    assert done.returncode == 0, done.stderr
    assert_open(daemon, outside, work)
    assert is_sandboxed(daemon, "git status")
    done = daemon.run("exclude", "add", "git status", "--project", cwd=work)
    assert done.returncode == 0, done.stderr
    assert not is_sandboxed(daemon, "git status")
    assert_open(daemon, outside, work)
    (outside / "reached").unlink(missing_ok=True)
    done = daemon.run("deny", "path", str(outside), "--project", cwd=work)
    assert done.returncode == 0, done.stderr
    assert_closed(daemon, outside, work)
    assert not is_sandboxed(daemon, "git status")
    assert identity.run(["test", "-e", str(identity.home / LOCAL)]).returncode, "the user's own file is untouched"


@pytest.mark.parametrize("words", [("allow", "path", "OUTSIDE"), ("deny", "path", "/none"), ("exclude", "add", "true")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_stands_beside_a_rule_with_project_is_not_trusted(
    start_daemon: StartDaemon, identity: Identity, outside: Path, when: str, words: tuple[str, ...]
) -> None:
    """Neither what a command had planted in the file before the person wrote, nor what one plants afterwards; what
    the person has denied holds all the same."""
    daemon = start_daemon(settings={"sandbox": {"enabled": True}})
    work = identity.workspace
    other = directory(identity, identity.base / "other")
    rule = tuple(str(outside) if word == "OUTSIDE" else word for word in words)
    if when == "before":
        identity.write(directory(identity, work / ".claude").parent / LOCAL, opening(other))
    done = daemon.run(*rule, "--project", cwd=work)
    assert done.returncode == 0, done.stderr
    if when == "after":
        text = json.loads((work / LOCAL).read_text())
        text["sandbox"].setdefault("filesystem", {}).setdefault("allowWrite", []).append(str(other))
        identity.write(work / LOCAL, json.dumps(text))
    assert_closed(daemon, other, work)
    assert_closed(daemon, outside, work)
    assert is_sandboxed(daemon, "true")
    if rule[0] == "allow" and when == "before":
        assert "still not allowed" in done.stderr
