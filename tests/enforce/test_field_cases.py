"""Field cases of the environment, of ways to run a command, and of the scan, many in one sandbox."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.daemons import StartDaemon
from support.origin import Origin
from support.users import Identity, identity_names

AS_A_USER = pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)

EVERY_WAY = """
import json, os, pty, subprocess, sys
from sandboxd_client import Client
code, *names = sys.argv[1:]
show = [sys.executable, "-I", "-S", "-c", code, *names]
os.environ.update(A="outer", NODE_EXTRA_CA_CERTS="/etc/hostname", HTTPS_PROXY="http://mine.test:1",
                  JAVA_TOOL_OPTIONS="-Xmx64m", SECRET_TOKEN="s")
mine = {**os.environ, "A": "1"}
said = []
with Client(autostart=False) as box:
    said.append(box.run(show, env=mine, capture_output=True, text=True).stdout)
    said.append(box.spawn(show, env=mine, stdout=subprocess.PIPE, text=True).communicate()[0])
    with box.session(".") as session:
        said.append(session.run(show, env=mine, capture_output=True, text=True).stdout)
    done = subprocess.run([os.environ["SBX"], "run", "--", *show], env=mine, capture_output=True, text=True)
    said.append(done.stdout)
    ours, theirs = pty.openpty()
    box.spawn(show, env=mine, stdin=theirs, stdout=theirs, stderr=theirs).wait()
    said.append(os.read(ours, 99999).decode())
    print(json.dumps([json.loads(text) for text in said]))
    done = box.run(show, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    print(json.dumps(json.loads(done.stdout)))
"""
SHOW = """
import json, os, sys
here = os.environ.get("TMPDIR", "")
print(json.dumps([{name: os.environ.get(name, "").replace(here, "<tmp>") for name in sys.argv[1:]},
                  os.access(os.path.dirname(os.environ["TMPPREFIX"]), os.W_OK), here.startswith("/")]))
"""
NAMES = ["A", "NODE_EXTRA_CA_CERTS", "NODE_USE_ENV_PROXY", "TMPPREFIX", "HTTPS_PROXY", "JAVA_TOOL_OPTIONS",
         "SECRET_TOKEN", "SANDBOX_RUNTIME"]  # fmt: skip


@AS_A_USER
def test_the_environment_is_the_same_however_a_command_is_run(start_daemon: StartDaemon, identity: Identity) -> None:
    """The caller's, without what is on the list of secrets, with the sandbox's own."""
    daemon = start_daemon(settings={"sandbox": {"environment": {"remove": ["SECRET_*"]}}})
    code = f"import os; os.environ['SBX'] = {str(identity.base / 'bin' / 'sandboxd')!r}\n{EVERY_WAY}"
    done = daemon.python(code, SHOW, *NAMES)
    assert done.returncode == 0, done.stderr
    ways, empty = map(json.loads, done.stdout.splitlines())
    assert len(ways) == 5 and all(way == ways[0] for way in ways), ways
    values, parent_is_writable, absolute = ways[0]
    assert (parent_is_writable, absolute) == (True, True)
    java = values.pop("JAVA_TOOL_OPTIONS")
    assert java.startswith("-Xmx64m -Dhttp.proxyHost=127.0.0.1 ") and "-Dhttp.nonProxyHosts=" in java
    assert values == {
        "A": "1", "NODE_EXTRA_CA_CERTS": "/etc/hostname", "NODE_USE_ENV_PROXY": "1", "TMPPREFIX": "<tmp>/zsh",
        "HTTPS_PROXY": "http://127.0.0.1:3128", "SECRET_TOKEN": "", "SANDBOX_RUNTIME": "1",
    }  # fmt: skip
    assert empty[0]["A"] == "" and empty[0]["HTTPS_PROXY"] == "http://127.0.0.1:3128" and empty[1]


MANY = """
import json, os, subprocess, sys
from sandboxd_client import Client
port, other, hook = sys.argv[1:]
inside = f'''
for p in {port} {other}; do curl -s -o /dev/null -w '%{{http_code}} ' http://localhost:$p/; done; echo
kill -0 {os.getppid()} 2>&1 | grep -c 'No such process'; ls /proc/{os.getppid()} 2>&1 | grep -c 'No such file'
ls /proc | grep -c '^[0-9]'; head -c1 /proc/1/environ 2>/dev/null | wc -c; head -c1 /proc/self/environ | wc -c
bash -i -c 'echo interactive' 2>/dev/null
mktemp -d >/dev/null && echo temporary; echo a > ~/t/f && cat ~/t/f
'''
server = "import sys\\nfor line in sys.stdin: print('served', line.strip(), flush=True)"
with Client(autostart=False) as box:
    done = box.run(inside, capture_output=True, text=True)
    print(json.dumps(done.stdout.split("\\n")))
    print(json.dumps([[v.target, v.hint] for v in done.violations if v.kind == "network"]))
    ports = box.policy_effective().policy["network"]["allow_local_ports"]
    print(json.dumps([[p["first"], p["last"]] for p in ports] + [port in box.policy_describe().text]))
    print(box.run([hook], capture_output=True).returncode, os.path.exists(os.path.expanduser("~/planted")))
    with box.spawn([sys.executable, "-I", "-S", "-c", server], stdin=-1, stdout=-1, text=True) as running:
        print(running.communicate("one\\n")[0], end="")
"""


def test_a_host_port_other_processes_hooks_and_servers(
    start_daemon: StartDaemon, identity: Identity, origin: Origin
) -> None:
    tmp = identity.write(identity.home / "t" / "x", "").parent
    hook = identity.write(identity.workspace / "hook", "#!/bin/sh\ntouch ~/planted\n", mode=0o755)
    network = {"allowedDomains": [f"localhost:{origin.port}"]}
    settings = {"sandbox": {"network": network, "filesystem": {"denyRead": ["~"], "allowWrite": ["$OWN_TMP"]}}}
    daemon = start_daemon(settings=settings, env={"OWN_TMP": str(tmp)})
    other = 1 if origin.port != 1 else 2
    done = daemon.python(MANY, str(origin.port), str(other), str(hook))
    assert done.returncode == 0, done.stderr
    shown, violations, ports, hooked, served = done.stdout.splitlines()
    codes, gone, unseen, processes, of_init, of_own, *rest = json.loads(shown)
    assert codes.split() == ["200", "000"], "the listed port of the host is reached, the other one is not"
    assert [gone, unseen] == ["1", "1"] and int(processes) < 12, "processes of the host are neither seen nor signalled"
    assert [of_init, of_own] == ["0", "1"], "and those of the helper are not read"
    assert rest == ["interactive", "temporary", "a", ""]
    hints = [hint for target, hint in json.loads(violations) if f":{other}" in target]
    assert hints and all(f"sandboxd allow domain localhost:{other}" in hint for hint in hints), violations
    assert json.loads(ports) == [[origin.port, origin.port], True]
    assert hooked.split()[1] == "False" and not hooked.startswith("0 "), "a hook runs in the same sandbox"
    assert served == "served one", "and a server does"


@AS_A_USER  # root can read every directory
def test_the_scan_needs_no_program_and_finds_what_is_deep(start_daemon: StartDaemon, identity: Identity) -> None:
    """Without ripgrep, with a ring of links, and with a directory that cannot be read, nothing is masked
    less than it should be."""
    deep = "a/b/c/d/e/f/g/id_rsa"
    for name in (deep, "x/.env.local", "plain"):
        identity.write(identity.workspace / name, "secret" if name != "plain" else "open")
    (identity.workspace / "a" / "ring").symlink_to("..")
    (identity.workspace / "self").symlink_to("self")
    closed = identity.write(identity.workspace / "closed" / "id_rsa", "secret").parent
    few = identity.base / "few"
    few.mkdir()
    for program in ("bwrap", "git", "sh", "bash", "cat", "env", "python3"):
        for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
            if os.path.exists(f"{folder}/{program}"):
                (few / program).symlink_to(f"{folder}/{program}")
                break
    rules = {"denyRead": ["**/id_rsa", "**/.env.*"]}
    closed.chmod(0)
    daemon = start_daemon(settings={"sandbox": {"filesystem": rules}}, env={"PATH": str(few)})
    script = f"for f in {deep} x/.env.local a/ring/{deep} closed/id_rsa plain; do cat $f; done"
    done = daemon.run("run", "-c", f"chmod 755 closed; {script}")
    assert done.stdout == "open", "what cannot be looked through is not taken for empty"
    assert f"**/id_rsa: {closed} cannot be searched at the moment, so all of it is denied" in done.stderr
    closed.chmod(0o300)
    done = daemon.run("run", "-c", script)
    closed.chmod(0o755)
    assert done.returncode == 125, "nor what cannot be listed"
    assert f"**/id_rsa cannot be enforced: {closed}: Permission denied" in done.stderr and "hint: " in done.stderr
    assert daemon.run("run", "-c", script).stdout == "open"
    assert not [path for path in Path(identity.workspace).rglob("*") if "*" in path.name]
