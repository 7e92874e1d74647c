"""/tmp in a session: the host's shows through, what commands write is the session's, and neither reaches the other."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity
from support.waiting import wait_until

from .test_mounts_below import NEW_NAMESPACE, RECURSIVE_PRIVATE

PLAY = """
import json, subprocess, sys
from sandboxd_client import Client
cwd, steps = json.loads(sys.argv[1])
with Client(autostart=False) as box, box.session(cwd) as here, box.session(cwd) as other:
    said = []
    for who, line in steps:
        words = ["sh", "-c", line]
        run = {"in": here.run, "other": other.run, "out": subprocess.run}[who]
        done = run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said.append(done.stdout.strip())
print(json.dumps(said))
"""


def play(daemon: DaemonProcess, *steps: tuple[str, str], cwd: str = ".") -> list[str]:
    """The outputs of shell lines in one session (in), another (other), or outside of any (out)."""
    done = daemon.python(PLAY, json.dumps([cwd, steps]))
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(done.stdout.splitlines()[-1])
    return said


def layers(daemon: DaemonProcess) -> set[str]:
    code = "from sandboxd_client import Client; print(*Client().wrap(argv=['true'], cwd='.').layers)"
    return set(daemon.python(code).stdout.split())


@pytest.fixture
def daemon(share_daemon: StartDaemon) -> DaemonProcess:
    return share_daemon(settings={})


@contextlib.contextmanager
def in_tmp(identity: Identity) -> Iterator[Path]:
    """A directory of the identity in the host's /tmp."""
    made = Path(tempfile.mkdtemp(prefix="sdt-", dir="/tmp"))
    identity.own(made)
    made.chmod(0o755)
    yield made
    wait_until(lambda: _removed(made), "placeholders are gone")


@pytest.fixture
def place(daemon: DaemonProcess) -> Iterator[Path]:
    with in_tmp(daemon.identity) as made:
        yield made


@pytest.fixture
def own_place(identity: Identity) -> Iterator[Path]:
    with in_tmp(identity) as made:
        yield made


def _removed(directory: Path) -> bool:
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def test_writes_are_the_sessions_and_the_host_shows(daemon: DaemonProcess, place: Path) -> None:
    daemon.identity.write(place / "host", "of the host\n")
    daemon.identity.write(place / "gone", "")
    new = f"/tmp/{place.name}-new"
    said = play(
        daemon,
        ("in", f"cat {place}/host; echo more >> {place}/host; rm {place}/gone; echo mine > {new}; mkdir {place}/d"),
        ("in", f"cat {place}/host {new}; ls {place}; mv {new} {place}/d/x; rm -r {place}/d; stat -c %a /tmp"),
        ("other", f"cat {place}/host; ls {place}; ls {new}"),
        ("out", f"cat {place}/host; ls {place}; ls {new}"),
    )
    outside = f"of the host\ngone\nhost\nls: cannot access '{new}': No such file or directory"
    assert said == ["of the host", "of the host\nmore\nmine\nd\nhost\n1777", outside, outside]


def test_files_of_another_session_stay_closed(daemon: DaemonProcess, place: Path) -> None:
    """Also by the paths under which the host sees them."""
    own, where = f"sdt-{secrets.token_hex(8)}", f"{place}/where"
    names = f"$d/a $d-over/tmp/upper/{own}"
    said = play(
        daemon,
        (
            "in",
            f"echo mine > $TMPDIR/a; echo mine > /tmp/{own}; echo $TMPDIR > {where}; d=$TMPDIR; cat {names} /tmp/{own}",
        ),
        ("other", f"d=$(cat {where}); cat {names}; ls -d $d/* $d-over/*; echo x > $d/a; rm -r $d; mv $d $d-over ."),
        ("out", f"d=$(cat {where}); cat {names}; ls $d"),
        cwd=str(place),
    )
    inside, other, outside = (text.splitlines() for text in said)
    assert inside.count("mine") == 2 and outside == ["mine", "mine", "a"]
    assert len(other) == 8 and all("No such file" in line or "nonexistent" in line for line in other), other


