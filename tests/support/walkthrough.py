"""A page of documentation that is played: each `$ ` line is typed into a shell on a terminal.

Before a block of another language, the last words in backticks name the file that the block becomes. Differences
between two runs (processes, times, homes) are masked in both texts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.terminal import Terminal
from support.users import Identity

PROMPT = "<<$?>>"
_READY = r"<<(\d+)>>"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([^`\n]+)`[^`]*\Z")
_STEP = re.compile(r"^\$ (.*(?:\n> .*)*)\n", re.MULTILINE)

TYPED: tuple[tuple[str, str], ...] = ((r"\[y/N\] $", "y"),)
"""What a person types when one of these has been written, by pattern."""

_ANY: tuple[tuple[str, str], ...] = (
    (r"\bpid \d+", "pid 4711"),
    (r"\b\d\d:\d\d:\d\d\b", "12:00:00"),
    (r"\b20\d\d-\d\d-\d\d\b", "2026-11-30"),
    (r"\b\d+ ms\b", "12 ms"),
    (r"\bpython3\.\d+", "python3.11"),
    (r"\bseal [0-9a-f]+", "seal 9f…"),
    (r"\b[cs]-[0-9a-f]{6,}\b", "s-1a2b3c"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """One heading of the page, with its blocks: (language, text, file that it becomes)."""

    title: str
    text: str

    def blocks(self) -> Iterator[tuple[str, str, str]]:
        for found in _BLOCK.finditer(self.text):
            named = _FILE.search(self.text[: found.start()])
            yield found[1], found[2], named[1] if named else ""


def sections(page: str) -> list[Section]:
    """The parts of a page below its `## ` headings."""
    heads = [*re.finditer(r"^## (.*)$", page, re.MULTILINE)]
    ends = [head.start() for head in heads[1:]] + [len(page)]
    return [Section(head[1], page[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def as_person(person: Identity) -> list[str]:
    """What starts a program on a terminal as this person."""
    if person.is_me:
        return []
    return ["/usr/bin/setpriv", f"--reuid={person.uid}", f"--regid={person.gid}", "--clear-groups"]


class Walkthrough:
    """Shell on a terminal, for one person. `shown` are texts that the page has in the place of those of this run."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, shown: Mapping[str, str]) -> None:
        settings = {"PS1": PROMPT, "PS2": "", "HISTFILE": "", "INPUTRC": "/dev/null", "TERM": "dumb"}
        self._shell = Terminal([*argv, "/bin/bash", "--norc", "--noprofile", "--noediting", "-i"],
                               env={**env, **settings}, cwd=cwd)  # fmt: skip
        self._shell.resize(40, 120)
        self._shell.expect(_READY)
        self._shown = shown

    def play(self, section: Section) -> Iterator[tuple[str, str]]:
        """Yields each block of a terminal, as it stands and as it was played."""
        for language, text, name in section.blocks():
            if language == "console":
                yield text, self.played(text)
            else:
                self._run(f"mkdir -p {shlex.quote(str(Path(name).parent))} && cat >{name} <<'END'\n{text}END")

    def close(self) -> None:
        self._shell.close()

    def masked(self, text: str) -> str:
        for this, other in self._shown.items():
            text = text.replace(this, other)
        for pattern, other in _ANY:
            text = re.sub(pattern, other, text)
        return text

    def played(self, block: str) -> str:
        """Types the commands of a block, and returns it with what they print."""
        commands = [found[1].replace("\n> ", "\n") for found in _STEP.finditer(block)]
        return "".join("$ " + command.replace("\n", "\n> ") + f"\n{self._run(command)}" for command in commands)

    def _run(self, command: str) -> str:
        """Returns what a command prints. Lines that are typed are echoed, and left out."""
        start = len(self._shell.text)
        self._shell.type(command)
        ends = "|".join([_READY, *(pattern.replace("$", r"\Z") for pattern, _ in TYPED)])
        while not re.fullmatch(_READY, (found := self._shell.expect(ends))[0]):
            self._shell.type(next(keys for pattern, keys in TYPED if re.search(pattern, found[0])))
        lines = re.sub(_READY + r"\Z", "", self._shell.text[start:]).replace("\r\n", "\n")
        typed = command + "\n"
        assert lines.startswith(typed), f"the terminal did not echo {command!r}: {lines!r}"
        output = self.masked(lines.removeprefix(typed))
        return output if output.endswith("\n") or not output else output + "\n"
