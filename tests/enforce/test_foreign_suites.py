"""Behaviour that test suites of other projects check: errors as without a sandbox, and no needless reports."""

from __future__ import annotations

import json
import os
import subprocess

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity

PROGRAM = """
import errno, io, json, os, stat, tarfile
def said(do, *words):
    try: do(*words)
    except OSError as error: return errno.errorcode[error.errno]
    return "done"
root, found = os.getuid() == 0, {}
for name in ("/usr/none", "/usr/lib/none/x", "/etc/none"):
    for do in (os.unlink, os.rmdir): found[f"{do.__name__} {name}"] = said(do, name)
    found[f"rename {name}"] = said(os.rename, name, "/usr/other")
os.makedirs(os.environ["TMPDIR"] + "/a/b"); os.makedirs(os.environ["TMPDIR"] + "/a/b", exist_ok=True)
for name in ("/", "/tmp", "/usr", os.path.expanduser("~"), os.getcwd()): found[f"mkdir {name}"] = said(os.mkdir, name)
if not root: found["no mode"] = said(open, "/usr/lib/none", "w")
open("file", "w").close()
other = 4321
found["chown"] = said(os.chown, "file", other, other)
found["lchown"] = said(os.lchown, "file", other, -1)
with open("file") as file: found["fchown"] = said(os.chown, file.fileno(), -1, other)
found["chown missing"] = said(os.chown, "missing", other, other)
found["chown own"] = said(os.chown, "file", os.getuid(), os.getgid())
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w") as tar:
    one = tarfile.TarInfo("program"); one.mode, one.uid, one.gid, one.size, one.mtime = 0o755, other, other, 1, 1000
    tar.addfile(one, io.BytesIO(b"x"))
archive.seek(0)
with tarfile.open(fileobj=archive) as tar: tar.extractall()
found["extracted"] = [oct(os.stat("program").st_mode & 0o7777), int(os.stat("program").st_mtime)]
print(json.dumps(found))
"""

SET_USER_ID = """
import os, threading
def mode(): return oct(os.stat("program").st_mode & 0o7777)
open("program", "w").close()
os.chmod("program", 0o4711); print(mode())
with open("program") as file: os.fchmod(file.fileno(), 0o6755); print(mode())
os.chmod("program", 0o755); print(mode())
for path in ("/usr/bin/env", "missing"):
    try: os.chmod(path, 0o4755)
    except OSError as error: print(error.errno)
"""


def test_errors_are_those_without_a_sandbox(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    is_root = daemon.identity.uid == 0
    for name, result in found.items():
        if "none" in name or "missing" in name:
            assert result == "ENOENT", (name, result)
        if name.startswith("mkdir"):
            assert result == "EEXIST", (name, result)
        if name in ("chown", "lchown", "fchown"):
            assert result == ("done" if is_root else "EPERM"), (name, result)
    assert found["chown own"] == "done" and found["extracted"] == ["0o755", 1000]
    assert found.get("no mode", "EROFS") in ("EROFS", "EACCES")
    reported = [one["operation"] for one in json.loads(daemon.run("violations", "--json").stdout)["violations"]]
    assert reported == ["foreign-owner"] * is_root  # once, whatever their number


def test_chown_of_root_can_be_refused(start_daemon: StartDaemon, identity: Identity) -> None:
    """GNU tar notices the difference; without the setting it extracts what belongs to others."""
    make = "echo 1 >one; tar --owner=4321 --group=4321 -cf a.tar one; rm one"
    extract = f"{make}; tar --same-owner -xf a.tar; echo $?"
    for owners in ("pretend", "refuse"):
        daemon = start_daemon(settings={"sandbox": {"filesystem": {"owners": owners}}})
        done = daemon.run("run", "-c", extract)
        is_told_success = owners == "pretend" and identity.uid == 0
        assert done.stdout == ("0\n" if is_told_success else "2\n"), done.stderr
        assert (identity.workspace / "one").read_text() == "1\n"
        daemon.stop()


def test_the_bit_of_set_user_id_is_left_out_and_told(daemon: DaemonProcess) -> None:
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", SET_USER_ID)
    assert done.stdout.split()[:3] == ["0o711", "0o2755", "0o755"], done.stderr
    assert done.stdout.split()[3:] in (["1", "1"], ["30", "1"], ["30", "2"], ["1", "2"])
    reported = [one["target"] for one in json.loads(daemon.run("violations", "--json").stdout)["violations"]]
    assert str(daemon.identity.workspace / "program") in reported


def test_root_is_told_of_a_directory_of_another_user(daemon: DaemonProcess) -> None:
    """A checkout of a CI: root has no power over others inside. The remedy that is named works."""
    workspace, is_root = daemon.identity.workspace, daemon.identity.uid == 0
    own = daemon.run("run", "-c", "echo 1 >file")
    assert (own.returncode, own.stderr) == (0, "")
    if not is_root:
        return
    os.chown(workspace, 4321, 4321)
    done = daemon.run("run", "-c", "echo 1 >new")
    assert done.returncode == 1 and not (workspace / "new").exists()
    remedy = f"chown -R root {workspace}"
    assert f"{workspace} belongs to the user 4321" in done.stderr and remedy in done.stderr
    subprocess.run(remedy.split(), check=True)
    done = daemon.run("run", "-c", "echo 1 >new")
    assert (done.returncode, done.stderr) == (0, "")


def test_ignored_signals_are_inherited(daemon: DaemonProcess) -> None:
    ignored = {}
    for name in ("", "INT", "QUIT TERM USR1", "HUP"):
        line = f"trap '' {name}; exec \"$@\"" if name else 'exec "$@"'
        words = ["sh", "-c", line, "sh", *daemon.identity.command("run", "--", "grep", "SigIgn", "/proc/self/status")]
        done = daemon.identity.run(words, env=daemon.environment(), cwd=daemon.identity.workspace)
        ignored[name] = int(done.stdout.split()[-1], 16)
    assert ignored == {"": 0, "INT": 1 << 1, "QUIT TERM USR1": 1 << 2 | 1 << 14 | 1 << 9, "HUP": 1}


def test_what_is_masked_can_be_listed_and_measured(start_daemon: StartDaemon, identity: Identity) -> None:
    (identity.workspace / "closed").mkdir()
    (identity.workspace / "closed" / "file").write_text("1")
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": [f"/{identity.workspace}/closed"]}}})
    done = daemon.run("run", "-c", "set -e; ls -la; df; df closed; du -s --exclude closed .; stat -c %F closed")
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "directory")
    assert daemon.run("run", "-c", "ls closed").returncode == 2
