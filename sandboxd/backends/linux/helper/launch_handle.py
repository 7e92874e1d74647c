"""The hold on one launch by its ticket: whoever has it need not know whether somebody has claimed it yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxd.backends.linux.helper.bridge import Bridge


class Handle:
    """See `LaunchHandle`."""

    def __init__(self, bridge: Bridge, ticket: str) -> None:
        self._bridge = bridge
        self._ticket = ticket

    def cancel(self) -> None:
        self._bridge.forget(self._ticket)

    def terminate(self) -> None:
        link = self._bridge.link(self._ticket)
        if link is not None:
            link.terminate()

    def kill(self) -> None:
        link = self._bridge.link(self._ticket)
        if link is not None:
            link.kill()
