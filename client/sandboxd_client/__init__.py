"""Client of sandboxd, the per-user sandbox daemon. Standard library only."""

from __future__ import annotations

__version__ = "0.1.0"
