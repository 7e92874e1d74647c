"""A stand-in for /usr/bin/sandbox-exec(1).

As the real one: options as in its manual, a profile that does not compile is status 65, a profile that cannot be
applied (we are in a sandbox already) status 71, a command that is not there status 71. The profile is compiled by the
evaluator of the tests and kept in the state directory; the programs in `tools.py`, which come first on the command's
PATH, ask it before each thing they do. Other programs run unchecked: this is a stand-in for tests, not a sandbox.
"""

from __future__ import annotations

import getopt
import hashlib
import json
import os
import sys
from pathlib import Path

from support.sbpl import SbplError, compile_profile

USAGE = (
    "Usage: sandbox-exec [options] command [args]\n"
    "Options:\n  -f profile-file\n  -n profile-name\n  -p profile-string\n  -D key=value\n"
)
PROFILE_VARIABLE = "SANDBOX_STUB_PROFILE"
MEMBER_VARIABLE = "SANDBOX_STUB_MEMBER"


def main(state: Path, arguments: list[str]) -> int:
    try:
        options, command = getopt.getopt(arguments, "f:n:p:D:t:")
    except getopt.GetoptError as error:
        sys.stderr.write(f"sandbox-exec: {error}\n{USAGE}")
        return 64
    texts: list[str] = []
    parameters: dict[str, str] = {}
    for option, value in options:
        if option == "-f":
            texts.append(Path(value).read_text())
        elif option == "-p":
            texts.append(value)
        elif option == "-D":
            name, equals, rest = value.partition("=")
            if not equals:
                sys.stderr.write(USAGE)
                return 64
            parameters[name] = rest
        else:
            sys.stderr.write(f"sandbox-exec: {option} is not part of the stand-in\n")
            return 64
    if not command or len(texts) != 1:
        sys.stderr.write(USAGE)
        return 64
    try:
        compile_profile(texts[0], parameters)
    except SbplError as error:
        sys.stderr.write(f"sandbox-exec: <input string>:{error.line}: {error.message}\n")
        return 65
    if any(word in texts[0] for word in _refused(state)):
        sys.stderr.write("sandbox-exec: <input string>: unbound variable\n")
        return 65
    if (state / "nested").exists() or PROFILE_VARIABLE in os.environ:
        sys.stderr.write("sandbox-exec: sandbox_apply: Operation not permitted\n")
        return 71
    kept = json.dumps({"text": texts[0], "parameters": parameters})
    file = state / "profiles" / f"{hashlib.sha256(kept.encode()).hexdigest()[:16]}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(kept)
    environment = {
        **os.environ,
        PROFILE_VARIABLE: str(file),
        MEMBER_VARIABLE: parameters.get("MEMBER", ""),
        "PATH": f"{state / 'tools'}:{os.environ.get('PATH', os.defpath)}",
    }
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(f"sandbox-exec: execvp() of '{command[0]}' failed: {error.strerror}\n")
        return 71


def _refused(state: Path) -> list[str]:
    """Words of the language that the file `refuses` takes away."""
    file = state / "refuses"
    return file.read_text().split("\n") if file.exists() else []


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
