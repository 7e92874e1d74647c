"""A command stands in its working directory before all is mounted there: what it names from where it stands is guarded
like what it names from the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemons import StartDaemon
from support.users import Identity


@pytest.fixture
def repository(identity: Identity) -> Path:
    assert identity.run(["git", "init", "-q", str(identity.workspace)]).returncode == 0
    return identity.workspace


@pytest.mark.parametrize(("cwd", "absolute"), [(".git", True), (".git", False), (".", False), ("deep/in", False)])
def test_protected_names_below_it(
    start_daemon: StartDaemon, identity: Identity, repository: Path, cwd: str, absolute: bool
) -> None:
    secret = repository / "deep" / "in" / "secret"
    assert identity.run(["mkdir", "-p", str(secret.parent)]).returncode == 0
    identity.write(secret, "hush")
    settings = {"sandbox": {"filesystem": {"denyRead": [str(secret)]}}}
    daemon = start_daemon(settings=settings)
    at = repository if absolute else Path("." if cwd == "." else ".." if cwd == ".git" else "../..")
    before = (repository / ".git" / "config").read_text()
    script = (
        f"echo x >> {at}/.git/config; echo x > {at}/.git/hooks/pre-commit; cat {at}/deep/in/secret; touch {at}/done"
    )
    if not absolute and cwd == ".git":
        script += "; echo x >> config; echo x > hooks/post-commit"
    if not absolute and cwd == "deep/in":
        script += "; cat secret"
    done = daemon.run("run", "--cwd", str(repository / cwd), "--allow-write", str(repository), "--", "sh", "-c", script)
    assert "hush" not in done.stdout, done
    assert (repository / ".git" / "config").read_text() == before
    assert not list((repository / ".git" / "hooks").glob("p*-commit"))
    assert (repository / "done").exists(), done
