"""Test suites of other projects, run bare and inside with default settings, and what differs: docs/compatibility.md.

    ./dev suites [cpython|git|tar|bash|go|coreutils|node|postgres...]

The bare run has a frame as well: everything is read-only but a new directory, in which both run. Only what passes bare
and not inside is a difference; what fails in both says nothing of the sandbox. Sources come with apt, by a list of
their own, in the version nearest to that of the installed program, and are built once beside the Python environment."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
BUILT = Path(sys.prefix) / "suites"
APT = Path("/etc/apt/sources.list.d/debian.sources")
MOST_S = 1500
HEAD = """# Compatibility

What test suites of other projects notice of a sandbox with default settings. `./dev suites` runs each twice, bare and
inside, and writes this page. A test differs when it passes bare and does not pass inside. Of git, coreutils, Go, Node
and CPython it takes a part, so that one comparison needs some minutes. The tests of UDP-Lite are left out, a protocol
that no sandbox offers.

"""


@dataclass(frozen=True)
class Suite:
    """A suite; `line` runs in an empty directory and writes `report.xml` (JUnit's) or logs that `told` can read.

    `package` is the source package, which `make` builds in `$S`; without `make` it has the tests themselves, `$S`."""

    name: str
    package: str
    version: str
    line: str
    make: str = ""
    told: str = r"^(?P<how>PASS|FAIL|SKIP|ERROR): (?P<name>\S+)"
    why: str = ""
    """The reason of the differences that are known, as the page says it."""
    root: bool = True
    """Whether its programs run as root."""


_CPYTHON = """array asynchat atexit audit bz2 cgi cgitb cmd_line cmd_line_script crypt ctypes curses dbm dbm_dumb
    dbm_gnu dbm_ndbm doctest docxmlrpc eintr embed epoll fcntl file filecmp fileinput fileio fork1
    ftplib gc genericpath getpass glob grp gzip hashlib httplib httpservers imaplib import importlib
    inspect io ioctl json largefile locale logging lzma mailbox mmap multiprocessing_main_handling
    netrc nntplib openpty os pathlib pdb pipes pkgutil platform poll popen poplib posix posixpath
    pty pwd py_compile pyclbr random readline resource robotparser runpy script_helper secrets
    select selectors shelve shutil signal site smtpd smtplib socket socketserver spwd ssl
    stable_abi_ctypes stat subprocess support sys sys_settrace sysconfig syslog tarfile telnetlib
    tempfile thread threading time timeout urllib urllib2 urllib2_localnet urllib_response uuid
    wait3 wait4 wave weakref webbrowser wsgiref xmlrpc zipapp zipfile zipimport"""
_PROXIES = """The tests of urllib do not expect the variables of a proxy, and those of uuid expect a network card. One
path of a socket is too long in `$TMPDIR`, whose own path is longer inside."""
_MODES = """As root two tests differ (103, 119). Root inside has no capability: the modes of its own files count, and
GNU tar extracts no directory that its archive makes read-only. And it mounts nothing."""
_NO_GIT = "NO_OPENSSL=1 NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_TCLTK=1 NO_PYTHON=1"
_GIT = """cd "$S/t"; ls t[0-8]*.sh | awk 'NR % 16 == 1' | TEST_OUTPUT_DIRECTORY="$O" xargs -P 2 -I @ sh -c \
    'timeout 300 sh @ --root="$O/trash" >"$O/@.log" 2>&1 </dev/null'"""
_BASH = """cp -a "$S/tests" t; cd t; export THIS_SH="$S/bash" BASH_TSTOUT="$O/out" PATH=".:$S:$PATH"; unset BASH_ENV
for one in run-*; do
  case $one in run-all | run-minimal | run-gprof | run-read) continue ;; esac
  if timeout 60 sh "$one" </dev/null 2>&1 | grep -v ^warning: >"$O/said"; then echo "FAIL: $one"; cat "$O/said"
  else echo "PASS: $one"; fi