def test_what_the_host_changes_meanwhile_is_seen(daemon: DaemonProcess, place: Path) -> None:
    """Names are remembered by the kernel: absent ones, and those that are another file by now."""
    daemon.identity.write(place / "old", "1\n")
    look = f"cat {place}/old {place}/new 2>&1"
    said = play(
        daemon,
        ("in", look),
        ("out", f"echo 2 > {place}/t; mv {place}/t {place}/old; echo 3 > {place}/new"),
        ("in", look),
        ("out", f"rm {place}/old"),
        ("in", look),
    )
    absent = "cat: {}: No such file or directory"
    assert said[::2] == ["1\n" + absent.format(place / "new"), "2\n3", absent.format(place / "old") + "\n3"]


def test_denied_paths_stay_closed_in_tmp(share_daemon: StartDaemon, place: Path) -> None:
    rules = ["/tmp/sdt-*/closed", "/tmp/sdt-*/file"]
    daemon = share_daemon(settings={"sandbox": {"filesystem": {"denyRead": rules}}})
    for name in ("closed/a", "file", "open"):
        daemon.identity.write(place / name, f"{name}\n")
    said = play(
        daemon,
        ("in", f"cat {place}/closed/a {place}/file {place}/open; ls {place}/closed; rm -rf {place}/file"),
        ("in", f"mv {place} {place}-x; cat {place}*/file {place}*/closed/a {place}/open; ln {place}/file $(mktemp -u)"),
    )
    shown = [line for text in said for line in text.splitlines() if line in ("closed/a", "a", "file", "open")]
    assert shown == ["open", "open"], said
    assert (place / "file").read_text() == "file\n" and (place / "closed" / "a").exists()


@pytest.mark.parametrize("below", [".", "a/b"])
def test_a_workspace_in_tmp_is_the_hosts(daemon: DaemonProcess, place: Path, below: str) -> None:
    work = place / below
    daemon.identity.write(work / ".vscode" / "tasks.json", "{}")
    daemon.identity.write(work / "file", "1\n")
    said = play(
        daemon,
        ("in", f"echo 2 > file; pwd; touch made; echo x > .vscode/tasks.json; echo beside > {place}-beside"),
        ("in", f"cat {work}/file {place}-beside; mktemp -d > t; cat t"),
        cwd=str(work),
    )
    assert said[0].splitlines()[0] == str(work) and "Read-only" in said[0]
    assert said[1].splitlines()[:2] == ["2", "beside"] and said[1].splitlines()[2].startswith("/var/tmp/")
    assert (work / "file").read_text() == "2\n" and (work / "made").exists()
    assert (work / ".vscode" / "tasks.json").read_text() == "{}" and not Path(f"{place}-beside").exists()


def test_files_of_others_and_special_files(daemon: DaemonProcess, place: Path) -> None:
    """A socket and a FIFO of the host are names without their far end; another user's files stay theirs."""
    if os.geteuid() == 0:
        foreign = place / "foreign"
        foreign.write_text("theirs\n")
        os.chown(foreign, 12345, 12345)
        foreign.chmod(0o604)
    else:
        daemon.identity.write(place / "foreign", "theirs\n", mode=0o444)
    os.mkfifo(place / "fifo")
    (place / "fifo").chmod(0o666)
    (place / "link").symlink_to("foreign")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "socket"))
        (place / "socket").chmod(0o777)
        server.listen()
        read = os.open(place / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        said = play(
            daemon,
            ("in", f"cat {place}/link; echo x >> {place}/foreign; timeout 1 sh -c 'echo x > {place}/fifo'; echo $?"),
            ("in", f"mkdir {place}/s; echo own > {place}/s/x; cat {place}/s/x"),
        )
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(place / 'socket')!r})"
        done = daemon.run("run", "python3", "-c", code)
        assert done.returncode == 1 and "Error" in done.stderr
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        with contextlib.suppress(BlockingIOError):
            assert os.read(read, 10) == b""
        os.close(read)
    assert said[0].splitlines()[0] == "theirs" and "denied" in said[0] and said[0].endswith("124")
    assert said[1] == "own" and (place / "foreign").read_text() == "theirs\n"


