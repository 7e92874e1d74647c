"""Programs of others that speak over Unix sockets, started inside with default settings: each ends with status 0.

`./dev programs` installs what is missing and runs this. `SANDBOXD_PROGRAMS` is the directory of what comes from npm and
PyPI."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import textwrap
from dataclasses import dataclass

import pytest

from support.daemons import DaemonProcess

PROGRAMS = os.environ.get("SANDBOXD_PROGRAMS", "")
LIMIT_S = 240


@dataclass(frozen=True)
class Program:
    """A line of a shell, what it says at its end, and what it takes; `as_root`: it runs as root, too."""

    name: str
    line: str
    says: str
    takes: tuple[str, ...] = ()
    as_root: bool = True


def _script(text: str) -> str:
    return "set -e; export HOME=$TMPDIR/home; mkdir -p $HOME; chmod 700 $HOME\n" + textwrap.dedent(text)


CASES = (
    Program(
        "multiprocessing",
        """python3 -c 'import multiprocessing as m
with m.Manager() as one: one.list([1]); print("managed")'""",
        "managed",
    ),
    Program(
        "tmux",
        """tmux -f /dev/null new-session -d -s one 'echo inside > $TMPDIR/said; sleep 60'
        until grep -q inside $TMPDIR/said 2>/dev/null; do sleep 0.1; done
        tmux list-sessions | grep one; tmux kill-server""",
        "one: 1 windows",
        ("tmux",),
    ),
    Program(
        "postgres and psql",
        """export PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH
        initdb -D $TMPDIR/data -A trust >/dev/null
        pg_ctl -D $TMPDIR/data -w -l $TMPDIR/log -o "-k $TMPDIR -c listen_addresses=''" start >/dev/null
        psql -h $TMPDIR -d postgres -tAc 'select 40 + 2'
        pg_ctl -D $TMPDIR/data -m fast stop >/dev/null""",
        "42",
        ("/usr/lib/postgresql",),
        as_root=False,
    ),
    Program(
        "redis",
        """redis-server --port 0 --unixsocket $TMPDIR/redis --daemonize yes --dir $TMPDIR >/dev/null
        until redis-cli -s $TMPDIR/redis ping 2>/dev/null | grep PONG; do sleep 0.1; done
        redis-cli -s $TMPDIR/redis shutdown nosave""",
        "PONG",
        ("redis-server", "redis-cli"),
    ),
    Program(
        "ssh-agent and ssh-add",
        """eval $(ssh-agent -a $TMPDIR/agent) >/dev/null
        ssh-keygen -q -t ed25519 -N '' -f $TMPDIR/key; ssh-add -q $TMPDIR/key; ssh-add -l; ssh-agent -k >/dev/null""",
        "ED25519",
        ("ssh-agent", "ssh-add"),
    ),
    Program(
        "gpg signs",
        """export GNUPGHOME=$HOME/.gnupg; mkdir -m 700 $GNUPGHOME
        gpg -q --batch --passphrase '' --quick-generate-key me@example.test ed25519 sign 2>&1
        echo text | gpg -q --batch --clearsign | gpg -q --verify 2>&1; gpgconf --kill all""",
        "Good signature",
        ("gpg", "gpgconf"),
    ),
    Program(
        "chromium",
        """echo '<p id=x></p><script>x.textContent=40+2</script>' > $TMPDIR/page.html
        chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=$TMPDIR/profile \\
            --dump-dom file://$TMPDIR/page.html 2>/dev/null""",
        '<p id="x">42</p>',
        ("chromium",),
    ),
    Program(
        "playwright",
        """cd $TMPDIR; NODE_PATH=$PROGRAMS/node_modules node -e 'const { chromium } = require("playwright-core");
        (async () => { const one = await chromium.launch({executablePath: "/usr/bin/chromium", args: ["--no-sandbox"]});
        const page = await one.newPage(); await page.setContent("<title>played</title>");
        console.log(await page.title()); await one.close() })().catch(e => { console.error(e); process.exit(1) })'""",
        "played",
        ("chromium", "node"),
    ),
    Program(
        "nx",
        """mkdir nx; cd nx; ln -s $PROGRAMS/node_modules node_modules
        echo '{"name": "w", "private": true}' > package.json
        echo '{}' > nx.json; mkdir one
        echo '{"name": "one", "targets": {"say": {"command": "echo said by nx"}}}' > one/project.json
        NX_DAEMON=true timeout 200 node node_modules/nx/bin/nx.js run one:say; node node_modules/nx/bin/nx.js reset""",
        "said by nx",
        ("node",),
    ),
    Program(
        "nvim server",
        """nvim --headless --clean --listen $TMPDIR/nvim 2>/dev/null &
        until nvim --clean --server $TMPDIR/nvim --remote-expr "writefile([40 + 2], '$TMPDIR/said')" 2>/dev/null
        do sleep 0.2; done; cat $TMPDIR/said
        nvim --clean --server $TMPDIR/nvim --remote-send ':qa!<CR>' 2>/dev/null || true; wait || true""",
        "42",
        ("nvim",),
    ),
    Program(
        "emacs server",
        """emacs -Q --daemon=one 2>/dev/null; emacsclient -s one -e '(+ 40 2)'; emacsclient -s one -e '(kill-emacs)'""",
        "42",
        ("emacs", "emacsclient"),
    ),
    Program(
        "jupyter kernel",
        """$PROGRAMS/jupyter/bin/python -c 'import sys
from jupyter_client.manager import KernelManager
one = KernelManager(transport="ipc"); one.start_kernel(); client = one.client(); client.start_channels()
client.wait_for_ready(120); client.execute_interactive("print(40 + 2)", timeout=60); one.shutdown_kernel(now=True)'""",
        "42",
    ),
)


