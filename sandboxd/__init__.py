"""A per-user daemon that runs shell commands in an operating-system sandbox."""

import os
import sys

__version__ = "0.1.0"

PACKAGE = os.path.dirname(os.path.abspath(__file__))

# A wheel carries the client there. It comes before a `sandboxd-client` of another version in the same environment.
_CARRIED = os.path.join(PACKAGE, "vendor", "client")
if os.path.isdir(_CARRIED):
    sys.path.insert(0, _CARRIED)
