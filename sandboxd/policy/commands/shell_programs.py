"""Programs that run another program given in their arguments, and variables that change what a program does. Tables.

For rules that open something, only what stands in `WRAPPERS` is looked through, and only with the options named there.
For rules that close something, `LAUNCHERS` is enough: any later word may be the program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.policy.commands.shell_syntax import SHELLS, Word


@dataclass(frozen=True, slots=True)
class Wrapper:
    """`flags` is an expression for options without a value; `valued` are options that take the next word; `operands`
    is how many words stand before the program."""

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
"""Programs whose arguments can name another program to run. Excluding one of them excludes everything."""

INTERPRETERS = frozenset("python python3 node ruby perl php lua deno bun java awk gawk make npx uvx".split())

def unversioned(name: str) -> str:
    """The name of a program without a version behind it: `python` for `python3.11`."""
    return name if name in LAUNCHERS | INTERPRETERS else re.sub(r"[-.\d]+$", "", name)


def runs_anything(name: str) -> bool:
    """Whether a program runs whatever it is told to."""
    return unversioned(name) in LAUNCHERS | INTERPRETERS


_HARMLESS = re.compile(
    r"(LANG|LC_[A-Z]+|LANGUAGE|TZ|TERM|COLUMNS|LINES|CI|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?|COLORTERM|DEBUG|VERBOSE"
    r"|DEBIAN_FRONTEND|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|NODE_ENV)=[A-Za-z0-9_.,:@%+/\-]*"
)


def is_harmless_assignment(text: str) -> bool:
    """Whether `NAME=value` surely changes nothing but language, colour or the like. Unknown names may do anything."""
    return _HARMLESS.fullmatch(text) is not None


def unwrap(words: Sequence[Word]) -> tuple[Word, ...] | None:
    """The program behind one wrapper, or None when the command is no wrapper, or one that is not understood.

    A wrapper that adds arguments of its own is followed by an unknown word, so that no exact pattern matches."""
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
    return (*rest, Word("(what it reads)", False, True)) if wrapper.adds_arguments else rest


def script_of(words: Sequence[Word]) -> str | None:
    """The text of `sh -c TEXT`, where that is all there is to it."""
    if len(words) != 3 or not all(word.literal for word in words):
        return None
    name, option, script = (word.text for word in words)
    return script if name in ("sh", "bash", "dash") and option == "-c" else None
