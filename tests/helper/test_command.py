"""What the command finds when it starts, and how its end is reported."""

from __future__ import annotations

import os
import resource
import signal
import subprocess

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import ExecFailed, Exited, Started

from .conftest import OPTIONS, Launcher, configuration


class TestStatus:
    @pytest.mark.parametrize("status", [0, 1, 2, 3, 42, 124, 125, 126, 127, 128, 255])
    def test_the_commands_own(self, launch: Launcher, status: int) -> None:
        sandbox = launch(["sh", "-c", f"exit {status}"])
        sandbox.expect(Started(), Exited(status, 0))
        assert sandbox.finish() == (status, "", "")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGUSR1])
    def test_a_signal(self, launch: Launcher, number: signal.Signals) -> None:
        sandbox = launch(["sh", "-c", f"kill -{int(number)} $$"])
        sandbox.expect(Started(), Exited(128 + number, number))
        assert sandbox.finish()[0] == 128 + number

    def test_streams_are_the_owners(self, launch: Launcher) -> None:
        sandbox = launch(["sh", "-c", "cat; echo err >&2"], stdin=subprocess.PIPE)
        assert sandbox.process.communicate(b"in") == (b"in", b"err\n")

    def test_the_end_of_the_command_is_the_end_of_all(self, launch: Launcher) -> None:
        """Also while others still hold the output open: the read below would otherwise never end."""
        sandbox = launch(
            ["sh", "-c", "(setsid sleep 1000 &) ; (trap '' TERM; nohup sleep 1000 &) ; sleep 1000 & exit 5"]
        )
        assert sandbox.finish() == (5, "", "")

    def test_orphans_are_reaped(self, launch: Launcher) -> None:
        """init becomes the parent of orphans; two hundred dead ones leave no trace."""
        count = "n=0; for s in /proc/[0-9]*/stat; do n=$((n+1)); done; [ $n -lt 20 ]"
        script = f"i=0; while [ $i -lt 200 ]; do (true & ) ; i=$((i+1)); done; until {count}; do :; done; exit 9"
        assert launch.run(["sh", "-c", script])[0] == 9

    def test_an_orphans_status_is_not_the_commands(self, launch: Launcher) -> None:
        script = "(sh -c 'exit 77' &) ; (sh -c 'kill -9 $$' &) ; sleep 0.1; exit 4"
        assert launch.run(["sh", "-c", script])[0] == 4


