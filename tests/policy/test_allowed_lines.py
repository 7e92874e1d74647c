"""Lines that a rule allows run its program only, and write nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandboxd.policy.commands.command_decisions import decide_command
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source

NAMES = """git time history compgen jobs cd printf export read test unset source eval exec trap set shopt hash enable
alias mapfile""".split()
RULES = tuple(CommandRule(f"{name}:*", Origin(Source.LOCAL, "test")) for name in NAMES)
UNTIMED = Policy(
    enabled=True, commands=CommandPolicy(auto_allow=False, allow=tuple(r for r in RULES if r.pattern != "time:*"))
)  # a rule about `time` is one about every program
POLICY = Policy(enabled=True, commands=CommandPolicy(auto_allow=False, allow=RULES))


@pytest.mark.parametrize(
    "line",
    """PATH=x; git log
export PATH=x; git log
declare PATH=x; git log
for PATH in x; do git log; done
git ${PATH:=x}
git $((PATH=1))
git "$((PATH=1))"
PAGER=x git log
GIT_PAGER=x git log
git log >x
git log >|x
git log <>x
git log >&x
git log &>x
f() { git log; }; f
git() { cd x; }; git log
case x in x) git log;; esac
{ git log; }
(git log)
git log <(git log)
git log >(git log)
read PATH; git log
printf -v PATH x; git log
printf -v 'a[$(touch x)]' x
test -v 'a[$(touch x)]'
unset PATH; git log
hash -p x git; git log
enable -f x git; git log
source x
eval 'touch x'
exec git log
trap 'touch x' EXIT
set -a; git log
shopt -s expand_aliases; git log
alias git=x; git log
mapfile PATH; git log
a[$(git log)]=1; git log
[[ -n x ]] && git log
((PATH=1)); git log
git $'x'
git $(PATH=x; git log)
git "$(PATH=x; git log)"
coproc git log
git $[PATH=1]
PATH+=x git log
a[1]=x git log
git log {PATH}>/dev/null
git log {PATH}>&1
git log 2>&1 >x
git log 2>&x
git log >/dev/null2
git log >/dev/../x
git log >$X
git log <x
git log <<<x
git log 3>&4
(git log) >/dev/null
time PATH=x git log
time export PATH=x; git log
! export PATH=x; git log
history -w x
compgen -C 'touch x'
jobs -x git log
git "${PATH:=x}"
git ${!X}
git ${X@P}
if git log; then git log; fi
while git log; do git log; done
until git log; do git log; done
select PATH in x; do git log; done
function git { cd x; }; git log
>x git log
git log >/dev/null x""".splitlines(),
)
def test_a_line_that_may_change_what_runs_is_asked_about(line: str) -> None:
    assert decide_command(POLICY, line).behavior.value == "ask"


@pytest.mark.parametrize(
    "line",
    """git log
git log; git status
git log && git status || git diff
git log | git diff
git log & git diff
git log $(git log)
git log "$(git log)"
git commit -m 'a (b) { c }'
git log $X *.py
cd x && git log
printf x | git log
git log 2>&1
git log >/dev/null 2>&1
git log 2>/dev/null | git diff
git log </dev/null && git status &>/dev/null
git $(git log 2>/dev/null)
! git log
git log ${X} "$X" $?""".splitlines(),
)
def test_a_plain_line_is_allowed(line: str) -> None:
    assert decide_command(POLICY, line).behavior.value == "allow"


BASES = """git log
git log; git x
git $(git log) | git x
git "$(git log)" && ! git x
time git log
git log 2>&1 >/dev/null
printf x | git log &""".splitlines()
PIECES = [
    *"""git curl log x PATH PAGER = := += - -v ; && || | |& & ! ( ) { } $( ` $ ${ @P} $(( )) $[ [ ] [[ ]] < > >> >| <>
    >& &> <( >( 2> 2>&1 /dev/null {PATH} ' " \\ # * ? ~ time export declare read eval printf test cd unset alias hash
    exec command f() x/git ./x/git PATH=x PAGER=x/git PAGER=curl ${PATH:=x} $((PATH=1)) a[0]=x case in x) ;; esac for do
    done if then fi else while select function coproc <<E <<<""".split(),
    " ",
    " ",
    "\n",
    "\\\n",
]  # fmt: skip
LINES = st.builds(
    lambda base, changes: (
        "".join([piece for at, piece in sorted(changes, key=lambda c: c[0])])
        if base is None
        else _changed(base, changes)
    ),
    st.one_of(st.none(), st.sampled_from(BASES)),
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(PIECES)), min_size=1, max_size=5),
)


def _changed(base: str, changes: list[tuple[int, str]]) -> str:
    for at, piece in changes:
        place = at % (len(base) + 1)
        base = base[:place] + piece + base[place:]
    return base


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories with programs that log their names.

    `good` is on PATH; its `git` also runs a pager. `work/x` has a planted program.
    """
    shelf = tmp_path_factory.mktemp("shelf")
    (shelf / "good").mkdir()
    for name in ("git", "curl", "x", "log"):
        pager = '[ -z "$PAGER" ] || $PAGER\n' if name == "git" else ""
        _write(shelf / "good" / name, f"#!/bin/sh\necho {name} >>{shelf}/log\n{pager}")
    return shelf


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _run(shelf: Path, line: str) -> tuple[set[str], set[str]]:
    """Return the programs that bash ran for a line, and the files that it made."""
    work = shelf / "work"
    shutil.rmtree(work, ignore_errors=True)
    (work / "x").mkdir(parents=True)
    (shelf / "log").write_text("")
    for name in ("git", "log", "x"):
        _write(work / "x" / name, f"#!/bin/sh\necho planted >>{shelf}/log\n")
    before = set(work.rglob("*"))
    reading, writing = os.pipe()  # held by all that the line starts, also in the background
    subprocess.run(
        ["/bin/bash", "-c", line],
        cwd=work,
        env={"PATH": str(shelf / "good"), "HOME": str(work)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[writing],
        timeout=30,
    )
    os.close(writing)
    while os.read(reading, 100):
        pass
    os.close(reading)
    return set((shelf / "log").read_text().split()), {str(path) for path in set(work.rglob("*")) - before}


def test_the_oracle_sees_what_a_line_does(shelf: Path) -> None:
    assert _run(shelf, "git log") == ({"git"}, set())
    assert _run(shelf, "PATH=x; git log")[0] == {"planted"}
    assert _run(shelf, "PAGER=curl git log")[0] == {"git", "curl"}
    assert {path.rpartition("/")[2] for path in _run(shelf, "git log >made")[1]} == {"made"}


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(line="git log")
@example(line="git log 2>&1 | git x >/dev/null & git $(git log)")
@given(line=LINES)
def test_an_allowed_line_runs_its_programs_and_writes_no_file(shelf: Path, line: str) -> None:
    if decide_command(UNTIMED, line).behavior.value == "allow":
        ran, made = _run(shelf, line)
        assert ran <= {"git"} and not made, line