@pytest.mark.parametrize("mode", ["private", "private 20M", "host"])
def test_tmp_can_be_private_or_the_hosts(share_daemon: StartDaemon, place: Path, mode: str) -> None:
    mode, *size = mode.split()
    limits = {"limits": {"tmp": size[0]}} if size else {}
    daemon = share_daemon(settings={"sandbox": {"filesystem": {"tmp": mode}, **limits}})
    daemon.identity.write(place / "host", "of the host\n")
    said = play(daemon, ("in", f"cat {place}/host; mkdir -p {place}; echo mine > {place}/new"), ("in", f"ls {place}"))
    daemon.identity.write(place / "a" / "work" / "file", "1\n")
    assert play(daemon, ("in", "cat file; touch made"), cwd=f"{place}/a/work") == ["1"]
    assert (place / "a" / "work" / "made").exists()
    if mode == "host":
        assert said == ["of the host", "host\nnew"] and (place / "new").read_text() == "mine\n"
    else:
        assert said[0].startswith(f"cat: {place}/host: No such file or directory") and said[1] == "new"
        assert f"sandboxd allow path --read {place}/host" in said[0] and not (place / "new").exists()
    wanted = {f"tmp-{mode}", "tmp-limit"} if size else {f"tmp-{mode}"}
    assert {one for one in layers(daemon) if one.startswith(("tmp-", "home-"))} == wanted


CHANGES = """
import mmap, os, sys
d = sys.argv[1]
def shared(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory: memory[0:1] = b"X"
def again(path):
    with open(path, "rb") as file: os.write(os.open(f"/proc/self/fd/{file.fileno()}", os.O_WRONLY), b"EVIL")
said = []
for change in (
    lambda: shared(d + "/0"), lambda: os.truncate(d + "/1", 0), lambda: os.chmod(d + "/2", 0o600),
    lambda: os.utime(d + "/3", (1, 1)), lambda: os.setxattr(d + "/4", "user.a", b"1"), lambda: again(d + "/5"),
    lambda: os.link(d + "/6", d + "/linked"), lambda: os.replace(d + "/7", d + "/8"), lambda: os.unlink(d + "/9"),
    lambda: os.rename(d, d + "-moved"), lambda: os.link(d + "/6", os.environ["TMPDIR"] + "/out"),
):
    try: said.append(str(change() and ""))
    except OSError as error: said.append(error.strerror)
print(*said, sep=",")
"""


def test_no_change_in_an_overlay_reaches_the_host(daemon: DaemonProcess, place: Path) -> None:
    def state() -> list[object]:
        files = sorted(place.iterdir())
        return [(one.name, one.read_bytes(), one.stat()[:7], one.stat().st_mtime_ns) for one in files]

    for number in range(10):
        daemon.identity.write(place / str(number), "host\n")
    before = state()
    done = daemon.run("run", "--quiet", "python3", "-I", "-S", "-c", CHANGES, str(place))
    assert done.stdout == "None," * 9 + "Invalid cross-device link,Invalid cross-device link\n", done
    assert state() == before


def test_what_stays_in_the_session_is_told_once(daemon: DaemonProcess, place: Path) -> None:
    name = f"/tmp/{place.name}-out"
    said = daemon.run("run", "-c", f"echo 1 > {name}").stderr
    assert said.startswith(f"sandboxd: {name} was the session's and is gone with it; ") and said.count("\n") == 1
    assert said.endswith("or: sandboxd allow path /tmp\n")
    assert daemon.run("run", "-c", f"echo 1 > {name}; rm {name}; echo 1 > $TMPDIR/x").stderr == ""
    assert daemon.run("run", "--quiet", "-c", f"echo 1 > {name}").stderr == ""
    assert daemon.run("session", "start", "--name", "told").returncode == 0
    said = daemon.run("run", "--session", "told", "-c", f"echo 1 > {name}; rm -r {place}").stderr
    assert said.startswith(f"sandboxd: {name} stays in the session; outside it is /var/tmp/"), said
    assert Path(said.split()[-1]).read_text() == "1\n"
    assert daemon.run("run", "--session", "told", "-c", f"cat {name}").stderr == ""
    assert daemon.run("session", "end", "told").returncode == 0 and not Path(said.split()[-1]).exists()


