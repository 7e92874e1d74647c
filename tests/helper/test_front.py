"""The front of `run`: what it sends, what it takes for an answer, and what it leaves to Python.

The test is the daemon, and `echo` stands for Python: it shows with which arguments that would go on. What `run` does
in the end is tried in tests/cli, with the front and without it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.cli.arguments import HelpAsked, UsageError, parse
from sandboxd.cli.execution import run
from sandboxd_client.errors import InvalidCommand
from sandboxd_client.running import commands
from sandboxd_client.wire import jsontext

from .conftest import CHECKOUT, MACHINE

FRONT = CHECKOUT / "vendor" / "seccomp" / MACHINE / "front"
SCRIPT = "/usr/bin/the-script"
USUAL_WAY = f"-I {SCRIPT} "
HANDED_OVER = "-I -c "
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


class Daemon:
    """Answers each connection once: with what `reply` gives for a request, in pieces of `piece` bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[dict[str, Any]] = []
        self.reply = b""
        self.piece = 1 << 20
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rb") as lines:
                line = lines.readline()
                if line == b"end\n":
                    return
                if line:
                    self.requests.append(json.loads(line))
                for at in range(0, len(self.reply) if line else 0, self.piece):
                    try:
                        connection.sendall(self.reply[at : at + self.piece])
                    except OSError:  # it has heard enough
                        break

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
            last.sendall(b"end\n")
        self._thread.join()
        self._listener.close()

    def front(self, *words: str | bytes, **changes: Any) -> subprocess.CompletedProcess[bytes]:
        """Run the front, and forget earlier requests."""
        self.requests.clear()
        given: dict[str, Any] = {"env": {"SANDBOXD_SOCKET": str(self.path)}, "cwd": "/", **changes}
        return subprocess.run([FRONT, "/usr/bin/echo", SCRIPT, *words], capture_output=True, check=False, **given)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "run").mkdir(mode=0o700)
    one = Daemon(tmp_path / "run" / "sandboxd.sock")
    try:
        yield one
    finally:
        one.close()


def result(*argv: str, **more: Any) -> dict[str, Any]:
    return {
        "wrap_id": "w", "argv": list(argv), "command": "", "env": {"set": {}, "unset": []}, "cwd": "/", "layers": [],
        "warnings": [], "expires_in_s": 30.0, "tmp": "", **more,
    }  # fmt: skip


def line(answer: object, **changes: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": 1, "result": answer}
    return json.dumps(message, **{"ensure_ascii": False, **changes}).encode() + b"\n"


PRINT = ("/usr/bin/printf", r"%s\0")


@FEW
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=4),
    other=VALUES,
    whole=st.booleans(),
    ascii=st.booleans(),
    indent=st.sampled_from([None, (" , ", "\t:  "), (",", ":")]),
)
def test_an_answer_is_understood(
    daemon: Daemon, texts: list[str], other: Any, whole: bool, ascii: bool, indent: Any
) -> None:
    daemon.piece = 1 << 20 if whole else 1
    daemon.reply = line(
        {"other": other, **result(*PRINT, *texts), "more": [other]}, ensure_ascii=ascii, separators=indent
    )
    done = daemon.front("run", "true")
    assert done.stdout.decode() == "".join(f"{text}\0" for text in texts), done


