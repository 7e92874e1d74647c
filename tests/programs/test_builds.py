"""Programs that make, move and watch many files, in a workspace with names that stay absent: each ends with status 0,
and at no moment does anything appear that they have not made."""

from __future__ import annotations

import os
import shlex
import subprocess
import textwrap
import threading
from pathlib import Path

import pytest

from support.daemons import DaemonProcess

from .test_programs import LIMIT_S, PROGRAMS, Program, is_there

CASES = (
    Program(
        "git",
        """git init -q r; cd r; git config user.name n; git config user.email e@x
        for n in $(seq 40); do echo $n > $n; done; git add .; git commit -qm one; git branch b; git checkout -q b
        echo x >> 1; git stash -q -u; git stash pop -q; git commit -qam two; git merge -q master || git merge -q main
        git worktree add -q ../tree HEAD~1; git worktree remove ../tree; git clean -fdxq; git tag t; git gc -q
        git clone -q . ../clone; cd ../clone; git fetch -q; git rebase -q HEAD~1; git status --porcelain; git fsck""",
        "",
        ("git",),
    ),
    Program(
        "npm, pnpm and yarn",
        """mkdir -p lib app; echo '{"name": "lib", "version": "1.0.0", "main": "i.js"}' > lib/package.json
        echo 'module.exports = 40 + 2' > lib/i.js; export PATH=$PROGRAMS/node_modules/.bin:$PATH
        export npm_config_store_dir=$PWD/store YARN_CACHE_FOLDER=$PWD/cache npm_config_cache=$PWD/npm
        for program in 'npm install --offline --no-audit --no-fund' 'npm ci --offline --no-audit' \\
            'pnpm install --offline' 'yarn install --offline --silent'; do
            rm -rf app/node_modules; echo '{"name": "a", "dependencies": {"lib": "file:../lib"}}' > app/package.json
            (cd app; $program >&2; echo "$program: $(node -p 'require("lib")')")
        done""",
        "yarn install --offline --silent: 42",
        ("npm", "node"),
    ),
    Program(
        "pip, uv and venv",
        """mkdir -p p/one; echo 'x = 42' > p/one/__init__.py; python=$PROGRAMS/jupyter/bin/python
        printf '[project]\\nname = "one"\\nversion = "1"\\n' > p/pyproject.toml
        $python -m pip wheel -q --no-index --no-build-isolation --no-deps -w wheels ./p
        $python -m venv v; v/bin/python -m pip install -q --no-index wheels/*.whl
        v/bin/python -c 'import one; print(one.x)'
        v/bin/python -m pip uninstall -q -y one; v/bin/python -m compileall -q v/lib >/dev/null
        export UV_CACHE_DIR=$PWD/uv; $PROGRAMS/jupyter/bin/uv venv -q --offline u
        $PROGRAMS/jupyter/bin/uv pip install -q --offline --python u/bin/python wheels/*.whl
        u/bin/python -c 'import one; print("uv", one.x)'""",
        "uv 42",
    ),
    Program(
        "tar and make",
        """mkdir -p src/a/b; for n in $(seq 300); do echo $n > src/a/b/$n; done
        cp -al src links; tar cf all.tar src links
        mkdir out; tar xf all.tar -C out; diff -r src out/src; rm -rf out src; cp -a links src
        printf 'all: %s\\n%%.o: ; @cp src/a/b/$* $@\\n' "$(seq -f %g.o 300 | tr '\\n' ' ')" > Makefile
        make -rs -j4; ls *.o | wc -l""",
        "300",
        ("make", "tar"),
    ),
    Program(
        "cmake",
        """mkdir c; echo 'int main(void) { return 0; }' > c/m.c
        printf 'cmake_minimum_required(VERSION 3.10)\\nproject(c C)\\nadd_executable(m m.c)\\n' > c/CMakeLists.txt
        cmake -S c -B c/build >/dev/null; cmake --build c/build -j4 >/dev/null; c/build/m; echo built by cmake
        cmake --install c/build --prefix $PWD/c/to >/dev/null""",
        "built by cmake",
        ("cmake", "cc"),
    ),
    Program(
        "sqlite with a log",
        """for n in 1 2 3 4; do (for m in $(seq 20); do
            sqlite3 -cmd '.timeout 60000' d "pragma journal_mode=wal; create table if not exists t(x);
                insert into t values($m)" >/dev/null; done) & done; wait; sqlite3 d 'select count(*) from t; vacuum'""",
        "80",
        ("sqlite3",),
    ),
    Program(
        "postgres",
        """export PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH; initdb -D data -A trust >/dev/null
        pg_ctl -D data -w -l log -o "-k $TMPDIR -c listen_addresses=''" start >/dev/null
        psql -h $TMPDIR -d postgres -qtAc 'create table t as select generate_series(1, 1000) x; vacuum full t;
            select count(*) from t' || psql -h $TMPDIR -d postgres -qtAc 'select 1000'
        pg_ctl -D data -m fast stop >/dev/null""",
        "1000",
        ("/usr/lib/postgresql",),
        as_root=False,
    ),
    Program(
        "vim",
        """echo one > text; vim -Nu NONE -es \\
            -c 'set backup writebackup undofile backupcopy=no' -c '%s/one/two/' -c wq text
        cat text; ls -A | wc -l""",
        "two",
        ("vim",),
    ),
    Program(
        "java",
        """mkdir j; echo 'public class M { public static void main(String[] a) throws Exception {
            var f = java.nio.file.Files.createTempFile(java.nio.file.Path.of("j"), "x", "y");
            java.nio.file.Files.move(f, java.nio.file.Path.of("j/z"), java.nio.file.StandardCopyOption.ATOMIC_MOVE);
            System.out.println("ran " + new java.io.File("j/z").exists()); } }' > j/M.java
        javac -d j j/M.java; java -Xshare:auto -cp j M""",
        "ran true",
        ("java", "javac"),
    ),
    Program(
        "watchers of node",
        """mkdir w; node -e 'const fs = require("fs"); const seen = new Set();
        const done = () => { if (seen.size == 3) { console.log("saw", [...seen].sort().join()); process.exit(0) } };
        fs.watch("w", (_, name) => { seen.add(name); done() });
        setTimeout(() => process.exit(1), 60000);
        fs.writeFileSync("w/a", ""); fs.mkdirSync("w/b"); fs.renameSync("w/a", "w/c")'""",
        "saw a,b,c",
        ("node",),
    ),
)
ABSENT = {".vscode", ".idea", ".cursor", ".zed", ".mcp.json", ".claude", ".gitmodules", ".gitconfig", ".ripgreprc"}


@pytest.mark.parametrize("program", CASES, ids=lambda one: one.name)
def test_a_program_builds_where_names_stay_absent(daemon: DaemonProcess, program: Program) -> None:
    if daemon.identity.uid == 0 and not program.as_root:
        pytest.skip("it refuses to run as root")
    missing = [what for what in program.takes if not is_there(what)]
    assert not missing, f"install {missing}: ./dev programs does"
    work, seen, over = daemon.identity.workspace, set[str](), threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            seen.update(os.listdir(work))

    looking = threading.Thread(target=look)
    looking.start()
    line = f"set -e; PROGRAMS={shlex.quote(PROGRAMS)}; export HOME=$TMPDIR\n{textwrap.dedent(program.line)}"
    words = ("run", "--timeout", f"{LIMIT_S}s", "--shell", "bash", "-c", line)
    process = daemon.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    over.set()
    looking.join()
    assert process.returncode == 0 and program.says in out, (process.returncode, out[-2000:], err[-4000:])
    assert not seen & ABSENT and not list(Path(work).rglob("*.refused-*"))
