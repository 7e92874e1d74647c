"""Runs the real git in every directory below some others, as a person would who goes there: git is the judge of what it
obeys. What is planted names a canary, a program that notes its own name in a file.

Run as the user to be protected, and without sandboxd's code: `python git_oracle.py EMPTY_HOME DIRECTORY…`.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import threading

COMMANDS = (
    ["status"],
    ["log", "-p", "-1"],
    ["diff", "HEAD"],
    ["fetch", "-q", "--recurse-submodules", "--no-auto-gc"],
    ["ls-files", "-m"],
    ["add", "-A"],
    ["commit", "-q", "--allow-empty", "-m", "x"],
)
"""The first ones only look; the last ones write."""
KEYS = """
[core]
    repositoryFormatVersion = 1
    fsmonitor = {canary}
    sshCommand = {canary}
    pager = {canary}
    editor = {canary}
    askPass = {canary}
    gitProxy = {canary}
    alternateRefsCommand = {canary}
[protocol]
    allow = always
[filter "f"]
    clean = {canary}
    smudge = {canary}
    process = {canary}
[diff]
    external = {canary}
[diff "d"]
    textconv = {canary}
    command = {canary}
[merge "m"]
    driver = {canary}
[gpg]
    program = {canary}
[commit]
    gpgSign = true
[credential]
    helper = !{canary}
[remote "origin"]
    url = ext::{canary}
    uploadPack = {canary}
    receivePack = {canary}
    promisor = true
[branch "main"]
    remote = origin
    merge = refs/heads/main
[sequence]
    editor = {canary}
[uploadpack]
    packObjectsHook = {canary}
[interactive]
    diffFilter = {canary}
"""
"""A canary in each key that runs a program."""


def main(home: str, *tops: str) -> None:
    environment = {
        "PATH": os.environ["PATH"], "HOME": home, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a.test", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@a.test", "GIT_TEST_FSYNC": "0", "TERM": "dumb",
    }  # fmt: skip
    ours, terminal = pty.openpty()  # pagers are for terminals
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()

    def run(directory: str, *command: str, output: int = terminal) -> bytes:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(
                ["git", *command], cwd=directory, env=environment, timeout=10, check=False,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL,
            ).stdout or b""  # fmt: skip
        return b""

    repositories: dict[bytes, str] = {}
    for top in tops:
        for directory, below, _ in os.walk(top):
            if not below and len(os.path.basename(directory)) == 2:
                continue  # one of the many that only hold objects
            answers = ("--absolute-git-dir", "--git-common-dir", "--is-bare-repository", "--is-inside-git-dir")
            found = run(directory, "rev-parse", *answers, output=subprocess.PIPE)
            repositories.setdefault(found, directory)
    for command in COMMANDS:
        for directory in repositories.values():
            run(directory, *command)


def _drain(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65536):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