@FEW
@given(data=st.data())
def test_what_json_refuses_is_left_to_python(daemon: Daemon, data: st.DataObject) -> None:
    """One byte is changed, removed or added. What both take for JSON, they take for the same."""
    whole = line({"n": [-0.5e-3, 10, True, None, '"\\é\u20ac😀\x1f'], **result(*PRINT, "a\nü")}, ensure_ascii=True)[:-1]
    at = data.draw(st.integers(0, len(whole) - 1))
    put = bytes([data.draw(st.sampled_from(sorted(set(range(256)) - {10})))])
    added, removed = data.draw(st.sampled_from([(0, 1), (1, 0), (1, 1)]))
    changed = whole[:at] + put * added + whole[at + removed :]
    daemon.reply = changed + b"\n"
    done = daemon.front("run", "true")
    if done.stdout.startswith(HANDED_OVER.encode()):
        return
    expected: Any = jsontext.loads(changed.decode())
    argv = expected["result"]["argv"]
    assert expected["id"] == 1 and argv[0].startswith("/")
    if argv[:2] == list(PRINT):
        assert done.stdout.decode() == "".join(f"{text}\0" for text in argv[2:])


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "[1,]", "nul", '"a', "1 2", "NaN", "01", "1.", "-", "{1:2}", '{"a" 1}', '"\\x"', '"\\u12g4"', '"\t"',
     "[" * 70 + "]" * 70, '{"a":1,}', "1e", '"\\', "\ufeff1"],
)  # fmt: skip
def test_what_is_no_json(daemon: Daemon, text: str) -> None:
    for inside in (text, "[]"):
        daemon.reply = line(result("/usr/bin/printf", "ran")).replace(
            b'"tmp"', b'"more": ' + inside.encode() + b', "tmp"'
        )
        assert daemon.front("run", "true").stdout.startswith(b"ran" if inside == "[]" else HANDED_OVER.encode())


@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80"])
def test_bytes_that_are_no_utf_8(daemon: Daemon, bad: bytes) -> None:
    for text, expected in ((bad, HANDED_OVER.encode()), ("é€😀\U0010ffff".encode(), b"ran")):
        daemon.reply = line(result("/usr/bin/printf", "ran", command="HERE")).replace(b"HERE", text)
        assert daemon.front("run", "true").stdout.startswith(expected)
    assert daemon.front("run", b"x" + bad).stdout.startswith(USUAL_WAY.encode()) and not daemon.requests


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        line(result("/usr/bin/printf", "ran"))[:-1],
        line(result("/usr/bin/printf", "ran")).replace(b'"id": 1', b'"id": 2'),
        line(result("/usr/bin/printf", "ran")).replace(b'"id": 1', b'"id": 10'),
        b'{"jsonrpc":"2.0","method":"told","params":{}}\n' + line(result("/usr/bin/printf", "ran")),
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}\n',
        line(result("/usr/bin/printf", "ran", warnings=["a"])),
        line(result("printf", "ran")),
        line(result()),
        line(result("/nonexistent")),
        line(result("/usr/bin/printf", "ran", cwd="/nonexistent")),
        line(result("/usr/bin/printf", "ran\0")),
        line(result("/usr/bin/printf", "ran")).replace(b'"ran"', b'"ran\\ud800"'),
        line(result("/usr/bin/printf", "ran", env={"set": {"A": 1}, "unset": []})),
        line({"wrap_id": "w"}),
        b"[]\n",
    ],
)
def test_whatever_is_not_plainly_right_is_left_to_python(daemon: Daemon, reply: bytes) -> None:
    daemon.reply = reply
    shown = daemon.front("run", "--quiet", "--", "true").stdout.decode().split()
    numbers = shown[shown.index("resume()") + 3 :]  # behind those of two descriptors
    assert shown[:2] == ["-I", "-c"] and numbers[:4] == ["1", "0", "0", "-1"], shown
    assert numbers[-3:] == ["--quiet", "--", "true"]


def test_the_environment_of_the_command(daemon: Daemon) -> None:
    daemon.reply = line(result("/usr/bin/env", "-0", env={"set": {"A": "ä=1", "NEW": ""}, "unset": ["B"]}))
    given = {b"SANDBOXD_SOCKET": bytes(daemon.path), b"A": b"0", b"B": b"0", b"AB": b"\xff", b"C": b"2\n"}
    shown = daemon.front("run", "true", env=given).stdout.split(b"\0")
    place = b"SANDBOXD_SOCKET=" + bytes(daemon.path)
    assert sorted(shown) == sorted([b"", place, "A=ä=1".encode(), b"NEW=", b"AB=\xff", b"C=2\n"])


