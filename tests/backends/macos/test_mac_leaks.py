"""Leaks that public profiles had, each closed in thousands of generated policies; and everyday work, open in all."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandboxd.backends.macos.seatbelt.case_folding import _ASCII, fold
from sandboxd.host.resolve import disk_path
from sandboxd.policy.model import FilePolicy
from sandboxd.policy.paths.protected_names import ProtectedIn, rows
from support.dictionary_host import DIRECTORY, FILE
from support.mac_leaks import FoldingDisk, _stand_ins, another_spelling, same_name
from support.sbpl_regex import compile_regex
from support.seatbelt import HOME, PROJECT, Compiled, compiled, rules

POLICIES = int(os.environ.get("SANDBOXD_LEAK_SEEDS", "160"))
"""More of them: thousands take minutes."""
SHARES = 4
NAMES = ("documents", "Keys", "fisk", "Straße", "café", "HEAD", "a.b", "Klasse", "ﬁle", "ss")
PROTECTED = [row.name for row in rows(ProtectedIn.WORKSPACE) if "*" not in row.name]


def file_world(rng: random.Random) -> tuple[Compiled, list[str], list[str], list[str]]:
    """A profile, and paths that it refuses to write, to read, and that it allows to write."""
    absent = rng.sample(NAMES, 3)
    present = rng.sample([name for name in NAMES if name not in absent], 2)
    host = {f"{HOME}/{name}/key": FILE for name in present} | {f"{PROJECT}/src/{name}": FILE for name in present}
    if rng.random() < 0.5:
        host |= {f"{PROJECT}/.git/HEAD": FILE, f"{PROJECT}/.git/config": FILE}
    files = FilePolicy(
        deny_write=rules(f"{PROJECT}/{absent[0]}", f"{PROJECT}/{absent[1]}/deep/er"),
        deny_read=rules(another_spelling(f"{HOME}/{present[0]}", rng), f"{PROJECT}/{absent[2]}", f"{PROJECT}/**/*.pem"),
        allow_write=rules(another_spelling(f"{HOME}/{present[1]}", rng)),
    )
    made = compiled(files, host=host, only_files=True, disk=FoldingDisk)
    git = rng.choice([".git", "sub/.git", ".git/modules/lib"])
    closed = [f"{PROJECT}/{name}" for name in (absent[0], f"{absent[1]}/deep/er", absent[2], "x/key.pem", "HEAD")]
    if f"{PROJECT}/.git/HEAD" in host:
        closed.pop()  # it is not needed any more
    closed += [f"{PROJECT}/{rng.choice(['', 'x/'])}{rng.choice(PROTECTED)}", f"{PROJECT}/{git}/hooks/pre-commit"]
    unread = [f"{HOME}/{present[0]}/key"]
    opened = [f"{HOME}/{present[1]}/key", f"{PROJECT}/src/{present[0]}", f"{PROJECT}/heading", f"{PROJECT}/git/hooks"]
    return made, closed, unread, opened


@pytest.mark.parametrize("share", range(SHARES))
def test_no_spelling_of_a_name_leaks(share: int) -> None:
    """The kernel asks about an existing path as the disk spells it, and about a new name as it was typed."""
    for seed in range(share, POLICIES, SHARES):
        rng = random.Random(seed)
        made, closed, unread, opened = file_world(rng)
        for path in closed:
            typed = made.host.where(another_spelling(path, rng)).real
            assert not made.writes(typed) and not made.makes(typed), (seed, path, typed)
        for path in unread:
            typed = made.host.where(another_spelling(path, rng)).real
            assert not made.reads(typed) and not made.writes(typed), (seed, path, typed)
        for path in opened:
            assert made.writes(made.host.where(another_spelling(path, rng)).real), (seed, path)


def test_directories_on_the_way_to_an_absent_name_stay() -> None:
    made = compiled(FilePolicy(deny_write=rules(f"{PROJECT}/kit/conf")), host={f"{PROJECT}/a": DIRECTORY})
    for name in ("kit", "KIT", "\u212aiT"):
        assert not made.makes(f"{PROJECT}/{name}")  # a directory that holds `conf` could be renamed to it
    assert made.makes(f"{PROJECT}/kit2")


def test_what_folds_to_ascii_is_known() -> None:
    found = {text: set(one) for text, one in _stand_ins().items() if text.isascii()}
    for text, characters in found.items():
        own = {character for character in characters if not character.isascii()}
        assert own == set(_ASCII.get(text, "")), text


@pytest.mark.parametrize("name", [*NAMES, "ffiffl", "sssssssst", "Ελλάς", "한글", "ệ", "\u0390", "a;b`c"])
def test_an_expression_covers_each_spelling(name: str) -> None:
    rng = random.Random(name)
    pattern = compile_regex(f"^{fold(name)}$")
    for _ in range(200):
        spelled = another_spelling(name, rng)
        assert pattern.search(spelled), spelled
    assert same_name(name) == same_name(another_spelling(name, rng))
    assert not pattern.search("") and not re.search(r"(?<!\\)\.", fold(name))


def test_an_absent_path_too_long_for_an_expression_is_wider() -> None:
    """Fails closed: the first places of it are refused with all below."""
    long = "/".join(["directory-with-a-name"] * 20)
    made = compiled(FilePolicy(deny_write=rules(f"{PROJECT}/{long}", f"{PROJECT}/{'n' * 250}")), only_files=True)
    for path in (long, long.upper(), "n" * 250, "N" * 250):
        assert not made.makes(f"{PROJECT}/{path}")
    assert made.makes(f"{PROJECT}/other")


@pytest.mark.parametrize("answer", ["path", "another name", "refused"])
def test_an_existing_path_is_spelled_as_on_the_disk(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By F_GETPATH; where that does not tell, by the directory's list."""
    (tmp_path / "Keys").write_text("")
    os.link(tmp_path / "Keys", tmp_path / "other")

    def getpath(descriptor: int, command: int, room: bytes) -> bytes:
        assert command == 50
        if answer == "refused":
            raise PermissionError(1, "Operation not permitted")
        return os.fsencode(tmp_path / ("Keys" if answer == "path" else "other")) + b"\0rest"

    monkeypatch.setattr("sandboxd.host.resolve.FOLDS_CASE", True)
    monkeypatch.setattr("sandboxd.host.resolve.fcntl", SimpleNamespace(fcntl=getpath))
    assert disk_path(str(tmp_path / "\u212aeys")) == str(tmp_path / "Keys")
    monkeypatch.setattr("sandboxd.host.resolve.FOLDS_CASE", False)
    assert disk_path(str(tmp_path / "keys")) == str(tmp_path / "keys")
