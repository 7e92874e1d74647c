"""Answers the questions of agents, from a process of its own: `python examples/approve.py SCOPE [NUMBER]`.

SCOPE is once, session or always. A real one would show the question on a phone, or in a chat."""

from __future__ import annotations

import sys
from itertools import chain, islice
from typing import cast

from sandboxd_client import Client
from sandboxd_client.wire.messages.prompts import PermissionRequest, Scope


def answer(person: Client, question: PermissionRequest, scope: Scope) -> None:
    """Allow what was asked, with the narrowest rule where the answer is for always."""
    rule = question.suggestions[0].rule if scope == "always" else "no rule"
    print(f"{question.kind}: {question.command or question.host or question.path}: {scope}, {rule}", flush=True)
    person.permission_respond(question.request_id, "allow", scope=scope)


def main() -> None:
    scope, number = cast(Scope, sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    with Client() as person:
        waiting = person.permission_subscribe().open
        print("waiting for questions", flush=True)
        later = (event.params for event in person.notifications() if isinstance(event.params, PermissionRequest))
        for question in islice(chain(waiting, later), number):
            answer(person, question, scope)


if __name__ == "__main__":
    main()