def test_the_variables_that_the_daemon_gets(daemon: Daemon) -> None:
    given = {name: f"of {name}" for name in commands.VARIABLES_READ} | {"OTHER": "1"}
    del given["XDG_RUNTIME_DIR"]
    raw = {name.encode(): value.encode() for name, value in given.items()} | {b"DISPLAY": b"\xff"}
    daemon.front("run", "true", env={**raw, b"SANDBOXD_SOCKET": bytes(daemon.path)})
    del given["DISPLAY"], given["OTHER"]
    assert daemon.requests[0]["params"]["env"] == given


WORDS = st.sampled_from(
    [*"-c --cwd --session --command-id --quiet --no-autostart -- --cwd=/usr --cwd=bin --session=s --session=".split(),
     *"--command-id= --quiet=1 -c=x -h - --help --memory 1G true echo auto auto:k auto2 /usr .. x --quietly".split(),
     "", "a\nb", 'é"\\']
)  # fmt: skip


def expected_params(words: list[str]) -> dict[str, Any] | None:
    """Return what Python sends, None where it refuses."""
    try:
        parsed = parse(words, run.OPTIONS, runs=True)
        if "help" in parsed:
            return None
        text, argv = run._command(parsed)
        commands.check_command(text, argv)
        return run._wrap_params(parsed, text, argv)
    except (HelpAsked, UsageError, InvalidCommand):
        return None


@settings(FEW, max_examples=120)
@given(words=st.lists(WORDS, max_size=6), session=st.sampled_from([None, "", "of-variable", "auto"]))
def test_what_it_sends_is_what_python_sends(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, words: list[str], session: str | None
) -> None:
    with monkeypatch.context() as patch:
        patch.chdir("/usr")
        given = {"SANDBOXD_SOCKET": str(daemon.path), "SHELL": "/bin/bash", "TMUX": "x,1"}
        given |= {} if session is None else {"SANDBOXD_SESSION": session}
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in given.items():
            patch.setenv(name, value)
        expected = expected_params(words)
        done = daemon.front("run", *words, env=given, cwd="/usr")
    if done.stdout.startswith(USUAL_WAY.encode()):
        unknown = any(word.startswith(("--memory", "--help")) for word in words)
        joins = expected is not None and str(expected.get("session_id", "")).partition(":")[0] == "auto"
        assert expected is None or unknown or joins or expected["cwd"].endswith("/")
        assert not daemon.requests
    else:
        assert daemon.requests[0]["params"] == expected


def test_a_place_that_is_not_safe_is_left_to_python(daemon: Daemon, tmp_path: Path) -> None:
    daemon.reply = line(result("/usr/bin/printf", "ran"))
    directory = daemon.path.parent
    assert daemon.front("run", "true").stdout == b"ran"
    (tmp_path / "link").symlink_to(directory)
    (directory / "file").touch()
    shorter = "x" * (107 - len(str(directory)))
    for path in (tmp_path / "link" / "sandboxd.sock", directory / "file", directory / "none", directory / shorter):
        assert daemon.front("run", "true", env={"SANDBOXD_SOCKET": str(path)}).stdout.startswith(USUAL_WAY.encode())
    relative = daemon.front("run", "true", env={"SANDBOXD_SOCKET": "run/sandboxd.sock"}, cwd=tmp_path)
    assert relative.stdout.startswith(USUAL_WAY.encode())
    directory.chmod(0o710)
    assert daemon.front("run", "true").stdout.startswith(USUAL_WAY.encode())
    assert not daemon.requests


LISTENER = """
import os, socket, sys
path, reply = sys.argv[1:]
one = socket.socket(socket.AF_UNIX); one.bind(path); one.listen(); print("up", flush=True)
while True:
    with one.accept()[0] as connection:
        if connection.recv(65536): connection.sendall(os.fsencode(reply))
"""


