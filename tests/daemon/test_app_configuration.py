"""What a daemon is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.app.configuration import configure, parse_pins
from sandboxd.cli.control.serve import ServeOptions
from sandboxd.errors import CallerError, HostError
from sandboxd.settings.files.trust import OpenedPlaces, TrustStore, opened_file, trust_directory
from sandboxd_client import programs


def test_pins() -> None:
    pins = parse_pins(["a.test=127.0.0.1", "b.test=::1", " a.test=127.0.0.2", "", " "])
    assert pins == {"a.test": ["127.0.0.1", "127.0.0.2"], "b.test": ["::1"]}
    with pytest.raises(CallerError):
        parse_pins(["x"])


def test_a_home_in_which_commands_could_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project has it set for who runs a program there."""
    real, project = tmp_path / "real", tmp_path / "project"
    (project / "home").mkdir(parents=True)
    monkeypatch.setattr(programs, "home_of_the_user", lambda: str(real))
    options = ServeOptions(str(tmp_path / "s"), None, None, ())
    environment = {"HOME": str(project / "home")}
    assert configure(options, dict(environment)).home == str(project / "home")
    record = OpenedPlaces(opened_file(str(real)))
    record.add([str(project)], TrustStore(trust_directory(str(real))))
    with pytest.raises(HostError, match="commands could write") as caught:
        configure(options, dict(environment))
    assert caught.value.slug == "home_opened" and str(real) in caught.value.hint
    record.add([str(real)], TrustStore(trust_directory(str(real))))
    assert configure(options, {"HOME": str(real)}).home == str(real), "that of the user is protected by names"
