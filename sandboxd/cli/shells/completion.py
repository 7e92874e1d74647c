"""`sandboxd completion`: the completions of a shell, made from the option tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sandboxd.cli.arguments import Help, UsageError, suggestion, visible
from sandboxd.cli.shells.scripts import SCRIPTS

HELP = Help(
    "completion (bash | zsh | fish)",
    """Print the completions of a shell. Where they belong:

  bash  ~/.local/share/bash-completion/completions/sandboxd
  zsh   a directory of $fpath, as _sandboxd
  fish  ~/.config/fish/completions/sandboxd.fish""",
    (),
    ("completion bash >~/.local/share/bash-completion/completions/sandboxd",),
    words=tuple(SCRIPTS),
)


def main(arguments: Sequence[str]) -> int:
    parsed = HELP.read(arguments)
    shell, *rest = [*parsed.words, *(parsed.command or ())] or [""]
    if shell not in SCRIPTS:
        message = f"there are no completions for {visible(shell, 60)}" if shell else "completion needs a shell"
        raise UsageError(message, suggestion(shell, SCRIPTS))
    if rest:
        raise UsageError(f"unexpected word {visible(rest[0], 60)}")
    from sandboxd.cli.main import described_commands

    sys.stdout.write(SCRIPTS[shell](described_commands()))
    return 0