@pytest.mark.parametrize("inside", [True, False])
def test_a_listener_in_a_sandbox_is_not_believed(tmp_path: Path, inside: bool) -> None:
    """Its pid namespace tells it from one outside."""
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "run" / "sandboxd.sock"
    reply = line(result("/usr/bin/printf", "ran")).decode()
    words = ["/usr/bin/python3", "-I", "-S", "-c", LISTENER, str(path), reply]
    namespaces = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"] if inside else []
    with subprocess.Popen([*namespaces, *words], stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == b"up\n"
        given: dict[str, Any] = {"env": {"SANDBOXD_SOCKET": str(path)}, "cwd": "/"}
        done = subprocess.run(
            [FRONT, "/usr/bin/echo", SCRIPT, "run", "true"], capture_output=True, check=False, **given
        )
        listener.kill()  # unshare ignores SIGTERM
    assert done.stdout.startswith(USUAL_WAY.encode()) if inside else done.stdout == b"ran"


def test_a_place_of_another_user_is_not_believed(daemon: Daemon) -> None:
    daemon.reply = line(result("/usr/bin/printf", "ran"))
    if os.geteuid():  # only root can make this situation
        with pytest.raises(PermissionError):
            os.chown(daemon.path, 65534, 65534)
        return
    for path in (daemon.path, daemon.path.parent):
        os.chown(path, 65534, 65534)
        assert daemon.front("run", "true").stdout.startswith(USUAL_WAY.encode()), path
        os.chown(path, 0, 0)
    assert daemon.front("run", "true").stdout == b"ran"


def test_an_interpreter_that_cannot_be_executed_is_named(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to("none")

    def front(*words: str, limit: str = "true") -> tuple[int, str]:
        started = [
            "sh",
            "-c",
            f'{limit}; exec "$@"',
            "sh",
            str(FRONT),
            str(tmp_path / "python3"),
            SCRIPT,
            "run",
            *words,
        ]
        env = {"SANDBOXD_SOCKET": str(daemon.path), "PATH": os.defpath}
        done = subprocess.run(started, capture_output=True, text=True, check=False, env=env, cwd="/")
        return done.returncode, done.stderr

    unusable = f"sandboxd: cannot execute {tmp_path}/python3\n"
    assert front("--memory", "1G", "true") == (125, unusable)
    daemon.reply = line(result("/bin/sh", "-c", "exit 3")) + line({"started": True, "violations": [{}]}).replace(
        b'"id": 1', b'"id": 2'
    )
    assert front("true") == (3, unusable)
    status, said = front("true", limit="ulimit -v 60000")
    assert status == 125 and said.startswith("sandboxd: cannot reserve memory"), said


@pytest.mark.parametrize("own", [True, False])
def test_an_environment_has_its_interpreter(tmp_path: Path, own: bool) -> None:
    """Without one, files beside the directory of the script are no installation, and a command may have made them."""
    script = tmp_path / "bin" / "sandboxd"
    planted = tmp_path / "lib" / "sandboxd" / MACHINE / "sandboxd"
    for path, text in (
        (script, (CHECKOUT / "scripts" / "sandboxd").read_text()),
        (planted, "#!/bin/sh\necho planted\n"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "pyvenv.cfg").touch()
    if own:
        (script.parent / "python3").symlink_to("/usr/bin/python3")
    done = subprocess.run(
        [script, "run", "true"], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    assert (done.stdout == "planted\n") is own, done


@contextmanager
def renamed(path: Path, to: Path) -> Iterator[None]:
    to.parent.mkdir(mode=0o700)
    path.rename(to)
    try:
        yield
    finally:
        to.rename(path)


def test_the_place_of_the_runtime_directory(daemon: Daemon, tmp_path: Path) -> None:
    daemon.reply = line(result("/usr/bin/printf", "ran"))
    with renamed(daemon.path, tmp_path / "sandboxd" / "sandboxd.sock"):
        assert daemon.front("run", "true", env={"XDG_RUNTIME_DIR": f"{tmp_path}//"}).stdout == b"ran"
        done = daemon.front("run", "true", env={"XDG_RUNTIME_DIR": str(tmp_path / "run")})
        assert done.stdout.startswith(USUAL_WAY.encode())


def test_python_is_named_by_the_true_directory(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tmp_path / "link").symlink_to("bin")
    words: list[str | Path] = [
        FRONT,
        tmp_path / "link" / "python3",
        tmp_path / "link" / "sandboxd",
        "run",
        "--memory",
        "1G",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    own = str(tmp_path / "bin")
    assert done.stdout.split() == [f"{own}/python3", "-I", f"{own}/sandboxd", "run", "--memory", "1G"]
