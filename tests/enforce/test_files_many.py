"""Thousands of paths in a rule: enforced to the last one, or refused before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.lab import Lab, Rules
from support.users import Identity


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    with Lab(identity) as opened:
        yield opened


def python(text: str) -> str:
    return f"python3 -I -S -c '{text}'"


def on_the_host(lab: Lab, text: str) -> None:
    """As the person, and faster than a shell."""
    assert lab.identity.run(lab.identity.python("-c", "import os\n" + text), cwd=lab.workspace).returncode == 0


ATTEMPTS = """
import glob, os, sys
def attempt(f, *a):
    try: f(*a)
    except OSError: return 0
    return 1
count = {}
for p in glob.glob("{pattern}"):
    count["seen"] = count.get("seen", 0) + 1
    count["read"] = count.get("read", 0) + attempt(lambda: open(p).read())
    d = os.path.dirname(p)
    for name, f in (("write", lambda: open(p, "w")), ("remove", lambda: os.unlink(p)),
                    ("move", lambda: os.rename(p, p + "2")), ("parent", lambda: os.rename(d, d + "2"))):
        count[name] = count.get(name, 0) + attempt(f)
print(count["seen"], count["read"], sum(count.values()) - count["seen"] - count["read"])
"""


def test_more_files_of_one_pattern_than_bubblewrap_has_words(lab: Lab) -> None:
    make = "for n in range(1, 3):\n os.mkdir(str(n))\n for i in range(1600): open(f'{n}/{i}.env', 'w').write('secret')"
    on_the_host(lab, make)
    script = ATTEMPTS.replace("{pattern}", "*/*.env") + 'open("1/new", "w")'
    done = lab.run(python(script), deny_read=["./*/*.env"])
    assert done.stdout.split() == ["3200", "0", "0"], done
    assert done.mounts > 3200 and (lab.workspace / "1" / "new").exists()


@pytest.mark.parametrize(
    ("rules", "read"), [(Rules(deny_read=["./*/x.env"]), "0"), (Rules(deny_write=["./*/x.env"]), "300")]
)
def test_each_in_a_directory_of_its_own(lab: Lab, rules: Rules, read: str) -> None:
    make = "for n in range(300): os.mkdir(str(n)); open(f'{n}/x.env', 'w').write('secret')"
    on_the_host(lab, f"{make}\nos.makedirs('free/in')")
    script = ATTEMPTS.replace("{pattern}", "*/x.env") + 'os.rename("free", "gone"); open("7/new", "w")'
    done = lab.run(python(script), **rules)
    assert done.stdout.split() == ["300", read, "0"], done
    assert done.mounts > 300 and (lab.workspace / "7" / "new").exists() and (lab.workspace / "gone").exists()


def test_more_denied_names_that_do_not_exist(lab: Lab) -> None:
    count = 1600
    script = f"""
import os
made = []
for n in range({count + 1}):
    try: os.makedirs(f"absent/{{n}}"); made.append(n)
    except OSError:
        try: open(f"absent/{{n}}/x", "w").close()
        except OSError: pass
print(made, len(os.listdir("absent")))
"""
    done = lab.run(python(script), deny_write=[f"./absent/{number}" for number in range(count)])
    assert done.stdout.strip() == f"[{count}] {count + 1}", done
    assert os.listdir(lab.workspace / "absent") == [str(count)]


def test_directories_of_one_pattern(lab: Lab) -> None:
    on_the_host(lab, "for n in range(1200): os.makedirs(f'd/{n}')")
    script = """
import os
def attempt(n):
    try: return os.listdir(f"d/{n}") == []
    except PermissionError: return 0
print(sum(map(attempt, range(1200))), sum(os.access(f"d/{n}", os.W_OK) for n in range(1200)))
"""
    assert lab.run(python(script)).stdout == "1200 1200\n"
    assert lab.run(python(script), deny_read=["./d/[0-9]*"]).stdout == "0 0\n"


def test_too_many_paths_are_refused_with_rule_and_numbers(lab: Lab) -> None:
    """A denied directory with something open in it has options of its own."""
    on_the_host(lab, "for n in range(820): os.makedirs(f'd/{n}/open')")
    done = lab.run("touch ran", deny_read=["./d/*"], allow_read=["./d/*/open"])
    assert done.error == "mounts_too_many" and "/d/*" in done.message and "9,000" in done.message, done
    assert not (lab.workspace / "ran").exists()
    assert lab.run("touch ran", deny_read=["./d/1*"], allow_read=["./d/1*/open"]).ok
