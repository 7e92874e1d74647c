"""A per-user daemon that runs shell commands in an operating-system sandbox."""

import os
import sys

__version__ = "0.1.0"

# A wheel carries the client there. It comes before a `sandboxd-client` of another version in the same environment.
_CARRIED = os.path.join(os.path.dirname(__file__), "vendor", "client")
if os.path.isdir(_CARRIED):
    sys.path.insert(0, _CARRIED)
