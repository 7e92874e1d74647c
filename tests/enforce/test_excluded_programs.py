"""What an excluded command runs outside is what the person meant, not what a command has planted."""

from __future__ import annotations

import json

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity

CODE = """
import asyncio, json, os, sys
from sandboxd_client import AsyncClient, Client

given = json.loads(sys.argv[1])
env = {**os.environ, "PATH": given["path"]} if given.get("path") is not None else None

def said(done):
    return [done.sandboxed, done.decision.reason.text if done.decision else ""]

with Client(autostart=False) as box, box.session(settings=given.get("settings")) as session:
    for line in given.get("before", ()):
        session.run(line, env=env, check=True)
    sync = said(session.run(given["line"], decide=True, env=env, capture_output=True))
async def main():
    async with AsyncClient(autostart=False) as box, box.session(settings=given.get("settings")) as session:
        for line in given.get("before", ()):
            await session.run(line, env=env, check=True)
        return said(await session.run(given["line"], decide=True, env=env, capture_output=True))
print(json.dumps([sync, asyncio.run(main())]))
"""
PLANT = "printf '#!/bin/sh\\necho planted > {canary}\\n' > {path} && chmod 755 {path}"


class Around:
    """Programs of a person in `tools` and `bin`, and canaries that say which program ran outside the sandbox."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.base = daemon.identity.base
        self.canary = daemon.identity.home / "canary"
        self.planted = daemon.identity.home / "planted"
        for directory in ("tools", "other", "opened", "opened-by/x/bin"):
            (self.base / directory).mkdir(parents=True)
            daemon.identity.own(self.base / directory)
        for path in ("tools/tool", "tools/mytool", "other/evil"):
            canary = self.planted if "evil" in path else self.canary
            file = daemon.identity.write(self.base / path, f"#!/bin/sh\necho ran > {canary}\n")
            file.chmod(0o755)
        (self.base / "tools/link").symlink_to(self.base / "other/evil")

    def plant(self, path: str) -> str:
        return PLANT.format(path=path, canary=self.planted)

    def run(self, line: str | list[str], **given: object) -> str:
        """The reason of the decision, after the checks that it was followed and that both clients agree."""
        self.canary.unlink(missing_ok=True)
        asked = {key: self.filled(value) for key, value in {"line": line, **given}.items()}
        done = self.daemon.python(CODE, json.dumps(asked))
        assert done.returncode == 0, done.stderr
        sync, other = json.loads(done.stdout)
        assert sync[0] == other[0]
        assert not self.planted.exists(), "a planted program ran outside"
        assert self.canary.exists() is not sync[0], sync
        return str(sync[1])

    def filled(self, value: object) -> object:
        if isinstance(value, str):
            return value.replace("B/", f"{self.base}/")
        return [self.filled(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def around(start_daemon: StartDaemon, identity: Identity) -> Around:
    opened = identity.base / "opened"
    return Around(
        start_daemon(
            settings={
                "sandbox": {
                    "enabled": True,
                    "filesystem": {"allowWrite": [str(opened), f"{opened}-by/*/bin"]},
                    "excludedCommands": ["mytool", f"{identity.base}/tools/*"],
                }
            }
        )
    )


OUTSIDE = "it is on the list"
SAFE = "B/tools:/usr/bin:/bin"


def test_a_path_is_the_file_that_it_leads_to(around: Around) -> None:
    for line in ("B/tools/tool", "B/tools/../tools/tool x", "B/other/../tools/tool", "~/../tools/tool"):
        assert OUTSIDE in around.run(line), line
    for line in (
        "B/tools/../../../../bin/sh -c 'echo x > B/home/planted'",
        "B/tools/./../other/evil",
        "B/tools/link",
        "~/../tools/link",
        "/proc/self/root/B/tools/tool",
        "cd B/tools && ../other/evil",
    ):
        assert OUTSIDE not in around.run(line), line


def test_a_name_is_what_the_path_finds(around: Around) -> None:
    for line in ("mytool x", "timeout 5 mytool", "env mytool", "sh -c 'mytool'", "command mytool"):
        assert OUTSIDE in around.run(line, path=SAFE), line


@pytest.mark.parametrize("line", ["mytool x", "timeout 5 mytool"])
def test_a_planted_name_runs_inside(around: Around, line: str) -> None:
    for entry, place in (
        ("B/work/node_modules/.bin", "node_modules/.bin"),
        ("B/tools/../work/bin", "bin"),
        ("B/opened", "B/opened"),
        ("B/opened/deep", "B/opened/deep"),
        ("B/opened-by/x/bin", "B/opened-by/x/bin"),
        ("./bin", "bin"),
        ("bin", "bin"),
        ("", "."),
        (".", "."),
    ):
        before = [f"mkdir -p {place}", around.plant(f"{place}/mytool")]
        why = around.run(line, path=f"{entry}:{SAFE}", before=before)
        assert "mytool is " in why and ("commands can write" in why or "depends on the working directory" in why)


def test_a_planted_program_before_the_excluded_one_runs_inside(around: Around) -> None:
    for line in ("timeout 5 mytool", "env mytool", "nohup mytool", "sh -c mytool"):
        wrapper = line.split()[0]
        why = around.run(line, path=f"B/work/bin:{SAFE}", before=["mkdir -p bin", around.plant(f"bin/{wrapper}")])
        assert f"{wrapper} is " in why


def test_an_excluded_programs_path_omits_writable_places(around: Around) -> None:
    tool = around.base / "tools/mytool"
    tool.write_text(f"#!/bin/sh\nhelper\necho $PATH > {around.canary}\n")
    before = ["mkdir -p bin", around.plant("bin/helper"), around.plant("helper")]
    assert OUTSIDE in around.run("mytool", path=f"B/work/bin:::.:bin:{SAFE}", before=before)
    assert around.canary.read_text().strip() == around.filled(SAFE)


def test_a_program_by_a_link_that_commands_can_write_runs_inside(around: Around) -> None:
    before = ["mkdir -p bin", f"ln -sf {around.base}/tools/mytool bin/mytool"]
    assert "commands can write" in around.run("mytool", path=f"B/work/bin:{SAFE}", before=before)


def test_temporary_files_of_a_session_run_inside(around: Around) -> None:
    code = """
