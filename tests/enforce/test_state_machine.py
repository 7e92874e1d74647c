"""Any sequence of settings, sessions, answers, edits, kills and restarts: commands meet what a naive model says.

`SANDBOXD_MACHINE=EXAMPLES,STEPS` tries more than the few of every run, and new ones each time. Then pytest needs
`-o faulthandler_timeout=0`; with `-s` it prints each sequence.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from support import client_driver
from support.daemons import DaemonProcess, StartDaemon
from support.file_model import Model, covers
from support.origin import Origin
from support.rules_model import FILES, HOSTS, PATTERNS, RULES, Rules, directories_of
from support.snapshot import HostWatch, describe_tree
from support.users import Identity, identity_names
from support.waiting import wait_until

EXAMPLES, STEPS = map(int, os.environ.get("SANDBOXD_MACHINE", "4,14").split(","))
LONG = "SANDBOXD_MACHINE" in os.environ
PROTECTED = {
    "p/.mcp.json": "p/.mcp.json",
    "p/.vscode/tasks.json": "p/.vscode",
    "p/.git/hooks/pre-commit": "p/.git/hooks",
    "p/.claude/commands/a.md": "p/.claude/commands",
    "home/.gitconfig": "home/.gitconfig",
    "home/.local/bin/ls": "home/.local/bin",
}
"""Files that programs outside obey, each with the protected name."""
PLACES = ("user", "local", "project")
PICK = st.integers(0, 11)


def some(values: tuple[str, ...], most: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), max_size=most, unique=True).map(tuple)


WRITABLE = (*RULES, "home")
LAYERS = st.builds(Rules, some(PATTERNS, 3), some(PATTERNS, 1), some(WRITABLE, 3), some(RULES, 1), some(RULES, 1),
                   some(RULES, 1))  # fmt: skip
OPENING = st.builds(Rules, allowedDomains=some(PATTERNS, 2), allowWrite=some(WRITABLE, 2))
PROBES = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from(("direct", "tunnel", "request")), st.sampled_from(HOSTS)),
        st.tuples(st.just("read"), st.sampled_from(FILES)),
        st.tuples(st.just("append"), st.sampled_from(FILES)),
        st.tuples(st.just("make"), st.sampled_from(directories_of(FILES))),
        st.tuples(st.sampled_from(("append", "make", "over", "mkdir", "move")), st.sampled_from(tuple(PROTECTED))),
    ),
    min_size=1,
    max_size=6,
)


@dataclass
class Session:
    id: str | None
    own: Rules = field(default_factory=Rules)
    plan: bool = False
    grants: dict[str, Rules] = field(default_factory=dict)


@dataclass
class Command:
    """A running one. Files are those of its start, hosts those of the moment; without its daemon it has no network."""

    name: str
    wrap_id: str
    session: Session
    files: Model
    plan: bool
    cut: bool = False
    tunnel: str = ""
    """The host of one that it has opened."""


def step(**strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """Note a rule of the machine before it begins."""

    def made(function: Callable[..., None]) -> Any:
        @wraps(function)
        def noted(self: Machine, **drawn: Any) -> None:
            self.steps.append(f"{function.__name__}({', '.join(f'{name}={value}' for name, value in drawn.items())})")
            function(self, **drawn)

        return cast(Any, rule)(**strategies)(noted)

    return made


class Driver:
    """A client that runs as the user."""

    def __init__(self, world: World) -> None:
        argv = world.identity.python(str(world.script))
        pipe = subprocess.PIPE
        self.process = world.identity.popen(argv, env=world.daemon.environment(), stdin=pipe, stdout=pipe, text=True)

    def send(self, verb: str, *words: Any, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, words, options]) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the client ended"
        kind, *rest = json.loads(line)
        assert kind == "done", rest
        return rest[0]

    def __call__(self, verb: str, *words: Any, **options: Any) -> Any:
        self.send(verb, *words, **options)
        return self.receive()

    def close(self) -> None:
        self.process.__exit__(None, None, None)  # closes its streams, which ends it, and waits


@dataclass
class World:
    """State that outlives an example: the user, the running daemon and two clients, one of which answers questions."""

    identity: Identity
    origin: Origin
    start: Callable[[], DaemonProcess]
    daemon: DaemonProcess
    script: Path
    serial: Iterator[int] = field(default_factory=count)
    clients: list[Driver] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def restarted(self) -> None:
        self.daemon = self.start()
        for client in self.clients:
            wait_until(partial(self.answers, client), "the client has connected again")

    @staticmethod
    def answers(client: Driver) -> bool:
        try:
            return bool(client("status")["pid"])
        except AssertionError as error:
            assert "ConnectionLost" in str(error) or "DaemonUnavailable" in str(error), error
            return False


class Machine(RuleBasedStateMachine):
    """The real thing beside the model; each probe is compared where it is made."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.agent, self.person = world.clients
        self.project = world.identity.base / f"p{next(world.serial)}"
        self.layers = dict.fromkeys(PLACES, Rules())
        self.trusted = ""
        self.broken = ""
        self.replaced = 0  # which takes long
        self.out_of_time = False
        self.sessions = [Session(None)]
        self.commands: list[Command] = []
        self.fresh = True
        self.facts: dict[str, str] = {}
        self.steps: list[str] = []

    # the host

    def at(self, path: str) -> Path:
        """Where a path of the model is."""
        return self.project / path[2:] if covers("p", path) else self.world.identity.base / path

    def roots(self) -> list[Path]:
        return [self.project, self.world.identity.home, self.world.identity.base / "outside"]

    def look(self) -> dict[str, str]:
        state = self.world.identity.home / ".local" / "state"
        found: dict[str, str] = {}
        for root in self.roots():
            found |= {name: fact for name, fact in describe_tree(root).items() if not covers(f"file {state}", name)}
        return found

    def write(self, path: Path, text: str) -> None:
        self.world.identity.write(path, text)

    @contextmanager
    def by_the_host(self) -> Iterator[None]:
        yield
        self.facts = self.look()

    def unchanged(self, *but: Path) -> None:
        """Nothing differs but these files, and they do."""
        now = self.look()
        differ = {name for name in now.keys() | self.facts.keys() if now.get(name) != self.facts.get(name)}
        assert differ == {f"file {one}" for one in but}, (differ, but)
        self.facts = now

    @initialize()
    def begin(self) -> None:
        with self.by_the_host():
            for path in FILES:
                self.write(self.at(path), "x")
            git = self.project / ".git"
            self.world.identity.run(["git", "init", "-q", "--template=", str(self.project)], check=True)
            self.write(git / "hooks" / "README", "")
            self.write(self.project / ".claude" / "README", "")
            self.write(self.world.identity.home / ".claude" / "README", "")
            self.write(self.world.identity.home / ".local" / "share" / "README", "")

    # settings

    def file_of(self, place: str) -> Path:
        above = self.project if place == "project" else self.world.identity.home
        return above / ".claude" / ("settings.local.json" if place == "local" else "settings.json")

    def text_of(self, rules: Rules) -> dict[str, Any]:
        network, files = {}, {}
        for one in fields(rules):
            values = getattr(rules, one.name)
            if one.name.endswith("Domains"):
                network[one.name] = list(values)
            else:
                files[one.name] = [str(self.at(path)) for path in values]
        return {"sandbox": {"network": network, "filesystem": files}}

    def policy(self, session: Session) -> Rules:
        project = self.layers["project"]
        is_trusted = self.trusted == json.dumps(self.text_of(project)) and self.broken != "project"
        layers = [self.layers["user"], self.layers["local"], project if is_trusted else project.closing()]
        layers.append(session.own.closing() if session.plan else session.own)
        return sum([*layers, *session.grants.values()], Rules())

    @step(place=st.sampled_from(PLACES), rules=LAYERS, saved=st.booleans())
    def edit(self, place: str, rules: Rules, saved: bool) -> None:
        self.save(place, rules, saved)

    def save(self, place: str, rules: Rules, saved: bool) -> None:
        path = self.file_of(place)
        with self.by_the_host():
            new = path.with_name("new") if saved else path
            self.write(new, json.dumps(self.text_of(rules)))
            new.replace(path)
        self.broken = "" if place == self.broken else self.broken
        self.layers[place], self.fresh = rules, False

    @step(place=st.sampled_from(PLACES), pick=PICK)
    def tighten(self, place: str, pick: int) -> None:
        """One rule that opens goes, or one that closes comes: nothing is open then that was not before."""
        old = self.layers[place]
        keys = ("allowedDomains", "allowWrite", "allowRead") if pick % 2 else ("deniedDomains", "denyWrite", "denyRead")
        key = keys[pick % 3]
        values = getattr(old, key)
        among = PATTERNS if key == "deniedDomains" else RULES
        new = values[1:] if pick % 2 else (*values, among[pick % len(among)])
        before = self.open()
        self.save(place, replace(old, **{key: new}), pick > 5)
        after = self.open()
        assert after <= before, after - before

    @precondition(lambda self: not self.broken and self.file_of("user").exists() and self.file_of("project").exists())
    @step(place=st.sampled_from(("user", "project")))
    def spoil(self, place: str) -> None:
        """A file that cannot be read leaves what it said; of a project only what closes."""
        self.agent("settings_reload")
        self.open()
        with self.by_the_host():
            self.write(self.file_of(place), "{")
        self.broken, self.fresh = place, False

    def open_in_sessions(self) -> list[set[tuple[str, str, bool]]]:
        return [self.open(session.id) for session in self.sessions]

    def open(self, session: str | None = None) -> set[tuple[str, str, bool]]:
        """The paths and hosts that `explain` calls open in the project, or in a session of it."""
        asked = [("host", self.named(host), False) for host in HOSTS]
        asked += [("path", str(self.at(path)), write) for path in FILES for write in (False, True)]
        return {one for one in asked if self.explained(*one, session)}

    def explained(self, kind: str, target: str, write: bool, session: str | None) -> bool:
        where = {"session_id": session} if session else {"cwd": str(self.project)}
        return bool(self.agent("policy_explain", kind, target, write=write, **where)["behavior"] == "allow")

    @precondition(lambda self: self.file_of("project").exists() and self.broken != "project")
    @step(trusts=st.booleans())
    def trust(self, trusts: bool) -> None:
        text = self.file_of("project").read_bytes()
        digests = {str(self.file_of("project")): hashlib.sha256(text).hexdigest()}
        shown = {"digests": digests} if trusts else {}
        self.agent("settings_trust", "trust" if trusts else "remove", str(self.project), **shown)
        self.trusted, self.fresh = text.decode() if trusts else "", False

    # sessions, answers

    @step(own=OPENING | LAYERS, mode=st.sampled_from(("prompt", "prompt", "plan")))
    def open_session(self, own: Rules, mode: str) -> None:
        options = {"permission_mode": mode, "detach": True}
        made = self.agent("session_open", str(self.project), settings=self.text_of(own), **options)
        self.sessions.append(Session(made["session_id"], own, mode == "plan"))

    @precondition(lambda self: len(self.sessions) > 1)
    @step(pick=PICK, own=OPENING | LAYERS)
    def update_session(self, pick: int, own: Rules) -> None:
        session = self.sessions[1 + pick % (len(self.sessions) - 1)]
        self.agent("session_update", session.id, self.text_of(own), confirm=True)
        session.own = own

    @precondition(lambda self: len(self.sessions) > 1)
    @step(pick=PICK)
    def close_session(self, pick: int) -> None:
        session = self.sessions.pop(1 + pick % (len(self.sessions) - 1))
        self.agent("session_close", session.id)
        for one in [one for one in self.commands if one.session is session]:
            self.ended(one, "closed")

    @precondition(lambda self: len(self.sessions) > 1)
    @step(pick=PICK, subject=st.sampled_from((*HOSTS, *RULES)), yes=st.booleans())
    def ask(self, pick: int, subject: str, yes: bool) -> None:
        """A question for what no rule decides, and a person's answer for the session."""
        session = self.sessions[1 + pick % (len(self.sessions) - 1)]
        rules = self.policy(session)
        if session.plan:
            return
        if subject in HOSTS:
            if rules.reaches(subject) or rules.closed(subject):
                return
            question = {"kind": "network", "host": subject, "port": self.world.origin.port}
            granted = Rules(allowedDomains=(subject,))
        else:
            closed = rules.denyWrite + rules.denyRead
            if rules.files().writable(subject) or any(covers(one, subject) or covers(subject, one) for one in closed):
                return
            question = {"kind": "path", "path": str(self.at(subject)), "write": True}
            granted = Rules(allowWrite=(subject,))
        self.person("permission_subscribe")
        self.agent.send("permission_request", session_id=session.id, **question)
        self.person("answer", "allow" if yes else "deny", "session" if yes else "once")
        answer = self.agent.receive()
        self.person("close")
        assert answer["behavior"] == ("allow" if yes else "deny"), answer
        if yes:
            for grant in self.agent("permission_list", session.id)["grants"]:
                session.grants.setdefault(grant["grant_id"], granted)

    @precondition(lambda self: any(session.grants for session in self.sessions))
    @step(pick=PICK)
    def revoke(self, pick: int) -> None:
        given = [(session, grant) for session in self.sessions for grant in session.grants]
        session, grant = given[pick % len(given)]
        self.agent("permission_revoke", session.id, grant)
        del session.grants[grant]

    # commands

    def started(self, session: Session) -> Command:
        name = f"c{next(self.world.serial)}"
        said = self.agent("start", name, cwd=str(self.project), session_id=session.id, command_id=name)
        assert said == "up", said
        (wrap_id,) = [one["wrap_id"] for one in self.running() if one["command_id"] == name]
        return Command(name, wrap_id, session, self.policy(session).files(), session.plan)

    def running(self) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self.agent("command_list")["commands"])

    @step(pick=PICK, probes=PROBES)
    def run(self, pick: int, probes: list[tuple[str, ...]]) -> None:
        command = self.started(self.sessions[pick % len(self.sessions)])
        for probe in probes:
            self.compare(command, probe)
        self.ended(command, "")

    @precondition(lambda self: len(self.commands) < 3)
    @step(pick=PICK)
    def start(self, pick: int) -> None:
        self.commands.append(self.started(self.sessions[pick % len(self.sessions)]))
        self.unchanged()

    @precondition(lambda self: self.commands)
    @step(pick=PICK, probes=PROBES)
    def go_on(self, pick: int, probes: list[tuple[str, ...]]) -> None:
        if not self.fresh:
            self.agent("settings_reload")
        self.fresh = True
        command = self.commands[pick % len(self.commands)]
        for probe in probes:
            self.compare(command, probe)
        open_hosts = [host for host in HOSTS if self.policy(command.session).reaches(host) and not command.cut]
        if open_hosts and not command.tunnel:
            command.tunnel = open_hosts[pick % len(open_hosts)]
            assert self.agent("tell", command.name, "hold", self.named(command.tunnel)) is True
        self.through(command)

    def through(self, command: Command) -> None:
        """Nothing passes an open tunnel to a host that is refused by now."""
        if command.tunnel and not self.policy(command.session).reaches(command.tunnel):
            token = f"t{next(self.world.serial)}"
            met = self.agent("tell", command.name, "through", token)
            assert met is not True and f"/{token}" not in [one[1] for one in self.world.origin.requests], met
            command.tunnel = ""

    @precondition(lambda self: any(one.tunnel for one in self.commands))
    @step(pick=PICK)
    def refuse(self, pick: int) -> None:
        """A host to which a tunnel is open."""
        hosts = [one.tunnel for one in self.commands if one.tunnel]
        local = self.layers["local"]
        self.save("local", replace(local, deniedDomains=(*local.deniedDomains, hosts[pick % len(hosts)])), pick > 5)
        self.agent("settings_reload")
        for command in self.commands:
            self.through(command)

    @precondition(lambda self: self.commands)
    @step(pick=PICK, how=st.sampled_from(("", "kill", "command_kill")))
    def end(self, pick: int, how: str) -> None:
        self.ended(self.commands[pick % len(self.commands)], how)

    @precondition(lambda self: not self.out_of_time)
    @step()
    def run_out_of_time(self) -> None:
        """A command with a limit of its own ends by it, beside others that go on, and that is reported."""
        self.out_of_time = True
        own = {"sandbox": {"limits": {"time": "1s"}}}
        made = self.agent("session_open", str(self.project), settings=own, detach=True)
        session = Session(made["session_id"])
        command = self.started(session)
        others = {one["wrap_id"] for one in self.running()} - {command.wrap_id}
        assert self.agent("outlast", command.name) != 0
        wait_until(lambda: command.wrap_id not in [one["wrap_id"] for one in self.running()], "the end is known")
        outcome = self.agent("wrap_outcome", command.wrap_id)
        assert outcome["started"] and outcome["exited"] and "limits.time" in str(outcome), outcome
        assert {one["wrap_id"] for one in self.running()} == others
        self.agent("session_close", session.id)
        self.unchanged()

    def ended(self, command: Command, how: str) -> None:
        if command in self.commands:
            self.commands.remove(command)
        if how == "command_kill" and not command.cut:
            self.agent("command_kill", command.name, grace_s=0)
        status, said = self.agent("end", command.name, how)
        assert (status == 0) is (how == "" and not command.cut), (status, how, said)
        wait_until(lambda: command.wrap_id not in [one["wrap_id"] for one in self.running()], "the end is known")
        if not command.cut and how != "closed":
            outcome = self.agent("wrap_outcome", command.wrap_id)
            assert outcome["started"] and outcome["exited"], outcome
            assert outcome["status"] == (None if how == "kill" else status), (status, outcome)
        self.unchanged()

    # probes

    def named(self, host: str) -> str:
        return f"{host}:{self.world.origin.port}"

    def compare(self, command: Command, probe: tuple[str, ...]) -> None:
        """Results of a command: its own, that on the host, and what `explain` says of it now."""
        verb, subject = probe[0], probe[-1]
        token, now = f"t{next(self.world.serial)}", self.policy(command.session)
        before = len(self.world.origin.connections)
        changed: list[Path] = []
        if verb == "connect":
            expected, today = now.reaches(subject) and not command.cut, now.reaches(subject)
            words, asked = [probe[1], subject, self.world.origin.port, token], ("host", self.named(subject), False)
        elif subject in PROTECTED:
            expected = today = False
            path = self.at(PROTECTED[subject] if verb in ("mkdir", "move") else subject)
            words = [str(path), *([str(self.at(subject[:4].split("/")[0]) / token)] if verb == "over" else [])]
            asked = ("path", str(path), True)
        else:
            decide = Model.readable if verb == "read" else Model.writable
            expected = decide(command.files, subject) and not (command.plan and verb != "read")
            today = decide(now.files(), subject) and not (command.session.plan and verb != "read")
            asked = ("path", str(self.at(subject)), verb != "read")
            words = [str(self.at(subject) / token if verb == "make" else self.at(subject))]
            changed += [self.at(subject)] * (expected and verb == "append")
        words += [token] * (verb == "append")
        met = self.agent("tell", command.name, verb, *words)
        shown = str((probe, met, command.name, command.session, self.layers))
        assert (met is True) is expected, shown
        arrived = [one for one in self.world.origin.requests if one[1] == f"/{token}"]
        assert len(arrived) == (expected and verb == "connect"), shown
        assert len(self.world.origin.connections) - before == len(arrived), shown
        self.unchanged(*changed)
        assert self.explained(*asked, command.session.id) is today, (f"explain says otherwise: {today}", shown)

    # people and crashes

    @step(path=st.sampled_from(tuple(PROTECTED)), how=st.sampled_from(("make", "save", "remove", "move")))
    def touch_protected(self, path: str, how: str) -> None:
        file, top = self.at(path), self.at(PROTECTED[path])
        with self.by_the_host():
            if how == "make":
                self.write(file, "person")
            elif how == "save":
                self.write(file.with_name("saved"), "person")
                file.with_name("saved").replace(file)
            elif top.exists():
                old = top.with_name("old")
                shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
                top.rename(old)
                if how == "remove":
                    shutil.rmtree(old) if old.is_dir() else old.unlink()

    @precondition(lambda self: self.replaced < 3 and not self.broken)
    @step()
    def restart(self) -> None:
        self.replaced += 1
        before = self.open_in_sessions()
        self.agent("restart")
        assert self.open_in_sessions() == before
        self.unchanged()

    @precondition(lambda self: self.replaced < 3 and not self.broken)
    @step()
    def kill_daemon(self) -> None:
        """Sessions and answers go with it; commands go on without network, as protected as before."""
        self.replaced += 1
        before = self.open()
        self.world.daemon.process.send_signal(signal.SIGKILL)
        self.world.daemon.process.wait()
        self.world.restarted()
        self.sessions = self.sessions[:1]
        for one in self.commands:
            one.cut, one.session = True, self.sessions[0]
        assert self.open() == before, "the next one decides as this one did"
        self.unchanged()

    def teardown(self) -> None:
        if (error := sys.exception()) is not None:
            self.world.failures.append("\n".join([*self.steps, *traceback.format_exception(error)[-3:]]))
        if LONG:
            print("\n".join(self.steps), self.world.failures[-1:] if error else "", "-----", sep="\n", flush=True)
        with ExitStack() as stack:
            stack.callback(self.clear)
            for session in self.sessions[1:]:
                stack.callback(self.agent, "session_close", session.id)
            for one in self.commands:
                stack.callback(self.ended, one, "kill")

    def clear(self) -> None:
        if self.trusted:
            self.agent("settings_trust", "remove", str(self.project))
        local = self.world.identity.home / ".local"
        for path in (self.project, self.world.identity.base / "outside", *local.parent.iterdir(), *local.iterdir()):
            if path not in (local, local / "state"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)
def test_any_sequence_goes_as_the_model_says(
    host_snapshot: HostWatch, start_daemon: StartDaemon, identity: Identity, origin: Origin
) -> None:
    def start() -> DaemonProcess:
        return start_daemon(resolve=dict.fromkeys(HOSTS, "127.0.0.1"))

    with host_snapshot.assert_unchanged(), ExitStack() as stack:
        script = identity.write(identity.base / "driver.py", Path(client_driver.__file__).read_text())
        world = World(identity, origin, start, start(), script)
        world.clients += [stack.enter_context(closing(Driver(world))) for _ in range(2)]
        phases = [Phase.generate, *([Phase.shrink] if LONG else [])]
        try:
            run_state_machine_as_test(
                lambda: Machine(world),  # type: ignore[arg-type]
                settings=settings(
                    max_examples=EXAMPLES, stateful_step_count=STEPS, phases=phases, derandomize=not LONG,
                    deadline=None, database=None, suppress_health_check=list(HealthCheck),
                ),
            )  # fmt: skip
        except Exception as error:
            raise AssertionError("\n\n".join(world.failures[-1:])) from error
        stack.close()
        assert world.daemon.stop() == 0
