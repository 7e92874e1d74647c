"""Generated policies and trees: what real bubblewrap enforces is what a naive model says, operation for
operation.

`SANDBOXD_FILE_CASES` sets how many (seed 0 upwards; 60 by default, 2,000 for the full run).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.file_model import LINK, Case, Model, follow, parent, random_case
from support.users import Identity

CASES = int(os.environ.get("SANDBOXD_FILE_CASES", "60"))
CHUNK = 100
RUNNER = Path(__file__).resolve().parents[1] / "support" / "file_runner.py"
CLOSED = {"EACCES", "ENOENT", "EROFS"}
"""ENOENT: below a denied directory with a re-opening in it, other names do not exist."""


def probes_of(model: Model) -> list[tuple[str, str]]:
    reachable = [path for path, kind in model.tree.items() if not kind.startswith(LINK) or _probe_link(model, path)]
    probes = [(verb, path) for path in ["", *reachable] for verb in ("read", "write")]
    probes += [("create", path) for path in model.absent_denied()]
    probes += [("move", path) for path, kind in model.tree.items() if not kind.startswith(LINK)]
    return probes


def _probe_link(model: Model, path: str) -> bool:
    """Links that stand where they can be seen, and that lead to something in the tree."""
    real = follow(model.tree, path)
    exists = real is not None and (real == "" or real in model.tree)
    return exists and model.readable(parent(path)) and _seen(model, path)


def _seen(model: Model, path: str) -> bool:
    above = parent(path)
    return not above or (model.readable(above) and _seen(model, above))


def wrong(model: Model, verb: str, path: str, result: str) -> str | None:
    """Why a result is not what the model says."""
    real = follow(model.tree, path) or ""
    if verb == "read":
        return None if (result == "ok") is model.readable(real) and (result == "ok" or result in CLOSED) else "read"
    if verb == "write":
        return None if (result == "ok") is model.writable(real) and (result == "ok" or result in CLOSED) else "write"
    if verb == "create":
        return None if result != "ok" else "an absent denied path could be created"
    if result == "ok":
        return "a guarded path could be moved" if model.pinned(path) or not model.writable(parent(path)) else None
    if any(kind.startswith(LINK) and _is_at(path, at) for at, kind in model.tree.items()):
        return None  # it may be a link that a deny goes through, and that is kept from being moved as well
    named = {*model.allow_write, *model.allow_read, *model.deny_read, *model.deny_write, model.cwd, model.project}
    free = model.writable(parent(path)) and not model.pinned(path)
    return "a free path could not be moved" if free and not any(_is_at(path, one) for one in named) else None


def _is_at(path: str, other: str) -> bool:
    return path == other or other.startswith(path + "/")


def compare(case: Case, answer: dict[str, Any]) -> list[str]:
    model = Model(case)
    if "error" in answer:
        if answer["error"] == "cwd_denied" and model.refused:
            return []
        return [f"{answer['error']}: {answer['message']}"]
    if model.refused:
        return ["ran although the working directory is denied"]
    found = [] if answer["unchanged"] else ["the tree has changed"]
    for (verb, path), result, said in zip(probes_of(model), answer["results"], answer["decisions"], strict=True):
        if said is not None and said is not (result == "ok"):
            found.append(f"{verb} {path!r}: {result}, and explain says {'allowed' if said else 'denied'}")
        reason = wrong(model, verb, path, result)
        if reason is not None:
            found.append(f"{verb} {path!r}: {result} ({reason})")
    return found


def _mounts(answer: dict[str, Any]) -> str:
    dull = ("--perms", "--size", "4096", "0555", "1555")
    return " ".join(option for option in answer.get("options", []) if option not in dull)


@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_generated_policies_mean_what_the_model_says(identity: Identity, first: int) -> None:
    script = identity.write(identity.base / "file_runner.py", RUNNER.read_text())
    process = identity.popen(
        identity.python(str(script), str(identity.base / "work")),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    problems = []
    with process:
        for seed in range(first, min(first + CHUNK, CASES)):
            case = random_case(seed)
            process.stdin.write(json.dumps({**case.as_json(), "probes": probes_of(Model(case))}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, f"the runner died at case {seed}"
            answer = json.loads(line)
            if found := compare(case, answer):
                problems.append(f"seed {seed}: {found}\n  {case.as_json()}\n  {_mounts(answer)}")
        process.stdin.close()
    assert not problems, "\n".join(problems[:5]) + f"\n{len(problems)} cases"
