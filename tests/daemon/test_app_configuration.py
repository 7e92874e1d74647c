"""What a daemon is told."""

from __future__ import annotations

import pytest

from sandboxd.app_configuration import parse_pins
from sandboxd.errors import CallerError


def test_pins() -> None:
    pins = parse_pins(["a.test=127.0.0.1", "b.test=::1", " a.test=127.0.0.2", "", " "])
    assert pins == {"a.test": ["127.0.0.1", "127.0.0.2"], "b.test": ["::1"]}
    with pytest.raises(CallerError):
        parse_pins(["x"])
