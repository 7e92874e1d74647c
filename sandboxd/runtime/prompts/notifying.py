"""Programs that tell a user of a question: a desktop notification, a message to a telephone, a webhook.

They are argv lists of user or managed settings (`sandbox.prompts.notify`), run without a shell. A program that commands
could write does not run. At most `AT_ONCE` run at a time, each for `LONGEST_S`, and none for questions beyond
`A_MINUTE`."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from sandboxd.children import run_program
from sandboxd.runtime.prompts.prompt_records import Asked, QuestionKind

AT_ONCE: Final = 4
A_MINUTE: Final = 30
LONGEST_S: Final = 10.0
_LONGEST_VARIABLE: Final = 1000
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/opt/homebrew/bin"
_PASSED_ON: Final = (
    "HOME", "USER", "LOGNAME", "LANG", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "TMUX",
)  # fmt: skip
_SHOWN: Final = {
    "text": "SANDBOXD_QUESTION",
    "answer": "SANDBOXD_ANSWER",
    "kind": "SANDBOXD_KIND",
    "link": "SANDBOXD_LINK",
}
_VERBS: Final = {
    QuestionKind.NETWORK: "reach",
    QuestionKind.SANDBOX_OVERRIDE: "run outside the sandbox:",
    QuestionKind.COMMAND: "run",
    QuestionKind.TRUST: "follow the changed settings of",
}

Argv = tuple[str, ...]
FindProgram = Callable[[str, Collection[str]], tuple[str | None, str]]
"""Return the path of a program that commands cannot write, or None and the reason. It looks at files."""


class Notifying:
    """The programs that run for each question.

    `programs` are those of the settings in force. `find` is called in a thread with the name and the directories that
    sessions write. `page` returns the address of the page that answers questions, empty without one. `unseen` is called
    with a question that no program could tell of."""

    def __init__(
        self,
        programs: Callable[[], Sequence[Argv]],
        find: FindProgram,
        written: Callable[[], Collection[str]],
        log: Callable[..., object],
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        page: Callable[[], str] = str,
    ) -> None:
        self._programs = programs
        self._find = find
        self._written = written
        self._log = log
        self._environment = {"PATH": _PATH, **{name: environment[name] for name in _PASSED_ON if name in environment}}
        self._clock = clock
        self._page = page
        self._room = asyncio.Semaphore(AT_ONCE)
        self._told: deque[float] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.unseen: Callable[[str], None] = lambda request_id: None

    def can_tell(self) -> bool:
        """Return whether a question put now would be told of."""
        now = self._clock()
        while self._told and self._told[0] <= now - 60:
            self._told.popleft()
        return bool(self._programs()) and len(self._told) < A_MINUTE

    def listen(self, event: object) -> None:
        """Take an event of the daemon; a question is told of in the background."""
        if isinstance(event, Asked) and self.can_tell():
            self._told.append(self._clock())
            task = asyncio.get_running_loop().create_task(self._tell(event), name="notify")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell(self, asked: Asked) -> None:
        done = await asyncio.gather(*(self._run(argv, asked) for argv in self._programs()))
        if not any(done):
            self.unseen(asked.request_id)

    async def _run(self, argv: Argv, asked: Asked) -> bool:
        """Run one program; return whether it ended well."""
        async with self._room:
            program, why = await asyncio.to_thread(lambda: self._find(argv[0], self._written()))
            if program is not None:
                why = await self._spawn((program, *argv[1:]), asked)
            if why:
                self._log("a program of sandbox.prompts.notify did not tell of a question", program=argv[0], reason=why)
            return not why

    async def _spawn(self, argv: Argv, asked: Asked) -> str:
        facts = facts_of(asked, self._page())
        shown = {_SHOWN[name]: str(value) for name, value in facts.items() if name in _SHOWN}
        variables = {name: value[:_LONGEST_VARIABLE].replace("\0", "") for name, value in shown.items()}
        text = json.dumps(facts).encode() + b"\n"
        try:
            done = await run_program(argv, LONGEST_S, env={**self._environment, **variables}, stdin=text, output=False)
        except (OSError, ValueError) as error:
            return f"it does not start: {getattr(error, 'strerror', None) or error}"
        if done.status is None:
            return f"it does not end within {LONGEST_S:.0f} s"
        return f"it ends with status {done.status}" if done.status else ""


def facts_of(asked: Asked, page: str) -> dict[str, object]:
    """Return what a program reads on standard input; each text is fit for display.

    The link leads to the question on the page, for a browser that was let in there before. It holds no secret."""
    question = asked.question
    verb = _VERBS.get(question.kind, "write" if question.write else "read")
    return {
        "request_id": asked.request_id,
        "session_id": asked.session_id,
        "kind": question.kind.value,
        "text": f"May a command {verb} {question.subject}?",
        "reason": question.text,
        "host": question.host,
        "port": question.port,
        "path": question.subject if question.path is not None else None,
        "write": question.write,
        "command": question.command,
        "project": question.project,
        "warnings": list(question.warnings),
        "expires_at": asked.expires_at,
        "answer": "sandboxd prompts",
        "answer_remotely": f"sandboxd prompts --remote {socket.gethostname()}",
        **({"link": f"{page}#{asked.request_id}"} if page else {}),
    }
