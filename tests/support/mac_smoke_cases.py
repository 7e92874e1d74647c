"""What has to hold on a Mac. Each case is small, and says what it saw when it fails."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from support.mac_smoke import Group, NotHereError, Trial, expect, listening_socket
from support.processes import is_alive
from support.waiting import wait_until_async

NFC, NFD = "caf\u00e9", "cafe\u0301"


def _prepare(home: Path, project: Path) -> None:
    for directory in ("secret/open", f"secret-{NFC}", "sockets"):
        (home / directory).mkdir(parents=True)
    (home / "secret" / "key").write_text("key\n")
    (home / f"secret-{NFC}" / "key").write_text("key\n")
    (home / "secret" / "open" / "note").write_text("open\n")
    (home / "outside").write_text("before\n")
    (project / "deep" / "er").mkdir(parents=True)
    for name in ("a.pem", "deep/er/b.pem", "a.pemx", "old", "fixed"):
        (project / name).write_text(f"{name}\n")
    (project / ".git" / "hooks").mkdir(parents=True)
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (project / ".vscode").mkdir()
    (project / ".vscode" / "tasks.json").write_text("{}\n")


SETTINGS = {
    "sandbox": {
        "filesystem": {
            "denyRead": ["~/secret", f"~/secret-{NFC}", "**/*.pem"],
            "allowRead": ["~/secret/open"],
            "denyWrite": ["./fixed"],
        },
        "network": {"allowedDomains": ["ok.test", "example.com"], "allowUnixSockets": ["~/sockets/yes"]},
    }
}

SANDBOX = Group("sandbox", SETTINGS, _prepare)
FILES = Group("files", SETTINGS, _prepare)
NETWORK = Group("network", SETTINGS, _prepare)
PROCESSES = Group("processes", SETTINGS, _prepare)
VIOLATIONS = Group("violations", SETTINGS, _prepare)
EVERYDAY = Group("everyday programs", SETTINGS, _prepare)
LOCAL_BINDING = Group("allowLocalBinding", {"sandbox": {"network": {"allowLocalBinding": True}}}, _prepare)
GROUPS = [SANDBOX, FILES, NETWORK, LOCAL_BINDING, PROCESSES, VIOLATIONS, EVERYDAY]


# The sandbox as such


@SANDBOX.case("check finds everything in order")
async def _(trial: Trial) -> None:
    status, out, _ = await trial.line.cli("check", "--json")
    wrong = [step for step in json.loads(out)["steps"] if not step["ok"]]
    expect(status == 0 and not wrong, f"{wrong}")


@SANDBOX.case("output, complaints and status come through")
async def _(trial: Trial) -> None:
    got = await trial.line.run("sh", "-c", "echo out; echo err >&2; exit 7")
    expect(got == (7, "out\n", "err\n"), f"{got}")
    expect((await trial.line.run("no-such-program"))[0] == 127, "a missing program is not 127")


@SANDBOX.case("the system's log is read")
async def _(trial: Trial) -> None:
    state = trial.line.running.daemon.state
    expect("violation-log" in state.layers(), f"{state.machine_warnings()}")


@SANDBOX.case("no sandbox within a sandbox", real=True)
async def _(trial: Trial) -> None:
    await trial.refused("/usr/bin/sandbox-exec", "-p", "(version 1)(allow default)", "/usr/bin/true")


# Files


@FILES.case("the project and TMPDIR are writable")
async def _(trial: Trial) -> None:
    await trial.allowed("write", "new", "text")
    expect((trial.project / "new").read_text() == "text", "nothing was written")
    await trial.allowed("append", "old", "more")
    await trial.allowed("mv", "new", "deep/newer")
    await trial.allowed("rm", "deep/newer")
    expect(await trial.allowed("sh", "-c", 'write "$TMPDIR/x" t && cat "$TMPDIR/x"') == "t", "TMPDIR")


@FILES.case("nothing else is")
async def _(trial: Trial) -> None:
    for path in (trial.home / "outside", trial.home / "new", trial.project / "fixed", Path("/var/tmp/sandboxd-smoke")):
        before = path.read_text() if path.exists() else None
        await trial.refused("write", str(path), "x")
        expect((path.read_text() if path.exists() else None) == before, f"{path} has changed")
    await trial.refused("rm", str(trial.home / "outside"))
    await trial.refused("mv", str(trial.home / "outside"), "mine")


@FILES.case("protected names are refused, also where there is nothing yet")
async def _(trial: Trial) -> None:
    for path in (".git/hooks/pre-commit", ".vscode/tasks.json", ".mcp.json", "deep/er/.mcp.json"):
        await trial.refused("write", path, "x")
    await trial.refused("rm", ".vscode/tasks.json")


@FILES.case("protected names are not renamed away, and nothing is renamed to them")
async def _(trial: Trial) -> None:
    await trial.refused("mv", ".vscode", "other")
    await trial.refused("mv", ".git/hooks", "hooks")
    await trial.allowed("write", "mine", "x")
    await trial.refused("mv", "mine", ".mcp.json")


@FILES.case("denyRead, with a part that is open again")
async def _(trial: Trial) -> None:
    await trial.refused("cat", str(trial.home / "secret" / "key"))
    await trial.refused("ls", str(trial.home / "secret"))
    expect(await trial.allowed("cat", str(trial.home / "secret" / "open" / "note")) == "open\n", "the open part")


@FILES.case("a pattern counts at any depth, and against a directory that is allowed by its path")
async def _(trial: Trial) -> None:
    for path in ("a.pem", "deep/er/b.pem"):
        await trial.refused("cat", path)
    await trial.allowed("cat", "a.pemx")


@FILES.case("a symlink leads to where it leads")
async def _(trial: Trial) -> None:
    (trial.project / "link").symlink_to(trial.home / "secret" / "key")
    await trial.refused("cat", "link")


@FILES.case("a hard link or a clone to what may not be read cannot be made", real=True)
async def _(trial: Trial) -> None:
    key = str(trial.home / "secret" / "key")
    for words in (("ln", key, "hard"), ("cp", "-c", key, "clone")):
        await trial.refused(*words)
    for name in ("hard", "clone"):
        expect(not (trial.project / name).exists(), f"{name} is there")


@FILES.case("a hard link to what may not be written cannot be made", real=True)
async def _(trial: Trial) -> None:
    await trial.run("ln", str(trial.home / "outside"), "hard")
    await trial.run("sh", "-c", "echo x > hard")
    expect((trial.home / "outside").read_text() == "before\n", "it was written through the link")


@FILES.case("other spellings of a name are the same file", real=True)
async def _(trial: Trial) -> None:
    if (trial.project / ".VSCODE").exists():
        await trial.refused("write", ".VSCODE/tasks.json", "x")
        await trial.refused("cat", str(trial.home / "SECRET" / "key"))
    await trial.refused("write", ".MCP.json", "x") if (trial.project / "OLD").exists() else None
    if (trial.home / f"secret-{NFD}").exists():
        await trial.refused("cat", str(trial.home / f"secret-{NFD}" / "key"))
    await trial.refused("cat", str(trial.home / f"secret-{NFC}" / "key"))


@FILES.case("the data volume is no way around", real=True)
async def _(trial: Trial) -> None:
    real = os.path.realpath(trial.home / "secret" / "key")
    await trial.refused("cat", f"/System/Volumes/Data{real}")
    await trial.refused("write", f"/System/Volumes/Data{os.path.realpath(trial.home)}/new", "x")


@FILES.case("modes, times and attributes outside stay", real=True)
async def _(trial: Trial) -> None:
    path = trial.home / "outside"
    before = path.stat()
    for words in (("chmod", "600"), ("touch",), ("xattr", "-w", "a", "b"), ("chflags", "hidden")):
        await trial.refused(*words, str(path))
    after = path.stat()
    expect((before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns), "it has changed")


# The network


@NETWORK.case("an allowed name through the proxy, and no other")
async def _(trial: Trial) -> None:
    got = await trial.allowed("fetch", f"http://ok.test:{trial.origin.port}/")
    expect(got == trial.origin.body.decode(), got)
    before = len(trial.origin.connections)
    done = await trial.refused("fetch", f"http://no.test:{trial.origin.port}/")
    expect("403" in done.out and len(trial.origin.connections) == before, f"{done.out} {done.err}")


@NETWORK.case("no connection of its own")
async def _(trial: Trial) -> None:
    before = len(trial.origin.connections)
    await trial.refused("connect", "127.0.0.1", str(trial.origin.port))
    expect(len(trial.origin.connections) == before, "somebody connected")
    await trial.refused("listen", str(_free_port()))


@NETWORK.case("the proxy serves nobody without the password")
async def _(trial: Trial) -> None:
    code = "import os, sys; print(os.environ['HTTP_PROXY'], flush=True); sys.stdin.read()"
    words = ["run", "--", sys.executable, "-c", code]
    cli = f"import sys; from sandboxd.cli.main import main; sys.argv[1:] = {words!r}; sys.exit(main())"
    process = await trial.line.start(cli)
    assert process.stdin is not None and process.stdout is not None
    url = (await process.stdout.readline()).decode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    process.stdin.close()
    await process.wait()
    expect(answer.startswith(b"HTTP/1.1 407 "), f"{answer[:80]!r}")


@NETWORK.case("no datagrams, no names, no IPv6", real=True)
async def _(trial: Trial) -> None:
    for code in (
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
        "import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('::1', 53))",
        "import socket; socket.create_connection(('::1', 80), 3)",
        "import socket; socket.getaddrinfo('example.com', 443)",
    ):
        await trial.refused(sys.executable, "-c", code)


@NETWORK.case("Unix sockets: the one that is named", real=True)
async def _(trial: Trial) -> None:
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    for name, works in (("yes", True), ("no", False)):
        path = trial.home / "sockets" / name
        with listening_socket(path):
            done = await trial.run(sys.executable, "-c", code, str(path))
        expect((done.status == 0) is works, f"{name}: status {done.status}")


@NETWORK.case("the daemon is out of reach", real=True)
async def _(trial: Trial) -> None:
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    await trial.refused(sys.executable, "-c", code, str(trial.line.running.around.socket))


@NETWORK.case("https with the system's own client", real=True)
async def _(trial: Trial) -> None:
    words = ("/usr/bin/curl", "-fsS", "--max-time", "20", "-o", "/dev/null", "https://example.com/")
    if not trial.outside(*words):
        raise NotHereError("no internet")
    await trial.allowed(*words)


@LOCAL_BINDING.case("own ports can be opened and reached")
async def _(trial: Trial) -> None:
    await trial.allowed("listen", str(_free_port()))
    await trial.allowed("connect", "127.0.0.1", str(trial.origin.port))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# Processes


LEAVE = "use POSIX; exit if fork; POSIX::setsid(); exit if fork; open(F, '>', $ARGV[0]); print F $$; close F; sleep 300"


@PROCESSES.case("a process that has left group and session ends with its command")
async def _(trial: Trial) -> None:
    note = trial.project / "left"
    await trial.run("sh", "-c", 'perl -e "$0" "$1"; while [ ! -s "$1" ]; do sleep 0.1; done', LEAVE, str(note))
    pid = int(note.read_text())
    await _until_gone(pid)


@PROCESSES.case("everything ends with the client")
async def _(trial: Trial) -> None:
    note = trial.project / "owned"
    script = f"perl -e '{LEAVE.replace(chr(39), chr(34))}' {note}; sleep 300"
    process = await trial.line.start(f"from sandboxd_client import Client\nClient().run(['sh', '-c', {script!r}])")
    await wait_until_async(lambda: note.exists() and bool(note.read_text()), "it has started")
    process.kill()
    await process.wait()
    await _until_gone(int(note.read_text()))


async def _until_gone(pid: int) -> None:
    await wait_until_async(lambda: not _lives(pid), f"process {pid} has ended")


def _lives(pid: int) -> bool:
    if os.path.isdir("/proc"):
        return is_alive(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@PROCESSES.case("no signal to others", real=True)
async def _(trial: Trial) -> None:
    await trial.refused("kill", "-0", str(os.getpid()))


@PROCESSES.case("no environment of others", real=True)
async def _(trial: Trial) -> None:
    done = await trial.run("ps", "-E", "-ww", "-p", str(os.getpid()))
    expect("HOME=" not in done.out, "it can be read")


@PROCESSES.case("launchd starts nothing for it", real=True)
async def _(trial: Trial) -> None:
    target, label = trial.home / "launched", "dev.sandboxd.smoke"
    await trial.run("launchctl", "submit", "-l", label, "--", "/usr/bin/touch", str(target))
    await asyncio.sleep(2)
    trial.outside("launchctl", "remove", label)
    expect(not target.exists(), "it did")


@PROCESSES.case("LaunchServices starts nothing for it", real=True)
async def _(trial: Trial) -> None:
    target, contents = trial.home / "opened", trial.project / "Escape.app" / "Contents"
    (contents / "MacOS").mkdir(parents=True)
    (contents / "Info.plist").write_text(
        '<?xml version="1.0" encoding="UTF-8"?><plist version="1.0"><dict><key>CFBundleExecutable</key>'
        "<string>escape</string><key>CFBundleIdentifier</key><string>dev.sandboxd.smoke</string></dict></plist>"
    )
    program = contents / "MacOS" / "escape"
    program.write_text(f"#!/bin/sh\necho x > '{target}'\n")
    program.chmod(0o755)
    await trial.run("open", "-g", str(trial.project / "Escape.app"))
    await asyncio.sleep(3)
    expect(not target.exists(), "it did")


@PROCESSES.case("no Apple events", real=True)
async def _(trial: Trial) -> None:
    await trial.refused("osascript", "-e", 'tell application "Finder" to get name of startup disk')


# Violations


@VIOLATIONS.case("what was refused is reported, with its path")
async def _(trial: Trial) -> None:
    done = await trial.refused("write", str(trial.home / "new"), "x")
    path = real_spelling(os.path.realpath(trial.home / "new"))
    wanted = [v for v in done.violations if v.operation.startswith("file-write") and v.target == path]
    expect(wanted, f"{done.violations}")


@VIOLATIONS.case("and a service that was refused")
async def _(trial: Trial) -> None:
    done = await trial.refused("lookup", "com.apple.trustd.agent")
    expect(any(v.operation == "mach-lookup" for v in done.violations), f"{done.violations}")


@VIOLATIONS.case("names with spaces, parentheses and other letters")
async def _(trial: Trial) -> None:
    path = os.path.join(real_spelling(os.path.realpath(trial.home)), f"a (b) {NFC}")
    done = await trial.refused("mkdir", path)
    expect(any(v.target == path for v in done.violations), f"{done.violations}")


@VIOLATIONS.case("each command has its own")
async def _(trial: Trial) -> None:
    names = [str(trial.home / f"new-{number}") for number in range(4)]
    for name, done in zip(names, await asyncio.gather(*(trial.run("write", name, "x") for name in names)), strict=True):
        others = {os.path.basename(v.target) for v in done.violations} & {os.path.basename(n) for n in names}
        expect(others == {os.path.basename(name)}, f"{name}: {sorted(others)}")


# Everyday programs: what works outside works inside


PROGRAMS = (
    ("date",), ("id",), ("sw_vers",), ("ls", "-la"), ("sh", "-c", "echo $((1+1))"), ("bash", "-lc", "true"),
    ("zsh", "-c", "print ok"), ("zsh", "-lic", "true"), ("sh", "-c", "echo b a | tr ' ' '\\n' | sort"), ("mktemp",),
    ("perl", "-e", "print 1"), ("ruby", "-e", "puts 1"), ("awk", "BEGIN{print 1}"), ("sed", "-n", "1p", "old"),
    ("find", ".", "-name", "old"), ("grep", "-r", "old", "old"), ("tar", "-cf", "t.tar", "old"),
    ("zip", "z.zip", "old"),
    ("plutil", "-help"), ("sqlite3", "x.db", "create table t(a)"), ("openssl", "version"), ("ssh", "-V"),
    ("git", "init", "-q", "v"), ("git", "clone", "-q", "repository", "copy"), ("make", "-v"),
    ("sh", "-c", "echo 'int main(void){return 0;}' > m.c && cc m.c -o m && ./m"),
    ("sh", "-c", "echo 'print(1)' > m.swift && swiftc m.swift -o ms && ./ms"), ("xcrun", "--find", "cc"),
    (sys.executable, "-c", "import ssl, sqlite3, ctypes, multiprocessing; multiprocessing.Lock()"),
    (sys.executable, "-m", "venv", "v"), ("node", "-e", "console.log(1)"), ("npm", "--version"), ("go", "version"),
    ("cargo", "--version"), ("rustc", "--version"), ("java", "-version"), ("brew", "--version"), ("rg", "--version"),
    ("jq", "--version"), ("docker", "--version"), ("gh", "--version"), ("gpg", "--version"), ("uv", "--version"),
)  # fmt: skip


def _program(words: tuple[str, ...]) -> None:
    @EVERYDAY.case(" ".join((os.path.basename(words[0]), *words[1:])), real=True)
    async def _(trial: Trial) -> None:
        _start_anew(trial)
        if not trial.outside(*words):
            raise NotHereError("does not work outside either")
        _start_anew(trial)
        await trial.allowed(*words)


def _start_anew(trial: Trial) -> None:
    """What the programs make is not there, and what they need is."""
    for name in ("copy", "v", "x.db", "z.zip", "t.tar"):
        trial.outside("rm", "-rf", name)
    trial.outside("git", "init", "-q", "repository")


for _words in PROGRAMS:
    _program(_words)
