"""`sandboxd run` as a process: streams, exit statuses, what is refused with one clear line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd import __version__
from sandboxd_client import RpcError
from sandboxd_client.testing import FakeDaemon

LINE = re.compile(r"sandboxd: [^\n]+\n(hint: [^\n]+\n)?")


def test_streams_and_status_are_the_commands(cli: CommandLine) -> None:
    done = cli.run("run", "--", "sh", "-c", "cat; echo err >&2; exit 7", input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\n", "err\n")
    assert cli.run("run", "-c", "echo $((1 + 1)) | cat").stdout == "2\n"
    assert cli.run("run", "--", "sh", "-c", "kill -SEGV $$").returncode == 139
    assert cli.run("run", "--", "true").returncode == 0
    for status in (1, 2, 125, 126, 127, 255):
        done = cli.run("run", "-c", f"exit {status}")
        assert (done.returncode, done.stderr) == (status, "")


def test_what_follows_the_dashes_belongs_to_the_command(cli: CommandLine, fake: FakeDaemon) -> None:
    done = cli.run("run", "--", "printf", "%s|", "--help", "--cwd", "--", "-c", "", "é \n")
    assert done.stdout == "--help|--cwd|--|-c||é \n|"


def test_options_travel_as_overrides(cli: CommandLine, fake: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    done = cli.run(
        "run", "--cwd", "web", "--allow-domain", "ok.test", "--allow-domain=*.x.test", "--allow-write", "out",
        "--allow-write", "~/cache", "--allow-read", "/abs", "--settings", "s.json", "--session", "S1", "-c", "pwd",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path / "web")
    params = fake.wait_for_call("wrap").params
    assert params["command"] == "pwd" and params["session_id"] == "S1"
    assert params["cwd"] == str(tmp_path / "web")
    assert params["overrides"] == {
        "allow_domains": ["ok.test", "*.x.test"],
        "allow_write": [str(tmp_path / "out"), "~/cache"],
        "allow_read": ["/abs"],
        "settings": str(tmp_path / "s.json"),
    }


def test_ports_to_publish_travel(cli: CommandLine, fake: FakeDaemon) -> None:
    cli.run("run", "--publish", "8080:3000", "--publish=[::1]:0:80", "--", "true")
    assert fake.wait_for_call("wrap").params["overrides"] == {"publish": ["8080:3000", "[::1]:0:80"]}


def test_without_another_directory_paths_stay_relative(cli: CommandLine, fake: FakeDaemon, tmp_path: Path) -> None:
    cli.run(
        "run", "--allow-write", "out", "--allow-write", "./o2", "--allow-write", "../o3", "--", "true", cwd=tmp_path
    )
    assert fake.wait_for_call("wrap").params["overrides"]["allow_write"] == ["./out", "./o2", "./../o3"]


def test_the_environment_is_inherited_with_the_daemons_changes(cli: CommandLine) -> None:
    done = cli.run("run", "-c", 'echo "$MINE $SANDBOX_RUNTIME"', env={**cli.env, "MINE": "é"})
    assert done.stdout == "é 1\n"
    raw = {**{name.encode(): value.encode() for name, value in cli.env.items()}, b"ODD": b"\xff"}
    shown = cli.run("run", "-c", 'printf %s "$ODD" | od -An -tx1', env=raw)
    assert shown.stdout.strip() == "ff"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "unknown command rnu"),
        (["--versoin"], "unknown option --versoin"),
        (["run"], "no command given"),
        (["run", "--"], "no command given"),
        (["run", "--allow-domian", "x", "--", "true"], "unknown option --allow-domian"),
        (["run", "-c"], "-c needs a value"),
        (["run", "-c", "true", "--", "true"], "unexpected word true beside -c TEXT"),
        (["run", "-c", "true", "x"], "unexpected word x beside -c TEXT"),
        (["run", "--grace", "soon", "--", "true"], "--grace needs a number of seconds"),
        (["run", "--cwd", "/nonexistent", "--", "true"], "/nonexistent is not a directory"),
        (["run", "--", ""], "the command is empty"),
        (["status", "x"], "unexpected word x"),
        (["explain"], "explain needs a kind and a target"),
        (["explain", "hots", "x"], "cannot explain hots"),
        (["explain", "host"], "explain host needs"),
        (["explain", "command", "rm", "x"], "unexpected word x"),
        (["explain", "host", "x", "--write"], "--write is for explain path"),
        (["settings"], "settings needs a command"),
        (["settings", "shwo"], "unknown settings command shwo"),
        (["settings", "show", "a", "b"], "unexpected word b"),
        (["serve", "--log-format", "xml"], "--log-format must be console or json"),
        (["serve", "now"], "unexpected word now"),
    ],
)
def test_usage_errors_are_one_line_and_status_2(
    cli: CommandLine, fake: FakeDaemon, arguments: list[str], message: str
) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert LINE.fullmatch(done.stderr) and message in done.stderr
    assert not fake.calls


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version(cli: CommandLine, option: str) -> None:
    assert cli.run(option).stdout == f"sandboxd {__version__}\n"


def test_help_of_a_command_by_two_ways(cli: CommandLine) -> None:
    assert cli.run("help", "run").stdout == cli.run("run", "--help").stdout != ""
    assert cli.run("help").stdout == cli.run("--help").stdout


def test_alone_it_shows_the_state_and_where_to_begin(cli: CommandLine) -> None:
    done = cli.run()
    assert done.returncode == 0 and done.stdout.startswith(("running:", "not running"))
    for command in ("sandboxd run ", "sandboxd violations ", "sandboxd allow "):
        assert f"\n  {command}" in done.stdout


def test_suggestions(cli: CommandLine) -> None:
    assert "hint: did you mean run?" in cli.run("rnu").stderr
    assert "hint: did you mean --allow-domain?" in cli.run("run", "--allow-domian", "x", "--", "true").stderr


@pytest.mark.parametrize(
    "words", [["npm", "test"], ["npm", "--help"], ["npm", "--", "x"], ["npm", "-c", "x"], ["-", "--cwd", "/"]]
)
def test_options_end_at_the_first_word_of_the_command(cli: CommandLine, fake: FakeDaemon, words: list[str]) -> None:
    """The options behind it are the command's, and so is `--`."""
    for before in ([], ["--"]):
        cli.run("run", "--allow-domain", "a.test", *before, *words)
        params = [call.params for call in fake.calls if call.method == "wrap"][-1]
        assert params["argv"] == words
        assert params["overrides"] == {"allow_domains": ["a.test"]}


