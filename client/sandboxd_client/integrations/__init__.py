"""Shell tools in the sandbox for frameworks of agents: a module for each, and `Shell`, which they share.

A module imports its framework; where that is missing, the error is one line with the command that installs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxd_client.integrations.shell import Ran, Shell

__all__ = ["MissingExtra", "Ran", "Shell"]


class MissingExtra(ImportError):
    """A framework that is not installed."""


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Raise MissingExtra, with the command that installs it, for a failed import."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{error}: install it with: pip install 'sandboxd-client[{name}]'") from None


def __getattr__(name: str) -> object:
    if name not in ("Ran", "Shell"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sandboxd_client.integrations import shell

    return getattr(shell, name)
