"""See the package."""

import sys
import time

from . import ATTACKS, CLIENTS

(ATTACKS | CLIENTS)[sys.argv[1]]()
print("flooding", flush=True)
time.sleep(3600)
