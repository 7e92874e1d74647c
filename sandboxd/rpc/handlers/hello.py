"""`hello`: who talks to whom."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandboxd import __version__
from sandboxd.errors import CallerError
from sandboxd_client.wire.messages.hello import PROTOCOL, HelloParams, HelloResult

if TYPE_CHECKING:
    from sandboxd.rpc.call import Call

PROTOCOL_OLDEST = 1


async def hello(call: Call, params: HelloParams) -> HelloResult:
    """A newer client is told what we speak and may adapt; one that is too old is refused."""
    if params.protocol < PROTOCOL_OLDEST:
        raise CallerError(
            "wrong_version",
            f"the client speaks protocol {params.protocol}, this daemon {PROTOCOL_OLDEST} to {PROTOCOL}",
            hint="update sandboxd-client",
            data={"protocol": PROTOCOL, "protocol_oldest": PROTOCOL_OLDEST},
        )
    return HelloResult("sandboxd", __version__, PROTOCOL, PROTOCOL_OLDEST, os.getpid(), tuple(call.methods))
