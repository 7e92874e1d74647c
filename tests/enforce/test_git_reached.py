"""Wherever a git on the host would go by itself, from any directory that a command could write, it runs nothing that
commands have left there: in which order the parts were made, by which command, and how deep makes no difference. The
judge is git (`support.git_oracle`)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import git_oracle
from support.lab import Lab
from support.users import Identity

ORACLE = Path(git_oracle.__file__)


@dataclass(frozen=True)
class Planting:
    """Steps in a directory of its own; `{keys}` is a file with a canary in each key of a configuration, `{canary}` the
    canary itself. Each of the commands that make them takes some of the steps. With `outer` the directory is a
    repository of the person before."""

    name: str
    steps: tuple[str, ...]
    outer: bool = False


INIT = "git init -q --template= -b main {}; git -C {} commit -q --allow-empty -m 1"
GITLINK = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),{}"
MADE = INIT.format("t", "t")
HOOK = "mkdir -p {}; cp {canary} {}/post-commit; cp {canary} {}/post-index-change; cp {canary} {}/reference-transaction"


def plant(git_dir: str) -> str:
    return f"cat {{keys}} >> {git_dir}/config"


def hook(directory: str) -> str:
    return HOOK.replace("{}", directory)


REPRODUCTIONS = (
    Planting(
        "a gitlink to node_modules",
        (
            "mkdir -p node_modules/x; git init -q node_modules/x; git -C node_modules/x commit -q --allow-empty -m 1;"
            + GITLINK.format("node_modules/x")
            + ";"
            + plant("node_modules/x/.git"),
        ),
        outer=True,
    ),
    Planting(
        "a gitlink below the depth of the search",
        (
            f"mkdir -p 1/2/3/4/5/6; cd 1/2/3/4/5/6; {MADE}; cd -; {GITLINK.format('1/2/3/4/5/6/t')};"
            + plant("1/2/3/4/5/6/t/.git"),
        ),
        outer=True,
    ),
    Planting(
        "a target made later",
        ("mkdir n; echo gitdir: ../x/t > n/.git", f"{MADE}; mkdir x; mv t/.git x/t", plant("x/t")),
    ),
    Planting(
        "a target replaced",
        (f"{MADE}; mkdir n; mv t/.git g; echo gitdir: ../g > n/.git", "mv g old; cp -r old x; " + plant("x"), "mv x g"),
    ),
    Planting(
        "a file into TMPDIR",
        (f"{MADE}; mkdir n; mv t/.git $TMPDIR/$P; echo gitdir: $TMPDIR/$P > n/.git", plant("$TMPDIR/$P")),
    ),
    Planting(
        "a link into TMPDIR",
        ("mkdir n; ln -s $TMPDIR/$P n/.git", f"{MADE}; mv t/.git $TMPDIR/$P; {plant('$TMPDIR/$P')}"),
    ),
    Planting(
        "commondir through a link",
        (
            f"{MADE}; cp -r t/.git c; mv t/.git far; mkdir -p far/1/2/3 c/worktrees/w n; mv far/HEAD c/worktrees/w",
            "ln -s ../../../far/1/2/3 c/worktrees/w/l; echo l/../../.. > c/worktrees/w/commondir;"
            "echo gitdir: ../c/worktrees/w > n/.git; echo $PWD/n/.git > c/worktrees/w/gitdir; " + plant("far"),
        ),
    ),
    Planting(
        "a common directory without HEAD, before its worktree",
        (
            f"{MADE}; mv t/.git c; mv c/HEAD head; {plant('c')}",
            "mkdir -p c/worktrees/w; mv head c/worktrees/w/HEAD; echo ../.. > c/worktrees/w/commondir; mkdir n;"
            "echo gitdir: ../c/worktrees/w > n/.git",
        ),
    ),
    Planting(
        "a bare repository in two places",
        (
            f"{MADE}; mv t/.git there; mkdir here; mv there/HEAD here; git config -f there/config core.bare true;"
            + plant("there"),
            "echo ../there > here/commondir",
        ),
    ),
    Planting(
        "a bare repository, turned into one later",
        (f"{MADE}; mv t/.git b; mv b/HEAD b/h; {plant('b')}", "mv b/h b/HEAD; git config -f b/config core.bare true"),
    ),
    Planting("hooks in a deep one", (f"mkdir -p a/b/c/d/e; cd a/b/c/d/e; {MADE}; " + hook("t/.git/hooks"),)),
    Planting(
        "a repository in an object directory",
        (f"mkdir -p .git/objects/aa; cd .git/objects/aa; {MADE}; {plant('t/.git')}",),
        outer=True,
    ),
    Planting(
        "moved from a plain directory",
        (
            f"mkdir -p p/q/r/s; {MADE}; mv t/.git p/q/r/s/x; {plant('p/q/r/s/x')}; mv p/q/r/s/x/HEAD h",
            "mv p/q moved; mv h moved/r/s/x/HEAD; mv moved/r/s/x moved/r/s/.git",
        ),
    ),
    Planting(
        "a `.git` link to a file beside which nothing is",
        (f"{MADE}; mkdir -p n far; mv t/.git n/g; echo gitdir: g > far/f; ln -s ../far/f n/.git", plant("n/g")),
    ),
    Planting(
        "a module of a name with slashes, through a link",
        (f"{MADE}; mkdir -p .git/modules far; mv t/.git far/g; ln -s ../../far .git/modules/far; {plant('far/g')}",),
        outer=True,
    ),
    Planting(
        "a promisor",
        (
            f"{MADE}; git -C t config extensions.partialClone origin; {plant('t/.git')}",
            "git -C t update-ref refs/heads/main HEAD",
        ),
    ),
)


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    with Lab(identity) as opened:
        opened.host("git init -q --template= -b main .; git commit -q --allow-empty -m 1; mkdir ~/c ~/empty")
        yield opened


@dataclass(frozen=True)
class Trial:
    """Plantings, split into commands: `commands[n]` holds shell lines of the directories."""

    lab: Lab
    plantings: Sequence[Planting]
    where: Sequence[str]
    split: Sequence[Sequence[int]]
    """For each planting the number of the command that does each step."""

    def prepare(self) -> None:
        lab, log = self.lab, self.lab.home / "ran"
        lab.identity.write(log, "")
        for number, planting in enumerate(self.plantings):
            canary = lab.home / "c" / f"p{number}"
            lab.identity.write(canary, f"#!/bin/sh\necho {canary.name} >> {log}\nexit 1\n", mode=0o755)
            lab.identity.write(Path(f"{canary}.keys"), git_oracle.KEYS.format(canary=canary))
            outer = "git init -q --template= -b main .; git commit -q --allow-empty -m 1" if planting.outer else "true"
            lab.host(f"mkdir -p {self.where[number]}; cd {self.where[number]}; {outer}")

    def lines(self, command: int) -> str:
        lines = ["true"]
        for number, planting in enumerate(self.plantings):
            canary = self.lab.home / "c" / f"p{number}"
            steps = [step for step, of in zip(planting.steps, self.split[number], strict=True) if of == command]
            text = ";".join(steps).replace("{keys}", f"{canary}.keys").replace("{canary}", str(canary))
            if text:
                lines.append(f"(cd {self.where[number]}; P=P{number}; {text})")
        return "\n".join(lines) + "\ntrue"

    @property
    def commands(self) -> int:
        return 1 + max(of for split in self.split for of in split)

    def ran(self, *more: Path) -> set[str]:
        """Whose canaries a git on the host runs."""
        lab, log = self.lab, self.lab.home / "ran"
        lab.identity.write(log, "")
        words = lab.identity.python(
            "-c", ORACLE.read_text(), str(lab.home / "empty"), str(lab.workspace), *map(str, more)
        )
        lab.identity.run(words, cwd=lab.workspace, env=lab.identity.environment())
        names = {f"p{number}": planting.name for number, planting in enumerate(self.plantings)}
        return {names[one] for one in set(log.read_text().split())}

    def inside(self) -> None:
        for command in range(self.commands):
            done = self.lab.run(self.lines(command))
            assert done.ok and not done.unseen, done

    def outside(self, temporary: Path) -> None:
        for command in range(self.commands):
            self.lab.host(f"export TMPDIR={temporary}; set +e; {self.lines(command)}", check=False)


@pytest.mark.parametrize("part", range(3))
def test_each_way_to_a_planted_repository(lab: Lab, part: int) -> None:
    plantings = REPRODUCTIONS[part::3]
    names = enumerate(plantings)
    where = [f"w{number}" if one.outer or "link" in one.name else f"node_modules/w{number}" for number, one in names]
    trial = Trial(lab, plantings, where, [range(len(one.steps)) for one in plantings])
    trial.prepare()
    temporary = lab.identity.base / "lab" / "private" / "tmp"
    trial.inside()
    assert trial.ran(temporary) == set()
    # the twin: outside of a sandbox each of them is a trap
    lab.host("rm -rf w* node_modules; mkdir -p ~/t")
    trial.prepare()
    trial.outside(lab.home / "t")
    assert trial.ran(lab.home / "t") == {one.name for one in plantings}


PREFIXES = ("", "node_modules/x/", "a/b/c/d/e/", ".hidden/", ".git/objects/aa/")
STORES = ("s", "$TMPDIR/$P", "n/.git", "n/s", "m/.git", "o/worktrees/w")
DANGERS = (
    plant("{store}"),
    hook("{store}/hooks"),
    "git config -f {store}/config extensions.worktreeConfig true; cat {keys} > {store}/config.worktree",
    "mv {store}/config {store}/c; cat {keys} > ${P}c; ln -s $PWD/${P}c {store}/config",
)
POINTERS = (
    "mkdir -p n; echo gitdir: $(realpath -m {store}) > n/.git",
    "mkdir -p n; ln -s $(realpath -m {store}) n/.git",
    "mkdir -p n; echo gitdir: $(realpath -m {store}) > f; ln -s ../f n/.git",
    "git config -f {store}/config core.bare true",
)


def generate(seed: int) -> tuple[Planting, list[int]]:
    """The parts of a repository that is a trap, in some order and place, and which command makes each."""
    chance = random.Random(seed)
    store, prefix = chance.choice(STORES), chance.choice(PREFIXES)
    danger, pointer = chance.choice(DANGERS), chance.choice(POINTERS)
    steps = [danger]
    if not store.endswith("/.git"):
        steps.insert(chance.randint(0, 1), pointer)
    apart = chance.choice(("", "HEAD", "objects", "commondir"))
    if apart == "commondir":
        steps.insert(
            chance.randint(0, len(steps)),
            "mkdir -p k; mv {store} k/c; mkdir -p {store}; mv k/c/HEAD {store}; echo $PWD/k/c > {store}/commondir;"
            "mkdir -p k/c/hooks; cp {canary} k/c/hooks/post-index-change; cat {keys} >> k/c/config",
        )
    elif apart:
        away = chance.randint(0, len(steps))
        steps.insert(away, f"mv {{store}}/{apart} ${{P}}x")
        steps.insert(chance.randint(away + 1, len(steps)), f"mv ${{P}}x {{store}}/{apart}")
    steps.insert(0, f"{MADE}; mkdir -p $(dirname {{store}}); mv t/.git {{store}}; rm -rf t")
    inside = f"mkdir -p ./{prefix}; cd ./{prefix}; "
    made = tuple(inside + step.replace("{store}", store) for step in steps)
    split = sorted(chance.randint(0, 2) for _ in steps)
    return Planting(f"{seed}: {made}", made, outer=prefix.startswith(".git")), split


@pytest.mark.parametrize("first", [0, 100])
def test_generated_plantings(lab: Lab, first: int) -> None:
    plantings, split = zip(*map(generate, range(first, first + 6)), strict=True)
    trial = Trial(lab, plantings, [f"w{number}" for number in range(len(plantings))], split)
    trial.prepare()
    temporary = lab.identity.base / "lab" / "private" / "tmp"
    trial.inside()
    assert trial.ran(temporary) == set()
    # the twin: not each of them is a trap, and most are
    lab.host("rm -rf w*; mkdir -p ~/t")
    trial.prepare()
    trial.outside(lab.home / "t")
    assert len(trial.ran(lab.home / "t")) >= len(plantings) // 2
