"""`./dev matrix`: tries all cases in sandboxd, as root and as an ordinary user, and in other runtimes.

Needs root: it makes a network namespace with its own names and addresses, and an ordinary account."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matrix.cases_of import Case, read_cases
from matrix.far import far_network
from matrix.place import HOSTS, Listeners, Place, listening
from matrix.report import Column, page, summary
from matrix.runtimes import RUNTIMES, NotInstalled, Subject, bare
from matrix.trial import FAIL, PASS, Result, Trial
from support.users import CHECKOUT, account, code_for, make_identity

_INSIDE = "SANDBOXD_MATRIX_NAMESPACES"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev matrix", description="try attacks and ordinary work in sandboxes")
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="where other runtimes are installed (docs/comparison.md)"
    )
    parser.add_argument("--only", action="append", metavar="RUNTIME", help="this runtime alone; can be repeated")
    parser.add_argument(
        "--case", action="append", metavar="TEXT", help="cases whose group or name contains this; can be repeated"
    )
    parser.add_argument("--write", action="store_true", help="write docs/comparison.md")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print(
            "./dev matrix needs root, for a network of its own and a second account: sudo ./dev matrix", file=sys.stderr
        )
        return 2
    if _INSIDE not in os.environ:
        words = [
            "unshare",
            "--net",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-m",
            "matrix",
            *sys.argv[1:],
        ]
        os.execvpe("unshare", words, {**os.environ, _INSIDE: "1"})
    wanted = [case for case in read_cases() if _is_wanted(case, options.case)]
    base = Path(tempfile.mkdtemp(prefix="sandboxd-matrix-", dir="/var/tmp"))
    base.chmod(0o755)
    try:
        _names(base)
        with far_network() as far, listening(base, far) as listeners:
            os.chown(listeners.unix, account("user").pw_uid, -1)
            columns = [*_columns(base, listeners, wanted, options.only, options.peers)]
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(summary(columns))
    if options.write:
        (CHECKOUT / "docs" / "comparison.md").write_text(page(columns))
    ours = [column for column in columns if column.runtime == "sandboxd"]
    return 1 if any(result.outcome == FAIL for column in ours for result in column.results) else 0


def _is_wanted(case: Case, texts: list[str] | None) -> bool:
    return not texts or any(text in f"{case.group} / {case.name}" for text in texts)


def _names(base: Path) -> None:
    """A hosts file, in the mount namespace of this process alone."""
    hosts = base / "hosts"
    hosts.write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(f"{to} {name}\n" for name, to in HOSTS.items()))
    hosts.chmod(0o644)
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)


def _columns(
    base: Path, listeners: Listeners, cases: list[Case], only: list[str] | None, peers: Path | None
) -> Iterator[Column]:
    """The results of each runtime. Runtimes other than sandboxd run as the ordinary user, as they recommend."""
    for kind in ("user", "root"):
        with _subject(kind, base, peers) as subject:
            trial = Trial(subject, listeners)
            controls = [trial.control(case, bare(subject)) for case in cases]
            listeners.check()
            fit = [result.case for result in controls if result.outcome == PASS]
            unfit = [result for result in controls if result.outcome != PASS]
            for name, setting_up in RUNTIMES.items():
                if (only and name not in only) or (kind == "root" and name != "sandboxd"):
                    continue
                try:
                    with setting_up(subject) as runtime:
                        print(f"{name} {runtime.version} as {kind}: {len(fit)} cases", file=sys.stderr, flush=True)
                        results = [_told(trial.result(case, runtime), name) for case in fit]
                        listeners.check()
                        yield Column(name, runtime.version, kind, (*results, *unfit))
                except NotInstalled as error:
                    print(f"{name}: {error}", file=sys.stderr)


def _told(result: Result, name: str) -> Result:
    if result.outcome == FAIL:
        case = result.case
        print(f"  {name}: {case.kind} {case.group} / {case.name}: {result.reason}", file=sys.stderr, flush=True)
    return result


@contextmanager
def _subject(kind: str, base: Path, peers: Path | None) -> Iterator[Subject]:
    code = code_for(kind, base / f"code-{kind}")
    person = account(kind)
    identity = make_identity(kind, base / kind, code)
    (base / kind / "work").rmdir()
    place = Place(base / kind, person.pw_uid, person.pw_gid)
    place.reset()
    yield Subject(identity, place, peers)


if __name__ == "__main__":
    sys.exit(main())