done >"$O/bash.log" 2>&1"""
_CREDENTIALS = "A message over a Unix socket is sent by the helper, so it cannot have the credentials of its program."
_GO = """export GOCACHE="$O/cache" GOFLAGS=-mod=mod GO111MODULE=off HOME="$O"
go test -short -count=1 -v bufio io/fs io/ioutil os os/exec os/signal path/filepath syscall archive/tar log/syslog \
    >go.log 2>&1 </dev/null"""
_COREUTILS = """mkdir built; cp -a "$S/." built; cd built
make -j2 check-TESTS VERBOSE=no SUBDIRS=. TESTS="$(
  ls tests/ch*/*.sh tests/cp/*.sh tests/d[fu]/*.sh tests/i*/*.sh tests/l[ns]/*.sh tests/m[kv]*/*.sh tests/r*/*.sh \
    tests/touch/*.sh | awk 'NR % 4 == 1' | tr '\n' ' ')" >"$O/coreutils.log" 2>&1 </dev/null"""
_LOOPBACK = """The network of a command is its loopback interface. It has no link-local address, and every other is
its own. A connection is accepted before its far end is known, so that the first of several addresses answers."""
_NODE = r"""export NODE_TEST_DIR="$O"; mkdir said; cd "$S"
ls test/parallel/test-{child-process,cluster,dgram,fs,http,net,process,worker}-*.js |
awk '/dgram|-autoselect/ || NR % 8 == 1' |
xargs -P 2 --process-slot-var=TEST_THREAD_ID -I @ bash -c '
  name=$(basename "@" .js) how=FAIL
  if timeout 60 node $(sed -n "s|^// Flags: ||p" "@") "@" >"$O/said/$name" 2>&1 </dev/null; then
    how=PASS; ! grep -q "^1\.\.0 # Skipped" "$O/said/$name" || how=SKIP
  fi
  echo "$how: $name" >>"$O/node.log"'"""
_POSTGRES_BIN = "/usr/lib/postgresql/15/bin"
_POSTGRES = f"""T="$S/src/test/regress"
"$T/pg_regress" --inputdir="$T" --dlpath="$T" --schedule="$T/parallel_schedule" --max-concurrent-tests=20 \
  --bindir={_POSTGRES_BIN} --outputdir="$O" --temp-instance="$O/instance" --no-locale --encoding=UTF8 \
  >postgres.log 2>&1 </dev/null"""
_POSTGRES_MAKE = """./configure -q --without-readline --without-zlib CFLAGS=-O1 &&
make -s -j2 -C src/test/regress all"""
SUITES = (
    Suite(
        "cpython",
        "libpython3.11-testsuite",
        "/usr/bin/python3.11 -V",
        "/usr/bin/python3.11 -m test -j2 -u network --timeout 300 --junit-xml report.xml -i '*UDPLITE*' "
        + " ".join(f"test_{name}" for name in _CPYTHON.split()),
        why=_PROXIES,
    ),
    Suite(
        "git",
        "git",
        "git version",
        _GIT,
        f"make -s -j2 CFLAGS=-O0 {_NO_GIT}",
        r"^(?P<how>not ok|ok) (?P<name>\d+)(?P<skip>.*# skip)?",
    ),
    Suite(
        "tar",
        "tar",
        "tar --version",
        'cp "$S/tests/atconfig" "$S/tests/atlocal" .; sh "$S/tests/testsuite" -j2 >tar.log 2>&1 </dev/null',
        "./configure -q && make -s -j2 && make -s -C tests genfile checkseekhole ckmtime",
        r"^ *(?P<name>\d+: .*?) +(?P<how>ok|FAILED|skipped)",
        _MODES,
    ),
    Suite(
        "bash",
        "bash",
        "bash --version",
        _BASH,
        "./configure -q --without-bash-malloc && make -s -j2 && make -s recho zecho printenv xcase",
    ),
    Suite("go", "golang", "go version", _GO, why=_CREDENTIALS, told=r"^ *--- (?P<how>PASS|FAIL|SKIP): (?P<name>\S+)"),
    Suite("coreutils", "coreutils", "ls --version", _COREUTILS, "./configure -q && make -s -j2"),
    Suite("node", "nodejs", "node --version", _NODE, "true", why=_LOOPBACK),
    Suite(
        "postgres",
        "postgresql-15",
        f"{_POSTGRES_BIN}/postgres --version",
        _POSTGRES,
        _POSTGRES_MAKE,
        r"^(?:test)? +(?P<name>\S+) +\.\.\. (?P<how>ok|FAILED|failed)",
        root=False,
    ),
)
_WORDS = {"ok": "passed", "PASS": "passed", "SKIP": "skipped", "skipped": "skipped"}


def nearest(versions: Sequence[str], installed: str) -> str:
    """Return the version of a package that has most of an installed version's numbers, and of these the newest."""

    def likeness(version: str) -> tuple[int, list[int]]:
        numbers = re.findall(r"\d+", version.rpartition(":")[2])
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(installed.split("."), numbers, strict=False))
        return len(list(shared)), list(map(int, numbers))

    return max(versions, key=likeness)


def _version(suite: Suite) -> str:
    """Return the line in which a suite's program tells its version. Raises CalledProcessError."""
    text = subprocess.run(suite.version.split(), capture_output=True, text=True, check=True).stdout
    return text.splitlines()[0]


def _fetch(suite: Suite, tree: Path) -> str:
    """Unpack the source of a suite with apt and return its version. Raises CalledProcessError."""
    for name in ("lists/partial", "cache/archives/partial", "parts"):
        (BUILT / "apt" / name).mkdir(parents=True, exist_ok=True)
    text = re.sub("^Types: deb$", "Types: deb-src", APT.read_text(), flags=re.M)
    text = re.sub(
        "^Suites: (bookworm.*)", lambda old: f"{old[0]} {old[1].replace('bookworm', 'trixie')}", text, flags=re.M
    )
    (BUILT / "apt/parts/source.sources").write_text(text)
    places = {"SourceList": "/dev/null", "SourceParts": f"{BUILT}/apt/parts"}
    options = [f"-oDir::Etc::{name}={place}" for name, place in places.items()]
    options += [f"-oDir::State::Lists={BUILT}/apt/lists", f"-oDir::Cache={BUILT}/apt/cache"]
    options += ["-qq", f"-oAPT::Sandbox::User={'root' if os.getuid() == 0 else ''}"]
    subprocess.run(["apt-get", *options, "update"], check=True)
    shown = ["apt-cache", *options, "showsrc", "--only-source", suite.package]
    shown_text = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", _version(suite))
    version = nearest(re.findall("^Version: (.*)", shown_text, re.M), found[0] if found else "")
    with tempfile.TemporaryDirectory(dir=BUILT) as fetched:
        wanted = ["apt-get", *options, "source", "--download-only", f"{suite.package}={version}"]
        subprocess.run(wanted, cwd=fetched, check=False)
        for description in Path(fetched).glob("*.dsc"):
            unpack = ["dpkg-source", "--no-check", "-x", str(description), str(tree)]
            subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
            return version
        # A mirror may lack the description of a version that was replaced: what its author published has the tests.
        (archive,) = Path(fetched).glob("*.orig.tar.*[!c]")
        tree.mkdir()
        subprocess.run(["tar", "-x", "--strip-components=1", "-C", tree, "-f", archive], check=True)
    return version


def _source(suite: Suite) -> Path:
    """Return the built source tree of a suite. Raises CalledProcessError."""
    if not suite.make:
        if not list(Path("/var/lib/dpkg/info").glob(f"{suite.package}*.list")):
            raise SystemExit(f"suites: {suite.package} is not installed\nhint: apt-get install {suite.package}")
        return Path("/")
    tree = BUILT / suite.name
    if not (tree / ".made").exists():
        print(f"suites: building {suite.name}", file=sys.stderr)
        shutil.rmtree(tree, ignore_errors=True)
        version = _fetch(suite, tree)
        environment = {**os.environ, "FORCE_UNSAFE_CONFIGURE": "1", "S": str(tree)}
        with (BUILT / f"{suite.name}.log").open("w") as log:
            subprocess.run(["sh", "-c", suite.make], cwd=tree, env=environment, stdout=log, stderr=log, check=True)
        (tree / ".made").write_text(version)
    return tree


def results(suite: Suite, directory: Path) -> dict[str, str]:
    """Return `passed`, `failed` or `skipped` for each test of a run."""
    found = {}
    for log in sorted(directory.glob("*.log")):
        for told in re.finditer(suite.told, log.read_text(errors="replace"), re.M):
            part = told.groupdict()
            how = "skipped" if part.get("skip") else _WORDS.get(part["how"], "failed")
            found[f"{log.stem}.{part['name']}" if "skip" in part else part["name"]] = how
    report = directory / "report.xml"
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        kinds = {child.tag for child in case}
        name = f"{case.get('classname', '')} {case.get('name', '')}"
        found[name] = "skipped" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"
    if not found:
        raise SystemExit(f"suites: {suite.name} told nothing: {(directory / 'output').read_text()[-300:]}")
    return found


def _run(frame: Sequence[str], suite: Suite, source: Path, directory: Path) -> tuple[dict[str, str], float]:
    directory.mkdir()
    began = time.monotonic()
    text = f'S={shlex.quote(str(source))} O="$PWD" TMPDIR="${{TMPDIR:-/tmp}}"; export S O TMPDIR\n{suite.line}'
    with (directory / "output").open("w") as log:
        words = [*frame, "bash", "-c", text]
        subprocess.run(words, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=MOST_S)
    return results(suite, directory), time.monotonic() - began


def compare(suite: Suite, sandboxd: str, *, keep: bool = False) -> str:
    """Return the section of a suite."""
    source = _source(suite)
    base = Path(tempfile.mkdtemp(prefix="suites-", dir="/var/tmp"))
    frame = ["bwrap", "--ro-bind", "/", "/", "--bind", str(base), str(base), "--dev", "/dev", "--proc", "/proc",
             "--tmpfs", "/tmp", "--die-with-parent"]  # fmt: skip
    try:
        bare, bare_s = _run(frame, suite, source, base / "bare")
        inside, inside_s = _run([sandboxd, "run", "--"], suite, source, base / "inside")
    finally:
        if not keep:
            shutil.rmtree(base, ignore_errors=True)
    version = _version(suite)
    made = re.match(r"(?:\d+:)?([\d.]+)", (source / ".made").read_text()) if suite.make else None
    version += f" (tests of {made[1]})" if made and made[1] not in version else ""
    rows = [f"| {how} | {bare_count} | {inside_count} |" for how in ("passed", "failed", "skipped")
            for bare_count, inside_count in [[list(one.values()).count(how) for one in (bare, inside)]]]  # fmt: skip
    differ = sorted(name for name, how in bare.items() if how == "passed" and inside.get(name) != "passed")
    classes = Counter((name.split()[-1].rpartition(".")[0] or name, inside.get(name, "not run")) for name in differ)
    listed = "\n".join(f"- `{name}`: {count} {how}" for (name, how), count in sorted(classes.items())) or "None."
    system = f"Linux {platform.release().split('-')[0]}, {'root' if os.getuid() == 0 else 'an ordinary user'}"
    return "\n".join((
        f"## {suite.name}", "",
        f"{version}, {system}; run time inside ÷ bare: {inside_s / bare_s:.2f}.", "",
        "| | bare | inside |", "| --- | --- | --- |", *rows, "",
        f"Tests that differ: {len(differ)}", "", listed, "", *([suite.why, ""] if suite.why else []),
    ))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare test suites bare and inside.")
    parser.add_argument("suites", nargs="*", choices=[[], *(suite.name for suite in SUITES)], help="all by default")
    parser.add_argument("--keep", action="store_true", help="keep the directories of the runs below /var/tmp")
    parser.add_argument("--print", action="store_true", help="print the sections, and leave the page as it is")
    given = parser.parse_args()
    sandboxd = str(Path(sys.executable).parent / "sandboxd")
    old = PAGE.read_text().split("\n## ")
    sections = {text.partition("\n")[0]: f"## {text.strip()}\n" for text in old[1:]}
    for suite in SUITES:
        if not suite.root and os.getuid() == 0:
            print(f"suites: {suite.name} is left out, since its programs refuse root", file=sys.stderr)
        elif not given.suites or suite.name in given.suites:
            sections[suite.name] = compare(suite, sandboxd, keep=given.keep)
            if given.print:
                print(sections[suite.name], flush=True)
            else:
                PAGE.write_text(HEAD + "\n".join(sections[one.name] for one in SUITES if one.name in sections))


if __name__ == "__main__":
    main()
