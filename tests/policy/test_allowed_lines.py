"""Lines that a rule allows run its program only, and write nowhere else."""

from __future__ import annotations

import pytest

from sandboxd.policy.command_decisions import decide_command
from sandboxd.policy.policy import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source

NAMES = "git cd printf export read test unset source eval exec trap set shopt hash enable alias mapfile".split()
RULES = tuple(CommandRule(f"{name}:*", Origin(Source.LOCAL, "test")) for name in NAMES)
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
coproc git log""".splitlines(),
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
printf x | git log""".splitlines(),
)
def test_a_plain_line_is_allowed(line: str) -> None:
    assert decide_command(POLICY, line).behavior.value == "allow"
