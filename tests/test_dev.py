"""./dev without a network: what it installs, where, how often, and what it says when it may not.

apt-get, pip and the interpreter are stand-ins that write down how they were called, so nothing is really installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.terminal import Terminal
from support.users import CHECKOUT, Identity
from support.walkthrough import as_person

TOOLS = ("sh", "dirname", "readlink", "id", "find", "cat", "cksum", "tr", "mktemp", "rm", "mkdir", "env", "flock", "cp",
         "true", "chmod", "sleep", "sed", "tail")  # fmt: skip

# Makes environments, in which pip takes a moment so that two at once would really meet.
PYTHON = """\
#!/bin/sh
case "$*" in
  "-I -") cat >/dev/null ;;
  *"-m venv"*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; echo venv >>"$LOG"
    printf '#!/bin/sh\\necho "sandboxd $*"\\n' >"$last/bin/sandboxd"; chmod +x "$last/bin/sandboxd" ;;
  *"-m pipx "*) shift 2; echo "pipx $*" >>"$LOG" ;;
  *"pip "*) echo pip >>"$LOG"; sleep 0.3 ;;
  *"docs/demo.py"*) echo "demo $*" ;;
  *"macos/smoke.py"*) echo "smoke $*" ;;
esac
"""

APT = """\
#!/bin/sh
echo "apt-get $*" >>"$LOG"
case "$*" in *update*) : >"$STUBS/updated" ;; *) [ -e "$STUBS/updated" ] || exit 100 ;; esac
case "$*" in *bubblewrap*) for name in bwrap; do cp "$0" "$STUBS/$name"; done ;; esac
"""


SUDO = """\
#!/bin/sh
[ "$1" != -n ] || shift
exec "$@"
"""


@dataclass
class Checkout:
    """A copy of ./dev with project files beside it, in a path with a space, on a machine where only TOOLS exist."""

    identity: Identity
    root: Path
    stubs: Path
    log: Path

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.identity.home),
            "PATH": str(self.stubs),
            "LOG": str(self.log),
            "STUBS": str(self.stubs),
            "PYTHON": str(self.stubs / "python3"),
        }

    def dev(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.identity.run([str(self.root / "dev"), *arguments], cwd=cwd, env=self.environment())

    def calls(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.write_text("")
        return lines


@pytest.fixture
def checkout(identity: Identity) -> Checkout:
    root, stubs = identity.base / "a b", identity.base / "stubs"
    identity.write(root / "dev", (CHECKOUT / "dev").read_text(), mode=0o755)
    for name in ("pyproject.toml", "client/pyproject.toml"):
        identity.write(root / name, (CHECKOUT / name).read_text())
    stubs.mkdir()
    identity.own(stubs)
    for name in TOOLS:
        (stubs / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is not on this machine"))
    identity.write(stubs / "python3", PYTHON, mode=0o755)
    log = identity.write(identity.base / "log", "")
    return Checkout(identity, root, stubs, log)


@pytest.fixture
def complete(checkout: Checkout) -> Checkout:
    """The same with bubblewrap."""
    for name in ("bwrap",):
        checkout.identity.write(checkout.stubs / name, "#!/bin/sh\n", mode=0o755)
    return checkout


def test_it_sets_up_once_and_passes_everything_on(complete: Checkout) -> None:
    done = complete.dev("run", "run", "--", "a b", "$x", cwd=complete.identity.workspace)
    assert (done.stdout, done.returncode) == ("sandboxd run -- a b $x\n", 0), done
    assert "installing" in done.stderr
    assert complete.calls() == ["venv", "pip", "pip"]
    again = complete.dev("run", "status")
    assert (again.stdout, again.stderr, complete.calls()) == ("sandboxd status\n", "", [])


def test_changed_requirements_are_installed(complete: Checkout) -> None:
    complete.dev("run")
    complete.calls()
    with (complete.root / "client" / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    complete.dev("run")
    assert complete.calls() == ["pip", "pip"]


@pytest.mark.parametrize("installer", ["uv", "pipx"])
def test_install_takes_the_installer_that_is_there(complete: Checkout, installer: str) -> None:
    """Nothing is set up beside it."""
    stand_in = f'#!/bin/sh\necho "{installer} $*" >>"$LOG"\n'
    complete.identity.write(complete.stubs / installer, stand_in, mode=0o755)
    done = complete.dev("install")
    assert done.returncode == 0 and "remove it with" in done.stderr and "add " in done.stderr, done
    (call,) = complete.calls()
    assert call.startswith(f"{installer} ") and call.endswith(f" {complete.root}") and "--force" in call
    complete.identity.write(complete.stubs / installer, "#!/bin/sh\necho no space left; exit 1\n", mode=0o755)
    failed = complete.dev("install")
    assert failed.returncode == 1 and "no space left" in failed.stderr and "done" not in failed.stderr, failed


def test_install_brings_pipx_where_no_installer_is(complete: Checkout) -> None:
    done = complete.dev("install")
    assert done.returncode == 0, done
    python = complete.stubs / "python3"
    assert complete.calls() == ["venv", "pip", "pip", "pip", f"pipx install --force --python {python} {complete.root}"]


def test_on_a_terminal_the_progress_is_shown(complete: Checkout) -> None:
    argv = [*as_person(complete.identity), str(complete.root / "dev"), "run", "status"]
    (complete.stubs / "python3").write_text(PYTHON.replace("sleep 0.3", "echo Collecting pydantic; sleep 0.3"))
    with Terminal(argv, env=complete.environment()) as terminal:
        assert terminal.wait() == 0
    assert "Collecting pydantic" in terminal.text and terminal.text.endswith("sandboxd status\r\n")
    quiet = complete.dev("run", "status")
    assert "Collecting" not in quiet.stderr


def test_two_at_once_set_up_once(complete: Checkout) -> None:
    argv = [str(complete.root / "dev"), "run", "x"]
    both = [
        complete.identity.popen(argv, env=complete.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in both]
    assert [output for output, _ in outputs] == [b"sandboxd x\n"] * 2, outputs
    assert complete.calls() == ["venv", "pip", "pip"]


def test_started_through_a_link(complete: Checkout) -> None:
    link = complete.identity.base / "link"
    link.symlink_to("a b/dev")
    done = complete.identity.run([str(link), "demo"], env=complete.environment())
    assert done.stdout == f"demo {complete.root}/docs/demo.py\n", done


def test_on_a_mac_nothing_is_missing(checkout: Checkout) -> None:
    """Neither bubblewrap nor apt, and no flock."""
    checkout.identity.write(checkout.stubs / "uname", "#!/bin/sh\necho Darwin\n", mode=0o755)
    (checkout.stubs / "flock").unlink()
    done = checkout.dev("mac-smoke", "--list")
    assert (done.returncode, done.stdout) == (0, f"smoke {checkout.root}/tests/macos/smoke.py --list\n"), done


def test_somebody_elses_checkout_stays_untouched(complete: Checkout) -> None:
    if os.geteuid() == 0:
        for folder in (complete.root, complete.root / "client"):
            os.chown(folder, 12345, 12345)
    else:
        complete.root.chmod(0o555)
    before = sorted(complete.root.rglob("*"))
    done = complete.dev("run", "status")
    assert done.stdout == "sandboxd status\n", done
    assert sorted(complete.root.rglob("*")) == before
    assert list((complete.identity.home / ".cache" / "sandboxd-dev").glob("*/venv/bin/sandboxd"))
    complete.root.chmod(0o755)


def test_missing_programs_are_installed_with_apt(checkout: Checkout) -> None:
    apt = checkout.identity.write(checkout.stubs / "apt-get", APT, mode=0o755)
    sudo = checkout.identity.write(checkout.stubs / "sudo", SUDO, mode=0o755)
    done = checkout.dev("run", "status")
    assert (done.stdout, done.returncode) == ("sandboxd status\n", 0), done
    calls = checkout.calls()
    assert [re.sub(r" -\S+", "", call) for call in calls[:3]] == [
        "apt-get DPkg::Lock::Timeout=300 install bubblewrap",  # tried without refreshing the lists first
        "apt-get DPkg::Lock::Timeout=300 update",
        "apt-get DPkg::Lock::Timeout=300 install bubblewrap",
    ]
    assert calls[3:] == ["venv", "pip", "pip"]
    apt.unlink()
    sudo.unlink()
    assert checkout.dev("run", "status").returncode == 0  # and never again


def test_without_apt_it_says_what_is_missing(checkout: Checkout) -> None:
    done = checkout.dev("run", "status")
    assert done.returncode == 1
    assert done.stderr.startswith("dev: missing on this machine: bubblewrap\n"), done
    assert checkout.calls() == []


def test_who_may_not_install_is_told_what_to_ask_for(checkout: Checkout) -> None:
    checkout.identity.write(checkout.stubs / "apt-get", APT, mode=0o755)
    done = checkout.dev("run", "status")
    if checkout.identity.uid == 0:
        assert done.returncode == 0, done
    else:
        assert (done.returncode, checkout.calls()) == (1, [])
        assert "as root: apt-get install bubblewrap" in done.stderr


@pytest.mark.parametrize(
    ("words", "status"), [("client error (Connect)\nerror sending request", 75), ("no such version", 1)]
)
def test_a_registry_out_of_reach_is_no_failed_test(checkout: Checkout, words: str, status: int) -> None:
    checkout.identity.write(checkout.stubs / "uname", "#!/bin/sh\necho Darwin\n", mode=0o755)
    for tool in ("grep", "nproc"):
        (checkout.stubs / tool).symlink_to(shutil.which(tool) or pytest.fail(tool))
    checkout.identity.write(checkout.root / "tests" / "integrations" / "frameworks.txt", "")
    checkout.dev("venv")
    uv = checkout.root / ".venv" / "bin" / "uv"
    checkout.identity.write(uv, f"#!/bin/sh\necho '{words}'\nexit 2\n", mode=0o755)
    done = checkout.dev("integrations")
    assert done.returncode == status and words in done.stderr, done
    assert ("NOTHING WAS TESTED" in done.stderr) == (status == 75), done


def test_an_old_python_is_refused(complete: Checkout) -> None:
    complete.identity.write(complete.stubs / "python3", "#!/bin/sh\ncat >/dev/null\nexit 1\n", mode=0o755)
    done = complete.dev("run", "status")
    assert done.returncode == 1
    assert "is not a Python 3.11 or newer" in done.stderr


def test_usage_names_every_command(complete: Checkout) -> None:
    text = (complete.root / "dev").read_text()
    commands = set(re.findall(r"^  ([a-z-]+)\)$", text, re.MULTILINE))
    assert {"demo", "test", "bench", "lint", "helper", "mac-smoke", "run"} <= commands
    usage = complete.dev("help")
    assert commands <= set(re.findall(r"^  ([a-z-]+) ", usage.stdout, re.MULTILINE))
    wrong = complete.dev("nonsense")
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", usage.stdout)
