"""Three people on their first day, with the built wheels: a user, the author of an agent, an administrator.

docs/tutorial.md is their script. Each section is played in a fresh home, on a terminal, and must print what stands
there; `./dev golden` writes what it prints into the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from support.installations import Installation, Wheelhouse
from support.users import CHECKOUT, Identity
from support.walkthrough import Section, Walkthrough, as_person, sections

PAGE = CHECKOUT / "docs" / "tutorial.md"
SECTIONS = {section.title: section for section in sections(PAGE.read_text())}
OF_ROOT = "As the administrator"
PEOPLE = [title for title in SECTIONS if title != OF_ROOT or os.geteuid() == 0]


@pytest.fixture
def installed(identity: Identity, wheelhouse: Wheelhouse) -> Iterator[Installation]:
    found = wheelhouse.install(identity, "uv", wheelhouse.wheel("sandboxd"))
    yield found
    found.run("stop")


def with_an_etc_of_its_own(identity: Identity) -> list[str]:
    """What starts a program with a copy of /etc that only it sees: the machine's settings are written there."""
    copy = identity.base / "etc"
    shutil.copytree("/etc", copy, symlinks=True, ignore=shutil.ignore_patterns("sandboxd"))
    (copy / "sandboxd").mkdir(mode=0o755)
    identity.own(copy / "sandboxd")
    return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(copy)]


def played(section: Section, installed: Installation) -> list[tuple[str, str]]:
    person = installed.person
    project = person.home / "shop"
    project.mkdir()
    person.own(project)
    through = [*(with_an_etc_of_its_own(person) if section.title == OF_ROOT else []), *as_person(person)]
    shown = {str(person.runtime): "/run/user/1000", str(person.home): "/home/ada"}
    env = installed.environment()
    env["PATH"] = f"{installed.python.parent}:{env['PATH']}"  # the environment of an agent, activated
    walkthrough = Walkthrough(through, env, project, shown)
    try:
        return [*walkthrough.play(section)]
    finally:
        walkthrough.close()


@pytest.mark.parametrize("title", PEOPLE)
def test_the_tutorial_prints_what_stands_there(title: str, installed: Installation) -> None:
    blocks = played(SECTIONS[title], installed)
    assert blocks, "nothing is played"
    if os.environ.get("SANDBOXD_WRITE_GOLDEN"):
        page = PAGE.read_text()
        for text, now in blocks:
            page = page.replace(f"```console\n{text}```", f"```console\n{now}```", 1)
        PAGE.write_text(page)
        return
    for text, now in blocks:
        assert now == text, "renew the page, and look at the difference: ./dev golden"