import sys
from sandboxd_client import Client
with Client(autostart=False) as box, box.session() as one, box.session() as other:
    plant = sys.argv[1].replace("PLACE", "$TMPDIR")
    one.run(plant, check=True)
    place = one.should_sandbox("mytool", dangerously_disable_sandbox=True).env["TMPDIR"]
    for session in (one, other):
        print(session.should_sandbox("mytool", path=place + ":" + sys.argv[2]).sandboxed)
"""
    search = str(around.filled(SAFE))
    done = around.daemon.python(code, around.plant("PLACE/mytool"), search)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_programs_given_as_a_list(around: Around) -> None:
    assert OUTSIDE in around.run(["mytool", "a b"], path=SAFE)
    before = ["mkdir -p bin", around.plant("bin/mytool")]
    assert "commands can write" in around.run(["mytool", "x"], path=f"B/work/bin:{SAFE}", before=before)
    assert OUTSIDE not in around.run(["B/tools/../other/evil"])


def test_a_quoted_tilde_is_a_name_in_the_working_directory(around: Around) -> None:
    before = ["mkdir -p '~' tools", around.plant("tools/tool")]
    for line in ("'~/../tools/tool'", '"~"/../tools/tool', "\\~/../tools/tool"):
        assert OUTSIDE not in around.run(line, before=before)
    assert OUTSIDE not in around.run(["~/../tools/tool"], before=before)
    assert OUTSIDE in around.run("~/../tools/tool", before=before)


def test_lint_tells_of_programs_that_commands_can_write(around: Around) -> None:
    inside = around.base / "work" / "bin"
    assert around.daemon.run("run", "--", "sh", "-c", f"mkdir bin; {around.plant('bin/mytool')}").returncode == 0
    for search, expected in ((f"{inside}:/usr/bin:/bin", 1), ("/usr/bin:/bin", 0)):
        done = around.daemon.run("settings", "lint", "--no-autostart", env={"PATH": search})
        assert (done.returncode, "commands can write" in done.stdout + done.stderr) == (expected, bool(expected)), done


ALLOWING = """
import json, sys
from sandboxd_client import ApprovalRequired, Client