class TestExec:
    def test_not_found(self, launch: Launcher) -> None:
        sandbox = launch(["no-such-program"])
        sandbox.expect(ExecFailed(127, 2), Exited(127, 0))
        status, out, err = sandbox.finish()
        assert (status, out) == (127, "")
        assert err.splitlines()[0] == "sandboxd: cannot run no-such-program: No such file or directory"
        assert err.splitlines()[1].startswith("hint: ") and len(err.splitlines()) == 2

    @pytest.mark.parametrize(
        ("name", "status", "reason"),
        [
            ("/etc/passwd", 126, "Permission denied"),
            ("/etc", 126, "Permission denied"),
            ("/etc/passwd/x", 126, "Not a directory"),
            ("/no/such/file", 127, "No such file or directory"),
            ("", 127, "No such file or directory"),
            ("x" * 300, 126, "error 36"),
            ("./script", 126, "Exec format error"),
            ("./interpreter-missing", 127, "No such file or directory"),
        ],
    )
    def test_the_statuses_of_env(self, launch: Launcher, name: str, status: int, reason: str) -> None:
        launch.identity.write(launch.identity.workspace / "script", "echo no interpreter line\n", mode=0o755)
        launch.identity.write(launch.identity.workspace / "interpreter-missing", "#!/no/such\n", mode=0o755)
        got, out, err = launch.run([name])
        assert (got, out) == (status, "")
        assert (
            err.splitlines()[0]
            == f"sandboxd: cannot run {name[:160]}{' ' if not name else ''}".rstrip() + f": {reason}"
        )

    def test_a_name_is_shown_without_what_a_terminal_would_obey(self, launch: Launcher) -> None:
        _, _, err = launch.run([b"/no/\x1b]0;title\x07\n\xc2\x9bname"])
        assert err.splitlines()[0] == "sandboxd: cannot run /no/?]0;title????name: No such file or directory"

    def test_path_is_searched_in_its_order(self, launch: Launcher) -> None:
        home = launch.identity.workspace
        for folder in ("one", "two"):
            launch.identity.write(home / folder / "tool", f"#!/bin/sh\necho {folder}\n", mode=0o755)
        launch.identity.write(home / "zero" / "tool", "not executable")
        path = f"relative:/nonexistent:/etc/passwd:{home}/zero:{home}/two:{home}/one:/usr/bin:/bin"
        env = {"PATH": path, "HOME": "/"}
        assert launch.run(["tool"], env=env) == (0, "two\n", "")

    def test_path_prefers_to_report_what_may_not_be_executed(self, launch: Launcher) -> None:
        home = launch.identity.workspace
        launch.identity.write(home / "zero" / "tool", "not executable")
        status, _, err = launch.run(["tool"], env={"PATH": f"/nonexistent:{home}/zero:/usr/bin"})
        assert status == 126 and "Permission denied" in err

    def test_an_empty_entry_is_the_current_directory(self, launch: Launcher) -> None:
        launch.identity.write(launch.identity.workspace / "tool", "#!/bin/sh\necho here\n", mode=0o755)
        for path in (":/usr/bin", "/nonexistent::/usr/bin", "/nonexistent:"):
            assert launch.run(["tool"], env={"PATH": path}) == (0, "here\n", "")

    def test_without_path_there_is_a_usual_one(self, launch: Launcher) -> None:
        assert launch.run(["sh", "-c", "echo ok"], env={"HOME": "/"}) == (0, "ok\n", "")

    def test_an_overlong_entry_is_left_out(self, launch: Launcher) -> None:
        env = {"PATH": "/" + "x" * 5000 + ":/usr/bin:/bin"}
        assert launch.run(["sh", "-c", "echo ok"], env=env) == (0, "ok\n", "")


