"""`on_violation="ask"` with a real daemon, a real sandbox and a client that answers."""

from __future__ import annotations

import json

from support.daemons import StartDaemon
from support.origin import Origin

PROGRAM = """
import contextlib, json, os, sys, threading
from sandboxd_client import Client, ConnectionLost

port, answers = sys.argv[1:]
answers, questions, results = answers.split(","), [], []
line = f"test $SANDBOX_RUNTIME && echo inside; curl -s -o /dev/null -w '%{{http_code}}'"
line += f" --resolve no.test:{port}:127.0.0.1 http://no.test:{port}/"

def ask():
    with Client(autostart=False) as box:
        with box.session(".", settings={"sandbox": {"network": {"strictAllowlist": True}}}) as session:
            runs = [session.run(line, on_violation="ask", capture_output=True, text=True) for _ in range(2)]
    return [[run.stdout, run.override.allowed, run.override.by, run.override.text] for run in runs]

def asked_by_a_child():  # nothing may answer a question of its own process, nor of one that started it
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with open(writing, "w") as pipe:
            json.dump(ask(), pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        runs = json.load(pipe)
    os.waitpid(child, 0)
    return runs

def answering():
    with contextlib.suppress(ConnectionLost):
        for said in person.notifications(30):
            if said.method == "sandbox_permission_request":
                questions.append(said.params)
                person.permission_respond(said.params.request_id, answer)

with Client(autostart=False) as person:
    thread = threading.Thread(target=answering)
    for answer in answers:
        if answer != "nobody" and not thread.is_alive():
            person.permission_subscribe()
            thread.start()
        questions.clear()
        runs = asked_by_a_child()
        results.append([runs, [[q.kind, q.command == line, q.text, q.warnings, q.scopes] for q in questions]])
if thread.ident:
    thread.join()
print(json.dumps(results))
"""
INSIDE = ["inside\n403", False]


def test_only_a_yes_lets_a_command_out(start_daemon: StartDaemon, origin: Origin) -> None:
    daemon = start_daemon()
    done = daemon.python(PROGRAM, str(origin.port), "nobody,deny,allow")
    assert done.returncode == 0, done.stderr
    nobody, deny, allow = json.loads(done.stdout)
    assert [run[:2] for run in nobody[0]] == [INSIDE] * 2 and nobody[1] == []
    assert [run[:2] for run in deny[0]] == [INSIDE] * 2 and len(deny[1]) == 1, "a no is remembered"
    assert [run[:2] for run in allow[0]] == [["200", True]] * 2 and len(allow[1]) == 2, "each is asked about"
    assert len(origin.connections) == 2 and all(run[2].startswith("pid ") for run in allow[0])
    for kind, same, text, warnings, scopes in (*deny[1], *allow[1]):
        assert (kind, same) == ("sandbox_override", True)
        assert scopes == ["once", "session"], "a line of two programs suggests no exclusion"
        assert text == "the program says: it ended with status 0 in the sandbox"
        assert f"blocked in the sandbox: GET no.test:{origin.port}" in warnings
    assert daemon.run("settings", "set", "sandbox.allowUnsandboxedCommands", "false").returncode == 0
    done = daemon.python(PROGRAM, str(origin.port), "allow")
    assert done.returncode == 0, done.stderr
    [[runs, questions]] = json.loads(done.stdout)
    assert [run[:2] for run in runs] == [INSIDE] * 2 and questions == [] and len(origin.connections) == 2
    assert runs[0][2] == "policy" and "allowUnsandboxedCommands is false" in runs[0][3]
