"""`on_violation="ask"` with a real daemon, a real sandbox and somebody who answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.daemons import StartDaemon
from support.origin import Origin

PROGRAM = """
import contextlib, json, sys, threading
from sandboxd_client import Client, ConnectionLost

port, answer = sys.argv[1:]
questions = []
with Client(autostart=False) as person, Client(autostart=False) as box:
    def answering():
        with contextlib.suppress(ConnectionLost):
            for said in person.notifications(30):
                if said.method == "sandbox_permission_request":
                    questions.append(said.params)
                    person.permission_respond(said.params.request_id, answer)
    thread = threading.Thread(target=answering)
    if answer != "nobody":
        person.permission_subscribe()
        thread.start()
    line = f"test $SANDBOX_RUNTIME && echo inside; curl -s -o /dev/null -w '%{{http_code}}'"
    line += f" --resolve no.test:{port}:127.0.0.1 http://no.test:{port}/"
    settings = {"sandbox": {"network": {"strictAllowlist": True}}}
    with box.session(".", settings=settings) as session:
        runs = [session.run(line, on_violation="ask", capture_output=True, text=True) for _ in range(2)]
    print(json.dumps([[[run.stdout, run.override.allowed, run.override.by, run.override.text] for run in runs],
                      [[q.kind, q.command == line, q.text, q.warnings, q.scopes] for q in questions]]))
if answer != "nobody":
    thread.join()
"""


@pytest.mark.parametrize("answer", ["allow", "deny", "nobody", "forbidden"])
def test_only_a_yes_lets_a_command_out(start_daemon: StartDaemon, origin: Origin, answer: str) -> None:
    settings: dict[str, Any] = {"sandbox": {"allowUnsandboxedCommands": answer != "forbidden"}}
    daemon = start_daemon(settings=settings)
    done = daemon.python(PROGRAM, str(origin.port), "allow" if answer == "forbidden" else answer)
    assert done.returncode == 0, done.stderr
    runs, questions = json.loads(done.stdout)
    kind, same, text, warnings, scopes = questions[0] if questions else [None] * 5
    if answer == "allow":
        assert [run[:2] for run in runs] == [["200", True]] * 2 and len(origin.connections) == 2
        assert len(questions) == 2 and all(run[2].startswith("pid ") for run in runs), "each is asked about"
    else:
        assert [run[:2] for run in runs] == [["inside\n403", False]] * 2 and origin.connections == []
        assert len(questions) == (1 if answer == "deny" else 0), "a no is remembered"
    if questions:
        assert (kind, same, scopes) == ("sandbox_override", True, ["once"])
        assert text == "the program says: it ended with status 0 in the sandbox"
        assert f"blocked in the sandbox: GET no.test:{origin.port}" in warnings
    if answer == "forbidden":
        assert runs[0][2] == "policy" and "allowUnsandboxedCommands is false" in runs[0][3]