CHROMIUM = "chromium --headless --no-sandbox --disable-gpu --dump-dom 'data:text/html,<p>hi</p>'"
AT_HOME = (
    Program("go env -w", "go env -w GOFLAGS=-mod=mod; go env GOFLAGS", "-mod=mod", ("go",)),
    Program("fish", "fish -c 'set -U said by'; grep said ~/.config/fish/fish_variables", "said", ("fish",)),
    Program(
        "poetry",
        "cd $PROGRAMS && jupyter/bin/poetry config virtualenvs.create false; cat ~/.config/pypoetry/config.toml",
        "create = false",
    ),
    Program("chromium", CHROMIUM, "<p>hi</p>", ("chromium",)),
)
"""Programs that fail where the home directory is read-only."""


def is_there(what: str) -> bool:
    return os.path.isdir(what) if what.startswith("/") else shutil.which(what) is not None


def run(daemon: DaemonProcess, program: Program, line: str) -> tuple[int, str, str]:
    if daemon.identity.uid == 0 and not program.as_root:
        pytest.skip("it refuses to run as root")
    missing = [what for what in program.takes if not is_there(what)]
    assert not missing, f"install {missing}: ./dev programs does"
    words = ("run", "--timeout", f"{LIMIT_S}s", "--shell", "bash", "-c", f"PROGRAMS={shlex.quote(PROGRAMS)}\n{line}")
    process = daemon.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    return process.returncode, out, err


@pytest.mark.parametrize("program", CASES, ids=lambda one: one.name)
def test_a_program_works_inside(daemon: DaemonProcess, program: Program) -> None:
    status, out, err = run(daemon, program, _script(program.line))
    assert status == 0 and program.says in out, (status, out[-2000:], err[-4000:])


@pytest.mark.parametrize("program", AT_HOME, ids=lambda one: one.name)
@pytest.mark.parametrize("named", [".config", ""])
def test_a_program_works_in_a_home_of_the_session(daemon: DaemonProcess, program: Program, named: str) -> None:
    """By default it fails and the hint names that home; there its directories may exist or not."""
    home = daemon.identity.home
    daemon.identity.write(home / named / "before", "")
    status, out, err = run(daemon, program, program.line)
    assert program.says not in out, (status, out)
    told = json.loads(daemon.run("violations", "--json").stdout)["violations"]
    (way,) = {line.rpartition(": ")[2] for one in told for line in [one["hint"]] if "home overlay" in line}
    assert way == "sandboxd settings set sandbox.filesystem.home overlay", told
    assert daemon.run(*way.split()[1:]).returncode == 0
    status, out, err = run(daemon, program, program.line)
    assert status == 0 and program.says in out, (status, out[-2000:], err[-4000:])
    assert [path.name for path in (home / ".config").glob("*")] == ["before"] * bool(named)
