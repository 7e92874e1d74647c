"""A laboratory for file rules: one shell line in a real sandbox, planned and mounted by our code, without a daemon.

    lab = Lab(identity)
    done = lab.run("echo x > secret.txt", deny_write=["./secret.txt"])
    assert done.status != 0

Rules are written as in settings: `~`, `./`, `//x` or `/x`, patterns. They are read by the code that reads settings.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack

from sandboxd.policy.paths.rule_paths import PathScope, expand_rule_path
from support.forks import ask, end_forker, forker_of, start_forker
from support.users import Identity

GIT = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a.test",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a.test",
    "GIT_TEST_FSYNC": "0",  # git's own switch for tests: loss at a power failure is out of scope
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """What became of a command. `error` is the slug when it was not run at all."""

    status: int = -1
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    message: str = ""
    hint: str = ""
    warnings: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    unseen: str = ""
    writable: list[str] = field(default_factory=list)
    mounts: int = 0

    @property
    def ok(self) -> bool:
        return self.status == 0 and not self.error


class Rules(TypedDict, total=False):
    """What a command runs under. `cwd` and `project` are the workspace unless given; `source` says where the rules
    stand."""

    allow_write: Sequence[str]
    deny_write: Sequence[str]
    deny_read: Sequence[str]
    allow_read: Sequence[str]
    cwd: Path
    project: Path
    source: str
    allow_git_config: bool
    depth: int
    settings_files: Sequence[Path]
    daemon_paths: Sequence[Path]
    env: dict[str, str]


LS = "ls -I 'opencode.json*' -I 'crush*'"
"""Lists what a laboratory has made: without the guard, protected names without a dot stand there as placeholders."""


class Lab:
    """Runs as `identity`, in its workspace unless told otherwise. Keeps one process, so rules and scans stay warm.
    `here`: it is started by the calling thread, and sees the mounts that this one sees."""

    def __init__(self, identity: Identity, *, here: bool = False) -> None:
        self.identity = identity
        self._own = start_forker(identity) if here else None
        self.home = identity.home
        self.workspace = identity.workspace
        self._connection, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(True)
            forker = self._own or forker_of(identity)
            ask(forker, [str(_make(identity))], identity.environment(), identity.workspace, theirs.fileno())
        self._requests = self._connection.makefile("w")
        self._answers = self._connection.makefile("r")

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.shutdown(socket.SHUT_WR)
        self._connection.settimeout(30)
        rest = self._answers.read()  # to its end
        for stream in (self._requests, self._answers, self._connection):
            stream.close()
        if self._own is not None:
            end_forker(self._own)
        assert not rest or kind, rest

    def run(self, shell: str, **rules: Unpack[Rules]) -> Done:
        cwd = rules.get("cwd") or rules.get("project") or self.workspace
        project = rules.get("project") or cwd
        scope = PathScope(str(self.home), str(project), {}, "linux")

        def read(texts: Sequence[str]) -> list[dict[str, Any]]:
            found = [expand_rule_path(text, scope) for text in texts]
            return [{"path": rule.path, "glob": rule.glob, "source": rules.get("source", "user")} for rule in found]

        request = {
            "shell": shell, "cwd": str(cwd), "project": str(project), "home": str(self.home),
            "allow_write": read(rules.get("allow_write", ())), "deny_write": read(rules.get("deny_write", ())),
            "deny_read": read(rules.get("deny_read", ())), "allow_read": read(rules.get("allow_read", ())),
            "allow_git_config": rules.get("allow_git_config", False), "depth": rules.get("depth", 3),
            "settings_files": [str(path) for path in rules.get("settings_files", ())],
            "daemon_paths": [str(path) for path in rules.get("daemon_paths", ())],
            "env": {**GIT, "HOME": str(self.home), **rules.get("env", {})},
        }  # fmt: skip
        print(json.dumps(request), file=self._requests, flush=True)
        line = self._answers.readline()
        assert line, "the runner died"
        return Done(**json.loads(line))

    def host(self, shell: str, *, cwd: Path | None = None, check: bool = True) -> str:
        """A shell line outside of any sandbox, as the same person."""
        environment = self.identity.environment(**GIT, GIT_CONFIG_NOSYSTEM="1")
        done = self.identity.run(["/bin/sh", "-ec", shell], cwd=cwd or self.workspace, env=environment)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout


def _make(identity: Identity) -> Path:
    path = identity.base / "lab"
    path.mkdir(mode=0o700)
    return identity.own(path)
