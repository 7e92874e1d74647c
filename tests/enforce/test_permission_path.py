"""From a decision to the user and back, with real processes: who is asked, what an answer does, what is told."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.terminal import Terminal
from support.users import CHECKOUT
from support.waiting import wait_until


def terminal(daemon: DaemonProcess, command: str, **changes: str) -> Terminal:
    identity = daemon.identity
    ids = (f"--reuid={identity.uid}", f"--regid={identity.gid}", "--clear-groups")
    argv = [*(() if identity.is_me else ("setpriv", *ids)), *identity.command(command)]
    return Terminal(argv, env=daemon.environment(**changes), cwd=identity.workspace)


@pytest.fixture
def desk(daemon: DaemonProcess) -> Iterator[Terminal]:
    """`sandboxd prompts`, in which a user answers."""
    with terminal(daemon, "prompts") as opened:
        opened.expect("waiting for questions")
        yield opened


def begin(daemon: DaemonProcess, *arguments: str) -> subprocess.Popen[str]:
    """Start `sandboxd run` without a terminal."""
    pipe = subprocess.PIPE
    return daemon.popen("run", *arguments, start_new_session=True, stdout=pipe, stderr=pipe, text=True)


def local(daemon: DaemonProcess) -> object:
    file = daemon.identity.home / ".claude" / "settings.local.json"
    return json.loads(file.read_text()) if file.exists() else {}


def test_a_run_without_a_terminal_is_answered_in_another(daemon: DaemonProcess, desk: Terminal) -> None:
    """Each scope of a yes to an override, and a no; the rule of an exclusion is the one that was chosen."""
    (session,) = re.findall(r"s-\w+", daemon.run("session", "start").stdout)
    file = daemon.identity.home / "made"
    show = "printenv SANDBOX_RUNTIME || echo outside"
    for key, arguments, more in (("n", ("-c", show), []), ("y", ("-c", show), []), ("s", ("-c", show), ["again"])):
        with begin(daemon, "--session", session, "--disable-sandbox", *arguments) as running:
            desk.expect("May a command run OUTSIDE the sandbox:")
            desk.expect("careful  outside the sandbox it can read, change and send whatever you can")
            desk.expect("no answer in")
            desk.press(key)
            out, err = running.communicate(timeout=60)
        assert (running.returncode, out) == ((125, "") if key == "n" else (0, "outside\n")), err
        if key == "n":  # remembered for the session, so that a program which tries again tires out no user
            assert "denied" in err
            (session,) = re.findall(r"s-\w+", daemon.run("session", "start").stdout)
        for _ in more:
            assert begin(daemon, "--session", session, "--disable-sandbox", *arguments).communicate()[0] == "outside\n"
    with begin(daemon, "--session", session, "--disable-sandbox", "--", "touch", str(file)) as running:
        desk.expect(re.escape(f"[a] yes, always (rule touch {file} in sandbox.excludedCommands)"))
        desk.expect("no answer in")
        desk.press("a")
        assert running.wait(60) == 0 and file.exists()
    assert local(daemon) == {"sandbox": {"excludedCommands": [f"touch {file}"]}}
    file.unlink()
    assert daemon.run("run", "--decide", "--", "touch", str(file)).returncode == 0 and file.exists()


def test_the_screen_shows_what_was_blocked_and_answers(start_daemon: StartDaemon, origin: Origin) -> None:
    """In `sandboxd ui`: a host that a rule refuses, and a question after whose answer the command goes on."""
    names = {"ok.test": "127.0.0.1", "denied.test": "127.0.0.1"}
    daemon = start_daemon(resolve=names, settings={"sandbox": {"network": {"deniedDomains": ["denied.test"]}}})
    line = f"curl -sS -o /dev/null -w '%{{http_code}} ' {origin.url('denied.test')}; curl -sS {origin.url('ok.test')}"
    with terminal(daemon, "ui", TERM="xterm-256color", NO_COLOR="1") as screen:
        screen.resize(24, 80)
        screen.expect("0 running")
        with begin(daemon, "-c", line) as running:
            screen.expect("1 question")
            screen.press("3")
            screen.expect(r"network: rule denied\.test")
            screen.press("2")
            screen.expect(rf"May a command reach ok\.test:{origin.port}\?")
            screen.expect(r"\[y\] yes, once")

            def answered() -> bool:
                screen.press("y")  # the first may be too early: the question has just appeared
                return running.poll() is not None

            wait_until(answered)
            assert running.communicate()[0] == f"403 {origin.body.decode()}"
        screen.press("q")
        assert screen.wait() == 0
    assert [host for _, _, host in origin.requests] == [f"ok.test:{origin.port}"]


AGENT = """
import subprocess
line = "sandboxd run --session auto --disable-sandbox -c 'printenv SANDBOX_RUNTIME || echo outside'; true"
for _ in range(2): print(subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, text=True).stdout.strip() or "no")
"""


def test_a_yes_is_shared_by_the_commands_of_an_agent(daemon: DaemonProcess, desk: Terminal) -> None:
    """And by no other agent's."""
    for key, said in (("s", "outside\noutside\n"), ("n", "no\nno\n")):
        argv = daemon.identity.python("-c", AGENT)
        pipe = subprocess.PIPE
        with daemon.identity.popen(argv, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as running:
            desk.expect("May a command run OUTSIDE the sandbox:")
            desk.expect("no answer in")
            desk.press(key)
            assert running.communicate(timeout=60)[0] == said


@pytest.mark.parametrize("strict", [False, True])
def test_whether_a_command_may_run_is_asked_too(daemon: DaemonProcess, desk: Terminal, strict: bool) -> None:
    rules = {"sandbox": {"autoAllowBashIfSandboxed": False}} if strict else {"permissions": {"ask": ["Bash(date:*)"]}}
    daemon.identity.write(daemon.identity.home / ".claude" / "settings.json", json.dumps(rules))
    show = "date +$SANDBOX_RUNTIME"
    for key, ends in (("n", (125, "")), ("a" if strict else "y", (0, "1\n"))):
        with begin(daemon, "--decide", "-c", show) as running:
            desk.expect("May a command run:")
            desk.expect("no answer in")
            desk.press(key)
            assert (running.communicate(timeout=60)[0], running.returncode) == ends[::-1]
    assert local(daemon) == ({"permissions": {"allow": [f"Bash({show})"]}} if strict else {})
    if strict:
        assert daemon.run("run", "--decide", "-c", show).stdout == "1\n"
    assert daemon.run("run", "-c", show).stdout == "1\n", "run alone asks for no decision"


ASKING = """
import asyncio, json
from sandboxd_client import AsyncClient, Client

OPTIONS = dict(decide=True, capture_output=True, text=True)
RUNS = (("date +a$SANDBOX_RUNTIME", {}), ("echo b${SANDBOX_RUNTIME-}", {"dangerously_disable_sandbox": True}))

async def ask():
    async with AsyncClient(autostart=False, role="agent") as box:
        return [(await box.run(line, **OPTIONS, **wish)).stdout for line, wish in RUNS]

with Client(autostart=False, role="agent") as box:
    print(json.dumps([[box.run(line, **OPTIONS, **wish).stdout for line, wish in RUNS], asyncio.run(ask())]))
"""


def test_both_clients_ask_through_subscribers(daemon: DaemonProcess) -> None:
    rules = {"permissions": {"ask": ["Bash(date:*)"]}}
    daemon.identity.write(daemon.identity.home / ".claude" / "settings.json", json.dumps(rules))
    code = (CHECKOUT / "examples" / "approve.py").read_text()
    argv = daemon.identity.python("-c", code, "once", "4")
    with daemon.identity.popen(argv, env=daemon.environment(), stdout=subprocess.PIPE, text=True) as answering:
        assert answering.stdout is not None and answering.stdout.readline() == "waiting for questions\n"
        done = daemon.python(ASKING)
        kinds = [line.partition(":")[0] for line in answering.stdout]
    assert kinds == ["command", "sandbox_override"] * 2
    assert json.loads(done.stdout) == [["a1\n", "b\n"]] * 2


OFF = """
import asyncio, json, warnings
from sandboxd_client import AsyncClient, Client, SandboxOffWarning

def messages(caught):
    return [str(one.message) for one in caught if one.category is SandboxOffWarning]

async def twice():
    async with AsyncClient(autostart=False) as box, box.session() as session:
        runs = [await each.run("true", decide=True) for each in (box, box, session, session)]
        return [run.sandboxed for run in runs]

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with Client(autostart=False) as box, box.session() as session:
        runs = [each.run("true", decide=True).sandboxed for each in (box, box, session, session)]
    blocking = messages(caught)
    caught.clear()
    asynchronous = asyncio.run(twice())
    print(json.dumps([runs, asynchronous, blocking, messages(caught)]))
"""


def test_off_is_told_and_on_is_the_default(daemon: DaemonProcess) -> None:
    assert json.loads(daemon.python(OFF).stdout) == [[True] * 4, [True] * 4, [], []]
    assert daemon.run("status").stdout.startswith("running:")
    file = daemon.identity.write(
        daemon.identity.home / ".claude" / "settings.json", '{\n"sandbox": {"enabled": false}}'
    )
    runs, asynchronous, blocking, others = json.loads(daemon.python(OFF).stdout)
    assert runs == asynchronous == [False] * 4
    assert len(blocking) == len(others) == 2 and len({*blocking, *others}) == 3, "once for each session"
    assert all(f"{file}:2" in text for text in (*blocking, *others))
    ran = daemon.run("run", "--decide", "-c", "echo ${SANDBOX_RUNTIME-bare}")
    assert ran.stdout == "bare\n" and f"{file}:2" in ran.stderr
    assert daemon.run("run", "-c", "echo $SANDBOX_RUNTIME").stdout == "1\n", "run alone always sandboxes"
    assert daemon.run("status").stdout.startswith("OFF:") and f"{file}:2" in daemon.run("status").stdout
    assert daemon.run("describe").stdout == "Shell commands run without a sandbox: the sandbox is off.\n"


SETTINGS = """
import asyncio, json, os
from sandboxd_client import AsyncClient, Change, Client

PLACE, FILE = os.path.expanduser("~/place"), os.path.expanduser("~/own.json")
OWN = {"sandbox": {"filesystem": {"allowWrite": [PLACE]}}}
os.makedirs(PLACE, exist_ok=True)
with open(FILE, "w") as file:
    json.dump(OWN, file)
LINE = "touch ~/place/x 2>/dev/null && echo yes || echo no"

async def asynchronous():
    found = []
    async with AsyncClient(autostart=False) as box:
        for given in (None, OWN, FILE):
            overrides = None if given is None else {"settings": given}
            found.append((await box.run(LINE, overrides=overrides, capture_output=True, text=True)).stdout)
            async with box.session(settings=given) as session:
                found.append((await session.run(LINE, capture_output=True, text=True)).stdout)
        async with box.session() as session:
            for change in ({"settings": OWN}, {"settings": {}}, {"settings": FILE}, {"settings": {}}, {"changes": [
                Change("add", "filesystem.allowWrite", PLACE)
            ]}):
                await session.update(**change)
                found.append((await session.run(LINE, capture_output=True, text=True)).stdout)
    return found

found = []
with Client(autostart=False) as box:
    for given in (None, OWN, FILE):
        overrides = None if given is None else {"settings": given}
        found.append(box.run(LINE, overrides=overrides, capture_output=True, text=True).stdout)
        with box.session(settings=given) as session:
            found.append(session.run(LINE, capture_output=True, text=True).stdout)
    with box.session() as session:
        for change in ({"settings": OWN}, {"settings": {}}, {"settings": FILE}, {"settings": {}}, {"changes": [
            Change("add", "filesystem.allowWrite", PLACE)
        ]}):
            session.update(**change)
            found.append(session.run(LINE, capture_output=True, text=True).stdout)
print(json.dumps([found, asyncio.run(asynchronous())]))
"""


def test_settings_of_a_call_and_of_a_live_session(shared_daemon: DaemonProcess) -> None:
    done = shared_daemon.python(SETTINGS)
    assert done.returncode == 0, done.stderr
    blocking, asynchronous = json.loads(done.stdout)
    answers = [*["no"] * 2, *["yes"] * 4, "yes", "no", "yes", "no", "yes"]
    assert blocking == asynchronous == [f"{answer}\n" for answer in answers]


def test_rules_of_a_session_and_presets_on_the_command_line(daemon: DaemonProcess) -> None:
    outside = daemon.identity.home / "open"
    outside.mkdir()
    daemon.identity.own(outside)
    session = daemon.run("session", "start").stdout.strip()
    write = ("-c", f"touch {outside}/x")
    assert daemon.run("run", "--session", session, *write).returncode != 0
    allowed = daemon.run("allow", "path", str(outside), "--session", session)
    assert (allowed.returncode, allowed.stderr) == (0, "") and f"in the session {session}" in allowed.stdout
    assert daemon.run("run", "--session", session, *write).returncode == 0
    assert daemon.run("run", *write).returncode != 0, "of this session alone"
    assert daemon.run("deny", "path", str(outside), "--session", session).returncode == 0
    assert daemon.run("run", "--session", session, *write).returncode != 0
    assert daemon.run("exclude", "add", "Bash(id:*)", "--session", session).returncode == 0
    assert daemon.run("exclude", "list", "--session", session).stdout.startswith("id:*\n")
    assert daemon.run("exclude", "list").stdout == "no command is excluded\n"
    whole = json.dumps({"sandbox": {"filesystem": {"allowWrite": [str(outside)]}}})
    assert daemon.run("run", "--settings", whole, *write).returncode == 0
    other = daemon.run("session", "start", "--settings", whole).stdout.strip()
    assert daemon.run("run", "--session", other, *write).returncode == 0
    assert local(daemon) == {}
    for line in (
        "allow preset caches", "allow preset private-networks", "deny preset credentials", "allow socket /run/x.sock",
    ):  # fmt: skip
        assert daemon.run(*line.split()).returncode == 0
    assert daemon.run("settings", "show", "--changed").stdout.count(" = ") == 2
    presets = ["caches", "private-networks", "credentials"]
    assert local(daemon) == {"sandbox": {"presets": presets, "network": {"allowUnixSockets": ["/run/x.sock"]}}}
    for preset in ("caches", "private-networks"):
        assert daemon.run("allow", "preset", preset, "--remove").returncode == 0
    assert daemon.run("settings", "show", "presets").stdout.startswith('sandbox.presets = ["credentials"]')


ANNOTATED = """
import asyncio, json
from sandboxd_client import AsyncClient, Client

OPTIONS = dict(capture_output=True, text=True)

async def run():
    async with AsyncClient(autostart=False) as box:
        return [(await box.run(line, **OPTIONS)).stderr for line in LINES]

LINES = ("touch ~/x", "echo fine >&2")
with Client(autostart=False) as box:
    print(json.dumps([[box.run(line, **OPTIONS).stderr for line in LINES], asyncio.run(run())]))
"""


def test_captured_text_has_the_block_also_for_later(daemon: DaemonProcess) -> None:
    found = json.loads(daemon.python(ANNOTATED).stdout)
    for blocked, fine in found:
        assert blocked.count("<sandbox_violations>") == 1 and f"{daemon.identity.home}/x" in blocked
        assert fine == "fine\n"
    shown = daemon.run("run", "--annotate", "-c", "touch ~/x")
    assert shown.stderr.count("<sandbox_violations>") == 1 and shown.returncode == 1
    assert "<sandbox_violations>" not in daemon.run("run", "-c", "touch ~/x").stderr
    strip = "import sys; from sandboxd_client import Client; print(Client().violation_strip(sys.argv[1]).text, end='')"
    text = found[0][0]
    before = daemon.python(strip, text).stdout
    assert "sandbox_violations" not in before and daemon.run("restart").returncode == 0
    assert daemon.python(strip, text).stdout == before
    assert daemon.run("stop").returncode == 0  # the next client starts another daemon, which has the key
    assert daemon.python(strip, text).stdout == before
    daemon.run("stop")
