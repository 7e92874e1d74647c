"""The Node client and its compatibility layer, with real sandboxes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from support.daemons import DaemonProcess
from support.users import CHECKOUT, Identity
from support.waiting import wait_until

LIBRARY = (CHECKOUT / "client" / "node").as_uri()


def script(identity: Identity, code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a module that prints one JSON value, as the identity."""
    code = f'const lib = "{LIBRARY}";\n{code}'
    return identity.run(["node", "--input-type=module", "-e", code], env=env)


def said(daemon: DaemonProcess, code: str) -> Any:
    done = script(daemon.identity, code, daemon.environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COMMANDS = """
import { promisify } from "node:util";
const { Client } = await import(`${lib}/index.js`);
const box = new Client({ role: "agent", autostart: false });
const home = process.env.HOME;
const closed = (child) => new Promise((done) => child.on("close", (...status) => done(status)));
const slug = (done) => done.then(() => "done", (error) => error.slug ?? error.code ?? error.name);
const all = {};
const filesystem = { denyRead: ["/etc/hostname"], allowWrite: [home] };
const session = await box.session({ settings: { sandbox: { filesystem } } });

const ran = await session.run("cat; echo \\"it's\\" >made; cat /etc/hostname; touch ~/outside", { input: "in " });
all.ran = [ran.code, ran.stdout, ran.sandboxed, ran.violations.map(({ operation, target }) => [operation, target])];
all.block = ran.stderr.includes("<sandbox_violations>");
all.wider = (await box.run(["touch", `${home}/outside`], { overrides: { allow_write: [home] } })).code;
all.argv = (await session.run(["printf", "%s|", "$HOME", "a b", ""])).stdout;
all.exec = await promisify(session.exec).call(session, "echo out; echo err >&2");
all.failed = await promisify(session.execFile).call(session, "sh", ["-c", "exit 7"]).catch(({ code }) => code);

const child = session.spawn("sh", ["-c", 'trap "echo bye; exit 3" TERM; echo up; while :; do sleep 0.05; done']);
let heard = "";
child.stdout.on("data", (data) => { if ((heard += data) === "up\\n") child.kill(); });
all.trapped = [await closed(child), heard];
const tree = session.spawn("(setsid sleep 1000 & nohup sleep 1000 & echo ready; wait)", { shell: true });
await new Promise((done) => tree.stdout.once("data", done));
tree.kill("SIGKILL");
all.killed = await closed(tree);
all.ends = await Promise.all(["exit 143", "kill $$"].map((line) => closed(session.spawn(line, { shell: true }))));
all.late = await slug(session.run("trap '' TERM; echo begun; sleep 1000", { timeout: 300, grace: 50 }));
const aborted = new AbortController();
const given_up = session.spawn("sleep", ["1000"], { signal: aborted.signal });
given_up.on("error", () => {});
given_up.on("spawn", () => aborted.abort());
all.aborted = (await closed(given_up)).at(0) !== 0;
const never = session.spawn("touch", ["never"]);
never.kill();
all.never = await closed(never);
all.files = (await session.run("ls /proc/self/fd", {})).stdout.trim().split("\\n").length;
all.refused = [
  await slug(session.run("true", { cwd: "/nowhere" })), await slug(session.run("a\\0b")),
  await slug(session.run("\\ud800")),
  await slug(box.updateSettings([{ act: "add", key: "sandbox.filesystem.allowWrite", value: home }])),
  await slug(box.questions(() => "allow")), await slug(session.run("touch never", { dangerouslyDisableSandbox: true })),
  await slug(session.run("touch never", { decide: true, dangerouslyDisableSandbox: true, approve: () => "yes" })),
];
all.asked = await slug(session.run("touch never", { decide: true, dangerouslyDisableSandbox: true }));

const user = new Client({ autostart: false });
const questions = [];
const answering = await user.questions(({ kind, host }) => (questions.push([kind, host]), { behavior: "deny" }));
const shown = [];
const watching = await user.violations(({ target }) => shown.push(target), { sessionId: session.id });
const approve = () => true;
const outside = await session.run("touch ~/approved", { decide: true, dangerouslyDisableSandbox: true, approve });
all.approved = [outside.code, outside.sandboxed];
await session.run("curl -s http://ok.test:9/");
all.questions = questions;
while (!shown.includes("ok.test:9")) await new Promise((done) => setTimeout(done, 20));
all.settings = (await user.settings("sandbox.enabled")).values.map(({ key, value }) => [key, value]);
answering.close();
watching.close();
await answering.closed;
await session.close();
all.closed = await slug(box.run("true", { sessionId: session.id }));
console.log(JSON.stringify(all));  // and ends, although both clients are connected
"""


def test_commands_sessions_questions_and_violations(daemon: DaemonProcess) -> None:
    identity = daemon.identity
    home, work = identity.home, identity.workspace
    found = said(daemon, COMMANDS)
    assert found["ran"][:3] == [1, "in ", True] and found["block"]
    assert ["openat", f"{home}/outside"] in found["ran"][3]
    assert (work / "made").read_text() == "it's\n" and not (home / "outside").exists()
    assert found["wider"] == 1
    assert found["argv"] == "$HOME|a b||"
    assert found["exec"] == {"stdout": "out\n", "stderr": "err\n"} and found["failed"] == 7
    assert found["trapped"] == [[3, None], "up\nbye\n"]
    assert found["killed"] == [None, "SIGKILL"] and found["late"] == "ETIMEDOUT" and found["aborted"]
    assert found["ends"] == [[143, None], [None, "SIGTERM"]]
    assert found["never"] == [None, "SIGTERM"] and not (work / "never").exists()
    assert found["files"] == 4  # the standard streams, and that of ls
    assert found["refused"] == [
        "cwd_missing", "command_nul", "not_utf8", "not_permitted", "not_permitted", "TypeError", "command_denied",
    ]  # fmt: skip
    assert found["asked"] == "approval_required"
    assert found["approved"] == [0, False] and (home / "approved").exists()
    assert found["questions"] == [["network", "ok.test"]]
    assert found["settings"] == [["sandbox.enabled", True]]
    assert found["closed"] == "not_permitted"


PEER = """
import { spawn, spawnSync } from "node:child_process";
const { SandboxManager, settingsOf } = await import(`${lib}/sandbox-runtime.js`);
const config = {
  network: { allowedDomains: ["ok.test"], deniedDomains: ["denied.test"] },
  filesystem: { denyRead: ["/etc/hostname"], allowWrite: ["."], denyWrite: ["kept"] },
};
const all = {};
const run = async (line, ...more) => {
  const child = spawn(await SandboxManager.wrapWithSandbox(line, ...more), { shell: true });
  let out = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (out += data));
  return new Promise((done) => child.on("close", (status) => done([status, out])));
};
const slug = (act) => { try { act(); } catch (error) { return error.slug; } };
all.early = await run("true").catch(({ slug }) => slug);
const asked = [];
await SandboxManager.initialize(config, async ({ host, port }) => (asked.push([host, port]), false));
all.ran = await run("echo \\"it's\\" >made; touch kept; cat /etc/hostname; curl -sf elsewhere.test denied.test");
all.asked = asked;
all.tightened = await run("echo x >other", undefined, { filesystem: { allowWrite: [] } });
const { argv, env } = await SandboxManager.wrapWithSandboxArgv("echo $0; pwd", "sh", undefined, undefined, "/usr");
all.argv = spawnSync(argv[0], argv.slice(1), { env, cwd: "/usr" }).stdout.toString();
await run("touch kept", undefined, undefined, undefined, { commandId: "call-1", commandText: "shown" });
const store = SandboxManager.getSandboxViolationStore();
while (!store.getViolationsForCommand("call-1").length) await new Promise((done) => setTimeout(done, 20));
all.shown = store.getViolationsForCommand("call-1").map(({ command }) => command);
all.block = SandboxManager.annotateStderrWithSandboxFailures("call-1", "<sandbox_violations>").split("\\n").slice(0, 2);
SandboxManager.updateConfig({ ...config, filesystem: { ...config.filesystem, allowWrite: [], denyRead: [] } });
all.updated = await run("cat /etc/hostname >/dev/null && touch other");
const dropped = [{ network: { filterRequest() {}, httpProxyPort: 0 } }, { filesystem: { disabled: true } }];
all.dropped = dropped.map((more) => slug(() => settingsOf(more)));
await SandboxManager.reset();
all.enabled = SandboxManager.isSandboxingEnabled();
console.log(JSON.stringify(all));
"""


def test_a_program_of_the_peer_library_runs_as_it_is(daemon: DaemonProcess) -> None:
    work = daemon.identity.workspace
    found = said(daemon, PEER)
    assert found["early"] == "session_unknown"
    status, output = found["ran"]
    assert status != 0 and "/etc/hostname" in output and not (work / "kept").exists()
    assert (work / "made").read_text() == "it's\n"
    assert found["asked"] == [["elsewhere.test", 80]]
    assert found["tightened"][0] == 1 and not (work / "other").exists()
    assert found["argv"].splitlines()[1:] == ["/usr"]
    assert found["shown"] == ["shown"]
    assert found["block"] == ["&lt;sandbox_violations>", "<sandbox_violations>"]
    assert found["updated"][0] == 1 and not (work / "other").exists()
    assert found["dropped"] == ["restriction_unknown"] * 2
    assert found["enabled"] is False


def test_the_blocks_of_the_page_run(shared_daemon: DaemonProcess) -> None:
    identity = shared_daemon.identity
    page = (CHECKOUT / "docs" / "node.md").read_text()
    package = identity.workspace / "node_modules"
    package.mkdir()
    (package / "sandboxd-client").symlink_to(CHECKOUT / "client" / "node")
    blocks = page.split("```js\n")[1:]
    said = [script(identity, block.partition("```")[0], shared_daemon.environment()) for block in blocks]
    assert [one.stdout.split() for one in said] == [["0", "HELLO", "[]", "up", "ended", "with", "3"], ["works"]], said


LISTEN = """
import socket, os
os.umask(0o77); os.mkdir("s")
listener = socket.socket(socket.AF_UNIX); listener.bind("s/sock"); listener.listen()
while True:
    connection = listener.accept()[0]; connection.recv(4096); connection.close()
"""
CONNECT = """
const { Client } = await import(`${lib}/index.js`);
const error = await new Client({ autostart: false }).connect().catch((error) => error);
console.log(JSON.stringify(error.slug));
"""
START = """
const { Client } = await import(`${lib}/index.js`);
const box = new Client();
const done = await box.run("echo started").catch(({ message }) => ({ stdout: message }));
console.log(JSON.stringify(done.stdout));
"""


def test_it_trusts_no_daemon_that_a_command_could_be(daemon: DaemonProcess) -> None:
    identity = daemon.identity
    listening = identity.workspace / "s" / "sock"
    env = {**daemon.environment(), "SANDBOXD_SOCKET": str(listening)}

    def answer_of(argv: list[str]) -> str:
        with identity.popen(argv, env=daemon.environment()) as server:
            wait_until(listening.exists, "it listens")
            found = script(identity, CONNECT, env)
            server.kill()
        listening.unlink()
        listening.parent.rmdir()
        return str(json.loads(found.stdout))

    python = identity.python("-c", LISTEN)
    assert answer_of(identity.command("run", "--", *python)) == "daemon_sandboxed"
    assert answer_of(python) == "connection_lost"  # no sandbox: it was asked


def test_it_starts_only_a_daemon_that_no_command_could_write(identity: Identity) -> None:
    planted = identity.write(identity.workspace / "bin" / "sandboxd", "#!/bin/sh\ntouch planted\n", mode=0o755)
    own = Path(identity.code.python).with_name("sandboxd")
    env = identity.environment(PATH=f"{planted.parent}:/usr/bin:/bin")
    assert "a command could have written it" in json.loads(script(identity, START, env).stdout)
    assert not (identity.workspace / "planted").exists()
    env["PATH"] = f"{planted.parent}:{own.parent}:/usr/bin:/bin"
    if identity.uid:  # root trusts directories of the system only
        assert json.loads(script(identity, START, env).stdout) == "started\n"
        assert identity.run([str(own), "start"], env=env).stdout.startswith("running (pid")
        identity.run([str(own), "stop"], env=env, check=True)
    else:
        assert "is outside the directories of the system" in json.loads(script(identity, START, env).stdout)
