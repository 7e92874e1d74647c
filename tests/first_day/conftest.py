"""The wheels of this checkout, and people who have installed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.installations import Wheelhouse


@pytest.fixture(scope="session")
def wheelhouse(world_directory: Path) -> Wheelhouse:
    return Wheelhouse.made(world_directory / "wheelhouse")