@pytest.mark.parametrize("command", [[b"run", b"--", b"printf", b"\xff"], [b"run", b"-c", b"echo \xff"]])
def test_bytes_that_are_no_utf_8_are_refused_and_nothing_runs(
    cli: CommandLine, fake: FakeDaemon, command: list[bytes]
) -> None:
    done = cli.run(*command)
    assert done.returncode == 2
    assert LINE.fullmatch(done.stderr) and "not UTF-8" in done.stderr
    assert not fake.calls


def in_process(arguments: list[str], fake: FakeDaemon) -> subprocess.CompletedProcess[str]:
    """`run` with arguments that no process can be given from outside."""
    code = f"import sys; from sandboxd.cli.main import execute; sys.exit(execute({arguments!r}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SANDBOXD_SOCKET": fake.socket}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["run", "-c", "a\0b"], ["run", "--", "a", "\0"]])
def test_a_nul_is_refused(fake: FakeDaemon, arguments: list[str]) -> None:
    done = in_process(arguments, fake)
    assert done.returncode == 2 and "NUL character" in done.stderr
    assert not fake.calls


def test_a_long_command_is_sent_whole(cli: CommandLine, fake: FakeDaemon, tmp_path: Path) -> None:
    """200 KB: more than one argument of a program may have, so only the daemon can pass it on."""
    script = tmp_path / "call.py"
    script.write_text(
        "import sys\nfrom sandboxd.cli.main import execute\n"
        "sys.exit(execute(['run', '-c', 'echo ' + 'x' * 200_000 + '; exit 9']))\n"
    )

    def run_from_a_file(params: Any) -> list[str]:
        (tmp_path / "command").write_text(params["command"])
        return ["/bin/sh", str(tmp_path / "command")]

    fake.argv = run_from_a_file
    done = subprocess.run([sys.executable, script], env=cli.env, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout)) == (9, 200_001)


@pytest.mark.parametrize("status", [1, 125])
def test_a_sandbox_that_could_not_be_set_up_is_125(cli: CommandLine, fake: FakeDaemon, status: int) -> None:
    fake.not_started("no user namespaces", "run: sysctl …")
    done = cli.run("run", "-c", f"exit {status}")
    assert done.returncode == 125
    assert done.stderr == "sandboxd: the sandbox could not be set up: no user namespaces\nhint: run: sysctl …\n"


def test_the_daemon_is_asked_only_about_ambiguous_statuses(cli: CommandLine, fake: FakeDaemon) -> None:
    """`run` asks for the refusals of a failed command, except with --quiet."""
    fake.not_started()
    assert cli.run("run", "-c", "exit 0").returncode == 0
    assert cli.run("run", "--quiet", "-c", "exit 3").returncode == 3
    assert [heard.method for heard in fake.calls] == ["wrap", "wrap"]
    assert cli.run("run", "-c", "exit 3").returncode == 3
    assert fake.calls[-1].method == "wrap.outcome"


