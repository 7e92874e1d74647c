"""See the package."""

import sys
import time

from . import ATTACKS, CLIENTS
from .tools import BEGIN

for name in sys.argv[1:]:
    if name in ATTACKS | CLIENTS:
        (ATTACKS | CLIENTS)[name]()
print("flooding", flush=True)
BEGIN.set()
time.sleep(3600)
