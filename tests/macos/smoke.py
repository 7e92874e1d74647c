"""./dev mac-smoke: tries the macOS back end for real and writes a report to send back. See README.md beside this."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
for _place in (HERE.parent, HERE.parents[1], HERE.parents[1] / "client"):
    sys.path.insert(0, str(_place))


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev mac-smoke", description=__doc__)
    parser.add_argument("--report", default="mac-smoke-report.txt", help="where the report goes (%(default)s)")
    parser.add_argument("--list", action="store_true", help="say what would be tried")
    parser.add_argument("--ladder", action="store_true", help="only steps 2 to 6, without a daemon")
    arguments = parser.parse_args()

    from sandboxd.app.macos import MacosDependencies
    from support.mac_ladder import sandbox_exec, steps
    from support.mac_smoke import Outcome, facts, line_of, report, try_groups, write_tools
    from support.mac_smoke_cases import GROUPS
    from support.seatbelt import every_switch

    if arguments.list:
        for group in GROUPS:
            for case in group.cases:
                print(f"{group.name}: {case.name}")
        return 0
    if platform.system() != "Darwin":
        print("dev: this needs macOS; the same cases run with stand-ins in the tests", file=sys.stderr)
        return 2
    file = Path(arguments.report)
    file.write_text("".join(f"{name}: {value}\n" for name, value in facts().items()))  # what a crash would leave
    with tempfile.TemporaryDirectory(prefix="sandboxd-smoke-") as made:
        looked = steps(sandbox_exec, Path(made), every_switch())
        file.write_text(file.read_text() + looked)
        print(looked, flush=True)
        if arguments.ladder:
            return 0
        tools = write_tools(Path(made) / "bin")
        results = asyncio.run(
            try_groups(
                GROUPS, MacosDependencies(), real=True, tools=tools, tell=lambda one: print(line_of(one), flush=True)
            )
        )
    file.write_text(report(results, facts()) + looked)
    print(f"\nthe report is in {arguments.report}; please look through it and send it back")
    return int(any(one.outcome is Outcome.FAILS for one in results))


if __name__ == "__main__":
    sys.exit(main())