with Client(autostart=False) as box, box.session() as session:
    for line in json.loads(sys.argv[1]):
        try:
            print("ran" if session.run(line, decide=True).sandboxed else "outside")
        except ApprovalRequired:
            print("asked")
"""


def test_a_rule_with_a_path_allows_files_by_what_they_are(start_daemon: StartDaemon, identity: Identity) -> None:
    daemon = start_daemon(
        settings={
            "sandbox": {"enabled": True, "autoAllowBashIfSandboxed": False},
            "permissions": {"allow": ["Bash(./bin/*)", "Bash(cd:*)"]},
        }
    )
    for path in ("bin/tool", "other/evil"):
        script = f"#!/bin/sh\necho ran >> {path.rpartition('/')[2]}.log\n"
        identity.write(identity.workspace / path, script).chmod(0o755)
    (identity.workspace / "bin/link").symlink_to("../other/evil")
    lines = {
        "./bin/tool x": "ran",
        "./other/../bin/tool": "ran",
        f"{identity.workspace}/bin/tool >/dev/null 2>&1": "ran",
        "./bin/../other/evil": "asked",
        "./bin/link": "asked",
        "cd other && ./bin/tool": "asked",
        "./bin/tool > made": "asked",
        "PATH=x; ./bin/tool": "asked",
        "{PATH}>/dev/null ./bin/tool": "asked",
    }
    done = daemon.python(ALLOWING, json.dumps(list(lines)))
    assert dict(zip(lines, done.stdout.split(), strict=True)) == lines, done.stderr
    assert (identity.workspace / "tool.log").read_text() == "ran\n" * 3
    assert not (identity.workspace / "evil.log").exists() and not (identity.workspace / "made").exists()


WITH_PRESET = """
import sys
from sandboxd_client import Client

place, search = sys.argv[1:]
def without(box):
    with box.session() as session:
        return session.should_sandbox("mytool", path=sys.argv[1] + ":" + search)

with Client(autostart=False) as box:
    before = without(box)
    print(before.sandboxed, before.env["PATH"].split(":")[0] == place)
    with box.session(settings={"sandbox": {"presets": ["caches"]}}) as session:
        caches = session.should_sandbox("mytool", path=sys.argv[1] + ":" + search)
        print(caches.sandboxed, "commands can write" in caches.reason.text)
    after = without(box)
    print(after.sandboxed, "commands could write" in after.reason.text)
"""


def test_a_preset_opens_places_where_nothing_is_excluded(around: Around) -> None:
    """The twin: before the preset opens the place, the same program is the person's own."""
    identity = around.daemon.identity
    place = identity.home / ".cargo" / "registry" / "bin"
    identity.write(place / "mytool", "#!/bin/sh\n").chmod(0o755)
    done = around.daemon.python(WITH_PRESET, str(place), str(around.filled(SAFE)))
    assert done.stdout.split() == ["False", "True", "True", "True", "True", "True"], done.stderr


@pytest.mark.parametrize("how", ["session", "option"])
def test_what_was_opened_before_is_not_excluded(start_daemon: StartDaemon, identity: Identity, how: str) -> None:
    """A command of a session that has ended, of a daemon that has stopped, may have left the program."""
    early = identity.base / "early"
    early.mkdir()
    identity.own(early)
    settings = {"sandbox": {"enabled": True, "excludedCommands": [f"{early}/tool", f"{identity.base}/tools/tool"]}}
    around = Around(start_daemon(settings=settings))
    identity.write(early / "tool", f"#!/bin/sh\necho ran > {around.canary}\n").chmod(0o755)
    assert "is on the list" in around.run("B/early/tool")
    if how == "session":
        done = around.daemon.run("run", "--", "true", cwd=early)
    else:
        done = around.daemon.run("run", "--allow-write", str(early), "--", "true")
    assert done.returncode == 0, done
    for again in (False, True):
        if again:
            around.daemon.stop()
            around.daemon = start_daemon(settings=settings)
        assert f"commands could write {early} before" in around.run("B/early/tool")
        assert "is on the list" in around.run("B/tools/tool")
        explained = around.daemon.run("explain", "command", f"{early}/tool").stdout
        assert f"commands could write {early} before" in explained, explained
    lint = around.daemon.run("settings", "lint")
    assert lint.returncode != 0 and f"commands could write {early} before" in lint.stdout + lint.stderr, lint
