"""Plans and runs commands in real sandboxes, without a daemon, as the starting user: one JSON request a line in, one
answer a line out. A request has `tree` (a case of the reference model) or `shell` (a command with its rules).

Its argument is a directory of its own. Or, because importing our code takes longer than most cases: the number of a
socket, over which come connections, each with the directory, the environment and the working directory of a runner for
that connection alone, or with the words that start a daemon.

Uses nothing of the tests, because an ordinary user may not be able to read them.
"""

from __future__ import annotations

import array
import asyncio
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from sandboxd.backends.linux.backend import territory_of
from sandboxd.backends.linux.bwrap.bwrap_options import render
from sandboxd.backends.linux.bwrap.sandbox_setup import programs_of
from sandboxd.backends.linux.network.namespace_program import ANSWER_SIZE, COMPLETE, LateMount, ProgramResult
from sandboxd.cli.main import main
from sandboxd.errors import DaemonError
from sandboxd.host.fact_source import HostFacts
from sandboxd.host.git.repository_cleanup import RepositoryCleanup
from sandboxd.host.helper_program import find_helper
from sandboxd.host.placeholders.placeholder_set import Placeholders
from sandboxd.plan.filesystem.mounts import writable_in
from sandboxd.plan.plan import Plan
from sandboxd.plan.planner import Planner
from sandboxd.plan.request import Argv, Place, ShellText
from sandboxd.policy.model import FilePolicy, PathRule, Policy
from sandboxd.settings.origins import Origin, Source

PROBER = r"""
import errno, json, os, sys
root = sys.argv[1]
print("waiting", flush=True)
todo = json.load(sys.stdin)
def attempt(f):
    try:
        return f() or "ok"
    except OSError as e:
        return errno.errorcode[e.errno]
def read(p):
    if os.path.isdir(p):
        os.listdir(p)
    else:
        with open(p, "rb") as f:
            token = b"token " + os.fsencode(os.path.basename(os.path.realpath(p)))
            return "ok" if f.read() == token else "other content"
def write(p):
    if os.path.isdir(p):
        new = p + "/probe-of-writing"
        os.mkdir(new); os.rmdir(new)
    else:
        os.close(os.open(p, os.O_WRONLY))
def create(p):
    os.mkdir(p); os.rmdir(p)
def move(p):
    os.rename(p, p + ".moved"); os.rename(p + ".moved", p)
print(json.dumps([attempt(lambda: globals()[verb](root + "/" + path if path else root)) for verb, path in todo]))
"""


def rules(root: str, texts: list[str]) -> tuple[PathRule, ...]:
    origin = Origin(Source.USER, "sandbox.filesystem")
    made = []
    for text in texts:
        glob = text.startswith("glob:")
        text = text.removeprefix("glob:")
        path = f"{_quoted(root) if glob else root}/{text}" if text else root
        made.append(PathRule(path, origin, glob, path))
    return tuple(made)


