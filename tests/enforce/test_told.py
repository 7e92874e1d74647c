"""The lines of `run` after a command, and the words that programs print of a refusal."""

from __future__ import annotations

import shutil

import pytest

from sandboxd.policy.explain.tools import tool_of
from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.terminal import Terminal
from support.users import Identity

REFUSED = "echo x > ~/notes; curl -sS http://no.test/ http://no.test/ >&2; exit "
LINES = {
    "sandboxd: blocked writing ~/notes: the home directory is read-only in the sandbox: touch ~/notes && "
    "sandboxd allow path ~/notes",
    "sandboxd: blocked connecting to no.test (2 times): add it with: sandboxd allow domain no.test",
}
NO_RULES = {"sandbox": {"network": {"strictAllowlist": True}}}


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    return start_daemon(settings=NO_RULES)


def told(text: str, identity: Identity) -> set[str]:
    return {line.replace(str(identity.home), "~") for line in text.splitlines() if line.startswith("sandboxd: ")}


def on_terminal(daemon: DaemonProcess, *words: str) -> Terminal:
    identity = daemon.identity
    ids = (f"--reuid={identity.uid}", f"--regid={identity.gid}", "--clear-groups")
    argv = [*(() if identity.is_me else ("setpriv", *ids)), *identity.command(*words)]
    return Terminal(argv, env=daemon.environment(), cwd=identity.workspace)


def test_a_failed_command_is_told_what_was_blocked(daemon: DaemonProcess, identity: Identity) -> None:
    """One line for each kind, on standard error alone; a terminal has them after a success, too."""
    for status, options, expected in ((3, (), LINES), (0, (), set()), (3, ("--quiet",), set())):
        done = daemon.run("run", *options, "-c", f"{REFUSED}{status}")
        assert (done.returncode, done.stdout, told(done.stderr, identity)) == (status, "", expected), done.stderr
    for options, expected in (((), LINES), (("--quiet",), set())):
        with on_terminal(daemon, "run", *options, "-c", f"{REFUSED}0") as terminal:
            assert terminal.wait() == 0
        assert told(terminal.text, identity) == expected, terminal.text


PRINTED = [
    # (command, program, words that it prints itself)
    ("python3 -m pip download --retries 1 -i https://no.test/s x", "python3", "403 Forbidden by sandboxd: no"),
    ("curl -sv https://no.test/", "curl", "403 Forbidden by sandboxd: no.test:443 is not on the list"),
    ("curl -sS https://no.test/", "curl", "CONNECT tunnel failed, response 403"),
    ("npm view x --registry https://no.test/ --fetch-retries=0", "npm", "403"),
    ("git fetch https://no.test/x.git", "git", "CONNECT tunnel failed, response 403"),
]  # fmt: skip


def test_what_programs_print_of_a_refusal(daemon: DaemonProcess, identity: Identity) -> None:
    """Those that show the reason phrase show the words of the decision; below stands the same for all of them."""
    daemon.run("run", "--", "git", "init", "-q")
    for line, program, words in PRINTED:
        if shutil.which(program, path=identity.environment()["PATH"]) is None:
            continue
        done = daemon.run("run", "-c", line)
        assert done.returncode and words in done.stdout + done.stderr, (line, done)
        start = "sandboxd: blocked connecting to no.test"
        (below,) = [one for one in done.stderr.splitlines() if one.startswith(start)]
        tool = tool_of(line)
        assert below.endswith("sandboxd allow domain no.test"), below
        assert (f"the hosts of {tool}: sandboxd allow tool {tool}; this one alone:" in below) is bool(tool), below


def test_run_asks_in_its_own_terminal(start_daemon: StartDaemon, origin: Origin) -> None:
    """As `prompts` does in another one: a yes lets the connection through, a no is told."""
    daemon = start_daemon(resolve={"no.test": "127.0.0.1"})
    for key, status, words in (("y", 0, "hello"), ("n", 22, "blocked connecting to no.test")):
        with on_terminal(daemon, "run", "--ask", "curl", "-sf", f"http://no.test:{origin.port}/") as terminal:
            terminal.expect(f"May a command reach no.test:{origin.port}")
            terminal.expect(r"no answer in")
            terminal.press(key)
            assert terminal.wait() == status, terminal.text
            assert words in terminal.text
    refused = daemon.run("run", "--ask", "true")
    assert refused.returncode == 2 and "--ask needs a terminal" in refused.stderr


def test_a_program_that_exists_only_outside_is_explained(start_daemon: StartDaemon, identity: Identity) -> None:
    """A script whose interpreter lies in a place that is not shown fails as if it did not exist."""
    python = identity.write(identity.home / "hidden" / "python", "#!/bin/sh\necho ran\n", mode=0o755)
    script = identity.write(identity.workspace / "tool", f"#!{python}\n", mode=0o755)
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": ["~/hidden"]}}})
    for words in (["./tool"], [str(python)]):
        done = daemon.run("run", *words)
        assert done.returncode in (126, 127) and "exists, but not in the sandbox: reading" in done.stderr, done
    assert script and daemon.run("run", "no-such-program").stderr.count("exists, but") == 0
