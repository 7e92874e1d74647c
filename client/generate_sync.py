"""Generator of the blocking client from the asynchronous one.

`./dev generate` writes the modules, `--check` compares them. Only code that waits for the daemon or a process is
written twice: in `aio_connection` and `sharing`, in `aio_process` and `process`. These pairs have the same names and
signatures, so that the rest follows by replacing words.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "sandboxd_client"
SOURCES = {"aio.py": "client.py", "aio_rpc.py": "rpc.py"}
WORDS = {
    "async def": "def",
    "async for": "for",
    "async with": "with",
    "await ": "",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "AsyncIterator": "Iterator",
    "AsyncClient": "Client",
    "AsyncConnector": "SharedConnector",
    "AsyncPreparing": "Preparing",
    "AsyncProcess": "Process",
    "AsyncRpcMethods": "RpcMethods",
    "AsyncSession": "Session",
    "Awaitable[R]": "R",
    "Awaitable, ": "",
    "aio_connection": "sharing",
    "aio_process": "process",
    "aio_rpc": "rpc",
    "sandboxd_client.aio ": "sandboxd_client.client ",
    # A blocking session opens at once, an asynchronous one in `async with`.
    "return AsyncSession(self, opening(cwd, name, settings, permission_mode, detach=detach))": (
        "return Session(self, opening(cwd, name, settings, permission_mode, detach=detach)).open()"
    ),
}
_WORD = re.compile("|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True)))


def generate(source: Path) -> str:
    """Return the text of the blocking module for an asynchronous one."""
    text = _WORD.sub(lambda found: WORDS[found[0]], source.read_text())
    text = f"# Generated from {source.name} by ./dev generate: change that one.\n{text}"
    for arguments in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(source), "-"],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        text = done.stdout
    return text


def main() -> int:
    """Write the modules, or name those that differ and return 1."""
    different = []
    for source, name in SOURCES.items():
        text, target = generate(PACKAGE / source), PACKAGE / name
        # Compare the syntax: versions of the formatter break lines differently.
        if not target.exists() or ast.dump(ast.parse(target.read_text())) != ast.dump(ast.parse(text)):
            different.append(name)
            if "--check" not in sys.argv[1:]:
                target.write_text(text)
    if different and "--check" in sys.argv[1:]:
        print(f"not current: {' '.join(different)}\nhint: ./dev generate", file=sys.stderr)
        return 1
    print(" ".join(different) or "nothing differs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
