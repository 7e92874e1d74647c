"""Behaviour of `subprocess` as a table: each row is run with two modules of these names, which must say the same.

Standard library only: a test also runs it as another user."""

from __future__ import annotations

import os
import signal
import subprocess as cpython
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENV = {"PATH": os.environ["PATH"], "NAME": "válue"}


def said(action: Callable[[Any, Path], Any], module: Any, where: Path) -> object:
    """Return the result or error of an action in comparable form."""
    try:
        result = action(module, where)
    except cpython.CalledProcessError as error:
        return "CalledProcessError", error.returncode, error.cmd, error.stdout, error.stderr, str(error)
    except cpython.TimeoutExpired as error:
        return "TimeoutExpired", error.cmd, error.timeout, error.stdout
    except OSError as error:
        return type(error).__name__, error.errno, error.filename
    except Exception as error:
        return type(error).__name__, str(error)
    if isinstance(result, cpython.CompletedProcess):
        return "done", result.args, result.returncode, result.stdout, result.stderr
    return result


def spoken(process: Any, *said: Any) -> tuple[Any, ...]:
    with process:
        return (*process.communicate(*said), process.returncode, process.args)


def written(sp: Any, where: Path) -> Any:
    with open(where / "out", "w+") as file:
        code = sp.run("echo out; echo err >&2", shell=True, stdout=file, stderr=sp.STDOUT).returncode
        file.seek(0)
        return code, file.read()


def from_file(sp: Any, where: Path) -> Any:
    (where / "in").write_text("line\n")
    with open(where / "in") as file:
        return sp.run(["cat"], stdin=file, stdout=sp.PIPE)


def dialogue(sp: Any, where: Path) -> Any:
    with sp.Popen(["cat"], stdin=sp.PIPE, stdout=sp.PIPE, text=True, bufsize=1) as process:
        process.stdin.write("one\n")
        process.stdin.flush()
        first = process.stdout.readline()
        process.stdin.close()
        return first, process.stdout.read(), process.wait(), process.poll()


def ended_by(number: int, line: str) -> Callable[[Any, Path], Any]:
    def action(sp: Any, where: Path) -> Any:
        with sp.Popen(["sh", "-c", line], stdout=sp.PIPE, text=True) as process:
            process.stdout.readline()
            assert process.poll() is None
            process.send_signal(number)
            return process.wait(20), process.returncode, process.stdout.read()

    return action


def killed(sp: Any, where: Path) -> Any:
    process = sp.Popen("echo up; exec sleep 1000", shell=True, stdout=sp.PIPE)
    process.stdout.readline()
    process.kill()
    code = process.wait(20)
    process.stdout.close()
    return code


def polled(sp: Any, where: Path) -> Any:
    codes = []
    for line in ("exit 143", "kill $$"):
        process = sp.Popen(["sh", "-c", line])
        while process.poll() is None:
            time.sleep(0.01)
        codes.append(process.returncode)
    return codes


def many_threads(sp: Any, where: Path) -> Any:
    results: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: sp.run(["sh", "-c", f"exit {n}"]).returncode}))
        for n in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return results