def test_allow_path_tmp_opens_the_hosts(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with tempfile.TemporaryDirectory(prefix="sdt-", dir="/tmp") as name:
        os.chmod(name, 0o777)
        assert play(daemon, ("in", f"touch {name}/1")) == [""] and os.listdir(name) == []
        done = daemon.run("allow", "path", "/tmp", "--yes")
        assert done.returncode == 0, done.stderr
        assert play(daemon, ("in", f"touch {name}/1")) == [""] and os.listdir(name) == ["1"]
        assert daemon.run("allow", "path", "/tmp", "--remove").returncode == 0
        assert play(daemon, ("in", f"touch {name}/2")) == [""] and os.listdir(name) == ["1"]


@pytest.mark.parametrize("size", ["", "20M"])
def test_a_session_keeps_its_files_over_a_restart(start_daemon: StartDaemon, own_place: Path, size: str) -> None:
    """On disk or in memory; with a command that runs meanwhile, and without."""
    place = own_place
    daemon = start_daemon(settings={"sandbox": {"limits": {"tmp": size}}} if size else {})
    daemon.identity.write(place / "host", "")
    assert daemon.run("session", "start", "--name", "s").returncode == 0
    line = f"rm {place}/host; echo kept > {place}/new; echo up; until test -e {place}/late; do sleep 0.05; done"
    running = daemon.popen("run", "--session", "s", "-c", line, stdout=-1, text=True)
    assert running.stdout is not None and running.stdout.readline() == "up\n"
    assert daemon.run("restart").returncode == 0
    assert daemon.run("run", "--session", "s", "-c", f"ls {place}; touch {place}/late").stdout == "new\n"
    assert running.communicate(timeout=30) == ("", None) and running.returncode == 0
    assert daemon.run("restart").returncode == 0
    assert daemon.run("run", "--session", "s", "-c", f"ls {place}; cat {place}/new").stdout == "late\nnew\nkept\n"
    assert os.listdir(place) == ["host"]


def test_what_a_session_keeps_in_memory_is_limited(start_daemon: StartDaemon, own_place: Path) -> None:
    place = own_place
    daemon = start_daemon(settings={"sandbox": {"limits": {"tmp": "20M"}}})
    daemon.identity.write(place / "host", "1\n")
    write = "head -c {}M /dev/zero > {}/big && ls {}"
    done = daemon.run("run", "-c", write.format(30, place, place))
    assert done.returncode == 1 and "No space left" in done.stderr
    assert "the limit was met: tmp 20M" in done.stderr and "sandbox.limits.tmp 40M" in done.stderr
    for where in (str(place), "$TMPDIR"):
        assert daemon.run("run", "-c", write.format(10, where, place)).returncode == 0
    assert daemon.run("run", "-c", write.format(30, "$TMPDIR", place)).returncode == 1


def test_the_home_can_be_the_sessions(start_daemon: StartDaemon) -> None:
    """Writes in it are the session's and vanish; the workspace in it and closed paths stay what they are."""
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"home": "overlay", "denyRead": ["~/secret"]}}})
    home = daemon.identity.home
    assert {"home-overlay", "tmp-overlay"} <= layers(daemon)
    daemon.identity.write(home / ".config" / "tool", "old\n")
    daemon.identity.write(home / "secret", "secret\n")
    daemon.identity.write(home / "work" / "file", "1\n")
    said = play(
        daemon,
        ("in", "echo new > ~/.config/tool; mkdir -p ~/.cache/x; echo 2 > file; cat ~/secret; mv ~/secret ~/s; cat ~/s"),
        ("in", "cat ~/.config/tool file; ls -d ~/.cache/x; rm -r ~/.config"),
        ("other", "cat ~/.config/tool file; ls -d ~/.cache/x"),
        cwd=str(home / "work"),
    )
    assert "secret\n" not in said[0] + "\n" and said[1] == f"new\n2\n{home}/.cache/x"
    assert said[2].startswith("old\n2\n") and "No such file" in said[2]
    assert (home / ".config" / "tool").read_text() == "old\n" and not (home / ".cache" / "x").exists()