def _quoted(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def make_tree(root: str, tree: dict[str, str]) -> None:
    os.mkdir(root)
    for path, kind in tree.items():
        full = f"{root}/{path}"
        if kind == "directory":
            os.mkdir(full)
        elif kind == "file":
            Path(full).write_bytes(b"token " + os.fsencode(os.path.basename(full)))
        else:
            target = kind.removeprefix("link:")
            os.symlink(root + target if target.startswith("/") else target, full)


def snapshot(root: str) -> list[tuple[Any, ...]]:
    found = []
    for folder, directories, files in os.walk(root):
        directories.sort()
        for name in sorted([*directories, *files]):
            state = os.lstat(os.path.join(folder, name))
            found.append((folder, name, state.st_mode, state.st_ino, state.st_size))
    return found


class LateMounts:
    """Makes late mounts by the real helper, as the daemon does."""

    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.helper = subprocess.Popen([find_helper(name="namespaces")], stdin=theirs.fileno(), env={})

    def close(self) -> None:
        self.requests.close()
        self.helper.wait()

    def mount(self, pid: int, mounts: Sequence[LateMount]) -> str:
        """Make the mounts in the mount namespace of a process; what went wrong, or an empty text."""
        for program in programs_of(mounts):
            answers, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with answers, other:
                opened = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("net", "mnt")]
                rights = array.array("i", [opened[0], other.fileno(), opened[1]])
                self.requests.sendmsg([program.encoded], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                for descriptor in opened:
                    os.close(descriptor)
                other.close()
                answer = ProgramResult.decode(answers.recv(ANSWER_SIZE))
            if answer.stage != COMPLETE:
                return f"{program.describe(answer.stage)}: {os.strerror(answer.errno)}"
        return ""


def child_of(pid: int) -> int:
    """The only child of a process, when it is there."""
    while True:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            if found := children.read().split():
                return int(found[0])


class Runner:
    def __init__(self, base: str) -> None:
        self.base = base
        self.home = os.path.join(base, "no-home")
        self.private = os.path.join(base, "private")
        for name in (self.home, self.private, self.private + "/run", self.private + "/tmp"):
            os.makedirs(name, mode=0o700, exist_ok=True)
        self.mask = self.private + "/mask"
        if not os.path.exists(self.mask):
            os.close(os.open(self.mask, os.O_CREAT, 0))
        self.facts = HostFacts()
        self.planner = Planner(self.facts)
        self.repositories = RepositoryCleanup()
        # in memory, because every case names new paths, and a disk takes its time with each
        self.journal = f"/dev/shm/sandboxd-test-{os.getpid()}"
        self.placeholders = Placeholders(self.journal, linger=0)
        self.late = LateMounts()

    def place(self, cwd: str, project: str) -> Place:
        return Place(
            cwd=cwd, project_root=project, session_tmp=self.private + "/tmp", home=self.home, uid=os.getuid(),
            runtime_dir=self.private + "/run", mask_file=self.mask, temporary_base=self.private,
        )  # fmt: skip

    async def shell(self, request: dict[str, Any]) -> dict[str, Any]:
        """One shell line. Paths in rules are absolute."""
        rules_of = {
            name: tuple(
                PathRule(rule["path"], Origin(Source(rule["source"]), "sandbox.filesystem"), rule["glob"], rule["path"])
                for rule in request[name]
            )
            for name in ("allow_write", "deny_write", "deny_read", "allow_read")
        }
        policy = Policy(
            files=FilePolicy(
                rules_of["allow_write"], rules_of["deny_write"], rules_of["deny_read"], rules_of["allow_read"],
                request["allow_git_config"], request["depth"], tuple(request["settings_files"]),
            )
        )  # fmt: skip
        place = Place(
            cwd=request["cwd"], project_root=request["project"], session_tmp=self.private + "/tmp",
            home=request["home"], uid=os.getuid(), runtime_dir=self.private + "/run", mask_file=self.mask,
            temporary_base=self.private, daemon_paths=tuple(request["daemon_paths"]),
        )  # fmt: skip
        try:
            plan = await self.planner.plan(policy, place, ShellText(request["shell"]))
            hold = self.placeholders.hold(plan.view.placeholders, plan.view.watched)
        except DaemonError as error:
            return {"error": error.slug, "message": error.message, "hint": error.hint}
        await self.repositories.begin("launch", territory_of(plan.view))
        try:
            answer = self.execute(plan, request)
        finally:
            moved = hold.release().moved
        looked = await self.repositories.look("launch", writable_in(plan.view))
        moved += looked.moved
        return {
            **answer, "moved": moved, "unseen": "" if looked.failed is None else str(looked.failed),
            "warnings": plan.warnings, "links": plan.view.open_links, "mounts": len(plan.view.mounts),
            "writable": plan.view.writable,
        }  # fmt: skip

    def execute(self, plan: Plan, request: dict[str, Any]) -> dict[str, Any]:
        """bubblewrap, the late mounts made before the command starts."""
        try:
            options = render(plan, root=os.geteuid() == 0)
        except DaemonError as error:
            return {"error": error.slug, "message": error.message, "hint": error.hint}
        words = options.options
        passed: tuple[int, ...] = ()
        if options.needs_file:
            file = os.memfd_create("options")
            os.write(file, b"".join(os.fsencode(word) + b"\0" for word in words))
            os.lseek(file, 0, os.SEEK_SET)
            words, passed = ("--args", str(file)), (file,)
        started, go = os.pipe(), os.pipe()
        starter = f'echo $$ >&{started[1]}; read x <&{go[0]}; cd "$PWD"; exec {started[1]}>&- {go[0]}<&-; exec "$@"'
        process = subprocess.Popen(
            ["bwrap", *words, "--", "/bin/bash", "-c", starter, "sh", *plan.argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=(started[1], go[0], *passed), env={**os.environ, **plan.environment.set, **request["env"]},
        )  # fmt: skip
        for fd in (started[1], go[0], *passed):
            os.close(fd)
        try:
            there = options.late and os.read(started[0], 10)
            if there and (failed := self.late.mount(child_of(process.pid), options.late)):
                raise AssertionError(failed)
            os.close(go[1])
            go = (go[0], -1)
            output, errors = process.communicate(timeout=60)
        finally:
            os.close(started[0])
            if go[1] >= 0:
                os.close(go[1])
                process.kill()
        return {
            "status": process.returncode,
            "stdout": output.decode("utf-8", "replace"),
            "stderr": errors.decode("utf-8", "replace"),
        }

    async def run(self, case: dict[str, Any]) -> dict[str, Any]:
        root = case.get("root") or os.path.join(self.base, f"t{case['seed']}")
        make_tree(root, case["tree"])
        try:
            return await self._run(case, root)
        finally:
            self.planner.forget(self.private + "/tmp")
            shutil.rmtree(root)

    async def _run(self, case: dict[str, Any], root: str) -> dict[str, Any]:
        before = snapshot(root)
        policy = Policy(
            files=FilePolicy(
                allow_write=rules(root, case["allow_write"]),
                deny_write=rules(root, case["deny_write"]),
                deny_read=rules(root, case["deny_read"]),
                allow_read=rules(root, case["allow_read"]),
            )
        )
        at = {name: f"{root}/{case[name]}" if case[name] else root for name in ("cwd", "project")}
        argv = (os.path.realpath(sys.executable), "-I", "-S", "-c", PROBER, root)
        place = self.place(at["cwd"], at["project"])
        try:
            plan = await self.planner.plan(policy, place, Argv(argv))
        except DaemonError as error:
            return {"error": error.slug, "message": error.message}
        hold = self.placeholders.hold(plan.view.placeholders, plan.view.watched)
        try:
            options = render(plan)
            process = subprocess.Popen(
                ["bwrap", *options.options, "--", *plan.argv],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stdout is not None
            if process.stdout.readline() and (failed := self.late.mount(child_of(process.pid), options.late)):
                raise AssertionError(failed)
            output, errors = process.communicate(json.dumps(case["probes"]))
        finally:
            hold.release()
        answer: dict[str, Any] = {
            "options": [*options.options, *map(str, options.late)],
            "links": plan.view.open_links, "warnings": plan.warnings,
        }  # fmt: skip
        if process.returncode:
            return {**answer, "error": "bwrap", "message": errors}
        decisions = [await self.explain(policy, place, root, verb, path) for verb, path in case["probes"]]
        results = json.loads(output)
        return {**answer, "results": results, "decisions": decisions, "unchanged": snapshot(root) == before}

    async def explain(self, policy: Policy, place: Place, root: str, verb: str, path: str) -> bool | None:
        if verb not in ("read", "write"):
            return None
        full = f"{root}/{path}" if path else root
        return (await self.planner.explain(policy, place, full, write=verb == "write")).allowed


async def answer_requests(base: str, requests: TextIO, answers: TextIO) -> None:
    runner = Runner(base)
    for line in requests:
        request = json.loads(line)
        answer = await (runner.shell(request) if "shell" in request else runner.run(request))
        print(json.dumps(answer), file=answers, flush=True)
    runner.placeholders.close()
    runner.late.close()


def answer_forever(base: str, connection: socket.socket) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # as the daemon does
    with connection.makefile("r") as requests, connection.makefile("w") as answers:
        asyncio.run(answer_requests(base, requests, answers))


def serve(words: list[str], connection: socket.socket, output: int) -> None:
    """Become the daemon that `words` start, as far as code can tell. It tells its number once it has been orphaned:
    the process of the tests adopts it, and can wait for it from then on."""
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    os.setsid()
    while os.getppid() == parent:
        os.sched_yield()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    with connection:
        connection.send(str(os.getpid()).encode())
    importlib.reload(sys.modules["sandboxd_test_hook"])  # for this environment
    sys.argv = words
    sys.orig_argv = [sys.executable, "-I", *words]
    main()


def fork_forever(control: socket.socket) -> None:
    """A laboratory (its directory) or a daemon (its words) for each request, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are not waited for
    gc.freeze()
    while (received := socket.recv_fds(control, 65536, 2))[0]:
        message, (descriptor, *output), *_ = received
        with socket.socket(fileno=descriptor) as connection:
            if os.fork() == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                words, environment, cwd = json.loads(message)
                os.environ.clear()
                os.environ.update(environment)
                os.chdir(cwd)
                return serve(words, connection, *output) if output else answer_forever(words[0], connection)
        for one in output:
            os.close(one)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        importlib.import_module("sandboxd.app.process")
        importlib.import_module("sandboxd.cli.control.serve")
        fork_forever(socket.socket(fileno=int(sys.argv[1])))
    else:
        asyncio.run(answer_requests(sys.argv[1], sys.stdin, sys.stdout))
