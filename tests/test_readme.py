"""The README is true: its commands and its example are run, its links and names exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import CHECKOUT

README = (CHECKOUT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found, f"no {language} block"
    return found


def transcript(block: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a block of terminal."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[0::2], parts[1::2], strict=True))


def test_the_commands_print_what_stands_there(daemon: DaemonProcess) -> None:
    for block in blocks("console"):
        script, expected = "", ""
        for command, output in transcript(block):
            script += command.replace("./dev run", "sandboxd", 1) + "\n"
            expected += output
        done = daemon.identity.run(["sh"], input=script + "exit 0\n", env=daemon.environment())
        said = (done.stdout + done.stderr).replace(str(daemon.identity.home), "/home/ada")
        assert sorted(said.splitlines()) == sorted(expected.splitlines()), done


def test_the_example_runs(daemon: DaemonProcess) -> None:
    (example,) = blocks("python")
    done = daemon.python(example)
    assert (done.returncode, done.stderr) == (0, ""), done
    lines = done.stdout.splitlines()
    assert lines[0] == "0 hello"
    refused = f"1 touch: cannot touch '{daemon.identity.home}/surprise': Read-only file system"
    assert lines[1] == refused, lines
    assert "seccomp" in lines[2]
    assert (daemon.identity.workspace / "notes.txt").read_text() == "hello\n"
    assert len(example.strip().splitlines()) <= 12


def test_the_settings_are_accepted_and_work(start_daemon: StartDaemon) -> None:
    (text,) = blocks("json")
    daemon = start_daemon(settings=json.loads(text))
    assert json.loads(daemon.run("explain", "host", "www.example.com", "--json").stdout)["behavior"] == "allow"
    assert json.loads(daemon.run("explain", "host", "www.example.org", "--json").stdout)["behavior"] != "allow"
    for command in re.findall(r"`sandboxd (explain [^`]*)`", README):
        done = daemon.run(*command.split())
        assert done.returncode == 0 and done.stdout, done


def test_every_command_exists(daemon: DaemonProcess) -> None:
    usage = daemon.run("--help").stdout
    for name in set(re.findall(r"`sandboxd ([a-z]+)", README)):
        assert re.search(rf"\b{name}\b", usage), name
    dev = (CHECKOUT / "dev").read_text()
    for name in set(re.findall(r"\./dev ([a-z]+)", README)):
        assert f"\n  {name})\n" in dev, name


def headings(document: Path) -> set[str]:
    """The anchors that a page has, as its headings make them."""
    lines = [line.lstrip("# ").lower() for line in document.read_text().splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in lines}


def test_every_link_leads_somewhere() -> None:
    for document in (*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
            if target.startswith("https://"):
                continue
            file, _, anchor = target.partition("#")
            page = document.parent / file if file else document
            assert page.exists(), f"{document.name}: {target}"
            assert not anchor or anchor in headings(page), f"{document.name}: {target}"


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_every_page_is_in_the_index(folder: str) -> None:
    index = (CHECKOUT / folder / "README.md").read_text()
    for page in (CHECKOUT / folder).glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_it_promises_no_dependency_that_is_not_listed() -> None:
    listed = (CHECKOUT / "docs" / "dependencies.md").read_text()
    project = (CHECKOUT / "pyproject.toml").read_text()
    for name in re.findall(r'^    "([a-z][a-z0-9-]*)[><=,."0-9]*', project, re.MULTILINE):
        assert name in listed, name


def test_every_file_of_the_architecture_is_there() -> None:
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:sandboxd|client|vendor|policy|docs)/[\w/.-]+\.\w+)`", page)
    assert len(named) > 20
    for name in named:
        assert (CHECKOUT / name).exists() or (CHECKOUT / "sandboxd" / name).exists(), name