def test_an_argv_that_cannot_be_spawned_is_125(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.argv = lambda params: ["/nonexistent/helper"]
    done = cli.run("run", "--", "true")
    assert done.returncode == 125
    assert LINE.fullmatch(done.stderr) and "/nonexistent/helper" in done.stderr


def test_an_error_of_the_daemon_is_125_with_its_words(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.answer("wrap", RpcError("settings_invalid", "settings.json:3: no\nsuch \x1b[31mkey", "remove it"))
    done = cli.run("run", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "sandboxd: settings.json:3: no such \\x1b[31mkey\nhint: remove it\n"


def test_warnings_are_told(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.answer("wrap", lambda params: {**fake._wrap(params), "warnings": ["no transparent capture"]})
    done = cli.run("run", "-c", "echo ran")
    assert (done.stdout, done.stderr) == ("ran\n", "sandboxd: warning: no transparent capture\n")


def test_without_a_daemon(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.close()
    os.mkdir(os.path.dirname(fake.socket), 0o700)
    try:
        done = cli.run("run", "--no-autostart", "-c", "echo ran")
    finally:
        os.rmdir(os.path.dirname(fake.socket))
    assert (done.returncode, done.stdout) == (125, "")
    assert LINE.fullmatch(done.stderr) and "is not running" in done.stderr


@pytest.mark.parametrize("socket", ["relative", "/" + "x" * 200])
def test_a_socket_path_that_can_be_none(cli: CommandLine, socket: str) -> None:
    done = cli.run("run", "-c", "echo ran", env={**cli.env, "SANDBOXD_SOCKET": socket})
    assert (done.returncode, done.stdout) == (125, "")
    assert LINE.fullmatch(done.stderr) and "SANDBOXD_SOCKET" in done.stderr


def test_violations_are_shown_on_request(cli: CommandLine, fake: FakeDaemon) -> None:
    violation = {
        "id": 1, "time": 1.0, "session_id": "s", "command_id": "c", "kind": "network", "operation": "CONNECT",
        "target": "no.test:443\x1b]", "outcome": "hostDenied", "source": "proxy", "rule": "no.test", "count": 3,
        "process": "curl", "hint": "do something", "inferred": True,
    }  # fmt: skip
    fake.answer(
        "wrap.outcome",
        {"started": True, "exited": True, "status": 1, "reason": None, "violations": [violation], "violations_lost": 7},
    )
    done = cli.run("run", "--show-violations", "-c", "exit 1")
    assert done.returncode == 1
    assert done.stderr == (
        "sandboxd: blocked network CONNECT no.test:443\\x1b], 3 times, by curl (rule no.test)"
        " (guessed from the output)\n"
        "  hint: do something\n"
        "sandboxd: 7 more were blocked than could be recorded one by one\n"
    )
    fake.answer("wrap.outcome", RpcError("wrap_unknown", "forgotten"))
    done = cli.run("run", "--show-violations", "-c", "exit 4")
    assert done.returncode == 4 and "warning: cannot list what was blocked" in done.stderr


@pytest.mark.parametrize(
    "given",
    [{}, {"LANG": "C"}, {"LC_ALL": "C"}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "POSIX"}, {"LC_CTYPE": "C.UTF-8"},
     {"LC_CTYPE": "no_SUCH"}, {"LANG": "C", "LC_CTYPE": ""}],
    ids=str,
)  # fmt: skip
def test_the_command_gets_the_callers_locale(cli: CommandLine, given: dict[str, str]) -> None:
    """And everything else: where the locale is C, Python gives itself another one and its children, too."""
    rest = {name: value for name, value in cli.env.items() if name != "LANG" and not name.startswith("LC_")}
    environment = {**rest, **given}
    program = ["/usr/bin/env", "-0"]
    bare = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    done = cli.run("run", "--", *program, env=environment)
    changed = "SANDBOX_RUNTIME=1\0"
    assert sorted(done.stdout.split("\0")) == sorted((bare.stdout + changed).split("\0")), done.stderr


def test_a_parent_that_ignores_its_children_gets_the_status(cli: CommandLine) -> None:
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", code, *cli.argv, "run", "-c", "exit 6"]
    assert subprocess.run(argv, env=cli.env, check=False).returncode == 6


def test_closed_streams(cli: CommandLine) -> None:
    line = f"exec {' '.join(cli.argv)} run -c 'exit 5' <&- >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", line], env=cli.env, check=False).returncode == 5


def test_the_run_path_imports_the_client_and_next_to_nothing(cli: CommandLine) -> None:
    """Each of these would cost as much as all the rest; measured in docs/client.md."""
    code = (
        "import sys; from sandboxd.cli import main; from sandboxd.cli.execution import run, told; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], env=cli.env, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    dear = {
        "argparse", "asyncio", "contextlib", "collections", "dataclasses", "enum", "functools", "importlib.util",
        "json", "logging", "pathlib", "re", "shlex", "shutil", "signal", "socket", "subprocess", "threading", "typing",
    }  # fmt: skip
    assert not loaded & dear
    ours = {name for name in loaded if name.startswith("sandboxd.")}
    assert all(name.startswith("sandboxd.cli") for name in ours)
