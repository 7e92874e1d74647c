"""Each documented way to install works from the built wheels and from a checkout."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import PIPE

import pytest

from support.installations import INSTALLERS, Installation, Wheelhouse
from support.users import CHECKOUT, Identity, identity_names
from support.walkthrough import Walkthrough, as_person, sections

FROM_CLIENT = "from sandboxd_client import Client\nwith Client() as box: print(box.run('echo hello').returncode)"
WHICH_CLIENT = "import sandboxd_client; print(sandboxd_client.__file__)"
FILES = ("share/bash-completion/completions/sandboxd", "share/zsh/site-functions/_sandboxd",
         "share/fish/vendor_completions.d/sandboxd.fish", "share/man/man1/sandboxd.1",
         "share/sandboxd/settings.schema.json")  # fmt: skip


def works(installed: Installation) -> None:
    missing = [name for name in FILES if not (installed.python.parent.parent / name).is_file()]
    assert not missing, missing
    done = installed.run("run", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
    assert installed.imports(FROM_CLIENT).stdout == "hello\n0\n"
    assert installed.run("stop").returncode == 0


@pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)
@pytest.mark.parametrize("by", INSTALLERS)
def test_a_checkout_is_installed_and_runs_a_command(by: str, identity: Identity, wheelhouse: Wheelhouse) -> None:
    works(wheelhouse.install(identity, by, wheelhouse.checkout))


def test_the_lines_of_the_readme_do_what_they_say(identity: Identity, wheelhouse: Wheelhouse) -> None:
    installed = wheelhouse.install(identity, "pipx", wheelhouse.wheel("sandboxd"))
    assert (identity.home / ".local/share/man/man1/sandboxd.1").exists()
    blocks = [block for section in sections((CHECKOUT / "README.md").read_text()) for block in section.blocks()]
    argv = as_person(identity)
    shell = Walkthrough(argv, installed.environment(), identity.workspace, {str(identity.home): "/home/ada"})
    try:
        for block in (text for language, text, _ in blocks if language == "console"):
            assert shell.played(block) == block
    finally:
        shell.close()
    works(installed)
    (example,) = (text for language, text, _ in blocks if language == "python")
    done = installed.imports(example)
    assert done.returncode == 0 and done.stdout.startswith("0 hello\n1 touch: "), done
    assert installed.run("stop").returncode == 0


def test_both_packages_stand_side_by_side(identity: Identity, wheelhouse: Wheelhouse) -> None:
    """Each may come and go, in any order, and the other one still works. The program uses the client it came with,
    not one of another version in the same environment."""
    both = wheelhouse.install(identity, "pip", wheelhouse.wheel("sandboxd"))
    carried = both.imports(WHICH_CLIENT).stdout
    venv = str(both.program.parent.parent)

    def pip(*words: str) -> None:
        done = wheelhouse.installer(identity, "pip", "--python", venv, *words)
        assert done.returncode == 0, done

    pip("install", "sandboxd-client")
    pip("check")
    alone = both.imports(WHICH_CLIENT).stdout.strip()
    assert alone.endswith("site-packages/sandboxd_client/__init__.py") and "vendor" not in alone
    text = Path(alone).read_text()
    identity.write(Path(alone), "raise ImportError\n")
    assert both.run("run", "--", "true").returncode == 0
    identity.write(Path(alone), text)
    pip("uninstall", "-y", "sandboxd-client")
    pip("check")
    assert both.imports(WHICH_CLIENT).stdout == carried != f"{alone}\n"
    works(both)
    pip("install", "sandboxd-client")
    pip("uninstall", "-y", "sandboxd")
    pip("check")
    assert both.imports(WHICH_CLIENT).stdout == f"{alone}\n"
    assert not both.program.exists()


def test_restart_goes_on_in_the_program_that_asks(identity: Identity, wheelhouse: Wheelhouse) -> None:
    """The command runs on, each program names both versions, and warns while they differ."""
    first = wheelhouse.install(identity, "uv", wheelhouse.wheel("sandboxd"))
    second = wheelhouse.install(identity, "pip", wheelhouse.wheel("sandboxd"))
    package = second.imports("import sandboxd; print(sandboxd.PACKAGE)").stdout.strip()
    identity.run(["sed", "-i", 's/^__version__ = .*/__version__ = "9.9"/', f"{package}/__init__.py"], check=True)
    argv = [str(first.program), "run", "-c", "echo ready; read line; echo $line"]
    with identity.popen(argv, env=first.environment(), stdin=PIPE, stdout=PIPE) as command:
        assert command.stdout is not None and command.stdin is not None
        assert command.stdout.readline() == b"ready\n"
        warned = second.run("status")
        assert f"version 0.1.0 of {first.python.parent.parent}" in warned.stderr and "9.9" in warned.stderr
        done = second.run("restart")
        assert f"version 9.9 of {package}" in done.stdout and done.stderr == "", done
        assert json.loads(second.run("status", "--json").stdout)["program"] == package
        assert "sandboxd restart" in first.run("status").stderr and second.run("status").stderr == ""
        command.stdin.write(b"the end\n")
        command.stdin.flush()
        assert command.stdout.read() == b"the end\n"
    assert command.returncode == 0
    back = first.run("restart")
    assert "version 0.1.0" in back.stdout and back.stderr == "", back
    assert first.run("stop").returncode == 0


PLANTED_PROGRAMS = "bwrap systemctl journalctl sandboxd python3 git nft ip sh bash env".split()
PLANTED_MODULES = "sitecustomize usercustomize json socket sandboxd sandboxd_client pydantic".split()


def plant(identity: Identity) -> dict[str, str]:
    """What a command could have left in a project, and the variables of direnv or `npm run` that lead there."""
    project = identity.workspace
    for place in (".venv/bin", "node_modules/.bin"):
        for name in PLANTED_PROGRAMS:
            text = f'#!/bin/sh\ntouch "{project}/RAN-{name}"\nexec /usr/bin/{name} "$@"\n'
            identity.write(project / place / name, text, mode=0o755)
    for name in PLANTED_MODULES:
        for place in ("", "evil/"):
            identity.write(project / f"{place}{name}.py", f"open('{project}/RAN-{name}.py', 'w')\n")
    return {
        "VIRTUAL_ENV": f"{project}/.venv",
        "PYTHONPATH": f".:{project}/evil",
        "PYTHONSTARTUP": f"{project}/evil/json.py",
        "PYTHONUSERBASE": f"{project}/evil",
        "OPENSSL_CONF": f"{project}/evil/none",
        "GCONV_PATH": f"{project}/evil",
    }


@pytest.mark.parametrize("by", ["pip", "uv"])  # pipx makes the layout of pip in another place
def test_a_wheel_works_and_runs_nothing_planted_in_a_project(
    by: str, identity: Identity, wheelhouse: Wheelhouse
) -> None:
    installed = wheelhouse.install(identity, by, wheelhouse.wheel("sandboxd"))
    works(installed)
    env = installed.environment(**plant(identity))
    env["PATH"] = f".venv/bin:{identity.workspace}/.venv/bin:{identity.workspace}/node_modules/.bin:{env['PATH']}"
    for words in ("run -- true", "status", "check", "explain path .", "trust --list", "service status", "logs",
                  "restart", "run -- true", "stop"):  # fmt: skip
        done = identity.run([str(installed.program), *words.split()], env=env)
        assert done.returncode == 0 or words in ("service status", "check"), done
    assert [*identity.workspace.glob("RAN-*")] == []
    identity.run([f"{identity.workspace}/.venv/bin/env", "python3", "-c", ""], env=env, check=True)  # the twin
    ran = {path.name for path in identity.workspace.glob("RAN-*")}
    assert {"RAN-env", "RAN-python3", "RAN-sitecustomize.py"} <= ran


def test_the_site_of_a_user_is_refused(identity: Identity, wheelhouse: Wheelhouse) -> None:
    """Commands may write there."""
    words = ("install", "--user", "--break-system-packages", str(wheelhouse.wheel("sandboxd")))
    done = wheelhouse.installer(identity, "pip", *words)
    assert done.returncode == 0, done
    program = identity.home / ".local/bin/sandboxd"
    refused = identity.run([str(program), "--version"], env=wheelhouse.environment(identity))
    assert refused.returncode == 125 and "user site" in refused.stderr, refused