class TestSurroundings:
    def test_descriptors(self, launch: Launcher) -> None:
        assert launch.run(["ls", "/proc/self/fd"]) == (0, "0\n1\n2\n3\n", "")

    def test_credentials(self, launch: Launcher) -> None:
        names = ["NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapAmb", "SigBlk", "SigIgn"]
        sandbox = launch(["/usr/bin/env", "sh", "-c", "cat /proc/self/status"])
        _, out, _ = sandbox.finish()
        found = dict(line.split(":\t") for line in out.splitlines() if ":\t" in line)
        assert [found[name] for name in names] == ["1", "2", *["0" * 16] * 6]

    def test_uids_are_the_owners(self, launch: Launcher) -> None:
        assert launch.run(["id", "-u"]) == (0, f"{launch.identity.uid}\n", "")

    def test_blocked_signals_are_forgotten_and_ignored_ones_kept(self, launch: Launcher) -> None:
        """As without a sandbox, but for SIGCHLD: a shell must see its children end."""
        ignore = "trap '' INT QUIT PIPE USR1 CHLD TERM TSTP TTOU; exec \"$@\""
        sandbox = launch.start(["sh", "-c", ignore, "sh", *launch.words()], preexec_fn=_block_everything)
        sandbox.accept()
        sandbox.send(configuration(["sh", "-c", "grep ^Sig[IB] /proc/self/status; sleep 0 & wait $!; echo $?"]))
        status, out, _ = sandbox.finish()
        assert status == 0
        kept = ("INT", "QUIT", "PIPE", "USR1", "TERM", "TSTP", "TTOU")
        ignored = sum(1 << signal.Signals[f"SIG{name}"] - 1 for name in kept)
        assert out.split() == ["SigBlk:", "0" * 16, "SigIgn:", f"{ignored:016x}", "0"]

    def test_nohup(self, launch: Launcher) -> None:
        sandbox = launch.start(["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *launch.words()])
        sandbox.accept()
        sandbox.send(configuration(["grep", "SigIgn", "/proc/self/status"]))
        assert sandbox.finish() == (0, "SigIgn:\t0000000000000001\n", "")

    def test_no_cores_unless_the_command_wants_them(self, launch: Launcher) -> None:
        """The owner's own limit counts for nothing; how far it can be raised is still theirs to say."""
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        sandbox = launch.start(["sh", "-c", 'ulimit -S -c "$(ulimit -H -c)"; exec "$@"', "sh", *launch.words()])
        sandbox.accept()
        sandbox.send(configuration(["sh", "-c", 'ulimit -S -c; ulimit -H -c; ulimit -S -c "$(ulimit -H -c)"']))
        status, out, _ = sandbox.finish()
        assert (status, out) == (0, f"0\n{'unlimited' if hard == resource.RLIM_INFINITY else hard // 512}\n")

    @pytest.mark.parametrize("owners", [None, 5000])
    def test_a_limit_on_processes_is_never_above_the_owners(self, launch: Launcher, owners: int | None) -> None:
        lowered = "" if owners is None else f"ulimit -u {owners}; "
        sandbox = launch.start(["bash", "-c", f'{lowered}exec "$@"', "sh", *launch.words()])
        sandbox.accept()
        sandbox.send(configuration(["bash", "-c", "ulimit -S -u; ulimit -H -u; ulimit -u 6001"], processes=6000))
        status, out, _ = sandbox.finish()
        assert (status, out) == (1, "6000\n6000\n" if owners is None else f"{owners}\n{owners}\n")

    def test_init_leaves_no_core(self, launch: Launcher) -> None:
        """It is not dumpable from the beginning, and sets the limit as well, beside the start of the command."""
        script = 'until grep -q "^Max core file size  *0  *0 " /proc/1/limits; do :; done; echo zero'
        assert launch.run(["sh", "-c", script]) == (0, "zero\n", "")

    def test_init_has_a_name(self, launch: Launcher) -> None:
        assert launch.run(["cat", "/proc/1/comm"]) == (0, "sandboxd-init\n", "")

    def test_environment_and_directory_are_the_owners(self, launch: Launcher) -> None:
        cwd = launch.identity.home
        result = launch.run(["sh", "-c", "pwd; echo $A"], env={"A": "1", "PATH": "/usr/bin:/bin"}, cwd=cwd)
        assert result == (0, f"{cwd}\n1\n", "")

    def test_a_capability_left_over_stops_everything(self, launch: Launcher) -> None:
        options = [word for word in OPTIONS if word not in {"--cap-drop", "ALL"}]
        sandbox = launch.start(launch.words((*options, "--cap-add", "CAP_NET_ADMIN")))
        sandbox.accept()
        sandbox.send(configuration(["echo", "ran"]))
        status, out, err = sandbox.finish()
        assert (status, out) == (125, "")
        assert err.startswith("sandboxd: the sandbox still holds capabilities\nhint: ")

    def test_without_a_pid_namespace_of_its_own_nothing_starts(self, launch: Launcher) -> None:
        """Process 1 is what makes sure that nothing survives."""
        options = [word for word in OPTIONS if word != "--as-pid-1"]
        sandbox = launch.start(launch.words(options))
        sandbox.accept()
        sandbox.send(configuration(["echo", "ran"]))
        status, out, err = sandbox.finish()
        assert (status, out) == (125, "") and "init is not process 1" in err


class TestProcessGroup:
    SCRIPT = "import os; print(os.getpgrp() == os.getpid(), os.getpgrp(), os.getsid(0))"

    def test_without_a_terminal_the_command_leads_its_own(self, launch: Launcher) -> None:
        sandbox = launch.python(self.SCRIPT, start_new_session=True)
        assert sandbox.finish()[1].split()[0] == "True"

    def test_kill_zero_does_not_reach_the_owner(self, launch: Launcher) -> None:
        """The owner of an agent's command is the agent, in the same process group."""
        owner = launch.identity.python("-c", "import subprocess, sys; print(subprocess.run(sys.argv[1:]).returncode)")
        sandbox = launch.start([*owner, *launch.words()], start_new_session=True)
        sandbox.accept()
        sandbox.send(configuration(["sh", "-c", "kill -9 0; sleep 1000"]))
        out, _ = sandbox.process.communicate()
        assert (sandbox.process.returncode, out) == (0, b"137\n")


def _block_everything() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.umask(0o022)
