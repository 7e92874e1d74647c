"""Tables of programs that run other programs, and of harmless variables.

Rules that open something look through `WRAPPERS` alone, with the options named there. Rules that close something use
`LAUNCHERS`: any later word may be the program."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sandboxd.policy.commands.shell_syntax import SHELLS, Word
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A program that runs another one; `operands` words stand before that."""

    flags: str = r"(?!)"
    valued: frozenset[str] = frozenset()
    operands: int = 0
    assignments: bool = False
    adds_arguments: bool = False


WRAPPERS: dict[str, Wrapper] = {
    "command": Wrapper(),
    "nohup": Wrapper(),
    "time": Wrapper(flags="-p"),
    "nice": Wrapper(valued=frozenset({"-n"})),
    "timeout": Wrapper(
        flags="--foreground|--preserve-status|-v|--verbose",
        valued=frozenset({"-s", "--signal", "-k", "--kill-after"}),
        operands=1,
    ),
    "stdbuf": Wrapper(flags=r"-[ioe][0L]"),
    "env": Wrapper(assignments=True),
    "xargs": Wrapper(
        flags="-0|--null|-r|--no-run-if-empty|-t", valued=frozenset({"-n", "-L", "-P"}), adds_arguments=True
    ),
}

LAUNCHERS = (
    frozenset(WRAPPERS)
    | SHELLS
    | frozenset(
        """builtin chroot coproc doas eval exec fakeroot firejail flock ionice ltrace parallel pkexec runuser script
        setarch setpriv setsid ssh strace su sudo systemd-run taskset trap unshare watch bwrap find alias caffeinate
        dbus-run-session faketime proxychains proxychains4 torsocks xvfb-run""".split()
    )
)
"""Programs whose arguments can name another program; excluding one excludes everything."""

INTERPRETERS = frozenset("python python3 node ruby perl php lua deno bun java awk gawk make npx uvx".split())


def unversioned(name: str) -> str:
    """Return a program's name without version: `python` for `python3.11`."""
    return name if name in LAUNCHERS | INTERPRETERS else re.sub(r"[-.\d]+$", "", name)


def runs_anything(name: str) -> bool:
    """Return whether a program runs what its arguments say."""
    return unversioned(name) in LAUNCHERS | INTERPRETERS


_HARMLESS = re.compile(
    r"(LANG|LC_[A-Z]+|LANGUAGE|TZ|TERM|COLUMNS|LINES|CI|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?|COLORTERM|DEBUG|VERBOSE"
    r"|DEBIAN_FRONTEND|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|NODE_ENV)=[A-Za-z0-9_.,:@%+/\-]*"
)


def is_harmless_assignment(text: str) -> bool:
    """Return whether `NAME=value` surely changes no more than language or colour."""
    return _HARMLESS.fullmatch(text) is not None


def unwrap(words: Sequence[Word]) -> tuple[Word, ...] | None:
    """Return the command behind one wrapper, None where there is none to be read."""
    if not words or not words[0].literal:
        return None
    wrapper = WRAPPERS.get(words[0].text)
    if wrapper is None:
        return None
    index, operands = 1, wrapper.operands
    while index < len(words):
        word = words[index]
        if not word.literal:
            return None
        if word.text.startswith("-"):
            if word.text in wrapper.valued:
                index += 2
            elif re.fullmatch(wrapper.flags, word.text):
                index += 1
            else:
                return None
        elif wrapper.assignments and "=" in word.text:
            if not is_harmless_assignment(word.text):
                return None
            index += 1
        elif operands:
            index, operands = index + 1, operands - 1
        else:
            break
    rest = tuple(words[index:])
    if not rest:
        return None
    # An unknown word keeps exact patterns from matching.
    return (*rest, Word("(what it reads)", False, True)) if wrapper.adds_arguments else rest


def script_of(words: Sequence[Word]) -> str | None:
    """Return the text of `sh -c TEXT`, where nothing else is in the command."""
    if len(words) != 3 or not all(word.literal for word in words):
        return None
    name, option, script = (word.text for word in words)
    return script if name in ("sh", "bash", "dash") and option == "-c" else None
