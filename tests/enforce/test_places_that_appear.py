"""Places that appear while commands run: a denied one is closed at once, the runtime directory is their own."""

from __future__ import annotations

import subprocess

from support.daemons import StartDaemon
from support.users import Identity

WATCH = "echo ready; read go; cat secret/key 2>&1; ls secret 2>&1; echo over > secret/key; cat other/key"


def test_the_runtime_directory_is_private_and_writable(start_daemon: StartDaemon, identity: Identity) -> None:
    daemon = start_daemon()
    line = "touch $XDG_RUNTIME_DIR/x && stat -L -c '%a %u' $XDG_RUNTIME_DIR"
    done = daemon.run("run", "-c", line)
    assert done.stdout.split() == ["700", str(identity.uid)] and done.returncode == 0, done
    assert not (identity.runtime / "x").exists()


def test_a_denied_directory_made_outside_is_closed_at_once(start_daemon: StartDaemon, identity: Identity) -> None:
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": [f"{identity.workspace}/secret"]}}})
    words = ("run", "--quiet", "-c", WATCH)
    running = daemon.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None and running.stdout.readline() == "ready\n"
    for name in ("secret", "other"):
        identity.run(["mkdir", "-p", name], cwd=identity.workspace)
        identity.write(identity.workspace / name / "key", f"{name} text\n")
    said, _ = running.communicate("go\n")
    assert "secret text" not in said and "Permission denied" in said and "other text" in said, said
    assert (identity.workspace / "secret" / "key").read_text() == "secret text\n"


def test_what_replaces_a_denied_file_is_closed(start_daemon: StartDaemon, identity: Identity) -> None:
    """A program that saves by renaming takes the mount away."""
    names = ("file", "directory/key", "masked", "linked", "other")
    for name in names:
        identity.write(identity.workspace / name, "value=old-text\n")
    mask = [{"file": f"{identity.workspace}/masked", "pattern": "value=*"}]
    denied = [f"{identity.workspace}/{name}" for name in ("file", "directory", "linked")]
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": denied}, "credentials": {"mask": mask}}})
    look = f"cat {' '.join(names)} 2>&1"
    shown = f"[ $({look} | grep -c new-text) = 1 ]"
    line = f"echo ready; read go; for i in $(seq 200); do {shown} && break; sleep 0.05; done; {look}"
    words = ("run", "--quiet", "-c", line)
    running = daemon.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None and running.stdout.readline() == "ready\n"
    for name in ("file", "masked", "other"):
        identity.write(identity.workspace / "new", "value=new-text\n")
        identity.run(["mv", "new", name], cwd=identity.workspace, check=True)
    identity.write(identity.base / "target", "value=new-text\n")
    identity.run(["ln", "-sf", f"{identity.base}/target", "linked"], cwd=identity.workspace, check=True)
    identity.run(["sh", "-c", "rm -r directory && mkdir directory && echo value=new-text > directory/key"],
                 cwd=identity.workspace, check=True)  # fmt: skip
    said, _ = running.communicate("go\n")
    assert said.count("new-text") == 1 and "old-text" not in said, said
