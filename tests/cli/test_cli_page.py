"""docs/cli.md holds the help of each command; `./dev golden` writes it anew."""

from __future__ import annotations

import os
import re

import pytest

from sandboxd.cli.main import COMMANDS, execute

from .conftest import ROOT

PAGE = ROOT / "docs" / "cli.md"
HELP = re.compile(r"(?<=<!-- help -->\n).*(?=<!-- /help -->)", re.DOTALL)


def test_the_page_shows_the_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = ""
    for name, _, _ in COMMANDS:
        assert execute([name, "--help"]) == 0
        text += f"\n## {name}\n\n```text\n{capsys.readouterr().out}```\n"
    page = PAGE.read_text()
    if os.environ.get("SANDBOXD_WRITE_GOLDEN"):
        PAGE.write_text(HELP.sub(lambda _: text + "\n", page))
    else:
        assert HELP.findall(page) == [text + "\n"], "renew the page: ./dev golden"
