"""`./dev platforms`: other distributions, versions of Python and kernels, by what can be had without another machine.

Needs root: user lands are made with debootstrap and entered in namespaces of their own, kernels boot in QEMU."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
from pathlib import Path

from platforms.rows import ROWS, Bench, Row, Seen
from platforms.userlands import NotAvailable
from support.users import CHECKOUT

PAGE = CHECKOUT / "docs" / "platforms.md"
BEGIN, END = "<!-- ./dev platforms --write -->\n", "<!-- end -->\n"
HEAD = "| System | How | Seen | Date | Repeat |\n| --- | --- | --- | --- | --- |\n"


def main() -> int:
    """Try the rows that are named, or all."""
    parser = argparse.ArgumentParser(prog="./dev platforms", description="try other systems")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows: {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--write", action="store_true", help="write the rows into docs/platforms.md")
    parser.add_argument("--unsigned", action="store_true", help="take Ubuntu's packages without its keyring")
    parser.add_argument(
        "--cache", type=Path, default=Path(sys.prefix) / "platforms", metavar="DIR", help="where systems are kept"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - {row.name for row in ROWS}:
        parser.error(f"there is no row {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        print("./dev platforms needs root: sudo ./dev platforms", file=sys.stderr)
        return 2
    options.cache.mkdir(parents=True, exist_ok=True)
    options.cache.chmod(0o755)
    bench, failed = Bench(options.cache, options.unsigned), False
    for row in ROWS:
        if options.names and row.name not in options.names:
            continue
        how, seen = _try(row, bench)
        print(f"{row.name:16} {how:9} {seen.text}", *seen.failures, sep="\n    ", flush=True)
        failed |= bool(seen.failures)
        if options.write:
            PAGE.write_text(with_line(PAGE.read_text(), row, how, seen))
    return 1 if failed else 0


def _try(row: Row, bench: Bench) -> tuple[str, Seen]:
    try:
        return row.how, row.look(bench)
    except NotAvailable as error:
        return "not run", Seen(str(error))


def with_line(page: str, row: Row, how: str, seen: Seen) -> str:
    """Return the page with a new line for a row; the lines of others stay."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {found[1]: line for line in table.splitlines() if (found := re.search(r"`(\S+)` \|$", line))}
    failures = f"; fails: {len(seen.failures)}" if seen.failures else ""
    text = (seen.text + failures).replace("|", "/")
    lines[row.name] = f"| {row.system} | {how} | {text} | {datetime.date.today()} | `{row.name}` |"
    known = [lines[one.name] for one in ROWS if one.name in lines]
    return before + BEGIN + HEAD + "\n".join(known) + "\n" + END + after


if __name__ == "__main__":
    sys.exit(main())
