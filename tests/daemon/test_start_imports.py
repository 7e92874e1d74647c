"""Libraries that a daemon imports when it needs them, and not while clients wait for its socket."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandboxd.app.loaded_code import own_code

_LATE = ("pydantic", "pydantic_core", "sandboxd.settings.schema", "tree_sitter", "rich", "sandboxd_client.client")
_RUN = """
import sys
from sandboxd.cli.control.serve import main
status = main(("--socket", sys.argv[1], "--idle-exit", "0.01"))
print(status, *(name for name in sys.argv[2:] if name in sys.modules))
"""


def _imported_by_a_start(base: Path, settings: dict[str, Any] | None) -> list[str]:
    """Return the exit status of a daemon that serves for a moment, and what it imported of `_LATE`."""
    (base / "home/.claude").mkdir(parents=True)
    (base / "run").mkdir(mode=0o700)
    if settings is not None:
        (base / "home/.claude/settings.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-I", "-c", _RUN, str(base / "run/sandboxd.sock"), *_LATE],
        env={"HOME": str(base / "home"), "XDG_RUNTIME_DIR": str(base / "run"), "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_start_imports_no_library_that_it_does_not_need(tmp_path: Path) -> None:
    assert _imported_by_a_start(tmp_path, None) == ["0"]


def test_a_start_with_settings_imports_their_schema(tmp_path: Path) -> None:
    found = _imported_by_a_start(tmp_path, {"permissions": {"deny": ["Read(./x)"]}})
    assert found[:4] == ["0", "pydantic", "pydantic_core", "sandboxd.settings.schema"]


@pytest.mark.parametrize("name", ["pydantic", "tree_sitter"])
def test_what_is_imported_later_is_protected_from_the_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert str(tmp_path / name) in own_code()
    (tmp_path / name / "__init__.py").unlink()
    (tmp_path / name).rmdir()
    assert str(tmp_path / name) not in own_code()