ROWS: dict[str, Callable[[Any, Path], Any]] = {
    "bytes": lambda sp, where: sp.run(["printf", r"\377a"], capture_output=True),
    "text": lambda sp, where: sp.run(["printf", "é\\r\\nb"], capture_output=True, text=True),
    "encoding": lambda sp, where: sp.run(["cat"], input="é", encoding="latin-1", stdout=sp.PIPE),
    "errors": lambda sp, where: sp.run(["printf", r"\377"], encoding="utf-8", errors="replace", stdout=sp.PIPE),
    "universal newlines": lambda sp, where: sp.run(["printf", r"a\r\nb"], universal_newlines=True, stdout=sp.PIPE),
    "input": lambda sp, where: sp.run(["wc", "-c"], input=b"x" * 300_000, stdout=sp.PIPE),
    "input not read": lambda sp, where: sp.run(["true"], input=b"x" * 300_000),
    "no output": lambda sp, where: sp.run(["true"]),
    "devnull": lambda sp, where: sp.run(["cat"], stdin=sp.DEVNULL, stdout=sp.PIPE, stderr=sp.DEVNULL),
    "stdout to stderr": lambda sp, where: sp.run("echo a; echo b >&2", shell=True, stdout=sp.PIPE, stderr=sp.STDOUT),
    "files": written,
    "stdin from a file": from_file,
    "shell": lambda sp, where: sp.run("echo $((1+1)) | cat; exit 4", shell=True, capture_output=True, text=True),
    "shell with arguments": lambda sp, where: sp.run(["echo $0 $1", "a", "b c"], shell=True, stdout=sp.PIPE),
    "another shell": lambda sp, where: sp.run("echo ${X:=$0}", shell=True, executable="/bin/bash", stdout=sp.PIPE),
    "a string is a program": lambda sp, where: sp.run("true"),
    "path and bytes": lambda sp, where: sp.run([Path("/bin/echo"), b"b", "s"], stdout=sp.PIPE),
    "env": lambda sp, where: sp.run(["sh", "-c", "echo $NAME-$HOME"], env=ENV, stdout=sp.PIPE, text=True),
    "cwd": lambda sp, where: sp.run(["pwd"], cwd=where, stdout=sp.PIPE, text=True),
    "umask": lambda sp, where: sp.run("umask", shell=True, umask=0o077, stdout=sp.PIPE),
    "missing program": lambda sp, where: sp.run(["/no/such/program"]),
    "missing in PATH": lambda sp, where: sp.run(["no-such-program"], env=ENV),
    "not executable": lambda sp, where: sp.run(["/etc/passwd"]),
    "missing cwd": lambda sp, where: sp.run(["true"], cwd=where / "absent"),
    "cwd is a file": lambda sp, where: sp.run(["true"], cwd="/etc/passwd"),
    "missing in the shell": lambda sp, where: sp.run("no-such-program 2>/dev/null", shell=True),
    "nothing to run": lambda sp, where: sp.run([]),
    "check": lambda sp, where: sp.run(["sh", "-c", "echo o; exit 3"], check=True, stdout=sp.PIPE),
    "check of a signal": lambda sp, where: sp.run(["sh", "-c", "kill -9 $$"], check=True),
    "check_output": lambda sp, where: sp.check_output(["echo", "x"], text=True),
    "check_output fails": lambda sp, where: sp.check_output("echo x; exit 1", shell=True, stderr=sp.STDOUT),
    "check_output with input": lambda sp, where: sp.check_output(["cat"], input=b"i"),
    "check_call": lambda sp, where: sp.check_call(["false"]),
    "call": lambda sp, where: sp.call(["sh", "-c", "exit 7"]),
    "call timeout": lambda sp, where: sp.call(["sleep", "1000"], timeout=0.1),
    "getoutput": lambda sp, where: sp.getoutput("echo a; echo b >&2; exit 3"),
    "getstatusoutput": lambda sp, where: sp.getstatusoutput("echo a; exit 3"),
    "timeout": lambda sp, where: sp.run("echo so far; exec sleep 1000", shell=True, stdout=sp.PIPE, timeout=0.5),
    "status above 128": lambda sp, where: sp.run(["sh", "-c", "exit 255"]),
    "a shell's 128+N": lambda sp, where: [sp.call(["sh", "-c", f"exit {128 + n}"]) for n in (2, 9, 64)],
    "of a killed child": lambda sp, where: sp.run("sh -c 'kill -9 $$' 2>/dev/null; exit $?", shell=True),
    "polled": polled,
    "own signal": lambda sp, where: sp.run(["sh", "-c", "kill -TERM $$"]),
    "terminate": ended_by(signal.SIGTERM, "echo up; exec sleep 1000"),
    "interrupt": ended_by(signal.SIGINT, "echo up; exec sleep 1000"),
    "trapped": ended_by(
        signal.SIGTERM, "exec 2>/dev/null; trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done"
    ),
    "kill": killed,
    "communicate": lambda sp, where: spoken(sp.Popen(["cat"], stdin=sp.PIPE, stdout=sp.PIPE), b"said"),
    "communicate text": lambda sp, where: spoken(sp.Popen(["cat"], stdin=sp.PIPE, stdout=sp.PIPE, text=True), "said"),
    "dialogue": dialogue,
    "threads": many_threads,
    "both": lambda sp, where: sp.run(["true"], stdin=sp.PIPE, input=b"x"),
    "capture twice": lambda sp, where: sp.run(["true"], stdout=sp.PIPE, capture_output=True),
    "wrong keyword": lambda sp, where: sp.run(["true"], no_such=1),
    "constants": lambda sp, where: (sp.PIPE, sp.STDOUT, sp.DEVNULL, sp.TimeoutExpired, sp.list2cmdline(["a b"])),
}  # fmt: skip
