"""The names at home that shells, desktops, editors and tools obey, all of them, when the home is writable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxd.policy.paths.protected_names import Absent, ProtectedIn, rows
from support.lab import Lab, Rules
from support.snapshot import describe_tree
from support.users import Identity

PLANT = r"""
import json, os, sys
os.chdir(sys.argv[1])
done = []
def attempt(name, way, *words):
    try: way(*words); done.append([name, way.__name__])
    except OSError: pass
def write(name):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "a") as file: file.write("planted")
NAMES = sys.argv[2].split(":")
for name in NAMES:
    spare = os.path.basename(name) + ".spare"
    open(spare, "w").close()
    for way, *words in ((write, name), (os.mkdir, name), (os.symlink, spare, name), (os.link, spare, name),
                        (os.rename, spare, name), (os.rename, name, name + ".away"), (os.unlink, name)):
        attempt(name, way, *words)
    if os.path.exists(spare): os.unlink(spare)
for parent in {os.path.dirname(name) for name in NAMES} - {""}:
    attempt(parent, os.rename, parent, parent + ".away")
print(json.dumps(done))
"""
ROWS = [row for where in (ProtectedIn.HOME, ProtectedIn.WORKSPACE) for row in rows(where) if "*" not in row.name]
NAMES = [row.name for row in ROWS]
KEPT_ABSENT = [row.name for row in ROWS if row.absent in (Absent.REFUSE, Absent.REFUSE_TOP)]  # with placeholders


def plant(lab: Lab, names: list[str]) -> list[list[str]]:
    rules: Rules = {"allow_write": ["~"], "env": {"PLANT": PLANT, "NAMES": ":".join(names)}}
    done = lab.run('python3 -I -S -c "$PLANT" ~ "$NAMES"', **rules)
    assert done.ok, done
    said: list[list[str]] = json.loads(done.stdout)
    return said


def test_nothing_at_home_that_programs_obey_can_be_planted(identity: Identity) -> None:
    """Absent, then existing: not made in any way, not changed, removed, or moved away, not even
    together with the directory it is in. Names beside them are free."""
    home = identity.home
    with Lab(identity) as lab:
        assert plant(lab, KEPT_ABSENT) == []
        assert describe_tree(home).keys() == {f"file {home}"}, "placeholders are gone with the command"
        for name in sorted(NAMES, reverse=True):  # what lies in one comes first
            if not (home / name).is_dir():
                identity.write(home / name, "old")
        before = describe_tree(home)
        assert plant(lab, NAMES) == []
        assert describe_tree(home) == before
        free = [".config/other/file", ".local/share/mine", ".cargo/registry/x", ".bashrc.mine", "Library/x"]
        assert {name for name, way in plant(lab, free) if way == "write"} == set(free)


@pytest.mark.parametrize(
    "name",
    """.bashrc .profile .pam_environment .config/autostart/x.desktop .config/systemd/user/x.service
    .config/environment.d/x.conf Library/LaunchAgents/x.plist .local/bin/git .config/fish/config.fish .zshenv
    .config/nushell/env.nu .xonshrc .config/elvish/rc.elv .ssh/rc .ssh/authorized_keys .config/git/config
    .config/git/attributes .gitconfig""".split(),
)
def test_the_table_knows_them(name: str) -> None:
    parts = Path(name).parts
    assert any(tuple(parts[: len(row.parts)]) == row.parts for row in rows(ProtectedIn.HOME))
