"""Choice of tests: `./dev test --quick` and `./dev test --changed [REVISION]`.

    selection.py --quick | --changed [REVISION]     prints the arguments of pytest, one a line

A table says which tests try which code. It is written by hand: tests of real sandboxes start processes, so imports
do not tell. What no row knows selects everything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
EVERYTHING: Final = ("tests",)


def _enforce(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/enforce/test_{name}.py" for name in names)


PURE: Final = ("tests/policy", "tests/plan", "tests/settings", "tests/wire", "tests/peers/test_peer_policies.py")
QUICK: Final = (
    "tests/test_layers.py",
    "tests/test_prose.py",
    "tests/test_quantities.py",
    *PURE,
    "tests/handover",
    "tests/rpc/test_powers.py",
    *_enforce("commands", "conformance_processes", "decision_table", "links", "removed_variables"),
)
"""Of each layer something, in less than 3 minutes."""
FILES: Final = _enforce(
    "absent_names",
    "closed_afterwards",
    "conformance_files",
    "files",
    "files_git",
    "links",
    "mounts_below",
    "protected_home",
    "swapped_directories",
    "tmp",
)
NETWORK: Final = _enforce(
    "capture", "domain_cases", "network_cases", "session_localhost", "unix_sockets", "other_proxies"
)
RUNS: Final = _enforce("commands", "ended_commands", "lifecycle", "limits", "prepared", "relayed_streams", "told")
FRONT: Final = (
    "tests/helper/test_front.py",
    "tests/helper/test_build.py",
    "tests/cli/execution",
    "tests/cli/test_signals.py",
    "tests/cli/test_terminal.py",
    "tests/cli/test_told.py",
    *_enforce("own_programs"),
)

TABLE: Final[dict[str, tuple[str, ...]]] = {
    "sandboxd/policy/": (*PURE, "tests/peers", *_enforce("decision_table", "rule_meaning", "settings_cases")),
    "sandboxd/plan/": (*PURE, *FILES),
    "sandboxd/settings/": ("tests/settings", "tests/policy", *_enforce("fresh_settings", "planted_settings", "trust")),
    "sandboxd/profiles/": ("tests/settings", *_enforce("profiles")),
    "sandboxd/backends/macos/": ("tests/macos", "tests/backends/macos"),
    "sandboxd/backends/": ("tests/backends", "tests/helper", *FILES, *NETWORK, *RUNS),
    **dict.fromkeys(
        (f"vendor/seccomp/{name}" for name in ("front", "asked", "foreground", "json", "variables")), FRONT
    ),
    "vendor/": ("tests/helper", *FILES, *NETWORK, *RUNS),
    "sandboxd/proxy/": ("tests/proxy", *NETWORK, *_enforce("credentials", "requests_seen")),
    "sandboxd/host/git/": (
        "tests/host",
        *_enforce("files_git", "git_planted", "git_moved", "git_reached", "git_submodules"),
    ),
    "sandboxd/host/": ("tests/host", *FILES),
    "sandboxd/handover/": ("tests/handover", "tests/daemon/restart", *_enforce("restart")),
    "sandboxd/daemon/": ("tests/daemon", *_enforce("restart", "nothing_left", "trust")),
    "sandboxd/runtime/": (
        "tests/runtime",
        *RUNS,
        *_enforce("violations", "permission_path", "prepared", "nothing_left"),
    ),
    "sandboxd/rpc/": ("tests/rpc", "tests/wire", *_enforce("agent_role")),
    "sandboxd/app/": ("tests/daemon", "tests/rpc", *RUNS, *_enforce("hosts_that_resist", "restart")),
    "sandboxd/cli/": ("tests/cli", "tests/first_day", *_enforce("told", "error_hints", "hints_work")),
    "sandboxd/screens/": ("tests/screens", "tests/cli", "tests/web"),
    "sandboxd/web/": ("tests/web", "tests/screens", *_enforce("web_page")),
    "sandboxd/children.py": ("tests/test_children.py",),
    "sandboxd/": ("tests/test_layers.py", "tests/test_prose.py", *_enforce("own_programs", "everything_opened")),
    "client/node/": _enforce("node_client"),
    "client/": ("tests/client", "tests/wire", *RUNS, *_enforce("subprocess_names", "nothing_left")),
    "scripts/": ("tests/test_packages.py", *_enforce("own_programs")),
    "bench/": ("tests/test_bench.py",),
    "docs/": (
        "tests/test_prose.py",
        "tests/test_readme.py",
        "tests/test_demo.py",
        "tests/first_day",
        "tests/rpc/test_rpc_page.py",
    ),
    "README.md": ("tests/test_readme.py", "tests/test_prose.py"),
    "CHANGELOG.md": ("tests/test_prose.py",),
    "dev": ("tests/test_dev.py",),
}
"""Tests by the beginning of the path of a changed file. The longest row counts, and those of `ALL_ROWS`."""
ALL_ROWS: Final = ("sandboxd/",)


def choose(changed: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments of pytest for changed files, relative to the checkout."""
    chosen: dict[str, None] = dict.fromkeys(QUICK)
    for path in changed:
        if path.startswith("tests/"):
            found = _of_test(path)
        else:
            rows = sorted((row for row in TABLE if path.startswith(row)), key=len)
            found = tuple(one for row in {*rows[-1:], *(row for row in rows if row in ALL_ROWS)} for one in TABLE[row])
        if not found:
            return EVERYTHING
        chosen |= dict.fromkeys(found)
    return tuple(one for one in chosen if not any(one != other and one.startswith(f"{other}/") for other in chosen))


def _of_test(path: str) -> tuple[str, ...]:
    """Return a test itself, all of a folder for its other files, and nothing for what all tests share."""
    if not (ROOT / path).exists():  # removed
        return ("tests/test_layers.py",)
    if Path(path).name.startswith("test_") and path.endswith(".py"):
        return (path,)
    folder = Path(path).parent
    if folder.parts[:2] == ("tests", "support"):
        return ()
    while not has_tests(folder):  # their own programs: tests/test_matrix.py is about tests/matrix
        about = folder.with_name(f"test_{folder.name}.py")
        if (ROOT / about).exists():
            return (str(about),)
        folder = folder.parent
    return () if folder == Path("tests") else (str(folder),)


def has_tests(folder: Path) -> bool:
    return any((ROOT / folder).rglob("test_*.py"))


def changed_since(revision: str) -> list[str]:
    """Return files that differ from a revision, new ones too. Raises CalledProcessError."""
    lines: list[str] = []
    for words in (("diff", "--name-only", revision, "--"), ("ls-files", "--others", "--exclude-standard")):
        done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
        lines += done.stdout.splitlines()
    return lines


def main(words: list[str]) -> int:
    if words[:1] == ["--quick"]:
        chosen = QUICK
    else:
        try:
            chosen = choose(changed_since(words[1] if len(words) > 1 else "HEAD"))
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"./dev test --changed: {error.stderr.strip()}\n")
            return 2
    print("\n".join(chosen))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
