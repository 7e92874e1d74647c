"""The choice of tests for a change, and its table."""

from __future__ import annotations

from pathlib import Path

from selection import EVERYTHING, QUICK, ROOT, TABLE, choose, has_tests


def test_rows_name_tests_and_code_that_exist() -> None:
    named = {one for row in TABLE.values() for one in row} | set(QUICK)
    assert [one for one in sorted(named) if not (ROOT / one).exists()] == []
    assert [one for one in TABLE if not list(ROOT.glob(f"{one}*"))] == []
    assert [one for one in named if not one.endswith(".py") and not has_tests(Path(one))] == []


def test_each_package_has_a_row() -> None:
    packages = {path.parent for path in (ROOT / "sandboxd").glob("*/__init__.py")}
    assert packages and {f"sandboxd/{path.name}/" for path in packages} <= TABLE.keys()


def test_what_is_chosen() -> None:
    rows: dict[tuple[str, ...], tuple[str, ...]] = {
        ("sandboxd/policy/model.py",): ("tests/policy", "tests/peers", "tests/test_layers.py"),
        ("sandboxd/backends/macos/planner.py",): ("tests/macos", "tests/backends/macos"),
        ("sandboxd/proxy/dial.py", "docs/network.md"): ("tests/proxy", "tests/test_readme.py"),
        ("tests/proxy/test_dial.py",): ("tests/proxy/test_dial.py",),
        ("tests/helper/conftest.py",): ("tests/helper",),
        ("tests/helper/fuzz/kernel.c", "tests/matrix/report.py"): ("tests/helper", "tests/test_matrix.py"),
        ("vendor/seccomp/json.c", "sandboxd/children.py"): ("tests/cli/execution", "tests/test_children.py"),
    }
    for changed, expected in rows.items():
        chosen = set(choose(changed))
        assert chosen >= set(expected), (changed, chosen)
        assert "tests/enforce/test_absent_names.py" not in chosen, changed
    for unknown in ("pyproject.toml", "tests/conftest.py", "tests/support/users.py"):
        assert choose(["sandboxd/policy/model.py", unknown]) == EVERYTHING
    assert choose([]) == QUICK


def test_nothing_is_named_twice() -> None:
    for row in TABLE:
        chosen = choose([f"{row}x" if row.endswith("/") else row])
        folders = [Path(one) for one in chosen]
        assert len(set(folders)) == len(folders)
        assert not any(one != other and one.is_relative_to(other) for one in folders for other in folders), row
