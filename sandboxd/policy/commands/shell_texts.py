"""Texts that a line hands to another shell: `sh -c TEXT`, `eval TEXT`, `trap TEXT EXIT`, `ssh HOST TEXT`. Pure.

Only for rules that close something: a text that is not run after all is read in vain. What a pipe or a here-document
feeds to a shell is found by `policy.commands.shell_syntax`, which knows the shape of the line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sandboxd.policy.commands.shell_syntax import SHELLS, ShellLine

_TAKES_TEXT = frozenset("trap alias watch ssh su runuser script flock env parallel systemd-run sudo doas".split())
"""Programs of which any argument may be shell text, beside other arguments."""
_MEANS_MORE = re.compile(r"[\s;&|$`<>()]")


def nested_texts(line: ShellLine) -> Iterator[str]:
    """The texts that the programs of `line` are handed, as far as they can be seen, each once."""
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
