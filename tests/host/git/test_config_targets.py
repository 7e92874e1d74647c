"""The configuration of git is read as git reads it: what is misread is not protected."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.host.git.config_targets import read_configuration, settings_in

TEXTS = (
    "[core]\n\thooksPath = .githooks\n",
    "[core] hooksPath=a\n[Core]HOOKSPATH = b",
    "[core]\nhooksPath = a b  ; c\nhooksPath = 'x' # d\n",
    '[core]\nhooksPath = "a;b#c" d\nhooksPath = "  a"  "b  "\nhooksPath = a\\"b\\\\c\\td\n',
    "[core]\nhooksPath = ho\\\nok\nhooksPath = ho\\\n  ok \\\n  ; no\n",
    "[core]\n; hooksPath = a \\\nhooksPath = b\n# x\n\n\n",
    '[core]\nhooksPath =\nhooksPath = ""\n',
    '[includeIf "gitdir:~/a=b/"]\npath = x\n[include "a\\"b\\\\c"] path = y\n[include.Sub]\npath = z\n',
    "\ufeff[include]\r\npath = a\r\npath = b\\\r\nc\r\n",
    "[include]\n \tpath\t=\tx\t\n",
    '[remote "a]b"] url = x\n[x]\na-b1 = 1',
)


PARTS = st.sampled_from(
    ["[core]", "[a \"b\"]", "[a \"", "\"]", "]", "hooksPath", "path", " = ", "=", "x", "y z", "\\", "\\\"", "\\\\", '"',
     "#", ";", "\n", "\n", "\r\n", "\t", " ", "\f", "é"]
)  # fmt: skip


def git_reads(text: str, directory: Path) -> list[tuple[str, str]] | None:
    file = directory / "config"
    file.write_bytes(text.encode())
    done = subprocess.run(["git", "config", "-f", file, "-z", "--list"], capture_output=True, text=True)
    pairs = [entry.partition("\n") for entry in done.stdout.split("\0")[:-1]]
    return None if done.returncode else [(key, value) for key, _, value in pairs]


@pytest.mark.parametrize("text", TEXTS)
def test_as_git_does(text: str, tmp_path: Path) -> None:
    assert list(settings_in(text)) == git_reads(text, tmp_path)


@settings(max_examples=150)
@given(st.lists(PARTS, max_size=14).map(lambda parts: "[core]\n" + "".join(parts)))
def test_nothing_is_missed_that_git_reads(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = git_reads(text, Path(directory))
    # older versions of git make a space of a tab in a value
    assert found is None or [(key, value.replace("\t", " ")) for key, value in settings_in(text)] == [
        (key, value.replace("\t", " ")) for key, value in found
    ]


class Seen:
    def __init__(self) -> None:
        self.contents: list[str] = []

    def visit(self, directory: str, name: str, contents: bool = False) -> None:
        if contents:
            self.contents.append(f"{directory}/{name}")

    def absent(self, path: str) -> None:
        return

    def access(self, directory: str) -> None:
        return


def test_files_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[include]\npath = b\npath = c\n[core]\nhooksPath = x\n")
    (tmp_path / "b").write_text("[include]\npath = a\npath = c\n[core]\nhooksPath = y\n")
    seen = Seen()
    found = read_configuration(str(tmp_path / "a"), seen)
    assert {one.real for one in found.included} == {str(tmp_path / name) for name in "abc"}
    assert {value for key, value in found.settings if key == "core.hookspath"} == {"x", "y"}
    assert {str(tmp_path / "a"), str(tmp_path / "b")} <= set(seen.contents)  # what they say may change
