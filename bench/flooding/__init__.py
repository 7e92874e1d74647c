"""A command that floods the daemon for ever: `python3 -m flooding ATTACK…`, in the directory above.

It has no network permission at all: its servers are its own, asked through the proxy, and what it asks for is refused.
The attacks of `CLIENTS` are a client's, which runs outside. Prints `flooding` once it has begun.
"""

from . import clients, others, requests, tunnels
from .tools import ATTACKS, CLIENTS, COMPANIONS, CONTROL, options, settings

__all__ = [
    "ATTACKS", "CLIENTS", "COMPANIONS", "CONTROL", "clients", "options", "others", "requests", "settings", "tunnels",
]  # fmt: skip
