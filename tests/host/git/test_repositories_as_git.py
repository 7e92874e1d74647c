"""Git directories are found where git finds them: what git would obey in a project is known, however it is linked."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.host.fact_source import HostFacts
from sandboxd.plan.host_queries import HostQueries, ScanQuery
from support.fuzzing import examples

PLACES = (".", "a", "a/b", "a/b/c", "d")
ENVIRONMENT = {
    "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nonexistent",
}  # fmt: skip
STORES = (".git", "store", "a/store.git", "modules/m", "../outside/store")
"""Where a git directory lies, from the project or from the directory with the `.git`."""
POINTERS = ("{}", "{}\n", "{}\r\n", "{}" + "\n" * 9000, "{}/", "./{}", "{}\0x", " {}", "{} ")
place, store, pointer = st.sampled_from(PLACES), st.sampled_from(STORES), st.sampled_from(POINTERS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("repository"), place),
        st.tuples(st.just("bare"), place),
        st.tuples(st.just("file"), place, store, pointer, st.booleans()),
        st.tuples(st.just("link"), place, store),
        st.tuples(st.just("worktree"), place, store, st.booleans()),
        st.tuples(st.just("submodule"), place),
        st.tuples(st.just("broken"), place, st.sampled_from(("HEAD", "objects", "refs", "config"))),
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git directory with nothing in it."""
    made = tmp_path_factory.mktemp("template") / "t"
    subprocess.run(["git", "init", "-q", "--template=", "--bare", str(made)], env=ENVIRONMENT, check=True)
    return made


class Project:
    def __init__(self, top: Path, template: Path) -> None:
        self.top = top
        self.template = template

    def store(self, at: Path) -> Path:
        if not at.exists():
            shutil.copytree(self.template, at)
            (at / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        return at

    def take(self, step: tuple[str, ...]) -> None:
        kind, directory, *rest = step
        here = self.top / directory
        here.mkdir(parents=True, exist_ok=True)
        getattr(self, f"take_{kind}")(here, *rest)

    def take_repository(self, here: Path) -> None:
        self.store(here / ".git")

    def take_bare(self, here: Path) -> None:
        self.store(here / "bare.git")

    def take_file(self, here: Path, store: str, pointer: str, absolute: bool) -> None:
        target = self.store(self.top / store)
        text = str(target) if absolute else os.path.relpath(target, here)
        (here / ".git").write_text("gitdir: " + pointer.format(text))

    def take_link(self, here: Path, store: str) -> None:
        (here / ".git").symlink_to(os.path.relpath(self.store(self.top / store), here))

    def take_worktree(self, here: Path, store: str, confirmed: bool) -> None:
        common = self.store(self.top / store)
        own = common / "worktrees" / (here.name or "w")
        own.mkdir(parents=True)
        (own / "HEAD").write_text("ref: refs/heads/x\n")
        (own / "commondir").write_text("../..\n")
        (own / "gitdir").write_text(f"{here if confirmed else self.top}/.git\n")
        (here / ".git").write_text(f"gitdir: {own}\n")

    def take_submodule(self, here: Path) -> None:
        own = self.store(self.store(self.top / ".git") / "modules" / here.name)
        (own / "config").write_text(f"[core]\n\tworktree = {os.path.relpath(here, own)}\n")
        (here / ".git").write_text(f"gitdir: {os.path.relpath(own, here)}\n")

    def take_broken(self, here: Path, name: str) -> None:
        at = here / ".git" / name
        shutil.rmtree(at) if at.is_dir() else at.unlink()


@contextmanager
def project_of(steps: list[tuple[str, ...]], template: Path) -> Iterator[Path]:
    """A project, where steps that cannot be taken are left out."""
    base = Path(os.path.realpath(tempfile.mkdtemp()))
    try:
        (base / "project").mkdir()
        (base / "outside").mkdir()
        project = Project(base / "project", template)
        for step in steps:
            try:
                project.take(step)
            except OSError:
                continue
        yield project.top
    finally:
        shutil.rmtree(base)


def obeyed_by_git(directory: Path) -> set[str]:
    """The git directory of a directory, and the one with hooks and configuration; nothing where git finds none."""
    words = ("rev-parse", "--absolute-git-dir", "--path-format=absolute", "--git-common-dir")
    command = ["git", "-C", str(directory), *words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return set() if done.returncode else {os.path.realpath(line) for line in done.stdout.splitlines()}


async def known_of(top: Path) -> set[str]:
    """Git directories known before a command, and those that a `.git` without confirmation names."""
    facts = HostFacts()
    try:
        names = ("hooks", "config", "config.worktree", "commondir")
        answer = await facts.answer(HostQueries((str(top),), (), (ScanQuery(str(top), 4, True),), (), names))
        scan = answer.scans[str(top)]
        refused = {scan.worktree.git_dir, scan.worktree.common} if scan.worktree is not None else set()
        return {one.path for one in scan.git_dirs} | refused
    finally:
        facts.close()


async def missed(top: Path) -> set[str]:
    """Git directories of the project that git obeys in it and nothing here knows."""
    inside = (Path(path) for path, _, _ in os.walk(top))
    obeyed = {git_dir for one in inside if ".git" not in one.parts for git_dir in obeyed_by_git(one)}
    return {one for one in obeyed - await known_of(top) if one.startswith(f"{top}/")}


@settings(max_examples=examples(30))
@given(steps=STEPS)
async def test_whatever_git_obeys_is_known(template: Path, steps: list[tuple[str, ...]]) -> None:
    with project_of(steps, template) as top:
        assert not await missed(top)


@pytest.mark.parametrize(
    "step",
    [
        ("repository", "a/b"),
        ("bare", "a"),
        ("file", ".", "a/store.git", "{}", False),
        ("link", "d", "store"),
        ("worktree", "d", ".git", True),
        ("submodule", "a/b"),
    ],
    ids=lambda step: step[0],
)
async def test_each_kind_is_one_that_git_obeys(template: Path, step: tuple[str, ...]) -> None:
    with project_of([step], template) as top:
        where = top / step[1] / ("bare.git" if step[0] == "bare" else "")
        obeyed = obeyed_by_git(where)
        assert obeyed and obeyed <= await known_of(top)
