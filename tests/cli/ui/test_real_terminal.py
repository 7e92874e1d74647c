"""`sandboxd ui` on a real terminal: keys, the mouse, and the terminal as it was before."""

from __future__ import annotations

from sandboxd_client.testing import FakeDaemon
from support.terminal import Terminal
from support.waiting import wait_until

from ..conftest import CommandLine


def test_keys_and_mouse_work_and_the_terminal_is_restored(daemon: FakeDaemon) -> None:
    cli = CommandLine(daemon)
    env = {**cli.env, "TERM": "xterm-256color", "NO_COLOR": "1"}
    script = 'stty rows 24 cols 80; was=$(stty -g); "$@"; echo "status $?"; [ "$(stty -g)" = "$was" ] && echo restored'
    with Terminal(["sh", "-c", script, "sh", *cli.argv, "ui"], env=env) as opened:
        opened.expect("210 MiB")
        opened.press("2")
        opened.expect(r"May a command reach ask1\.test:443\?")
        opened.expect("no, never")

        def answered() -> list[object]:
            opened.press("n")  # the first may be too early: the question has just appeared
            return [call.params["behavior"] for call in daemon.calls if call.method == "sandbox_permission_response"]

        assert wait_until(answered)[0] == "deny"
        opened.press("\x1b[<0;45;2M\x1b[<0;45;2m")  # a click on "5 Layers"
        opened.expect("lsm=landlock")
        opened.press("q")
        opened.expect("status 0")
        opened.expect("restored")


def test_it_needs_a_terminal_and_its_library(daemon: FakeDaemon) -> None:
    cli = CommandLine(daemon)
    done = cli.run("ui")
    assert done.returncode == 2 and "needs a terminal" in done.stderr
    code = "import sys; sys.modules['textual'] = None; from sandboxd.cli.main import execute; sys.exit(execute(['ui']))"
    with Terminal([cli.argv[0], "-c", code], env=cli.env) as opened:
        opened.expect("needs the package textual, which is not installed")
        opened.expect(r"pip install 'sandboxd\[ui\]'")
        assert opened.wait() == 125
