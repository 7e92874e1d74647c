"""The fixed rules of a profile: commented files of the profile language."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def read_rule_file(name: str) -> str:
    """Return the text of `sbpl/NAME.sbpl`."""
    return files(__package__).joinpath("sbpl", f"{name}.sbpl").read_text(encoding="utf-8")
