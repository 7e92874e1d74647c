"""`sandboxd prompts`: answer permission questions in this terminal, one key each.

One question is shown at a time, with the number of those behind it. Keys typed before it was shown do not answer it.
Enter alone, an unknown key and the end of the input answer nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sandboxd.cli.arguments import NO_AUTOSTART, Help, UsageError, no_words, visible
from sandboxd.cli.daemon_client import client
from sandboxd.cli.remote import REMOTE, forwarded
from sandboxd.screens.questions import Choice, QuestionRow, question_row
from sandboxd_client import Client, RpcError, SandboxdError
from sandboxd_client.wire.messages.prompts import PermissionRequest, PermissionResolved

HELP = Help(
    "prompts [--remote HOST]",
    "Answer permission questions in this terminal, one key each; q ends.",
    (REMOTE, NO_AUTOSTART),
    ("prompts", "prompts --remote build.example.org"),
)
_INTERRUPT: Final = ("\x03", "\x04", "q")
_TICK_S: Final = 0.2
"""The interval at which a wait for a key checks for another answer."""


def answer_beside() -> Callable[[], None]:
    """Answer questions in this terminal beside a command; return what ends that. Raises UsageError."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise UsageError("--ask needs a terminal", "answer in another one: sandboxd prompts") from None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread waits for them
    try:
        return Desk(Client(autostart=False), terminal, terminal).beside()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    no_words(parsed)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("prompts needs a terminal", "programs answer with permission.subscribe over the socket")
    host = parsed.get("remote")
    if host is None:
        with client(parsed) as box:
            return _answer_here(box, "")
    with forwarded(host) as path, Client(path, autostart=False) as box:
        return _answer_here(box, f" of {visible(host, 60)}")


def _answer_here(box: Client, whose: str) -> int:
    desk = Desk(box, sys.stdin.fileno(), 1)
    desk.say(f"waiting for questions{whose}; q ends")
    with desk.single_keys():
        return desk.run()


class Desk:
    """The open questions, the first one shown on a terminal. A thread receives events."""

    def __init__(self, box: Client, keys: int, lines: int) -> None:
        """Subscribe to questions; `keys` and `lines` are the descriptors of the terminal."""
        self._box = box
        self._keys, self._lines = keys, lines
        self._done = False
        self._lock = threading.Lock()
        self._open: dict[str, QuestionRow] = {}
        self._ended: dict[str, PermissionResolved] = {}
        self._lost: SandboxdError | None = None

        self._open.update((one.request_id, question_row(one)) for one in box.permission_subscribe().open)
        threading.Thread(target=self._hear, name="questions", daemon=True).start()

    def run(self) -> int:
        """Ask until a key ends it, in a terminal that gives single keys."""
        while self._lost is None:
            request = self._first()
            if request is None:
                if self._key() in _INTERRUPT:
                    return 0
            elif not self._ask(request):
                return 0
        raise self._lost

    def beside(self) -> Callable[[], None]:
        """Ask beside a command in the same terminal, and return what ends that.

        The terminal gives single keys only while a question is shown."""

        def ask() -> None:
            while self._lost is None and not self._done:
                request = self._first()
                if request is None:
                    time.sleep(_TICK_S)
                    continue
                with self.single_keys():
                    if not self._ask(request):
                        return

        def end() -> None:
            self._done = True
            asking.join()

        asking = threading.Thread(target=ask, name="desk", daemon=True)
        asking.start()
        return end

    def _hear(self) -> None:
        try:
            for event in self._box.notifications():
                with self._lock:
                    if isinstance(event.params, PermissionRequest):
                        self._open[event.params.request_id] = question_row(event.params)
                    elif isinstance(event.params, PermissionResolved):
                        self._open.pop(event.params.request_id, None)
                        self._ended[event.params.request_id] = event.params
        except SandboxdError as error:
            self._lost = error

    def _first(self) -> QuestionRow | None:
        with self._lock:
            self._ended.clear()
            return next(iter(self._open.values()), None)

    def _ask(self, request: QuestionRow) -> bool:
        """Show a question and handle its answer; return False to end."""
        with self._lock:
            behind = len(self._open) - 1
        termios.tcflush(self._keys, termios.TCIFLUSH)  # typed before the question was shown
        for line in lines_of(request, behind, time.time()):
            self.say(line)
        choices = {choice.key: choice for choice in request.choices}
        confirmed = ""
        while self._lost is None and not self._done:
            with self._lock:
                ended = self._ended.get(request.request_id)
            if ended is not None:
                self.say(f"  {ended.behavior}: {ended.text}" + (f" ({ended.by})" if ended.by else ""))
                return True
            key = self._key()
            if key in _INTERRUPT:
                return False
            if (choice := choices.get(key)) is not None:
                if choice.wide and key != confirmed:
                    confirmed = key
                    self.say(f"  this allows a great deal: press {key} again to confirm")
                    continue
                self._answer(request, choice)
                return True
        return True

    def _answer(self, request: QuestionRow, choice: Choice) -> None:
        try:
            result = self._box.permission_respond(
                request.request_id,
                choice.behavior,
                scope=choice.scope,
                confirm=choice.wide,
                pattern=choice.pattern,
            )
        except RpcError as error:
            self.say(f"  not accepted: {error}")
            return  # still open: it is shown again
        self.say(f"  {choice.words}")
        for warning in result.warnings:
            self.say(f"  warning: {warning}")
        with self._lock:
            self._open.pop(request.request_id, None)

    @contextlib.contextmanager
    def single_keys(self) -> Iterator[None]:
        """Read single keys without echo, and restore the terminal."""
        before = termios.tcgetattr(self._keys)
        try:
            tty.setcbreak(self._keys)
            yield
        finally:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, before)

    def _key(self) -> str:
        """Return the next key, empty for none in a tick or an escape sequence."""
        if not select.select([self._keys], [], [], _TICK_S)[0]:
            return ""
        typed = os.read(self._keys, 64).decode("utf-8", "replace")
        if not typed:
            return "q"
        return typed if len(typed) == 1 else ""

    def say(self, line: str) -> None:
        os.write(self._lines, f"{line}\n".encode("utf-8", "replace"))


def lines_of(row: QuestionRow, behind: int, now: float) -> list[str]:
    """Format a question, each text of it as one printable line."""
    lines = ["", row.sentence, *(f"  {label:<8} {text}" for label, text in row.facts)]
    lines += [f"  [{choice.key}] {choice.label}" for choice in row.choices]
    return [*lines, f"  {row.left(now)}" + (f"; {behind} more waiting" if behind else "")]