if os.geteuid() == 0:

    def with_a_tmp(mount: str, do: Callable[[], None]) -> None:
        """Run this where /tmp is another one, which a shell line mounts."""

        def run() -> None:
            assert ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACE) == 0
            assert ctypes.CDLL(None, use_errno=True).mount(b"none", b"/", None, RECURSIVE_PRIVATE, None) == 0
            subprocess.run(["sh", "-ec", mount], check=True)
            do()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()

    def test_mounts_in_the_hosts_tmp_stay_right(start_daemon: StartDaemon) -> None:
        """An overlay would show what lies beneath a mount. A session that begins with a mount there has the entries of
        /tmp one by one; one that has its overlay sees the mount in it."""
        found: list[tuple[str, list[str]]] = []

        def look(daemon: DaemonProcess, session: str, name: str, *, mounted: bool = True) -> str:
            inner = Path(name, "inner")
            libc = ctypes.CDLL(None, use_errno=True)
            if mounted:
                assert libc.mount(b"none", os.fsencode(inner), b"tmpfs", 0, b"mode=777") == 0
                (inner / "mounted").write_text("")
            line = f"ls {inner}; touch {inner}/x; touch {name}-y; ls -d {name}-*"
            done = daemon.run("run", "--session", session, "-c", line)
            found.append((done.stdout, sorted(os.listdir(inner))))
            if mounted:
                assert libc.umount(os.fsencode(inner)) == 0
            return done.stderr

        def both() -> None:
            with tempfile.TemporaryDirectory(prefix="sdt-", dir="/tmp") as name:
                os.chmod(name, 0o755)
                Path(name, "inner").mkdir()
                Path(name, "inner", "beneath").write_text("")
                daemon = start_daemon()
                for session in ("entries", "overlay"):
                    assert daemon.run("session", "start", "--name", session).returncode == 0
                refused = look(daemon, "entries", name)
                look(daemon, "overlay", name, mounted=False)
                assert "Read-only" in refused and "Read-only" in look(daemon, "overlay", name)
                daemon.stop()

        with_a_tmp("mount -t tmpfs -o mode=1777 none /tmp", both)
        inside = [said.splitlines() for said, _ in found]
        assert [said[0] for said in inside] == ["mounted", "beneath", "mounted"]
        assert [said[-1].endswith("-y") for said in inside] == [True] * 3
        assert [left for _, left in found] == [["mounted"], ["beneath"], ["mounted"]]

    CHURN = (
        "import itertools, os, sys\nfor n in itertools.count():\n    name = f'/tmp/churn{n % 90}'\n"
        "    os.unlink(name) if os.path.exists(name) else open(name, 'w').close()\n"
    )

    def test_tmp_is_shown_where_the_kernel_refuses_overlays(start_daemon: StartDaemon) -> None:
        """Two overlays above each other are all that it stacks. Other programs make and remove entries meanwhile."""
        stacked = "mount -t tmpfs none /mnt; cd /mnt; mkdir 1 2 3 4 5 6; chmod 1777 1 2 4; "
        stacked += "mount -t overlay -o lowerdir=1,upperdir=2,workdir=3 none 6; "
        stacked += "mount -t overlay -o lowerdir=6,upperdir=4,workdir=5 none /tmp"

        def look() -> None:
            for number in range(205):
                Path(f"/tmp/file{number}").write_text("host\n")
            Path("/tmp/closed").mkdir(mode=0o755)
            Path("/tmp/closed/secret").write_text("secret\n")
            daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": ["/tmp/closed"]}}})
            assert "tmp-entries" in layers(daemon)
            steps = json.loads(daemon.run("check", "--json").stdout)["steps"]
            step = next(one for one in steps if one["name"] == "overlay")
            assert not step["ok"] and "Invalid argument" in json.dumps(step)
            line = "ls /tmp/file* | wc -l; cat /tmp/file7 /tmp/closed/secret; echo x 2>&- >>/tmp/file8; rm /tmp/file9"
            line += "; cat /tmp/new; echo mine >/tmp/new; ls -A /dev | grep tmp; grep -c host-tmp /proc/self/mountinfo"
            with subprocess.Popen([sys.executable, "-c", CHURN]) as other:
                try:
                    said = [one.splitlines() for one in play(daemon, *[("in", line)] * 6, ("other", line))]
                finally:
                    other.kill()
            for number, one in enumerate(said):
                assert one[:2] == ["205", "host"] and "secret" not in one and one[-1] == "0", said
                assert ("mine" in one) == (0 < number < 6), said
            assert Path("/tmp/file8").read_text() == "host\n" and not Path("/tmp/new").exists()
            daemon.stop()

        with_a_tmp(stacked, look)
