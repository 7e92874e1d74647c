"""Completions and the manual page, made from the option tables, as shells and readers see them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from docs.manual_page import manual_page
from sandboxd import __version__
from sandboxd.cli.main import described_commands
from sandboxd.cli.shells.scripts import SCRIPTS
from support.terminal import Terminal

from .conftest import ROOT

SHARE = ROOT / "share"
FILES = {
    "bash": SHARE / "bash-completion/completions/sandboxd",
    "zsh": SHARE / "zsh/site-functions/_sandboxd",
    "fish": SHARE / "fish/vendor_completions.d/sandboxd.fish",
}
PAGE = SHARE / "man/man1/sandboxd.1"


@pytest.mark.parametrize("name", [*FILES, "man"])
def test_the_files_are_made_from_the_tables(name: str) -> None:
    path = FILES.get(name, PAGE)
    text = manual_page(described_commands(), __version__) if name == "man" else SCRIPTS[name](described_commands())
    if os.environ.get("SANDBOXD_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, "renew them: ./dev golden"


def test_the_example_of_each_help_is_a_right_command_line() -> None:
    for name, _, help in described_commands():
        assert help.examples, name
        for example in help.examples:
            called, *words = shlex.split(example.partition(">")[0])
            parsed = help.read(words)
            assert called == name
            first = [*parsed.words, *(parsed.command or ())][:1]
            choices = [word for word in help.words if word.islower()]
            assert not choices or not first or first[0] in choices, example


def bash(line: str, cwd: Path) -> set[str]:
    script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sandboxd; printf "%s\\n" "${COMPREPLY[@]}"'
    return asked(["bash", "--norc", "-c", script, str(FILES["bash"]), *line.split(" ")], cwd)


def fish(line: str, cwd: Path) -> set[str]:
    return asked(["fish", "--no-config", "-c", f"source {FILES['fish']}; complete -C '{line}'"], cwd)


def zsh(line: str, cwd: Path) -> set[str]:
    """The words that zsh lists at its prompt, the only place where its completions work."""
    with Terminal(["zsh", "-f", "-i"], env=environment(cwd, PS1="%%-"), cwd=cwd) as shell:
        shell.resize(200, 100)
        shell.type(f"fpath=({FILES['zsh'].parent} $fpath); autoload -U compinit; compinit -u -D; LISTMAX=9999")
        shell.type("bindkey '^I' list-choices; echo rea''dy")
        shell.expect("^ready")
        start = shell.expect("%-").end()  # keys pressed before the prompt would be the terminal's
        shell.press(f"{line}\t\x15echo do''ne\n")
        end = shell.expect("^done").start()
        listed = shell.text[start:end]
        return {word for found in re.findall(r"^(?!%-)(.*)\r$", listed, re.MULTILINE) for word in found.split()}


def asked(argv: list[str], cwd: Path) -> set[str]:
    done = subprocess.run(argv, capture_output=True, text=True, cwd=cwd, env=environment(cwd), check=False)
    return {line.split("\t")[0] for line in done.stdout.splitlines() if line}


def environment(cwd: Path, **more: str) -> Mapping[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LANG": "C.UTF-8", "TERM": "dumb", **more}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.json").touch()
    return tmp_path


@pytest.mark.parametrize("complete", [bash, fish, zsh], ids=lambda one: one.__name__)
def test_completions_of_each_kind_of_word(complete: Callable[[str, Path], set[str]], place: Path) -> None:
    def words(line: str) -> set[str]:
        return complete(line, place)

    found = words("sandboxd sta")
    assert "status" in found and "stop" not in found
    assert {"--json", "--help"} <= words("sandboxd status --")
    assert {"show", "lint", "schema"} <= words("sandboxd settings ")
    assert words("sandboxd serve --log-format j") >= {"json", "journal"}
    assert "folder" in {one.rstrip("/") for one in words("sandboxd run --cwd fo")}
    assert "--allow-domain" in words("sandboxd run --allow-d")
    assert "true" in words("sandboxd run tru")
    assert "--json" not in words("sandboxd run status --j")
