"""A client whose sandboxes run below strace(1), which makes system calls fail. `python fault_driver.py`: one JSON line
asks for a run, one answers. `test_faults.py` runs it as the person."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from sandboxd_client import Client, SandboxdError

LIMIT_S = 60.0


def run(box: Client, command: str, strace: list[str]) -> dict[str, Any]:
    launch = box.wrap(argv=["/bin/bash", "-c", command])
    environment = {**os.environ, **launch.env.set}
    for name in launch.env.unset:
        environment.pop(name, None)
    done = subprocess.run(
        [*strace, *launch.argv], cwd=launch.cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, errors="replace", timeout=LIMIT_S,
    )  # fmt: skip
    outcome = box.wrap_outcome(launch.wrap_id)
    told = done.stderr + (outcome.reason or "")
    return {"status": done.returncode, "output": done.stdout, "told": told, "started": outcome.started}


def answer(box: Client, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return run(box, asked["command"], asked["strace"])
    except SandboxdError as error:
        told = getattr(error, "slug", ""), getattr(error, "message", str(error)), getattr(error, "hint", "")
        return {"refused": told}
    except subprocess.TimeoutExpired:
        return {"hung": True}


if __name__ == "__main__":
    for line in sys.stdin:
        with Client(timeout=LIMIT_S) as client:
            print(json.dumps(answer(client, json.loads(line))), flush=True)
