"""Texts that a line hands to other shells: `sh -c TEXT`, `ssh HOST TEXT`.

They serve rules that close something, where a text that is not run does no harm. `policy.commands.shell_syntax` finds
what a pipe or a here-document feeds to a shell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sandboxd.policy.commands.shell_syntax import SHELLS, ShellLine

_TAKES_TEXT = frozenset("trap alias watch ssh su runuser script flock env parallel systemd-run sudo doas".split())
"""Programs of which any argument may be shell text."""
_MEANS_MORE = re.compile(r"[\s;&|$`<>()]")


def nested_texts(line: ShellLine) -> Iterator[str]:
    """Yield the texts that programs of `line` are handed, each once."""
    found: dict[str, None] = dict.fromkeys(line.fed)
    for command in line.commands:
        texts = [word.text for word in command.words]
        for index, text in enumerate(texts[:-1]):
            found.update(dict.fromkeys(_handed(text.rpartition("/")[2], texts[index + 1 :])))
    yield from found


def _handed(program: str, arguments: Sequence[str]) -> Iterator[str]:
    if program == "eval":
        yield " ".join(arguments)
    elif program in SHELLS:
        option = next((i for i, text in enumerate(arguments) if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", text)), None)
        if option is not None:
            yield from [text for text in arguments[option + 1 :] if not text.startswith("-")][:1]
    elif program in _TAKES_TEXT:
        for text in arguments:
            script = text.partition("=")[2] if program == "alias" else text
            if _MEANS_MORE.search(script) or program == "alias":
                yield script
