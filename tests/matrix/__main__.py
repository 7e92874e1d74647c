"""`./dev matrix`: tries all cases in sandboxd, as root and as an ordinary user, and in other runtimes.

Needs root: it makes a network namespace with its own names and addresses, and an ordinary account."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from matrix.cases_of import Case, read_cases
from matrix.far import far_network
from matrix.place import HOSTS, Listeners, end_all, listening
from matrix.report import Column, dumped, merged, page, summary
from matrix.runtimes import RUNTIMES, NotInstalled, bare, subject_of
from matrix.trial import FAIL, PASS, Result, Trial
from support.users import CHECKOUT, account


def main() -> int:
    options = _parser().parse_args()
    if os.geteuid() != 0:
        print(
            "./dev matrix needs root, for a network of its own and a second account: sudo ./dev matrix", file=sys.stderr
        )
        return 2
    cases = [case for case in read_cases() if _is_wanted(case, options.case)]
    if options.share:
        number, of, results = options.share
        Path(results).write_text(dumped(_share(cases[int(number) :: int(of)], options.only, options.peers)))
        return 0
    account("user")  # is made once, not by several shares at once
    columns = _all_shares(cases, min(options.jobs, -(-len(cases) // 10)))
    print(summary(columns))
    if options.write:
        (CHECKOUT / "docs" / "comparison.md").write_text(page(columns))
    ours = [column for column in columns if column.runtime == "sandboxd"]
    return 1 if not ours or any(result.outcome == FAIL for column in ours for result in column.results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev matrix", description="try attacks and ordinary work in sandboxes")
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="where other runtimes are installed (docs/comparison.md)"
    )
    parser.add_argument("--only", action="append", metavar="RUNTIME", help="this runtime alone; can be repeated")
    parser.add_argument(
        "--case", action="append", metavar="TEXT", help="cases whose group or name contains this; can be repeated"
    )
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), metavar="N", help="cases at once")
    parser.add_argument("--write", action="store_true", help="write docs/comparison.md")
    parser.add_argument("--share", nargs=3, help=argparse.SUPPRESS)
    return parser


def _all_shares(cases: list[Case], number: int) -> list[Column]:
    """The results of as many processes, each with its own part of the cases, directories and network."""
    frame = ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, "-m", "matrix", *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="sandboxd-matrix-") as folder:
        files = [Path(folder, str(share)) for share in range(number)]
        shares = [
            subprocess.Popen([*frame, "--share", str(share), str(number), str(file)])
            for share, file in enumerate(files)
        ]
        if any([share.wait() for share in shares]):  # all of them, before the first failure is told
            raise SystemExit("a share of the matrix failed; its words are above")
        return merged([file.read_text() for file in files], cases)


def _share(cases: list[Case], only: list[str] | None, peers: Path | None) -> list[Column]:
    base = Path(tempfile.mkdtemp(prefix="sandboxd-matrix-", dir="/var/tmp"))
    base.chmod(0o755)
    try:
        _names(base)
        with far_network() as far, listening(base, far) as listeners:
            os.chown(listeners.unix, account("user").pw_uid, -1)
            return [*_columns(base, listeners, cases, only, peers)]
    finally:
        end_all(str(base))  # proxies that a runtime left when it had to be ended
        shutil.rmtree(base, ignore_errors=True)


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
        with subject_of(kind, base, peers) as subject:
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
                        began = time.monotonic()
                        results = [_told(trial.result(case, runtime), f"{name} ({kind})") for case in fit]
                        listeners.check()
                        seconds = time.monotonic() - began
                        print(f"{name} {runtime.version} as {kind}: {len(fit)} cases, {seconds:.0f} s", file=sys.stderr)
                        yield Column(name, runtime.version, kind, (*results, *unfit))
                except NotInstalled as error:
                    print(f"{name}: {error}", file=sys.stderr)


def _told(result: Result, name: str) -> Result:
    if result.outcome == FAIL:
        case = result.case
        print(f"{name}: {case.kind} {case.group} / {case.name}: {result.reason}", file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
